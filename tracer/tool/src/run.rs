//! A guest that runs the script: its answers are shown as they come, until it ends.
//!
//! Frames of the kernel become text or JSON on standard output, and material for the pictures. The
//! log of the guest is kept, because its last lines say why a guest has failed. The first Ctrl-C
//! and the end of `--timeout` ask the kernel to end the trace, so that its last answers come. A
//! second Ctrl-C, or a guest that does not answer, ends all. So does the first one as long as
//! nothing is attached, because there are no answers then.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write, stderr, stdout},
    process,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use boot::{children, guest::End, progress::say};
use debug_info::DebugInfo;
use trace_answers::{Event, Presentation, Symbolize, Totals};
use trace_interface::Frame;
use trace_link::{Ender, Event as GuestEvent, LiveMap, Trace};

use crate::{
    calls::Told,
    json,
    options::Options,
    pictures::Gathered,
    prepare::Plan,
    report::with_functions,
    source::Source,
    timing::Timing,
    tree::{self, Tree},
};

/// Exit status after a second Ctrl-C, as shells report it.
const INTERRUPTED: i32 = 128 + 2;
/// How long a guest that was told to end may take until it is killed.
pub const LAST_WORDS: Duration = Duration::from_secs(20);
/// Seconds after which a guest in Bochs is told to end: it takes minutes to boot.
const BOCHS_TIMEOUT_S: u64 = 1800;
/// How often --top looks into the guest's memory.
const LOOK: Duration = Duration::from_secs(1);
/// How much of the guest's log is shown if it fails.
const LOG_LINES: usize = 30;

/// Where Ctrl-C ends a trace gracefully, while one runs.
static ENDER: Mutex<Option<Ender>> = Mutex::new(None);

pub fn set_ender(ender: Option<Ender>) {
    *ENDER.lock().unwrap_or_else(PoisonError::into_inner) = ender;
}

/// Makes the first Ctrl-C end the trace, and the second one this process. Without a trace that has
/// begun, the first one ends this process. Nothing is left running.
pub fn end_on_signal() -> Result<()> {
    ctrlc::set_handler(|| {
        let ender = ENDER.lock().unwrap_or_else(PoisonError::into_inner).take();
        if ender.is_some_and(|ender| ender.end()) {
            say("ending the trace; Ctrl-C again stops it at once");
        } else {
            children::kill_all();
            say("interrupted");
            process::exit(INTERRUPTED);
        }
    })
    .context("cannot handle Ctrl-C")
}

/// What a guest has answered, and how it ended.
pub struct Answers {
    pub presentation: Presentation,
    /// The names of the probes, by attachment.
    pub probes: Vec<String>,
    pub gathered: Gathered,
    pub status: i32,
    pub totals: Totals,
    pub end: End,
}

impl Answers {
    /// Writes the pictures that the options name.
    pub fn write_pictures(
        &mut self,
        options: &Options,
        source: &Source,
        symbols: &DebugInfo,
    ) -> Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        gathered.write(options, source, &self.presentation, &self.probes, symbols)
    }
}

/// Shows what the guest says until it ends.
///
/// # Errors
/// Fails if the kernel has refused the script, or if the trace did not come to its end.
pub fn follow(
    trace: Trace,
    options: &Options,
    source: &Source,
    plan: Plan,
    symbols: &DebugInfo,
    timing: &mut Timing,
) -> Result<Answers> {
    set_ender(Some(trace.ender()));
    let mut session = Session {
        options,
        probes: plan.probes,
        presentation: plan.presentation,
        gathered: Gathered::new(options, plan.count),
        symbols,
        ended: None,
        refused: None,
        death: None,
        log: Vec::new(),
        tree: options
            .graph
            .is_wanted()
            .then(|| (Tree::new(&options.graph, options.json), symbols)),
    };
    let end = session.follow(trace, timing);
    set_ender(None);
    let end = end?;
    timing.step("run");
    if let Some(text) = session.refused {
        let text = with_functions(&text, symbols);
        bail!("the kernel refused the trace: {text}");
    }
    let ended = session.ended.take().filter(|_| session.death.is_none());
    let Some((status, totals)) = ended else {
        let why = match &session.death {
            Some(why) => format!("the kernel has died: {}", why.trim_end()),
            None => {
                session.show_log();
                format!("{end}, and its trace did not come to its end")
            }
        };
        let Session {
            gathered,
            presentation,
            probes,
            ..
        } = session;
        let drawn = gathered.write_cut_off(&why, options, source, &presentation, &probes, symbols);
        // Why the trace has no end is said last.
        if let Err(error) = drawn {
            say(format_args!("{error:#}"));
        }
        bail!(why);
    };
    if end != End::Success {
        session.show_log();
        say(format_args!("{end}"));
    }
    Ok(Answers {
        presentation: session.presentation,
        probes: session.probes,
        gathered: session.gathered,
        status,
        totals,
        end,
    })
}

