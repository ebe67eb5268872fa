//! The first task: what the kernel does once it is up.

use crate::{
    panic::{ExitCode, exit},
    test_runner,
};

/// Runs the tests if the command line asks for them, then powers off.
pub fn kernel_init() {
    if let Some(runner) = test_runner::requested() {
        runner();
    }
    exit(ExitCode::Success)
}
