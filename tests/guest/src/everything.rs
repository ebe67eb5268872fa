//! Probes on instructions all over the kernel and on the returns of its functions, all at once, while programs run.
//!
//! Afterwards the books must close: each breakpoint exception was a hit, a miss, a breakpoint that had just been removed, or
//! the end of a jprobe's handler; the probes on system calls have counted what the program counted; and
//! when all probes are gone, so is every trace of them.
//!
//! # Narrowing a failure down
//! `everything.stride=N` on the kernel command line takes every Nth instruction and function (1: all of them; that takes minutes), `everything.only=TEXT` those of
//! functions whose names hold TEXT, `everything.returns=0` no return probes, `everything.work=TEXT` only work whose name holds TEXT.
//! In a panic the last probed addresses of each CPU are printed.

use crate::{everything_probes::Everything, guest_test};
use abi::WaitStatus;
use alloc::vec::Vec;
use core::{mem, slice, sync::atomic::Ordering::Relaxed};
use kernel::{
    arch::{percpu, smp},
    cmdline,
    mm::{frame, heap, kernel_stack},
    pr_info,
    probes::PROBES,
    symbols,
    task::{
        Pid,
        exec::{run_program, start_program},
        process::{self, Which},
        sleep::sleep_until,
        wait::wait_for_child,
    },
    time::{NSEC_PER_MSEC, ktime_get},
};

/// What programs do meanwhile, by exercise.
const EXERCISES: [&[&str]; 17] = [
    &["bad_pointers"],
    &["wild", "null_call"],
    &["wild", "stack_overflow"],
    &["raise", "divide"],
    &["raise", "breakpoint"],
    &["raise", "syscall_flags"],
    &["descriptors"],
    &["contents"],
    &["directories"],
    &["copy_on_write"],
    &["heap"],
    &["identity"],
    &["wait"],
    &["exec"],
    &["kill"],
    &["sleep", "10"],
    &["rounds", "3"],
];

/// The kernel's text, as it is in memory.
fn text() -> &'static [u8] {
    unsafe extern "C" {
        static __text_start: u8;
        static __text_end: u8;
    }
    let (start, end) = (&raw const __text_start, &raw const __text_end);
    // SAFETY: the linker puts the symbols around the text, which is mapped. Nobody writes it while no probe is registered.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// What is to be as before when all probes are gone.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    processes: usize,
    heap_bytes: usize,
    /// Those of kernel stacks among them, which are kept to be used again.
    free_frames: usize,
    slots: usize,
    text: u64,
}

impl Traces {
    fn now() -> Self {
        Self {
            processes: process::count(),
            heap_bytes: heap::usage().0,
            free_frames: frame::free_frames() + kernel_stack::mapped_frames(),
            slots: PROBES.slots_in_use(),
            text: text()
                .iter()
                // FNV-1a.
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
                }),
        }
    }

    /// Those of a kernel at rest: what ended tasks leave is given back by whoever runs next.
    fn at_rest() -> Self {
        let mut last = Self::now();
        loop {
            sleep_until(ktime_get() + 20 * NSEC_PER_MSEC);
            PROBES.reap().unwrap();
            let now = Self::now();
            if mem::replace(&mut last, now) == last {
                return last;
            }
        }
    }
}

/// Runs what is called `name`, unless the command line leaves it out.
fn work(name: &str, run: impl FnOnce()) {
    if cmdline::get("everything.work").is_none_or(|wanted| name.contains(wanted)) {
        let start = ktime_get();
        run();
        pr_info!(
            "everything: {name} took {} ms",
            (ktime_get() - start) / NSEC_PER_MSEC
        );
    }
}

fn end_of(pid: Pid) -> WaitStatus {
    wait_for_child(Which::Pid(pid), false)
        .unwrap()
        .expect("the wait waits")
        .1
}

