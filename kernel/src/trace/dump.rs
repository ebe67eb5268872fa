//! Dumps: the records of the buffer go to the console, and out of the buffer.
//!
//! ```text
//!   command `dump` or `cpudump` at a hit ─► recording is off, and a dump is asked for
//!                                                      │ at the next tick
//!                                                      ▼
//!                      the task `dump`: lines in the form of Linux ─► log ─► console
//! ```
//!
//! A hit may not print, so a task does. Because the hit ends the recording, as on Linux, the task
//! finds the records that the hit has left. The task is there while a command is that may ask. Who
//! takes a command away prints what it has asked for, if the task has not done so yet.
//!
//! What hits do is in [`super::dump_requests`].
//!
//! # Contexts
//! Tasks that may sleep.

use core::fmt::{self, Write};

use fallible::Text;
use tracefs::graph::mark;

use super::{
    TRACING,
    buffer::Item,
    dump_requests::{self, Asker, askers},
    output::{CallLines, DelayMark, Printer},
};
use crate::{
    arch::percpu::MAX_CPUS,
    console,
    errno::Errno,
    pr_emerg,
    sync::Mutex,
    task::{sleep::sleep_ns, spawn_kthread},
    time::{TICK_NS, tsc_to_ns},
};

/// Has the task that prints wait for those who ask, as long as there are any, the one that is
/// returned among them.
///
/// # Errors
/// ENOMEM.
pub fn attend() -> Result<Asker, Errno> {
    let mut askers = askers();
    if !askers.has_task {
        spawn_kthread("dump", serve).map_err(|_| Errno::ENOMEM)?;
        askers.has_task = true;
    }
    Ok(Asker::new(&mut askers))
}

/// The body of the task.
fn serve() {
    loop {
        // A hit cannot wake a task.
        sleep_ns(TICK_NS);
        // Looked at first, so that the last one who asks is served.
        let mut askers = askers();
        let is_last = askers.count == 0;
        askers.has_task = !is_last;
        drop(askers);
        settle();
        if is_last {
            return;
        }
    }
}

/// Prints what is asked for. Afterwards it is printed, whoever does it.
pub fn settle() {
    static PRINTING: Mutex<()> = Mutex::new(());
    let _printing = PRINTING.lock();
    let (all, cpus) = dump_requests::take();
    if all {
        dump(None);
    }
    for cpu in (0..MAX_CPUS).filter(|cpu| cpus >> cpu & 1 != 0) {
        dump(Some(cpu));
    }
}

/// The line before the first record and after the last one.
const RULE: &str = "---------------------------------";

/// Prints the records of that CPU, or of all, and takes them out.
fn dump(cpu: Option<usize>) {
    pr_emerg!("Dumping ftrace buffer:");
    if TRACING.script_runs() {
        pr_emerg!("   (a script has the buffer; end it, and have the dump again)");
        return;
    }
    match dump_records(cpu) {
        Ok(false) => pr_emerg!("   (ftrace buffer empty)"),
        Ok(true) => pr_emerg!("{RULE}"),
        Err(errno) => pr_emerg!("   (cut short: {errno}; the rest is in the file trace)"),
    }
}

/// The bytes of text that are made before they are printed.
const BATCH_BYTES: usize = 4096;

/// The same. Returns whether there were any.
///
/// # Errors
/// ENOMEM; a record for whose text there was no memory is lost.
fn dump_records(cpu: Option<usize>) -> Result<bool, Errno> {
    let mut lines = DumpLines {
        printer: Printer::of_now()?,
        calls: CallLines::new()?,
        ready: Text::new(),
        last: Text::new(),
        mark: None,
    };
    let (mut is_any, mut is_more) = (false, true);
    while is_more {
        let mut result = Ok(());
        is_more = false;
        // What is printed may have to wait, so not under the lock of the rings.
        TRACING.buffer.consume_while(cpu, |item| {
            is_more = true;
            result = lines.add(&item);
            result.is_ok() && lines.ready.len() < BATCH_BYTES
        })?;
        result?;
        if !is_more {
            lines.end()?;
        }
        for line in lines.ready.lines() {
            if !core::mem::replace(&mut is_any, true) {
                pr_emerg!("{RULE}");
            }
            // No line of a long dump is to be dropped.
            console::wait_for_room()?;
            pr_emerg!("{line}");
        }
        lines.ready.clear();
    }
    Ok(is_any)
}

/// The lines of a dump. The last one waits for the next record, whose delay is marked in it.
struct DumpLines {
    printer: Printer,
    calls: CallLines,
    ready: Text,
    last: Text,
    /// Where the last one has its mark.
    mark: Option<DelayMark>,
}

impl DumpLines {
    fn add(&mut self, item: &Item<'_>) -> fmt::Result {
        if let Item::Record { cpu, tsc, .. } = *item {
            self.finish_last(Some(tsc_to_ns(cpu, tsc)))?;
        }
        let before = self.last.len();
        let mark = (self.printer).print_dumped(item, &mut self.calls, &mut self.last)?;
        if let Some(DelayMark { at, time_ns }) = mark {
            let at = before + at;
            self.mark = Some(DelayMark { at, time_ns });
        }
        Ok(())
    }

    /// There are no more records.
    fn end(&mut self) -> fmt::Result {
        self.finish_last(None)?;
        self.printer.settle(&mut self.calls, &mut self.ready)
    }

    /// The next record is of that time.
    fn finish_last(&mut self, next_ns: Option<u64>) -> fmt::Result {
        match (self.mark.take(), next_ns) {
            (Some(DelayMark { at, time_ns }), Some(next_ns)) => {
                let (before, rest) = self.last.split_at(at);
                self.ready.write_str(before)?;
                // Whole microseconds, as on Linux.
                let delay_us = next_ns.saturating_sub(time_ns).saturating_add(500) / 1000;
                self.ready.write_char(mark(delay_us * 1000))?;
                self.ready.write_str(rest.get(1..).unwrap_or_default())?;
            }
            _ => self.ready.write_str(&self.last)?,
        }
        self.last.clear();
        Ok(())
    }
}
