//! Memory for sites and for detours, in blocks of many, so that a batch of registrations does not
//! ask the heap for each.
//!
//! Blocks are never given back, only the places in them are reused. A kernel that has had so many
//! probes may have them again, and registering them is no more likely to fail then. Everything here
//! runs under the registry's lock.

use alloc::alloc::alloc;
use core::{
    alloc::Layout,
    marker::PhantomData,
    ptr::{self, NonNull, null_mut},
};

use crate::error::ProbeError;

/// Bytes of a block: two pages, because a heap gives a large block whole pages.
const BLOCK_BYTES: usize = 2 * 4096;

/// The content of a place while it is free.
struct Vacant {
    next: *mut Vacant,
}

/// The free places for values of one type: a list through their own memory.
pub(crate) struct Pool<T> {
    first: *mut Vacant,
    of: PhantomData<T>,
}

impl<T> Pool<T> {
    /// How many places a block holds.
    const PER_BLOCK: usize = {
        assert!(size_of::<Vacant>() <= size_of::<T>() && align_of::<Vacant>() <= align_of::<T>());
        BLOCK_BYTES / size_of::<T>()
    };

    pub(crate) const fn new() -> Self {
        Self {
            first: null_mut(),
            of: PhantomData,
        }
    }

    /// Puts `value` into a free place. The caller owns it until it gives it to
    /// [`Pool::give_back`].
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`].
    pub(crate) fn take(&mut self, value: T) -> Result<NonNull<T>, ProbeError> {
        if self.first.is_null() {
            self.grow()?;
        }
        let vacant = NonNull::new(self.first).ok_or(ProbeError::OutOfMemory)?;
        let place: NonNull<T> = vacant.cast();
        // SAFETY: what is in the list is memory for a value, used by nothing, that holds a
        // `Vacant`.
        unsafe {
            self.first = vacant.read().next;
            place.write(value);
        }
        Ok(place)
    }

    /// Drops a value and takes its place back.
    ///
    /// # Safety
    /// 1. `place` is from [`Pool::take`], once.
    /// 2. Nothing reaches it any more.
    #[inline]
    pub(crate) unsafe fn give_back(&mut self, place: NonNull<T>) {
        // SAFETY: a live value (1) that is ours alone (2).
        unsafe { ptr::drop_in_place(place.as_ptr()) };
        // SAFETY: as above.
        unsafe { self.add(place) };
    }

    /// # Safety
    /// `place` is memory for a value that nothing uses, for good.
    unsafe fn add(&mut self, place: NonNull<T>) {
        let vacant: NonNull<Vacant> = place.cast();
        // SAFETY: memory for a value is large enough and aligned for a `Vacant`, by the assertion
        // above.
        unsafe { vacant.write(Vacant { next: self.first }) };
        self.first = vacant.as_ptr();
    }

    fn grow(&mut self) -> Result<(), ProbeError> {
        let layout = Layout::array::<T>(Self::PER_BLOCK).map_err(|_| ProbeError::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let block: NonNull<T> = NonNull::new(unsafe { alloc(layout) })
            .ok_or(ProbeError::OutOfMemory)?
            .cast();
        for index in (0..Self::PER_BLOCK).rev() {
            // SAFETY: inside the fresh block, which is never freed.
            unsafe { self.add(block.add(index)) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{site::Site, trap_ip::TrapIp};
    use alloc::vec::Vec;

    #[test]
    fn places_are_apart_and_their_memory_is_used_again() {
        let mut free = Pool::new();
        let take = |free: &mut Pool<Site>| -> Vec<NonNull<Site>> {
            (0..3 * Pool::<Site>::PER_BLOCK as u64)
                .map(|key| free.take(Site::sentinel(TrapIp(key))).unwrap())
                .collect()
        };
        let sites = take(&mut free);
        for (key, site) in (0..).zip(&sites) {
            // SAFETY: taken above.
            assert_eq!(unsafe { site.as_ref() }.key, TrapIp(key));
        }
        for site in &sites {
            // SAFETY: taken above, and used no more.
            unsafe { free.give_back(*site) };
        }
        let (mut first, mut again) = (sites, take(&mut free));
        first.sort_unstable();
        again.sort_unstable();
        assert_eq!(first, again);
    }
}
