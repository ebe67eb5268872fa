//! `cargo run -- --record ['PROGRAM']`: runs the kernel with a flight recorder, and shows the last
//! records if the kernel dies: by a panic, by a triple fault, or because it hangs.
//!
//! Standard output has the guest's log and then the last calls. Messages of this program go
//! to standard error. The exit status is that of a plain run: 0 only if the guest ended well.

use std::{
    fs::File,
    io::{BufWriter, Write, stdout},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use boot::{
    children,
    guest::End,
    image::Kernel,
    options::MachineOptions,
    prerequisites::{self, Install},
    progress::say,
    qemu::Serial,
    trace::{Event, Request, Trace, Transport},
};
use clap::Parser;
use debug_info::DebugInfo;
use pictures::text::{Tree, tree};
use trace_model::{Frame, Kernel as _, Script};
use trace_script::Presentation;

/// Exit status after Ctrl-C, as shells report it.
const INTERRUPTED: i32 = 128 + 2;
/// Exit status of a program that is wrong.
const REFUSED: u8 = 2;

/// Runs the kernel and keeps its last calls in memory. If it dies, they are shown.
#[derive(Debug, Parser)]
#[command(name = "record", bin_name = "cargo run --", max_term_width = 100)]
struct Options {
    /// The program, in the tracer's language [default: entry and return of the functions of
    /// --functions]
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, required = true)]
    record: Option<Option<String>>,
    /// Which functions are recorded without a PROGRAM
    #[arg(long, value_name = "GLOB", default_value = "*")]
    functions: String,
    /// How many calls, or records of a PROGRAM, are shown
    #[arg(long, value_name = "N", default_value_t = 60)]
    last: usize,
    /// KiB of memory for the records of each CPU
    #[arg(long, value_name = "KIB", default_value_t = 4096)]
    ring: u32,
    /// Seconds without progress on a CPU after which the kernel is taken for hanging
    #[arg(long, value_name = "S", default_value_t = 20)]
    watchdog: u64,
    /// Write all recorded calls to this file, for the Perfetto UI
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// The program that runs, and its arguments [default: the workload]
    #[arg(long, value_name = "PROGRAM ARGS")]
    run: Option<String>,
    /// Modules to load, in this order
    #[arg(long, value_name = "A,B", default_value = "")]
    samples: String,
    /// Text to add to the kernel command line
    #[arg(long, value_name = "CMDLINE", allow_hyphen_values = true)]
    append: Option<String>,
    /// Install nothing that is missing; say which packages to install
    #[arg(long)]
    no_install: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The name of the function that has an address.
fn path(symbols: &DebugInfo, address: u64) -> String {
    let function = symbols.function_at(address);
    function.map_or_else(|| format!("{address:#x}"), |function| function.path)
}

/// The recorded program, and how records of a user's program are shown.
struct Plan {
    script: Script,
    presentation: Option<Presentation>,
}

/// None: the program is wrong, and that was told.
fn plan(options: &Options, kernel: &DebugInfo) -> Result<Option<Plan>> {
    let Some(Some(text)) = &options.record else {
        let functions = kernel.functions(&options.functions);
        if functions.is_empty() {
            let near = kernel.nearest(&options.functions).join(", ");
            bail!(
                "no function is called {}; near are: {near}",
                options.functions
            );
        }
        let addresses: Vec<u64> = functions.iter().map(|function| function.address).collect();
        return Ok(Some(Plan {
            script: flight::script(&addresses)?,
            presentation: None,
        }));
    };
    let compiled = trace_language::parse(text)
        .and_then(|tree| trace_script::compile(&tree, kernel, &trace_script::Options::default()));
    match compiled {
        Ok(compiled) => Ok(Some(Plan {
            script: compiled.script,
            presentation: Some(compiled.presentation),
        })),
        Err(mistakes) => {
            for mistake in mistakes {
                eprintln!("{}", mistake.show(text));
            }
            Ok(None)
        }
    }
}

/// How a kernel ended, and what it said about its trace.
struct Ran {
    end: End,
    hung: bool,
    started: Option<Frame>,
    rings: Vec<Vec<u8>>,
}

