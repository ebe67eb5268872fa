//! The files of tracing, below `/sys/kernel/tracing` and, the same, `/sys/kernel/debug/tracing`.
//!
//! ```text
//!   README, available_events, available_filter_functions, available_tracers
//!   kprobe_events, dynamic_events, kprobe_profile, error_log, set_event
//!   trace, trace_pipe, snapshot, tracing_on, buffer_size_kb, current_tracer, trace_clock
//!   trace_options
//!   options/{overwrite, pause-on-trace}
//!   per_cpu/cpuN/{trace, trace_pipe, snapshot, stats}
//!   events/enable, events/GROUP/enable
//!   events/GROUP/EVENT/{enable, filter, format, hist, id, profile, trigger}
//! ```
//!
//! Names, formats and errnos are those of Linux. `docs/tracing.md` tells the differences.
//!
//! # Contexts
//! Task context, may sleep. No lock of the vfs is held when a file's functions run, except that of
//! the open file's position.

use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    fmt::{self, Write},
    str::FromStr,
    sync::atomic::{AtomicBool, Ordering},
};

use tracefs::{
    definition::{File, MOST_NAME_BYTES},
    filter::{self, FilterError},
    memory::{Text, copied, written},
    readme,
    trigger::{self, Command},
};

use super::{
    buffer::{self, Item, Waiting},
    events::{EVENTS, Name},
    helpers::TRACING_ON,
    names::{self, KernelSymbols},
    output::{self, Printer},
    shared::{Shared, try_box},
};
use crate::{
    arch::percpu,
    arch::smp,
    errno::Errno,
    fs::{
        self, How, Opened, Special, poll_for_data,
        pseudo::{self, VirtualFile},
    },
    sync::Mutex,
    time::ktime_get,
};

/// Where the files are.
const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const READ: u32 = 0o444;
const WRITE: u32 = 0o200;

/// A file of functions.
struct Functions {
    show: fn(&mut dyn Write) -> Result<(), Errno>,
    store: fn(&[u8]) -> Result<(), Errno>,
    /// Content is to be dropped.
    truncate: fn() -> Result<(), Errno>,
    of_lines: bool,
}

impl Functions {
    const fn shows(show: fn(&mut dyn Write) -> Result<(), Errno>) -> Self {
        Self {
            show,
            store: |_| Err(Errno::EINVAL),
            truncate: || Ok(()),
            of_lines: false,
        }
    }

    const fn stores(mut self, store: fn(&[u8]) -> Result<(), Errno>) -> Self {
        self.store = store;
        self
    }

    const fn truncates(mut self, truncate: fn() -> Result<(), Errno>) -> Self {
        self.truncate = truncate;
        self
    }

    const fn of_lines(mut self) -> Self {
        self.of_lines = true;
        self
    }
}

impl VirtualFile for &'static Functions {
    fn open(&self, how: How) -> Result<(), Errno> {
        if how.truncate {
            (self.truncate)()
        } else {
            Ok(())
        }
    }

    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        (self.show)(out)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        (self.store)(data)
    }

    fn is_of_lines(&self) -> bool {
        self.of_lines
    }
}

/// The text that was written, without white space around it.
fn text(data: &[u8]) -> Result<&str, Errno> {
    Ok(str::from_utf8(data).map_err(|_| Errno::EINVAL)?.trim())
}

/// A number.
fn number<T: FromStr>(data: &[u8]) -> Result<T, Errno> {
    text(data)?.parse().map_err(|_| Errno::EINVAL)
}

