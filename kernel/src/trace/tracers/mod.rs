//! The tracer that runs: `nop`, `function` or `function_graph`, and the functions it is for.
//!
//! ```text
//!   all functions that can be probed
//!     ∩ set_ftrace_filter, unless that is empty, without set_ftrace_notrace
//!       │
//!       ├─ function: all of them
//!       └─ function_graph: set_graph_notrace ── hidden, with all that they call
//!                          set_graph_function ─ roots; all, if that is empty
//!                          the others ───────── inside a call of a root only
//! ```
//!
//! Of their calls, those of the tasks of `set_ftrace_pid` are recorded, or of all tasks if that is
//! empty, but not those of the tasks of `set_ftrace_notrace_pid`.
//!
//! # Invariants
//! TRACER-1. A change that fails changes nothing: the new probes are registered beside the old
//!     ones, while recording is paused, and the old ones go afterwards. Hits in between are counted
//!     as those of a time when recording was off.
//! TRACER-2. The probes follow the sets and options at once.
//!
//! # Contexts
//! Task context, may sleep. One lock, [`TRACERS`], protects all of it.

mod commands;
mod profile;
mod set;

use alloc::vec::Vec;
use core::{
    fmt::Write,
    mem,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use fallible::push;
use trace_agent::{Traced, functions, graph, tasks::TaskChoice};
use tracefs::{graph::Options, line, line::function, profile::write_head};

use self::{commands::Command, profile::Profile};
pub use self::{
    commands::CommandWord,
    profile::Times,
    set::{FunctionSet, Which},
};
use super::{
    TRACING,
    events::EVENTS,
    names,
    sleep::{self, Timed},
    tasks::{TaskList, TaskSet},
    touched,
};
use crate::{arch::traps, cmdline, errno::Errno, probes::Kernel, sync::Mutex, time::tsc_hz};

// The records of the agent are lines of `trace`.
const _: () = assert!(
    function::ID == functions::RECORD_TYPE
        && function::BYTES == functions::RECORD_BYTES
        && tracefs::graph::ENTRY_ID == graph::ENTRY_TYPE
        && tracefs::graph::RETURN_ID == graph::RETURN_TYPE
);

/// How many calls of one function are followed at once.
const MAXACTIVE: i32 = 16;

/// A tracer by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracerKind {
    Nop,
    Function,
    Graph,
}

impl TracerKind {
    /// All of them, as `available_tracers` lists them.
    pub const ALL: [Self; 3] = [Self::Graph, Self::Function, Self::Nop];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nop => "nop",
            Self::Function => "function",
            Self::Graph => "function_graph",
        }
    }

    /// The tracer with that name.
    ///
    /// # Errors
    /// EINVAL: there is none.
    pub fn named(name: &str) -> Result<Self, Errno> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or(Errno::EINVAL)
    }
}

/// What a tracer records besides, or leaves out. A change counts at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// `function` records call stacks.
    FunctionStack,
    /// `function` records the registers of arguments.
    FunctionArguments,
    /// `function_graph` records the registers of arguments.
    GraphArguments,
    /// `function_graph` records calls of interrupts.
    GraphInterrupts,
}

impl Switch {
    const COUNT: usize = 4;
    /// Those that are on at the start.
    const DEFAULT: [bool; Self::COUNT] = [false, false, false, true];

    /// The tracer that it belongs to.
    const fn user(self) -> TracerKind {
        match self {
            Self::FunctionStack | Self::FunctionArguments => TracerKind::Function,
            Self::GraphArguments | Self::GraphInterrupts => TracerKind::Graph,
        }
    }
}

/// The probes of the tracer that runs.
enum Running {
    Nop,
    Function(functions::FunctionTracer<Kernel>),
    Graph(graph::GraphTracer<Kernel>),
}

/// See the module's text.
pub struct Tracers {
    running: Running,
    sets: [FunctionSet; Which::COUNT],
    tasks: [TaskSet; TaskList::COUNT],
    commands: Vec<Command>,
    switches: [bool; Switch::COUNT],
    /// The last one; none: there never was one.
    profile: Option<Profile>,
    times: Times,
    /// The least duration of a call that is recorded, in microseconds.
    least_us: u64,
    /// The calls that were missed before the probes were last exchanged, since `trace` was cleared.
    missed_before: u64,
    /// The calls that these probes had missed when `trace` was cleared.
    missed_cleared: u64,
}

