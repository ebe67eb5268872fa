//! Instances that unregistered kretprobes have left behind: their calls are still in flight.
//!
//! A call may sleep for ever, so an unregistration does not wait for it. It puts the [`Holder`] on
//! a list. Every later operation of the registry frees the holders whose calls have all returned.
//! The list is a [`List`].
//!
//! # Contexts
//! Under the registry's lock, in task context.

use core::{mem::replace, ptr::NonNull, sync::atomic::AtomicPtr};

use crate::{
    data::instance::Holder,
    registry::list::{Linked, List},
};

impl Linked for Holder {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

/// See the module's text.
pub(crate) struct InFlight(List<Holder>);

impl InFlight {
    pub(crate) const fn new() -> Self {
        Self(List::new())
    }

    /// Adds a holder.
    ///
    /// # Safety
    /// 1. The holder is live and in no list, and the list is its only owner from now on.
    /// 2. Its kretprobe was cleared and a grace period is over since. So no instance is taken any
    ///    more.
    pub(crate) unsafe fn push(&mut self, holder: NonNull<Holder>) {
        // SAFETY: live until it is freed below, after its time in the list.
        unsafe { self.0.push(holder) };
    }

    /// Frees the holders whose calls have all returned. Returns how many are left.
    pub(crate) fn free_returned(&mut self) -> usize {
        let mut holders = replace(&mut self.0, List::new());
        let mut left = 0;
        while let Some(holder) = holders.pop() {
            // SAFETY: by the contract of `push`; where it is not freed it goes back to the list.
            unsafe {
                if !Holder::try_free(holder.as_ptr()) {
                    self.push(holder);
                    left += 1;
                }
            }
        }
        left
    }
}
