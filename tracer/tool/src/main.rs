//! `cargo run -- trace`: a program of the tracer's language runs in a kernel, and the terminal
//! shows its answers. The kernel is booted for it, or runs already.
//!
//! ```text
//!   text ─ parse ─ compile ─► script ─► trace_link ─► the guest ─┐
//!            ▲        ▲                                          │ frames
//!        arguments  debug information       terminal, JSON, ◄─ run
//!                                           files, conditions
//! ```
//!
//! # Invariants
//! TOOL-1. A program that is wrong is refused before a machine starts: with status 2, as wrong
//!     options are.
//! TOOL-2. Standard output has the program's output and nothing else. This tool itself speaks on
//!     standard error.
//! TOOL-3. However a run ends, no process and no unfinished file is left.

#![forbid(unsafe_code)]

mod calls;
mod expect;
mod graph;
mod json;
mod judge;
mod list;
mod needs;
mod options;
mod pictures;
mod prepare;
mod ready;
mod record;
mod record_options;
mod report;
mod run;
mod session;
mod source;
mod target;
mod timing;
mod tree;

use std::{
    io::{Write, stderr},
    process::ExitCode,
};

use boot::{options::Checked, progress::say};

/// Exit status of a program or an option that is wrong.
const REFUSED: u8 = 2;

/// Why there is no exit status of a trace.
enum Failure {
    /// The program or an option is wrong, and this text says why (TOOL-1).
    Refused(String),
    /// Anything else.
    Error(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Error(error)
    }
}

fn main() -> ExitCode {
    let options = options::Options::from_arguments();
    match session::run(&options) {
        Ok(status) => ExitCode::from(status),
        Err(Failure::Refused(why)) => {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(stderr(), "{why}");
            ExitCode::from(REFUSED)
        }
        Err(Failure::Error(error)) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
