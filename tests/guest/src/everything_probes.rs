//! The probes that the kernel accepts: one on each instruction, one on the return of each function, or a share of them.
//!
//! Which they are is found out by asking: first by the survey, then by registering each, disabled. That first round also makes
//! the registry as large as it will need to be, so what is measured before and after the real one must be equal.
//!
//! # Contexts
//! Task context. The handler notes the address in per-CPU data; two CPUs never write the same words.

use alloc::{boxed::Box, vec::Vec};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use kernel::{
    arch::percpu,
    cmdline, pr_emerg, pr_info,
    probes::{
        Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs, register_kprobes,
        register_kretprobe, register_kretprobes, survey, unregister_kprobes, unregister_kretprobes,
    },
    symbols::{self, Kind},
};

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

/// Costs as little as a handler can: its instructions are probed, too, and each hit runs into all of them.
fn pass(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn note_return(_call: &mut KretprobeInstance<()>, _regs: &mut PtRegs) {}

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
}

/// What the command line says about what is probed.
fn is_chosen(name: &str, number: usize) -> bool {
    let stride = cmdline::get("everything.stride")
        .and_then(|stride| stride.parse().ok())
        .unwrap_or(1);
    number.is_multiple_of(stride)
        && cmdline::get("everything.only").is_none_or(|only| name.contains(only))
}

impl Everything {
    /// Finds out what can be probed; nothing is registered afterwards.
    pub fn find() -> Self {
        let mut kprobes = Vec::new();
        let mut kretprobes = Vec::new();
        let traced = cmdline::get("everything.trace") == Some("1");
        let kprobe = |at| {
            let kprobe = Kprobe::new().at(at).disabled();
            if traced {
                kprobe.pre(note)
            } else {
                kprobe.pre(pass)
            }
        };
        let mut last = 0;
        let mut functions = 0;
        let mut instructions = 0;
        for symbol in symbols::functions().filter(|symbol| symbol.kind == Kind::Text) {
            if symbol.start < last {
                // Another name for what was there already.
                continue;
            }
            last = symbol.start + symbol.size;
            functions += 1;
            let mut returns = false;
            if cmdline::get("everything.returns") != Some("0") && is_chosen(symbol.name, functions)
            {
                let kretprobe = Kretprobe::new()
                    .at(symbol.start)
                    .handler(note_return)
                    .disabled();
                let kretprobe: &'static Kretprobe = Box::leak(Box::new(kretprobe));
                if register_kretprobe(kretprobe).is_ok() {
                    kretprobes.push(kretprobe);
                    returns = true;
                }
            }
            for judged in survey::function(&symbol).unwrap() {
                instructions += 1;
                // A return probe's entry is counted by the kprobe that shares its breakpoint.
                let entry = returns && judged.insn.ip() == symbol.start;
                if judged.verdict.is_ok() && (entry || is_chosen(symbol.name, instructions)) {
                    kprobes.push(kprobe(judged.insn.ip()));
                }
            }
        }
        let panic =
            symbols::functions().find(|symbol| alloc::format!("{symbol}") == "kernel::panic::end");
        PANIC.store(panic.map_or(0, |symbol| symbol.start), Relaxed);
        let everything = Self {
            kprobes: Box::leak(kprobes.into_boxed_slice()),
            kretprobes,
        };
        register_kprobes(&everything.all_kprobes()).unwrap();
        everything.unregister();
        pr_info!(
            "everything: {} instructions, {} functions",
            everything.kprobes.len(),
            everything.kretprobes.len()
        );
        everything
    }

    fn all_kprobes(&self) -> Vec<&'static Kprobe> {
        self.kprobes.iter().collect()
    }

    /// How many instructions and functions are probed.
    pub fn counts(&self) -> (usize, usize) {
        (self.kprobes.len(), self.kretprobes.len())
    }

    /// Registers all and arms them. The kprobes come first: each hit of an instruction that has a return probe, too, is theirs.
    pub fn register(&self) {
        register_kprobes(&self.all_kprobes()).unwrap();
        if !self.kretprobes.is_empty() {
            register_kretprobes(&self.kretprobes).unwrap();
        }
    }

    /// Removes all.
    pub fn unregister(&self) {
        unregister_kprobes(&self.all_kprobes()).unwrap();
        unregister_kretprobes(&self.kretprobes).unwrap();
    }

    /// Whether the command line leaves anything out.
    pub fn is_partial(&self) -> bool {
        ["everything.stride", "everything.only"]
            .iter()
            .any(|name| cmdline::get(name).is_some())
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

    /// Returns seen, and calls for which there was no instance.
    pub fn returns_and_misses(&self) -> (u64, u64) {
        self.kretprobes
            .iter()
            .fold((0, 0), |(hits, misses), probe| {
                (hits + probe.hits(), misses + probe.nmissed())
            })
    }
}
