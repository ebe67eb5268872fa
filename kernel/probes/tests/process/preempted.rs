//! The task that a kernel with [`Fault::Grace`] preempts in a slot.
//!
//! What a slot holds takes far less time than a look at another CPU. So such a kernel would be seen
//! at its mistake only by luck. Here the task stays in the slot from its first repetition of
//! `rep stosb` until somebody passes time after a grace period, which does not wait for it.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use super::{Fault, text};

/// Whether a grace period has ended since [`begin`].
pub static GRACE_IS_OVER: AtomicBool = AtomicBool::new(false);
/// Whether the task may leave the slot.
pub static MAY_RESUME: AtomicBool = AtomicBool::new(false);

/// Has the next task that fills bytes in a slot stay there.
#[allow(dead_code, reason = "one of the test binaries calls it")]
pub fn begin() {
    GRACE_IS_OVER.store(false, Relaxed);
    MAY_RESUME.store(false, Relaxed);
}

/// Whether the code at `ip` is to stay.
pub fn is_at(ip: u64) -> bool {
    const REP_STOSB: [u8; 2] = [0xf3, 0xaa];
    Fault::Grace.is_in()
        && !MAY_RESUME.load(Relaxed)
        && text::SLOTS.range().contains(&ip)
        // SAFETY: slots are readable, and the last one of a page is not at its last byte.
        && unsafe { (ip as *const [u8; 2]).read() } == REP_STOSB
}

/// Stays. In the handler of a trap between two repetitions.
pub fn stay() {
    while !MAY_RESUME.load(Relaxed) {
        thread::yield_now();
    }
}
