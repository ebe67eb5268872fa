//! Calls as text: the lines of `trace` and `trace_pipe` under the tracer `function_graph`.
//!
//! ```text
//!   0)               |  sys_mkdir() {
//!   0)   1.204 us    |    copy_path();
//!   0)               |    /* mine: (vfs_mkdir+0x0/0x80) */
//!   0) + 12.800 us   |  }
//! ```
//!
//! An entry that its own return follows, with no other record of the CPU between them, is one line.
//! So an entry waits in its CPU's [`Lines`] for the next record of that CPU: lines of one CPU are
//! in the order of time, and those of different CPUs nearly so. The text is that of Linux, byte by
//! byte, because scripts read it.
//!
//! # Contexts
//! Task context. Nothing here allocates.

use core::fmt::{self, Write};

use crate::{field::Symbols, line, record};

/// The type of the record of a return, in the common header.
pub const RETURN_ID: u16 = 10;
/// The type of the record of an entry.
pub const ENTRY_ID: u16 = 11;

/// What is shown, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options(pub u32);

impl Options {
    const CPU: u32 = 1 << 0;
    const OVERHEAD: u32 = 1 << 1;
    const PROCESS: u32 = 1 << 2;
    const DURATION: u32 = 1 << 3;
    const TIME: u32 = 1 << 4;
    const TAIL: u32 = 1 << 5;
    const RESULT: u32 = 1 << 6;
    const RESULT_IN_HEX: u32 = 1 << 7;

    /// The names of the options and their bits.
    pub const NAMES: [(&str, u32); 8] = [
        ("funcgraph-cpu", Self::CPU),
        ("funcgraph-overhead", Self::OVERHEAD),
        ("funcgraph-proc", Self::PROCESS),
        ("funcgraph-duration", Self::DURATION),
        ("funcgraph-abstime", Self::TIME),
        ("funcgraph-tail", Self::TAIL),
        ("funcgraph-retval", Self::RESULT),
        ("funcgraph-retval-hex", Self::RESULT_IN_HEX),
    ];

    /// Those that are on at the start.
    pub const DEFAULT: Self = Self(Self::CPU | Self::OVERHEAD | Self::DURATION);

    const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

/// The record of an entry or a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Entry(CallEntry),
    Return(CallReturn),
}

/// See [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEntry {
    /// The function's address.
    pub function: u64,
    /// How many calls are around this one.
    pub depth: u32,
    /// The registers of arguments, if they were recorded.
    pub arguments: Option<[u64; 6]>,
}

/// See [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallReturn {
    /// The function's address.
    pub function: u64,
    /// The register of the result.
    pub result: u64,
    /// How many calls are around this one.
    pub depth: u32,
    /// The CPU of the entry.
    pub entry_cpu: u32,
    /// The time stamp counter of that CPU at the entry.
    pub entered: u64,
}

impl Call {
    /// Reads a record of that type. None: it is of another type, or too short.
    pub fn read(id: u16, record: &[u8]) -> Option<Self> {
        let word = |at| record::word(record, at);
        Some(match id {
            ENTRY_ID => Self::Entry(CallEntry {
                function: word(8)?,
                depth: word(16)? as u32,
                arguments: line::arguments(record, 24),
            }),
            RETURN_ID => Self::Return(CallReturn {
                function: word(8)?,
                result: word(16)?,
                depth: word(24)? as u32,
                entry_cpu: (word(24)? >> 32) as u32,
                entered: word(32)?,
            }),
            _ => return None,
        })
    }

    /// Writes the call as other tracers show it, without a newline.
    ///
    /// # Errors
    /// That of `out`.
    pub fn write(&self, symbols: &dyn Symbols, out: &mut dyn Write) -> fmt::Result {
        let (event, function, depth) = match self {
            Self::Entry(entry) => ("funcgraph_entry", entry.function, entry.depth),
            Self::Return(end) => ("funcgraph_exit", end.function, end.depth),
        };
        write!(out, "{event}: func=")?;
        write_name(function, symbols, out)?;
        write!(out, " depth={depth}")
    }
}

/// Where a record was written.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub cpu: u32,
    pub pid: i32,
    /// Nanoseconds since the boot.
    pub time_ns: u64,
}

