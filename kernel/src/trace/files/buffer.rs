//! The files of the trace buffer: `trace`, `trace_pipe`, `snapshot`, `buffer_size_kb` and `stats`,
//! of all CPUs or of one; and `trace_marker`, by which a program puts its own words among the
//! records.
//!
//! A read of `trace` shows the records and leaves them; a read of `trace_pipe` takes them out. Text
//! for which a read had no room, and a record for whose text there was no memory, wait in the open
//! file ([`Taken`]), so neither is lost.
//!
//! # Contexts
//! Task context, may sleep. A program that records cannot wake a task, so a reader that waits looks
//! again at each tick.

use alloc::{boxed::Box, format, vec::Vec};
use core::{
    fmt::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    input::number,
    paths::{READ, WRITE},
};
use crate::{
    arch::{percpu, smp},
    errno::Errno,
    fs::{
        How, Opened, Special, poll_for_data,
        pseudo::{self, VirtualFile},
    },
    mm::{
        frame::{self, FRAME_SIZE},
        user_space::KERNEL_RESERVE,
    },
    pr_err,
    sync::Mutex,
    time::{ktime_get, tsc_to_ns},
    trace::{
        MarkError, TRACING,
        buffer::{Item, MOST_KIB, Waiting},
        output::{self, CallLines, Printer},
        shared::try_box,
        tracers::TRACERS,
    },
};
use fallible::Text;
use trace_agent::records::Pause;

/// `trace` and similar: pause recording while one of them is open.
pub(super) static PAUSE_ON_TRACE: AtomicBool = AtomicBool::new(false);

/// `trace`, `trace_pipe`, `snapshot` and `buffer_size_kb`, of all CPUs or of one; `stats` of one.
pub(super) fn create(directory: &str, cpu: Option<usize>) -> Result<(), Errno> {
    let trace = Trace { cpu };
    pseudo::create_special(&format!("{directory}/trace"), READ | WRITE, trace)?;
    let pipe = Pipe { cpu };
    pseudo::create_special(&format!("{directory}/trace_pipe"), READ, pipe)?;
    let snapshot = SnapshotFile { cpu };
    pseudo::create(&format!("{directory}/snapshot"), READ | WRITE, snapshot)?;
    let size = SizeFile { cpu };
    pseudo::create(&format!("{directory}/buffer_size_kb"), READ | WRITE, size)?;
    match cpu {
        Some(cpu) => pseudo::create(&format!("{directory}/stats"), READ, StatsFile { cpu }),
        None => Ok(()),
    }
}

/// The file `trace`. Opening it with truncation clears the buffer.
struct Trace {
    cpu: Option<usize>,
}

impl Special for Trace {
    fn open(&self, how: How) -> Result<Box<dyn Opened>, Errno> {
        let mut opened = try_box(OpenTrace {
            cpu: self.cpu,
            _pause: None,
            text: pseudo::Snapshot::default(),
        })?;
        if how.truncate {
            TRACING.buffer.clear(self.cpu);
            // Those are the calls of all CPUs.
            if self.cpu.is_none() {
                TRACERS.lock().forget_missed();
            }
        }
        if how.read && PAUSE_ON_TRACE.load(Ordering::Relaxed) {
            opened._pause = Some(TRACING.recording.pause());
        }
        Ok(opened)
    }
}

struct OpenTrace {
    cpu: Option<usize>,
    /// Recording rests while the file is open.
    _pause: Option<Pause<'static>>,
    text: pseudo::Snapshot,
}

impl Opened for OpenTrace {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.text.read(at, buf, |out| output::show(self.cpu, out))
    }

    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        Ok(data.len())
    }
}

/// The file `trace_marker`: each write is a record.
pub(super) struct Marker;

impl Special for Marker {
    fn open(&self, _: How) -> Result<Box<dyn Opened>, Errno> {
        TRACING.buffer.ready()?;
        Ok(try_box(Self)?)
    }
}

