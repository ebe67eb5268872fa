//! Sleeping until a time, for tasks. It is a wait without a queue ([`super::wait_queue`]).

use super::wait_queue::{Limits, wait};
use crate::{errno::Errno, time::ktime_get};

/// Sleeps until `deadline_ns`, in nanoseconds since boot. Task context.
pub fn sleep_until(deadline_ns: u64) {
    let limits = Limits {
        deadline_ns: Some(deadline_ns),
        interruptible: false,
    };
    let _timed_out = wait(None, limits, || false);
}

/// Sleeps for `ns` nanoseconds. Task context.
pub fn sleep_ns(ns: u64) {
    sleep_until(ktime_get().saturating_add(ns));
}

/// Sleeps until `deadline_ns`, in nanoseconds since boot; EINTR if the task is to end. Task
/// context.
pub fn sleep_interruptible(deadline_ns: u64) -> Result<(), Errno> {
    let limits = Limits {
        deadline_ns: Some(deadline_ns),
        interruptible: true,
    };
    match wait(None, limits, || false) {
        Err(Errno::ETIMEDOUT) => Ok(()),
        other => other,
    }
}
