//! The ring in memory, word by word. The crate's text has the picture.
//!
//! Who reads the ring may be another program than the one that writes it, so the layout has a magic
//! word and a version. All words are atomic. The words of the write side, of the read side and of
//! both are in cache lines of their own.

use super::{limits::PAGE_BYTES, word::Word};

/// The first word of a ring.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tracring");
/// The version of the layout.
pub const VERSION: u64 = 1;
/// Bytes from the header to the first data page.
pub const HEADER_BYTES: usize = 4096;
/// Bytes at the start of a data page in front of its records: [`PageHeader`].
pub const PAGE_HEADER_BYTES: usize = 16;
/// Bytes in front of a record's payload: [`RecordHeader`].
pub const RECORD_HEADER_BYTES: usize = 16;
/// The greatest length of a payload. A record does not cross the end of a page.
pub const MAX_PAYLOAD: usize = PAGE_BYTES - PAGE_HEADER_BYTES - RECORD_HEADER_BYTES;
/// The greatest number of data pages: 2 GiB of them.
pub const MAX_PAGES: usize = (1 << 31) / PAGE_BYTES;
/// A record begins at a multiple of it.
pub const ALIGNMENT: usize = 8;

/// Values of the lowest byte of [`RecordHeader::word`].
pub mod state {
    /// It is being written.
    pub const BUSY: u64 = 1;
    /// It is complete.
    pub const COMMITTED: u64 = 2;
    /// Its writer has given it up. It is not shown.
    pub const DISCARDED: u64 = 3;
    /// No record: the next one is on the next page. Only the first word of the header is there.
    pub const PADDING: u64 = 4;
}

/// Values of [`Writing::mode`].
pub mod mode {
    /// The oldest records are lost.
    pub const OVERWRITE: u64 = 0;
    /// The newest records are lost.
    pub const STOP: u64 = 1;
}

/// The first bytes of a ring. The rest up to [`HEADER_BYTES`] is 0.
///
/// The parts are cache lines, because different CPUs write them.
#[repr(C)]
pub struct Header {
    /// Never changes.
    pub description: Description,
    /// Only the ring's own CPU writes it (the mode aside).
    pub writing: Writing,
    /// The ring's own CPU and the consuming reader write it.
    pub shared: Shared,
    /// Only the consuming reader writes it.
    pub reading: Reading,
}

/// How the ring is laid out.
#[repr(C, align(64))]
pub struct Description {
    /// [`MAGIC`].
    pub magic: Word,
    /// [`VERSION`].
    pub version: Word,
    /// [`HEADER_BYTES`].
    pub header_bytes: Word,
    /// [`PAGE_BYTES`].
    pub page_bytes: Word,
    /// [`PAGE_HEADER_BYTES`].
    pub page_header_bytes: Word,
    /// [`RECORD_HEADER_BYTES`].
    pub record_header_bytes: Word,
    /// Bytes of all data pages together.
    pub data_bytes: Word,
    /// The sequence number of the first record: 0.
    pub first_sequence: Word,
}

/// The write side.
#[repr(C, align(64))]
pub struct Writing {
    /// The [`Position`] of the next reservation.
    pub reserved: Word,
    /// The [`Position`] up to which all records are complete.
    pub committed: Word,
    /// Records that were longer than [`MAX_PAYLOAD`].
    pub too_long: Word,
    /// Records that did not fit in front of the oldest unread one ([`mode::STOP`]).
    pub full: Word,
    /// Records that did not fit in front of one that the writer had interrupted.
    pub nested: Word,
    /// Records that were given up by their writers.
    pub discarded: Word,
    /// Discarded records that were overwritten before a reader passed them.
    pub discarded_overwritten: Word,
    /// The records that are lost if there is no room: a value of [`mode`].
    pub mode: Word,
}

/// The word that both sides change.
#[repr(C, align(64))]
pub struct Shared {
    /// The [`Position`] of the oldest unread record.
    pub oldest: Word,
}

