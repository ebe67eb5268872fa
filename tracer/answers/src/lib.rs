//! The reading side of the tracer: bytes of a kernel to values, values to text.
//!
//! ```text
//!   trace_compiler ── View: what records and maps hold ──┐
//!                                                        ├─ Presentation ─► text, values
//!   kernel ────────── Frame: records, maps, stacks ──────┘   decode, map, format, series …
//! ```
//!
//! # Invariants
//! ANSWERS-1. The reader needs the [`View`](trace_interface::view::View) only, neither the tree nor
//!     the debug information.
//!
//! # Contexts
//! Tasks that may sleep, and the host. Nothing here runs at a hit.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod decode;
mod format;
mod histogram;
mod map;
mod presentation;
mod series;
mod time;
mod value;
mod visible;

pub use histogram::Bucket;
pub use map::Key;
pub use presentation::{Event, Presentation, PrintedBy, Recorded, Totals};
pub use series::Interval;
pub use value::{NamedValue, NoSymbols, Symbol, Symbolize, UserStack, Value};
