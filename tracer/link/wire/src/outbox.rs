//! A stream of bytes through memory that two machines share: one writes, the other one reads.
//!
//! ```text
//!   words     MAGIC │ CAPACITY │ … │ WRITTEN │ … │ READ │ … │ FED │ … │ MAPS │ …
//!             the first 4096 bytes
//!   data      as many bytes as the capacity; byte n of the stream is at n % capacity
//! ```
//!
//! # Invariants
//! OUTBOX-1. `READ <= WRITTEN <= READ + CAPACITY`. The writer alone raises WRITTEN, behind the
//!     bytes (Release), and the reader alone raises READ, behind its copy of them. So no byte is
//!     read before it is there, or written over before it was read.
//! OUTBOX-2. While MAPS is 1, the places of maps that were told ([`crate::MemoryPlace::Map`]) have them.
//!     The writer sets it to 0 before it gives their memory back. A reader looks before and after
//!     it has read: only if it found 1 both times, it has read maps.

/// Where each word is, in bytes. Those that different sides write are in different cache lines.
pub const MAGIC: usize = 0;
/// Bytes of data.
pub const CAPACITY: usize = 8;
/// How many bytes of the stream have been written.
pub const WRITTEN: usize = 64;
/// How many have been read.
pub const READ: usize = 128;
/// Counts up as long as each CPU gets on, if there is a watchdog.
pub const FED: usize = 192;
/// Whether maps can be read (OUTBOX-2).
pub const MAPS: usize = 256;

/// Where the data begins.
pub const HEADER_BYTES: usize = 4096;
/// The word at [`MAGIC`].
pub const MAGIC_WORD: u64 = u64::from_le_bytes(*b"outbox 1");
