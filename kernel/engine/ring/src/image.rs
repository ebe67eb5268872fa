//! The ring as a program outside the machine sees it: bytes that were copied, without a stop of the
//! machine.
//!
//! The copy is made in three steps: the header, the data pages, and the header again. A record that
//! was complete at the first copy of the header and not overwritten at the second one is whole in
//! the copy of the pages. For a machine that stands still, one copy of everything is enough
//! ([`Image::still`]).

use core::{fmt, mem::offset_of};

use super::{
    error::Damaged,
    layout::{
        Description, HEADER_BYTES, Header, MAGIC, PAGE_HEADER_BYTES, Position, RECORD_HEADER_BYTES,
        Shared, VERSION, Writing, next_page, record_bytes, state,
    },
    limits::PAGE_BYTES,
};

/// Why bytes are no image of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// A header is shorter than [`HEADER_BYTES`].
    Short {
        /// Its length.
        bytes: usize,
    },
    /// Another magic number: no ring, or one that is not initialised yet.
    NoRing {
        /// The word that is there.
        magic: u64,
    },
    /// A version, or a size that belongs to it, that this reader does not know.
    OtherLayout {
        /// The version.
        version: u64,
    },
    /// The data pages have another length than the header says.
    Length {
        /// The header's number.
        expected: u64,
        /// Their length.
        found: usize,
    },
    /// A position outside of the data pages: the header is damaged.
    Position {
        /// The position.
        position: u64,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { bytes } => write!(
                f,
                "the header of a ring has {HEADER_BYTES} bytes, and here are {bytes}; copy all"
            ),
            Self::NoRing { magic } => write!(
                f,
                "a ring begins with {MAGIC:#x}, and here is {magic:#x}; is the address right?"
            ),
            Self::OtherLayout { version } => write!(
                f,
                "the ring has version {version} of the layout or other sizes, and this program \
                 knows version {VERSION}; use the one that was built with the kernel"
            ),
            Self::Length { expected, found } => write!(
                f,
                "the ring has {expected} bytes of data pages, and here are {found}; copy all"
            ),
            Self::Position { position } => write!(
                f,
                "the ring's header has the position {position:#x}, outside of its pages; it was \
                 overwritten by something else"
            ),
        }
    }
}

impl core::error::Error for ImageError {}

/// A copied ring.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    data: &'a [u8],
    first_sequence: u64,
    /// The oldest position at the first copy of the header.
    oldest_before: Position,
    /// The oldest position at the second copy.
    oldest: Position,
    /// The committed position at the first copy.
    committed: Position,
}

/// A record in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRecord<'a> {
    /// The time stamp counter at its reservation.
    pub tsc: u64,
    /// Its number among all reservations of the ring.
    pub sequence: u64,
    /// The payload.
    pub payload: &'a [u8],
}

