//! Tracing under fire: programs and events on everything at once, readers that are too slow, rings
//! that change, and code that goes while CPUs execute it. The books close to the last hit.
//!
//! # Books
//! A caller knows how often it has called a function. The program there counts its hits, and how
//! many of them got no record. The rings count what has become of each record:
//!
//! ```text
//!   calls = hits = written + dropped + off          (and what a filter rejected)
//!                  written = read + overwritten + cleared + unread
//! ```
//!
//! Each side is counted apart from the others. So a hit that is lost, or counted twice, shows.

mod commands;
mod everything;
mod interrupts;
mod places;
mod rings;
mod shortage;
mod unloading;

use alloc::{sync::Arc, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use bpf::context::Register;
use bpf::{AluOp, Builder, MapDef, MapIndex, ProgramKind, Reg::*, Size::B8};
use kernel::{
    arch::smp,
    probes::Kprobe,
    symbols,
    task::{TaskRef, kthread::spawn_kthread_on},
    trace::{
        TRACING,
        buffer::{Item, Totals},
        program::{AttachedProbe, Program},
        shared::Shared,
    },
};

/// The function under fire.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fired_target(n: u64) -> u64 {
    black_box(n).wrapping_mul(5) + 2
}

/// Counts of [`recorder`]: hits, and hits that got no record.
const COUNTS: MapIndex = MapIndex(0);

fn address_of(name: &str) -> u64 {
    symbols::lookup_name(name).unwrap().start
}

/// A program that writes the argument of the function and its complement to the ring.
fn recorder() -> Shared<Program> {
    let mut b = Builder::new(ProgramKind::Probe);
    let counts = b.map(MapDef::counters("counts", 2));
    assert_eq!(counts, COUNTS);
    let ring = b.map(MapDef::ring("records"));
    let (full, end) = (b.label(), b.label());
    b.load_register(R6, Register::Di)
        .mov(R7, R6)
        .alu(AluOp::Xor, R7, -1)
        .add(counts, 0, 1)
        .reserve(ring, 16, full)
        .store(R0, 0, B8, R6)
        .store(R0, 8, B8, R7)
        .submit(R0)
        .jump(end)
        .place(full)
        .add(counts, 1, 1)
        .place(end)
        .exit(0);
    Program::load(b.finish().unwrap()).unwrap()
}

fn attached_recorder() -> AttachedProbe {
    AttachedProbe::new(recorder(), Kprobe::new().symbol("fired_target")).unwrap()
}

/// The number in a record of [`recorder`]. The record is intact, or else this panics.
fn number_in(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0;
    assert_eq!(bytes.len(), 16, "a record of two words");
    let [n, complement] = [0, 1].map(|at: usize| u64::from_le_bytes(words[at]));
    assert_eq!(
        n ^ complement,
        u64::MAX,
        "a record is torn: {n:#x} {complement:#x}"
    );
    n
}

/// The counts of the rings since then.
struct Since(Totals);

impl Since {
    fn now() -> Self {
        Self(TRACING.buffer.totals())
    }

    /// The counts. No CPU records.
    fn totals(&self) -> Totals {
        let (old, now) = (self.0, TRACING.buffer.totals());
        let since = Totals {
            written: now.written - old.written,
            read: now.read - old.read,
            overwritten: now.overwritten - old.overwritten,
            // A record that was unread then is one of these now.
            cleared: now.cleared - old.cleared - old.unread,
            unread: now.unread,
            dropped: now.dropped - old.dropped,
            off: now.off - old.off,
        };
        assert_eq!(
            since.written,
            since.read + since.overwritten + since.cleared + since.unread,
            "{since:?}"
        );
        since
    }

    /// The books of `program`, a [`recorder`], close.
    #[track_caller]
    fn check(&self, program: &Program, calls: u64) -> Totals {
        let since = self.totals();
        let [hits, refused] = [0, 1].map(|index| program.counter(COUNTS, index));
        assert_eq!(hits, calls, "{since:?}");
        assert_eq!(refused, since.dropped + since.off, "{since:?}");
        assert_eq!(hits, since.written + refused, "{since:?}");
        since
    }
}

/// An empty buffer of `kib` KiB for each CPU, recording. Left behind as it was at the boot.
struct Rings(usize);

impl Rings {
    fn of(kib: usize, overwrites: bool) -> Self {
        // Without a program that records there are none.
        drop(recorder());
        let before = TRACING.buffer.size_kib(0);
        TRACING.buffer.resize(None, kib).unwrap();
        TRACING.buffer.set_overwrite(overwrites);
        TRACING.buffer.clear(None);
        Self(before)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        TRACING.buffer.set_overwrite(true);
        TRACING.buffer.resize(None, self.0).unwrap();
    }
}

/// Threads, one on each CPU, that call [`fired_target`] with numbers that ascend from
/// `cpu << 32` on.
struct Fire {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    threads: Vec<TaskRef>,
}

impl Fire {
    /// On all CPUs, until [`Fire::end`].
    fn start() -> Self {
        Self::from_each_cpu(|n| assert_eq!(fired_target(n), n.wrapping_mul(5) + 2))
    }

    /// The same with another call.
    fn of(call: fn()) -> Self {
        Self::from_each_cpu(move |_| call())
    }

    fn from_each_cpu(call: impl Fn(u64) + Copy + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let calls = Arc::new(AtomicU64::new(0));
        let threads = (0..smp::online_cpus() as u64)
            .map(|cpu| {
                let (stop, calls) = (stop.clone(), calls.clone());
                spawn_kthread_on(1 << cpu, "fires", move || {
                    let mut n = cpu << 32;
                    while !stop.load(Relaxed) {
                        call(n);
                        n += 1;
                        calls.fetch_add(1, Relaxed);
                    }
                })
                .unwrap()
            })
            .collect();
        Self {
            stop,
            calls,
            threads,
        }
    }

    /// Calls so far.
    fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }

    /// Waits until there were `more` calls more.
    fn wait_for(&self, more: u64) {
        let goal = self.calls() + more;
        while self.calls() < goal {
            kernel::task::schedule();
        }
    }

    /// Ends it. Returns the number of calls.
    fn end(self) -> u64 {
        self.stop.store(true, SeqCst);
        self.threads
            .iter()
            .for_each(|thread| thread.wait_released());
        self.calls()
    }
}

/// The findings of a reader among [`Fire`]'s records.
#[derive(Default)]
struct Reader {
    read: u64,
    lost: u64,
    /// The last number of each CPU.
    last: [Option<u64>; 8],
}

impl Reader {
    /// Takes a record out. It is intact, and after those before it. False: there is none.
    fn take(&mut self) -> bool {
        TRACING
            .buffer
            .consume(None, |item| self.note(item))
            .expect("there is memory")
    }

    /// A record that was found. It is intact, and after those before it.
    fn note(&mut self, item: Item<'_>) {
        match item {
            Item::Lost { count, .. } => self.lost += count,
            Item::Record { cpu, bytes, .. } => {
                let n = number_in(bytes);
                assert_eq!(n >> 32, cpu as u64, "a record of another CPU");
                let last = self.last[cpu].replace(n);
                assert!(last.is_none_or(|last| last < n), "{last:?}, then {n}");
                self.read += 1;
            }
        }
    }
}