/// A trace that runs.
struct Session<'a> {
    options: &'a Options,
    presentation: Presentation,
    /// The names of the probes, by attachment.
    probes: Vec<String>,
    gathered: Gathered,
    symbols: &'a dyn Symbolize,
    /// The calls that are open, and the names of functions, of --graph.
    tree: Option<(Tree, &'a DebugInfo)>,
    /// The status of the last frame, and the books.
    ended: Option<(i32, Totals)>,
    refused: Option<String>,
    /// Why the kernel has died.
    death: Option<String>,
    log: Vec<u8>,
}

/// How texts of the tree get to standard output.
struct Output<'a> {
    presentation: &'a Presentation,
    is_terminal: bool,
}

impl tree::Style for Output<'_> {
    fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.is_terminal {
            true => self.presentation.visible(text),
            false => text.into(),
        }
    }

    fn has_colours(&self) -> bool {
        self.is_terminal
    }
}

impl Session<'_> {
    /// Shows what the guest says until it ends.
    fn follow(&mut self, mut trace: Trace, timing: &mut Timing) -> Result<End> {
        let machine = &self.options.machine;
        let limit = match (self.options.bochs, &self.options.connect) {
            (true, _) => machine.timeout_or(BOCHS_TIMEOUT_S),
            // It is there for other things, too, and has no end of its own.
            (false, Some(_)) => machine.timeout_if_given(),
            (false, None) => machine.timeout(),
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
                GuestEvent::Died(why) => (self.death, deadline) = (Some(why), None),
                // A line may be slow, but it is not silent.
                GuestEvent::Memory => {}
                GuestEvent::End(end) => {
                    if self.death.is_some() {
                        self.show_last(&trace, timing)?;
                    }
                    return Ok(end);
                }
                GuestEvent::Damaged(error) => return Err(error.into()),
                GuestEvent::Failed(error) => return Err(error),
                GuestEvent::Hung => say("the guest hangs, and was ended"),
                GuestEvent::Deadline if !told => {
                    if !trace.end() {
                        self.show_log();
                        bail!(
                            "the guest has not attached all in its time; --timeout sets another \
                             limit"
                        );
                    }
                    say("the time of --timeout is over; ending the trace");
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

    /// The maps of a kernel's memory.
    fn maps_in_memory(&mut self, live: &[LiveMap]) -> Result<String> {
        let (stacks, maps) = recorder::stacks_and_maps(live);
        let mut text = String::new();
        for stack in &stacks {
            let shown = self.presentation.frame(stack, self.symbols, &mut text);
            shown.map_err(|_| anyhow!("a call stack cannot be shown"))?;
        }
        if self.options.json {
            return Ok(json::top(
                self.presentation.live_maps(&maps, self.symbols),
                self.symbols,
            ));
        }
        let shown = self.presentation.live(&maps, self.symbols, &mut text);
        shown.map_err(|_| anyhow!("the maps cannot be shown"))?;
        Ok(text)
    }

    /// Shows what a kernel that has died had not sent: the records in its rings, and its maps.
    fn show_last(&mut self, trace: &Trace, timing: &mut Timing) -> Result<()> {
        let live = trace.maps().unwrap_or_default();
        let maps = self.maps_in_memory(&live)?;
        for record in recorder::read(&trace.rings()).records {
            let recorder::Record { cpu, tsc, bytes } = record;
            self.frame(&Frame::Record { cpu, tsc, bytes }, timing)?;
        }
        let mut out = stdout().lock();
        out.write_all(self.fit(&maps, &out).as_bytes())
            .and_then(|()| out.flush())
            .context("cannot write to standard output")?;
        if !trace.has_all() {
            say("its last words were cut off; what is shown has come whole");
        }
        Ok(())
    }

    /// Shows the maps as they are now: what --top does.
    fn look(&mut self, trace: &Trace, timing: &mut Timing) -> Result<()> {
        let Some(live) = trace.maps() else {
            // The guest boots, or has ended the trace.
            return Ok(());
        };
        let text = self.maps_in_memory(&live)?;
        let mut out = stdout().lock();
        // To the upper left, and all away.
        let clear = if out.is_terminal() && !self.options.json {
            "\x1b[H\x1b[2J"
        } else {
            ""
        };
        out.write_all(clear.as_bytes())
            .and_then(|()| out.write_all(self.fit(&text, &out).as_bytes()))
            .and_then(|()| out.flush())
            .context("cannot write to standard output")?;
        if !text.is_empty() {
            timing.answer();
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame, timing: &mut Timing) -> Result<()> {
        let mut text = String::new();
        let was_in_line = self.presentation.is_in_line();
        let event = self
            .presentation
            .frame(frame, self.symbols, &mut text)
            .map_err(|_| anyhow!("an answer of the kernel cannot be shown"))?;
        let shown = self
            .gathered
            .frame(frame, &event, &text, &self.presentation, self.symbols);
        if !shown {
            self.presentation.take_back(was_in_line);
        }
        if self.options.json {
            text = self.json(&event, &text);
        }
        // In front of the maps and the books of the end.
        self.show_tree(&event)?;
        if shown && !text.is_empty() {
            let mut out = stdout().lock();
            out.write_all(self.fit(&text, &out).as_bytes())
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

    /// Shows what an event adds to the tree of calls.
    fn show_tree(&mut self, event: &Event) -> Result<()> {
        let Some((tree, symbols)) = &mut self.tree else {
            return Ok(());
        };
        let mut out = stdout().lock();
        let style = Output {
            presentation: &self.presentation,
            is_terminal: out.is_terminal(),
        };
        let text = match event {
            Event::Started { .. } if !self.options.json => tree::HEAD.into(),
            Event::Ended { .. } => tree.last(&style),
            Event::Record(record) => {
                let origin = tree::Origin {
                    cpu: record.cpu,
                    tid: record.tid,
                };
                let told = Told::read(record, *symbols);
                told.map_or_else(String::new, |told| {
                    tree.told(&told, origin, *symbols, &style)
                })
            }
            _ => String::new(),
        };
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .context("cannot write to standard output")
    }

    /// A text as `out` may get it. JSON has its own escapes, and files get texts as they are.
    fn fit<'t>(&self, text: &'t str, out: &impl IsTerminal) -> Cow<'t, str> {
        match out.is_terminal() && !self.options.json {
            true => self.presentation.visible(text),
            false => text.into(),
        }
    }

    /// The lines that stand for an event with --json.
    fn json(&self, event: &Event, text: &str) -> String {
        // The map of a tree is no answer.
        let with_maps = self.tree.is_none();
        json::event(event, text, &self.presentation, with_maps, self.symbols)
    }

    /// The end of the guest's log.
    fn show_log(&self) {
        if self.options.log {
            return;
        }
        let log = String::from_utf8_lossy(&self.log);
        let mut err = io::stderr().lock();
        for line in last_lines(&log, LOG_LINES) {
            // Nothing is to be done if even that cannot be shown.
            let _ = writeln!(err, "{line}");
        }
    }
}

/// The last lines of a text, at most so many.
fn last_lines(text: &str, most: usize) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.drain(..lines.len().saturating_sub(most));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use boot::options::Checked;
    use std::fs::File;
    use trace_answers::{NoSymbols, PrintedBy, Recorded, Value};
    use trace_interface::{
        frame::{Books, MapEntry},
        view::{Class, MapView, View},
    };

    fn options(arguments: &[&str]) -> Options {
        Options::read([&["trace", "kprobe:f { @ = count(); }"], arguments].concat()).unwrap()
    }

    /// A session with two maps that count.
    fn session(options: &Options) -> Session<'_> {
        let map = |name: &str| MapView {
            name: Some(name.into()),
            class: Class::Count,
            keys: Vec::new(),
        };
        Session {
            options,
            presentation: Presentation::new(View {
                maps: vec![map("@b"), map("@a")],
                ..View::default()
            }),
            probes: Vec::new(),
            gathered: Gathered::default(),
            symbols: &NoSymbols,
            ended: None,
            refused: None,
            death: None,
            log: Vec::new(),
            tree: None,
        }
    }

    fn ended(lost: &[(&str, u64)]) -> Frame {
        let lost = lost.iter().map(|(why, count)| ((*why).into(), *count));
        Frame::Ended {
            status: 4,
            books: vec![Books { hits: 9, missed: 2 }],
            kept_out: 0,
            lost: lost.collect(),
            bad_loads: 0,
        }
    }

    #[test]
    fn what_the_frames_say_of_the_end_is_kept() {
        let options = options(&[]);
        let mut timing = Timing::new(false);
        let mut session = session(&options);
        session.frame(&ended(&[("why", 1)]), &mut timing).unwrap();
        let (status, totals) = session.ended.take().unwrap();
        assert_eq!((status, totals.hits, totals.missed), (4, 9, 2));
        assert_eq!(totals.lost, [("why".into(), 1)]);
        let refused = Frame::Refused {
            program: None,
            text: "no".into(),
        };
        assert_eq!(session.refused, None);
        session.frame(&refused, &mut timing).unwrap();
        assert_eq!(session.refused.as_deref(), Some("no"));
        assert!(session.ended.is_none());
    }

    #[test]
    fn of_a_log_the_last_lines_are_shown() {
        assert_eq!(last_lines("a\nb\nc\n", 2), ["b", "c"]);
        assert_eq!(last_lines("a\nb", 2), ["a", "b"]);
        assert_eq!(last_lines("a\n", 2), ["a"]);
        assert_eq!(last_lines("", 2), [""; 0]);
    }

    /// The maps by name, what was lost, and the books.
    #[test]
    fn the_lines_of_json_are_those_of_the_events() {
        let options = options(&["--json"]);
        let mut session = session(&options);
        let mut text = String::new();
        let mut event = |session: &mut Session<'_>, frame: &Frame| {
            let presentation = &mut session.presentation;
            presentation.frame(frame, &NoSymbols, &mut text).unwrap()
        };
        for (map, count) in [(0, 5_u64), (1, 6)] {
            let entry = MapEntry {
                cpu: 0,
                key: Vec::new(),
                value: count.to_le_bytes().into(),
            };
            let entries = vec![entry];
            let sent = event(&mut session, &Frame::Map { map, entries });
            assert_eq!(session.json(&sent, ""), "", "it is shown at the end");
        }
        let end = event(&mut session, &ended(&[("x", 1), ("y", 2)]));
        let lines = session.json(&end, "");
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(
            lines[..3],
            [
                r#"{"data":{"@a":6},"type":"map"}"#,
                r#"{"data":{"@b":5},"type":"map"}"#,
                r#"{"count":3,"data":{"events":3},"type":"lost_events"}"#,
            ]
        );
        assert!(
            lines.len() == 4 && lines[3].contains(r#""hits":9"#),
            "{lines:?}"
        );
        let nothing_lost = event(&mut session, &ended(&[]));
        assert!(!session.json(&nothing_lost, "").contains("lost_events"));
        let started = session.json(&Event::Started { places: 3 }, "");
        assert_eq!(
            started,
            "{\"count\":3,\"data\":{\"probes\":3},\"type\":\"attached_probes\"}\n"
        );
        let asked = Event::Map {
            name: "@a".into(),
            shown: Some(vec![(Vec::new(), Value::Unsigned(6))]),
        };
        assert_eq!(
            session.json(&asked, ""),
            "{\"data\":{\"@a\":6},\"type\":\"map\"}\n"
        );
        let record = Event::Record(Recorded {
            cpu: 0,
            tsc: 0,
            tid: 0,
            text: "said".into(),
            values: Vec::new(),
            by: PrintedBy::Line,
        });
        assert_eq!(
            session.json(&record, "said\n"),
            "{\"data\":\"said\\n\",\"type\":\"printf\"}\n"
        );
        assert_eq!(session.json(&Event::Nothing, "text"), "");
    }

    /// A program may say that its maps are not shown at the end.
    #[test]
    fn maps_that_are_hidden_have_no_lines_of_json() {
        let options = options(&["--json"]);
        let mut session = session(&options);
        session.presentation = Presentation::new(View {
            maps: vec![MapView {
                name: Some("@a".into()),
                class: Class::Count,
                keys: Vec::new(),
            }],
            hides_maps: true,
            ..View::default()
        });
        let entry = MapEntry {
            cpu: 0,
            key: Vec::new(),
            value: 5_u64.to_le_bytes().into(),
        };
        let entries = vec![entry];
        let mut text = String::new();
        for frame in [Frame::Map { map: 0, entries }, ended(&[])] {
            let event = session
                .presentation
                .frame(&frame, &NoSymbols, &mut text)
                .unwrap();
            let lines = session.json(&event, "");
            assert!(!lines.contains("@a"), "{lines}");
        }
        assert_eq!(text, "9 hits = 7 recorded + 2 missed\n");
    }

    /// A terminal would obey control characters. The master of one is a terminal, too.
    #[test]
    fn control_characters_are_escapes_on_terminals_and_nowhere_else() {
        let (plain, json) = (options(&[]), options(&["--json"]));
        let (file, terminal) = ["/dev/null", "/dev/ptmx"]
            .map(|path| File::open(path).unwrap())
            .into();
        let text = "a\x1b[2Jb\n";
        assert_eq!(session(&plain).fit(text, &file), text);
        assert_eq!(session(&plain).fit(text, &terminal), "a\\x1b[2Jb\n");
        assert_eq!(session(&json).fit(text, &terminal), text);
    }
}
