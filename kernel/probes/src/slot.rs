//! Slots: pieces of executable memory in which displaced instructions run.
//!
//! A page of the slot region holds slots of [`Platform::SLOT_BYTES`], or detours ([`mod@crate::detour`]), which are longer and have a pool of
//! their own in the upper half of the region. It is executed at one address and written through another, so
//! nothing is ever writable where it executes. A slot holds code only, so many CPUs can be in it at once; it is
//! written while nobody can be in it, before its site is published, and reused after a grace period.
//!
//! From an address in the region, [`SlotPool::owner`] finds the site, or the detour, without a lock: faults and backtraces ask.

use alloc::{boxed::Box, vec::Vec};
use core::{
    marker::PhantomData,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    data::site::Site,
    detour::{DETOUR_BYTES, Detour},
    error::ProbeError,
    platform::Platform,
    registry::try_box,
};

const PAGE_BYTES: usize = 4096;
/// The most slots in a page: for kernels in the top 2 GiB, whose slots are the shortest. The last 32
/// bytes of such a page stay unused, so that [`Page`] takes 1 KiB and not a word more: a heap of
/// powers of two would give it 2 KiB.
const MOST_PER_PAGE: usize = NUMBERS_PER_PAGE - 1;
/// Slots are numbered through; each page begins with a multiple of this.
const NUMBERS_PER_PAGE: usize = PAGE_BYTES / crate::insn::SLOT_BYTES;
/// The most pages that the pool uses.
pub const MAX_PAGES: usize = 8192;

struct Page<T> {
    alias: *mut u8,
    owners: [AtomicPtr<T>; MOST_PER_PAGE],
}

const _: () = assert!(size_of::<Page<Site>>() == 1024);

/// What a slot is made for, and can be asked for by an address in it.
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
    pages: [AtomicPtr<Page<T>>; MAX_PAGES],
    _platform: PhantomData<fn() -> P>,
}

/// Which slots are free; kept under the registry's lock.
#[derive(Default)]
pub struct FreeSlots {
    free: Vec<u32>,
    pages: usize,
    used: usize,
}

impl FreeSlots {
    pub(crate) const fn new() -> Self {
        Self {
            free: Vec::new(),
            pages: 0,
            used: 0,
        }
    }

    /// How many slots are taken, without those taken for ever.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Tells that `count` of the slots that are taken never come back.
    pub(crate) fn keep(&mut self, count: usize) {
        self.used -= count;
    }
}

impl<P: Platform, T: Tenant> SlotPool<P, T> {
    /// A pool without pages.
    pub(crate) const fn new() -> Self {
        Self {
            pages: [const { AtomicPtr::new(null_mut()) }; MAX_PAGES],
            _platform: PhantomData,
        }
    }

    fn per_page() -> usize {
        MOST_PER_PAGE.min(PAGE_BYTES / T::bytes::<P>())
    }

    /// How many pages half of the region has.
    fn half() -> usize {
        (P::slots().end - P::slots().start) as usize / PAGE_BYTES / 2
    }

    /// The number of its first page in the region.
    fn first_page() -> usize {
        if T::UPPER_HALF { Self::half() } else { 0 }
    }

    fn start() -> u64 {
        P::slots().start + (Self::first_page() * PAGE_BYTES) as u64
    }

    /// Takes a slot. Returns where it is executed. Under the registry's lock.
    pub(crate) fn take(&self, state: &mut FreeSlots) -> Result<u64, ProbeError> {
        if state.free.is_empty() {
            self.grow(state)?;
        }
        let number = state.free.pop().ok_or(ProbeError::OutOfMemory)? as usize;
        state.used += 1;
        let (page, slot) = (number / NUMBERS_PER_PAGE, number % NUMBERS_PER_PAGE);
        Ok(Self::start() + (page * PAGE_BYTES + slot * T::bytes::<P>()) as u64)
    }

    fn grow(&self, state: &mut FreeSlots) -> Result<(), ProbeError> {
        let index = state.pages;
        // Room for every slot there is, so that giving one back never allocates.
        let all = (index + 1) * Self::per_page();
        state
            .free
            .try_reserve(all)
            .map_err(|_| ProbeError::OutOfMemory)?;
        if index == MAX_PAGES.min(Self::half()) {
            return Err(ProbeError::OutOfMemory);
        }
        let mut page = try_box(Page {
            alias: null_mut(),
            owners: [const { AtomicPtr::new(null_mut()) }; MOST_PER_PAGE],
        })?;
        page.alias = P::slot_page(Self::first_page() + index)
            .ok_or(ProbeError::OutOfMemory)?
            .alias;
        self.pages[index].store(Box::into_raw(page), Ordering::Release);
        state.pages += 1;
        let first = (index * NUMBERS_PER_PAGE) as u32;
        state
            .free
            .extend((first..first + Self::per_page() as u32).rev());
        Ok(())
    }

    /// Gives a slot back. A grace period since it could be entered is over.
    pub(crate) fn free(&self, state: &mut FreeSlots, slot: u64) {
        let Some((page, index, _)) = self.locate(slot) else {
            return;
        };
        page.owners[index].store(null_mut(), Ordering::Release);
        let number = (slot - Self::start()) as usize / PAGE_BYTES * NUMBERS_PER_PAGE + index;
        state.used -= 1;
        state.free.push(number as u32);
    }

    /// Fills a slot that nobody executes yet, and notes whose it is.
    pub(crate) fn write(&self, slot: u64, owner: *const T, code: &[u8]) {
        debug_assert!(T::bytes::<P>().is_multiple_of(8));
        assert!(code.len() <= T::bytes::<P>(), "code runs out of its slot");
        let Some((page, index, _)) = self.locate(slot) else {
            return;
        };
        for (number, word) in (0..T::bytes::<P>() / 8).zip(words(code)) {
            // SAFETY: `alias` is a page of the pool's own (clause 6 of `Platform`), the slot is inside it and at a multiple of its
            // size, and it was just taken, so nobody else writes it.
            unsafe {
                page.alias
                    .add(index * T::bytes::<P>())
                    .cast::<u64>()
                    .add(number)
                    .write_volatile(word)
            };
        }
        page.owners[index].store(owner.cast_mut(), Ordering::Release);
    }

    /// The page, the number of the slot in it and the offset in the slot.
    fn locate(&self, ip: u64) -> Option<(&Page<T>, usize, usize)> {
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

    /// What the slot around `ip` was made for, and the offset of `ip` in it. Any context; the owner lives until a
    /// grace period begins.
    pub fn owner(&self, ip: u64) -> Option<(&T, usize)> {
        let (page, index, offset) = self.locate(ip)?;
        // SAFETY: the owner is cleared before the site is freed, after a grace period.
        Some((
            unsafe { page.owners.get(index)?.load(Ordering::Acquire).as_ref() }?,
            offset,
        ))
    }
}

/// `code` in words of memory, with breakpoints behind it.
fn words(code: &[u8]) -> impl Iterator<Item = u64> {
    let mut chunks = code.chunks(8);
    core::iter::from_fn(move || {
        let mut bytes = [0xcc; 8];
        if let Some(chunk) = chunks.next() {
            bytes[..chunk.len()].copy_from_slice(chunk);
        }
        Some(u64::from_le_bytes(bytes))
    })
}

/// Whether `ip` is in the region that all pools share. Any context.
#[inline(always)]
pub(crate) fn in_slot_region<P: Platform>(ip: u64) -> bool {
    ip.wrapping_sub(P::slots().start) < P::slots().end - P::slots().start
}
