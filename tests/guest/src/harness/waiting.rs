//! Waiting for what takes microseconds, but on a host that may be busy.

use kernel::{
    task::sleep::sleep_until,
    time::{NSEC_PER_MSEC, NSEC_PER_SEC, ktime_get},
};

/// The end of the time that something may take which is soon over, in nanoseconds since boot. It
/// comes before the usual time limit of a test, so what is missing is told by its name.
pub fn soon() -> u64 {
    ktime_get() + 120 * NSEC_PER_SEC
}

/// Sleeps until `condition` holds. Panics with `what` if it does not soon. In tasks.
pub fn expect_soon(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = soon();
    while !condition() {
        assert!(ktime_get() < deadline, "it does not come: {what}");
        sleep_until(ktime_get() + NSEC_PER_MSEC);
    }
}
