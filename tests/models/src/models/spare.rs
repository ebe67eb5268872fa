//! Snapshots of the trace ring: a CPU writes, and its two rings are exchanged meanwhile.
//!
//! An interrupt on the writer's CPU exchanges the rings, and says whether it found a record in the
//! middle. A record is in one of the two rings as a whole, and a reader of the taken one sees no
//! write to it.

use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use std::ptr::NonNull;

use super::{Weakness::AlwaysQuiescent, share, start, trace};
use crate::{
    trace_ring::{
        Event, Mode, Ring, Source, Stats,
        spare::{Spare, may_be_confused},
    },
    weakness::is_weak,
};

/// The rings of a CPU. The place of the live one is not in the [`Spare`], as in the kernel.
struct Cpu {
    live: AtomicPtr<u8>,
    spare: Spare,
    moments: AtomicU64,
}

impl Cpu {
    /// Both rings are empty.
    fn new() -> &'static Self {
        let [first, second] = [(); 2].map(|()| trace::world(Mode::Overwrite, 0).as_ptr());
        let [one, two] = [first, second].map(|ring| ring.addr().get() as u64);
        assert!(!may_be_confused(one, two, trace::BYTES as u64));
        let cpu = share(Self {
            live: AtomicPtr::new(first.as_ptr()),
            spare: Spare::new(),
            moments: AtomicU64::new(0),
        });
        // SAFETY: an empty ring that lives to the end of the execution, and is not live.
        let mut held = unsafe { cpu.spare.hold(&cpu.live) };
        // SAFETY: as above.
        unsafe { held.set_spare(second.as_ptr()) };
        cpu.moment();
        // All atomics are touched now.
        assert_eq!(held.live(), first.as_ptr());
        drop(held);
        cpu
    }

    /// Another thread may go on here. The checker looks for changes of order at accesses of which
    /// one stores, and forgets a load of one thread when another thread loads before it stores.
    fn moment(&self) {
        self.moments.fetch_add(1, Relaxed);
    }

    /// Asks for a snapshot. Any thread.
    fn exchange(&self) {
        self.moment();
        // SAFETY: the rings live to the end of the execution.
        unsafe { self.spare.exchange(&self.live) };
    }

    /// A hit of the CPU: a record with a word of payload, which says which one it is.
    fn hit(&self, id: u64) {
        self.hit_around(id, || {});
    }

    /// The same with `nested` in the middle of the record.
    fn hit_around(&self, id: u64, nested: impl FnOnce()) {
        let ring = || {
            self.moment();
            let ring = NonNull::new(self.live.load(Acquire)).expect("a ring");
            // SAFETY: a ring that lives to the end of the execution.
            unsafe { Ring::from_raw(ring) }
        };
        // SAFETY: one thread writes.
        let record = unsafe { ring().reserve(8, id) }.expect("room");
        trace::word(record, 0).store(!id, Relaxed);
        nested();
        if is_weak(AlwaysQuiescent) {
            self.quiet();
        }
        // As compiled code does it: in the ring that is live by now.
        // SAFETY: the record was reserved in one of the two, which cannot be confused.
        unsafe { ring().commit(record) };
    }

    /// An interrupt of the CPU that has interrupted no hit.
    fn quiet(&self) {
        self.moment();
        // SAFETY: the rings live to the end of the execution. No writer is under way, but if the
        // model is to fail.
        unsafe { self.spare.on_quiet(&self.live) };
        // The records of a snapshot are complete.
        self.held(|_, spare| _ = records(spare));
    }

    /// Calls `work` with the live ring and the spare, which stay so meanwhile.
    fn held<R>(&self, work: impl FnOnce(Ring<'static>, Ring<'static>) -> R) -> R {
        // SAFETY: the rings live to the end of the execution.
        let held = unsafe { self.spare.hold(&self.live) };
        let [live, spare] = [held.live(), held.spare()].map(|ring| {
            let ring = NonNull::new(ring).expect("a ring");
            // SAFETY: as above.
            unsafe { Ring::from_raw(ring) }
        });
        assert_ne!(live.as_ptr(), spare.as_ptr());
        work(live, spare)
    }

    /// Nothing is under way any more. Wants no snapshot to be forgotten, `hits` records in the
    /// books, and all those that are there whole and in order. Returns those of the snapshot and
    /// the live ones, with the counts.
    fn close(&self, hits: u64) -> ([Vec<u64>; 2], [Stats; 2]) {
        // Each does one thing that had to wait.
        self.quiet();
        self.quiet();
        let waits = (self.spare.is_wanted(), self.spare.is_exchanged());
        assert_eq!(
            waits,
            (false, false),
            "a snapshot is wanted, or not settled"
        );
        let rings = self.held(|live, spare| [spare, live]);
        let stats = rings.map(Ring::stats);
        for stats in &stats {
            let gone = stats.read + stats.overwritten + stats.cleared;
            assert_eq!(stats.written, gone + stats.unread);
        }
        assert_eq!(stats[0].written + stats[1].written, hits, "{stats:?}");
        let records = rings.map(records);
        for (records, stats) in [(&records[0], &stats[0]), (&records[1], &stats[1])] {
            assert_eq!(
                (Vec::len(records) as u64, stats.overwritten),
                (stats.unread, 0)
            );
        }
        let all = records[0].iter().chain(&records[1]);
        assert!(all.is_sorted_by(|one, next| one < next), "{records:?}");
        (records, stats)
    }
}

