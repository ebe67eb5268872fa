//! A run: from the options to the exit status.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IsTerminal, Write, stderr, stdout},
    process,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use boot::{
    children,
    guest::End,
    image::Kernel,
    prerequisites,
    progress::say,
    trace::{Ender, Event as GuestEvent, Request, Trace},
};
use debug_info::DebugInfo;
use trace_language::{
    Diagnostic, parse_with,
    tree::{ProbeKind, Script},
};
use trace_model::{
    Frame, Kernel as _,
    symbols::{Moment, Place},
};
use trace_script::{Compiled, Event, Options as CompileOptions, Presentation, Totals, compile};

use crate::{
    REFUSED,
    expect::Condition,
    json, list,
    options::Options,
    pictures::{CALL, Gathered},
    report::report,
    source::Source,
};

/// Exit status after a second Ctrl-C, as shells report it.
const INTERRUPTED: i32 = 128 + 2;
/// How long a guest that was told to end may take until it is killed.
const LAST_WORDS: Duration = Duration::from_secs(20);
/// How much of the guest's log is shown if it fails.
const LOG_LINES: usize = 30;

/// Where Ctrl-C ends a trace gracefully, while one runs.
static ENDER: Mutex<Option<Ender>> = Mutex::new(None);

/// Tells how long the steps took, if that is wanted.
struct Timing {
    wanted: bool,
    last: Instant,
}

impl Timing {
    fn step(&mut self, what: &str) {
        let now = Instant::now();
        if self.wanted {
            let time = now.duration_since(self.last);
            say(format_args!(
                "{what}: {:.1} ms",
                time.as_secs_f64() * 1000.0
            ));
        }
        self.last = now;
    }
}

/// Runs the trace that the options describe. Returns the exit status.
pub fn run(options: &Options) -> Result<u8> {
    end_on_signal()?;
    let mut timing = Timing {
        wanted: options.timing,
        last: Instant::now(),
    };
    let Some(pattern) = &options.list else {
        let source = Source::of(options)?;
        return trace(options, &source, &mut timing);
    };
    let kernel = build(options, &mut timing)?;
    let symbols = open(&kernel, &mut timing)?;
    list::list(pattern, &symbols, &mut stdout().lock())?;
    Ok(0)
}

/// Makes the first Ctrl-C end the trace, and the second one this process. Nothing is left running.
fn end_on_signal() -> Result<()> {
    ctrlc::set_handler(|| {
        let ender = ENDER.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ender {
            Some(ender) => {
                say("ending the trace; Ctrl-C again stops it at once");
                ender.end();
            }
            None => {
                children::kill_all();
                say("interrupted");
                process::exit(INTERRUPTED);
            }
        }
    })
    .context("cannot handle Ctrl-C")
}

fn build(options: &Options, timing: &mut Timing) -> Result<Kernel> {
    let install = options.build.install();
    let kernel = Kernel::build_with_loader(install, options.machine.firmware())?;
    timing.step("kernel built, or found current");
    Ok(kernel)
}

fn open(kernel: &Kernel, timing: &mut Timing) -> Result<DebugInfo> {
    let symbols = DebugInfo::open(&kernel.debug_elf)?;
    let what = if symbols.times().made {
        "debug information indexed"
    } else {
        "debug information read"
    };
    timing.step(what);
    Ok(symbols)
}

fn trace(options: &Options, source: &Source, timing: &mut Timing) -> Result<u8> {
    let refuse = |shown: String| {
        let _ = writeln!(stderr(), "{shown}");
        Ok(REFUSED)
    };
    let arguments: Vec<&str> = source.arguments.iter().map(String::as_str).collect();
    let tree = match parse_with(&source.text, &arguments) {
        Ok(tree) => tree,
        Err(mistakes) => return refuse(report(&mistakes, &source.text, &source.name)),
    };
    let mut conditions = Vec::new();
    for text in &options.expect {
        match Condition::read(text) {
            Ok(condition) => conditions.push(condition),
            Err(shown) => return refuse(shown),
        }
    }
    if options.flame.is_some() && !names_stack(&tree) {
        return refuse(
            "error: --flame draws call stacks, and the program takes none; write, for example, \
             `@[kstack] = count()`"
                .into(),
        );
    }
    prerequisites::qemu(options.build.install())?;
    timing.step("program read");
    let kernel = build(options, timing)?;
    let symbols = open(&kernel, timing)?;

    let compiled = match compile_all(options, source, &tree, &symbols) {
        Ok(compiled) => compiled,
        Err(mistakes) => return refuse(report(&mistakes, &source.text, &source.name)),
    };
    timing.step("program compiled");
    for condition in &conditions {
        if let Err(error) = condition.check(compiled.presentation.map_names()) {
            return refuse(format!("error: {error}"));
        }
    }

    let image = kernel.image(options.machine.firmware())?;
    let cmdline = options.build.cmdline(&[], &[]);
    let machine = options.machine.machine(image, cmdline);
    let request = Request {
        script: compiled.script.encode(),
        run: options.run.clone(),
        limit: options.duration,
        ..Request::default()
    };
    let trace = Trace::start(&machine, options.build.install(), &request)?;
    *ENDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace.ender());
    let mut session = Session {
        options,
        presentation: compiled.presentation,
        gathered: Gathered::default(),
        symbols: &symbols,
        ended: None,
        refused: None,
        log: Vec::new(),
    };
    let end = session.follow(trace, timing);
    ENDER.lock().unwrap_or_else(PoisonError::into_inner).take();
    let end = end?;
    timing.step("run");

    if let Some(text) = session.refused {
        bail!("the kernel refused the trace: {text}");
    }
    let Some((status, totals)) = session.ended.take() else {
        session.show_log();
        bail!("{end}, and its trace did not come to its end");
    };
    let mut failed = false;
    if end != End::Success {
        session.show_log();
        say(format_args!("{end}"));
        failed = true;
    }
    let Session {
        gathered,
        presentation,
        ..
    } = session;
    gathered.write(options, source, &presentation, &symbols)?;
    for condition in &conditions {
        if let Err(why) = condition.holds(&presentation, &totals, &symbols) {
            say(why);
            failed = true;
        }
    }
    Ok(match u8::try_from(status) {
        _ if failed => 1,
        Ok(status) => status,
        // As the system cuts a status off.
        Err(_) => status as u8,
    })
}