impl Opened for Marker {
    fn read(&self, _at: u64, _buf: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// EBADF if no records are taken, as on Linux.
    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        TRACING.mark(data).map_err(|error| match error {
            MarkError::ScriptRuns => Errno::EBUSY,
            MarkError::NotTaken => Errno::EBADF,
        })
    }
}

/// The file `trace_pipe`: reads take records out, and wait for them. It ends if recording is off
/// and something was read before.
struct Pipe {
    cpu: Option<usize>,
}

impl Special for Pipe {
    fn open(&self, how: How) -> Result<Box<dyn Opened>, Errno> {
        Ok(try_box(OpenPipe {
            cpu: self.cpu,
            nonblocking: how.nonblocking,
            taken: Mutex::new(Taken {
                text: Vec::new(),
                waiting: Waiting::try_new()?,
                calls: CallLines::new()?,
                has_read: false,
            }),
        })?)
    }
}

struct OpenPipe {
    cpu: Option<usize>,
    nonblocking: bool,
    taken: Mutex<Taken>,
}

/// Taken out of the rings, and not read yet: in this order.
struct Taken {
    /// The text for which a read had no room.
    text: Vec<u8>,
    /// A record for whose text there was no memory.
    waiting: Waiting,
    /// The lines of each CPU so far.
    calls: CallLines,
    /// Whether a read has returned text.
    has_read: bool,
}

impl OpenPipe {
    /// Takes records out until their text fills `room` bytes or none is left.
    ///
    /// # Errors
    /// ENOMEM. A record that was taken out waits for the next call.
    fn fill(&self, taken: &mut Taken, room: usize) -> Result<(), Errno> {
        let Taken {
            text,
            waiting,
            calls,
            ..
        } = taken;
        let mut printer = Printer::of_now()?;
        let mut print = |item: &Item<'_>, text: &mut Vec<u8>| {
            append(text, |line| printer.print(item, calls, line))
        };
        if let Some(item) = waiting.item() {
            print(&item, text)?;
            waiting.clear();
        }
        if text.len() >= room {
            return Ok(());
        }
        let mut result = Ok(());
        TRACING.buffer.consume_while(self.cpu, |item| {
            result = print(&item, text);
            if result.is_err() {
                waiting.put(&item);
            }
            result.is_ok() && text.len() < room
        })?;
        result?;
        if text.len() < room {
            append(text, |line| printer.settle(calls, line))?;
        }
        Ok(())
    }
}

/// Appends what `write` writes.
///
/// # Errors
/// ENOMEM; nothing is appended then.
fn append(
    text: &mut Vec<u8>,
    write: impl FnOnce(&mut dyn Write) -> fmt::Result,
) -> Result<(), Errno> {
    let mut line = Text::new();
    write(&mut line)?;
    text.try_reserve(line.len()).map_err(|_| Errno::ENOMEM)?;
    text.extend_from_slice(line.as_bytes());
    Ok(())
}

impl Opened for OpenPipe {
    fn read(&self, _at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut taken = self.taken.lock();
        loop {
            // Looked at first, so that all that was recorded until then is read.
            let is_recording = TRACING.recording.wanted().load(Ordering::SeqCst);
            self.fill(&mut taken, buf.len())?;
            let text = &mut taken.text;
            if !text.is_empty() || buf.is_empty() {
                let len = buf.len().min(text.len());
                buf[..len].copy_from_slice(&text[..len]);
                text.drain(..len);
                taken.has_read |= len > 0;
                return Ok(len);
            }
            if self.nonblocking {
                return Err(Errno::EAGAIN);
            }
            // A reader that has read nothing waits for recording to begin.
            if taken.has_read && !is_recording {
                return Ok(0);
            }
            // A program that records may not wake a task, so this looks again at the next tick.
            let mut has_waited = false;
            poll_for_data(|| core::mem::replace(&mut has_waited, true))?;
        }
    }

