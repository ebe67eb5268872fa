//! The line of a prompt: read from a terminal with editing and history, and divided into words.
//!
//! ```text
//!   bytes of a terminal ─► keys ─► LineReader ─► line
//!                                    └─ Tab ─► complete ─► WordPlace ─► Candidates
//!
//!   line ─► syntax::parse ─► words, file for the output
//! ```
//!
//! The line that is edited and the history are those of the crate `editline`. The keys of a
//! terminal are decoded here. Lines are ASCII: a line with another character is refused.
//!
//! The reader runs in task context, because reading waits. Nothing here knows a kernel, so it is
//! tested on the host.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod complete;
mod keys;
mod reader;
pub mod syntax;

pub use complete::{Candidates, End, WordPlace};
pub use reader::{LineReader, Port, ReadError};
