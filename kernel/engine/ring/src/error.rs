//! The refusals and failures of rings.

use core::fmt;

use super::{layout::HEADER_BYTES, layout::MAX_PAGES};

/// Why there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitError {
    /// Not one page.
    NoPages,
    /// More than [`MAX_PAGES`].
    TooManyPages {
        /// How many.
        pages: usize,
    },
    /// The memory does not begin at a page.
    Misaligned {
        /// Its address.
        address: usize,
    },
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoPages => f.write_str("a ring of 0 data pages; it needs 1 or more"),
            Self::TooManyPages { pages } => write!(
                f,
                "a ring of {pages} data pages; it has {MAX_PAGES} at the most, so ask for fewer"
            ),
            Self::Misaligned { address } => write!(
                f,
                "the ring's memory begins at {address:#x}; it must begin at a multiple of \
                 {HEADER_BYTES}"
            ),
        }
    }
}

impl core::error::Error for InitError {}

/// The ring holds something that its writers do not write: other code has stored to its memory.
/// [`Ring::reset`](super::Ring::reset) makes it usable again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Where in the data pages a record was expected.
    pub offset: u32,
    /// Its sequence number.
    pub sequence: u64,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "record {} was expected at offset {:#x} of the ring's pages, and something else is \
             there; clear the ring to go on",
            self.sequence, self.offset
        )
    }
}

impl core::error::Error for Damaged {}
