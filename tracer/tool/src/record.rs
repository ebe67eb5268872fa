//! `--connect ADDRESS --record`: a flight recorder in a kernel that runs already. Its last calls,
//! or the last lines of a program, are shown when it dies, or when the recording ends.
//!
//! The kernel keeps the newest records in its rings and sends none. At the end of the recording it
//! sends the rings. A kernel that dies sends them from its panic handler, with the maps.
//!
//! # Invariants
//! SHOWN-1. What is shown has come whole. What has not is told: how many calls, and that the maps
//!     are missing.

use std::{
    fs::File,
    io::{BufWriter, IsTerminal, Write, stderr, stdout},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use boot::progress::say;
use debug_info::DebugInfo;
use pictures::text::Open;
use recorder::LastCalls;
use trace_answers::Presentation;
use trace_interface::{Frame, Script};
use trace_link::{Event, Trace};

use crate::{
    Failure,
    options::Options,
    prepare,
    report::with_functions,
    run::{LAST_WORDS, set_ender},
    source::Source,
    target::Target,
    timing::Timing,
};

/// What is recorded.
struct Plan {
    script: Script,
    /// Shows the records of a user's program.
    presentation: Option<Presentation>,
}

/// Records until the kernel dies or the recording ends, and shows what was recorded last. Returns
/// the exit status.
pub fn run(options: &Options, timing: &mut Timing) -> Result<u8, Failure> {
    let program = match options.words.is_empty() && options.file.is_none() {
        true => None,
        false => {
            let source =
                Source::of(options).map_err(|error| Failure::Refused(format!("{error:#}")))?;
            Some((prepare::read(options, &source)?, source))
        }
    };
    let target = Target::of(options, timing)?;
    let symbols = target.symbols(options, timing)?;
    let plan = match program {
        Some((prepared, source)) => {
            let plan = prepare::compile(&prepared, options, &source, &target, &symbols)?;
            Plan {
                script: plan.script,
                presentation: Some(plan.presentation),
            }
        }
        None => {
            let functions = recorder::functions(&symbols, options.record.functions());
            let functions = functions.map_err(Failure::Refused)?;
            let script = recorder::script(&functions).map_err(anyhow::Error::from)?;
            target.check(&script)?;
            Plan {
                script,
                presentation: None,
            }
        }
    };
    if let Some(call) = recorder::unserved(&plan.script) {
        return Err(Failure::Refused(format!(
            "error: the program has {call}, which a recording cannot serve, because the kernel \
             reads no records meanwhile; leave it out: all maps are shown at the end"
        )));
    }
    timing.step("program compiled");
    let clock_hz = target.clock_hz();
    let trace = target.start(options, &plan.script)?;
    set_ender(Some(trace.ender()));
    let ran = Recording::new(trace, clock_hz).follow(options, &symbols, timing);
    set_ender(None);
    Ok(show(options, plan.presentation, ran?, &symbols)?)
}

/// A recording, as far as it has come.
struct Recording {
    trace: Trace,
    /// Ticks of the clock of records in a second, as the welcome has it.
    clock_hz: u64,
    /// The frame of the start.
    started: Option<Frame>,
    /// What the kernel has sent at the end of a program: maps and books.
    frames: Vec<Frame>,
    /// Why the kernel has died.
    death: Option<String>,
}

impl Recording {
    fn new(trace: Trace, clock_hz: u64) -> Self {
        Self {
            trace,
            clock_hz,
            started: None,
            frames: Vec::new(),
            death: None,
        }
    }

    /// All is attached.
    fn start(&mut self, frame: Frame, timing: &mut Timing) {
        timing.step("all attached, and recording");
        if let Frame::Started { places, .. } = &frame
            && stderr().is_terminal()
        {
            let places: u32 = places.iter().sum();
            say(format_args!(
                "recording {places} probes; Ctrl-C ends it, and shows the last calls"
            ));
        }
        self.started = Some(frame);
    }

    fn follow(
        mut self,
        options: &Options,
        symbols: &DebugInfo,
        timing: &mut Timing,
    ) -> Result<Self> {
        let limit = options.machine.timeout_if_given();
        let mut deadline = limit.map(|limit| Instant::now() + limit);
        let mut told = false;
        loop {
            match self.trace.next(deadline) {
                Event::Message(bytes) => match Frame::decode(&bytes)? {
                    Frame::Refused { text, .. } => bail!(
                        "the kernel refused to record: {}",
                        with_functions(&text, symbols)
                    ),
                    frame @ Frame::Started { .. } => self.start(frame, timing),
                    frame => self.frames.push(frame),
                },
                Event::Died(why) => {
                    say(format_args!("the kernel has died: {}", why.trim_end()));
                    self.death = Some(why);
                    deadline = None;
                }
                // A line may be slow, but it is not silent.
                Event::Memory => deadline = later(deadline, LAST_WORDS),
                Event::End(_) => return Ok(self),
                Event::Failed(error) => return Err(error),
                Event::Damaged(error) => return Err(error.into()),
                Event::Log(_) | Event::Hung => {}
                Event::Deadline if !told => {
                    if !self.trace.end() {
                        bail!("the kernel has not attached all in its time");
                    }
                    say("the time of --timeout is over; ending the recording");
                    told = true;
                    deadline = Some(Instant::now() + LAST_WORDS);
                }
                Event::Deadline => bail!("the kernel does not end the recording"),
            }
        }
    }
}

/// A deadline, not before so long from now. None stays none.
fn later(deadline: Option<Instant>, wait: Duration) -> Option<Instant> {
    deadline.map(|deadline| deadline.max(Instant::now() + wait))
}

/// Shows the last calls or lines. Returns the exit status.
fn show(
    options: &Options,
    mut presentation: Option<Presentation>,
    ran: Recording,
    symbols: &DebugInfo,
) -> Result<u8> {
    let Recording {
        trace,
        clock_hz,
        started,
        frames,
        death,
    } = ran;
    let tsc_hz = match (&started, &death) {
        (Some(Frame::Started { tsc_hz, .. }), _) => *tsc_hz,
        // It may have died while it said that all was attached. Calls need no more than the clock.
        (_, Some(_)) if presentation.is_none() && !trace.rings().is_empty() => clock_hz,
        (_, Some(_)) => bail!("there are no records, because it died before all was attached"),
        (_, None) => bail!("there are no records, because the recording ended before it began"),
    };
    let (rings, maps) = (trace.rings(), trace.maps());
    let has_no_maps = presentation.is_some() && maps.is_none();
    let mut text = String::new();
    // A kernel that lives sends its maps as frames. Their stacks come before the lines with stacks.
    let (stacks, others): (Vec<Frame>, Vec<Frame>) = frames
        .into_iter()
        .partition(|frame| matches!(frame, Frame::Stack { .. }));
    add(presentation.as_mut(), &stacks, symbols, &mut text)?;
    let last_calls = LastCalls {
        program: presentation.as_mut().zip(started.as_ref()),
        rings: &rings,
        maps: maps.as_deref().unwrap_or_default(),
        tsc_hz,
        last: options.record.last(),
        open: match death {
            Some(_) => Open::Never,
            None => Open::NotYet,
        },
        symbols,
    };
    let (shown, timeline) = last_calls.show()?;
    text += &shown;
    // Then the maps and the books.
    let mut end = String::new();
    add(presentation.as_mut(), &others, symbols, &mut end)?;
    text += &presentation.map_or_else(String::new, |of| of.visible(&end).into_owned());
    stdout()
        .write_all(text.as_bytes())
        .context("cannot write the last calls to standard output")?;
    for (reason, count) in &timeline.lost {
        say(format_args!("{count} records: {reason}"));
    }
    let missed: u64 = others.iter().map(missed).sum();
    if missed > 0 {
        say(format_args!("{missed} hits were missed"));
    }
    if death.is_some() && !trace.has_all() {
        say(
            "its last words were cut off, because the line ended or fell silent; what is shown has \
             come whole",
        );
        if has_no_maps {
            say("no map is shown, because not all of them have come");
        }
    }
    if let Some(path) = &options.perfetto {
        let cannot = || format!("cannot write {}", path.display());
        let file = File::create(path).with_context(cannot)?;
        pictures::perfetto::write(&timeline, BufWriter::new(file)).with_context(cannot)?;
        say(format_args!("{}: for ui.perfetto.dev", path.display()));
    }
    Ok(u8::from(death.is_some()))
}

/// Adds the text of frames, if a program has some.
fn add(
    presentation: Option<&mut Presentation>,
    frames: &[Frame],
    symbols: &DebugInfo,
    text: &mut String,
) -> Result<()> {
    if let Some(presentation) = presentation {
        for frame in frames {
            let shown = presentation.frame(frame, symbols, text);
            shown.context("an answer of the kernel cannot be shown")?;
        }
    }
    Ok(())
}

/// The hits that a frame says to have been missed.
fn missed(frame: &Frame) -> u64 {
    match frame {
        Frame::Ended { books, .. } => books.iter().map(|books| books.missed).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_interface::frame::Books;

    #[test]
    fn hits_that_were_missed_are_those_of_all_probes() {
        let books = [(5, 1), (7, 0), (9, 4)];
        let ended = Frame::Ended {
            status: 0,
            books: books.map(|(hits, missed)| Books { hits, missed }).into(),
            kept_out: 0,
            lost: Vec::new(),
            bad_loads: 0,
        };
        assert_eq!(missed(&ended), 5);
        let comm = Frame::Comm {
            tid: 1,
            name: "cat".into(),
        };
        assert_eq!(missed(&comm), 0);
    }
}
