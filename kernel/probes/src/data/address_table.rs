//! From the address of a trap to its site, without locks.
//!
//! An open-addressed table of pointers to [`Site`]s. Its key is the instruction pointer that the
//! processor reports, the probed address + 1. The table is part of the registry, which is a static,
//! so a stub reaches an entry with one instruction. It is never more than half full. So a hit
//! almost always finds its site at the first look, and a breakpoint that is not ours soon finds an
//! empty entry.
//!
//! # Invariants
//! ADDRESSES-1. From [`AddressTable::clear`] on every entry points to a site: a real one, [`EMPTY`]
//!     or [`DELETED`]. So a reader tests no null.
//! ADDRESSES-2. At most half of the entries are sites, and at least a quarter are [`EMPTY`], so
//!     every search ends.
//! ADDRESSES-3. A site that was removed is freed only after a grace period.
//!
//! # Contexts and ordering
//! `find` runs anywhere. Writers hold the registry's lock. A site is stored with Release and loaded
//! with Acquire, so a hit that finds it finds it filled in.

use core::{
    mem::offset_of,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

use crate::{
    data::{no_grace::NoGrace, site::Site, trap_ip::TrapIp},
    error::ProbeError,
    limits::TABLE_BITS,
};

const ENTRIES: usize = 1 << TABLE_BITS;
/// How many sites there can be at once.
pub const MAX_SITES: usize = ENTRIES / 2;
/// How many places may be other than empty: sites and the marks of removed ones.
const MAX_USED: usize = ENTRIES / 4 * 3;

/// 2^32 divided by the golden ratio: multiplying by it spreads neighbouring addresses over the
/// table (Knuth, The Art of Computer Programming, vol. 3, 6.4).
pub(crate) const MULTIPLIER: u32 = 0x9E37_79B1;
/// The index is the highest bits of the product: the shift that leaves them.
pub(crate) const SHIFT: u32 = 32 - TABLE_BITS;

/// No address that a trap can report: it is not canonical.
const DELETED_KEY: TrapIp = TrapIp(1 << 63);
/// Nor is this one.
const EMPTY_KEY: TrapIp = TrapIp(0);

/// No site is or was here: a search ends. Its key is no trap's address either.
static EMPTY: Site = Site::sentinel(EMPTY_KEY);
/// A site was here: a search goes on.
static DELETED: Site = Site::sentinel(DELETED_KEY);

fn empty() -> *mut Site {
    (&raw const EMPTY).cast_mut()
}

fn deleted() -> *mut Site {
    (&raw const DELETED).cast_mut()
}

fn is_address(key: TrapIp) -> bool {
    key != EMPTY_KEY && key != DELETED_KEY
}

/// See the module's text.
#[repr(C)]
pub struct AddressTable {
    entries: [AtomicPtr<Site>; ENTRIES],
    /// How many sites each run of [`RUN`] entries holds, so that a visit of all sites skips the
    /// empty runs. Under the registry's lock.
    live_in: [AtomicU32; ENTRIES / RUN],
}

/// See [`AddressTable::live_in`].
const RUN: usize = 1 << TABLE_BITS.saturating_sub(11);

/// The counts that only writers need. Under the registry's lock.
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
    /// A table that is not ready. It is all null, so that the static around it takes no room in the
    /// program's file.
    pub const fn new() -> Self {
        Self {
            entries: [const { AtomicPtr::new(core::ptr::null_mut()) }; ENTRIES],
            live_in: [const { AtomicU32::new(0) }; ENTRIES / RUN],
        }
    }

    /// Where the entries are, from the start of the table.
    pub(crate) const fn entries_offset() -> usize {
        offset_of!(Self, entries)
    }

    /// Makes the table ready, and empty. Once, before the first breakpoint exception of any CPU.
    pub fn clear(&self) {
        for entry in &self.entries {
            entry.store(empty(), Ordering::Relaxed);
        }
    }

    /// Where the search for `key` starts. Addresses of one kernel differ in their low 32 bits.
    #[inline(always)]
    fn home(key: TrapIp) -> usize {
        ((key.0 as u32).wrapping_mul(MULTIPLIER) >> SHIFT) as usize
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &AtomicPtr<Site> {
        &self.entries[index % ENTRIES]
    }

    /// The site whose breakpoint left `ip` in the trap frame. Any context. The site lives until a
    /// grace period ends.
    #[inline(always)]
    pub fn find<'a>(&self, ip: TrapIp, _: NoGrace<'a>) -> Option<&'a Site> {
        let mut index = Self::home(ip);
        loop {
            // SAFETY: sites live until a grace period is over (ADDRESSES-3). Null only before
            // `clear`, when there is none.
            let site = unsafe { self.at(index).load(Ordering::Acquire).as_ref() }?;
            if site.key == ip {
                return Some(site).filter(|_| is_address(ip));
            }
            if site.key == EMPTY_KEY {
                return None;
            }
            index += 1;
        }
    }

    /// Makes sure that there is room for `more` further sites. `wait` returns when no search that
    /// began before is under way.
    ///
    /// # Errors
    /// [`ProbeError::TooManySites`].
    pub(crate) fn reserve(
        &self,
        fill: &mut Fill,
        more: usize,
        wait: impl Fn(),
    ) -> Result<(), ProbeError> {
        let full = Err(ProbeError::TooManySites { limit: MAX_SITES });
        if fill.live + more > MAX_SITES {
            return full;
        }
        while fill.live + fill.deleted + more > MAX_USED {
            if !self.sweep(fill, &wait) {
                return full;
            }
        }
        Ok(())
    }

    /// Moves each site to the first mark of a removed one that a search for it crosses. The marks
    /// gather at the ends of their runs and become empty entries, some with each sweep. Meanwhile a
    /// site may have two entries, but never none. Returns whether there was a site to move.
    fn sweep(&self, fill: &mut Fill, wait: impl Fn()) -> bool {
        let mut moved = false;
        for index in 0..ENTRIES {
            let Some(site) = self.site_at(index) else {
                continue;
            };
            let mut earlier = Self::home(site.key);
            while earlier % ENTRIES != index {
                if self.at(earlier).load(Ordering::Relaxed) == deleted() {
                    self.at(earlier)
                        .store(core::ptr::from_ref(site).cast_mut(), Ordering::Release);
                    moved = true;
                    break;
                }
                earlier += 1;
            }
        }
        wait();
        for index in 0..ENTRIES {
            let Some(site) = self.site_at(index) else {
                continue;
            };
            let mut first = Self::home(site.key);
            while !core::ptr::eq(self.at(first).load(Ordering::Relaxed), site) {
                first += 1;
            }
            if first % ENTRIES != index {
                self.at(index).store(deleted(), Ordering::Release);
            }
        }
        fill.deleted = 0;
        // Twice around: a run that crosses the end of the table is cleaned from its own end.
        for index in (0..2 * ENTRIES).rev() {
            if self.at(index).load(Ordering::Relaxed) == deleted()
                && self.at(index + 1).load(Ordering::Relaxed) == empty()
            {
                self.at(index).store(empty(), Ordering::Release);
            }
        }
        for (run, live_in) in self.live_in.iter().enumerate() {
            let places = run * RUN..(run + 1) * RUN;
            fill.deleted += places
                .clone()
                .filter(|index| self.at(*index).load(Ordering::Relaxed) == deleted())
                .count();
            let live = places
                .filter(|index| self.site_at(*index).is_some())
                .count();
            live_in.store(live as u32, Ordering::Relaxed);
        }
        moved
    }

    fn site_at(&self, index: usize) -> Option<&Site> {
        // SAFETY: as in `find`.
        unsafe { self.at(index).load(Ordering::Relaxed).as_ref() }
            .filter(|site| is_address(site.key))
    }

    /// Publishes `site`. [`AddressTable::reserve`] has made room.
    pub(crate) fn insert(&self, fill: &mut Fill, site: &Site) {
        let mut index = Self::home(site.key);
        loop {
            let old = self.at(index).load(Ordering::Relaxed);
            if old == empty() || old == deleted() {
                self.at(index)
                    .store(core::ptr::from_ref(site).cast_mut(), Ordering::Release);
                self.live_in[index % ENTRIES / RUN].fetch_add(1, Ordering::Relaxed);
                fill.deleted -= usize::from(old == deleted());
                fill.live += 1;
                return;
            }
            index += 1;
        }
    }

    /// Unpublishes `site`. It may be freed after a grace period.
    pub(crate) fn remove(&self, fill: &mut Fill, site: &Site) {
        let mut index = Self::home(site.key);
        loop {
            let at = self.at(index).load(Ordering::Relaxed);
            if core::ptr::eq(at, site) {
                break;
            }
            if at == empty() {
                return;
            }
            index += 1;
        }
        self.live_in[index % ENTRIES / RUN].fetch_sub(1, Ordering::Relaxed);
        fill.live -= 1;
        fill.deleted += 1;
        self.at(index).store(deleted(), Ordering::Release);
        // Where a search would end anyway, the marks become empty places again.
        if self.at(index + 1).load(Ordering::Relaxed) == empty() {
            while self.at(index).load(Ordering::Relaxed) == deleted() {
                self.at(index).store(empty(), Ordering::Release);
                fill.deleted -= 1;
                index = index.wrapping_sub(1);
            }
        }
    }

    /// Every site. Under the registry's lock.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Site> + Clone {
        self.live_in
            .iter()
            .enumerate()
            .filter(|(_, live)| live.load(Ordering::Relaxed) > 0)
            .flat_map(|(run, _)| run * RUN..(run + 1) * RUN)
            .filter_map(|index| self.site_at(index))
    }
}
#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, vec::Vec};

    use super::*;

    fn find(table: &AddressTable, ip: TrapIp) -> Option<&Site> {
        // SAFETY: the sites of these tests outlive their tables' use.
        table.find(ip, unsafe { NoGrace::assume() })
    }

    fn table() -> Box<AddressTable> {
        // SAFETY: null pointers are valid entries.
        let table: Box<AddressTable> = unsafe { Box::new_zeroed().assume_init() };
        table.clear();
        table
    }

    fn sites(count: u64) -> Vec<Site> {
        (0..count)
            .map(|n| Site::sentinel(TrapIp(0xffff_ffff_8000_0001 + n * 3)))
            .collect()
    }

    #[test]
    fn every_inserted_site_is_found_and_no_other() {
        let (table, mut fill) = (table(), Fill::default());
        assert!(find(&table, TrapIp(5)).is_none());
        let sites = sites(3000.min(MAX_SITES as u64));
        for site in &sites {
            table.reserve(&mut fill, 1, || {}).unwrap();
            table.insert(&mut fill, site);
        }
        for site in &sites {
            assert!(core::ptr::eq(find(&table, site.key).unwrap(), site));
            assert!(find(&table, TrapIp(site.key.0 + 1)).is_none());
        }
        assert!(find(&table, TrapIp(0)).is_none() && find(&table, DELETED_KEY).is_none());
    }

    #[test]
    fn a_table_that_is_not_ready_finds_nothing() {
        // SAFETY: as in `table`.
        let table: Box<AddressTable> = unsafe { Box::new_zeroed().assume_init() };
        assert!(find(&table, TrapIp(0xffff_ffff_8000_0001)).is_none());
    }

    #[test]
    fn removal_leaves_the_others_and_makes_room() {
        let (table, mut fill) = (table(), Fill::default());
        let sites = sites(500.min(MAX_SITES as u64));
        for round in 0..20 {
            for site in &sites {
                table.insert(&mut fill, site);
            }
            for (n, site) in sites.iter().enumerate().filter(|(n, _)| n % 2 == round % 2) {
                table.remove(&mut fill, site);
                assert!(
                    find(&table, site.key).is_none(),
                    "site {n} of round {round}"
                );
            }
            let mut left = 0;
            table.iter().for_each(|_| left += 1);
            assert_eq!(left, sites.len() / 2, "sites visited in round {round}");
            for site in sites
                .iter()
                .enumerate()
                .filter(|(n, _)| n % 2 != round % 2)
                .map(|(_, site)| site)
            {
                assert!(find(&table, site.key).is_some());
                table.remove(&mut fill, site);
            }
            let mut left = 0;
            table.iter().for_each(|_| left += 1);
            assert_eq!((left, fill.live, fill.deleted), (0, 0, 0));
        }
    }

    #[test]
    fn a_full_table_refuses_and_still_finds_everything() {
        let (table, mut fill) = (table(), Fill::default());
        let sites = sites(MAX_SITES as u64);
        for site in &sites {
            table.reserve(&mut fill, 1, || {}).unwrap();
            table.insert(&mut fill, site);
        }
        assert!(matches!(
            table.reserve(&mut fill, 1, || {}),
            Err(ProbeError::TooManySites { limit: MAX_SITES })
        ));
        assert!(sites.iter().all(|site| find(&table, site.key).is_some()));
    }

    #[test]
    fn sweeping_keeps_every_site_and_drops_the_marks() {
        let (table, mut fill) = (table(), Fill::default());
        // All of them search from the table's last entry on, so the run crosses its end.
        let inverse = {
            let mut x = 1u32;
            (0..5).for_each(|_| x = x.wrapping_mul(2u32.wrapping_sub(MULTIPLIER.wrapping_mul(x))));
            x
        };
        let last = ((ENTRIES - 1) as u32) << SHIFT;
        let sites: Vec<Site> = (0..200u32)
            .map(|n| Site::sentinel(TrapIp(u64::from((last + n).wrapping_mul(inverse)))))
            .collect();
        for site in &sites {
            assert_eq!(AddressTable::home(site.key), ENTRIES - 1);
            table.insert(&mut fill, site);
        }
        let (gone, kept): (Vec<_>, Vec<_>) =
            sites.iter().enumerate().partition(|(n, _)| n % 3 != 0);
        for (_, site) in &gone {
            table.remove(&mut fill, site);
        }
        assert!(fill.deleted > 100);
        while table.sweep(&mut fill, || {
            assert!(
                kept.iter()
                    .all(|(_, site)| find(&table, site.key).is_some())
            );
        }) {}
        assert_eq!(fill.deleted, 0);
        assert!(
            kept.iter()
                .all(|(_, site)| find(&table, site.key).is_some())
        );
        assert!(
            gone.iter()
                .all(|(_, site)| find(&table, site.key).is_none())
        );
        let mut left = 0;
        table.iter().for_each(|_| left += 1);
        assert_eq!((left, fill.live), (kept.len(), kept.len()));
    }
}
