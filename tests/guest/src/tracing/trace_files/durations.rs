//! What the durations of calls have in them: the options `sleep-time` and `graph-time`.
//!
//! One task is in a traced call while another one has the only CPU, with interrupts off. How long
//! that is, the other one measures, so the bounds hold however slow the machine is. Calls inside
//! calls work for known times.

use core::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use alloc::{format, vec::Vec};

use kernel::{
    arch::smp,
    errno::Errno,
    task::{exec::run_program, kthread::spawn_kthread, scheduler::schedule},
    time::{NSEC_PER_MSEC, delay_ns, ktime_get},
    trace::sleep,
};

use x86_64::instructions::interrupts::without_interrupts;

use super::{
    echo, show,
    tracers::{begin, end},
};

/// How long the other task had the CPU, in nanoseconds; 0: not yet.
static AWAY: AtomicU64 = AtomicU64::new(0);
/// The task is in the call.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// How long the task works in its call.
const WORK_NS: u64 = NSEC_PER_MSEC;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn absent_outer() -> u64 {
    black_box(absent_inner()) + 1
}

/// Gives way to the other task, and works.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn absent_inner() -> u64 {
    IS_CALLED.store(true, SeqCst);
    while AWAY.load(SeqCst) == 0 {
        schedule();
    }
    without_interrupts(|| delay_ns(WORK_NS));
    black_box(1)
}

/// Durations in nanoseconds.
#[derive(Debug)]
struct Times {
    /// Those of the two functions, as they are shown.
    shown: Vec<u64>,
    /// From before the calls until after them.
    all: u64,
    /// That of the other task.
    away: u64,
}

/// Has the calls, while the other task sets the option and has the CPU. Returns how long all took,
/// and how long the other task had the CPU, in nanoseconds.
fn calls(counts: bool) -> (u64, u64) {
    AWAY.store(0, SeqCst);
    IS_CALLED.store(false, SeqCst);
    let other = spawn_kthread("other", move || {
        while !IS_CALLED.load(SeqCst) {
            schedule();
        }
        // The task has left the CPU, and does not come back before the end.
        without_interrupts(|| {
            let start = ktime_get();
            sleep::set_counts(counts);
            delay_ns(3 * NSEC_PER_MSEC);
            AWAY.store(ktime_get() - start, SeqCst);
        });
    });
    let start = ktime_get();
    assert_eq!(absent_outer(), 2);
    let all = ktime_get() - start;
    other.unwrap().wait_released();
    (all, AWAY.load(SeqCst))
}

/// The same, and the durations, as `read` reads them.
fn times(counts: bool, read: fn() -> Vec<u64>) -> Times {
    let (all, away) = calls(counts);
    let shown = read();
    assert_eq!(shown.len(), 2, "{shown:?}");
    Times { shown, all, away }
}

/// The number before `us`.
fn ns(text: &str) -> Option<u64> {
    let (before, _) = text.split_once(" us")?;
    let us: f64 = before.rsplit(' ').next()?.parse().ok()?;
    Some((us * 1000.) as u64)
}

fn graph_times() -> Vec<u64> {
    let text = show("trace");
    echo("", "trace").unwrap();
    text.lines().filter_map(ns).collect()
}

fn profile_times() -> Vec<u64> {
    echo("0", "function_profile_enabled").unwrap();
    let text = show("trace_stat/function0");
    echo("1", "function_profile_enabled").unwrap();
    text.lines().filter_map(ns).collect()
}

/// What is cut from a duration when it is shown.
const CUT_NS: u64 = 1000;

fn is_with_absence(times: &Times) {
    let least = times.away + WORK_NS - CUT_NS;
    assert!(times.shown.iter().all(|ns| *ns >= least), "{times:?}");
}

fn is_without_absence(times: &Times) {
    let (least, most) = (WORK_NS - CUT_NS, times.all - times.away);
    let is_between = |ns: &u64| (least..=most).contains(ns);
    assert!(times.shown.iter().all(is_between), "{times:?}");
}

fn all_combinations(read: fn() -> Vec<u64>) {
    is_with_absence(&times(true, read));
    // The option was on when the task left the CPU.
    is_with_absence(&times(false, read));
    assert_eq!(show("options/sleep-time"), "0\n");
    echo("sleep-time", "trace_options").unwrap();
    is_with_absence(&times(true, read));
    echo("nosleep-time", "trace_options").unwrap();
    is_without_absence(&times(false, read));
    // It was off then, and is on when the task comes back.
    is_with_absence(&times(true, read));
    is_with_absence(&times(true, read));
}

