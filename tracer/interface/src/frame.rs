//! The answers of the kernel: a stream of frames, in the order of time.

use alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::script::Malformed;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame {
    /// Everything is attached. This is the first frame of an accepted script.
    Started {
        /// Ticks of the time stamp counter in a second.
        tsc_hz: u64,
        /// The counter at this moment, and the time of day then, in nanoseconds since 1970.
        tsc: u64,
        epoch_nanoseconds: u64,
        cpus: u32,
        /// How many places each attachment has, in their order.
        places: Vec<u32>,
    },
    /// The script cannot be loaded or attached. This is the only frame then.
    Refused {
        /// The index of the program, if one is the cause.
        program: Option<u32>,
        text: String,
    },
    /// A record that a program submitted.
    Record {
        cpu: u32,
        tsc: u64,
        /// The record from its common header on, see SCRIPT-2 in [`crate::script`].
        bytes: Vec<u8>,
    },
    /// A map as it is at this point of the stream.
    Map { map: u32, entries: Vec<MapEntry> },
    /// Call stacks that entries and records name by their number: innermost address first.
    Stack {
        map: u32,
        number: u64,
        addresses: Vec<u64>,
    },
    /// The name of a task, in front of the first record that has its number.
    Comm { tid: u32, name: String },
    /// Everything is detached, and what has been lost is known. This is the last frame.
    Ended {
        /// The status from the program that asked for the end ([`crate::script::Request::Exit`]);
        /// else 0.
        status: i32,
        /// The books of each attachment, in their order.
        books: Vec<Books>,
        /// Hits of the tracer's own tasks, where it is kept out. They are not in the books.
        kept_out: u64,
        /// Records and values that had no room, by reason, for example
        /// `"ring: no room in front of unread records"`. Reasons with 0 are left out.
        lost: Vec<(String, u64)>,
        /// Loads of kernel memory that gave zero because nothing was there.
        bad_loads: u64,
    },
}

/// A key and a value of a map. Maps with a table for each CPU have an entry for each of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapEntry {
    pub cpu: u32,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// The books of an attachment: what became of its hits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// The program ran, or the hit was missed.
    pub hits: u64,
    /// Hits in which the program did not run: the CPU was in another probe's handlers, or too many
    /// calls of the function were under way.
    pub missed: u64,
}

impl Frame {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        // Only a buffer of a fixed size can be too short.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The frame of those bytes.
    ///
    /// # Errors
    /// The bytes are no frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        postcard::from_bytes(bytes).map_err(|_| Malformed)
    }
}
