//! The nouns that the parts of the tracer share.
//!
//! ```text
//!   text ─ trace_language ─► tree ─┐
//!                                  ├─ trace_compiler ─► Script ───► kernel: loads, attaches, runs
//!   debug information, symbols ────┘       │                         │
//!          [`Kernel`]                      └─► how to show it ◄ Frame ┘
//! ```
//!
//! - [`symbols`]: what a compiler asks about the traced kernel: its functions, the places and types
//!   of values. The debug information answers on the host, the symbol table at the prompt.
//! - [`script`]: a compiled text, as the kernel takes it.
//! - [`frame`]: what the kernel answers.
//!
//! # Contexts
//! The crate is for tasks that may sleep, and for the host. Nothing here runs at a hit.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod frame;
pub mod script;
pub mod symbols;

pub use frame::Frame;
pub use script::Script;
pub use symbols::Kernel;