/// Wants the next record to be whole. Returns which one it is.
fn take(source: &mut impl Source) -> Option<u64> {
    let mut buffer = [0; 8];
    match source.next(&mut buffer).expect("no damage")? {
        Event::Record(record) => {
            assert_eq!(u64::from_le_bytes(buffer), !record.tsc, "a torn record");
            Some(record.tsc)
        }
        Event::Lost(_) => take(source),
    }
}

/// The records of a ring, in order.
fn records(ring: Ring<'_>) -> Vec<u64> {
    let mut cursor = ring.cursor();
    core::iter::from_fn(|| take(&mut cursor)).collect()
}

/// Several snapshots are wanted while the CPU records, by another CPU and by nested hits. The
/// second one waits for a quiet moment: until then the first one's last record is under way.
pub(super) fn exchanged() {
    let cpu = Cpu::new();
    let writes = start(move || {
        cpu.hit_around(0, || {
            cpu.exchange();
            cpu.hit(1);
            cpu.exchange();
        });
        cpu.quiet();
        cpu.hit(2);
    });
    cpu.exchange();
    writes.join().expect("no panic");
    let (records, stats) = cpu.close(3);
    // A record that is in neither ring was in the first snapshot.
    let [snapshot, live] = records.map(|records| records.len() as u64);
    assert_eq!(snapshot + live + stats[0].cleared + stats[1].cleared, 3);
}

/// Hits of two CPUs ask for a snapshot of one of them at once. Each that asks is obeyed by
/// somebody.
pub(super) fn asked_twice() {
    let cpu = Cpu::new();
    cpu.hit(0);
    let asks = start(move || cpu.exchange());
    cpu.exchange();
    cpu.quiet();
    cpu.hit(1);
    asks.join().expect("no panic");
    let (records, stats) = cpu.close(2);
    // The first record was in a snapshot, and is still there if both hits had the same one.
    assert!(!records[1].contains(&0), "{records:?}");
    assert_eq!(
        records[0].contains(&0),
        stats[0].cleared + stats[1].cleared == 0
    );
}

/// A task takes records out, while a hit takes a snapshot and the CPU goes on.
pub(super) fn consumed() {
    let cpu = Cpu::new();
    cpu.hit(0);
    cpu.hit(1);
    let reads = start(move || cpu.held(|live, _| take(&mut live.consumer())));
    cpu.exchange();
    cpu.quiet();
    cpu.hit(2);
    cpu.exchange();
    let id = reads.join().expect("no panic");
    let (records, stats) = cpu.close(3);
    let read: u64 = stats.iter().map(|stats| stats.read).sum();
    assert_eq!(read, u64::from(id.is_some()));
    assert!(!records.concat().contains(&id.unwrap_or(u64::MAX)));
}

/// The same with a task that clears the live ring.
pub(super) fn cleared() {
    let cpu = Cpu::new();
    cpu.hit(0);
    let clears = start(move || {
        // SAFETY: the rings live to the end of the execution.
        let mut held = unsafe { cpu.spare.hold(&cpu.live) };
        // SAFETY: as above.
        let ring = NonNull::new(held.live()).map(|ring| unsafe { Ring::from_raw(ring) });
        held.bases()[0] = ring.expect("a ring").reset();
    });
    cpu.exchange();
    cpu.quiet();
    cpu.hit(1);
    cpu.exchange();
    clears.join().expect("no panic");
    let (_, stats) = cpu.close(2);
    // SAFETY: as above.
    let mut held = unsafe { cpu.spare.hold(&cpu.live) };
    let [live, snapshot] = *held.bases();
    for (stats, base) in [(&stats[0], snapshot), (&stats[1], live)] {
        let since = stats.since(&base);
        assert_eq!(since.written, since.unread + since.cleared, "{since:?}");
    }
}