/// What the lines need to know.
pub struct Writer<'a> {
    pub options: Options,
    /// How many CPUs there are.
    pub cpus: u32,
    /// The function that interrupts call. Arrows show where one comes and goes.
    pub interrupt: Option<u64>,
    pub symbols: &'a dyn Symbols,
    /// Writes the name of a task.
    pub write_comm: &'a dyn Fn(i32, &mut dyn Write) -> fmt::Result,
}

/// What is known of the lines of one CPU.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    last_pid: Option<i32>,
    /// An entry that waits for what follows it.
    waiting: Option<(CallEntry, Origin)>,
    /// The depth that comments are shown at; -1 outside of all calls.
    depth: i32,
    /// The functions whose entries were shown, by depth.
    functions: [u64; Lines::DEEPEST],
}

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

impl Lines {
    /// Entries of calls that are deeper are not remembered; their returns are shown with the name.
    const DEEPEST: usize = 64;

    /// Of a CPU without lines yet.
    pub const fn new() -> Self {
        Self {
            last_pid: None,
            waiting: None,
            depth: -1,
            functions: [0; Self::DEEPEST],
        }
    }

    /// Whether an entry waits.
    pub const fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    fn opened(&self, depth: u32) -> Option<u64> {
        self.functions.get(depth as usize).copied()
    }

    fn open(&mut self, depth: u32, function: u64) {
        if let Some(place) = self.functions.get_mut(depth as usize) {
            *place = function;
        }
    }
}

/// A duration in nanoseconds that gets this mark, or a longer one.
const MARKS: [(u64, char); 6] = [
    (1_000_000_000, '$'),
    (100_000_000, '@'),
    (10_000_000, '*'),
    (1_000_000, '#'),
    (100_000, '!'),
    (10_000, '+'),
];

/// The mark of a call that took so many nanoseconds.
pub fn mark(duration_ns: u64) -> char {
    let found = MARKS.iter().find(|(longer, _)| duration_ns > *longer);
    found.map_or(' ', |(_, mark)| *mark)
}

