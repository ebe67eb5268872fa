//! The handle, and the write side.
//!
//! A writer reserves room by an exchange of a word that only its own CPU changes, fills the room,
//! and commits. A writer that interrupts it finishes first, so no writer waits. Readers see a
//! record when `committed` has passed it (W2 and W3 of the crate's text).

use core::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        fence,
    },
};

use super::{
    error::InitError,
    layout::{
        HEADER_BYTES, Header, MAGIC, MAX_PAGES, MAX_PAYLOAD, PAGE_HEADER_BYTES, PageHeader,
        Position, RECORD_HEADER_BYTES, RecordHeader, VERSION, mode, next_page, record_bytes, state,
    },
    limits::PAGE_BYTES,
    word::{Word, interrupt_fence},
};

/// The records that are lost if there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The oldest records, a page at a time.
    Overwrite,
    /// The newest records.
    Stop,
}

/// A ring in memory that lives as long as `'m`. It is one pointer.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Ring<'m> {
    base: NonNull<u8>,
    memory: PhantomData<&'m Header>,
}

// SAFETY: all memory that safe functions touch consists of atomics. The contracts of the others say
// on which CPU they run.
unsafe impl Send for Ring<'_> {}
// SAFETY: as above.
unsafe impl Sync for Ring<'_> {}

impl<'m> Ring<'m> {
    /// Bytes of memory for a ring of `pages` data pages. None if the ring would be too large.
    pub const fn bytes(pages: usize) -> Option<usize> {
        if pages > MAX_PAGES {
            return None;
        }
        Some(HEADER_BYTES + pages * PAGE_BYTES)
    }

    /// Makes an empty ring of `pages` data pages.
    ///
    /// # Safety
    /// 1. `memory` has [`Self::bytes`] of `pages` bytes, all 0, that are valid for reads and writes
    ///    for `'m`.
    /// 2. For `'m` it is only accessed through rings, and through payloads between their
    ///    reservation and their end.
    pub unsafe fn init(memory: NonNull<u8>, pages: usize, mode: Mode) -> Result<Self, InitError> {
        // SAFETY: the same contract.
        unsafe { Self::init_at(memory, pages, mode, 0) }
    }

    /// Same as [`Self::init`], but the first record has the number `first_sequence`.
    ///
    /// # Safety
    /// Same as for [`Self::init`].
    pub(super) unsafe fn init_at(
        memory: NonNull<u8>,
        pages: usize,
        mode: Mode,
        first_sequence: u64,
    ) -> Result<Self, InitError> {
        if pages == 0 {
            return Err(InitError::NoPages);
        }
        if pages > MAX_PAGES {
            return Err(InitError::TooManyPages { pages });
        }
        let address = memory.addr().get();
        if !address.is_multiple_of(HEADER_BYTES) {
            return Err(InitError::Misaligned { address });
        }
        // SAFETY: by the contract. `from_raw` says more than is true before the stores below, but
        // nothing here depends on it.
        let ring = unsafe { Self::from_raw(memory) };
        let header = ring.header();
        let data_bytes = (pages * PAGE_BYTES) as u32;
        // As if the last page had just been filled.
        let start = Position::new(first_sequence as u32, data_bytes).0;
        header.writing.reserved.store(start, Relaxed);
        header.writing.committed.store(start, Relaxed);
        header.shared.oldest.store(start, Relaxed);
        ring.set_mode(mode);
        let description = &header.description;
        description.version.store(VERSION, Relaxed);
        let sizes = [
            (&description.header_bytes, HEADER_BYTES),
            (&description.page_bytes, PAGE_BYTES),
            (&description.page_header_bytes, PAGE_HEADER_BYTES),
            (&description.record_header_bytes, RECORD_HEADER_BYTES),
            (&description.data_bytes, data_bytes as usize),
        ];
        for (word, bytes) in sizes {
            word.store(bytes as u64, Relaxed);
        }
        description.first_sequence.store(first_sequence, Relaxed);
        // Release: a reader outside that finds the magic finds the rest.
        description.magic.store(MAGIC, Release);
        Ok(ring)
    }

