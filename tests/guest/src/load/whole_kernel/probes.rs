//! The probes that the kernel accepts: one on each instruction, one on the return of each function,
//! or a share of them.
//!
//! Which they are is found out by asking: the survey for instructions, a registration for
//! functions. Then all are registered once, which makes the registry as large as it will need to
//! be: so what is measured before and after the real round must be equal.
//!
//! # Contexts
//! Task context. The handler notes the address in per-CPU data; two CPUs never write the same
//! words.

use crate::{harness::runner, tools::own_code::is_of_the_kernel};
use alloc::{boxed::Box, vec::Vec};
use core::{
    cmp::Reverse,
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};
use kernel::{
    arch::percpu,
    cmdline, pr_emerg, pr_info,
    probes::{
        Jprobe, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, Probe, PtRegs, jprobe,
        register_kretprobe, survey, unregister_kretprobe,
    },
    symbols::{self, Symbol, SymbolKind},
};

/// The system calls that an exercise makes a known number of times, and that number in a round.
pub const COUNTED: [(&str, u64); 3] = [("sys_getpid", 3), ("sys_getppid", 2), ("sys_mkdir", 1)];

/// How many addresses are remembered for each CPU.
const REMEMBERED: usize = 16;
/// CPUs that are told apart.
const CPUS: usize = 4;

/// The last probed addresses of a CPU, in a ring.
struct Recent {
    count: AtomicUsize,
    addresses: [AtomicU64; REMEMBERED],
}

static RECENT: [Recent; CPUS] = [const {
    Recent {
        count: AtomicUsize::new(0),
        addresses: [const { AtomicU64::new(0) }; REMEMBERED],
    }
}; CPUS];
/// Where a panic begins.
static PANIC: AtomicU64 = AtomicU64::new(0);

fn note(probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    let recent = &RECENT[percpu::cpu_id() % CPUS];
    let count = recent.count.load(Relaxed);
    recent.addresses[count % REMEMBERED].store(probe.addr(), Relaxed);
    recent.count.store(count + 1, Relaxed);
    if probe.addr() == PANIC.load(Relaxed) {
        tell_recent();
    }
    PreVerdict::Execute
}

