//! Taking, filling and freeing slots.

use alloc::{boxed::Box, vec::Vec};
use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    error::ProbeError,
    hit::slots::{MAX_PAGES, MOST_PER_PAGE, NUMBERS_PER_PAGE, PAGE_BYTES, Page, SlotPool, Tenant},
    platform::Platform,
    registry::memory::try_box,
};

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
        for word in 0..PAGE_BYTES / 8 {
            // SAFETY: a page of the pool's own (clause 6 of `Platform`), which no CPU executes yet.
            unsafe { page.alias.cast::<u64>().add(word).write(BREAKPOINTS) };
        }
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

    /// Fills a slot that no CPU executes yet, and notes whose it is.
    pub(crate) fn write(&self, slot: u64, owner: *const T, code: &[u8]) {
        debug_assert!(T::bytes::<P>().is_multiple_of(8));
        assert!(code.len() <= T::bytes::<P>(), "code runs out of its slot");
        let Some((page, index, _)) = self.locate(slot) else {
            return;
        };
        // After that are breakpoints or the end of older code. No CPU gets there, because all code
        // ends in a jump.
        let words = words(code).take(T::bytes::<P>() / 8);
        for (number, word) in words.enumerate() {
            // SAFETY: `alias` is a page of the pool's own (clause 6 of `Platform`). The slot is
            // inside it and at a multiple of its size. It was just taken, so nothing else writes
            // it.
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
}

/// A word of breakpoints.
const BREAKPOINTS: u64 = u64::from_le_bytes([0xcc; 8]);

/// `code` in words of memory, with a breakpoint after it.
#[inline]
fn words(code: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = code.as_chunks();
    let mut last = BREAKPOINTS.to_le_bytes();
    last[..rest.len()].copy_from_slice(rest);
    let whole = whole.iter().map(|bytes| u64::from_le_bytes(*bytes));
    whole.chain([u64::from_le_bytes(last)])
}
