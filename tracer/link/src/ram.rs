//! The guest's memory, as this process sees it: QEMU has it as a file that both map. [`Ram`] is the
//! whole memory, [`Words`] are pieces of it that the guest has told of, and [`Inbox`] is the
//! reading end of the ring of bytes there.
//!
//! # Invariants
//! RAM-1. The mapping stays until the value is dropped, and has as many bytes as the machine's
//!     memory. The guest writes to it meanwhile. So words are read atomically, and bytes are copied
//!     only where the guest has said that they are complete.

use std::{
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use trace_wire::Extent;

/// From this size on, a PC has a gap below 4 GiB, and its memory goes on above.
const MOST_BELOW_4_GIB: u64 = 0xe000_0000;
/// Where the gap begins then.
const LOW_BYTES: u64 = 0xc000_0000;
const FOUR_GIB: u64 = 1 << 32;

/// See the module's text.
#[derive(Debug)]
pub struct Ram {
    start: NonNull<u8>,
    bytes: u64,
}

// SAFETY: memory is not bound to a thread, and all accesses are as RAM-1 says.
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

impl Ram {
    /// Gives `file` so many bytes and maps them.
    pub fn new(file: &OwnedFd, bytes: u64) -> Result<Self> {
        rustix::fs::ftruncate(file, bytes).context("there is no room for the guest's memory")?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes as usize,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        let start = start.context("cannot map the guest's memory")?;
        Ok(Self {
            start: NonNull::new(start.cast()).context("the guest's memory is mapped at 0")?,
            bytes,
        })
    }

    /// Where a physical address is in the file.
    fn offset(&self, physical: u64) -> Option<u64> {
        let offset = match physical {
            _ if self.bytes < MOST_BELOW_4_GIB => physical,
            ..LOW_BYTES => physical,
            FOUR_GIB.. => physical - FOUR_GIB + LOW_BYTES,
            _ => return None,
        };
        (offset < self.bytes).then_some(offset)
    }

    /// The place of `bytes` bytes at a physical address, if all of them are memory.
    fn at(&self, physical: u64, bytes: u64) -> Option<NonNull<u8>> {
        let offset = self.offset(physical)?;
        let end = offset.checked_add(bytes)?;
        // SAFETY: inside the mapping.
        (end <= self.bytes).then(|| unsafe { self.start.add(offset as usize) })
    }

    /// The word at a physical address that 8 divides.
    pub fn word(&self, physical: u64) -> Option<&AtomicU64> {
        let place = self.at(physical, 8)?.cast::<AtomicU64>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: inside the mapping for as long as `self`, and only used atomically.
        Some(unsafe { place.as_ref() })
    }

    /// Appends the bytes of `extents` from `from` on, `count` of them, to `to`. False if that is
    /// not memory.
    pub fn copy(&self, extents: &[Extent], from: u64, count: u64, to: &mut Vec<u8>) -> bool {
        let (mut skip, mut left) = (from, count);
        for extent in extents {
            if skip >= extent.bytes {
                skip -= extent.bytes;
                continue;
            }
            let part = left.min(extent.bytes - skip);
            let Some(place) = self.at(extent.start.wrapping_add(skip), part) else {
                return false;
            };
            let length = to.len();
            to.reserve(part as usize);
            // SAFETY: `part` bytes are in the mapping, and there is room for them.
            unsafe {
                let end = to.as_mut_ptr().add(length);
                std::ptr::copy_nonoverlapping(place.as_ptr(), end, part as usize);
                to.set_len(length + part as usize);
            }
            (skip, left) = (0, left - part);
            if left == 0 {
                break;
            }
        }
        left == 0
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and there is no reference any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes as usize) };
    }
}

/// Words that lie in several extents, in their order.
#[derive(Debug)]
pub struct Words {
    /// The first byte after each extent, counted from the first one of all.
    ends: Vec<u64>,
    extents: Vec<Extent>,
}

impl Words {
    /// The words of `extents`.
    pub fn new(extents: Vec<Extent>) -> Self {
        let mut end = 0_u64;
        let ends = extents.iter().map(|extent| {
            end = end.saturating_add(extent.bytes);
            end
        });
        Self {
            ends: ends.collect(),
            extents,
        }
    }

    /// How many bytes they are.
    pub fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Word `index`, if it is in memory.
    pub fn word<'r>(&self, ram: &'r Ram, index: usize) -> Option<&'r AtomicU64> {
        let at = (index as u64).checked_mul(8)?;
        let number = self.ends.partition_point(|end| *end <= at);
        let extent = self.extents.get(number)?;
        let before = self.ends.get(number)?.checked_sub(extent.bytes)?;
        ram.word(extent.start.wrapping_add(at - before))
    }
}

/// The reading end of an outbox (`trace_wire::outbox`).
#[derive(Debug)]
pub struct Inbox {
    extents: Vec<Extent>,
    capacity: u64,
}

