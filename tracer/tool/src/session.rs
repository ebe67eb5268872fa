//! A call of the tool, from the options to the exit status.
//!
//! ```text
//!   prepare   reads the program, builds the kernel, compiles the program for it
//!   run       starts a guest, and shows its answers until it ends
//!   judge     holds the answers against the conditions: the exit status
//! ```

use std::io::{Write, stdout};

use anyhow::{Context, Result};
use boot::{image, progress::say};

use crate::{
    Failure, REFUSED, judge::judge, list, options::Options, prepare, run, source::Source,
    timing::Timing,
};

/// Does what the options ask for. Returns the exit status.
pub fn run(options: &Options) -> Result<u8, Failure> {
    run::end_on_signal()?;
    let mut timing = Timing::new(options.timing);
    if let Some(pattern) = &options.list {
        list(pattern, options, &mut timing)?;
        return Ok(0);
    }
    let source = match options.source {
        true => Source::as_written(options),
        false => Source::of(options),
    };
    // TOOL-1
    let source = match source {
        Ok(source) => source,
        Err(error) => {
            say(format_args!("{error:#}"));
            return Ok(REFUSED);
        }
    };
    if options.source {
        stdout()
            .write_all(source.text.as_bytes())
            .context("cannot write the program to standard output")?;
        return Ok(0);
    }
    trace(options, &source, &mut timing)
}

/// Lists what can be probed. Only functions need the kernel.
fn list(pattern: &str, options: &Options, timing: &mut Timing) -> Result<()> {
    if let Some(events) = pattern.strip_prefix("tracepoint:") {
        return list::list_events(events, &mut stdout().lock());
    }
    if list::list_timers(pattern, &mut stdout().lock())? {
        return Ok(());
    }
    let kernel = prepare::build(options, timing)?;
    let symbols = prepare::open(&kernel, timing)?;
    list::list(pattern, &symbols, &mut stdout().lock())
}

/// Traces. Returns the exit status.
fn trace(options: &Options, source: &Source, timing: &mut Timing) -> Result<u8, Failure> {
    let prepared = prepare::read(options, source)?;
    prepare::find_emulator(options)?;
    timing.step("program read");
    let kernel = prepare::build(options, timing)?;
    let mut symbols = prepare::open(&kernel, timing)?;
    let plan = prepare::compile(&prepared, options, source, &symbols)?;
    timing.step("program compiled");
    for (name, program) in image::programs()? {
        symbols.add_program(&name, &program);
    }
    let guest = run::start(options, &kernel, &plan.script)?;
    let mut answers = run::follow(guest, options, plan, &symbols, timing)?;
    answers.write_pictures(options, source, &symbols)?;
    Ok(judge(&answers, &prepared.conditions, &symbols))
}
