#![doc = include_str!("../README.md")]
//! Programs of compiled actions: instructions of BPF, with the maps and helpers that they use.
//!
//! A program says what a probe does at a hit: count, sum, record. The instruction set is that of
//! BPF (RFC 9669, 64-bit and 32-bit arithmetic, jumps, loads, stores, atomics), because it has
//! public test vectors, verifiers and tools to compare with. Its wire form is [`wire`]; everything
//! else here works on the decoded [`Insn`], in which a wrong operand cannot be written down.
//!
//! ```text
//!   Builder ──┐
//!             ├─► Program { context, insns, maps } ─► verifier ─► compiler ─► machine code
//!   wire ─────┘
//! ```
//!
//! # The view of a program
//! - `r1` is the context when the program begins: the registers at the probe, read-only, laid out
//!   as [`context`] says. `r10` points to the end of its stack of [`STACK_BYTES`].
//! - Memory: its stack, values of its maps, the records that it has reserved, and the data that the
//!   entry and the return of one call share ([`Helper::EntryData`]). It may write these only.
//! - A load through any other number is a load of kernel memory. It gives zero, and is counted, if
//!   nothing is mapped there or if the address is not the kernel's. No helper call is needed.
//! - Helpers ([`Helper`]) are what the kernel does for it.
//!
//! # Contexts
//! Building and checking a program takes memory and runs in task context only. Nothing here runs at
//! a hit.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod arithmetic;
mod builder;
pub mod context;
mod helper;
mod insn;
mod map;
mod program;
mod text;
mod verified;
pub mod verifier;
pub mod wire;

pub use arithmetic::sign_extend;
pub use builder::{BuildError, Builder, Label};
pub use helper::{
    Argument, Helper, MOST_CHECKED, Returns, USE_CHANGED, USE_READ, USER_STACK, errno,
};
pub use insn::{
    AluOp, AtomicOp, Condition, Insn, MapIndex, Operand, Reg, Size, Swap, Target, Width,
};
pub use map::{MapDef, MapError, MapKind};
pub use program::{Program, ProgramKind};
pub use verified::{Cost, Fact, Memory, Verified};

/// Bytes of a program's stack, below `r10`.
pub const STACK_BYTES: usize = 2048;
/// The most instructions of a program.
pub const MOST_INSNS: usize = 4096;
/// The most maps of a program.
pub const MOST_MAPS: usize = 16;
/// The most bytes of a record, its common header included.
pub const MOST_RECORD_BYTES: u32 = 3072;
/// The most bytes that the entry and the return of one call share.
pub const MOST_ENTRY_BYTES: u32 = 256;
