//! [`Mutex`]: a lock that is waited for asleep. It knows the task that has it and where that task
//! took it, so a task that would wait for itself ends the kernel with both places.
//!
//! Its word is free, taken, or taken with waiters. To take a free mutex is one exchange, and to
//! release one that has no waiters another, so neither looks at the queue of waiters. No wake-up is
//! lost: a waiter queues itself before it marks the word, and the holder that finds the mark wakes
//! the first of the queue. A waiter does not know whether others wait, too. So it takes the mutex
//! with the mark, and wakes the next one, if there is one, at its own release.

use crate::{
    probes::handler_rules::{self, Rule},
    task::{self, Task, WaitQueue},
};
use core::{
    panic::Location,
    ptr,
    sync::atomic::{AtomicPtr, AtomicU8, Ordering},
};

/// A lock that is waited for asleep. Task context.
///
/// # Panics
/// If a task locks it that has it already, because it would wait for ever.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// Access to what a [`Mutex`] protects. Dropping it releases the lock.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// The values of a mutex's word.
const FREE: u8 = 0;
const TAKEN: u8 = 1;
const TAKEN_WITH_WAITERS: u8 = 2;

/// The lock inside a [`Mutex`].
pub struct RawMutex {
    word: AtomicU8,
    /// The task that has it. Null: none has it, or the scheduler was not set up when it was taken.
    /// It is written by the holder only, so a task that finds itself here has the lock.
    owner: AtomicPtr<Task>,
    /// Where the owner took it.
    place: AtomicPtr<Location<'static>>,
    waiters: WaitQueue,
}

impl RawMutex {
    /// Takes the mutex if it is free.
    // Each lock of a mutex runs through it.
    #[inline(always)]
    fn take_free(&self, place: &'static Location<'static>) -> bool {
        // Acquire pairs with the Release of the last holder.
        let taken = self
            .word
            .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if taken {
            self.note_owner(place);
        }
        taken
    }

    #[inline(always)]
    fn note_owner(&self, place: &'static Location<'static>) {
        let place = ptr::from_ref(place).cast_mut();
        self.place.store(place, Ordering::Relaxed);
        let task = task::current_raw().cast_mut();
        self.owner.store(task, Ordering::Relaxed);
    }

    /// Takes the mutex when its holder has released it.
    #[cold]
    #[inline(never)]
    fn wait_for_it(&self, place: &'static Location<'static>) {
        self.refuse_owner(place);
        self.waiters.wait_until(|| {
            // Acquire as above. Release: the holder that finds the mark sees the queued waiter.
            self.word.swap(TAKEN_WITH_WAITERS, Ordering::AcqRel) == FREE
        });
        self.note_owner(place);
    }

    /// Ends the kernel if the task that is going to wait here has the lock.
    fn refuse_owner(&self, place: &Location<'_>) {
        let task = task::current_raw().cast_mut();
        if task.is_null() || self.owner.load(Ordering::Relaxed) != task {
            return;
        }
        // SAFETY: `note_owner` stored it in this task, and it lives for ever.
        let before = unsafe { self.place.load(Ordering::Relaxed).as_ref() };
        let before = before.expect("the owner has stored it");
        panic!(
            "a task waits for itself: it locks a mutex at {place}, and has had it since {before}"
        );
    }
}

// SAFETY: a task has the lock if its exchange found `FREE`, and the word is then something else
// until that task's `unlock`.
unsafe impl lock_api::RawMutex for RawMutex {
    // The const is the way in which `lock_api` makes a new lock.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Self {
        word: AtomicU8::new(FREE),
        owner: AtomicPtr::new(ptr::null_mut()),
        place: AtomicPtr::new(ptr::null_mut()),
        waiters: WaitQueue::new(),
    };

    type GuardMarker = lock_api::GuardNoSend;

    // A place that ready programs of the tracer name: each lock, also of a free mutex, is a call.
    #[track_caller]
    #[inline(never)]
    fn lock(&self) {
        handler_rules::check(Rule::SleepingLock);
        let place = Location::caller();
        if !self.take_free(place) {
            self.wait_for_it(place);
        }
    }

    #[track_caller]
    fn try_lock(&self) -> bool {
        self.take_free(Location::caller())
    }

    unsafe fn unlock(&self) {
        self.owner.store(ptr::null_mut(), Ordering::Relaxed);
        // Acquire pairs with the Release of a waiter, which is in the queue by then.
        if self.word.swap(FREE, Ordering::AcqRel) == TAKEN_WITH_WAITERS {
            self.waiters.wake_one();
        }
    }

    fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE
    }
}
