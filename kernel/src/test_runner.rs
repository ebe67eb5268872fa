//! The hook by which the test kernel runs tests in place of the user program.
//!
//! The kernel knows no test. The test kernel's image registers a runner before the kernel starts.
//! `kernel_init` asks for it once everything is up, if the command line holds `guest_tests.run`.
//!
//! The runner may limit the time that it takes. The tick of each CPU looks whether the time is
//! over, so a test that waits for ever is ended by any CPU that lets interrupts in. An idle CPU
//! has an alarm for it.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::{arch::PtRegs, cmdline, time::ktime_get};

/// A runner, or null.
static RUNNER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Registers the runner. It ends the kernel with the verdict itself.
pub fn register(runner: fn() -> !) {
    // Release pairs with the Acquire in `requested`.
    RUNNER.store(runner as *mut (), Ordering::Release);
}

/// When the time is over, in nanoseconds since boot. Never: `u64::MAX`.
static DEADLINE_NS: AtomicU64 = AtomicU64::new(u64::MAX);

/// Ends the kernel when the time is over. It gets the registers that the tick interrupted.
pub type TimeIsOver = fn(&PtRegs) -> !;

/// A [`TimeIsOver`], or null.
static TIME_IS_OVER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Limits the time: the first tick after `deadline_ns`, in nanoseconds since boot, calls `over`.
pub fn limit_time(deadline_ns: u64, over: TimeIsOver) {
    TIME_IS_OVER.store(over as *mut (), Ordering::Relaxed);
    // Release pairs with the Acquire in `tick`.
    DEADLINE_NS.store(deadline_ns, Ordering::Release);
}

/// Lifts the limit.
pub fn lift_time_limit() {
    DEADLINE_NS.store(u64::MAX, Ordering::Relaxed);
}

/// When the time is over, if there is a limit. An idle CPU sets its alarm for it.
pub(crate) fn deadline_ns() -> Option<u64> {
    Some(DEADLINE_NS.load(Ordering::Relaxed)).filter(|deadline| *deadline != u64::MAX)
}

/// Looks whether the time is over. Called by the tick, which interrupted `regs`.
pub(crate) fn tick(regs: &PtRegs) {
    let deadline_ns = DEADLINE_NS.load(Ordering::Acquire);
    if deadline_ns != u64::MAX && ktime_get() >= deadline_ns {
        // SAFETY: `limit_time`, the only writer, stored a function of this type before the
        // deadline.
        let over = unsafe {
            core::mem::transmute::<*mut (), TimeIsOver>(TIME_IS_OVER.load(Ordering::Relaxed))
        };
        over(regs);
    }
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
