//! A value that hits read without a lock, and that a registration replaces.
//!
//! A hit reads with interrupts off. A registration ends with an answer from every CPU, which a CPU
//! gives with interrupts on only. So what was replaced is not in use any more when all have
//! answered: that is the grace period.
//!
//! # Memory ordering
//! A value is published with Release and read with Acquire, so a hit that finds it finds it whole.

use alloc::boxed::Box;
use core::{
    marker::PhantomData,
    ptr::null_mut,
    sync::atomic::{
        AtomicPtr,
        Ordering::{AcqRel, Acquire},
    },
};

/// A box that may be replaced while hits read what is in it.
pub(super) struct Published<T> {
    value: AtomicPtr<T>,
    owner: PhantomData<Box<T>>,
}

impl<T> Published<T> {
    /// One with nothing in it.
    pub(super) const fn none() -> Self {
        Self {
            value: AtomicPtr::new(null_mut()),
            owner: PhantomData,
        }
    }

    /// What is in it.
    ///
    /// # Safety
    /// The result is not used any more when the box that [`Published::replace`] returns for it is
    /// dropped: interrupts are off as long as it is used, or no one replaces it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn get(&self) -> Option<&T> {
        // SAFETY: a box that was given to `replace`, and still is one by the contract.
        unsafe { self.value.load(Acquire).as_ref() }
    }

    /// Puts `new` in its place. The old value must be kept until a grace period is over, if hits
    /// can have found it.
    pub(super) fn replace(&self, new: Option<Box<T>>) -> Option<Box<T>> {
        let new = new.map_or(null_mut(), Box::into_raw);
        let old = self.value.swap(new, AcqRel);
        // SAFETY: it came from `into_raw`, and is taken out once.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        drop(self.replace(None));
    }
}
