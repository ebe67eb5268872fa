//! [`SpinLock`]: a lock that is waited for by spinning.

use crate::arch::percpu;
use core::{
    fmt, hint,
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};
use spin::mutex::{SpinMutex, SpinMutexGuard};
use x86_64::instructions::interrupts;

/// A lock that is waited for by spinning and held with interrupts off.
pub struct SpinLock<T: ?Sized> {
    inner: SpinMutex<T>,
}

impl<T> SpinLock<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            inner: SpinMutex::new(value),
        }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Takes the lock, spinning while another CPU has it. Task or interrupt context. Taking it
    /// twice on one CPU hangs.
    #[inline(always)]
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_contended(&self) -> SpinLockGuard<'_, T> {
        loop {
            while self.inner.is_locked() {
                hint::spin_loop();
            }
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }

    /// Takes the lock if it is free.
    // Each lock of a spinlock runs through it, and each end through the guard's `drop`.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        let interrupts_were_on = interrupts::are_enabled();
        percpu::preempt_disable();
        interrupts::disable();
        if let Some(inner) = self.inner.try_lock() {
            return Some(SpinLockGuard {
                inner: ManuallyDrop::new(inner),
                interrupts_were_on,
                _not_send: PhantomData,
            });
        }
        if interrupts_were_on {
            interrupts::enable();
        }
        percpu::preempt_enable();
        None
    }

    /// Releases the lock for a holder that cannot, because it was taken on another stack.
    /// Interrupts stay as they are.
    ///
    /// # Safety
    /// 1. The lock is held, on this CPU, and its guard will not be used to release this holding of
    ///    it.
    pub(crate) unsafe fn force_unlock(&self) {
        // SAFETY: held by (1).
        unsafe { self.inner.force_unlock() };
        percpu::preempt_enable_no_resched();
    }

    /// Whether someone holds the lock at this moment; for reports.
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }
}

impl<T: ?Sized> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock")
            .field("locked", &self.is_locked())
            .finish_non_exhaustive()
    }
}

/// Access to the value inside a [`SpinLock`]. Dropping it releases the lock and puts interrupts
/// back as they were.
pub struct SpinLockGuard<'a, T: ?Sized> {
    inner: ManuallyDrop<SpinMutexGuard<'a, T>>,
    interrupts_were_on: bool,
    /// Released on the CPU that took it: not `Send`.
    _not_send: PhantomData<*const ()>,
}

impl<T: ?Sized> Deref for SpinLockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for SpinLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized> Drop for SpinLockGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // An interrupt that came while the lock was held may have waited for it, for ever.
        assert!(
            !interrupts::are_enabled(),
            "interrupts came on while a spin lock was held"
        );
        // SAFETY: `inner` is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
        if self.interrupts_were_on {
            interrupts::enable();
        }
        percpu::preempt_enable();
    }
}
