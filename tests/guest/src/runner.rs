//! Runs the tests that the host selected, one after the other, and tells it about each in the log.

use crate::registry;
use core::hint;
use kernel::{
    cmdline,
    log::{self, Level},
    mm::Usage,
    panic::{ExitCode, exit},
    pr_err, pr_info,
};
use test_protocol::{Marker, PARAMETER, parse_selection};

/// Runs the selected tests and powers the machine off; failing tests panic on the way.
pub fn run() -> ! {
    let tests = registry::tests();
    let selection = cmdline::get(PARAMETER).unwrap_or_default();
    for range in parse_selection(selection) {
        let Some(selected) = range.ok().and_then(|range| tests.get(range)) else {
            pr_err!(
                "{PARAMETER}={selection}: a list of indices below {} is wanted, such as 0-2,5",
                tests.len()
            );
            exit(ExitCode::Failure);
        };
        for test in selected {
            let name = test.0.name.as_str();
            tell(Marker::Begin(name));
            let before = Usage::now();
            (test.0.run)();
            tell(Marker::End(name));
            tell_what_is_left(&before);
        }
    }
    exit(ExitCode::Success)
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
