//! `cargo run -- trace`: a program of the tracer's language runs in the kernel, and the terminal
//! shows its answers.
//!
//! ```text
//!   text ─ parse ─ compile ─► script ─► trace_link ─► the guest ─┐
//!            ▲        ▲                                           │ frames
//!        arguments  debug information      terminal, JSON, ◄─ session
//!                                          files, conditions
//! ```
//!
//! # Invariants
//! TOOL-1. A program that is wrong is refused before a machine starts: with status 2, as wrong
//!     options are.
//! TOOL-2. Standard output has the program's output and nothing else. This tool itself speaks on
//!     standard error.
//! TOOL-3. However a run ends, no process and no unfinished file is left.

mod expect;
mod json;
mod list;
mod options;
mod pictures;
mod ready;
mod report;
mod session;
mod source;

use std::process::ExitCode;

use boot::progress::say;

/// Exit status of a program or an option that is wrong.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    let options = options::Options::from_arguments();
    match session::run(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
