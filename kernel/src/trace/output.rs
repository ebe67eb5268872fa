//! Records as lines of text: `trace` and `trace_pipe`.
//!
//! # Contexts
//! Task context, may sleep.

#![forbid(unsafe_code)]

use alloc::{string::String, vec::Vec};
use core::fmt::{self, Write};

use fallible::{Text, written};
use tracefs::line::{self, Origin, stack};

use super::{
    TRACING,
    buffer::{Item, Which},
    events::{EVENTS, Layouts},
    names::CachedSymbols,
};
use crate::{
    arch::smp,
    errno::Errno,
    task::{Pid, comms},
    time,
};

/// The events that records may belong to, and the names of tasks that were asked for.
pub struct Printer {
    layouts: Layouts,
    comms: Vec<(Pid, String)>,
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
        Ok(Self {
            layouts: EVENTS.lock().layouts()?,
            comms: Vec::new(),
            symbols: CachedSymbols::empty(),
            line: Text::new(),
        })
    }

    /// Writes the line of `item`.
    ///
    /// # Errors
    /// That of `out`, or there is no memory.
    pub fn print(&mut self, item: &Item<'_>, out: &mut dyn Write) -> fmt::Result {
        let (cpu, tsc, record) = match *item {
            Item::Lost { cpu, count } => return line::write_lost(cpu as u32, count, out),
            Item::Record { cpu, tsc, bytes } => (cpu, tsc, bytes),
        };
        let word = |at: usize| {
            record
                .get(at..at + 4)
                .and_then(|bytes| bytes.first_chunk::<4>())
        };
        let id = word(0).map_or(0, |bytes| u32::from_le_bytes(*bytes)) as u16;
        let pid = word(4).map_or(0, |bytes| i32::from_le_bytes(*bytes));
        let comm = name_of(pid, &mut self.comms)?;
        let origin = Origin {
            comm,
            cpu: cpu as u32,
            time_ns: time::tsc_to_ns(cpu, tsc),
        };
        let text = &mut self.line;
        text.clear();
        match self.layouts.of(id) {
            _ if id == stack::ID => {
                line::write_stack(record, &origin, &self.symbols, text)?;
            }
            Some((name, layout)) => {
                line::write_line(name, layout, record, &origin, &self.symbols, text)?;
            }
            None => {
                line::write_prefix(record, &origin, text)?;
                writeln!(text, "Unknown type {id}")?;
            }
        }
        out.write_str(text)
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

/// Writes the text of `trace`, of all CPUs or of one.
///
/// # Errors
/// That of `out`.
pub fn show(cpu: Option<usize>, out: &mut dyn Write) -> fmt::Result {
    let (unread, written) = counts(Which::Live, cpu);
    line::write_header(TRACER, unread, written, smp::online_cpus(), out)?;
    show_records(Which::Live, cpu, out)
}

/// Writes the text of `snapshot`, of all CPUs or of one. Without records it tells how to use the
/// file.
///
/// # Errors
/// That of `out`.
pub fn show_snapshot(cpu: Option<usize>, out: &mut dyn Write) -> fmt::Result {
    TRACING.buffer.settle_snapshot();
    let (unread, written) = counts(Which::Snapshot, cpu);
    if unread > 0 {
        line::write_header(TRACER, unread, written, smp::online_cpus(), out)?;
        return show_records(Which::Snapshot, cpu, out);
    }
    line::write_snapshot_help(TRACER, TRACING.buffer.has_snapshot(), cpu.is_some(), out)
}

const TRACER: &str = "nop";

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

fn show_records(which: Which, cpu: Option<usize>, out: &mut dyn Write) -> fmt::Result {
    let mut printer = Printer::of_now().map_err(|_| fmt::Error)?;
    let mut result = Ok(());
    let viewed = TRACING.buffer.view(which, cpu, |item| {
        result = printer.print(&item, out);
        result.is_ok()
    });
    viewed.map_err(|_| fmt::Error).and(result)
}
