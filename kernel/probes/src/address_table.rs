//! From the address of a trap to its site, without locks.
//!
//! An open-addressed table of pointers to [`Site`]s, keyed by the instruction pointer that the processor reports
//! (address + 1). It is never more than half full, so a hit almost always finds its site at the first look, and
//! a breakpoint that is not ours finds an empty place soon.
//!
//! # Invariants
//! T1. Every entry points to a site: a real one, [`EMPTY`] or [`DELETED`]. So a reader tests no null.
//! T2. At least half of the entries are [`EMPTY`], so every search ends.
//! T3. A table that was replaced, and a site that was removed, is freed only after a grace period.
//!
//! # Contexts and ordering
//! `find` runs anywhere. Writers hold the registry's lock. A site is stored with Release and loaded with Acquire, so who
//! finds it finds it filled in; the same holds for a replaced table.

use alloc::{boxed::Box, vec::Vec};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::{error::ProbeError, site::Site};

/// No site is or was here: a search ends. Its key is no trap's address.
static EMPTY: Site = Site::sentinel(0);
/// A site was here: a search goes on.
static DELETED: Site = Site::sentinel(1);

fn empty() -> *mut Site {
    (&raw const EMPTY).cast_mut()
}

fn deleted() -> *mut Site {
    (&raw const DELETED).cast_mut()
}

struct Entries {
    /// A power of two of them, at least 2.
    entries: Box<[AtomicPtr<Site>]>,
    /// 32 minus the number of bits of an index.
    shift: u32,
}

impl Entries {
    fn try_new(bits: u32) -> Result<Box<Self>, ProbeError> {
        let mut entries = Vec::new();
        entries
            .try_reserve_exact(1 << bits)
            .map_err(|_| ProbeError::OutOfMemory)?;
        entries.resize_with(1 << bits, || AtomicPtr::new(empty()));
        crate::registry::try_box(Self {
            entries: entries.into_boxed_slice(),
            shift: 32 - bits,
        })
    }

    /// Where the search for `key` starts. Addresses of one kernel differ in their low 32 bits.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        ((key as u32).wrapping_mul(0x9E37_79B1) >> self.shift) as usize
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &AtomicPtr<Site> {
        // SAFETY: the length is a power of two, so the masked index is below it.
        unsafe { self.entries.get_unchecked(index & (self.entries.len() - 1)) }
    }

    /// Puts `site` in the first free place of its search. T2 leaves one.
    fn insert(&self, site: *mut Site, key: u64) -> bool {
        let mut index = self.home(key);
        loop {
            let old = self.at(index).load(Ordering::Relaxed);
            if old == empty() || old == deleted() {
                self.at(index).store(site, Ordering::Release);
                return old == empty();
            }
            index += 1;
        }
    }
}

/// See the module's text.
pub struct AddressTable {
    current: AtomicPtr<Entries>,
}