/// Costs as little as a handler can: its instructions are probed, too, and each hit that runs it
/// misses all of them.
fn pass(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn note_return(_call: &mut KretprobeInstance<()>, _regs: &mut PtRegs) {}

jprobe! {
    fn mirror_of_do_fork(_clone_flags: u64, _stack_start: u64) {}
}

/// Prints the last probed addresses of each CPU, oldest first.
fn tell_recent() {
    for (cpu, recent) in RECENT.iter().enumerate() {
        let count = recent.count.load(Relaxed);
        for n in count.saturating_sub(REMEMBERED)..count {
            let address = recent.addresses[n % REMEMBERED].load(Relaxed);
            match symbols::lookup_addr(address) {
                Some(symbol) => pr_emerg!("cpu {cpu} hit {symbol}+{:#x}", address - symbol.start),
                None => pr_emerg!("cpu {cpu} hit {address:#x}"),
            }
        }
    }
}

/// The probes; registered between [`Everything::register`] and [`Everything::unregister`].
pub struct Everything {
    kprobes: &'static [Kprobe],
    kretprobes: Vec<&'static Kretprobe>,
    jprobe: &'static Jprobe,
    /// All of them, in the order of registration.
    batch: Vec<&'static dyn Probe>,
    /// How many of `batch`, its first ones, are in the code of [`is_writer`].
    in_writers: usize,
}

/// How many of the instructions that were hit most are printed.
const TOLD: usize = 40;

/// One in so many kprobes has a handler. The others count all the same. Each hit of the handler is
/// some misses more, of its own instructions.
const HANDLERS: usize = 16;

/// The command line's choice of what is probed.
struct Choice {
    stride: usize,
    only: &'static str,
}

impl Choice {
    fn of_the_command_line() -> Self {
        Self {
            stride: cmdline::get("whole_kernel.stride")
                .and_then(|stride| stride.parse().ok())
                .unwrap_or(1),
            only: cmdline::get("whole_kernel.only").unwrap_or(""),
        }
    }

    /// Whether number `number` is chosen, which is in the function `name`.
    fn holds(&self, name: &str, number: usize) -> bool {
        number.is_multiple_of(self.stride) && name.contains(self.only)
    }
}

impl Everything {
    /// Finds out what can be probed; nothing is registered afterwards.
    pub fn find() -> Self {
        let mut kprobes = Vec::new();
        let mut kretprobes = Vec::new();
        // In the order of their addresses.
        let mut writers: Vec<Range<u64>> = Vec::new();
        let choice = Choice::of_the_command_line();
        let traced = cmdline::get("whole_kernel.trace") == Some("1");
        let with_returns = cmdline::get("whole_kernel.returns") != Some("0");
        let kprobe = |at, number: usize| {
            let kprobe = Kprobe::new().at(at);
            match number % HANDLERS {
                _ if traced => kprobe.pre(note),
                0 => kprobe.pre(pass),
                _ => kprobe,
            }
        };
        let counted = COUNTED.map(|(name, _)| symbols::lookup_name(name).unwrap().start);
        let forking = symbols::lookup_name("do_fork").unwrap().start;
        let mut last = 0;
        let mut functions = 0;
        let mut instructions = 0;
        // Handlers are the only code of the tests: hits of their instructions are misses.
        let chosen = |symbol: &Symbol<'_>| {
            symbol.kind == SymbolKind::Text
                && (is_of_the_kernel(symbol) || symbol.name.contains("12whole_kernel"))
        };
        for symbol in symbols::functions().filter(chosen) {
            if symbol.start < last {
                // Another name for what was there already.
                continue;
            }
            last = symbol.start + symbol.size;
            if is_writer(symbol.name) {
                writers.push(symbol.start..last);
            }
            functions += 1;
            let mut returns = false;
            if with_returns && choice.holds(symbol.name, functions) {
                let kretprobe = Kretprobe::new().at(symbol.start).handler(note_return);
                let kretprobe: &'static Kretprobe = Box::leak(Box::new(kretprobe));
                if register_kretprobe(kretprobe).is_ok() {
                    unregister_kretprobe(kretprobe).unwrap();
                    kretprobes.push(kretprobe);
                    returns = true;
                }
            }
            for judged in survey::function(&symbol).unwrap() {
                instructions += 1;
                let at = judged.insn.ip();
                // The entries of return probes and of the jprobe are counted by the kprobe that
                // shares the breakpoint.
                let is_entry = at == symbol.start
                    && (returns || symbol.start == forking || counted.contains(&symbol.start));
                if judged.verdict.is_ok() && (is_entry || choice.holds(symbol.name, instructions)) {
                    kprobes.push(kprobe(at, kprobes.len()));
                }
            }
        }
        let panic =
            symbols::functions().find(|symbol| alloc::format!("{symbol}") == "kernel::panic::end");
        PANIC.store(panic.map_or(0, |symbol| symbol.start), Relaxed);
        let kprobes: &'static [Kprobe] = Box::leak(kprobes.into_boxed_slice());
        let jprobe: &'static Jprobe = Box::leak(Box::new(
            Jprobe::new().symbol("do_fork").entry(mirror_of_do_fork),
        ));
        let mut batch: Vec<&'static dyn Probe> = kprobes.iter().map(|probe| probe as _).collect();
        batch.extend(kretprobes.iter().map(|probe| *probe as &dyn Probe));
        batch.push(jprobe);
        // Breakpoints are written in the opposite order of registration. Those in the code that
        // writes them come last, for speed.
        let is_in_writer = |probe: &&dyn Probe| {
            let addr = probe.kprobe().addr();
            let next = writers.partition_point(|writer| writer.end <= addr);
            writers
                .get(next)
                .is_some_and(|writer| writer.contains(&addr))
        };
        batch.sort_by_cached_key(|probe| !is_in_writer(probe));
        let in_writers = batch.partition_point(is_in_writer);
        let everything = Self {
            kprobes,
            kretprobes,
            jprobe,
            batch,
            in_writers,
        };
        // Only so that the registry grows: armed if there are to be detours, too.
        let armed = PROBES.optimization();
        PROBES.set_enabled(armed).unwrap();
        let spare = spare_probes();
        let spare: Vec<_> = spare.iter().map(|probe| probe as &dyn Probe).collect();
        PROBES.register_batch(&spare).unwrap();
        everything.register();
        everything.unregister();
        PROBES.unregister_batch(&spare).unwrap();
        PROBES.set_enabled(true).unwrap();
        pr_info!(
            "everything: {} instructions, {} functions",
            everything.kprobes.len(),
            everything.kretprobes.len()
        );
        everything
    }

    /// How many instructions and functions are probed.
    pub fn counts(&self) -> (usize, usize) {
        (self.kprobes.len(), self.kretprobes.len())
    }

    /// Registers all in one batch, which arms them.
    pub fn register(&self) {
        PROBES.register_batch(&self.batch).unwrap();
    }

    /// Removes all: first those in the code that removes them, which is slow under probes. In the
    /// opposite order of registration, so that the kprobe that counts the hits at a function's
    /// entry is there as long as the others.
    pub fn unregister(&self) {
        let (removers, rest) = self.batch.split_at(self.in_writers);
        for batch in [removers, rest] {
            let batch: Vec<_> = batch.iter().rev().copied().collect();
            PROBES.unregister_batch(&batch).unwrap();
        }
    }

    /// How often the instruction at `addr` was seen.
    pub fn hits_at(&self, addr: u64) -> u64 {
        self.kprobes
            .binary_search_by_key(&addr, Kprobe::addr)
            .map_or(0, |n| self.kprobes[n].hits())
    }

    /// Handlers run and handlers left out, over all instructions.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        self.kprobes.iter().fold((0, 0), |(hits, misses), probe| {
            (hits + probe.hits(), misses + probe.nmissed())
        })
    }

    /// Prints the instructions that were hit most.
    pub fn tell_most_hit(&self) {
        let mut kprobes: Vec<_> = self.kprobes.iter().collect();
        kprobes.sort_unstable_by_key(|probe| Reverse(probe.hits()));
        for probe in kprobes.into_iter().take(TOLD) {
            pr_info!(
                "everything: {} hits, {} misses at {}",
                probe.hits(),
                probe.nmissed(),
                symbols::Address::of_instruction(probe.addr())
            );
        }
    }

    /// How often the jprobe's handler ran, and so ended.
    pub fn jprobe_hits(&self) -> u64 {
        self.jprobe.kprobe().hits()
    }

    /// Returns seen, and calls for which there was no instance.
    pub fn returns_and_misses(&self) -> (u64, u64) {
        self.kretprobes
            .iter()
            .fold((0, 0), |(hits, misses), probe| {
                (hits + probe.hits(), misses + probe.nmissed())
            })
    }
}

/// Probes whose room in the registry is left to those that modules and guest tests register while
/// everything else is registered: on the instructions of a function that is not probed otherwise.
/// Without them the registry would grow in the real round if everything filled its pages exactly.
fn spare_probes() -> &'static [Kprobe] {
    let function = symbols::lookup_addr(runner::run as *const () as u64).unwrap();
    let judged = survey::function(&function).unwrap();
    let probeable = judged.iter().filter(|judged| judged.verdict.is_ok());
    let spare: Vec<_> = probeable
        .map(|judged| Kprobe::new().at(judged.insn.ip()))
        .collect();
    assert!(spare.len() >= 64, "only {} are spare", spare.len());
    spare.leak()
}

/// Whether the function `name` is of the code that goes through a batch and writes its breakpoints:
/// the probes' own, that which stores text, and the copies of small functions in assembly.
fn is_writer(name: &str) -> bool {
    ["6probes", "9text_poke", "compiler_builtins"]
        .iter()
        .any(|part| name.contains(part))
}
