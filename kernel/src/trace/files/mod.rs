//! The files of tracing, below `/sys/kernel/tracing` and, the same, `/sys/kernel/debug/tracing`.
//!
//! ```text
//!   README, available_events, available_filter_functions, available_tracers
//!   kprobe_events, uprobe_events, dynamic_events, kprobe_profile, uprobe_profile, error_log
//!   set_event, set_event_pid, set_event_notrace_pid
//!   trace, trace_pipe, trace_marker, snapshot, tracing_on, buffer_size_kb, buffer_total_size_kb
//!   current_tracer, trace_clock, trace_options, tracing_cpumask
//!   saved_cmdlines, saved_cmdlines_size, saved_tgids
//!   set_ftrace_filter, set_ftrace_notrace, set_graph_function, set_graph_notrace
//!   set_ftrace_pid, set_ftrace_notrace_pid, enabled_functions, touched_functions
//!   max_graph_depth, tracing_thresh
//!   function_profile_enabled, trace_stat/functionN
//!   options/{overwrite, pause-on-trace, annotate, record-tgid, stacktrace, event-fork,
//!            function-fork, func_stack_trace, func-args, funcgraph-…, sleep-time, graph-time}
//!   per_cpu/cpuN/{trace, trace_pipe, snapshot, stats, buffer_size_kb}
//!   events/enable, events/GROUP/{enable, filter}
//!   events/GROUP/EVENT/{enable, filter, format, hist, id, profile, trigger}
//! ```
//!
//! Names, formats and errnos are those of Linux. `docs/tracefs.md` tells the differences.
//!
//! | file | content |
//! |---|---|
//! | this one | the files that are there once, as a table: [`FILES`], [`OPTIONS`] |
//! | [`buffer`] | files of the trace buffer, of all CPUs and of each |
//! | [`event`] | files of each event and group, which come and go with the event |
//! | [`tracer`] | files of the tracers of all functions, and of all sets |
//! | [`functions`] | a file of plain functions |
//! | [`input`], [`paths`] | what is written, as values; where the files are |
//!
//! # Contexts
//! Task context, may sleep. No lock of the vfs is held when a file's functions run, except that of
//! the open file's position.

#![forbid(unsafe_code)]

mod buffer;
mod event;
mod functions;
mod input;
mod paths;
mod tracer;

use alloc::format;
use core::{
    fmt::Write,
    sync::atomic::{AtomicBool, Ordering},
};

use tracefs::{
    cpu_mask::{CpuMask, CpuMaskError},
    definition::File,
    graph, readme, trigger,
};

use self::{
    buffer::PAUSE_ON_TRACE,
    functions::Functions,
    input::{number, switch, text},
    paths::{READ, ROOTS, WRITE},
    tracer::GraphOption,
};
use super::{
    TRACING,
    event::Event,
    events::{EVENTS, Name},
    follow, names, output, sleep,
    tasks::TaskUser,
    tracers::{Switch, TRACERS, Times},
};
use crate::{
    arch::smp,
    errno::Errno,
    fs::pseudo::{self, VirtualFile},
    task::comms,
};