/// 0 or 1.
fn switch(data: &[u8]) -> Result<bool, Errno> {
    match number::<u64>(data)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// `trace` and similar: pause recording while one of them is open.
static PAUSE_ON_TRACE: AtomicBool = AtomicBool::new(false);

macro_rules! plain {
    ($name:literal, $permissions:expr, $functions:expr) => {{
        static FILE: Functions = $functions;
        ($name, $permissions, &FILE)
    }};
}

/// Puts the files into the tree. Once, at the end of the boot.
///
/// # Errors
/// ENOMEM.
pub fn create() -> Result<(), Errno> {
    let files = [
        plain!(
            "README",
            READ,
            Functions::shows(|out| {
                out.write_str(readme::EVENTS)?;
                Ok(out.write_str(trigger::README)?)
            })
        ),
        plain!(
            "available_events",
            READ,
            Functions::shows(|out| {
                for (name, _) in EVENTS.lock().iter() {
                    writeln!(out, "{}:{}", name.0, name.1)?;
                }
                Ok(())
            })
        ),
        plain!(
            "available_filter_functions",
            READ,
            Functions::shows(|out| names::functions(|name| Ok(writeln!(out, "{name}")?)))
        ),
        plain!(
            "available_tracers",
            READ,
            Functions::shows(|out| Ok(writeln!(out, "nop")?))
        ),
        plain!(
            "current_tracer",
            READ | WRITE,
            Functions::shows(|out| Ok(writeln!(out, "nop")?)).stores(|data| match text(data)? {
                "nop" => Ok(()),
                _ => Err(Errno::EINVAL),
            })
        ),
        plain!(
            "kprobe_events",
            READ | WRITE,
            Functions::shows(|out| EVENTS.lock().show(out))
                .stores(|data| EVENTS.lock().obey(File::KprobeEvents, data))
                .truncates(|| EVENTS.lock().clear())
                .of_lines()
        ),
        plain!(
            "dynamic_events",
            READ | WRITE,
            Functions::shows(|out| EVENTS.lock().show(out))
                .stores(|data| EVENTS.lock().obey(File::DynamicEvents, data))
                .truncates(|| EVENTS.lock().clear())
                .of_lines()
        ),
        plain!(
            "kprobe_profile",
            READ,
            Functions::shows(|out| EVENTS.lock().show_profile(out))
        ),
        plain!(
            "error_log",
            READ | WRITE,
            Functions::shows(|out| Ok(write!(out, "{}", EVENTS.lock().errors)?))
                .stores(|_| Ok(()))
                .truncates(|| {
                    EVENTS.lock().errors.clear();
                    Ok(())
                })
        ),
        plain!(
            "set_event",
            READ | WRITE,
            Functions::shows(|out| {
                for (name, _) in EVENTS
                    .lock()
                    .iter()
                    .filter(|(_, event)| event.is_recorded())
                {
                    writeln!(out, "{}:{}", name.0, name.1)?;
                }
                Ok(())
            })
            .stores(set_event)
            .truncates(|| EVENTS.lock().enable(false, |_| true))
            .of_lines()
        ),
        plain!(
            "tracing_on",
            READ | WRITE,
            Functions::shows(|out| {
                Ok(writeln!(
                    out,
                    "{}",
                    u8::from(TRACING_ON.load(Ordering::Relaxed))
                )?)
            })
            .stores(|data| {
                TRACING_ON.store(number::<u64>(data)? != 0, Ordering::Relaxed);
                Ok(())
            })
        ),
        plain!(
            "buffer_size_kb",
            READ | WRITE,
            Functions::shows(|out| Ok(writeln!(out, "{}", buffer::size_kib())?))
                .stores(|data| buffer::set_size_kib(number(data)?))
        ),
        plain!(
            "trace_clock",
            READ | WRITE,
            Functions::shows(|out| Ok(writeln!(out, "[local]")?)).stores(|data| {
                match text(data)? {
                    "local" => Ok(()),
                    _ => Err(Errno::EINVAL),
                }
            })
        ),
        plain!(
            "trace_options",
            READ | WRITE,
            Functions::shows(|out| {
                for (name, option) in OPTIONS {
                    let no = if (option.get)() { "" } else { "no" };
                    writeln!(out, "{no}{name}")?;
                }
                Ok(())
            })
            .stores(|data| {
                let word = text(data)?;
                let (name, on) = match word.strip_prefix("no") {
                    Some(name) => (name, false),
                    None => (word, true),
                };
                let option = OPTIONS.iter().find(|(known, _)| *known == name);
                (option.ok_or(Errno::EINVAL)?.1.set)(on);
                Ok(())
            })
        ),
        plain!(
            "events/enable",
            READ | WRITE,
            Functions::shows(|out| Ok(writeln!(out, "{}", EVENTS.lock().enabled(|_| true))?))
                .stores(|data| EVENTS.lock().enable(switch(data)?, |_| true))
        ),
    ];
    for root in ROOTS {
        for (name, permissions, file) in files {
            pseudo::create(&format!("{root}/{name}"), permissions, file)?;
        }
        for (name, option) in OPTIONS {
            pseudo::create(&format!("{root}/options/{name}"), READ | WRITE, *option)?;
        }
        create_buffer_files(root, None)?;
        for cpu in 0..smp::possible_cpus() {
            create_buffer_files(&format!("{root}/per_cpu/cpu{cpu}"), Some(cpu))?;
        }
    }
    Ok(())
}

/// Turns events on, or off behind a `!`: `GROUP:EVENT`, where nothing and `*` stand for any, or the
/// name of a group or an event.
fn set_event(data: &[u8]) -> Result<(), Errno> {
    for word in text(data)?.split_ascii_whitespace() {
        let (word, enabled) = match word.strip_prefix('!') {
            Some(word) => (word, false),
            None => (word, true),
        };
        let is = |pattern: &str, name: &str| matches!(pattern, "" | "*") || pattern == name;
        let select = |name: &Name| match word.split_once(':') {
            Some((group, event)) => is(group, &name.0) && is(event, &name.1),
            None => name.0 == word || name.1 == word,
        };
        let mut events = EVENTS.lock();
        if !events.iter().any(|(name, _)| select(name)) {
            return Err(Errno::EINVAL);
        }
        events.enable(enabled, select)?;
    }
    Ok(())
}

/// An option of `trace_options`.
struct TraceOption {
    get: fn() -> bool,
    set: fn(bool),
}

static OPTIONS: &[(&str, &TraceOption)] = &[
    (
        "overwrite",
        &TraceOption {
            get: buffer::overwrites,
            set: buffer::set_overwrite,
        },
    ),
    (
        "pause-on-trace",
        &TraceOption {
            get: || PAUSE_ON_TRACE.load(Ordering::Relaxed),
            set: |on| PAUSE_ON_TRACE.store(on, Ordering::Relaxed),
        },
    ),
];

impl VirtualFile for &'static TraceOption {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        Ok(writeln!(out, "{}", u8::from((self.get)()))?)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        (self.set)(switch(data)?);
        Ok(())
    }
}