/// Compiles a program and what the options add to it.
fn compile_all(
    options: &Options,
    source: &Source,
    tree: &Script,
    symbols: &DebugInfo,
) -> Result<Compiled, Vec<Diagnostic>> {
    let compile_options = CompileOptions::default();
    let additions = additions(options, tree, symbols);
    let own = compile(tree, symbols, &compile_options)?;
    if additions.is_empty() {
        return Ok(own);
    }
    // The same text with them behind it.
    let text = format!("{}\n{additions}", source.text);
    let arguments: Vec<&str> = source.arguments.iter().map(String::as_str).collect();
    let whole =
        parse_with(&text, &arguments).and_then(|whole| compile(&whole, symbols, &compile_options));
    match whole {
        Ok(whole) => Ok(whole),
        Err(mistakes) => {
            if let Some(mistake) = mistakes.first() {
                say(format_args!(
                    "pictures have no calls, and --top shows nothing: {mistake}"
                ));
            }
            Ok(own)
        }
    }
}

/// A trace that runs.
struct Session<'a> {
    options: &'a Options,
    presentation: Presentation,
    gathered: Gathered,
    symbols: &'a DebugInfo,
    /// The status of the last frame, and the books.
    ended: Option<(i32, Totals)>,
    refused: Option<String>,
    log: Vec<u8>,
}

impl Session<'_> {
    /// Shows what the guest says until it ends.
    fn follow(&mut self, mut trace: Trace, timing: &mut Timing) -> Result<End> {
        let limit = self.options.machine.timeout();
        let limit = limit.map(|limit| limit + self.options.duration.unwrap_or_default());
        let mut deadline = limit.map(|limit| Instant::now() + limit);
        let mut told = false;
        loop {
            match trace.next(deadline) {
                GuestEvent::Message(bytes) => {
                    let frame = Frame::decode(&bytes)?;
                    self.frame(&frame, timing)?;
                }
                GuestEvent::Log(text) => {
                    if self.options.log {
                        stderr()
                            .write_all(&text)
                            .context("cannot show the guest's log")?;
                    }
                    self.log.extend(text);
                }
                GuestEvent::End(end) => return Ok(end),
                GuestEvent::Damaged(error) => return Err(error.into()),
                GuestEvent::Failed(error) => return Err(error),
                GuestEvent::Hung => say("the guest hangs, and was ended"),
                GuestEvent::Deadline if !told => {
                    say("the time of --timeout is over; ending the trace");
                    trace.end();
                    told = true;
                    deadline = Some(Instant::now() + LAST_WORDS);
                }
                GuestEvent::Deadline => {
                    self.show_log();
                    bail!("the guest does not end; --timeout sets another limit");
                }
            }
        }
    }

    fn frame(&mut self, frame: &Frame, timing: &mut Timing) -> Result<()> {
        let mut text = String::new();
        let event = self
            .presentation
            .frame(frame, self.symbols, &mut text)
            .map_err(|_| anyhow!("an answer of the kernel cannot be shown"))?;
        let shown = self
            .gathered
            .frame(frame, &event, &text, &self.presentation, self.symbols);
        if self.options.json {
            text = self.json(&event, !text.is_empty());
        }
        if shown && !text.is_empty() {
            let mut out = stdout().lock();
            out.write_all(text.as_bytes())
                .and_then(|()| out.flush())
                .context("cannot write to standard output")?;
        }
        match event {
            Event::Started { places } => {
                timing.step("guest started, and all attached");
                if stderr().is_terminal() {
                    say(format_args!(
                        "attached {places} probes; Ctrl-C ends the trace"
                    ));
                }
            }
            Event::Refused { text, .. } => self.refused = Some(text),
            Event::Ended { status, totals } => self.ended = Some((status, totals)),
            _ => {}
        }
        Ok(())
    }

    /// The lines that stand for an event with --json.
    fn json(&self, event: &Event, is_shown: bool) -> String {
        match event {
            Event::Map { name } if is_shown => {
                let mut maps = self.presentation.maps();
                let found = maps.find(|(of, _)| of == name);
                found.map_or_else(String::new, |(name, entries)| {
                    json::map(name, &entries, self.symbols)
                })
            }
            Event::Started { places } => {
                json::line("attached_probes", serde_json::json!({ "probes": places }))
            }
            Event::Record(record) => json::line("printf", serde_json::json!(record.text)),
            Event::Ended { totals, .. } => {
                let maps = self.presentation.maps();
                let maps = maps.map(|(name, entries)| json::map(name, &entries, self.symbols));
                maps.chain([json::books(totals)]).collect()
            }
            _ => String::new(),
        }
    }

    /// The end of the guest's log.
    fn show_log(&self) {
        if self.options.log {
            return;
        }
        let log = String::from_utf8_lossy(&self.log);
        let lines: Vec<&str> = log.lines().collect();
        let start = lines.len().saturating_sub(LOG_LINES);
        let mut err = io::stderr().lock();
        for line in &lines[start..] {
            // Nothing is to be done if even that cannot be shown.
            let _ = writeln!(err, "{line}");
        }
    }
}

