//! Slots: pieces of executable memory in which displaced instructions run.
//!
//! A page of the slot region holds slots of [`Platform::SLOT_BYTES`]. Or it holds detours, which
//! are longer and have a pool of their own in the upper half of the region. A page is executed at
//! one address and written through another, so nothing is ever writable where it executes. A slot
//! holds code only, so many CPUs can be in it at once. It is written while no CPU can be in it,
//! before its site is published, and reused after a grace period.
//!
//! Faults and stack walks find the owner of an address in the region without a lock:
//! [`SlotPool::owner`].

use core::{
    marker::PhantomData,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    data::{
        detour::{DETOUR_BYTES, Detour},
        no_grace::NoGrace,
        site::Site,
    },
    platform::Platform,
};

pub(crate) const PAGE_BYTES: usize = 4096;
/// The most slots in a page: for kernels in the top 2 GiB, whose slots are the shortest. The last
/// 32 bytes of such a page stay unused. So [`Page`] takes 1 KiB and not a word more, because a heap
/// of powers of two would give it 2 KiB.
pub(crate) const MOST_PER_PAGE: usize = NUMBERS_PER_PAGE - 1;
/// Slots are numbered through; each page begins with a multiple of this.
pub(crate) const NUMBERS_PER_PAGE: usize = PAGE_BYTES / crate::insn::SLOT_BYTES;
/// The most pages that the pool uses.
pub const MAX_PAGES: usize = 8192;

pub(crate) struct Page<T> {
    pub(crate) alias: *mut u8,
    pub(crate) owners: [AtomicPtr<T>; MOST_PER_PAGE],
}

const _: () = assert!(size_of::<Page<Site>>() == 1024);

/// The owner of a slot: a site or a detour. It can be found from any address inside the slot.
pub(crate) trait Tenant {
    /// Whether its pool has the upper half of the slot region, rather than the lower.
    const UPPER_HALF: bool;
    /// Bytes of a slot; at least those of the shortest one.
    fn bytes<P: Platform>() -> usize;
}

/// A displaced instruction, or its copy to be stepped.
impl Tenant for Site {
    const UPPER_HALF: bool = false;

    fn bytes<P: Platform>() -> usize {
        P::SLOT_BYTES
    }
}

impl Tenant for Detour {
    const UPPER_HALF: bool = true;

    fn bytes<P: Platform>() -> usize {
        DETOUR_BYTES
    }
}

/// See the module's text.
pub(crate) struct SlotPool<P, T> {
    pub(crate) pages: [AtomicPtr<Page<T>>; MAX_PAGES],
    _platform: PhantomData<fn() -> P>,
}

impl<P: Platform, T: Tenant> SlotPool<P, T> {
    /// A pool without pages.
    pub(crate) const fn new() -> Self {
        Self {
            pages: [const { AtomicPtr::new(null_mut()) }; MAX_PAGES],
            _platform: PhantomData,
        }
    }

    pub(crate) fn per_page() -> usize {
        MOST_PER_PAGE.min(PAGE_BYTES / T::bytes::<P>())
    }

    /// How many pages half of the region has, the pages for actions left out.
    pub(crate) fn half() -> usize {
        ((P::slots().end - P::slots().start) as usize / PAGE_BYTES - P::ACTION_PAGES) / 2
    }

    /// The number of its first page in the region.
    pub(crate) fn first_page() -> usize {
        if T::UPPER_HALF { Self::half() } else { 0 }
    }

    pub(crate) fn start() -> u64 {
        P::slots().start + (Self::first_page() * PAGE_BYTES) as u64
    }

    /// The page, the number of the slot in it and the offset in the slot.
    pub(crate) fn locate(&self, ip: u64) -> Option<(&Page<T>, usize, usize)> {
        let offset = ip.checked_sub(Self::start())? as usize;
        // SAFETY: pages are never taken away.
        let page = unsafe {
            self.pages
                .get(offset / PAGE_BYTES)?
                .load(Ordering::Acquire)
                .as_ref()
        }?;
        let index = offset % PAGE_BYTES / T::bytes::<P>();
        (index < Self::per_page()).then_some((page, index, offset % PAGE_BYTES % T::bytes::<P>()))
    }

    /// The owner of the slot around `ip`, and the offset of `ip` in the slot. Any context. The
    /// owner lives until a grace period ends.
    pub fn owner<'a>(&self, ip: u64, _: NoGrace<'a>) -> Option<(&'a T, usize)> {
        let (page, index, offset) = self.locate(ip)?;
        // SAFETY: the owner is cleared before the site is freed, after a grace period.
        Some((
            unsafe { page.owners.get(index)?.load(Ordering::Acquire).as_ref() }?,
            offset,
        ))
    }
}

/// Whether `ip` is in the region that all pools share. Any context.
#[inline(always)]
pub(crate) fn in_slot_region<P: Platform>(ip: u64) -> bool {
    ip.wrapping_sub(P::slots().start) < P::slots().end - P::slots().start
}