const FUNCTIONS: &str = "absent_outer absent_inner";

/// The time in which a task does not run is part of its calls only with `sleep-time`, which is on
/// at the start.
#[guest_test(smp = 1)]
fn calls_are_shown_with_or_without_absence() {
    assert_eq!(show("options/sleep-time"), "1\n");
    begin("function_graph", FUNCTIONS);
    all_combinations(graph_times);
    assert_eq!(echo("2", "options/sleep-time"), Err(Errno::EINVAL));
    echo("1", "options/sleep-time").unwrap();
    assert!(
        show("trace_options")
            .lines()
            .any(|line| line == "sleep-time")
    );
    end();
}

#[guest_test(smp = 1)]
fn a_profile_is_with_or_without_absence() {
    begin("nop", FUNCTIONS);
    echo("1", "function_profile_enabled").unwrap();
    all_combinations(profile_times);
    echo("0", "function_profile_enabled").unwrap();
    // Both at once: each call is moved once.
    begin("function_graph", FUNCTIONS);
    echo("1", "function_profile_enabled").unwrap();
    echo("nosleep-time", "trace_options").unwrap();
    is_without_absence(&times(false, graph_times));
    let shown = profile_times();
    assert!(shown.iter().all(|ns| *ns >= WORK_NS - CUT_NS), "{shown:?}");
    echo("0", "function_profile_enabled").unwrap();
    echo("sleep-time", "trace_options").unwrap();
    end();
}

/// A call is left out if it is too short without the time in which its task did not run.
#[guest_test(smp = 1)]
fn a_bound_is_for_the_duration_that_is_shown() {
    const LEAST_US: u64 = 2000;
    begin("function_graph", FUNCTIONS);
    echo(&format!("{LEAST_US}"), "tracing_thresh").unwrap();
    is_with_absence(&times(true, graph_times));
    echo("nosleep-time", "trace_options").unwrap();
    let (all, away) = calls(false);
    let shown = graph_times();
    // On a slow machine the rest may be as long as the bound.
    let is_short = (all - away) / 1000 < LEAST_US;
    assert!(
        !is_short || shown.is_empty(),
        "{shown:?} of {all}, away {away}"
    );
    assert!(
        shown.iter().all(|ns| *ns >= LEAST_US * 1000 - CUT_NS),
        "{shown:?}"
    );
    echo("sleep-time", "trace_options").unwrap();
    echo("0", "tracing_thresh").unwrap();
    end();
}

/// How long the calls take from outside of each, in nanoseconds: of the inner one, of that around
/// it, and of the outermost.
static TAKEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// How long each works itself, in milliseconds.
const WORK_MS: [u64; 3] = [4, 2, 1];

fn measured(level: usize, call: extern "C" fn() -> u64) -> u64 {
    let start = ktime_get();
    let result = call();
    TAKEN[level].store(ktime_get() - start, SeqCst);
    result
}

