//! [`Mutex`]: a lock that is waited for asleep. It knows the task that has it and where that task
//! took it, so a task that would wait for itself ends the kernel with both places.

use crate::{
    probes::handler_rules::{self, Rule},
    task::{self, Task, WaitQueue},
};
use core::{
    panic::Location,
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};

/// A lock that is waited for asleep. Task context.
///
/// # Panics
/// If a task locks it that has it already, because it would wait for ever.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// Access to what a [`Mutex`] protects. Dropping it releases the lock.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// The lock inside a [`Mutex`].
pub struct RawMutex {
    locked: AtomicBool,
    /// The task that has it. Null: none has it, or the scheduler was not set up when it was taken.
    /// It is written by the holder only, so a task that finds itself here has the lock.
    owner: AtomicPtr<Task>,
    /// Where the owner took it.
    place: AtomicPtr<Location<'static>>,
    waiters: WaitQueue,
}

impl RawMutex {
    // Each lock of a mutex runs through it.
    #[inline(always)]
    fn take(&self, place: &'static Location<'static>) -> bool {
        // Acquire pairs with the Release of the last holder.
        let taken = self
            .locked
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            let place = ptr::from_ref(place).cast_mut();
            self.place.store(place, Ordering::Relaxed);
            let task = task::current_raw().cast_mut();
            self.owner.store(task, Ordering::Relaxed);
        }
        taken
    }

    /// Ends the kernel if the task that is going to wait here has the lock.
    fn refuse_owner(&self, place: &Location<'_>) {
        let task = task::current_raw().cast_mut();
        if task.is_null() || self.owner.load(Ordering::Relaxed) != task {
            return;
        }
        // SAFETY: `take` stored it in this task, and it lives for ever.
        let before = unsafe { self.place.load(Ordering::Relaxed).as_ref() };
        let before = before.expect("the owner has stored it");
        panic!(
            "a task waits for itself: it locks a mutex at {place}, and has had it since {before}"
        );
    }
}

// SAFETY: `locked` goes from false to true for one task at a time.
unsafe impl lock_api::RawMutex for RawMutex {
    // The const is the way in which `lock_api` makes a new lock.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Self {
        locked: AtomicBool::new(false),
        owner: AtomicPtr::new(ptr::null_mut()),
        place: AtomicPtr::new(ptr::null_mut()),
        waiters: WaitQueue::new(),
    };

    type GuardMarker = lock_api::GuardNoSend;

    #[track_caller]
    fn lock(&self) {
        handler_rules::check(Rule::SleepingLock);
        let place = Location::caller();
        self.refuse_owner(place);
        // A trace sees each lock in this call, also one that is free.
        self.waiters.wait_until(|| self.take(place));
    }

    #[track_caller]
    fn try_lock(&self) -> bool {
        self.take(Location::caller())
    }

    unsafe fn unlock(&self) {
        self.owner.store(ptr::null_mut(), Ordering::Relaxed);
        self.locked.store(false, Ordering::Release);
        self.waiters.wake_one();
    }

    fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }
}
