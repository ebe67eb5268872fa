//! Runs the tests that the host selected, one after the other, and tells it about each in the log.
//!
//! A test that takes longer than its time limit ends the kernel, with the test's name and the
//! backtrace of what each CPU was doing.

use crate::harness::registry;
use core::{
    hint,
    sync::atomic::{AtomicUsize, Ordering},
};
use kernel::{
    arch::PtRegs,
    cmdline,
    log::{self, Level},
    mm::Usage,
    panic::{ExitCode, die, exit},
    pr_err, pr_info, test_runner,
    time::{NSEC_PER_SEC, ktime_get},
};
use test_protocol::{Marker, PARAMETER, TIME_IS_OVER};

/// Runs the selected tests and powers the machine off; failing tests panic on the way.
pub fn run() -> ! {
    let selection = cmdline::get(PARAMETER).unwrap_or_default();
    let done = registry::for_each_selected(selection, |index, test| {
        let name = test.name.as_str();
        tell(Marker::Begin(name));
        let before = Usage::now();
        RUNNING.store(index, Ordering::Relaxed);
        let limit_ns = u64::from(test.timeout_s) * NSEC_PER_SEC;
        test_runner::limit_time(ktime_get() + limit_ns, time_is_over);
        (test.run)();
        test_runner::lift_time_limit();
        tell(Marker::End(name));
        tell_what_is_left(&before);
    });
    if let Err(what) = done {
        pr_err!("{what}");
        exit(ExitCode::Failure);
    }
    exit(ExitCode::Success)
}

/// The index of the test that runs.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Ends the kernel, because the test that runs waits for what does not come.
fn time_is_over(regs: &PtRegs) -> ! {
    let test = &registry::tests()[RUNNING.load(Ordering::Relaxed)].0;
    let (name, seconds) = (test.name.as_str(), test.timeout_s);
    die(
        regs,
        format_args!("{name} is not over after {seconds} s: {TIME_IS_OVER}"),
    )
}

/// Prints `marker`, again and again while the log is full: the host depends on it.
fn tell(marker: Marker<'_>) {
    while log::printk(Level::Emerg, &format_args!("{marker}")) == 0 {
        hint::spin_loop();
    }
}

/// Logs how much memory the test has left behind, if it is much. So a log of several tests shows
/// where the memory went that a later one does not find.
fn tell_what_is_left(before: &Usage) {
    /// More than the first hit, the first program and the like leave for the next ones.
    const MUCH: isize = 64 << 10;
    let now = Usage::now();
    let (held, grown) = (
        now.held_since(before),
        now.heap_mapped as isize - before.heap_mapped as isize,
    );
    if held > MUCH || grown > MUCH {
        pr_info!(
            "the test left {} KiB; the heap grew by {} KiB: {now}",
            held / 1024,
            grown / 1024
        );
    }
}