/// `trace`, `trace_pipe`, `snapshot` and `stats`, of all CPUs or of one.
fn create_buffer_files(directory: &str, cpu: Option<usize>) -> Result<(), Errno> {
    let trace = Trace { cpu };
    pseudo::create_special(&format!("{directory}/trace"), READ | WRITE, trace)?;
    let pipe = Pipe { cpu };
    pseudo::create_special(&format!("{directory}/trace_pipe"), READ, pipe)?;
    let snapshot = SnapshotFile { cpu };
    pseudo::create(&format!("{directory}/snapshot"), READ | WRITE, snapshot)?;
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
            pauses: false,
            text: pseudo::Snapshot::default(),
        })?;
        if how.truncate {
            buffer::clear(self.cpu);
        }
        opened.pauses = how.read && PAUSE_ON_TRACE.load(Ordering::Relaxed);
        if opened.pauses {
            super::records::pause();
        }
        Ok(opened)
    }
}

struct OpenTrace {
    cpu: Option<usize>,
    pauses: bool,
    text: pseudo::Snapshot,
}

impl Opened for OpenTrace {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.text
            .read(at, buf, |out| Ok(output::show(self.cpu, out)?))
    }

    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        Ok(data.len())
    }
}

impl Drop for OpenTrace {
    fn drop(&mut self) {
        if self.pauses {
            super::records::resume();
        }
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
    /// Whether a read has returned text.
    has_read: bool,
}

impl OpenPipe {
    /// Takes records out until their text fills `room` bytes or none is left.
    ///
    /// # Errors
    /// ENOMEM. A record that was taken out waits for the next call.
    fn fill(&self, taken: &mut Taken, room: usize) -> Result<(), Errno> {
        let Taken { text, waiting, .. } = taken;
        let mut printer = Printer::of_now()?;
        let mut line = Text::new();
        let mut print = |item: &Item<'_>, text: &mut Vec<u8>| {
            line.clear();
            printer.print(item, &mut line)?;
            text.try_reserve(line.len()).map_err(|_| Errno::ENOMEM)?;
            text.extend_from_slice(line.as_bytes());
            Ok(())
        };
        if let Some(item) = waiting.item() {
            print(&item, text)?;
            waiting.clear();
        }
        if text.len() >= room {
            return Ok(());
        }
        let mut result = Ok(());
        buffer::consume_while(self.cpu, |item| {
            result = print(&item, text);
            if result.is_err() {
                waiting.put(&item);
            }
            result.is_ok() && text.len() < room
        })?;
        result
    }
}