/// Name, permissions and functions of the files that are there once.
static FILES: &[(&str, u32, Functions)] = &[
    ("README", READ, Functions::shows(show_readme)),
    (
        "available_events",
        READ,
        Functions::shows(|out| show_names(|_| true, out)),
    ),
    (
        "available_filter_functions",
        READ,
        Functions::shows(|out| names::functions(|name| Ok(writeln!(out, "{name}")?))),
    ),
    (
        "kprobe_events",
        READ | WRITE,
        definitions(
            |out| EVENTS.lock().show(File::KprobeEvents, out),
            |data| EVENTS.lock().obey(File::KprobeEvents, data),
            || EVENTS.lock().clear(File::KprobeEvents),
        ),
    ),
    (
        "uprobe_events",
        READ | WRITE,
        definitions(
            |out| EVENTS.lock().show(File::UprobeEvents, out),
            |data| EVENTS.lock().obey(File::UprobeEvents, data),
            || EVENTS.lock().clear(File::UprobeEvents),
        ),
    ),
    (
        "dynamic_events",
        READ | WRITE,
        definitions(
            |out| EVENTS.lock().show(File::DynamicEvents, out),
            |data| EVENTS.lock().obey(File::DynamicEvents, data),
            || EVENTS.lock().clear(File::DynamicEvents),
        ),
    ),
    (
        "kprobe_profile",
        READ,
        Functions::shows(|out| EVENTS.lock().show_profile(out)),
    ),
    (
        "uprobe_profile",
        READ,
        Functions::shows(|out| EVENTS.lock().show_user_profile(out)),
    ),
    (
        "error_log",
        READ | WRITE,
        Functions::shows(|out| Ok(write!(out, "{}", EVENTS.lock().errors)?))
            .stores(|_| Ok(()))
            .truncates(|| {
                EVENTS.lock().errors.clear();
                Ok(())
            }),
    ),
    (
        "set_event",
        READ | WRITE,
        Functions::shows(|out| show_names(Event::is_wanted, out))
            .stores(set_event)
            .truncates(|| EVENTS.lock().enable(false, |_| true))
            .of_lines(),
    ),
    (
        "tracing_on",
        READ | WRITE,
        Functions::shows(|out| {
            let on = TRACING.recording.wanted().load(Ordering::Relaxed);
            Ok(writeln!(out, "{}", u8::from(on))?)
        })
        .stores(|data| {
            TRACING
                .recording
                .wanted()
                .store(number::<u64>(data)? != 0, Ordering::Relaxed);
            Ok(())
        }),
    ),
    (
        "buffer_total_size_kb",
        READ,
        Functions::shows(|out| {
            let kib: usize = buffer::sizes_kib().sum();
            Ok(writeln!(out, "{kib}")?)
        }),
    ),
    (
        "saved_cmdlines",
        READ,
        Functions::shows(|out| output::show_tasks(false, out)),
    ),
    (
        "saved_cmdlines_size",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "{}", comms::places())?)).stores(|data| {
            match number(data)? {
                count @ 1..=comms::MOST_PLACES => Ok(comms::set_places(count)?),
                _ => Err(Errno::EINVAL),
            }
        }),
    ),
    (
        "saved_tgids",
        READ,
        Functions::shows(|out| match KEEPS_GROUPS.load(Ordering::Relaxed) {
            true => output::show_tasks(true, out),
            false => Ok(()),
        }),
    ),
    (
        "tracing_cpumask",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "{}", chosen_cpus())?)).stores(|data| {
            let mask = CpuMask::parse(data, smp::possible_cpus()).map_err(|error| match error {
                CpuMaskError::NoNumber => Errno::EINVAL,
                CpuMaskError::TooLarge => Errno::EOVERFLOW,
            })?;
            (TRACING.buffer).choose_cpus(|cpu| mask.bits & 1 << cpu != 0);
            Ok(())
        }),
    ),
    (
        "trace_clock",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "[local]")?)).stores(|data| only("local", data)),
    ),
    (
        "trace_options",
        READ | WRITE,
        Functions::shows(show_options).stores(set_option),
    ),
    (
        "events/enable",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "{}", EVENTS.lock().enabled(|_| true))?))
            .stores(|data| EVENTS.lock().enable(switch(data)?, |_| true)),
    ),
];

/// The CPUs that begin records.
fn chosen_cpus() -> CpuMask {
    let cpus = smp::possible_cpus();
    let chosen = (0..cpus).filter(|cpu| TRACING.buffer.is_chosen(*cpu));
    let bits = chosen.fold(0, |bits, cpu| bits | 1 << cpu);
    CpuMask { bits, cpus }
}

/// The option `record-tgid` has been on since the boot.
static KEEPS_GROUPS: AtomicBool = AtomicBool::new(false);

/// A file of definitions.
const fn definitions(
    show: fn(&mut dyn Write) -> Result<(), Errno>,
    store: fn(&[u8]) -> Result<(), Errno>,
    clear: fn() -> Result<(), Errno>,
) -> Functions {
    Functions::shows(show)
        .stores(store)
        .truncates(clear)
        .of_lines()
}

/// An option of `trace_options`.
struct TraceOption {
    get: fn() -> bool,
    set: fn(bool) -> Result<(), Errno>,
}

/// The option that is a switch of the tracers.
macro_rules! switch_option {
    ($switch:ident) => {
        TraceOption {
            get: || TRACERS.lock().is_on(Switch::$switch),
            set: |on| TRACERS.lock().set_switch(Switch::$switch, on),
        }
    };
}

/// The option that has sets of tasks follow their children.
macro_rules! fork_option {
    ($user:ident) => {
        TraceOption {
            get: || follow::is_on(TaskUser::$user),
            set: |on| {
                follow::set(TaskUser::$user, on);
                Ok(())
            },
        }
    };
}