impl Writer<'_> {
    /// Writes the head of `trace`.
    ///
    /// # Errors
    /// That of `out`.
    pub fn head(&self, out: &mut dyn Write) -> fmt::Result {
        let columns = [
            (Options::TIME, "     TIME       ", "      |         "),
            (Options::CPU, " CPU", " |  "),
            (Options::PROCESS, "  TASK/PID       ", "   |    |        "),
            (Options::DURATION, "  DURATION   ", "   |   |      "),
        ];
        out.write_str("# tracer: function_graph\n#\n#")?;
        let shown = || columns.iter().filter(|(bit, ..)| self.options.has(*bit));
        for (_, title, _) in shown() {
            out.write_str(title)?;
        }
        out.write_str("               FUNCTION CALLS\n#")?;
        for (.., line) in shown() {
            out.write_str(line)?;
        }
        out.write_str("               |   |   |   |\n")
    }

    /// Writes what a record of an entry or a return adds. `duration_ns` is that of a return.
    ///
    /// # Errors
    /// That of `out`; `lines` may have changed.
    pub fn call(
        &self,
        lines: &mut Lines,
        call: &Call,
        origin: &Origin,
        duration_ns: u64,
        out: &mut dyn Write,
    ) -> fmt::Result {
        match call {
            Call::Entry(entry) => {
                self.settle(lines, out)?;
                lines.waiting = Some((*entry, *origin));
                Ok(())
            }
            Call::Return(end) => {
                if let Some((entry, at)) = lines.waiting
                    && (entry.function, entry.depth, at.pid)
                        == (end.function, end.depth, origin.pid)
                {
                    lines.waiting = None;
                    return self.leaf(lines, &entry, end, &at, duration_ns, out);
                }
                self.settle(lines, out)?;
                self.closed(lines, end, origin, duration_ns, out)
            }
        }
    }

    /// Writes the entry that waits, because nothing follows it yet.
    ///
    /// # Errors
    /// That of `out`.
    pub fn settle(&self, lines: &mut Lines, out: &mut dyn Write) -> fmt::Result {
        let Some((entry, origin)) = lines.waiting.take() else {
            return Ok(());
        };
        self.arrow(lines, entry.function, "==========>", &origin, out)?;
        self.prologue(lines, &origin, out)?;
        self.no_duration(out)?;
        indent(entry.depth, out)?;
        self.name(entry.function, out)?;
        line::write_arguments(entry.arguments.as_ref(), out)?;
        out.write_str(" {\n")?;
        lines.open(entry.depth, entry.function);
        lines.depth = entry.depth as i32;
        Ok(())
    }

    /// Writes what another record says, without its newline, as a comment.
    ///
    /// # Errors
    /// That of `out`.
    pub fn comment(
        &self,
        lines: &mut Lines,
        text: &str,
        origin: &Origin,
        out: &mut dyn Write,
    ) -> fmt::Result {
        self.settle(lines, out)?;
        self.prologue(lines, origin, out)?;
        self.no_duration(out)?;
        if lines.depth > 0 {
            indent(lines.depth as u32 + 1, out)?;
        }
        writeln!(out, "/* {} */", text.trim_end_matches('\n'))
    }

    fn leaf(
        &self,
        lines: &mut Lines,
        entry: &CallEntry,
        end: &CallReturn,
        origin: &Origin,
        duration_ns: u64,
        out: &mut dyn Write,
    ) -> fmt::Result {
        self.arrow(lines, entry.function, "==========>", origin, out)?;
        self.prologue(lines, origin, out)?;
        self.duration(duration_ns, out)?;
        indent(entry.depth, out)?;
        self.name(entry.function, out)?;
        line::write_arguments(entry.arguments.as_ref(), out)?;
        out.write_str(";")?;
        if self.options.has(Options::RESULT) {
            out.write_str(" /*")?;
            self.result(end.result, out)?;
            out.write_str(" */")?;
        }
        lines.depth = entry.depth as i32 - 1;
        out.write_char('\n')?;
        self.arrow(lines, entry.function, "<==========", origin, out)
    }

    fn closed(
        &self,
        lines: &mut Lines,
        end: &CallReturn,
        origin: &Origin,
        duration_ns: u64,
        out: &mut dyn Write,
    ) -> fmt::Result {
        self.prologue(lines, origin, out)?;
        self.duration(duration_ns, out)?;
        indent(end.depth, out)?;
        out.write_char('}')?;
        // Without its entry there is no telling whose end this is.
        let is_known = lines.opened(end.depth) == Some(end.function);
        let with_result = self.options.has(Options::RESULT);
        if !is_known || with_result || self.options.has(Options::TAIL) {
            out.write_str(" /* ")?;
            self.name(end.function, out)?;
            if with_result {
                self.result(end.result, out)?;
            }
            out.write_str(" */")?;
        }
        lines.open(end.depth, 0);
        lines.depth = end.depth as i32 - 1;
        out.write_char('\n')?;
        self.arrow(lines, end.function, "<==========", origin, out)
    }

    /// Writes an arrow in a line of its own, if it is the function of interrupts.
    fn arrow(
        &self,
        lines: &mut Lines,
        function: u64,
        arrow: &str,
        origin: &Origin,
        out: &mut dyn Write,
    ) -> fmt::Result {
        if self.interrupt != Some(function) {
            return Ok(());
        }
        self.prologue(lines, origin, out)?;
        match self.options.has(Options::DURATION) {
            true => writeln!(out, "  {arrow} |"),
            false => writeln!(out, "{arrow}"),
        }
    }

    /// Writes a result: a negated errno as a number, anything else in hexadecimal.
    fn result(&self, result: u64, out: &mut dyn Write) -> fmt::Result {
        const MOST_ERRNO: u64 = 4095;
        // A result of 32 bits has no sign above them.
        let wide = match result >> 31 {
            1 => result as u32 as i32 as u64,
            _ => result,
        };
        let is_errno = wide >= MOST_ERRNO.wrapping_neg();
        match is_errno && !self.options.has(Options::RESULT_IN_HEX) {
            true => write!(out, " = {}", wide as i64),
            false => write!(out, " = {result:#x}"),
        }
    }

    fn name(&self, function: u64, out: &mut dyn Write) -> fmt::Result {
        write_name(function, self.symbols, out)
    }

    /// Writes all before the duration, and a change of tasks before it.
    fn prologue(&self, lines: &mut Lines, origin: &Origin, out: &mut dyn Write) -> fmt::Result {
        const RULE: &str = " ------------------------------------------\n";
        if let Some(before) = lines.last_pid.replace(origin.pid)
            && before != origin.pid
        {
            out.write_str(RULE)?;
            self.cpu(origin.cpu, out)?;
            self.process(before, out)?;
            out.write_str(" => ")?;
            self.process(origin.pid, out)?;
            write!(out, "\n{RULE}\n")?;
        }
        if self.options.has(Options::TIME) {
            let us = origin.time_ns / 1000;
            write!(out, "{:5}.{:06} |  ", us / 1_000_000, us % 1_000_000)?;
        }
        if self.options.has(Options::CPU) {
            self.cpu(origin.cpu, out)?;
        }
        if self.options.has(Options::PROCESS) {
            self.process(origin.pid, out)?;
            out.write_str(" | ")?;
        }
        Ok(())
    }

    fn cpu(&self, cpu: u32, out: &mut dyn Write) -> fmt::Result {
        let width = self.cpus.saturating_sub(1).checked_ilog10().unwrap_or(0) as usize + 1;
        write!(out, " {cpu:width$}) ")
    }

    /// Writes name and number of a task, in the middle of their column.
    fn process(&self, pid: i32, out: &mut dyn Write) -> fmt::Result {
        const COLUMN: usize = 14;
        let mut text = Cut::<32>::new();
        let mut name = Cut::<7>::new();
        (self.write_comm)(pid, &mut name)?;
        write!(text, "{}-{pid}", name.as_str())?;
        let blanks = COLUMN.saturating_sub(text.as_str().chars().count());
        let (left, right) = (blanks / 2, blanks - blanks / 2);
        write!(out, "{:left$}{}{:right$}", "", text.as_str(), "")
    }

    fn no_duration(&self, out: &mut dyn Write) -> fmt::Result {
        match self.options.has(Options::DURATION) {
            true => out.write_str("              |  "),
            false => Ok(()),
        }
    }

    fn duration(&self, duration_ns: u64, out: &mut dyn Write) -> fmt::Result {
        if !self.options.has(Options::DURATION) {
            return Ok(());
        }
        match self.options.has(Options::OVERHEAD) {
            true => write!(out, "{} ", mark(duration_ns))?,
            false => out.write_str("  ")?,
        }
        write_duration(duration_ns, out)?;
        out.write_str("|  ")
    }
}

