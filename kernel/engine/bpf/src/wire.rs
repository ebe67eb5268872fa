//! The wire form of programs: 8 bytes an instruction, as in BPF objects (RFC 9669, section 3).
//!
//! ```text
//!   byte  0        1                  2 3       4 5 6 7
//!         opcode   src << 4 | dst     offset    imm           a slot, little-endian
//! ```
//!
//! A load of a 64-bit constant takes two slots; the second one holds the upper half. Jumps count
//! slots, from the one after the jump. A map is loaded by its index: source 1, which stands for a
//! file descriptor elsewhere.
//!
//! ENCODING-1. [`decode`](fn@decode) of what [`encode`](fn@encode) gives is what was encoded.
//! ENCODING-2. [`decode`](fn@decode) takes no slot in which a field that means nothing is not zero.
//!     So a program of another dialect is refused and not misunderstood.
//!
//! Calls of the program's own functions, calls through a register, and the old loads of packets
//! are refused: there is nothing that they could mean here.
//!
//! `codes.rs` has the opcodes and the fields of a slot, as one table for both ways.

mod codes;
mod decode;
mod encode;
mod error;

pub use decode::decode;
pub use encode::encode;
pub use error::{WireError, WireReason};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 8;
