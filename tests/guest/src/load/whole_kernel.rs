//! Probes on instructions all over the kernel and on the returns of its functions, all at once,
//! while programs run.
//!
//! Afterwards the books must close: each breakpoint exception was a hit, a miss, a breakpoint that
//! had just been removed, or the end of a jprobe's handler; the probes on system calls have counted
//! what the program counted; and when all probes are gone, so is every trace of them. Where
//! breakpoints become jumps there are fewer exceptions than hits.
//!
//! # Narrowing a failure down
//! On the kernel command line:
//!
//! | argument | meaning |
//! |---|---|
//! | `whole_kernel.stride=N` | every Nth instruction and function; by default all, for minutes |
//! | `whole_kernel.only=TEXT` | those of functions whose names hold TEXT |
//! | `whole_kernel.returns=0` | no return probes |
//! | `whole_kernel.work=TEXT` | only work whose name holds TEXT |
//! | `whole_kernel.switch=1` | the optimisation is switched on and off meanwhile |
//! | `whole_kernel.top=1` | the instructions that were hit most are printed |
//! | `whole_kernel.trace=1` | the last probed addresses of each CPU are printed in a panic |

mod probes;

pub use self::probes::COUNTED;
use self::probes::Everything;
use crate::harness::registry;
use abi::WaitStatus;
use alloc::{format, sync::Arc, vec::Vec};
use core::{
    mem, slice,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};
use kernel::{
    arch::{percpu, smp},
    cmdline,
    mm::{frame, heap, kernel_stack},
    pr_info,
    probes::PROBES,
    symbols,
    task::{
        Pid, TaskRef,
        exec::{run_program, start_program},
        kthread::spawn_kthread,
        process::{self, Which},
        sleep::sleep_until,
        wait::wait_for_child,
    },
    time::{NSEC_PER_MSEC, ktime_get},
    uprobes::{RegisteredUserProbe, Uprobe, Uretprobe},
};

/// The work of programs meanwhile, by exercise.
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

/// Guest tests that run meanwhile, too, by the beginnings of their names: those that count neither
/// traps nor probes of their own.
const GUEST_TESTS: [&str; 5] = [
    "programs::",
    "tasks::",
    "modules::",
    "interrupts_and_nmis::",
    "protection::",
];

/// Tests that are left out of those, by parts of their names: they fill the memory, which is ample
/// here; they want no other probe to be there; they send NMIs faster than a probed handler deals
/// with them; they do the same very often; they want things to happen in time, the end of a task
/// before they measure the memory among them; they have probes of their own, or flags that one run
/// leaves set.
const LEFT_OUT: [&str; 20] = [
    "memory_that_is_out",
    "full_file_system",
    "too_many_processes",
    "probe",
    "under_nmis",
    "ping_pong",
    "no_page_is_writable",
    "order_of_their_times",
    "leak_nothing",
    "leave_no_memory",
    "given_its_stack_back",
    "no_ticks",
    "nmi_on_top_of_another",
    "handled_with_interrupts_on",
    "no_ports_by_its_saved_flags",
    "sent_to_an_impossible_address",
    "whatever_rcx_and_r11_hold",
    "no_reason_is_left_against_it",
    "handler_gives_way",
    "has_run_again",
];

/// The kernel's text, as it is in memory.
fn text() -> &'static [u8] {
    unsafe extern "C" {
        static __text_start: u8;
        static __text_end: u8;
    }
    let (start, end) = (&raw const __text_start, &raw const __text_end);
    // SAFETY: the linker puts the symbols around the text, which is mapped. It is not written while
    // no probe is registered.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// The traces that must be as before when all probes are gone.
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
    if cmdline::get("whole_kernel.work").is_none_or(|wanted| name.contains(wanted)) {
        timed(name, run);
    }
}

fn timed(name: &str, run: impl FnOnce()) {
    let start = ktime_get();
    run();
    pr_info!(
        "whole kernel: {name} took {} ms",
        (ktime_get() - start) / NSEC_PER_MSEC
    );
}