/// A table that was replaced; dropping it needs a grace period first.
pub struct RetiredTable(#[allow(dead_code, reason = "held to be dropped")] Box<Entries>);

/// What only writers need to know; kept under the registry's lock.
#[derive(Default)]
pub struct Fill {
    live: usize,
    deleted: usize,
}

impl Fill {
    pub(crate) const fn new() -> Self {
        Self {
            live: 0,
            deleted: 0,
        }
    }
}

impl Default for AddressTable {
    fn default() -> Self {
        Self::new()
    }
}

impl AddressTable {
    /// A table with no room yet.
    pub const fn new() -> Self {
        Self {
            current: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The site whose breakpoint left `ip` in the trap frame. Any context; the site lives until a grace period begins.
    #[inline(always)]
    pub fn find(&self, ip: u64) -> Option<&Site> {
        // SAFETY: set once to a live table, and replaced ones stay until a grace period is over (T3).
        let entries = unsafe { self.current.load(Ordering::Acquire).as_ref() }?;
        let mut index = entries.home(ip);
        loop {
            // SAFETY: entries always point to sites (T1) that live until a grace period is over (T3).
            let site = unsafe { &*entries.at(index).load(Ordering::Acquire) };
            if site.key == ip {
                return Some(site).filter(|_| ip > 1);
            }
            if site.key == 0 {
                return None;
            }
            index += 1;
        }
    }

    /// Whether no site was ever inserted.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.load(Ordering::Relaxed).is_null()
    }

    /// Makes room for `more` further sites. Returns the old table if it was replaced.
    pub(crate) fn reserve(
        &self,
        fill: &mut Fill,
        more: usize,
    ) -> Result<Option<RetiredTable>, ProbeError> {
        let old = self.current.load(Ordering::Relaxed);
        // SAFETY: as in `find`; the caller holds the registry's lock, so nobody replaces it now.
        let capacity = unsafe { old.as_ref() }.map_or(0, |entries| entries.entries.len());
        if (fill.live + fill.deleted + more) * 2 <= capacity {
            return Ok(None);
        }
        // Twice what is needed now, so that growing by one at a time stays cheap.
        let bits = ((fill.live + more) * 4)
            .next_power_of_two()
            .trailing_zeros()
            .max(6);
        let new = Entries::try_new(bits)?;
        self.for_each(|site| {
            new.insert(core::ptr::from_ref(site).cast_mut(), site.key);
        });
        fill.deleted = 0;
        self.current.store(Box::into_raw(new), Ordering::Release);
        // SAFETY: `old` came from `Box::into_raw` here and is no longer reachable for new searches; the caller waits before dropping.
        Ok((!old.is_null()).then(|| RetiredTable(unsafe { Box::from_raw(old) })))
    }

    /// Publishes `site`. [`AddressTable::reserve`] has made room.
    pub(crate) fn insert(&self, fill: &mut Fill, site: &Site) {
        // SAFETY: `reserve` has made a table, and the registry's lock is held.
        let entries = unsafe { &*self.current.load(Ordering::Relaxed) };
        if !entries.insert(core::ptr::from_ref(site).cast_mut(), site.key) {
            fill.deleted -= 1;
        }
        fill.live += 1;
    }

    /// Unpublishes `site`. It may be freed after a grace period.
    pub(crate) fn remove(&self, fill: &mut Fill, site: &Site) {
        // SAFETY: a site was inserted, so there is a table, and the registry's lock is held.
        let entries = unsafe { &*self.current.load(Ordering::Relaxed) };
        let mut index = entries.home(site.key);
        loop {
            let at = entries.at(index).load(Ordering::Relaxed);
            if core::ptr::eq(at, site) {
                // Where the search would end anyway, the place becomes empty again.
                let last = entries.at(index + 1).load(Ordering::Relaxed) == empty();
                entries
                    .at(index)
                    .store(if last { empty() } else { deleted() }, Ordering::Release);
                fill.deleted += usize::from(!last);
                fill.live -= 1;
                return;
            }
            if at == empty() {
                return;
            }
            index += 1;
        }
    }

    /// Visits every site. Under the registry's lock.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Site)) {
        // SAFETY: as in `find`.
        let Some(entries) = (unsafe { self.current.load(Ordering::Relaxed).as_ref() }) else {
            return;
        };
        for entry in &entries.entries {
            // SAFETY: as in `find`.
            let site = unsafe { &*entry.load(Ordering::Relaxed) };
            if site.key > 1 {
                visit(site);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(count: u64) -> Vec<Site> {
        (0..count)
            .map(|n| Site::sentinel(0xffff_ffff_8000_0001 + n * 3))
            .collect()
    }

    #[test]
    fn every_inserted_site_is_found_and_no_other() {
        let (table, mut fill) = (AddressTable::new(), Fill::default());
        assert!(table.find(5).is_none());
        let sites = sites(3000);
        for site in &sites {
            drop(table.reserve(&mut fill, 1).unwrap());
            table.insert(&mut fill, site);
        }
        for site in &sites {
            assert!(core::ptr::eq(table.find(site.key).unwrap(), site));
            assert!(table.find(site.key + 1).is_none());
        }
        assert!(table.find(0).is_none() && table.find(1).is_none());
    }

    #[test]
    fn removal_leaves_the_others_and_makes_room() {
        let (table, mut fill) = (AddressTable::new(), Fill::default());
        let sites = sites(500);
        for round in 0..20 {
            drop(table.reserve(&mut fill, sites.len()).unwrap());
            for site in &sites {
                table.insert(&mut fill, site);
            }
            for (n, site) in sites.iter().enumerate().filter(|(n, _)| n % 2 == round % 2) {
                table.remove(&mut fill, site);
                assert!(table.find(site.key).is_none(), "site {n} of round {round}");
            }
            for site in sites
                .iter()
                .enumerate()
                .filter(|(n, _)| n % 2 != round % 2)
                .map(|(_, site)| site)
            {
                assert!(table.find(site.key).is_some());
                table.remove(&mut fill, site);
            }
            let mut left = 0;
            table.for_each(|_| left += 1);
            assert_eq!((left, fill.live), (0, 0));
        }
        // SAFETY: nobody else uses the test's table.
        let entries = unsafe { &*table.current.load(Ordering::Relaxed) };
        assert!(entries.entries.len() <= 4096);
    }
}