    /// The ring whose memory begins at `base`.
    ///
    /// # Safety
    /// 1. `base` was the memory of an [`Self::init`] that succeeded.
    /// 2. Its promises hold for `'m`.
    #[inline(always)]
    pub const unsafe fn from_raw(base: NonNull<u8>) -> Self {
        Self {
            base,
            memory: PhantomData,
        }
    }

    /// The start of its memory.
    #[inline(always)]
    pub const fn as_ptr(self) -> NonNull<u8> {
        self.base
    }

    /// Whether `place` is in its data pages.
    #[inline(always)]
    pub fn contains(self, place: *const u8) -> bool {
        let offset = place.addr().wrapping_sub(self.base.addr().get());
        offset.wrapping_sub(HEADER_BYTES) < self.data_bytes() as usize
    }

    #[inline(always)]
    pub(super) fn header(self) -> &'m Header {
        // SAFETY: the memory is valid for `'m` (1 of `init`), and a header is all atomics.
        unsafe { self.base.cast().as_ref() }
    }

    #[inline(always)]
    pub(super) fn data_bytes(self) -> u32 {
        self.header().description.data_bytes.load(Relaxed) as u32
    }

    /// The pointer to a place in the data pages.
    ///
    /// # Safety
    /// `offset` is not over the bytes of the data pages.
    #[inline(always)]
    unsafe fn place(self, offset: u32) -> NonNull<u8> {
        // SAFETY: in the ring's memory by the contract.
        unsafe { self.base.add(HEADER_BYTES.wrapping_add(offset as usize)) }
    }

    /// # Safety
    /// `offset` is a multiple of 8 and less than the bytes of the data pages.
    #[inline(always)]
    pub(super) unsafe fn word(self, offset: u32) -> &'m Word {
        // SAFETY: in the memory by the contract, which lives for `'m` and is all words.
        unsafe { self.place(offset).cast().as_ref() }
    }

    /// # Safety
    /// `at` is a multiple of 8, and there is a word between it and the end of the memory.
    #[inline]
    pub(super) unsafe fn memory_word(self, at: usize) -> &'m Word {
        // SAFETY: in the memory by the contract, which lives for `'m` and is all words.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    /// # Safety
    /// `page` is the offset of a data page.
    #[inline(always)]
    pub(super) unsafe fn page_header(self, page: u32) -> &'m PageHeader {
        // SAFETY: as in `word`.
        unsafe { self.place(page).cast().as_ref() }
    }

    /// # Safety
    /// `offset` is a multiple of 8, and there is room for a record's header between it and the end
    /// of the data pages.
    #[inline(always)]
    pub(super) unsafe fn record(self, offset: u32) -> &'m RecordHeader {
        // SAFETY: as in `word`.
        unsafe { self.place(offset).cast().as_ref() }
    }

    /// The whole sequence number of a position that was in the ring lately.
    #[inline]
    pub(super) fn whole_sequence(self, at: Position) -> u64 {
        // SAFETY: positions belong to pages of the ring.
        let page = unsafe { self.page_header(at.page()) };
        // An old number or a new one: both are near enough. 0 if the page was never used.
        let near = match page.first_sequence.load(Relaxed) {
            0 => self.header().description.first_sequence.load(Relaxed),
            near => near,
        };
        at.whole_sequence(near)
    }

    /// Says which records are lost from now on if there is no room. Any CPU, any context.
    pub fn set_mode(self, mode: Mode) {
        let value = match mode {
            Mode::Overwrite => mode::OVERWRITE,
            Mode::Stop => mode::STOP,
        };
        self.header().writing.mode.store(value, Relaxed);
    }

    /// The records that are lost if there is no room.
    pub fn mode(self) -> Mode {
        match self.header().writing.mode.load(Relaxed) {
            mode::STOP => Mode::Stop,
            _ => Mode::Overwrite,
        }
    }

    /// Reserves a record with `bytes` bytes of payload. Returns the payload, which is aligned to 8
    /// bytes and holds anything. None if there is no room; that is counted.
    ///
    /// # Safety
    /// 1. It runs on the ring's own CPU, and stays there until the record is over.
    /// 2. The record is over by [`Self::commit`] or [`Self::discard`], before code that this one
    ///    interrupted goes on: the last reservation is over first.
    #[inline(always)]
    pub unsafe fn reserve(self, bytes: usize, tsc: u64) -> Option<NonNull<u8>> {
        let reserved = &self.header().writing.reserved;
        if bytes <= MAX_PAYLOAD {
            let at = Position(reserved.load(Relaxed));
            let end = at.after(record_bytes(bytes));
            // Relaxed: other CPUs only report the number.
            if at.shares_page_with(end)
                && reserved
                    .local_compare_exchange(at.0, end.0, Relaxed)
                    .is_ok()
            {
                // SAFETY: just reserved.
                return Some(unsafe { self.begin(at, bytes, tsc) });
            }
        }
        // SAFETY: the same contract.
        unsafe { self.reserve_slowly(bytes, tsc) }
    }

    /// Reserves a record if it is too long, does not fit on the page, or the first attempt met a
    /// nested writer. It is a function of its own, so that the usual way needs few registers.
    ///
    /// # Safety
    /// Same as for [`Self::reserve`].
    #[cold]
    #[inline(never)]
    unsafe fn reserve_slowly(self, bytes: usize, tsc: u64) -> Option<NonNull<u8>> {
        let writing = &self.header().writing;
        if bytes > MAX_PAYLOAD {
            writing.too_long.local_add(1);
            return None;
        }
        loop {
            let at = Position(writing.reserved.load(Relaxed));
            let end = at.after(record_bytes(bytes));
            if at.shares_page_with(end) {
                if writing
                    .reserved
                    .local_compare_exchange(at.0, end.0, Relaxed)
                    .is_ok()
                {
                    // SAFETY: just reserved.
                    return Some(unsafe { self.begin(at, bytes, tsc) });
                }
            } else if !self.open_page(at) {
                return None;
            }
        }
    }

    /// Writes the header of a record. Returns its payload.
    ///
    /// # Safety
    /// The record at `at`, with `bytes` bytes of payload, was just reserved.
    #[inline(always)]
    unsafe fn begin(self, at: Position, bytes: usize, tsc: u64) -> NonNull<u8> {
        // SAFETY: the record lies between two positions of one page, and it is ours (RING-2).
        let record = unsafe { self.record(at.offset()) };
        let word = at.0 & !u64::from(u32::MAX) | (bytes as u64) << 8 | state::BUSY;
        record.word.store(word, Relaxed);
        record.tsc.store(tsc, Relaxed);
        // SAFETY: the payload is in the record, or at its end if it is empty.
        unsafe { self.place(at.offset().wrapping_add(RECORD_HEADER_BYTES as u32)) }
    }

    /// Makes a record complete. Readers see it when all that it interrupted is complete, too.
    ///
    /// # Safety
    /// `payload` came from [`Self::reserve`] of this ring, whose contract holds. The record is not
    /// over.
    #[inline(always)]
    pub unsafe fn commit(self, payload: NonNull<u8>) {
        // SAFETY: the same contract.
        unsafe { self.finish(payload, state::COMMITTED) };
    }

    /// Gives a record up. It is counted, and readers pass over it.
    ///
    /// # Safety
    /// Same as for [`Self::commit`].
    #[inline(always)]
    pub unsafe fn discard(self, payload: NonNull<u8>) {
        self.header().writing.discarded.local_add(1);
        // SAFETY: the same contract.
        unsafe { self.finish(payload, state::DISCARDED) };
    }

    /// # Safety
    /// Same as for [`Self::commit`].
    #[inline(always)]
    unsafe fn finish(self, payload: NonNull<u8>, state: u64) {
        let writing = &self.header().writing;
        // SAFETY: the header is in front of the payload, in the same memory.
        let record = unsafe { payload.sub(RECORD_HEADER_BYTES) };
        let start = record.addr().get().wrapping_sub(self.base.addr().get());
        let start = start.wrapping_sub(HEADER_BYTES) as u32;
        // SAFETY: a record's header, all atomics.
        let word: &Word = unsafe { record.cast().as_ref() };
        let busy = word.load(Relaxed);
        word.store(busy.wrapping_add(state.wrapping_sub(state::BUSY)), Relaxed);
        interrupt_fence();
        // If it interrupted another record, that one's writer publishes both.
        if writing.committed.load(Relaxed) as u32 == start {
            // Until the store below, no other writer publishes (WRITER-2): nested records begin
            // elsewhere.
            let reserved = writing.reserved.load(Relaxed);
            // Release pairs with the Acquire of the readers: they see the records before it.
            writing.committed.store(reserved, Release);
            interrupt_fence();
            if writing.reserved.load(Relaxed) != reserved {
                self.publish(reserved);
            }
        }
    }

    /// Publishes what was written since the caller has published up to `last`, as [`Self::commit`]
    /// does: for a caller that has done the beginning of that itself.
    ///
    /// # Safety
    /// It runs on the ring's own CPU. The caller has stored `last` in `committed` when that was its
    /// own record's beginning, and has found `reserved` changed.
    pub unsafe fn publish_from(self, last: u64) {
        self.publish(last);
    }

    /// Publishes all records. Writers that have ended them in another ring by mistake
    /// ([`spare`](super::spare)) have left that to this.
    ///
    /// # Safety
    /// It runs on the ring's own CPU, or that CPU does not know the ring any more. No record of the
    /// ring is being written, and none will be before this is over.
    pub unsafe fn settle(self) {
        let writing = &self.header().writing;
        // Release as in `finish`.
        writing
            .committed
            .store(writing.reserved.load(Relaxed), Release);
    }

    /// Ends the page that is written to. So the next record opens a page, which its writer does in
    /// [`Self::reserve`] only, and not by what it may do itself of that.
    ///
    /// # Safety
    /// No record of the ring is being written, and none will be before this is over.
    pub unsafe fn end_page(self) {
        let writing = &self.header().writing;
        let at = Position(writing.reserved.load(Relaxed));
        let used = at.offset() & (PAGE_BYTES as u32 - 1);
        if used == 0 {
            return;
        }
        let rest = PAGE_BYTES as u32 - used;
        // SAFETY: in the page, because a page ends at a multiple of its size.
        let word = unsafe { self.word(at.offset()) };
        word.store(u64::from(rest) << 8 | state::PADDING, Relaxed);
        let end = Position::new(at.sequence(), at.offset() + rest).0;
        writing.reserved.store(end, Relaxed);
        // Release as in `finish`.
        writing.committed.store(end, Release);
    }

    /// Moves `committed` on from `last` to `reserved`, unless a nested writer has moved it.
    #[cold]
    #[inline(never)]
    fn publish(self, mut last: u64) {
        let writing = &self.header().writing;
        loop {
            let reserved = writing.reserved.load(Relaxed);
            // If `committed` is not `last`, a nested writer began there after it was stored, and
            // that writer publishes all that it sees, as we do. Release as in `finish`.
            if reserved == last
                || writing
                    .committed
                    .local_compare_exchange(last, reserved, Release)
                    .is_err()
            {
                return;
            }
            last = reserved;
        }
    }

    /// Goes on to the next page, because the record does not fit after `at`. Returns whether the
    /// caller is to try again; if not, the record is dropped and counted.
    ///
    /// Nested writers may do all of it meanwhile. Each step either does nothing then, or what they
    /// have done already.
    fn open_page(self, at: Position) -> bool {
        let header = self.header();
        let writing = &header.writing;
        let data_bytes = self.data_bytes();
        let page = next_page(at.offset(), data_bytes);
        let committed = Position(writing.committed.load(Relaxed));
        if committed != at && committed.page() == page {
            interrupt_fence();
            if writing.reserved.load(Relaxed) != at.0 {
                // A nested writer has moved both.
                return true;
            }
            writing.nested.local_add(1);
            return false;
        }
        // The position where the page's records are over, as the start of the page after it.
        let behind = next_page(page.wrapping_add(PAGE_BYTES as u32), data_bytes);
        let over_at = behind.wrapping_add(PAGE_HEADER_BYTES as u32);
        loop {
            // Acquire pairs with the Release of the consuming reader: it has read what it passed.
            let oldest = Position(header.shared.oldest.load(Acquire));
            if oldest.page() != page {
                break;
            }
            let over = if behind == page {
                Position::new(at.sequence(), over_at)
            } else {
                // SAFETY: a page's offset.
                let first = unsafe { &self.page_header(behind).first_sequence };
                Position::new(first.load(Relaxed) as u32, over_at)
            };
            interrupt_fence();
            if writing.reserved.load(Relaxed) != at.0 {
                // The page may have been opened, and `over` may be wrong.
                return true;
            }
            let unread = over.records_since(oldest);
            if unread != 0 && writing.mode.load(Relaxed) == mode::STOP {
                writing.full.local_add(1);
                return false;
            }
            let discarded = self.discarded_on_page(oldest, unread);
            // Before the exchange: so a reader never counts them as overwritten.
            if discarded != 0 {
                writing.discarded_overwritten.local_add(discarded);
            }
            // Release: a reader that goes on from here sees the page's header.
            if header
                .shared
                .oldest
                .compare_exchange(oldest.0, over.0, AcqRel)
                .is_ok()
            {
                break;
            }
            if discarded != 0 {
                writing
                    .discarded_overwritten
                    .local_add(discarded.wrapping_neg());
            }
        }
        // Pairs with the fences of readers after they have copied: if they copied a byte that is
        // stored from now on, they see that `oldest` has moved.
        fence(Release);
        let start = Position::new(at.sequence(), page.wrapping_add(PAGE_HEADER_BYTES as u32));
        if writing
            .reserved
            .local_compare_exchange(at.0, start.0, Relaxed)
            .is_err()
        {
            return true;
        }
        // The rest of the old page is ours now (RING-2). With one page, it is not: it is part of
        // the new page.
        let rest = at.offset() & (PAGE_BYTES as u32 - 1);
        if rest != 0 && behind != page {
            let bytes = (PAGE_BYTES as u64).wrapping_sub(u64::from(rest));
            // SAFETY: in the page, because a page ends at a multiple of its size.
            let word = unsafe { self.word(at.offset()) };
            word.store(bytes << 8 | state::PADDING, Relaxed);
        }
        let first_sequence = self.whole_sequence(at);
        // SAFETY: a page's offset.
        let opened = unsafe { self.page_header(page) };
        opened.first_sequence.store(first_sequence, Relaxed);
        opened.dropped.store(self.dropped(), Relaxed);
        interrupt_fence();
        // Only if no earlier record is busy: else its writer does it.
        self.publish(at.0);
        true
    }

    /// Records that were dropped because there was no room for them.
    pub(super) fn dropped(self) -> u64 {
        let writing = &self.header().writing;
        let lost = writing.full.load(Relaxed);
        let lost = lost.wrapping_add(writing.nested.load(Relaxed));
        lost.wrapping_add(writing.too_long.load(Relaxed))
    }

    /// How many of the `records` records from `from` on, all on one page, are discarded. It is
    /// about to be overwritten.
    fn discarded_on_page(self, from: Position, records: u32) -> u64 {
        if self.header().writing.discarded.load(Relaxed) == 0 {
            return 0;
        }
        let end = from.page().wrapping_add(PAGE_BYTES as u32);
        let mut offset = from.offset();
        let mut discarded = 0u64;
        let mut left = records;
        while left != 0 && offset < end {
            // SAFETY: in the page, at a multiple of 8. If nested writers have overwritten it
            // meanwhile, this may be no header; then the exchange that follows fails.
            let word = unsafe { self.word(offset) }.load(Relaxed);
            discarded = discarded.wrapping_add(u64::from(word & 0xff == state::DISCARDED));
            let bytes = (word >> 8) as usize & 0xff_ffff;
            offset = offset.wrapping_add(record_bytes(bytes));
            left = left.wrapping_sub(1);
        }
        discarded
    }
}
