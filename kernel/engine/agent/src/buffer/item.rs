//! What a reader of the trace buffer meets: a record, or a gap.
//!
//! A record in a ring has a prefix that says how much of its room the program has used. An item is
//! the used part alone.

use alloc::vec::Vec;

use fallible::{OutOfMemory, try_vec};
use trace_ring::{Event, layout};

use crate::records::{PREFIX_BYTES, Prefix};

/// A thing that a reader meets.
pub enum Item<'a> {
    /// A record of an event, without its prefix.
    Record {
        cpu: usize,
        tsc: u64,
        bytes: &'a [u8],
    },
    /// So many records of the CPU are lost before the next one.
    Lost { cpu: usize, count: u64 },
}

/// Room for an item that was taken out of the rings and must wait for memory. It has its own.
pub struct Waiting {
    cpu: usize,
    what: What,
    /// The bytes of a record. There is room for the longest.
    bytes: Vec<u8>,
}

enum What {
    Nothing,
    /// The time of a record.
    Record(u64),
    Lost(u64),
}

impl Waiting {
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_new() -> Result<Self, OutOfMemory> {
        Ok(Self {
            cpu: 0,
            what: What::Nothing,
            bytes: try_vec(layout::MAX_PAYLOAD)?,
        })
    }

    /// Has an item wait, in place of any other. Takes no memory.
    pub fn put(&mut self, item: &Item<'_>) {
        self.bytes.clear();
        (self.cpu, self.what) = match *item {
            Item::Record { cpu, tsc, bytes } => {
                self.bytes.extend_from_slice(bytes);
                (cpu, What::Record(tsc))
            }
            Item::Lost { cpu, count } => (cpu, What::Lost(count)),
        };
    }

    /// The item that waits.
    pub fn item(&self) -> Option<Item<'_>> {
        let cpu = self.cpu;
        match self.what {
            What::Nothing => None,
            What::Record(tsc) => Some(Item::Record {
                cpu,
                tsc,
                bytes: &self.bytes,
            }),
            What::Lost(count) => Some(Item::Lost { cpu, count }),
        }
    }

    /// It waits no more.
    pub fn clear(&mut self) {
        self.what = What::Nothing;
    }
}

/// Cuts a payload to the bytes that its program has used.
fn used(payload: &[u8]) -> &[u8] {
    let (prefix, record) = payload.split_at_checked(PREFIX_BYTES).unwrap_or_default();
    let used = prefix
        .first_chunk::<4>()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes));
    const { assert!(core::mem::offset_of!(Prefix, used) == 0) };
    record.get(..used as usize).unwrap_or(record)
}

/// The item that `event` of a CPU is, with its payload.
pub(super) fn item<'a>(cpu: usize, event: &Event, payload: &'a [u8]) -> Item<'a> {
    match event {
        Event::Lost(count) => Item::Lost { cpu, count: *count },
        Event::Record(record) => {
            let len = record.bytes.min(payload.len());
            Item::Record {
                cpu,
                tsc: record.tsc,
                bytes: used(&payload[..len]),
            }
        }
    }
}