fn word(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

impl<'a> Image<'a> {
    /// Makes an image from copies that were made in this order: the first [`HEADER_BYTES`] bytes,
    /// the data pages after them, and the first [`HEADER_BYTES`] bytes again.
    pub fn new(before: &[u8], data: &'a [u8], after: &[u8]) -> Result<Self, ImageError> {
        let bytes = before.len().min(after.len());
        if bytes < HEADER_BYTES {
            return Err(ImageError::Short { bytes });
        }
        let read = |header: &[u8], offset| word(header, offset).unwrap_or(0);
        let described = |offset| read(before, offset_of!(Header, description) + offset);
        let magic = described(offset_of!(Description, magic));
        if magic != MAGIC {
            return Err(ImageError::NoRing { magic });
        }
        let version = described(offset_of!(Description, version));
        let sizes = [
            described(offset_of!(Description, header_bytes)),
            described(offset_of!(Description, page_bytes)),
            described(offset_of!(Description, page_header_bytes)),
            described(offset_of!(Description, record_header_bytes)),
        ];
        let known = [
            HEADER_BYTES,
            PAGE_BYTES,
            PAGE_HEADER_BYTES,
            RECORD_HEADER_BYTES,
        ];
        if version != VERSION || sizes != known.map(|bytes| bytes as u64) {
            return Err(ImageError::OtherLayout { version });
        }
        let expected = described(offset_of!(Description, data_bytes));
        if expected != data.len() as u64 || !data.len().is_multiple_of(PAGE_BYTES) {
            return Err(ImageError::Length {
                expected,
                found: data.len(),
            });
        }
        let position = |header: &[u8], offset| {
            let position = read(header, offset);
            let offset = Position(position).offset();
            if offset == 0 || u64::from(offset) > expected || !offset.is_multiple_of(8) {
                return Err(ImageError::Position { position });
            }
            Ok(Position(position))
        };
        let oldest = offset_of!(Header, shared) + offset_of!(Shared, oldest);
        let committed = offset_of!(Header, writing) + offset_of!(Writing, committed);
        Ok(Self {
            data,
            first_sequence: described(offset_of!(Description, first_sequence)),
            oldest_before: position(before, oldest)?,
            oldest: position(after, oldest)?,
            committed: position(before, committed)?,
        })
    }

    /// Makes an image from one copy of all the ring's memory. The ring was neither written to nor
    /// read from meanwhile.
    pub fn still(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let Some((header, data)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(ImageError::Short { bytes: bytes.len() });
        };
        Self::new(header, data, header)
    }

    /// How many records were unread at the first copy of the header, and gone at the second one:
    /// overwritten, or taken out by a reader in the machine.
    pub fn overtaken(&self) -> u32 {
        let gone = self.oldest.records_since(self.oldest_before);
        gone.min(self.committed.records_since(self.oldest_before))
    }

    /// The records, the oldest one first. They end with an error if the ring is damaged.
    pub fn records(&self) -> Records<'a> {
        let left = self.committed.records_since(self.oldest);
        Records {
            image: *self,
            at: self.oldest,
            // All of them were overtaken if the oldest one comes after the newest one.
            left: if (left as i32) < 0 { 0 } else { left },
        }
    }

    fn word(&self, offset: u32) -> u64 {
        word(self.data, offset as usize).unwrap_or(0)
    }

    fn first_on_page_behind(&self, offset: u32) -> u32 {
        next_page(offset, self.data.len() as u32) + PAGE_HEADER_BYTES as u32
    }

    /// The record at `position` and the position after it, unless it is discarded.
    fn record(&self, position: Position) -> Result<(Option<ImageRecord<'a>>, Position), Damaged> {
        let mut offset = position.offset();
        if offset.is_multiple_of(PAGE_BYTES as u32) || self.word(offset) & 0xff == state::PADDING {
            offset = self.first_on_page_behind(offset);
        }
        let at = Position::new(position.sequence(), offset);
        let near = match self.word(at.page()) {
            0 => self.first_sequence,
            near => near,
        };
        let sequence = at.whole_sequence(near);
        let damaged = Damaged { offset, sequence };
        let header = self.word(offset);
        let bytes = (header >> 8) as usize & 0xff_ffff;
        let start = offset as usize + RECORD_HEADER_BYTES;
        let room = PAGE_BYTES - offset as usize % PAGE_BYTES;
        let is_complete = matches!(header & 0xff, state::COMMITTED | state::DISCARDED);
        if !is_complete
            || (header >> 32) as u32 != at.sequence()
            || record_bytes(bytes) as usize > room
        {
            return Err(damaged);
        }
        let payload = self.data.get(start..start + bytes).ok_or(damaged)?;
        let record = ImageRecord {
            tsc: self.word(offset + 8),
            sequence,
            payload,
        };
        let is_shown = header & 0xff == state::COMMITTED;
        Ok((is_shown.then_some(record), at.after(record_bytes(bytes))))
    }
}

/// The records of an [`Image`].
pub struct Records<'a> {
    image: Image<'a>,
    at: Position,
    left: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<ImageRecord<'a>, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left != 0 {
            self.left -= 1;
            match self.image.record(self.at) {
                Ok((record, after)) => {
                    self.at = after;
                    if let Some(record) = record {
                        return Some(Ok(record));
                    }
                }
                Err(damaged) => {
                    self.left = 0;
                    return Some(Err(damaged));
                }
            }
        }
        None
    }
}
