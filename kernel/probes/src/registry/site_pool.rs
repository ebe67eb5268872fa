//! Memory for sites, in blocks of many, so that a batch of registrations does not search the heap
//! for each.
//!
//! Blocks are never given back, only their sites are reused. A kernel that has had so many probes
//! may have them again, and registering them is no more likely to fail then. Everything here runs
//! under the registry's lock.

use alloc::alloc::alloc;
use core::{
    alloc::Layout,
    ptr::{self, NonNull, null_mut},
};

use crate::{data::site::Site, error::ProbeError};

/// How many sites a block holds: as many as fit into two pages, because a heap gives a large block
/// whole pages.
const PER_BLOCK: usize = 2 * 4096 / size_of::<Site>();

/// The content of a site's memory while the site is free.
struct Vacant {
    next: *mut Vacant,
}

const _: () =
    assert!(size_of::<Vacant>() <= size_of::<Site>() && align_of::<Vacant>() <= align_of::<Site>());

/// The free sites: a list through their own memory.
pub(crate) struct FreeSites {
    first: *mut Vacant,
}

impl FreeSites {
    pub(crate) const fn new() -> Self {
        Self { first: null_mut() }
    }

    /// Takes memory and puts `site` there. The caller owns it until it gives it to
    /// [`FreeSites::give_back`].
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`].
    pub(crate) fn take(&mut self, site: Site) -> Result<NonNull<Site>, ProbeError> {
        if self.first.is_null() {
            self.grow()?;
        }
        let vacant = NonNull::new(self.first).ok_or(ProbeError::OutOfMemory)?;
        let place: NonNull<Site> = vacant.cast();
        // SAFETY: what is in the list is memory for a site, used by nobody, that holds a `Vacant`.
        unsafe {
            self.first = vacant.read().next;
            place.write(site);
        }
        Ok(place)
    }

    /// Drops a site and takes its memory back.
    ///
    /// # Safety
    /// 1. `site` is from [`FreeSites::take`], once.
    /// 2. Nobody reaches it any more.
    #[inline]
    pub(crate) unsafe fn give_back(&mut self, site: NonNull<Site>) {
        // SAFETY: a live site (1) that is ours alone (2).
        unsafe { ptr::drop_in_place(site.as_ptr()) };
        // SAFETY: as above.
        unsafe { self.add(site) };
    }

    /// # Safety
    /// `memory` is memory for a site that nobody uses, for good.
    unsafe fn add(&mut self, memory: NonNull<Site>) {
        let vacant: NonNull<Vacant> = memory.cast();
        // SAFETY: memory for a site is large enough and aligned for a `Vacant`, by the assertion
        // above.
        unsafe { vacant.write(Vacant { next: self.first }) };
        self.first = vacant.as_ptr();
    }

    fn grow(&mut self) -> Result<(), ProbeError> {
        let layout = Layout::new::<[Site; PER_BLOCK]>();
        // SAFETY: the layout is not empty.
        let block: NonNull<Site> = NonNull::new(unsafe { alloc(layout) })
            .ok_or(ProbeError::OutOfMemory)?
            .cast();
        for index in (0..PER_BLOCK).rev() {
            // SAFETY: inside the fresh block, which is never freed.
            unsafe { self.add(block.add(index)) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::trap_ip::TrapIp;
    use alloc::vec::Vec;

    #[test]
    fn sites_are_apart_and_their_memory_is_used_again() {
        let mut free = FreeSites::new();
        let take = |free: &mut FreeSites| -> Vec<NonNull<Site>> {
            (0..3 * PER_BLOCK as u64)
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
