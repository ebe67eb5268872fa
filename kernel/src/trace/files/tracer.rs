//! The files of the tracers of all functions: `current_tracer`, the sets of functions, and what
//! they may record; and the sets of tasks of events.
//!
//! Each user of a set's file has a copy of the set, so that `> FILE` and the words that follow are
//! one change. It counts with the first word, or when the file is closed, and not before. If a word
//! is refused, the old set stays.
//!
//! # Contexts
//! Task context, may sleep.

use alloc::{boxed::Box, vec::Vec};
use core::{fmt::Write, sync::atomic::Ordering::Relaxed};

use fallible::push;
use tracefs::graph::Options;

use super::{
    functions::Functions,
    input::{number, switch, text},
    paths::{READ, WRITE},
};
use crate::{
    arch::smp,
    errno::Errno,
    fs::{
        How, Opened, Special,
        pseudo::{self, VirtualFile},
    },
    mm::shared::try_box,
    sync::Mutex,
    trace::{
        TRACING, dump,
        events::EVENTS,
        tasks::{TaskList, TaskSet, TaskUser},
        tracers::{self, CommandWord, FunctionSet, TRACERS, TracerKind, Which},
    },
};

/// Name, permissions and functions of the files that are no sets.
pub(super) static FILES: &[(&str, u32, Functions)] = &[
    (
        "available_tracers",
        READ,
        Functions::shows(|out| {
            let [first, second, third] = TracerKind::ALL.map(TracerKind::name);
            Ok(writeln!(out, "{first} {second} {third}")?)
        }),
    ),
    (
        "current_tracer",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "{}", TRACERS.lock().kind().name())?))
            .stores(|data| TRACERS.lock().run(TracerKind::named(text(data)?)?)),
    ),
    (
        "enabled_functions",
        READ,
        Functions::shows(|out| TRACERS.lock().show_traced(false, out)),
    ),
    (
        "touched_functions",
        READ,
        Functions::shows(|out| TRACERS.lock().show_traced(true, out)),
    ),
    (
        "function_profile_enabled",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "{}", u8::from(TRACERS.lock().profiles()))?))
            .stores(|data| TRACERS.lock().set_profile(switch(data)?)),
    ),
    (
        "max_graph_depth",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "{}", TRACING.graph_depth())?)).stores(|data| {
            TRACING.set_graph_depth(number(data)?);
            Ok(())
        }),
    ),
    (
        "tracing_thresh",
        READ | WRITE,
        Functions::shows(|out| Ok(writeln!(out, "{}", TRACERS.lock().least_us())?)).stores(
            |data| {
                TRACERS.lock().set_least_us(number(data)?);
                Ok(())
            },
        ),
    ),
];

/// An option of the lines of `function_graph`, by its bit.
#[derive(Clone, Copy)]
pub(super) struct GraphOption(pub(super) u32);

impl GraphOption {
    pub(super) fn get(self) -> bool {
        tracers::GRAPH_OPTIONS.load(Relaxed) & self.0 != 0
    }

    pub(super) fn set(self, on: bool) {
        match on {
            true => tracers::GRAPH_OPTIONS.fetch_or(self.0, Relaxed),
            false => tracers::GRAPH_OPTIONS.fetch_and(!self.0, Relaxed),
        };
    }
}

impl VirtualFile for GraphOption {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        Ok(writeln!(out, "{}", u8::from(self.get()))?)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        self.set(switch(data)?);
        Ok(())
    }
}

/// Puts the files of the sets and of the options into the directory `root`.
///
/// # Errors
/// ENOMEM.
pub(super) fn create(root: &str) -> Result<(), Errno> {
    for (name, permissions, file) in FILES {
        pseudo::create(&alloc::format!("{root}/{name}"), *permissions, file)?;
    }
    for (name, which) in Which::FILES {
        let path = alloc::format!("{root}/{name}");
        pseudo::create_special(&path, READ | WRITE, SetFile::Functions(which))?;
    }
    for (name, user, list) in TaskList::FILES {
        let path = alloc::format!("{root}/{name}");
        pseudo::create_special(&path, READ | WRITE, SetFile::Tasks(user, list))?;
    }
    for cpu in 0..smp::possible_cpus() {
        let path = alloc::format!("{root}/trace_stat/function{cpu}");
        pseudo::create(&path, READ, ProfileFile(cpu))?;
    }
    for (name, bit) in Options::NAMES {
        let path = alloc::format!("{root}/options/{name}");
        pseudo::create(&path, READ | WRITE, GraphOption(bit))?;
    }
    Ok(())
}

/// The profile of a CPU.
struct ProfileFile(usize);

impl VirtualFile for ProfileFile {
    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        TRACERS.lock().show_profile(self.0, out)
    }

    fn store(&self, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }
}

