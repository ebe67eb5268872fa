//! Holds the language of `trace` against a checkout of bpftrace: `cargo run -p bpftrace_texts --
//! CHECKOUT [KERNEL.elf]`.
//!
//! ```text
//!   units     programs in its unit tests: valid or an error there, taken or refused here
//!   runtime   its runtime tests: what a program prints there and here
//!   tools     its tools: which compile
//!
//!   calls     reads calls of C++          rules    what means nothing here
//!   world     compiles and runs a text    groups   texts by message
//! ```
//!
//! The checkout is read at run time, and none of it is in this tree. Programs run in a process, by
//! the interpreter. Each function that a program names exists in the made-up kernel ([`world`]), so
//! names of Linux stand for themselves. The tools are compiled for a real kernel, too, if its ELF
//! is given.

#![forbid(unsafe_code)]

mod calls;
mod groups;
/// The JSON of `trace --json`.
#[path = "../../../tracer/tool/src/json.rs"]
#[allow(
    dead_code,
    reason = "`trace --top` and `--graph` use more of it than a test"
)]
mod json;
mod rules;
mod runtime;
mod tools;
mod units;
mod world;

use std::{env, panic, path::PathBuf, process::ExitCode, thread};

use anyhow::{Context, Result};

/// Texts may be nested deep, and the host's compiler recurses.
const STACK: usize = 64 << 20;

fn main() -> Result<ExitCode> {
    let mut words = env::args_os().skip(1).map(PathBuf::from);
    let Some(checkout) = words.next() else {
        eprintln!("usage: cargo run -p bpftrace_texts -- CHECKOUT [KERNEL.elf]");
        return Ok(ExitCode::from(2));
    };
    let kernel = words.next();
    // A program that the interpreter objects to panics. That is a verdict, and told as one.
    panic::set_hook(Box::new(|_| {}));
    let all = move || -> Result<()> {
        units::hold(&checkout)?;
        runtime::hold(&checkout)?;
        tools::hold(&checkout, kernel.as_deref())
    };
    let thread = thread::Builder::new().stack_size(STACK).spawn(all)?;
    thread
        .join()
        .map_err(|_| anyhow::anyhow!("the driver itself has failed"))?
        .context("the checkout cannot be held against the language")?;
    Ok(ExitCode::SUCCESS)
}
