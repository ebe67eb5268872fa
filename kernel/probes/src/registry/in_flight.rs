//! Instances that unregistered kretprobes have left behind: their calls are still in flight.
//!
//! A call may sleep for ever, so an unregistration does not wait for it. It puts the [`Holder`] on
//! a list. Every later operation of the registry frees the holders whose calls have all returned.
//! The list runs through the holders themselves, so it needs no memory.
//!
//! # Contexts
//! Under the registry's lock, in task context.

use core::{ptr::null_mut, sync::atomic::Ordering::Relaxed};

use crate::data::instance::Holder;

/// The list, newest first.
pub(crate) struct InFlight {
    first: *mut Holder,
}

impl InFlight {
    pub(crate) const fn new() -> Self {
        Self { first: null_mut() }
    }

    /// Adds a holder.
    ///
    /// # Safety
    /// 1. The holder is live and in no list, and the list is its only owner from now on.
    /// 2. Its kretprobe was cleared and a grace period is over since. So nobody takes instances any
    ///    more.
    pub(crate) unsafe fn push(&mut self, holder: *mut Holder) {
        // SAFETY: live, by (1).
        unsafe { (*holder).next.store(self.first, Relaxed) };
        self.first = holder;
    }

    /// Frees the holders whose calls have all returned. Returns how many are left.
    pub(crate) fn free_returned(&mut self) -> usize {
        let mut at = core::mem::replace(&mut self.first, null_mut());
        let mut left = 0;
        // SAFETY: holders in the list are live, and this is their only owner.
        while let Some(holder) = unsafe { at.as_ref() } {
            let this = at;
            at = holder.next.load(Relaxed);
            // SAFETY: by the contract of `push`; where it is not freed it goes back to the list.
            unsafe {
                if !Holder::try_free(this) {
                    self.push(this);
                    left += 1;
                }
            }
        }
        left
    }
}
