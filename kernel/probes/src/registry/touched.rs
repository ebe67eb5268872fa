//! The sites of an operation.

use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::Ordering::Relaxed,
};

use crate::data::site::Site;

/// The sites of the operation under way. The list runs through the sites themselves, so it needs no
/// memory.
pub(super) struct Touched {
    first: *const Site,
}

impl Touched {
    pub(super) const fn new() -> Self {
        Self {
            first: core::ptr::null(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds a site once.
    pub(super) fn add(&mut self, site: &Site) {
        if site.touched.load(Relaxed).is_null() {
            let next = if self.first.is_null() {
                core::ptr::from_ref(site)
            } else {
                self.first
            };
            site.touched.store(next.cast_mut(), Relaxed);
            self.first = site;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Site> + Clone {
        let mut at = self.first;
        core::iter::from_fn(move || {
            // SAFETY: sites in the list live until the operation that made it drains or clears it.
            let site = unsafe { at.as_ref() }?;
            let next = site.touched.load(Relaxed).cast_const();
            at = if core::ptr::eq(next, site) {
                core::ptr::null()
            } else {
                next
            };
            Some(site)
        })
    }

    /// Empties the list, handing each site out once; it may be freed then.
    pub(super) fn drain(&mut self, mut visit: impl FnMut(NonNull<Site>)) {
        let mut at = core::mem::replace(&mut self.first, core::ptr::null());
        // SAFETY: as in `iter`; the link is read before the site is handed out.
        while let Some(site) = unsafe { at.as_ref() } {
            let this = NonNull::from(site);
            let next = site.touched.swap(null_mut(), Relaxed).cast_const();
            at = if core::ptr::eq(next, site) {
                core::ptr::null()
            } else {
                next
            };
            visit(this);
        }
    }

    pub(super) fn clear(&mut self) {
        self.drain(|_| {});
    }
}
