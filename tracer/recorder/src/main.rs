//! `cargo run -- --record ['PROGRAM']`: runs the kernel with a flight recorder, and shows the last
//! records if the kernel dies: by a panic, by a triple fault, or because it hangs.
//!
//! Standard output has the guest's log and then the last calls. Messages of this program go
//! to standard error. A program or an option that is wrong is refused before a machine starts.

#![forbid(unsafe_code)]

mod options;

use std::{
    fmt::Display,
    fs::File,
    io::{BufWriter, Write, stderr, stdout},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use boot::{
    children::{self, Killer},
    guest::End,
    image::{self, Kernel},
    options::Checked,
    prerequisites,
    progress::say,
};
use debug_info::DebugInfo;
use options::Options;
use pictures::text::Open;
use recorder::LastCalls;
use trace_answers::Presentation;
use trace_interface::{Frame, Script};
use trace_link::{Event, LiveMap, Request, RingCopy, Trace, Transport};

/// Exit status after Ctrl-C, as shells report it.
const STATUS_INTERRUPTED: u8 = 128 + 2;
/// Exit status of a program that is wrong.
const REFUSED: u8 = 2;

/// The guest runs: kills it. The first Ctrl-C takes it.
static KILLER: Mutex<Option<Killer>> = Mutex::new(None);
/// Ctrl-C has killed the guest.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let options = Options::from_arguments();
    match run(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Makes the first Ctrl-C kill the guest, so that its last calls are shown, and the second one this
/// process. Nothing is left running.
fn end_on_signal() -> Result<()> {
    ctrlc::set_handler(|| {
        let killer = KILLER.lock().unwrap_or_else(PoisonError::into_inner).take();
        match killer {
            Some(killer) => {
                INTERRUPTED.store(true, Ordering::SeqCst);
                killer.kill();
            }
            None => {
                children::kill_all();
                say("interrupted");
                std::process::exit(i32::from(STATUS_INTERRUPTED));
            }
        }
    })
    .context("cannot handle Ctrl-C")
}

/// The recorded program, and how records of a user's program are shown.
struct Plan {
    script: Script,
    presentation: Option<Presentation>,
}

/// None: the program or the pattern is wrong, and that was told.
fn plan(options: &Options, kernel: &DebugInfo) -> Result<Option<Plan>> {
    let Some(text) = options.program() else {
        let addresses = match recorder::functions(kernel, options.functions()) {
            Ok(addresses) => addresses,
            Err(why) => {
                say(why);
                return Ok(None);
            }
        };
        return Ok(Some(Plan {
            script: recorder::script(&addresses)?,
            presentation: None,
        }));
    };
    let compiled = trace_language::parse(text).and_then(|tree| {
        let command_line = options.build.cmdline(&[], &[]);
        let options = trace_compiler::Options::of_kernel(&command_line);
        trace_compiler::compile(&tree, kernel, &options)
    });
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(mistakes) => {
            for mistake in mistakes {
                show_line(mistake.show(text));
            }
            return Ok(None);
        }
    };
    if let Some(call) = recorder::unserved(&compiled.script) {
        say(format_args!(
            "the program has {call}, which the flight recorder cannot serve, because it reads the \
             records only when the kernel is dead; leave it out: all maps are shown then"
        ));
        return Ok(None);
    }
    Ok(Some(Plan {
        script: compiled.script,
        presentation: Some(Presentation::new(compiled.view)),
    }))
}

/// Writes a line to standard error.
fn show_line(line: impl Display) {
    // Nothing can be done about a closed standard error.
    let _ = writeln!(stderr(), "{line}");
}

/// How a kernel ended, and what it said about its trace.
struct Ran {
    end: End,
    death: Death,
    started: Option<Frame>,
    /// The recorder has ended before the kernel did.
    is_over: bool,
    rings: Vec<RingCopy>,
    maps: Vec<LiveMap>,
}

/// Why a kernel did not come to its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// It did, or it died by itself.
    Own,
    Hung,
    Late,
}

