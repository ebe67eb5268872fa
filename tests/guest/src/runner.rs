//! Runs the tests that the host selected, one after the other, and tells it about each in the log.

use crate::registry;
use core::hint;
use kernel::{
    cmdline,
    log::{self, Level},
    panic::{ExitCode, exit},
    pr_err,
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
            (test.0.run)();
            tell(Marker::End(name));
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