    fn write(&self, _at: u64, _data: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }
}

/// The file `snapshot`.
struct SnapshotFile {
    cpu: Option<usize>,
}

impl VirtualFile for SnapshotFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        output::show_snapshot(self.cpu, out)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        match number::<u64>(data)? {
            0 if self.cpu.is_some() => Err(Errno::EINVAL),
            0 => Ok(TRACING.buffer.free_snapshot()?),
            1 => Ok(TRACING.buffer.take_snapshot(self.cpu)?),
            _ => {
                TRACING.buffer.clear_snapshot(self.cpu);
                Ok(())
            }
        }
    }
}

/// The sizes of the CPUs' buffers, in KiB.
pub(super) fn sizes_kib() -> impl Iterator<Item = usize> {
    (0..smp::possible_cpus()).map(|cpu| TRACING.buffer.size_kib(cpu))
}

/// Gives each CPU, or one of them, a buffer of so many KiB. The old ones are freed after the new
/// ones are there, and what programs and files need stays free.
///
/// # Errors
/// EINVAL for 0 or too much, ENOMEM, EBUSY while the host reads the buffers.
fn resize(cpu: Option<usize>, kib: usize) -> Result<(), Errno> {
    let (cpus, grows) = match cpu {
        Some(cpu) => (1, kib > TRACING.buffer.size_kib(cpu)),
        None => (smp::possible_cpus(), sizes_kib().any(|size| kib > size)),
    };
    let bytes = kib.saturating_mul(1024).saturating_mul(cpus);
    let frames = bytes.div_ceil(FRAME_SIZE);
    if kib > MOST_KIB {
        pr_err!("trace: the buffer of a CPU has 1 to {MOST_KIB} KiB");
    } else if grows && frames.saturating_add(KERNEL_RESERVE) > frame::free_frames() {
        pr_err!("trace: buffers of {kib} KiB leave too little memory for programs and files");
        return Err(Errno::ENOMEM);
    }
    Ok(TRACING.buffer.set_size_kib(cpu, kib)?)
}

/// The file `buffer_size_kb`.
struct SizeFile {
    cpu: Option<usize>,
}

impl VirtualFile for SizeFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let size = TRACING.buffer.size_kib(self.cpu.unwrap_or(0));
        // As Linux shows that the sizes differ.
        if self.cpu.is_none() && sizes_kib().any(|other| other != size) {
            return Ok(out.write_str("X\n")?);
        }
        Ok(writeln!(out, "{size}")?)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        resize(self.cpu, number(data)?)
    }
}

/// The file `stats` of a CPU.
struct StatsFile {
    cpu: usize,
}

impl VirtualFile for StatsFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let stats = TRACING.buffer.stats(self.cpu);
        writeln!(out, "entries: {}", stats.unread)?;
        writeln!(out, "overrun: {}", stats.overwritten)?;
        writeln!(out, "commit overrun: {}", stats.nested)?;
        writeln!(out, "bytes: {}", stats.unread_bytes)?;
        let oldest = TRACING.buffer.oldest(self.cpu)?;
        let oldest = oldest.map_or(0, |tsc| tsc_to_ns(self.cpu, tsc));
        for (name, time_ns) in [("oldest event", oldest), ("now", ktime_get())] {
            // Rounded, as in a line of `trace`.
            let us = (time_ns + 500) / 1000;
            let (s, us) = (us / 1_000_000, us % 1_000_000);
            writeln!(out, "{name} ts: {s:5}.{us:06}")?;
        }
        writeln!(out, "dropped events: {}", stats.full + stats.too_long)?;
        writeln!(out, "read events: {}", stats.read)?;
        // Not a line of Linux: hits of this CPU since the boot that came while recording was off.
        let off = percpu::of(self.cpu).tracing.records_off();
        Ok(writeln!(out, "events while off: {off}")?)
    }

    fn store(&self, _data: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}
