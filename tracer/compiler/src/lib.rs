//! The tracer's compiler: from the tree of a text to programs.
//!
//! ```text
//!   trace_language::tree::Tree ────┐
//!                                  ├─ compile ─► Compiled { script, view }
//!   trace_interface::Kernel ───────┘                          │       │
//!                                              kernel: runs it       trace_answers: reads by it
//! ```
//!
//! # Invariants
//! TRANSLATE-1. A program that [`compile()`] gives is one that [`bpf::verifier`] takes: each one is
//!     verified here. One that is refused is a [`Diagnostic`](trace_language::Diagnostic).
//! TRANSLATE-2. A value that the debug information does not give is refused with the reason. None
//!     is guessed.
//!
//! # Contexts
//! Tasks that may sleep, and the host. Nothing here runs at a hit.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod asm;
mod compile;
mod format;
mod functions;
mod memory;
mod names;
mod number;
mod object;
mod options;
mod places;
mod program;
mod settings;
mod sources;
mod tables;
mod types;
mod values;
mod watches;

pub use compile::{Compiled, Origin, compile};
pub use functions::{FUNCTIONS, Function, Role};
pub use options::{Missing, Options};
pub use sources::{EventTable, NoEvent};

/// A part of the compiled text, or the reason why there is none.
type Lowered<T> = Result<T, trace_language::Diagnostic>;

#[cfg(test)]
mod tests;