/// The consuming reader's counts.
#[repr(C, align(64))]
pub struct Reading {
    /// Records that were read.
    pub read: Word,
    /// Records that [`reset`](super::Ring::reset) removed.
    pub cleared: Word,
    /// Discarded records that were passed by the reader or by a reset.
    pub discarded_passed: Word,
    /// Overwritten records that the reader was told of.
    pub overwritten_reported: Word,
    /// Dropped records that the reader was told of.
    pub dropped_reported: Word,
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// The first bytes of a data page.
#[repr(C)]
pub struct PageHeader {
    /// The sequence number of its first record.
    pub first_sequence: Word,
    /// How many records had been dropped when the page was opened, for whatever reason.
    pub dropped: Word,
}

const _: () = assert!(size_of::<PageHeader>() == PAGE_HEADER_BYTES);

/// The first bytes of a record. The payload follows.
#[repr(C)]
pub struct RecordHeader {
    /// Bits 0 to 7: a value of [`state`]. Bits 8 to 31: bytes of the payload (of padding: bytes to
    /// the end of the page). Bits 32 to 63: the lower half of the sequence number.
    pub word: Word,
    /// The time stamp counter.
    pub tsc: Word,
}

const _: () = assert!(size_of::<RecordHeader>() == RECORD_HEADER_BYTES);

/// Bytes that a record with `payload` bytes takes. The payload is not over [`MAX_PAYLOAD`].
#[inline(always)]
pub const fn record_bytes(payload: usize) -> u32 {
    (payload.wrapping_add(RECORD_HEADER_BYTES + ALIGNMENT - 1) & !(ALIGNMENT - 1)) as u32
}

/// A place between two records. Bits 0 to 31: the offset in the data pages. Bits 32 to 63: the
/// lower half of the sequence number of the record that comes next.
///
/// The offset is that of the end of the record before. So it is never 0, and at the end of a page
/// it is still that page's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Position(pub u64);

impl Position {
    /// The position that consists of these parts.
    #[inline(always)]
    pub const fn new(sequence: u32, offset: u32) -> Self {
        Self((sequence as u64) << 32 | offset as u64)
    }

    /// The lower half of a sequence number.
    #[inline(always)]
    pub const fn sequence(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The offset in the data pages.
    #[inline(always)]
    pub const fn offset(self) -> u32 {
        self.0 as u32
    }

    /// The offset of the page that it belongs to.
    #[inline(always)]
    pub const fn page(self) -> u32 {
        self.offset().wrapping_sub(1) & !(PAGE_BYTES as u32 - 1)
    }

    /// The position after a record of `bytes` bytes that begins here.
    #[inline(always)]
    pub const fn after(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(1 << 32 | bytes as u64))
    }

    /// Whether `end`, a position at most a page after this one, is on the same page.
    #[inline(always)]
    pub const fn shares_page_with(self, end: Self) -> bool {
        self.offset().wrapping_sub(1) ^ end.offset().wrapping_sub(1) < PAGE_BYTES as u32
    }

    /// How many records are between `earlier` and this.
    #[inline(always)]
    pub const fn records_since(self, earlier: Self) -> u32 {
        self.sequence().wrapping_sub(earlier.sequence())
    }

    /// The whole sequence number, given one that is less than 2³¹ away.
    #[inline(always)]
    pub const fn whole_sequence(self, near: u64) -> u64 {
        let distance = self.sequence().wrapping_sub(near as u32);
        near.wrapping_add(distance as i32 as u64)
    }
}

/// The offset of the page after the one that ends at or after `offset`.
#[inline(always)]
pub const fn next_page(offset: u32, data_bytes: u32) -> u32 {
    let end = offset.wrapping_add(PAGE_BYTES as u32 - 1) & !(PAGE_BYTES as u32 - 1);
    if end >= data_bytes { 0 } else { end }
}
