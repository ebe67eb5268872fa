//! The line of a prompt: read from a terminal with editing and history, and divided into words.
//!
//! ```text
//!   bytes of a terminal ─► keys ─► editline ─► LineReader::read ─► line
//!
//!   line ─► syntax::parse ─► words, file for the output
//! ```
//!
//! The editor is the crate `editline`. The keys of a terminal are decoded here. Lines are ASCII: a
//! line with another character is refused.
//!
//! Task context, because reading waits. Nothing here knows a kernel, so it is tested on the host.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod keys;
mod reader;
pub mod syntax;

pub use reader::{LineReader, Port, ReadError};
