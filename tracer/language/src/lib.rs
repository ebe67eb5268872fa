//! The tracer's language: bpftrace's, with Rust's names and values.
//!
//! ```text
//! kprobe:kernel::fs::vfs::vfs_write /pid == 3/ { @bytes[comm] = sum(args.buffer.len); }
//! session:vfs_read { $at = nsecs; } return { @[func] = hist(nsecs - $at); }
//! ```
//!
//! [`parse`] makes a [`tree::Tree`] of a text, or reports all that is wrong with it: where, why
//! and the next step.
//!
//! LANGUAGE-1. No text makes it panic, and none makes it recurse deeper than [`MAX_DEPTH`].
//!
//! # Contexts
//! The crate is for tasks that may sleep, and for the host.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod depth;
pub mod diagnostic;
mod directives;
mod lexer;
mod macros;
mod parser;
mod parts;
mod print;
pub mod tree;

/// The words that are always there. What they mean, only the compiler knows.
pub const WORDS: [&str; 20] = [
    "pid",
    "tid",
    "comm",
    "cpu",
    "nsecs",
    "elapsed",
    "func",
    "probe",
    "kstack",
    "ustack",
    "retval",
    "args",
    "arg0",
    "arg1",
    "arg2",
    "caller",
    "ip",
    "ncpus",
    "rand",
    "probetype",
];

pub use depth::{BYTES_OF_LEVEL, MAX_DEPTH, no_room};
pub use diagnostic::Diagnostic;
pub use parser::{parse, parse_expression, parse_with, parse_with_room};