fn run(options: &Options) -> Result<u8> {
    end_on_signal()?;
    if let Some(path) = &options.perfetto
        && let Err(error) = pictures::file::check(path)
    {
        say(format_args!("cannot write {}: {error}", path.display()));
        return Ok(REFUSED);
    }
    let install = options.build.install();
    prerequisites::qemu(install)?;
    let kernel = Kernel::build_with_loader(install, options.machine.firmware())?;
    let mut symbols = DebugInfo::open(&kernel.debug_elf)?;
    let Some(plan) = plan(options, &symbols)? else {
        return Ok(REFUSED);
    };
    let image = kernel.image(options.machine.firmware())?;
    for (name, program) in image::programs()? {
        symbols.add_program(&name, &program);
    }
    let cmdline = options.build.cmdline(&[], &[]);
    let machine = options.machine.machine(image, cmdline);
    let request = Request {
        script: plan.script.encode(),
        run: options.run.clone(),
        limit: None,
        transport: Transport::Memory,
        ring_kib: Some(options.ring),
        overwrite: true,
        with_tracer: false,
        watchdog: options.watchdog(),
        // Call stacks are in one of them.
        maps: plan.presentation.is_some(),
    };
    let trace = Trace::start(&machine, install, &request)?;
    *KILLER.lock().unwrap_or_else(PoisonError::into_inner) = trace.killer();
    let ran = follow(trace, options.machine.timeout())?;
    let interrupted = INTERRUPTED.load(Ordering::SeqCst);
    let is_well = ran.end == End::Success && ran.death == Death::Own;
    match ran.death {
        Death::Hung => say("the kernel hangs: a CPU does not get on"),
        Death::Late => say("the guest did not end in its time; --timeout sets another limit"),
        Death::Own if interrupted => say("interrupted; Ctrl-C again stops it at once"),
        Death::Own if is_well => {}
        Death::Own => say(format_args!("{}", ran.end)),
    }
    let has_died = !is_well && !ran.is_over;
    if !has_died {
        say("the kernel did not die while it was recorded, so no last calls are shown");
    }
    show(options, plan.presentation, ran, &symbols, has_died)?;
    Ok(match (is_well, interrupted) {
        (true, _) => 0,
        (false, true) => STATUS_INTERRUPTED,
        (false, false) => 1,
    })
}

fn follow(mut trace: Trace, limit: Option<Duration>) -> Result<Ran> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let (mut started, mut death, mut is_over) = (None, Death::Own, false);
    let end = loop {
        // A guest that was killed has its end among the next events.
        let deadline = deadline.filter(|_| death == Death::Own);
        match trace.next(deadline) {
            Event::Message(bytes) => match Frame::decode(&bytes)? {
                Frame::Refused { text, .. } => {
                    bail!("the kernel refuses to record: {text}");
                }
                frame @ Frame::Started { .. } => started = Some(frame),
                Frame::Ended { .. } => is_over = true,
                _ => {}
            },
            Event::Log(text) => {
                let mut out = stdout().lock();
                out.write_all(&text)
                    .and_then(|()| out.flush())
                    .context("cannot write the guest's log to standard output")?;
            }
            // Only a kernel at the other end of a line says that.
            Event::Died(_) | Event::Memory => {}
            Event::Hung => death = Death::Hung,
            Event::End(end) => break end,
            Event::Deadline => {
                death = Death::Late;
                trace.kill();
            }
            Event::Damaged(error) => return Err(error.into()),
            Event::Failed(error) => return Err(error),
        }
    };
    Ok(Ran {
        end,
        death,
        started,
        is_over,
        rings: trace.rings(),
        maps: trace.maps().unwrap_or_default(),
    })
}

/// Shows the last records of a kernel that has died, and writes all records to the file that the
/// options name.
fn show(
    options: &Options,
    mut presentation: Option<Presentation>,
    ran: Ran,
    symbols: &DebugInfo,
    has_died: bool,
) -> Result<()> {
    if !has_died && options.perfetto.is_none() {
        return Ok(());
    }
    let Some(started @ Frame::Started { tsc_hz, .. }) = &ran.started else {
        bail!("there are no records, because the guest ended before the recorder ran");
    };
    let last_calls = LastCalls {
        program: presentation.as_mut().map(|shows| (shows, started)),
        rings: &ran.rings,
        maps: &ran.maps,
        tsc_hz: *tsc_hz,
        last: options.last,
        open: Open::Never,
        symbols,
    };
    let (text, timeline) = last_calls.show()?;
    if has_died {
        stdout()
            .write_all(text.as_bytes())
            .context("cannot write the last calls to standard output")?;
        for (reason, count) in &timeline.lost {
            say(format_args!("{count} records: {reason}"));
        }
    }
    if let Some(path) = &options.perfetto {
        let cannot = || format!("cannot write {}", path.display());
        let file = File::create(path).with_context(cannot)?;
        pictures::perfetto::write(&timeline, BufWriter::new(file)).with_context(cannot)?;
        say(format_args!("{}: for ui.perfetto.dev", path.display()));
    }
    Ok(())
}