fn run(options: &Options) -> Result<u8> {
    ctrlc::set_handler(|| {
        children::kill_all();
        say("interrupted");
        std::process::exit(INTERRUPTED);
    })
    .context("cannot handle Ctrl-C")?;
    let install = match options.no_install {
        true => Install::Forbidden,
        false => Install::Allowed,
    };
    prerequisites::toolchain(install)?;
    prerequisites::qemu(install)?;
    let kernel = Kernel::build("kernel")?;
    let symbols = DebugInfo::open(&kernel.debug_elf)?;
    let Some(plan) = plan(options, &symbols)? else {
        return Ok(REFUSED);
    };
    let mut words = Vec::new();
    if !options.samples.is_empty() {
        words.push(format!("modules={}", options.samples));
    }
    words.extend(options.append.clone());
    let disk = match options.machine.disk() {
        Some(disk) => disk,
        None => kernel.image(options.machine.firmware())?,
    };
    let machine = options.machine.machine(disk, words.join(" "));
    if machine.serial == Serial::Terminal {
        bail!("--record shows the last calls on the terminal; leave --interactive out");
    }
    let request = Request {
        script: plan.script.encode(),
        run: options.run.clone(),
        limit: None,
        transport: Transport::Memory,
        ring_kib: Some(options.ring),
        overwrite: true,
        watchdog: Some(Duration::from_secs(options.watchdog.max(1))),
        maps: false,
    };
    let trace = Trace::start(&machine, install, &request)?;
    let ran = follow(trace, options.machine.timeout())?;
    if ran.end == End::Success && !ran.hung {
        return Ok(0);
    }
    match ran.hung {
        true => say("the kernel hangs: a CPU does not get on"),
        false => say(format_args!("{}", ran.end)),
    }
    show(options, plan.presentation, &ran, &symbols)?;
    Ok(1)
}

fn follow(mut trace: Trace, limit: Option<Duration>) -> Result<Ran> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let (mut started, mut hung) = (None, false);
    let end = loop {
        match trace.next(deadline) {
            Event::Message(bytes) => match Frame::decode(&bytes)? {
                Frame::Refused { text, .. } => {
                    bail!("the kernel refuses to record: {text}");
                }
                frame @ Frame::Started { .. } => started = Some(frame),
                _ => {}
            },
            Event::Log(text) => {
                let mut out = stdout().lock();
                out.write_all(&text)
                    .and_then(|()| out.flush())
                    .context("cannot write the guest's log to standard output")?;
            }
            Event::Hung => hung = true,
            Event::End(end) => break end,
            Event::Deadline => {
                // As good as a hang: nobody knows where it stands, but its records tell.
                hung = true;
                trace.kill();
                break End::Emulator("the guest did not end in its time".into());
            }
            Event::Damaged(error) => return Err(error.into()),
            Event::Failed(error) => return Err(error),
        }
    };
    Ok(Ran {
        end,
        hung,
        started,
        rings: trace.rings(),
    })
}

/// Shows the last records.
fn show(
    options: &Options,
    presentation: Option<Presentation>,
    ran: &Ran,
    symbols: &DebugInfo,
) -> Result<()> {
    let Some(started @ Frame::Started { tsc_hz, .. }) = &ran.started else {
        bail!("the kernel died before the recorder ran; there are no records");
    };
    let recording = flight::read(&ran.rings);
    let mut out = String::new();
    match presentation {
        None => {
            let timeline = flight::timeline(&recording, *tsc_hz, |address| path(symbols, address));
            let last = Tree {
                last: Some(options.last),
                from_end: true,
                ..Tree::default()
            };
            out.push_str(&tree(&timeline, last));
            for (reason, count) in &timeline.lost {
                say(format_args!("{count} records: {reason}"));
            }
            if let Some(path) = &options.perfetto {
                let file = File::create(path)
                    .with_context(|| format!("cannot make the file {}", path.display()))?;
                pictures::perfetto::write(&timeline, BufWriter::new(file))
                    .with_context(|| format!("cannot write {}", path.display()))?;
                say(format_args!("{}: for ui.perfetto.dev", path.display()));
            }
        }
        Some(mut presentation) => {
            let mut frame = |frame: &Frame, out: &mut String| {
                let shown = presentation.frame(frame, symbols, out);
                shown
                    .map(drop)
                    .map_err(|_| anyhow!("a record cannot be shown"))
            };
            frame(started, &mut String::new())?;
            let skipped = recording.records.len().saturating_sub(options.last);
            for record in recording.records.into_iter().skip(skipped) {
                let flight::Record { cpu, tsc, bytes } = record;
                frame(&Frame::Record { cpu, tsc, bytes }, &mut out)?;
            }
        }
    }
    stdout()
        .write_all(out.as_bytes())
        .context("cannot write the last calls to standard output")
}
