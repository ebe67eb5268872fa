//! A run: from the options to the exit status.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write, stderr, stdout},
    path::PathBuf,
    process,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use boot::{
    children,
    guest::End,
    image::{self, Kernel},
    prerequisites,
    progress::say,
    trace::{Ender, Event as GuestEvent, Request, Trace},
};
use debug_info::DebugInfo;
use trace_answers::{Event, Presentation, Totals};
use trace_compiler::{Compiled, Options as CompileOptions, Origin, compile};
use trace_interface::{
    Frame, Kernel as _,
    frame::MapEntry,
    script::{Attachment, OPTIONAL},
    symbols::{Moment, ProbePlace},
};
use trace_language::{
    Diagnostic, parse_with,
    tree::{ProbeKind, Tree},
};

use crate::{
    REFUSED,
    expect::Condition,
    json, list,
    options::Options,
    pictures::{ADDED, CALL, Gathered},
    report::report,
    source::Source,
};

/// Exit status after a second Ctrl-C, as shells report it.
const INTERRUPTED: i32 = 128 + 2;
/// How long a guest that was told to end may take until it is killed.
const LAST_WORDS: Duration = Duration::from_secs(20);
/// Seconds after which a guest in Bochs is told to end: it takes minutes to boot.
const BOCHS_TIMEOUT_S: u64 = 1800;
/// How often --top looks into the guest's memory.
const LOOK: Duration = Duration::from_secs(1);
/// How much of the guest's log is shown if it fails.
const LOG_LINES: usize = 30;

/// Where Ctrl-C ends a trace gracefully, while one runs.
static ENDER: Mutex<Option<Ender>> = Mutex::new(None);

/// Tells how long the steps took, if that is wanted.
struct Timing {
    wanted: bool,
    last: Instant,
    /// When this program began; the process may be older.
    begin: Instant,
    answered: bool,
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

    /// The first line of the program's output has been written.
    fn answer(&mut self) {
        if self.wanted && !std::mem::replace(&mut self.answered, true) {
            let time = age_of_process().unwrap_or_else(|| self.begin.elapsed());
            say(format_args!(
                "from the command to the first answer: {:.2} s",
                time.as_secs_f64()
            ));
        }
    }
}

/// How long ago this process began. Cargo, the command that it runs and this program are one
/// process, so that is the time since the user typed the command. None: the system does not tell.
fn age_of_process() -> Option<Duration> {
    // Linux counts in hundredths of a second for all programs, whatever the kernel's own unit is.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    // The name, in parentheses, may have any text in it. Behind it comes field 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let start: f64 = fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
    let now: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(now - start / TICKS).ok()
}