fn write_name(function: u64, symbols: &dyn Symbols, out: &mut dyn Write) -> fmt::Result {
    match symbols.symbol(function) {
        Some(symbol) => out.write_str(symbol.name),
        None => write!(out, "{function:#x}"),
    }
}

/// Writes nanoseconds as microseconds, of which at most 7 digits unless there are more before the
/// point, and blanks up to the width of a column.
///
/// # Errors
/// That of `out`.
pub fn write_duration(duration_ns: u64, out: &mut dyn Write) -> fmt::Result {
    let (us, ns) = (duration_ns / 1000, duration_ns % 1000);
    let mut number = Cut::<24>::new();
    write!(number, "{us}")?;
    let digits = number.as_str().len();
    if digits < 7 {
        let mut fraction = Cut::<3>::new();
        write!(fraction, "{ns:03}")?;
        let shown = (7 - digits).min(3);
        write!(number, ".{}", &fraction.as_str()[..shown])?;
    }
    let blanks = 8_usize.saturating_sub(number.as_str().len());
    write!(out, "{} us {:blanks$}", number.as_str(), "")
}

/// Writes two blanks for each level.
fn indent(depth: u32, out: &mut dyn Write) -> fmt::Result {
    let width = depth as usize * 2;
    write!(out, "{:width$}", "")
}

/// A short text; what does not fit is cut off, between two characters.
struct Cut<const MOST: usize> {
    bytes: [u8; MOST],
    len: usize,
}

impl<const MOST: usize> Cut<MOST> {
    const fn new() -> Self {
        Self {
            bytes: [0; MOST],
            len: 0,
        }
    }

    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }
}

impl<const MOST: usize> Write for Cut<MOST> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MOST - self.len;
        let fits = text.floor_char_boundary(room);
        self.bytes[self.len..self.len + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