/// The exercises, each alone and then several side by side, the workload of the samples, and modules that come and go.
fn complete_workload() {
    for exercise in EXERCISES {
        work(exercise[0], || {
            let status = run_program("/bin/exercise", exercise).unwrap();
            let is_to_end_well =
                !["wild", "raise"].contains(&exercise[0]) || exercise[1] == "syscall_flags";
            assert_eq!(
                status == WaitStatus::exited(0),
                is_to_end_well,
                "{exercise:?}: {status:?}"
            );
        });
    }
    // The child of a program that was killed goes on as an orphan.
    for pid in process::pids() {
        process::kill(pid).unwrap();
    }
    work("side_by_side", || {
        let children: Vec<Pid> = ["contents", "copy_on_write", "wait"]
            .iter()
            .map(|name| start_program("/bin/exercise", &[name]).unwrap())
            .collect();
        children
            .into_iter()
            .for_each(|pid| assert_eq!(end_of(pid), WaitStatus::exited(0)));
    });
    work("workload", || {
        assert_eq!(
            run_program("/bin/workload", &["2"]),
            Ok(WaitStatus::exited(0))
        );
    });
}

/// The exercises that make a known number of a system call, and the function behind it.
const COUNTED: [(&str, u64); 3] = [("sys_getpid", 3), ("sys_getppid", 2), ("sys_mkdir", 1)];

fn sum_over_cpus(count: impl Fn(&::probes::PerCpu) -> u64) -> u64 {
    (0..smp::online_cpus())
        .map(|cpu| count(&percpu::of(cpu).probes))
        .sum()
}

/// Exceptions that the entry stub gave to the probes, and those of them that found their breakpoint gone.
fn traps() -> (u64, u64) {
    let of = |field: fn(&::probes::PerCpu) -> &core::sync::atomic::AtomicU64| {
        sum_over_cpus(|cpu| field(cpu).load(Relaxed))
    };
    (of(|cpu| &cpu.breakpoints), of(|cpu| &cpu.stale_breakpoints))
}

/// See the module's text.
fn probe_everything() {
    let everything = Everything::find();
    // Without probes first: what programs leave in the file system and in caches is there before the count.
    complete_workload();
    let before = Traces::at_rest();
    let (traps_before, stale_before) = traps();
    everything.register();
    complete_workload();

    // The probes on system calls have counted what the program has.
    let at = |name| symbols::lookup_name(name).unwrap().start;
    let counts = || COUNTED.map(|(name, _)| everything.hits_at(at(name)));
    let (calls_before, rounds) = (counts(), 40);
    work("calls", || {
        assert_eq!(
            run_program("/bin/exercise", &["calls", "40"]),
            Ok(WaitStatus::exited(0))
        );
        for ((name, each), (then, now)) in COUNTED.iter().zip(calls_before.iter().zip(counts())) {
            assert!(
                now == then + each * rounds || everything.is_partial(),
                "{name}: {then}, {now}"
            );
        }
    });

    // With the knob off no breakpoint is left, but the probes are: nothing is hit between their end and the count.
    PROBES.set_enabled(false).unwrap();
    let (traps, stale) = traps();
    let (traps, stale) = (traps - traps_before, stale - stale_before);
    let (hits, misses) = everything.hits_and_misses();
    let (returns, lost) = everything.returns_and_misses();
    let (instructions, functions) = everything.counts();
    pr_info!(
        "everything: {instructions} kprobes, {functions} kretprobes on {} CPUs",
        smp::online_cpus()
    );
    pr_info!(
        "everything: {traps} traps = {hits} hits + {misses} misses + {stale} stale; {returns} returns, {lost} not followed"
    );
    everything.unregister();
    PROBES.set_enabled(true).unwrap();
    assert!(hits > 0);
    assert_eq!(traps, hits + misses + stale, "a trap is unaccounted for");
    assert_eq!(Traces::at_rest(), before);
}

guest_test! {
    /// One instruction in fifty and one function in fifty, on two CPUs. By breakpoints: each hit is a trap then, so that the books close.
    #[cmdline("everything.stride=50 kprobes.optimize=0")]
    #[memory(512)]
    #[timeout(120)]
    fn probes_all_over_the_kernel_leave_programs_alone() {
        probe_everything();
    }

    /// One in five, on two CPUs.
    #[cmdline("everything.stride=5 kprobes.optimize=0")]
    #[memory(512)]
    #[timeout(600)]
    #[ignore]
    fn probes_on_every_fifth_instruction_leave_programs_alone() {
        probe_everything();
    }

    /// One in fifty, on four CPUs.
    #[cmdline("everything.stride=50 kprobes.optimize=0")]
    #[smp(4)]
    #[memory(512)]
    #[timeout(600)]
    #[ignore]
    fn probes_all_over_the_kernel_on_four_cpus_leave_programs_alone() {
        probe_everything();
    }
}
