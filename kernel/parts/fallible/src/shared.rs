//! Values that several hold, as with `Arc`, but whose memory may be refused: making one is an error
//! then, where `Arc::new` would end the kernel.
//!
//! # Memory ordering
//! Each holder gives its use up with Release. The last one takes Acquire before it drops the value,
//! so all uses have happened before.
//!
//! # Contexts
//! Task context, because the last holder frees memory.

#![expect(unsafe_code, reason = "holders share memory that the last one frees")]

use alloc::boxed::Box;
use core::{
    marker::PhantomData,
    mem::{ManuallyDrop, offset_of},
    ops::Deref,
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering, fence},
};

use crate::{OutOfMemory, try_box};

#[repr(C)]
struct Inner<T> {
    holders: AtomicUsize,
    value: T,
}

/// See the module's text.
pub struct Shared<T> {
    /// From `Box::into_raw`; live while there is a holder.
    inner: NonNull<Inner<T>>,
    owns: PhantomData<Inner<T>>,
}

// SAFETY: as for `Arc`: holders in several contexts use the value, and one of them drops it.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_new(value: T) -> Result<Self, OutOfMemory> {
        let inner = try_box(Inner {
            holders: AtomicUsize::new(1),
            value,
        })?;
        Ok(Self {
            inner: NonNull::from(Box::leak(inner)),
            owns: PhantomData,
        })
    }

    fn inner(&self) -> &Inner<T> {
        // SAFETY: live while there is a holder, and this is one.
        unsafe { self.inner.as_ref() }
    }

    /// How many bytes behind the value the count of its holders is, which is less than 0. Code that
    /// holds the value already may raise the count by one, as [`Shared::clone`] does, and lower it
    /// again while another one holds it.
    pub const HOLDERS: isize =
        offset_of!(Inner<T>, holders) as isize - offset_of!(Inner<T>, value) as isize;

    /// Leaves the holder to [`Shared::from_raw`].
    pub fn into_raw(self) -> NonNull<T> {
        let inner = ManuallyDrop::new(self).inner;
        // SAFETY: live, as this is a holder.
        unsafe { NonNull::new_unchecked(&raw mut (*inner.as_ptr()).value) }
    }

    /// Takes a holder back.
    ///
    /// # Safety
    /// 1. The pointer came from [`Shared::into_raw`], and is taken back as often as that was
    ///    called, and as the count was raised by other code.
    pub unsafe fn from_raw(value: NonNull<T>) -> Self {
        // SAFETY: the value is part of an `Inner`, by (1).
        let inner = unsafe { value.byte_offset(Self::HOLDERS) };
        Self {
            inner: inner.cast(),
            owns: PhantomData,
        }
    }

    /// Whether both are holders of the same value.
    pub fn is(&self, other: &Self) -> bool {
        self.inner == other.inner
    }

    /// How many hold it.
    pub fn holders(&self) -> usize {
        self.inner().holders.load(Ordering::Relaxed)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        self.inner().holders.fetch_add(1, Ordering::Relaxed);
        Self {
            inner: self.inner,
            owns: PhantomData,
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        if self.inner().holders.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: from `Box::leak`, and this was the last holder.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}
