//! The hook by which the test kernel runs tests in place of the user program.
//!
//! The kernel knows no test. The test kernel's image registers a runner before the kernel starts.
//! `kernel_init` asks for it once everything is up, if the command line holds `guest_tests.run`.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::cmdline;

/// A runner, or null.
static RUNNER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Registers the runner. It ends the kernel with the verdict itself.
pub fn register(runner: fn() -> !) {
    // Release pairs with the Acquire in `requested`.
    RUNNER.store(runner as *mut (), Ordering::Release);
}

/// Returns the runner if there is one and the command line asks for tests.
pub fn requested() -> Option<fn() -> !> {
    cmdline::get("guest_tests.run")?;
    let runner = RUNNER.load(Ordering::Acquire);
    if runner.is_null() {
        return None;
    }
    // SAFETY: `register`, the only writer, stored a function of this type.
    Some(unsafe { core::mem::transmute::<*mut (), fn() -> !>(runner) })
}