fn end_of(pid: Pid) -> WaitStatus {
    wait_for_child(Which::Pid(pid), false)
        .unwrap()
        .expect("the wait waits")
        .1
}

/// The exercises, each alone and then several side by side, the workload of the samples, and
/// modules that come and go.
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
    work("user_probes", user_probes);
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

/// Probes in a program meanwhile: before and after instructions, and at returns.
fn user_probes() {
    let at = |symbol| Uprobe::new().program("/bin/exercise").symbol(symbol);
    let of = |symbol| Uretprobe::new().program("/bin/exercise").symbol(symbol);
    let add = RegisteredUserProbe::new(at("probed_add")).unwrap();
    let after = at("probed_factorial").post_handler(|_, _| {});
    let after = RegisteredUserProbe::new(after).unwrap();
    let back = RegisteredUserProbe::new(of("probed_factorial").handler(|_, _| {})).unwrap();
    let status = run_program("/bin/exercise", &["probed", "2"]);
    assert_eq!(status, Ok(WaitStatus::exited(0)));
    let hits = (add.hits(), after.hits(), back.hits(), back.nmissed());
    assert_eq!(hits, (10, 20, 20, 0));
}

fn is_switching() -> bool {
    cmdline::get("whole_kernel.switch") == Some("1")
}

/// Runs the guest tests that can run so.
fn guest_tests() {
    for test in registry::tests().iter().map(|test| &test.0) {
        let name = test_protocol::name(test.name.as_str()).expect("a test is in a folder");
        let is_plain = test.flags == 0
            && test.cmdline.as_str().is_empty()
            && test.should_panic.as_str().is_empty()
            && test.smp as usize <= smp::online_cpus();
        if is_plain
            && GUEST_TESTS.iter().any(|module| name.starts_with(module))
            && !LEFT_OUT.iter().any(|part| name.contains(part))
        {
            work(name, test.run);
        }
    }
}

/// Runs the exercise that makes them.
fn run_calls(rounds: u64) {
    assert_eq!(
        run_program("/bin/exercise", &["calls", &format!("{rounds}")]),
        Ok(WaitStatus::exited(0))
    );
}

fn sum_over_cpus(count: impl Fn(&::probes::PerCpu) -> u64) -> u64 {
    (0..smp::online_cpus())
        .map(|cpu| count(&percpu::of(cpu).probes))
        .sum()
}

/// Exceptions that the entry stub gave to the probes, and those of them that found their breakpoint
/// gone.
fn traps() -> (u64, u64) {
    let of = |field: fn(&::probes::PerCpu) -> &core::sync::atomic::AtomicU64| {
        sum_over_cpus(|cpu| field(cpu).load(Relaxed))
    };
    (of(|cpu| &cpu.breakpoints), of(|cpu| &cpu.stale_breakpoints))
}

/// Switches the optimisation on and off for as long as it lives.
struct Switching {
    stop: Arc<AtomicBool>,
    thread: TaskRef,
}

impl Switching {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = spawn_kthread("switching", move || {
            let mut times = 0;
            while !flag.load(Relaxed) {
                PROBES.set_optimization(times % 2 == 0).unwrap();
                times += 1;
                sleep_until(ktime_get() + 20 * NSEC_PER_MSEC);
            }
            pr_info!("whole kernel: the optimisation was switched {times} times");
        })
        .unwrap();
        Self { stop, thread }
    }
}

impl Drop for Switching {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.wait_released();
    }
}