/// Their names, which are those of files in `options`, too.
static OPTIONS: &[(&str, TraceOption)] = &[
    (
        "overwrite",
        TraceOption {
            get: || TRACING.buffer.overwrites(),
            set: |on| {
                TRACING.buffer.set_overwrite(on);
                Ok(())
            },
        },
    ),
    (
        "pause-on-trace",
        TraceOption {
            get: || PAUSE_ON_TRACE.load(Ordering::Relaxed),
            set: |on| {
                PAUSE_ON_TRACE.store(on, Ordering::Relaxed);
                Ok(())
            },
        },
    ),
    (
        "annotate",
        TraceOption {
            get: || output::TELLS_STARTS.load(Ordering::Relaxed),
            set: |on| {
                output::TELLS_STARTS.store(on, Ordering::Relaxed);
                Ok(())
            },
        },
    ),
    (
        "record-tgid",
        TraceOption {
            get: || output::SHOWS_GROUPS.load(Ordering::Relaxed),
            set: |on| {
                output::SHOWS_GROUPS.store(on, Ordering::Relaxed);
                KEEPS_GROUPS.fetch_or(on, Ordering::Relaxed);
                Ok(())
            },
        },
    ),
    (
        "stacktrace",
        TraceOption {
            get: || EVENTS.lock().with_stacks(),
            set: |on| EVENTS.lock().set_stacks(on),
        },
    ),
    (
        "graph-time",
        TraceOption {
            get: || TRACERS.lock().times() == Times::WithInner,
            set: |on| {
                let times = if on { Times::WithInner } else { Times::Own };
                TRACERS.lock().set_times(times)
            },
        },
    ),
    ("event-fork", fork_option!(Events)),
    ("function-fork", fork_option!(Tracers)),
    (
        "sleep-time",
        TraceOption {
            get: sleep::counts,
            set: |on| {
                sleep::set_counts(on);
                Ok(())
            },
        },
    ),
    ("funcgraph-irqs", switch_option!(GraphInterrupts)),
    ("funcgraph-args", switch_option!(GraphArguments)),
    ("func_stack_trace", switch_option!(FunctionStack)),
    ("func-args", switch_option!(FunctionArguments)),
];

/// Puts the files into the tree, and lets those of each event follow. Once, at the end of the boot,
/// before there are events.
///
/// # Errors
/// ENOMEM.
pub fn create() -> Result<(), Errno> {
    for root in ROOTS {
        for (name, permissions, file) in FILES {
            pseudo::create(&format!("{root}/{name}"), *permissions, file)?;
        }
        for (name, option) in OPTIONS {
            pseudo::create(&format!("{root}/options/{name}"), READ | WRITE, option)?;
        }
        tracer::create(root)?;
        pseudo::create_special(&format!("{root}/trace_marker"), WRITE, buffer::Marker)?;
        buffer::create(root, None)?;
        for cpu in 0..smp::possible_cpus() {
            buffer::create(&format!("{root}/per_cpu/cpu{cpu}"), Some(cpu))?;
        }
    }
    EVENTS.lock().watcher = Some(event::OF_EVENTS);
    Ok(())
}

fn show_readme(out: &mut dyn Write) -> Result<(), Errno> {
    out.write_str(readme::EVENTS)?;
    Ok(out.write_str(trigger::README)?)
}

/// Writes the names of the events that `select` chooses.
fn show_names(select: impl Fn(&Event) -> bool, out: &mut dyn Write) -> Result<(), Errno> {
    for (name, _) in EVENTS.lock().iter().filter(|(_, event)| select(event)) {
        writeln!(out, "{}:{}", name.0, name.1)?;
    }
    Ok(())
}

/// Takes the one word that there is to choose.
fn only(known: &str, data: &[u8]) -> Result<(), Errno> {
    match text(data)? == known {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

fn show_options(out: &mut dyn Write) -> Result<(), Errno> {
    let plain = OPTIONS.iter().map(|(name, option)| (name, (option.get)()));
    let graph = graph::Options::NAMES.iter();
    for (name, on) in plain.chain(graph.map(|(name, bit)| (name, GraphOption(*bit).get()))) {
        let no = if on { "" } else { "no" };
        writeln!(out, "{no}{name}")?;
    }
    Ok(())
}

/// Turns an option on, or off with `no` before its name.
fn set_option(data: &[u8]) -> Result<(), Errno> {
    let word = text(data)?;
    let (name, on) = match word.strip_prefix("no") {
        Some(name) => (name, false),
        None => (word, true),
    };
    let graph = graph::Options::NAMES;
    if let Some((_, bit)) = graph.iter().find(|(known, _)| *known == name) {
        GraphOption(*bit).set(on);
        return Ok(());
    }
    let option = OPTIONS.iter().find(|(known, _)| *known == name);
    (option.ok_or(Errno::EINVAL)?.1.set)(on)
}

/// Turns events on, or off after a `!`: `GROUP:EVENT`, where nothing and `*` stand for any, or the
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

impl VirtualFile for &'static TraceOption {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        Ok(writeln!(out, "{}", u8::from((self.get)()))?)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        (self.set)(switch(data)?)
    }
}
