//! The tracer's language: bpftrace's, with Rust's names and values.
//!
//! ```text
//! kprobe:kernel::fs::vfs::vfs_write /pid == 3/ { @bytes[comm] = sum(args.buffer.len); }
//! session:vfs_read { $at = nsecs; } return { @[func] = hist(nsecs - $at); }
//! ```
//!
//! [`parse`] makes a [`tree::Script`] of a text, or tells all that is wrong with it: where, why and
//! the next step.
//!
//! LANGUAGE-1. No text makes it panic, and none makes it recurse deeper than [`MAX_DEPTH`].
//!
//! # Contexts
//! Tasks that may sleep, and the host.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod diagnostic;
pub mod tree;

pub use diagnostic::Diagnostic;
/// How deep blocks and expressions may be nested, together, because trees are walked on small stacks.
pub const MAX_DEPTH: usize = 32;

/// Reads a program.
///
/// # Errors
/// All that is found wrong with it, in the order of the text.
pub fn parse(text: &str) -> Result<tree::Script, alloc::vec::Vec<Diagnostic>> {
    Err(alloc::vec![Diagnostic::new(
        tree::Span::new(0, text.len()),
        "no parser yet",
        "",
    )])
}
