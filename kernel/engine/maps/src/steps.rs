//! The accesses to shared words, each with a hook before it. A test can run a whole operation
//! in the hook, as an interrupt would. In the kernel the hook is nothing.

use core::sync::atomic::{AtomicU64, Ordering};

/// A step before each access to a word that a nested operation or another CPU may change.
pub trait Steps {
    /// The next access is about to happen.
    fn step();
}

/// Nothing happens between accesses, except what the processor does by itself.
pub enum NoSteps {}

impl Steps for NoSteps {
    #[inline(always)]
    fn step() {}
}

#[inline(always)]
pub(super) fn load<S: Steps>(word: &AtomicU64, order: Ordering) -> u64 {
    S::step();
    word.load(order)
}

#[inline(always)]
pub(super) fn store<S: Steps>(word: &AtomicU64, value: u64, order: Ordering) {
    S::step();
    word.store(value, order);
}

/// Adds and returns the value before. The sum wraps.
#[inline(always)]
pub(super) fn add<S: Steps>(word: &AtomicU64, value: u64, order: Ordering) -> u64 {
    S::step();
    word.fetch_add(value, order)
}

/// Replaces `old` by `new`. Returns whether it did.
#[inline(always)]
pub(super) fn exchange<S: Steps>(word: &AtomicU64, old: u64, new: u64, success: Ordering) -> bool {
    S::step();
    // Relaxed: a failure is followed by fresh loads.
    word.compare_exchange(old, new, success, Ordering::Relaxed)
        .is_ok()
}
