//! What the durations of calls have in them: the option `sleep-time`.
//!
//! One task is in a traced call while another one has the only CPU, with interrupts off. How long
//! that is, the other one measures, so the bounds hold however slow the machine is.

use core::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use alloc::{format, vec::Vec};

use kernel::{
    errno::Errno,
    task::{kthread::spawn_kthread, scheduler::schedule},
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
