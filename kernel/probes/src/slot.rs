//! Slots: pieces of executable memory in which displaced instructions run.
//!
//! A page of the slot region holds slots of [`Platform::SLOT_BYTES`]. It is executed at one address and written through another, so
//! nothing is ever writable where it executes. A slot holds code only, so many CPUs can be in it at once; it is
//! written while nobody can be in it, before its site is published, and reused after a grace period.
//!
//! From an address in the region, [`SlotPool::owner`] finds the site without a lock: faults and backtraces ask.

use alloc::{boxed::Box, vec::Vec};
use core::{
    marker::PhantomData,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{error::ProbeError, platform::Platform, registry::try_box, site::Site};

const PAGE_BYTES: usize = 4096;
/// The most slots in a page: for kernels in the top 2 GiB, whose slots are the shortest.
const MOST_PER_PAGE: usize = PAGE_BYTES / crate::insn::SLOT_BYTES;
/// The most pages that the pool uses.
pub const MAX_PAGES: usize = 8192;

struct Page {
    alias: *mut u8,
    owners: [AtomicPtr<Site>; MOST_PER_PAGE],
}

/// See the module's text.
pub struct SlotPool<P> {
    pages: [AtomicPtr<Page>; MAX_PAGES],
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

    /// How many slots are taken.
    pub fn used(&self) -> usize {
        self.used
    }
}

impl<P: Platform> Default for SlotPool<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> SlotPool<P> {
    const PER_PAGE: usize = PAGE_BYTES / P::SLOT_BYTES;

    /// A pool without pages.
    pub const fn new() -> Self {
        Self {
            pages: [const { AtomicPtr::new(null_mut()) }; MAX_PAGES],
            _platform: PhantomData,
        }
    }

    /// Takes a slot. Returns where it is executed. Under the registry's lock.
    pub(crate) fn take(&self, state: &mut FreeSlots) -> Result<u64, ProbeError> {
        if state.free.is_empty() {
            self.grow(state)?;
        }
        let index = state.free.pop().ok_or(ProbeError::OutOfMemory)? as usize;
        state.used += 1;
        let (page, slot) = (index / Self::PER_PAGE, index % Self::PER_PAGE);
        Ok(P::slots().start + (page * PAGE_BYTES + slot * P::SLOT_BYTES) as u64)
    }

    fn grow(&self, state: &mut FreeSlots) -> Result<(), ProbeError> {
        let index = state.pages;
        // Room for every slot there is, so that giving one back never allocates.
        let all = (index + 1) * Self::PER_PAGE;
        state
            .free
            .try_reserve(all)
            .map_err(|_| ProbeError::OutOfMemory)?;
        if index == MAX_PAGES {
            return Err(ProbeError::OutOfMemory);
        }
        let mut page = try_box(Page {
            alias: null_mut(),
            owners: [const { AtomicPtr::new(null_mut()) }; MOST_PER_PAGE],
        })?;
        page.alias = P::slot_page(index).ok_or(ProbeError::OutOfMemory)?.alias;
        self.pages[index].store(Box::into_raw(page), Ordering::Release);
        state.pages += 1;
        let first = (index * Self::PER_PAGE) as u32;
        state
            .free
            .extend((first..first + Self::PER_PAGE as u32).rev());
        Ok(())
    }

    /// Gives a slot back. A grace period since it could be entered is over.
    pub(crate) fn free(&self, state: &mut FreeSlots, slot: u64) {
        let Some((page, index, _)) = self.locate(slot) else {
            return;
        };
        page.owners[index].store(null_mut(), Ordering::Release);
        let number = (slot - P::slots().start) as usize / PAGE_BYTES * Self::PER_PAGE + index;
        state.used -= 1;
        state.free.push(number as u32);
    }

    /// Fills a slot that nobody executes yet, and notes whose it is.
    pub(crate) fn write(&self, slot: u64, owner: *const Site, code: &[u8]) {
        const { assert!(P::SLOT_BYTES.is_multiple_of(8)) };
        debug_assert!(code.len() <= P::SLOT_BYTES);
        let Some((page, index, _)) = self.locate(slot) else {
            return;
        };
        for (number, word) in (0..P::SLOT_BYTES / 8).zip(words(code)) {
            // SAFETY: `alias` is a page of the pool's own (clause 6 of `Platform`), the slot is inside it and at a multiple of its
            // size, and it was just taken, so nobody else writes it.
            unsafe {
                page.alias
                    .add(index * P::SLOT_BYTES)
                    .cast::<u64>()
                    .add(number)
                    .write_volatile(word)
            };
        }
        page.owners[index].store(owner.cast_mut(), Ordering::Release);
    }

    /// The page, the number of the slot in it and the offset in the slot.
    fn locate(&self, ip: u64) -> Option<(&Page, usize, usize)> {
        let offset = ip.checked_sub(P::slots().start)? as usize;
        // SAFETY: pages are never taken away.
        let page = unsafe {
            self.pages
                .get(offset / PAGE_BYTES)?
                .load(Ordering::Acquire)
                .as_ref()
        }?;
        let index = offset % PAGE_BYTES / P::SLOT_BYTES;
        (index < Self::PER_PAGE).then_some((page, index, offset % PAGE_BYTES % P::SLOT_BYTES))
    }

    /// Whether `ip` is in the slot region. Any context.
    #[inline(always)]
    pub fn contains(&self, ip: u64) -> bool {
        ip.wrapping_sub(P::slots().start) < P::slots().end - P::slots().start
    }

    /// The site that owns the slot around `ip`, and the offset of `ip` in it. Any context; the site lives until a
    /// grace period begins.
    pub fn owner(&self, ip: u64) -> Option<(&Site, usize)> {
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
