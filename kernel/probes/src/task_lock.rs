//! A lock for kernels that have none on which tasks can sleep.
//!
//! # Contexts
//! Tasks.

use core::{
    marker::PhantomData,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::platform::Platform;

/// A [`Platform::RawMutex`]: a task that waits for it calls [`Platform::pass_time`]. So the task
/// that has it runs meanwhile, also on a CPU whose tasks take turns of their own accord.
pub struct TaskLock<P> {
    taken: AtomicBool,
    platform: PhantomData<fn(P)>,
}

// SAFETY: `taken` is set by one task at a time, until it unlocks.
unsafe impl<P: Platform> lock_api::RawMutex for TaskLock<P> {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "each use is to be a lock of its own"
    )]
    const INIT: Self = Self {
        taken: AtomicBool::new(false),
        platform: PhantomData,
    };

    type GuardMarker = lock_api::GuardSend;

    fn lock(&self) {
        while !self.try_lock() {
            P::pass_time();
        }
    }

    fn try_lock(&self) -> bool {
        let taken = self.taken.compare_exchange(false, true, Acquire, Relaxed);
        taken.is_ok()
    }

    unsafe fn unlock(&self) {
        self.taken.store(false, Release);
    }
}