/// The tracers of this kernel.
pub static TRACERS: Mutex<Tracers> = Mutex::new(Tracers {
    running: Running::Nop,
    sets: [const { FunctionSet::empty() }; Which::COUNT],
    tasks: [const { TaskSet::empty() }; TaskList::COUNT],
    commands: Vec::new(),
    switches: Switch::DEFAULT,
    profile: None,
    times: Times::WithInner,
    least_us: 0,
    missed_before: 0,
    missed_cleared: 0,
});

/// The options of `function_graph` that are on.
pub static GRAPH_OPTIONS: AtomicU32 = AtomicU32::new(Options::DEFAULT.0);

/// What the lines of `function_graph` show.
pub fn graph_options() -> Options {
    Options(GRAPH_OPTIONS.load(Relaxed))
}

/// The function that interrupts call. Arrows mark it in the tree of calls.
pub fn interrupt_function() -> u64 {
    traps::do_interrupt as *const () as u64
}

/// The functions of a tracer, by what is recorded of them.
#[derive(Default)]
struct Chosen {
    roots: Vec<u64>,
    inner: Vec<u64>,
    hidden: Vec<u64>,
}

impl Tracers {
    /// The tracer that runs.
    pub fn kind(&self) -> TracerKind {
        match self.running {
            Running::Nop => TracerKind::Nop,
            Running::Function(_) => TracerKind::Function,
            Running::Graph(_) => TracerKind::Graph,
        }
    }

    /// Has another tracer run. The records of the old one are gone, as on Linux.
    ///
    /// # Errors
    /// ENOMEM, and the errno of a probe that is refused; nothing has changed then.
    pub fn run(&mut self, kind: TracerKind) -> Result<(), Errno> {
        if self.kind() == kind {
            return Ok(());
        }
        let _pause = TRACING.recording.pause();
        self.attach(kind)?;
        TRACING.buffer.clear(None);
        Ok(())
    }

    /// The set of functions in that file.
    pub const fn set(&self, which: Which) -> &FunctionSet {
        &self.sets[which as usize]
    }

    /// Puts another set in its place.
    ///
    /// # Errors
    /// As [`Tracers::run`].
    pub fn replace_set(&mut self, which: Which, set: FunctionSet) -> Result<(), Errno> {
        if set == self.sets[which as usize] {
            return Ok(());
        }
        let users: &[TracerKind] = match which {
            Which::Filter | Which::Notrace => &[TracerKind::Function, TracerKind::Graph],
            Which::GraphFunction | Which::GraphNotrace => &[TracerKind::Graph],
        };
        let mut other = set;
        self.exchange(users, |tracers| {
            mem::swap(&mut tracers.sets[which as usize], &mut other);
        })
    }

    /// Makes the change that is an exchange, which counts at once for the tracers `users`. If a
    /// probe is refused, exchanges once more, and so takes it back.
    fn exchange(
        &mut self,
        users: &[TracerKind],
        mut exchange: impl FnMut(&mut Self),
    ) -> Result<(), Errno> {
        exchange(self);
        let kind = self.kind();
        if !users.contains(&kind) {
            return Ok(());
        }
        self.attach(kind).inspect_err(|_| exchange(self))
    }

    /// Puts a command on its functions, or takes it away.
    ///
    /// # Errors
    /// Those of [`commands::obey`]; nothing has changed then.
    pub fn command(&mut self, word: &CommandWord<'_>) -> Result<(), Errno> {
        commands::obey(&mut self.commands, word)
    }

    /// Writes the commands on functions.
    ///
    /// # Errors
    /// That of `out`.
    pub fn show_commands(&self, out: &mut dyn Write) -> Result<(), Errno> {
        self.commands
            .iter()
            .try_for_each(|command| command.show(out))
    }

    /// The set of tasks in that file.
    pub const fn tasks(&self, list: TaskList) -> &TaskSet {
        &self.tasks[list as usize]
    }

    /// Puts other tasks in their place.
    ///
    /// # Errors
    /// As [`Tracers::run`].
    pub fn replace_tasks(&mut self, list: TaskList, tasks: TaskSet) -> Result<(), Errno> {
        let mut other = tasks;
        let result = self.exchange(&[TracerKind::Function], |tracers| {
            mem::swap(&mut tracers.tasks[list as usize], &mut other);
        });
        TRACING.choose_graph_tasks(&self.task_choice());
        result
    }