impl Inbox {
    /// None: there is no outbox.
    pub fn new(ram: &Ram, extents: Vec<Extent>) -> Option<Self> {
        use trace_wire::outbox::{CAPACITY, HEADER_BYTES, MAGIC, MAGIC_WORD};
        let first = extents.first()?;
        let all: u64 = extents.iter().map(|extent| extent.bytes).sum();
        let word = |offset: usize| {
            let word = ram.word(first.start.wrapping_add(offset as u64))?;
            Some(word.load(Ordering::Acquire))
        };
        let capacity = word(CAPACITY)?;
        let is_outbox = word(MAGIC)? == MAGIC_WORD
            && first.bytes >= HEADER_BYTES as u64
            && capacity != 0
            && all >= capacity.checked_add(HEADER_BYTES as u64)?;
        is_outbox.then_some(Self { extents, capacity })
    }

    /// A word of the header.
    pub fn word<'r>(&self, ram: &'r Ram, offset: usize) -> Option<&'r AtomicU64> {
        ram.word(self.extents.first()?.start.wrapping_add(offset as u64))
    }

    /// Takes all that is there. False: the header is damaged.
    pub fn take(&self, ram: &Ram, to: &mut Vec<u8>) -> bool {
        use trace_wire::outbox::{HEADER_BYTES, READ, WRITTEN};
        let (Some(written), Some(read)) = (self.word(ram, WRITTEN), self.word(ram, READ)) else {
            return false;
        };
        // Acquire pairs with the Release of the writer (OUTBOX-1).
        let (end, mut at) = (
            written.load(Ordering::Acquire),
            read.load(Ordering::Relaxed),
        );
        if end.wrapping_sub(at) > self.capacity {
            return false;
        }
        while at != end {
            let offset = at % self.capacity;
            let part = (end - at).min(self.capacity - offset);
            if !ram.copy(&self.extents, HEADER_BYTES as u64 + offset, part, to) {
                return false;
            }
            at += part;
        }
        // Release: the copy is done.
        read.store(end, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::memory_file;
    use trace_wire::outbox::{CAPACITY, HEADER_BYTES, MAGIC, MAGIC_WORD, READ, WRITTEN};

    #[test]
    fn memory_above_the_gap_goes_on_behind_that_below() {
        let file = memory_file(&[]).unwrap();
        let small = Ram::new(&file, 1 << 20).unwrap();
        assert_eq!(small.offset(0xf_ffff), Some(0xf_ffff));
        assert_eq!(small.offset(0x10_0000), None);
        let large = Ram {
            bytes: 5 << 30,
            ..Ram::new(&file, 1 << 20).unwrap()
        };
        assert_eq!(large.offset(LOW_BYTES - 1), Some(LOW_BYTES - 1));
        assert_eq!(large.offset(LOW_BYTES), None);
        assert_eq!(large.offset(FOUR_GIB), Some(LOW_BYTES));
        // So many bytes are not mapped.
        std::mem::forget(large);
    }

    #[test]
    fn words_are_found_in_their_extents() {
        let file = memory_file(&[]).unwrap();
        let ram = Ram::new(&file, 1 << 20).unwrap();
        let extent = |start, bytes| Extent { start, bytes };
        let words = Words::new(vec![
            extent(0x8ff0, 16),
            extent(0x1000, 8),
            extent(0xf_fff8, 16),
        ]);
        for (value, place) in [0x8ff0, 0x8ff8, 0x1000, 0xf_fff8].into_iter().enumerate() {
            let word = ram.word(place).unwrap();
            word.store(value as u64, Ordering::Relaxed);
        }
        assert_eq!(words.bytes(), 40);
        let found = |index| Some(words.word(&ram, index)?.load(Ordering::Relaxed));
        assert_eq!(
            [0, 1, 2, 3].map(found),
            [Some(0), Some(1), Some(2), Some(3)]
        );
        // The end of the memory, and of the words.
        assert_eq!([4, 5, usize::MAX].map(found), [None; 3]);
    }

    #[test]
    fn bytes_come_out_as_they_were_put_in_over_the_end_and_over_gaps() {
        let file = memory_file(&[]).unwrap();
        let ram = Ram::new(&file, 1 << 20).unwrap();
        let extent = |start, bytes| Extent { start, bytes };
        let extents = vec![extent(0x8000, HEADER_BYTES as u64 + 8), extent(0x1000, 8)];
        let set = |offset: usize, value| {
            let word = ram.word(0x8000 + offset as u64).unwrap();
            word.store(value, Ordering::Relaxed);
        };
        assert!(Inbox::new(&ram, extents.clone()).is_none());
        set(MAGIC, MAGIC_WORD);
        set(CAPACITY, 16);
        let inbox = Inbox::new(&ram, extents).unwrap();
        for (byte, place) in (0..16).zip((0x9000..0x9008).chain(0x1000..0x1008)) {
            let place = ram.at(place, 1).unwrap();
            // SAFETY: in the mapping.
            unsafe { place.write(byte) };
        }
        set(READ, 12);
        set(WRITTEN, 22);
        let mut taken = Vec::new();
        assert!(inbox.take(&ram, &mut taken));
        assert_eq!(taken, [12, 13, 14, 15, 0, 1, 2, 3, 4, 5]);
        assert!(inbox.take(&ram, &mut taken));
        assert_eq!(taken.len(), 10, "they came twice");
        set(WRITTEN, 100);
        assert!(!inbox.take(&ram, &mut taken), "more than there is room");
    }
}