fn work(level: usize) {
    delay_ns(WORK_MS[level] * NSEC_PER_MSEC);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn own_time_inner() -> u64 {
    work(0);
    black_box(1)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn own_time_middle() -> u64 {
    work(1);
    black_box(measured(0, own_time_inner)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn own_time_outer() -> u64 {
    work(2);
    black_box(measured(1, own_time_middle)) + 1
}

/// Hits and time of the three functions in the profile, the inner one first.
fn own_times() -> [(u64, u64); 3] {
    let text = show("trace_stat/function0");
    ["inner", "middle", "outer"].map(|name| {
        let name = format!("own_time_{name} ");
        let line = text.lines().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        let hits = line.split_whitespace().nth(1).unwrap();
        (hits.parse().unwrap(), ns(line).unwrap())
    })
}

fn call_own_times() {
    without_interrupts(|| assert_eq!(measured(2, own_time_outer), 3));
}

/// The time of a call in the profile is with that of the calls inside it, which is the default, or
/// its own.
#[guest_test(smp = 1)]
fn a_profile_is_with_or_without_inner_calls() {
    let own = |level: usize| WORK_MS[level] * NSEC_PER_MSEC;
    let taken = |level: usize| TAKEN[level].load(SeqCst);
    begin("nop", "own_time_inner own_time_middle own_time_outer");
    assert_eq!(show("options/graph-time"), "1\n");
    echo("1", "function_profile_enabled").unwrap();
    call_own_times();
    let [inner, middle, outer] = own_times();
    assert!(inner.1 >= own(0) - CUT_NS, "{inner:?}");
    assert!(middle.1 >= own(0) + own(1) - CUT_NS, "{middle:?}");
    assert!(outer.1 >= own(0) + own(1) + own(2) - CUT_NS, "{outer:?}");

    // Both ways of turning it off: while the profile is off, and while it is on.
    echo("0", "function_profile_enabled").unwrap();
    echo("nograph-time", "trace_options").unwrap();
    echo("1", "function_profile_enabled").unwrap();
    for round in 1..=2 {
        let before = match round {
            1 => [(0, 0); 3],
            _ => own_times(),
        };
        call_own_times();
        let after = own_times();
        for level in 0..3 {
            assert_eq!(after[level].0, round);
            let time = after[level].1 - before[level].1;
            assert!(time + 2 * CUT_NS >= own(level), "{level}: {after:?}");
            // The calls inside took at least as long as they worked.
            let inside: u64 = (0..level).map(own).sum();
            assert!(
                time <= taken(level) - inside + 2 * CUT_NS,
                "{level}: {after:?}"
            );
        }
        echo("graph-time", "trace_options").unwrap();
        echo("0", "options/graph-time").unwrap();
    }
    // The rows stay when the option changes.
    let before = own_times();
    echo("1", "options/graph-time").unwrap();
    assert_eq!(own_times(), before);
    call_own_times();
    let after = own_times();
    assert_eq!(after[2].0, 3);
    assert!(after[2].1 - before[2].1 + 2 * CUT_NS >= own(0) + own(1) + own(2));
    echo("0", "function_profile_enabled").unwrap();
    end();
}

/// Own times add up to the time of the outermost call, whatever the calls are.
#[guest_test(smp = 1)]
fn own_times_add_up() {
    begin("nop", "tracer_recursion");
    echo("nograph-time", "trace_options").unwrap();
    echo("1", "function_profile_enabled").unwrap();
    let start = ktime_get();
    without_interrupts(|| assert_eq!(super::tracers::tracer_recursion(5), 5));
    let all = ktime_get() - start;
    echo("0", "function_profile_enabled").unwrap();
    let text = show("trace_stat/function0");
    let line = text
        .lines()
        .find(|line| line.contains("recursion"))
        .unwrap();
    assert_eq!(line.split_whitespace().nth(1), Some("6"));
    assert!(ns(line).unwrap() <= all, "{line} of {all}");
    echo("graph-time", "trace_options").unwrap();
    end();
}

/// The same of all functions of the kernel, while programs run, and while the option changes.
#[guest_test]
fn own_times_of_all_functions_are_no_longer_than_the_time() {
    begin("nop", "tracer_*");
    echo("", "set_ftrace_filter").unwrap();
    echo("nograph-time", "trace_options").unwrap();
    // Several tasks may sleep at once.
    echo("nosleep-time", "trace_options").unwrap();
    let start = ktime_get();
    echo("1", "function_profile_enabled").unwrap();
    for option in ["graph-time", "nograph-time"] {
        assert!(run_program("/bin/workload", &["2"]).unwrap().success());
        echo(option, "trace_options").unwrap();
        echo("nograph-time", "trace_options").unwrap();
    }
    assert!(run_program("/bin/workload", &["2"]).unwrap().success());
    echo("0", "function_profile_enabled").unwrap();
    let all = ktime_get() - start;
    for cpu in 0..smp::online_cpus() {
        let text = show(&format!("trace_stat/function{cpu}"));
        let rows = text.lines().filter_map(|line| {
            let hits = line.split_whitespace().nth(1)?.parse::<u64>().ok()?;
            Some((hits, ns(line)?))
        });
        let (mut hits, mut times) = (0, 0);
        for (own, time) in rows {
            hits += own;
            times += time;
        }
        assert!(hits > 100, "{hits} calls on CPU {cpu}");
        // A task may have come from another CPU with part of its time.
        let cpus = smp::online_cpus() as u64;
        assert!(times <= cpus * all, "{times} ns on CPU {cpu}, of {all}");
    }
    echo("sleep-time", "trace_options").unwrap();
    echo("graph-time", "trace_options").unwrap();
    end();
}