/// Runs the trace that the options describe. Returns the exit status.
pub fn run(options: &Options) -> Result<u8> {
    end_on_signal()?;
    let now = Instant::now();
    let mut timing = Timing {
        wanted: options.timing,
        last: now,
        begin: now,
        answered: false,
    };
    let Some(pattern) = &options.list else {
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
        return trace(options, &source, &mut timing);
    };
    if let Some(events) = pattern.strip_prefix("tracepoint:") {
        list::list_events(events, &mut stdout().lock())?;
        return Ok(0);
    }
    if list::list_timers(pattern, &mut stdout().lock())? {
        return Ok(0);
    }
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
    let files = [&options.perfetto, &options.flame, &options.html];
    for path in files.into_iter().flatten() {
        if let Err(error) = ::pictures::file::check(path) {
            return refuse(format!("error: cannot write {}: {error}", path.display()));
        }
    }
    let install = options.build.install();
    match options.bochs {
        true => prerequisites::bochs(install)?,
        false => prerequisites::qemu(install)?,
    };
    timing.step("program read");
    let kernel = build(options, timing)?;
    let mut symbols = open(&kernel, timing)?;

    let compiled = match compile_all(options, source, &tree, &symbols) {
        Ok(compiled) => compiled,
        Err(mistakes) => return refuse(report(&mistakes, &source.text, &source.name)),
    };
    timing.step("program compiled");
    let presentation = Presentation::new(compiled.view);
    for condition in &conditions {
        if let Err(error) = condition.check(presentation.map_names()) {
            return refuse(format!("error: {error}"));
        }
    }

    for (name, program) in image::programs()? {
        symbols.add_program(&name, &program);
    }
    let cmdline = options.build.cmdline(&[], &[]);
    let request = Request {
        script: compiled.script.encode(),
        run: options.run.clone(),
        limit: options.duration,
        maps: options.top,
        ..Request::default()
    };
    let trace = if options.bochs {
        let machine = options.machine.machine(PathBuf::new(), cmdline);
        Trace::start_in_bochs(&kernel, &machine, install, &request)?
    } else {
        let image = kernel.image(options.machine.firmware())?;
        Trace::start(&options.machine.machine(image, cmdline), install, &request)?
    };
    *ENDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(trace.ender());
    let mut session = Session {
        options,
        presentation,
        probes: probes(
            &compiled.origins,
            &compiled.script.attachments,
            source,
            &symbols,
        ),
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
        probes,
        ..
    } = session;
    gathered.write(options, source, &presentation, &probes, &symbols)?;
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
    tree: &Tree,
    symbols: &DebugInfo,
) -> Result<Compiled, Vec<Diagnostic>> {
    let compile_options = CompileOptions::default();
    let arguments: Vec<&str> = source.arguments.iter().map(String::as_str).collect();
    let mut calls = match options.perfetto.is_some() || options.html.is_some() {
        true => calls(tree, symbols),
        false => Vec::new(),
    };
    let mut reason = None;
    while !calls.is_empty() {
        // The same text with them behind it.
        let mut text = format!("{}\n", source.text);
        let mut ends = Vec::new();
        for call in &calls {
            text.push_str(&call.clause());
            ends.push(text.len());
        }
        let whole = parse_with(&text, &arguments)
            .and_then(|whole| compile(&whole, symbols, &compile_options));
        let mistakes = match whole {
            Ok(mut whole) => {
                // A function that the pictures cannot probe does not refuse the user's program.
                for (origin, probe) in whole.origins.iter().zip(&mut whole.script.probes) {
                    if origin.span.start >= source.text.len() {
                        *probe = OPTIONAL;
                    }
                }
                return Ok(whole);
            }
            Err(mistakes) => mistakes,
        };
        // The calls that a mistake is in say less.
        let before = calls.len();
        let mut is_known = false;
        for mistake in &mistakes {
            if mistake.span.start > source.text.len() {
                let index = ends.partition_point(|end| *end <= mistake.span.start);
                if let Some(call) = calls.get_mut(index) {
                    call.is_wrong = true;
                    is_known = true;
                }
            }
        }
        calls.retain_mut(Call::say_less);
        if calls.len() < before || !is_known {
            reason = mistakes.into_iter().next();
        }
        if !is_known {
            break;
        }
    }
    let own = compile(tree, symbols, &compile_options)?;
    if let Some(reason) = reason {
        say(format_args!("pictures have no calls: {reason}"));
    }
    Ok(own)
}

