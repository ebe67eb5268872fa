//! Messages through memory that the host reads: the writing end of [`trace_wire::outbox`].
//!
//! # Invariants
//! See OUTBOX-1 and OUTBOX-2 there. The memory is never given back, because the host may read it at
//! any time, also when the kernel is dead.
//!
//! # Contexts
//! Task context. One task has the [`Outbox`] and writes. Others may have a [`Sign`] of it.

use alloc::{
    alloc::{Layout, alloc_zeroed},
    vec::Vec,
};
use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use trace_wire::{
    Extent, MemoryPlace,
    outbox::{CAPACITY, FED, HEADER_BYTES, MAGIC, MAGIC_WORD, MAPS, READ, WRITTEN},
};
use x86_64::VirtAddr;

use crate::mm::paging;

/// Bytes of data.
const DATA_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// The one writer.
pub struct Outbox {
    header: Sign,
}

/// The words of an outbox that are no messages.
#[derive(Clone, Copy)]
pub struct Sign {
    start: NonNull<u8>,
}

// SAFETY: memory that is never given back, and whose words are atomic.
unsafe impl Send for Sign {}

/// Where virtual memory is. None: some page of it is not mapped.
pub fn extents(start: u64, bytes: usize) -> Option<Vec<Extent>> {
    let mut extents = Vec::new();
    let (mut at, end) = (start, start.checked_add(bytes as u64)?);
    while at < end {
        let page_end = (at | (PAGE_BYTES as u64 - 1)).saturating_add(1);
        let (physical, _) = paging::translate_kernel(VirtAddr::new(at))?;
        extents.try_reserve(1).ok()?;
        MemoryPlace::push(&mut extents, physical.as_u64(), page_end.min(end) - at);
        at = page_end;
    }
    Some(extents)
}

impl Outbox {
    /// Takes the memory. None: there is none.
    pub fn new() -> Option<Self> {
        let layout = Layout::from_size_align(HEADER_BYTES + DATA_BYTES, PAGE_BYTES).ok()?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let header = Sign { start };
        header
            .word(CAPACITY)
            .store(DATA_BYTES as u64, Ordering::Relaxed);
        header.word(MAGIC).store(MAGIC_WORD, Ordering::Release);
        Some(Self { header })
    }

    /// Where it is.
    pub fn place(&self) -> Option<MemoryPlace> {
        let start = self.header.start.addr().get() as u64;
        let extents = extents(start, HEADER_BYTES + DATA_BYTES)?;
        Some(MemoryPlace::Outbox(extents))
    }

    /// For another task, which shows by it that a CPU gets on.
    pub fn sign(&self) -> Sign {
        self.header
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.header.word(offset)
    }

    /// Writes as many of `bytes` as there is room for, and returns their number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let written = self.word(WRITTEN).load(Ordering::Relaxed);
        // Acquire pairs with the Release of the reader: it has copied what is written over now.
        let read = self.word(READ).load(Ordering::Acquire);
        let room = DATA_BYTES.saturating_sub(written.wrapping_sub(read) as usize);
        let count = bytes.len().min(room);
        let at = written as usize % DATA_BYTES;
        let (first, second) = bytes[..count].split_at(count.min(DATA_BYTES - at));
        // SAFETY: inside the data, which only this value writes; the host does not look there
        // before `WRITTEN` says so.
        unsafe {
            let data = self.header.start.add(HEADER_BYTES);
            data.add(at)
                .copy_from_nonoverlapping(NonNull::from(first).cast(), first.len());
            data.copy_from_nonoverlapping(NonNull::from(second).cast(), second.len());
        }
        let end = written.wrapping_add(count as u64);
        self.word(WRITTEN).store(end, Ordering::Release);
        count
    }

    /// Says whether the places of maps that were told have them (OUTBOX-2).
    pub fn set_maps(&self, readable: bool) {
        // Acquire and Release: nothing that frees the maps comes before it.
        self.word(MAPS).swap(readable.into(), Ordering::AcqRel);
    }
}

impl Sign {
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: a word of the header, aligned, and only used atomically.
        unsafe { self.start.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Shows the host that a CPU gets on.
    pub fn feed(self) {
        self.word(FED).fetch_add(1, Ordering::Relaxed);
    }
}
