//! Records as lines of text: `trace` and `trace_pipe`.
//!
//! # Contexts
//! Task context, may sleep.

#![forbid(unsafe_code)]

use alloc::{string::String, vec::Vec};
use core::{
    fmt::{self, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use fallible::{Text, written};
use tracefs::{
    graph::{self, Call, CallReturn, Lines, Options},
    line::{self, Origin, function, mark, stack},
};

use super::{
    TRACING,
    buffer::{Item, Which},
    events::{EVENTS, Layouts},
    names::CachedSymbols,
    shared::try_vec,
    tracers::{self, TRACERS, TracerKind, graph_options},
};
use crate::{
    arch::smp,
    errno::Errno,
    task::{Pid, comms},
    time,
};

/// Lines tell the thread groups of tasks.
pub static SHOWS_GROUPS: AtomicBool = AtomicBool::new(false);

/// Where records were overwritten, a line tells where those of each other CPU begin.
pub static TELLS_STARTS: AtomicBool = AtomicBool::new(true);

/// The thread group of a task: its own, because no task shares one. 0 for an idle task, which has
/// none.
const fn group_of(pid: Pid) -> i32 {
    pid
}

/// The forms of what stands in front of a record's text.
#[derive(Clone, Copy)]
enum Form {
    Full,
    Dump,
}

/// Where a line that was written has a blank for the mark of the delay up to the next record, and
/// when its own record was written.
#[derive(Clone, Copy)]
pub struct DelayMark {
    pub at: usize,
    pub time_ns: u64,
}

/// The events that records may belong to, and the names of tasks that were asked for.
pub struct Printer {
    /// The tracer whose lines these are.
    kind: TracerKind,
    /// The calls that it has missed.
    missed: u64,
    options: Options,
    /// The function that interrupts call.
    interrupt: Option<u64>,
    layouts: Layouts,
    comms: Vec<(Pid, String)>,
    shows_groups: bool,
    /// The CPUs of whose records there was one, a bit each, if lines tell that. None: they do not.
    started: Option<u64>,
    symbols: CachedSymbols,
    /// The line that is being made. It is written at once, because its many pieces are short.
    line: Text,
}

impl Printer {
    /// For the events that are there now.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn of_now() -> Result<Self, Errno> {
        let (kind, missed) = {
            let tracers = TRACERS.lock();
            (tracers.kind(), tracers.books().1)
        };
        Ok(Self {
            kind,
            missed,
            options: graph_options(),
            interrupt: Some(tracers::interrupt_function()),
            layouts: EVENTS.lock().layouts()?,
            comms: Vec::new(),
            shows_groups: SHOWS_GROUPS.load(Relaxed),
            started: None,
            symbols: CachedSymbols::empty(),
            line: Text::new(),
        })
    }

    /// Writes the lines that `item` adds. `calls` has the lines of each CPU so far, of which calls
    /// need to know.
    ///
    /// # Errors
    /// That of `out`, or there is no memory. Then nothing is written, and `calls` is as it was.
    pub fn print(
        &mut self,
        item: &Item<'_>,
        calls: &mut CallLines,
        out: &mut dyn Write,
    ) -> fmt::Result {
        self.print_as(Form::Full, item, calls, out).map(drop)
    }

    /// The same in the form of a dump. Where a line has room for a mark of the delay up to the next
    /// record, that is told.
    ///
    /// # Errors
    /// As [`Printer::print`].
    pub fn print_dumped(
        &mut self,
        item: &Item<'_>,
        calls: &mut CallLines,
        out: &mut dyn Write,
    ) -> Result<Option<DelayMark>, fmt::Error> {
        self.print_as(Form::Dump, item, calls, out)
    }

    fn print_as(
        &mut self,
        form: Form,
        item: &Item<'_>,
        calls: &mut CallLines,
        out: &mut dyn Write,
    ) -> Result<Option<DelayMark>, fmt::Error> {
        let (cpu, tsc, record) = match *item {
            Item::Lost { cpu, count } => {
                self.line.clear();
                let mut lines = calls.of(cpu);
                self.writer(|writer, text| writer.settle(&mut lines, text))?;
                line::write_lost(cpu as u32, count, &mut self.line)?;
                out.write_str(&self.line)?;
                calls.set(cpu, lines);
                return Ok(None);
            }
            Item::Record { cpu, tsc, bytes } => (cpu, tsc, bytes),
        };
        let word = |at: usize| {
            record
                .get(at..at + 4)
                .and_then(|bytes| bytes.first_chunk::<4>())
        };
        let id = word(0).map_or(0, |bytes| u32::from_le_bytes(*bytes)) as u16;
        let pid = word(4).map_or(0, |bytes| i32::from_le_bytes(*bytes));
        let time_ns = time::tsc_to_ns(cpu, tsc);
        self.line.clear();
        if self.kind == TracerKind::Graph {
            let origin = graph::Origin {
                cpu: cpu as u32,
                pid,
                time_ns,
            };
            let mut lines = calls.of(cpu);
            self.write_in_graph(id, record, &mut lines, &origin)?;
            out.write_str(&self.line)?;
            calls.set(cpu, lines);
            return Ok(None);
        }
        let comm = name_of(pid, &mut self.comms)?;
        let origin = Origin {
            comm,
            group: self.shows_groups.then_some(group_of(pid)),
            cpu: cpu as u32,
            time_ns,
        };
        let started = self.started.map(|started| (started, started | 1 << cpu));
        if let Some((before, now)) = started
            && before != 0
            && before != now
        {
            line::write_start(cpu as u32, &mut self.line)?;
        }
        let mark = match form {
            Form::Full => {
                line::write_prefix(record, &origin, &mut self.line)?;
                None
            }
            Form::Dump => {
                line::write_short_prefix(record, &origin, &mut self.line)?;
                let at = self.line.len().checked_sub(line::DELAY_MARK_FROM_END);
                at.map(|at| DelayMark { at, time_ns })
            }
        };
        write_record(id, record, &mut self.layouts, &self.symbols, &mut self.line)?;
        self.line.write_char('\n')?;
        out.write_str(&self.line)?;
        self.started = started.map(|(_, now)| now);
        Ok(mark)
    }

    /// Writes the lines of `function_graph` that a record adds.
    fn write_in_graph(
        &mut self,
        id: u16,
        record: &[u8],
        lines: &mut Lines,
        origin: &graph::Origin,
    ) -> fmt::Result {
        if let Some(call) = Call::read(id, record) {
            let duration_ns = match &call {
                Call::Return(end) => duration_ns(end, origin),
                Call::Entry(_) => 0,
            };
            return self
                .writer(|writer, text| writer.call(lines, &call, origin, duration_ns, text));
        }
        let mut comment = Text::new();
        match id {
            mark::ID => line::write_mark_text(record, &mut comment)?,
            _ => write_record(id, record, &mut self.layouts, &self.symbols, &mut comment)?,
        }
        self.writer(|writer, text| writer.comment(lines, &comment, origin, text))
    }

    /// Has the writer of calls write to the line.
    fn writer(
        &mut self,
        write: impl FnOnce(&graph::Writer<'_>, &mut dyn Write) -> fmt::Result,
    ) -> fmt::Result {
        let writer = graph::Writer {
            options: self.options,
            cpus: smp::online_cpus() as u32,
            interrupt: self.interrupt,
            symbols: &self.symbols,
            write_comm: &|pid, out| write!(out, "{}", comms::of(pid)),
        };
        write(&writer, &mut self.line)
    }

    /// Writes the entries that wait for what follows them: there is nothing more.
    ///
    /// # Errors
    /// That of `out`; what was not written waits still.
    pub fn settle(&mut self, calls: &mut CallLines, out: &mut dyn Write) -> fmt::Result {
        for cpu in 0..calls.0.len() {
            let mut lines = calls.of(cpu);
            if lines.waits() {
                self.line.clear();
                self.writer(|writer, text| writer.settle(&mut lines, text))?;
                out.write_str(&self.line)?;
                calls.set(cpu, lines);
            }
        }
        Ok(())
    }

    /// Writes the head of the tracer.
    fn head(&mut self, unread: u64, written: u64, out: &mut dyn Write) -> fmt::Result {
        let head = line::Head {
            tracer: self.kind.name(),
            entries: unread,
            written,
            cpus: smp::online_cpus(),
            with_groups: self.shows_groups,
        };
        match self.kind {
            TracerKind::Graph => {
                self.line.clear();
                self.writer(|writer, text| writer.head(text))?;
                out.write_str(&self.line)
            }
            TracerKind::Nop | TracerKind::Function => line::write_header(&head, out),
        }?;
        line::write_missed(self.missed, out)
    }
}

/// How long a call took. Its CPU may have changed.
fn duration_ns(end: &CallReturn, origin: &graph::Origin) -> u64 {
    (origin.time_ns).saturating_sub(time::tsc_to_ns(end.entry_cpu as usize, end.entered))
}

/// Writes what a record says, without the newline: all that stands after the time.
fn write_record(
    id: u16,
    record: &[u8],
    layouts: &mut Layouts,
    symbols: &CachedSymbols,
    out: &mut Text,
) -> fmt::Result {
    if id == function::ID {
        return line::write_function(record, symbols, out);
    }
    if id == stack::ID {
        return line::write_frames(record, symbols, out);
    }
    if id == mark::ID {
        return line::write_mark(record, out);
    }
    if let Some(call) = Call::read(id, record) {
        return call.write(symbols, out);
    }
    match layouts.of(id) {
        Some((name, layout)) => line::write_event(name, layout, record, symbols, out),
        None => write!(out, "Unknown type {id}"),
    }
}

/// What is known of the lines of each CPU.
pub struct CallLines(Vec<Lines>);

impl CallLines {
    /// Of CPUs without lines yet.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new() -> Result<Self, Errno> {
        let cpus = smp::possible_cpus();
        let mut lines = try_vec(cpus)?;
        lines.resize(cpus, Lines::new());
        Ok(Self(lines))
    }

    fn of(&self, cpu: usize) -> Lines {
        self.0.get(cpu).copied().unwrap_or_default()
    }

    fn set(&mut self, cpu: usize, lines: Lines) {
        if let Some(place) = self.0.get_mut(cpu) {
            *place = lines;
        }
    }
}

/// The name of the task `pid`, which is asked for once.
fn name_of(pid: Pid, known: &mut Vec<(Pid, String)>) -> Result<&str, fmt::Error> {
    let at = match known.binary_search_by_key(&pid, |(pid, _)| *pid) {
        Ok(at) => at,
        Err(at) => {
            let name = written(&comms::of(pid)).map_err(|_| fmt::Error)?;
            known.try_reserve(1).map_err(|_| fmt::Error)?;
            known.insert(at, (pid, name));
            at
        }
    };
    Ok(&known[at].1)
}

/// Writes the numbers and names of the tasks that are known; with `of_groups`, the numbers of their
/// thread groups in place of the names.
///
/// # Errors
/// That of `out`, and ENOMEM.
pub fn show_tasks(of_groups: bool, out: &mut dyn Write) -> Result<(), Errno> {
    for (pid, comm) in comms::known()? {
        match of_groups {
            true => writeln!(out, "{pid} {}", group_of(pid))?,
            false => writeln!(out, "{pid} {comm}")?,
        }
    }
    Ok(())
}

/// Writes the text of `trace`, of all CPUs or of one.
///
/// # Errors
/// That of `out`, and ENOMEM.
pub fn show(cpu: Option<usize>, out: &mut dyn Write) -> Result<(), Errno> {
    let mut printer = Printer::of_now()?;
    // A tracer of all functions would trace what makes the text, and overwrite what is to be shown.
    let _pause = (printer.kind != TracerKind::Nop).then(|| TRACING.recording.pause());
    let (unread, written) = counts(Which::Live, cpu);
    printer.head(unread, written, out)?;
    show_records(&mut printer, Which::Live, cpu, out)
}

/// Writes the text of `snapshot`, of all CPUs or of one. Without records it tells how to use the
/// file.
///
/// # Errors
/// That of `out`, and ENOMEM.
pub fn show_snapshot(cpu: Option<usize>, out: &mut dyn Write) -> Result<(), Errno> {
    TRACING.buffer.settle_snapshot();
    let (unread, written) = counts(Which::Snapshot, cpu);
    let mut printer = Printer::of_now()?;
    if unread > 0 {
        printer.head(unread, written, out)?;
        return show_records(&mut printer, Which::Snapshot, cpu, out);
    }
    let (tracer, is_there) = (printer.kind.name(), TRACING.buffer.has_snapshot());
    Ok(line::write_snapshot_help(
        tracer,
        is_there,
        cpu.is_some(),
        out,
    )?)
}

/// How many records are there, and how many were written.
fn counts(which: Which, cpu: Option<usize>) -> (u64, u64) {
    let (mut unread, mut written) = (0, 0);
    for at in (0..smp::possible_cpus()).filter(|at| cpu.is_none_or(|cpu| cpu == *at)) {
        let stats = TRACING.buffer.stats_of(at, which);
        unread += stats.unread;
        written += stats.written;
    }
    (unread, written)
}

fn show_records(
    printer: &mut Printer,
    which: Which,
    cpu: Option<usize>,
    out: &mut dyn Write,
) -> Result<(), Errno> {
    let mut calls = CallLines::new()?;
    let mut result = Ok(());
    let overwritten = |cpu| TRACING.buffer.stats_of(cpu, which).overwritten > 0;
    if TELLS_STARTS.load(Relaxed) && (0..smp::possible_cpus()).any(overwritten) {
        printer.started = Some(0);
    }
    TRACING.buffer.view(which, cpu, |item| {
        result = printer.print(&item, &mut calls, out);
        result.is_ok()
    })?;
    result?;
    Ok(printer.settle(&mut calls, out)?)
}
