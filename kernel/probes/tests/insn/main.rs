//! Tests of `probes::insn` on the host: by bytes, by meaning, and by execution.

mod arbitrary_bytes;
mod boundary;
mod classification;
#[path = "../closing.rs"]
mod closing;
mod corpus;
mod decoding;
mod differential;
mod execution;
mod machine;
mod own_text;
mod properties;
mod random;
mod replacements;
mod symbolic;

use std::path::PathBuf;

/// The program that [`own_text`] reads: this one.
fn subject() -> PathBuf {
    std::env::current_exe().expect("a program has a name")
}