impl Opened for OpenPipe {
    fn read(&self, _at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut taken = self.taken.lock();
        loop {
            // Looked at first, so that all that was recorded until then is read.
            let is_recording = TRACING_ON.load(Ordering::SeqCst);
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
        Ok(output::show_snapshot(self.cpu, out)?)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        match number::<u64>(data)? {
            0 if self.cpu.is_some() => Err(Errno::EINVAL),
            0 => buffer::free_snapshot(),
            1 => buffer::take_snapshot(self.cpu),
            _ => {
                buffer::clear_snapshot(self.cpu);
                Ok(())
            }
        }
    }
}

/// The file `stats` of a CPU.
struct StatsFile {
    cpu: usize,
}

impl VirtualFile for StatsFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let stats = buffer::stats(self.cpu);
        writeln!(out, "entries: {}", stats.unread)?;
        writeln!(out, "overrun: {}", stats.overwritten)?;
        writeln!(out, "commit overrun: {}", stats.nested)?;
        writeln!(out, "bytes: {}", stats.unread_bytes)?;
        let oldest = buffer::oldest(self.cpu)?.unwrap_or(0);
        for (name, time_ns) in [("oldest event", oldest), ("now", ktime_get())] {
            // Rounded, as in a line of `trace`.
            let us = (time_ns + 500) / 1000;
            let (s, us) = (us / 1_000_000, us % 1_000_000);
            writeln!(out, "{name} ts: {s:5}.{us:06}")?;
        }
        writeln!(out, "dropped events: {}", stats.full + stats.too_long)?;
        writeln!(out, "read events: {}", stats.read)?;
        // Not a line of Linux: hits of this CPU since the boot that came while recording was off.
        let off = percpu::of(self.cpu).records_off.load(Ordering::Relaxed);
        Ok(writeln!(out, "events while off: {off}")?)
    }

    fn store(&self, _data: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}

/// A file of an event.
struct EventFile {
    name: Shared<Name>,
    /// The event's number. Another event may have the name later.
    id: u16,
    kind: EventFileKind,
}

#[derive(Clone, Copy)]
enum EventFileKind {
    Enable,
    Filter,
    Format,
    Id,
    Trigger,
    Hist,
    Profile,
}

const EVENT_FILES: [(&str, u32, EventFileKind); 7] = [
    ("enable", READ | WRITE, EventFileKind::Enable),
    ("filter", READ | WRITE, EventFileKind::Filter),
    ("format", READ, EventFileKind::Format),
    ("id", READ, EventFileKind::Id),
    ("trigger", READ | WRITE, EventFileKind::Trigger),
    ("hist", READ, EventFileKind::Hist),
    ("profile", READ, EventFileKind::Profile),
];

impl VirtualFile for EventFile {
    /// Histograms begin anew with `> trigger`. Other triggers stay.
    fn open(&self, how: How) -> Result<(), Errno> {
        match self.kind {
            EventFileKind::Trigger if how.truncate => {
                let mut events = EVENTS.lock();
                events.numbered(&self.name, self.id)?.remove_histograms()
            }
            _ => Ok(()),
        }
    }

    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let mut events = EVENTS.lock();
        let event = events.numbered(&self.name, self.id)?;
        match self.kind {
            EventFileKind::Enable => writeln!(out, "{}", event.enabled_text())?,
            EventFileKind::Filter => match (&event.refused_filter, &event.filter) {
                (Some(refused), _) => out.write_str(refused)?,
                (None, Some(filter)) => writeln!(out, "{}", filter.text())?,
                (None, None) => writeln!(out, "none")?,
            },
            EventFileKind::Format => event.layout.write_format(&self.name.1, event.id, out)?,
            EventFileKind::Id => writeln!(out, "{}", event.id)?,
            EventFileKind::Trigger if event.triggers.is_empty() => {
                write!(out, "{}", trigger::Available(&Command::ALL))?;
            }
            EventFileKind::Trigger => event.show_triggers(out)?,
            EventFileKind::Hist => event.show_histograms(out)?,
            // Not a file of Linux, whose `kprobe_profile` has no column for what a filter rejects.
            EventFileKind::Profile => {
                let profile = event.profile();
                writeln!(out, "hits: {}", profile.hits)?;
                writeln!(out, "filtered: {}", profile.filtered)?;
                writeln!(out, "unasked: {}", profile.unasked)?;
                writeln!(out, "missed: {}", profile.misses)?;
            }
        }
        Ok(())
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        let mut events = EVENTS.lock();
        let event = events.numbered(&self.name, self.id)?;
        match self.kind {
            EventFileKind::Enable => event.enable(switch(data)?),
            EventFileKind::Filter => {
                let text = text(data)?;
                let request = filter::Request::parse(text, &event.layout.fields, &KernelSymbols);
                let error = match request {
                    Ok(request) => {
                        let set = event.set_filter(match request {
                            filter::Request::Clear => None,
                            filter::Request::Set(filter) => Some(filter),
                        });
                        match set {
                            Ok(()) => {
                                event.refused_filter = None;
                                return Ok(());
                            }
                            Err(Errno::EINVAL) => FilterError::TOO_LARGE,
                            Err(errno) => return Err(errno),
                        }
                    }
                    Err(error) => error,
                };
                event.refused_filter = written(&error.shown(text)).ok();
                let (now, reason) = (ktime_get(), error.reason.text());
                let location = FilterError::LOCATION;
                (events.errors).add(now, location, &reason, &text, error.column);
                Err(Errno::from_code(error.errno()).unwrap_or(Errno::EINVAL))
            }
            EventFileKind::Trigger => {
                for line in text(data)?.lines().filter(|line| !line.trim().is_empty()) {
                    events.set_trigger(&self.name, line)?;
                }
                Ok(())
            }
            EventFileKind::Format
            | EventFileKind::Id
            | EventFileKind::Hist
            | EventFileKind::Profile => Err(Errno::EINVAL),
        }
    }
}

