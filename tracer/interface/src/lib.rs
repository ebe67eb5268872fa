//! The nouns that the parts of the tracer share.
//!
//! ```text
//!   text ─ trace_language ─► tree ─┐
//!                                  ├─ trace_compiler ─► Script ───► kernel: loads, attaches, runs
//!   debug information, symbols ────┘       │                         │
//!          [`Kernel`]                      └─► View ─ trace_answers ◄─ Frame ┘
//! ```
//!
//! - [`symbols`]: what a compiler asks about the traced kernel: its functions, the places and types
//!   of values. The debug information answers on the host, the symbol table at the prompt.
//! - [`script`]: a compiled text, as the kernel takes it.
//! - [`frame`]: what the kernel answers.
//! - [`codes`]: the names of errors, signals and system calls.
//! - [`shape`], [`view`]: how values are stored in answers, and how these are read.
//!
//! # Contexts
//! The crate is for tasks that may sleep, and for the host. Nothing here runs at a hit.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod codes;
pub mod frame;
pub mod script;
pub mod shape;
pub mod symbols;
pub mod view;

pub use frame::Frame;
pub use script::Script;
pub use symbols::Kernel;
