//! The line of a prompt: read from a terminal with editing and history, and taken apart into words.
//!
//! ```text
//!   bytes of a terminal ─► keys ─► editline ─► LineReader::read ─► line ─► syntax::parse ─► words, file for the output
//! ```
//!
//! The editor is the crate `editline`; what a terminal sends for a key is decoded here. Lines are ASCII: a
//! line for which something else was typed is refused.
//!
//! Task context: reading waits. Nothing here knows a kernel, so it is tested on the host.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod keys;
mod reader;
pub mod syntax;

pub use reader::{LineReader, Port, ReadError};