/// A trace that runs.
struct Session<'a> {
    options: &'a Options,
    presentation: Presentation,
    /// By attachment: the name of its probe.
    probes: Vec<String>,
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
        let limit = match self.options.bochs {
            true => self.options.machine.timeout_or(BOCHS_TIMEOUT_S),
            false => self.options.machine.timeout(),
        };
        let limit = limit.map(|limit| limit + self.options.duration.unwrap_or_default());
        let mut deadline = limit.map(|limit| Instant::now() + limit);
        let mut told = false;
        let mut next_look = None;
        loop {
            if self.options.top && next_look.is_none_or(|look| look <= Instant::now()) {
                if next_look.is_some() {
                    self.look(&trace, timing)?;
                }
                next_look = Some(Instant::now() + LOOK);
            }
            let until = [deadline, next_look].into_iter().flatten().min();
            match trace.next(until) {
                GuestEvent::Deadline if deadline.is_none_or(|end| Instant::now() < end) => {}
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

    /// Shows the maps as they are now: what --top does.
    fn look(&mut self, trace: &Trace, timing: &mut Timing) -> Result<()> {
        let Some(live) = trace.maps() else {
            // The guest boots, or has ended the trace.
            return Ok(());
        };
        let mut text = String::new();
        let mut maps: BTreeMap<u32, Vec<MapEntry>> = BTreeMap::new();
        for part in live {
            for (key, words) in part.entries {
                match key.first_chunk() {
                    Some(number) if part.is_stacks => {
                        let frame = Frame::Stack {
                            map: part.map,
                            number: u64::from_le_bytes(*number),
                            addresses: words,
                        };
                        let shown = self.presentation.frame(&frame, self.symbols, &mut text);
                        shown.map_err(|_| anyhow!("a call stack cannot be shown"))?;
                    }
                    _ => maps.entry(part.map).or_default().push(MapEntry {
                        cpu: part.cpu,
                        key,
                        value: words.into_iter().flat_map(u64::to_le_bytes).collect(),
                    }),
                }
            }
        }
        if self.options.json {
            text = json::top(self.presentation.live_maps(&maps), self.symbols);
        } else {
            let shown = self.presentation.live(&maps, self.symbols, &mut text);
            shown.map_err(|_| anyhow!("the maps cannot be shown"))?;
        }
        let mut out = stdout().lock();
        // To the upper left, and all away.
        let clear = if out.is_terminal() && !self.options.json {
            "\x1b[H\x1b[2J"
        } else {
            ""
        };
        out.write_all(clear.as_bytes())
            .and_then(|()| out.write_all(text.as_bytes()))
            .and_then(|()| out.flush())
            .context("cannot write to standard output")?;
        if !text.is_empty() {
            timing.answer();
        }
        Ok(())
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
            timing.answer();
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

/// The names of the attachments' probes, as the text has them. Where a probe has several
/// attachments, each has the functions that are its own.
fn probes(
    origins: &[Origin],
    attachments: &[Attachment],
    source: &Source,
    symbols: &DebugInfo,
) -> Vec<String> {
    let name = |(origin, attachment): (&Origin, &Attachment)| {
        if let Some(event) = &origin.event {
            return event.clone();
        }
        let addresses: &[u64] = match attachment {
            Attachment::Probe { addresses, .. } => addresses,
            Attachment::Call { functions, .. } => functions,
            _ => &[],
        };
        let function = |address: u64| {
            let function = symbols.function_at(address);
            function.map_or_else(|| format!("{address:#x}"), |function| function.path)
        };
        let of_text = source.text.get(origin.span.start..origin.span.end);
        let is_added = origin.span.start >= source.text.len();
        let Some(text) = of_text.filter(|_| !is_added) else {
            let functions: Vec<String> =
                addresses.iter().map(|address| function(*address)).collect();
            return format!("{ADDED}{}", functions.join(", "));
        };
        let several = origins.iter().filter(|other| *other == origin).count() > 1;
        match addresses {
            [only] if several => format!("{text} ({})", function(*only)),
            [_, _, ..] => format!("{text} ({} places)", addresses.len()),
            _ => text.into(),
        }
    };
    origins.iter().zip(attachments).map(name).collect()
}

/// Most functions whose calls are recorded for pictures.
const MOST_FUNCTIONS: usize = 256;

/// The functions that a program probes.
fn calls(tree: &Tree, symbols: &DebugInfo) -> Vec<Call> {
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
    let functions = functions.into_iter().take(MOST_FUNCTIONS);
    functions
        .map(|(address, symbol)| Call::new(address, symbol, symbols))
        .collect()
}

/// A function whose calls are recorded for the pictures.
struct Call {
    symbol: String,
    /// Names and expressions of the arguments.
    arguments: Vec<(String, String)>,
    result: &'static str,
    /// The compiler does not take its clause.
    is_wrong: bool,
    /// How much is left out: see [`Call::clause`].
    left_out: u8,
}

impl Call {
    /// With all that is known of its values.
    fn new(address: u64, symbol: String, symbols: &DebugInfo) -> Self {
        let place = ProbePlace {
            address,
            moment: Moment::At,
        };
        let argument = |name: String| {
            let value = match symbols.variable(place, &name) {
                Ok(_) => format!("args.{name}"),
                Err(_) => "\"<unavailable>\"".into(),
            };
            (name, value)
        };
        let names = symbols.variables(place).into_iter();
        Self {
            symbol,
            arguments: names.map(argument).collect(),
            result: match symbols.returned(address) {
                Ok(_) => "retval",
                Err(_) => NOTHING,
            },
            is_wrong: false,
            left_out: 0,
        }
    }

    /// The clause that records its calls. Left out are nothing, the result, the arguments, or both.
    fn clause(&self) -> String {
        let (has_arguments, has_result) = (self.left_out & 2 == 0, self.left_out & 1 == 0);
        let arguments = self.arguments.iter().filter(|_| has_arguments);
        let arguments: String = arguments
            .map(|(name, value)| format!(", {name:?}, {value}"))
            .collect();
        let result = if has_result { self.result } else { NOTHING };
        format!(
            "session:{:?} {{ $begin = nsecs; }} \
             return {{ print((\"\\x01{}\", func, nsecs - $begin, {result}{arguments})); }}\n",
            self.symbol,
            CALL.trim_start_matches('\u{1}')
        )
    }

    /// If it is wrong, leaves something out. False: nothing is left, its return cannot be probed.
    fn say_less(&mut self) -> bool {
        if !std::mem::take(&mut self.is_wrong) {
            return true;
        }
        self.left_out += 1;
        self.left_out < 4
    }
}

/// The text that stands for a result that is not recorded.
const NOTHING: &str = "\"\"";

/// Whether a program takes call stacks.
fn names_stack(tree: &Tree) -> bool {
    let text = tree.to_string();
    ["kstack", "ustack"].iter().any(|word| text.contains(word))
}
