//! The tracer's compiler: from the tree of a text to programs, and from their answers to text.
//!
//! ```text
//!   trace_language::tree::Script ─┐
//!                                 ├─ compile ─► Compiled { script, presentation }
//!   trace_interface::Kernel ──────────┘                │            │
//!                                      kernel: runs it         shows each Frame as text and data
//! ```
//!
//! # Invariants
//! TRANSLATE-1. A program that [`compile()`] gives is one that [`bpf::verifier`] takes: each one is
//!     verified here. One that is refused is a [`Diagnostic`](trace_language::Diagnostic).
//! TRANSLATE-2. A value that the debug information does not give is refused with the reason. Nobody
//!     guesses one.
//! TRANSLATE-3. The reader needs the [`Presentation`] only, neither the tree nor the debug
//!     information.
//!
//! # Contexts
//! Tasks that may sleep, and the host. Nothing here runs at a hit.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod asm;
mod compile;
mod format;
mod histogram;
mod number;
mod presentation;
mod shape;
mod time;
mod value;

pub use compile::{Compiled, Options, Origin, compile, events};
pub use histogram::Bucket;
pub use presentation::{Event, Key, Presentation, Recorded, Totals};
pub use value::{NamedValue, NoSymbols, Symbol, Symbolize, UserStack, Value};

#[cfg(test)]
mod tests;