    fn task_choice(&self) -> TaskChoice<'_> {
        TaskChoice {
            only: self.tasks(TaskList::Only).numbers(),
            without: self.tasks(TaskList::Without).numbers(),
        }
    }

    /// Whether that is on.
    pub const fn is_on(&self, switch: Switch) -> bool {
        self.switches[switch as usize]
    }

    /// Turns that on or off.
    ///
    /// # Errors
    /// As [`Tracers::run`].
    pub fn set_switch(&mut self, switch: Switch, on: bool) -> Result<(), Errno> {
        let mut other = on;
        self.exchange(&[switch.user()], |tracers| {
            mem::swap(&mut tracers.switches[switch as usize], &mut other);
        })
    }

    /// Obeys a boot parameter: a list of words with commas between them for a set. `tell` hears how
    /// each of them went; one that is wrong is left out.
    fn change_set(
        &mut self,
        which: Which,
        words: &str,
        tell: impl Fn(&str, Result<(), Errno>),
    ) -> Result<(), Errno> {
        let mut set = self.set(which).copy()?;
        for word in words.split(',').filter(|word| !word.is_empty()) {
            tell(word, set.change(word));
        }
        self.replace_set(which, set)
    }

    /// Whether calls are counted for a profile.
    pub fn profiles(&self) -> bool {
        self.profile.as_ref().is_some_and(Profile::is_on)
    }

    /// Starts a profile of the functions that are chosen, with empty rows, or ends it. Its rows
    /// stay then.
    ///
    /// # Errors
    /// ENOMEM, and the errno of a probe that is refused; nothing has changed then.
    pub fn set_profile(&mut self, on: bool) -> Result<(), Errno> {
        match (on, self.profiles()) {
            (true, false) => {
                let functions = self.chosen(TracerKind::Function)?.roots;
                let mut touched = touched::reserve(functions.len())?;
                let profile = self.profile.insert(Profile::start(functions, self.times)?);
                touched.add(profile.functions());
            }
            (false, true) => self.profile.iter_mut().for_each(Profile::stop),
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    /// What the times of a profile have in them.
    pub const fn times(&self) -> Times {
        self.times
    }

    /// Sets that. It counts at once.
    ///
    /// # Errors
    /// ENOMEM; nothing has changed then. The errno of a probe that is refused; the profile is off
    /// then.
    pub fn set_times(&mut self, times: Times) -> Result<(), Errno> {
        if times == self.times {
            return Ok(());
        }
        match &mut self.profile {
            Some(profile) if profile.is_on() => profile.change(times)?,
            _ => {}
        }
        self.times = times;
        Ok(())
    }

    /// Writes the profile of a CPU.
    ///
    /// # Errors
    /// ENOMEM, and that of `out`.
    pub fn show_profile(&self, cpu: usize, out: &mut dyn Write) -> Result<(), Errno> {
        match &self.profile {
            Some(profile) => profile.show(cpu, out),
            None => Ok(write_head(out)?),
        }
    }

    /// The least duration of a call that is recorded, in microseconds; 0: any, and entries too.
    pub const fn least_us(&self) -> u64 {
        self.least_us
    }

    /// Sets that.
    pub fn set_least_us(&mut self, us: u64) {
        self.least_us = us;
        let ticks = u128::from(us) * u128::from(tsc_hz()) / 1_000_000;
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        TRACING.set_graph_threshold(ticks);
    }

    /// How many functions the tracer has probes on, and how many of their calls it missed since
    /// `trace` was cleared.
    pub fn books(&self) -> (usize, u64) {
        let (functions, missed) = self.books_of_probes();
        (functions, self.missed_before + missed - self.missed_cleared)
    }

    /// The functions of the probes that there are, and all calls that these missed.
    fn books_of_probes(&self) -> (usize, u64) {
        match &self.running {
            Running::Nop => (0, 0),
            Running::Function(tracer) => (tracer.functions(), tracer.misses()),
            Running::Graph(tracer) => (tracer.functions(), tracer.misses()),
        }
    }

    /// Counts the calls that are missed from 0 on, because `trace` is cleared.
    pub fn forget_missed(&mut self) {
        self.missed_before = 0;
        self.missed_cleared = self.books_of_probes().1;
    }

    /// Writes a line for each function that tracing is on, or with `ever` has been on since the
    /// boot: how many are on it, of the tracer, the profile, the commands, and events, which count
    /// as one.
    ///
    /// # Errors
    /// ENOMEM, and that of `out`.
    pub fn show_traced(&self, ever: bool, out: &mut dyn Write) -> Result<(), Errno> {
        let events = EVENTS.lock().traced()?;
        let profile = self.profile.as_ref().filter(|profile| profile.is_on());
        let profiled = profile.map_or(&[][..], Profile::functions);
        for (address, name) in names::traceable()? {
            let is_traced = self.kind() != TracerKind::Nop && self.is_chosen(address);
            let has_event = events.binary_search(&address).is_ok();
            let commands = self.commands.iter();
            let users = usize::from(is_traced)
                + usize::from(profiled.binary_search(&address).is_ok())
                + commands.filter(|command| command.is_on(address)).count()
                + usize::from(has_event);
            if users > 0 || ever && touched::has(address) {
                line::write_traced(name, users, has_event, out)?;
            }
        }
        Ok(())
    }

    fn is_chosen(&self, address: u64) -> bool {
        let filter = self.set(Which::Filter);
        (filter.is_empty() || filter.has(address)) && !self.set(Which::Notrace).has(address)
    }

    fn chosen(&self, kind: TracerKind) -> Result<Chosen, Errno> {
        let mut chosen = Chosen::default();
        let roots = self.set(Which::GraphFunction);
        let hidden = match self.is_on(Switch::GraphInterrupts) {
            true => None,
            false => Some(interrupt_function()),
        };
        let mut before = 0;
        for (address, _) in names::traceable()? {
            // The linker gives equal functions one place, under all their names.
            if mem::replace(&mut before, address) == address {
                continue;
            }
            let to = match kind {
                _ if !self.is_chosen(address) => continue,
                TracerKind::Nop => continue,
                TracerKind::Function => &mut chosen.roots,
                TracerKind::Graph if hidden == Some(address) => &mut chosen.hidden,
                TracerKind::Graph if self.set(Which::GraphNotrace).has(address) => {
                    &mut chosen.hidden
                }
                TracerKind::Graph if roots.is_empty() || roots.has(address) => &mut chosen.roots,
                TracerKind::Graph => &mut chosen.inner,
            };
            push(to, address)?;
        }
        Ok(chosen)
    }

    /// Puts the probes of a tracer, as sets and options are now, in place of those that are there.
    fn attach(&mut self, kind: TracerKind) -> Result<(), Errno> {
        let chosen = self.chosen(kind)?;
        TRACING.buffer.ready()?;
        let all = [&chosen.roots, &chosen.inner, &chosen.hidden];
        let mut touched = touched::reserve(all.iter().map(|of| of.len()).sum())?;
        let _pause = TRACING.recording.pause();
        let next = match kind {
            TracerKind::Nop => Running::Nop,
            TracerKind::Function => Running::Function(functions::FunctionTracer::new(
                &chosen.roots,
                &functions::How {
                    with_stack: self.is_on(Switch::FunctionStack),
                    with_arguments: self.is_on(Switch::FunctionArguments),
                    tasks: self.task_choice(),
                },
            )?),
            TracerKind::Graph => Running::Graph(graph::GraphTracer::new(
                &graph::Functions {
                    roots: &chosen.roots,
                    inner: &chosen.inner,
                    hidden: &chosen.hidden,
                },
                MAXACTIVE,
                self.is_on(Switch::GraphArguments),
            )?),
        };
        all.iter().for_each(|of| touched.add(of));
        let graph_return = || Kernel::tracing_entry_points().graph_return as *const () as u64;
        sleep::set_routine(Timed::Graph, (kind == TracerKind::Graph).then(graph_return));
        self.missed_before = match self.kind() == kind {
            true => self.books().1,
            false => 0,
        };
        self.missed_cleared = 0;
        // The old ones go here.
        self.running = next;
        Ok(())
    }
}

/// Obeys the boot parameters: `ftrace=TRACER`, and sets of functions, with commas between words.
/// What is wrong is told in the log. Once, after init text is gone.
pub fn start_at_boot() {
    let tell = |name: &str, value: &str, result: Result<(), Errno>| {
        if let Err(errno) = result {
            crate::pr_warn!("{name}: {value}: {errno}");
        }
    };
    let mut tracers = TRACERS.lock();
    for (name, which) in [
        ("ftrace_filter", Which::Filter),
        ("ftrace_notrace", Which::Notrace),
        ("ftrace_graph_filter", Which::GraphFunction),
        ("ftrace_graph_notrace", Which::GraphNotrace),
    ] {
        if let Some(words) = cmdline::get(name) {
            let result = tracers.change_set(which, words, |word, result| tell(name, word, result));
            tell(name, words, result);
        }
    }
    if let Some(name) = cmdline::get("ftrace") {
        let result = TracerKind::named(name).and_then(|kind| tracers.run(kind));
        tell("ftrace", name, result);
    }
}
