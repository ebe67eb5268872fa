//! A ring that is copied page by page, the newest one first, and made a ring's image again from as
//! many pages as have come.
//!
//! ```text
//!   Ring::page_back(0), (1), … ─► pages, each copied by Ring::copy_bytes
//!                                       │ the line ends early
//!                                       ▼
//!   keep_pages: the oldest record is now the first one on the oldest page that is there
//! ```
//!
//! # Contexts
//! The ring's side: any, if nothing is written to the ring meanwhile. It neither locks nor
//! allocates, and reads nothing outside of the ring, whatever its positions say.

use core::{mem::offset_of, sync::atomic::Ordering::Relaxed};

use super::{
    image::{Image, ImageError},
    layout::{HEADER_BYTES, Header, PAGE_HEADER_BYTES, Position, Shared, Writing},
    limits::PAGE_BYTES,
    ring::Ring,
};

const PAGE: u32 = PAGE_BYTES as u32;

/// The page so many pages in front of that of `committed`, as an offset in the data pages. None: it
/// is in front of that of `oldest`, or there are no records.
fn page_back(committed: Position, oldest: Position, data_bytes: u32, back: usize) -> Option<u32> {
    let pages = (data_bytes / PAGE).max(1);
    let number = |position: Position| position.page() / PAGE % pages;
    let (newest, first) = (number(committed), number(oldest));
    let between = (newest + pages - first) % pages;
    let back = u32::try_from(back).ok().filter(|back| *back <= between)?;
    let is_empty = committed.records_since(oldest) == 0;
    (!is_empty).then(|| (newest + pages - back) % pages * PAGE)
}

impl Ring<'_> {
    /// Bytes of its memory.
    pub fn memory_bytes(self) -> usize {
        HEADER_BYTES + self.data_bytes() as usize
    }

    /// Where the data page begins in its memory that is so many pages in front of the newest one.
    /// None: no record that is there was written so long ago.
    pub fn page_back(self, back: usize) -> Option<usize> {
        let header = self.header();
        let committed = Position(header.writing.committed.load(Relaxed));
        let oldest = Position(header.shared.oldest.load(Relaxed));
        let page = page_back(committed, oldest, self.data_bytes(), back)?;
        Some(HEADER_BYTES + page as usize)
    }

    /// Copies its memory from `at` on, which is a multiple of 8. What is not in its memory is 0.
    pub fn copy_bytes(self, at: usize, to: &mut [u8]) {
        let bytes = self.memory_bytes();
        for (index, word) in to.chunks_mut(8).enumerate() {
            let at = at + 8 * index;
            let found = match at.is_multiple_of(8) && at + 8 <= bytes {
                // SAFETY: an aligned word of the memory, all of which is words (1 of `init`).
                true => unsafe { self.memory_word(at) }.load(Relaxed),
                false => 0,
            };
            word.copy_from_slice(&found.to_le_bytes()[..word.len()]);
        }
    }
}

/// Makes a copy of a ring's memory one that has only the newest pages: those from the newest one on
/// backwards that `has` has, by where they begin in the memory. Returns how many records are on the
/// others.
///
/// # Errors
/// [`ImageError`]: it is no copy of a ring.
pub fn keep_pages(bytes: &mut [u8], has: impl Fn(usize) -> bool) -> Result<u64, ImageError> {
    // That checks the positions, too.
    Image::still(bytes)?;
    let word = |at: usize| {
        let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
        u64::from_le_bytes(*found.unwrap_or(&[0; 8]))
    };
    let place = offset_of!(Header, shared) + offset_of!(Shared, oldest);
    let oldest = Position(word(place));
    let committed = offset_of!(Header, writing) + offset_of!(Writing, committed);
    let committed = Position(word(committed));
    let data_bytes = (bytes.len() - HEADER_BYTES) as u32;
    let pages = (0..).map_while(|back| page_back(committed, oldest, data_bytes, back));
    let mut first = committed;
    for page in pages {
        let start = HEADER_BYTES + page as usize;
        if !has(start) {
            let cut = first.records_since(oldest);
            bytes[place..place + 8].copy_from_slice(&first.0.to_le_bytes());
            return Ok(cut.into());
        }
        first = Position::new(word(start) as u32, page + PAGE_HEADER_BYTES as u32);
    }
    Ok(0)
}
