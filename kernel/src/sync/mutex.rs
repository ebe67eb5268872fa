//! [`Mutex`]: a lock that is waited for asleep.

use crate::{
    probes::handler_rules::{self, Rule},
    task::WaitQueue,
};
use core::sync::atomic::{AtomicBool, Ordering};

/// A lock that is waited for asleep. Task context. Taking it twice in one task hangs that task.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// Access to what a [`Mutex`] protects. Dropping it releases the lock.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// The lock inside a [`Mutex`].
pub struct RawMutex {
    locked: AtomicBool,
    waiters: WaitQueue,
}

// SAFETY: `locked` goes from false to true for one task at a time.
unsafe impl lock_api::RawMutex for RawMutex {
    // The const is the way in which `lock_api` makes a new lock.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Self {
        locked: AtomicBool::new(false),
        waiters: WaitQueue::new(),
    };

    type GuardMarker = lock_api::GuardNoSend;

    fn lock(&self) {
        handler_rules::check(Rule::SleepingLock);
        self.waiters.wait_until(|| self.try_lock());
    }

    fn try_lock(&self) -> bool {
        // Acquire pairs with the Release of the last holder.
        self.locked
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    unsafe fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
        self.waiters.wake_one();
    }

    fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }
}