/// The file of a set.
#[derive(Clone, Copy)]
enum SetFile {
    Functions(Which),
    Tasks(TaskUser, TaskList),
}

/// A set as a user of its file has it.
enum Set {
    Functions(Which, FunctionSet),
    Tasks(TaskUser, TaskList, TaskSet),
}

impl SetFile {
    fn empty(self) -> Set {
        match self {
            Self::Functions(which) => Set::Functions(which, FunctionSet::empty()),
            Self::Tasks(user, list) => Set::Tasks(user, list, TaskSet::empty()),
        }
    }

    fn copy(self) -> Result<Set, Errno> {
        Ok(match self {
            Self::Functions(which) => Set::Functions(which, TRACERS.lock().set(which).copy()?),
            Self::Tasks(user, list) => {
                let set = match user {
                    TaskUser::Tracers => TRACERS.lock().tasks(list).copy(),
                    TaskUser::Events => EVENTS.lock().tasks(list).copy(),
                };
                Set::Tasks(user, list, set?)
            }
        })
    }

    fn show(self, out: &mut dyn Write) -> Result<(), Errno> {
        match self {
            Self::Functions(which) => {
                let tracers = TRACERS.lock();
                tracers.set(which).show(which, out)?;
                match which {
                    Which::Filter => tracers.show_commands(out),
                    _ => Ok(()),
                }
            }
            Self::Tasks(TaskUser::Tracers, list) => {
                TRACERS.lock().tasks(list).show("no pid\n", out)
            }
            Self::Tasks(TaskUser::Events, list) => EVENTS.lock().tasks(list).show("", out),
        }
    }
}

impl Set {
    fn copy(&self) -> Result<Self, Errno> {
        Ok(match self {
            Self::Functions(which, set) => Self::Functions(*which, set.copy()?),
            Self::Tasks(user, list, set) => Self::Tasks(*user, *list, set.copy()?),
        })
    }

    fn change(&mut self, word: &str) -> Result<(), Errno> {
        match self {
            Self::Functions(_, set) => set.change(word),
            Self::Tasks(_, _, set) => set.change(word),
        }
    }

    /// Has the tracers or the events use it.
    fn apply(self) -> Result<(), Errno> {
        match self {
            Self::Functions(which, set) => TRACERS.lock().replace_set(which, set),
            Self::Tasks(TaskUser::Tracers, list, set) => TRACERS.lock().replace_tasks(list, set),
            Self::Tasks(TaskUser::Events, list, set) => EVENTS.lock().replace_tasks(list, set),
        }
    }
}

fn obey(command: &CommandWord<'_>) -> Result<(), Errno> {
    let _asker = (command.asks_for_dumps()).then(dump::attend).transpose()?;
    TRACERS.lock().command(command)?;
    // One that is taken away has done its work.
    dump::settle();
    Ok(())
}

impl Special for SetFile {
    fn open(&self, how: How) -> Result<Box<dyn Opened>, Errno> {
        let set = match how.truncate {
            true => self.empty(),
            false => self.copy()?,
        };
        Ok(try_box(OpenSet {
            file: *self,
            draft: Mutex::new(Draft {
                set: Some(set),
                is_due: how.truncate,
            }),
            text: pseudo::Snapshot::default(),
        })?)
    }
}

struct Draft {
    /// None when it is given up, at the end.
    set: Option<Set>,
    /// The tracers do not have it yet, and are to.
    is_due: bool,
}

struct OpenSet {
    file: SetFile,
    draft: Mutex<Draft>,
    text: pseudo::Snapshot,
}

impl Opened for OpenSet {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.text.read(at, buf, |out| self.file.show(out))
    }

    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        let data = pseudo::whole_lines(data)?;
        let mut draft = self.draft.lock();
        // If anything fails, what the user has written so far does not count.
        draft.is_due = false;
        let Some(set) = &draft.set else {
            return Err(Errno::EINVAL);
        };
        let (mut set, mut commands) = (set.copy()?, Vec::new());
        for word in text(data)?.split_ascii_whitespace() {
            match (self.file, CommandWord::parse(word)) {
                (SetFile::Functions(Which::Filter), Some(command)) => {
                    let command = command?;
                    command.check()?;
                    push(&mut commands, command)?;
                }
                _ => set.change(word)?,
            }
        }
        let before = self.file.copy()?;
        set.copy()?.apply()?;
        if let Err(errno) = commands.iter().try_for_each(obey) {
            // There is no way to report a second error.
            let _ = before.apply();
            return Err(errno);
        }
        draft.set = Some(set);
        Ok(data.len())
    }
}

impl Drop for OpenSet {
    fn drop(&mut self) {
        let draft = self.draft.get_mut();
        if draft.is_due
            && let Some(set) = draft.set.take()
        {
            // There is no way to report the error. The old set stays then.
            let _ = set.apply();
        }
    }
}
