#![doc = include_str!("../README.md")]
//! The ring of trace records of one CPU.
//!
//! The CPU writes records of any length up to [`layout::MAX_PAYLOAD`], and a task on any CPU reads
//! them. The memory belongs to the caller and lasts as long as the ring; nothing here allocates.
//! The memory itself says how it is laid out, so a program outside the machine can follow it
//! ([`image`]).
//!
//! ```text
//!   0     64      128     192                       4096          8192
//!   +-----+-------+-------+-------+---------------+-------------+-------------+---
//!   | de- | wri-  |shared |reading|  0            | data page 0 | data page 1 | ...
//!   |scrip| ting  |       |       |               |             |             |
//!   |tion |       |       |       |               |             |             |
//!   +-----+-------+-------+-------+---------------+-------------+-------------+---
//!
//!   data page:  | first sequence 8 | dropped 8 | record | record | ... | padding |
//!   record:     | state 1, bytes 3, sequence 4 | tsc 8 | payload, to a multiple of 8 |
//!   position:   sequence << 32 | offset in the data pages
//!
//!                     cleared and read      unread         being written
//!   records in order: ----------------> | ------------> | ---------------> |
//!                                     oldest        committed           reserved
//! ```
//!
//! All words are little-endian and 8 bytes long. The structures are in [`layout`].
//!
//! # Theory
//! A record is reserved by moving `reserved` on with one instruction. An interrupt or an NMI may
//! come at any instruction and write records of its own. It is over before the interrupted writer
//! goes on, so the records that are being written at any time were begun one on top of the other.
//! The one that interrupted no other moves `committed` to `reserved` when it is over, and so
//! publishes all of them.
//!
//! Pages are filled in turn, and a record does not cross the end of a page. So a writer looks at
//! `oldest` only when it goes on to another page. There it takes away all of the page at once: it
//! moves `oldest` to the page after it (overwrite mode), or drops its record (stop mode). A record
//! whose sequence number is not below that of `oldest` is intact. A reader copies first and then
//! looks at `oldest`.
//!
//! Sequence numbers count reservations. Each number is below `oldest`, where it was read, cleared,
//! discarded or overwritten, or it is in the ring. So the overwritten ones need no counter: they
//! are those that are in none of the other counts.
//!
//! # Invariants
//! - WRITER-1. Only the ring's own CPU changes `reserved` and `committed`, with local operations
//!   ([`word`]) or stores.
//! - WRITER-2. `committed` changes only from a position where a record begins that is being ended,
//!   or where a page is left; and then by the one writer that knows it is there. While it is the
//!   start of a record being written, no other writer moves it, because nested records begin
//!   elsewhere.
//! - WRITER-3. All records before `committed` are complete.
//! - RING-1. `oldest` only moves on, by exchanges: the consuming reader's and the writer's.
//! - RING-2. A writer owns the bytes between the positions that its exchange of `reserved` had,
//!   until its record is over.
//! - RING-3. A page is reused only if `oldest` is not on it, and `committed` is not, unless nothing
//!   is being written. So neither unread records nor busy ones are overwritten.
//!
//! # Contexts and ordering
//! Write side: the ring's own CPU, in tasks with preemption off, interrupts and NMIs. It neither
//! locks nor waits nor panics. An exchange fails only if a nested writer or the consumer was
//! faster. Reading: any task on any CPU; one consumer at a time, by a lock of the caller.
//! - `committed`: Release by the writer, Acquire by readers: they see the records before it, and
//!   the headers of their pages.
//! - `oldest`: Release by the consumer after its loads from the page, Acquire by the writer that
//!   reuses it. The writer has a Release fence between its exchange and its first store to the
//!   page; readers have an Acquire fence between their copy and their look at `oldest`.
//! - payloads: plain stores by compiled code, ordered by `committed`. Readers load whole words and
//!   throw away what may have been torn.
//!
//! # No room
//! A record is dropped if it is too long, if the ring is full in stop mode, or if the only page to
//! go on to holds a record that the writer has interrupted. Each reason has a count. In overwrite
//! mode a page of unread records is lost at once. [`Event::Lost`] tells a reader of both at the
//! place where it happened: drops at the first page that was begun after them.
//!
//! # Two rings
//! A CPU may have a second ring, with which the first one is exchanged at any time: [`spare`].
//!
//! # A kernel that dies
//! What is in its rings may be sent page by page: [`rescue`].
#![no_std]

#[cfg(test)]
extern crate std;

pub mod entry;
mod error;
pub mod image;
pub mod layout;
pub mod limits;
mod merge;
mod read;
pub mod rescue;
mod ring;
pub mod spare;
pub mod word;

#[cfg(test)]
mod tests;

pub use error::{Damaged, InitError};
pub use merge::Merge;
pub use read::{Consumer, Cursor, Event, Record, Source, Stats};
pub use ring::{Mode, Ring};