/// The file `enable` of a group.
struct GroupFile {
    group: String,
}

impl VirtualFile for GroupFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let enabled = EVENTS.lock().enabled(|(group, _)| *group == self.group);
        Ok(writeln!(out, "{enabled}")?)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        let enabled = switch(data)?;
        EVENTS
            .lock()
            .enable(enabled, |(group, _)| *group == self.group)
    }
}

/// The path of a file of events. It takes no memory, so that events can also go when there is none.
struct Path {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Path {
    /// The parts around the names of a group and an event have less than 64 bytes.
    const MOST: usize = 2 * MOST_NAME_BYTES + 64;

    /// # Errors
    /// ENAMETOOLONG.
    fn of(path: fmt::Arguments<'_>) -> Result<Self, Errno> {
        let mut own = Self {
            bytes: [0; Self::MOST],
            len: 0,
        };
        own.write_fmt(path).map_err(|_| Errno::ENAMETOOLONG)?;
        Ok(own)
    }

    fn text(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = self.bytes.get_mut(self.len..).unwrap_or_default();
        let place = rest.get_mut(..text.len()).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Puts the files of an event into the tree; those of its group, too, if `with_group`. The list of
/// events is locked.
///
/// # Errors
/// ENOMEM; then none is there.
pub fn create_event(name: &Name, id: u16, with_group: bool) -> Result<(), Errno> {
    let result = create_event_files(name, id, with_group);
    if result.is_err() {
        remove_event(name, with_group);
    }
    result
}

fn create_event_files(name: &Name, id: u16, with_group: bool) -> Result<(), Errno> {
    let own = |text: &str| copied(text).map_err(|_| Errno::ENOMEM);
    let shared = Shared::try_new((own(&name.0)?, own(&name.1)?))?;
    for root in ROOTS {
        if with_group {
            let path = Path::of(format_args!("{root}/events/{}/enable", name.0))?;
            let group = own(&name.0)?;
            pseudo::create(path.text(), READ | WRITE, GroupFile { group })?;
        }
        for (file, permissions, kind) in EVENT_FILES {
            let path = Path::of(format_args!("{root}/events/{}/{}/{file}", name.0, name.1))?;
            let name = shared.clone();
            pseudo::create(path.text(), permissions, EventFile { name, id, kind })?;
        }
    }
    Ok(())
}

/// Takes the files of an event away, and its group with them if `with_group`. It takes no memory.
/// The list of events is locked. Files that are open stay so, and say ENODEV.
pub fn remove_event(name: &Name, with_group: bool) {
    for root in ROOTS {
        let path = match with_group {
            true => Path::of(format_args!("{root}/events/{}", name.0)),
            false => Path::of(format_args!("{root}/events/{}/{}", name.0, name.1)),
        };
        // A file that is not there need not go.
        let _ = path.and_then(|path| fs::uninstall_all(path.text().as_bytes()));
    }
}
