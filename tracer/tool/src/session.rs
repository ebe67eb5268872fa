//! A call of the tool, from the options to the exit status.
//!
//! ```text
//!   target    builds the kernel, or calls one that runs
//!   prepare   reads the program, and compiles it for that kernel
//!   run       shows its answers until it ends
//!   judge     holds the answers against the conditions: the exit status
//!   record    in place of the last three: a recording, which is shown at its end
//! ```

use std::io::{self, Write, stdout};

use anyhow::{Context, Error, Result};
use boot::progress::say;

use crate::{
    Failure, REFUSED,
    judge::judge,
    list,
    options::Options,
    prepare, record, run,
    source::Source,
    target::{self, Target},
    timing::Timing,
};

/// Does what the options ask for. Returns the exit status.
pub fn run(options: &Options) -> Result<u8, Failure> {
    run::end_on_signal()?;
    let mut timing = Timing::new(options.timing);
    if let Some(pattern) = &options.list {
        match list(pattern, options, &mut timing) {
            // Whoever reads the list has seen enough.
            Err(Failure::Error(error)) if is_closed_pipe(&error) => {}
            listed => listed?,
        }
        return Ok(0);
    }
    if options.record.record {
        return record::run(options, &mut timing);
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

fn is_closed_pipe(error: &Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Lists what can be probed. Only functions need the kernel's file.
fn list(pattern: &str, options: &Options, timing: &mut Timing) -> Result<(), Failure> {
    if let Some(events) = pattern.strip_prefix("tracepoint:") {
        let table = target::events(options)?;
        return Ok(list::list_events(&table, events, &mut stdout().lock())?);
    }
    if list::list_timers(pattern, &mut stdout().lock())? {
        return Ok(());
    }
    let is_of_programs = |kind, rest: &str| match kind {
        "uprobe" | "u" | "uretprobe" | "ur" | "usdt" | "U" => true,
        "watch" => rest.starts_with('/'),
        _ => false,
    };
    if let Some((kind, of_programs)) = pattern.split_once(':')
        && is_of_programs(kind, of_programs)
    {
        let programs = target::programs(options)?;
        let programs = programs.iter().map(|(path, symbols)| (&**path, symbols));
        let out = &mut stdout().lock();
        match kind {
            "usdt" | "U" => list::list_marks(of_programs, programs, out)?,
            "watch" => list::list_program_statics(of_programs, programs, out)?,
            _ => list::list_program_functions(of_programs, programs, out)?,
        }
        return Ok(());
    }
    let symbols = target::symbols(options, timing)?;
    let out = &mut stdout().lock();
    match pattern.split_once(':') {
        Some(("watch", statics)) => list::list_statics(statics, &symbols, out)?,
        Some(("insn", text)) => list::list_instructions(text, &symbols, out)?,
        Some(("line", place)) => list::list_line(place, &symbols, out)?,
        Some(("inline", function)) => list::list_inlined(function, &symbols, out)?,
        _ => list::list(pattern, &symbols, out)?,
    }
    Ok(())
}

/// Traces. Returns the exit status.
fn trace(options: &Options, source: &Source, timing: &mut Timing) -> Result<u8, Failure> {
    let prepared = prepare::read(options, source)?;
    timing.step("program read");
    let target = Target::of(options, timing)?;
    let symbols = target.symbols(options, timing)?;
    let plan = prepare::compile(&prepared, options, source, &target, &symbols)?;
    timing.step("program compiled");
    let guest = target.start(options, &plan.script)?;
    let mut answers = run::follow(guest, options, source, plan, &symbols, timing)?;
    answers.write_pictures(options, source, &symbols)?;
    Ok(judge(&answers, &prepared.conditions, &symbols))
}