/// See the module's text.
fn probe_everything() {
    let everything = Everything::find();
    // Without probes first: what programs leave in the file system and in caches is there before
    // the count.
    run_calls(1);
    complete_workload();
    guest_tests();
    let before = Traces::at_rest();
    let jumps = PROBES.optimization();
    let (traps_before, stale_before) = traps();
    timed("register", || everything.register());
    pr_info!("whole kernel: {} jumps", PROBES.detours_in_use());
    let switching = is_switching().then(Switching::start);
    complete_workload();
    guest_tests();

    // The probes on system calls have counted what the program has.
    let at = |name| symbols::lookup_name(name).unwrap().start;
    let counts = || COUNTED.map(|(name, _)| everything.hits_at(at(name)));
    let (calls_before, rounds) = (counts(), 40);
    timed("calls", || {
        run_calls(rounds);
        for ((name, each), (then, now)) in COUNTED.iter().zip(calls_before.iter().zip(counts())) {
            assert_eq!(now, then + each * rounds, "{name}");
        }
    });

    drop(switching);
    timed("unregister", || everything.unregister());
    PROBES.set_optimization(jumps).unwrap();
    let (traps, stale) = traps();
    let (traps, stale) = (traps - traps_before, stale - stale_before);
    let (hits, misses) = everything.hits_and_misses();
    let (returns, lost) = everything.returns_and_misses();
    let forks = everything.jprobe_hits();
    let (instructions, functions) = everything.counts();
    pr_info!(
        "whole kernel: {instructions} kprobes, {functions} kretprobes on {} CPUs",
        smp::online_cpus()
    );
    pr_info!(
        "whole kernel: {traps} traps, {hits} hits + {misses} misses + {stale} stale + \
         {forks} ends of jprobes; {returns} returns, {lost} not followed"
    );
    if cmdline::get("whole_kernel.top") == Some("1") {
        everything.tell_most_hit();
    }
    assert!(hits > 0 && returns > 0);
    let accounted = hits + misses + stale + forks;
    if jumps {
        // Hits that came by jump are no traps. How many they were is not counted one by one.
        assert!(
            traps < accounted,
            "a trap is unaccounted for, or no hit came by jump"
        );
    } else {
        assert_eq!(traps, accounted, "a trap is unaccounted for");
    }
    assert_eq!(Traces::at_rest(), before);
}

/// Every instruction that can be probed, and the return of every function, on two CPUs. By
/// breakpoints: each hit is a trap then, so that the books close.
#[guest_test(
    cmdline = "whole_kernel.stride=1 kprobes.optimize=0 tick_ms=100",
    memory = 1024,
    timeout = 900
)]
fn a_probe_on_each_instruction_on_two_cpus() {
    probe_everything();
}

/// A share of them by jumps, which become breakpoints and jumps again meanwhile.
#[guest_test(
    cmdline = "whole_kernel.stride=100 whole_kernel.switch=1",
    memory = 512,
    timeout = 300
)]
fn jumps_all_over_the_kernel_leave_programs_alone() {
    probe_everything();
}

/// Every instruction on one CPU.
#[guest_test(
    cmdline = "whole_kernel.stride=1 kprobes.optimize=0 tick_ms=100",
    smp = 1,
    memory = 1024,
    timeout = 7200,
    ignore
)]
fn a_probe_on_each_instruction_on_one_cpu() {
    probe_everything();
}

/// The same on four CPUs.
#[guest_test(
    cmdline = "whole_kernel.stride=1 kprobes.optimize=0 tick_ms=100",
    smp = 4,
    memory = 1024,
    timeout = 7200,
    ignore
)]
fn a_probe_on_each_instruction_on_four_cpus() {
    probe_everything();
}

/// The same with jumps wherever one instruction is long enough for one.
#[guest_test(
    cmdline = "whole_kernel.stride=1 kprobes.optimize=1 tick_ms=100",
    smp = 2,
    memory = 1024,
    timeout = 7200,
    ignore
)]
fn a_probe_on_each_instruction_with_jumps() {
    probe_everything();
}

/// Jumps that become breakpoints and jumps again on four CPUs, a tenth of all.
#[guest_test(
    cmdline = "whole_kernel.stride=10 whole_kernel.switch=1 tick_ms=100",
    smp = 4,
    memory = 1024,
    timeout = 7200,
    ignore
)]
fn jumps_all_over_the_kernel_on_four_cpus() {
    probe_everything();
}