/// The clauses that the options add to a program.
fn additions(options: &Options, tree: &Script, symbols: &DebugInfo) -> String {
    let mut text = String::new();
    if options.top {
        text += "interval:s:1 { ";
        if stdout().is_terminal() {
            // To the upper left, and all away.
            text += "printf(\"\\033[H\\033[2J\"); ";
        }
        for map in maps(tree) {
            text += &format!("print(@{map}); ");
        }
        text += "}\n";
    }
    if options.perfetto.is_some() || options.html.is_some() {
        text += &calls(tree, symbols);
    }
    text
}

/// Most functions whose calls are recorded for pictures.
const MOST_FUNCTIONS: usize = 256;

/// Clauses that record the calls of the functions that a program probes, each with as much as is
/// known at its places: arguments and result, one of them, or the time alone.
fn calls(tree: &Script, symbols: &DebugInfo) -> String {
    let mut functions = BTreeMap::new();
    for probe in tree.clauses.iter().flat_map(|clause| &clause.probes) {
        if let ProbeKind::Entry {
            function,
            offset: 0,
        }
        | ProbeKind::Return { function }
        | ProbeKind::Session { function } = &probe.kind
        {
            let found = symbols.functions(&function.text).into_iter();
            functions.extend(found.map(|function| (function.address, function.symbol)));
        }
    }
    if functions.len() > MOST_FUNCTIONS {
        say(format_args!(
            "pictures show the calls of {MOST_FUNCTIONS} of {} functions",
            functions.len()
        ));
    }
    let clauses = functions.iter().take(MOST_FUNCTIONS);
    clauses
        .filter_map(|(address, symbol)| call_clause(*address, symbol, symbols))
        .collect()
}

/// The clause for one function. None: its return cannot be probed.
fn call_clause(address: u64, symbol: &str, symbols: &DebugInfo) -> Option<String> {
    let place = Place {
        address,
        moment: Moment::At,
    };
    let arguments: String = symbols
        .variables(place)
        .iter()
        .map(|name| format!(", {name:?}, args.{name}"))
        .collect();
    let results = ["retval", "\"\""];
    let wanted =
        [arguments.as_str(), ""].map(|arguments| results.map(|result| (arguments, result)));
    wanted
        .into_iter()
        .flatten()
        .find_map(|(arguments, result)| {
            let clause = format!(
                "session:{symbol:?} {{ $begin = nsecs; }} \
             return {{ print((\"\\x01{}\", func, nsecs - $begin, {result}{arguments})); }}\n",
                CALL.trim_start_matches('\u{1}')
            );
            let compiled = parse_with(&clause, &[])
                .and_then(|tree| compile(&tree, symbols, &CompileOptions::default()));
            compiled.is_ok().then_some(clause)
        })
}

/// The names of all maps that a program writes to.
fn maps(tree: &Script) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let text = tree.to_string();
    // A map begins with its sign, which is nowhere else but in texts.
    let mut in_text = false;
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' if in_text => {
                letters.next();
            }
            '"' => in_text = !in_text,
            '@' if !in_text => {
                let name = text[at + 1..].chars();
                names.insert(
                    name.take_while(|c| *c == '_' || c.is_alphanumeric())
                        .collect(),
                );
            }
            _ => {}
        }
    }
    names
}

/// Whether a program takes call stacks.
fn names_stack(tree: &Script) -> bool {
    tree.to_string().contains("kstack")
}
