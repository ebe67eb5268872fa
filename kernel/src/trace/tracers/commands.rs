//! Commands on functions: `FUNCTION:COMMAND[:COUNT]` in `set_ftrace_filter`.
//!
//! Each call of the function does something, at most `COUNT` times if that is given: `traceon`,
//! `traceoff`, `snapshot`, `stacktrace`, and `enable_event:GROUP:EVENT` or
//! `disable_event:GROUP:EVENT`. `dump` and `cpudump` act once, whatever the count says. All of them
//! act whatever tracer runs. A command has a slot of the triggers ([`super::super::triggers`]) and
//! a compiled program at the entries of its functions.
//!
//! # Contexts
//! Task context, under the lock of the tracers, and then that of the events.

use alloc::{string::String, vec::Vec};
use core::fmt::Write;

use bpf::{BuildError, Builder, Condition, Helper, MapDef, Program as Source, ProgramKind, Reg};
use fallible::{copied, push};

use super::set::{Names, function_name};
use crate::{
    errno::Errno,
    trace::{
        TRACING,
        dump_requests::Asker,
        events::EVENTS,
        program::{AttachedProbes, LoadError, Program},
        touched,
        triggers::{Deed, Other, Taken},
    },
};

/// A word of the file, read.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandWord<'a> {
    /// It takes the command away.
    pub is_removal: bool,
    functions: &'a str,
    act: &'a str,
    /// Group and event of the acts that have one.
    event: Option<(&'a str, &'a str)>,
    count: Option<u64>,
}

/// Acts without and with an event.
const PLAIN: [(&str, Deed); 4] = [
    ("traceon", Deed::TraceOn),
    ("traceoff", Deed::TraceOff),
    ("snapshot", Deed::Snapshot),
    ("stacktrace", Deed::StackTrace),
];
/// Acts that are done once. What stands behind them means nothing, as on Linux.
const ONCE: [(&str, Deed); 2] = [("dump", Deed::Dump), ("cpudump", Deed::CpuDump)];
const OF_EVENTS: [(&str, Deed); 2] = [
    ("enable_event", Deed::EnableEvent),
    ("disable_event", Deed::DisableEvent),
];

impl<'a> CommandWord<'a> {
    /// Reads a word. None: it is no command, but a function's name.
    ///
    /// # Errors
    /// EINVAL: there is no such command, or something is missing or too much.
    pub fn parse(word: &'a str) -> Option<Result<Self, Errno>> {
        let (functions, command) = word.split_once(':')?;
        Some(Self::parse_command(functions, command).ok_or(Errno::EINVAL))
    }

    fn parse_command(functions: &'a str, command: &'a str) -> Option<Self> {
        let mut parts = command.split(':');
        let act = parts.next()?;
        let (is_removal, functions) = match functions.strip_prefix('!') {
            Some(functions) => (true, functions),
            None => (false, functions),
        };
        let is_known = |acts: &[(&str, Deed)]| acts.iter().any(|(known, _)| *known == act);
        if is_known(&ONCE) {
            return Some(Self {
                is_removal,
                functions,
                act,
                event: None,
                count: Some(1),
            });
        }
        let event = match is_known(&OF_EVENTS) {
            true => Some((parts.next()?, parts.next()?)),
            false if is_known(&PLAIN) => None,
            false => return None,
        };
        let count = match parts.next() {
            Some(count) => Some(count.parse().ok()?),
            None => None,
        };
        (parts.next().is_none()).then_some(Self {
            is_removal,
            functions,
            act,
            event,
            count,
        })
    }

    /// Whether the command asks for dumps. Then the task that prints them has to be there.
    pub fn asks_for_dumps(&self) -> bool {
        matches!(self.deed(), Deed::Dump | Deed::CpuDump)
    }

    fn deed(&self) -> Deed {
        let acts = PLAIN.iter().chain(&ONCE).chain(&OF_EVENTS);
        let found = acts.clone().find(|(known, _)| *known == self.act);
        found.map_or(Deed::Nothing, |(_, deed)| *deed)
    }
}

/// A command that is on its functions.
pub struct Command {
    functions: String,
    act: String,
    event: Option<(String, String)>,
    /// Where the functions begin.
    addresses: Vec<u64>,
    // Dropped in this order: a program with its number is gone before the slot is free.
    _probes: AttachedProbes,
    slot: Taken,
    /// What the slot leads to is given back last.
    _share: Share,
}

/// What a command has of others, given back when it is dropped.
#[derive(Default)]
struct Share {
    has_snapshots: bool,
    asker: Option<Asker>,
    event: Option<(String, String)>,
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.has_snapshots {
            TRACING.buffer.disarm();
        }
        if let Some((group, event)) = &self.event {
            // It cannot fail: the event's program gets shorter.
            let _ = EVENTS.lock().share_switch_of(group, event, false);
        }
    }
}

fn program(deed: Deed, slot: i32) -> Result<Source, BuildError> {
    const CONTEXT: Reg = Reg::R6;
    let mut builder = Builder::new(ProgramKind::Probe);
    let ring = builder.map(MapDef::ring("trace"));
    let end = builder.label();
    builder
        .mov(CONTEXT, Reg::R1)
        .mov(Reg::R1, slot)
        .mov(Reg::R2, 0)
        .call(Helper::Trigger);
    if deed == Deed::StackTrace {
        builder
            .branch(Condition::Equal, Reg::R0, 0, end)
            .record_stack(ring, CONTEXT);
    }
    builder.place(end).exit(0);
    builder.finish()
}

impl Command {
    /// Puts the command on its functions.
    ///
    /// # Errors
    /// EINVAL if no function has the name, or no event; ENOSPC if all slots are in use; ENOMEM.
    pub fn new(word: &CommandWord<'_>) -> Result<Self, Errno> {
        let mut addresses = Vec::new();
        Names::of(word.functions).for_each(|start| {
            // Several functions may be one, under all their names.
            match addresses.last() == Some(&start) {
                true => Ok(()),
                false => push(&mut addresses, start),
            }
        })?;
        if addresses.is_empty() {
            return Err(Errno::EINVAL);
        }
        let text = |text: &str| copied(text).map_err(|_| Errno::ENOMEM);
        let named = |(group, event)| Ok::<_, Errno>((text(group)?, text(event)?));
        let deed = word.deed();
        // What it has is given back, whatever fails.
        let mut share = Share::default();
        if deed == Deed::Snapshot {
            TRACING.buffer.arm()?;
            share.has_snapshots = true;
        }
        if word.asks_for_dumps() {
            share.asker = Some(Asker::another());
        }
        let switch = match word.event {
            None => None,
            Some((group, event)) => {
                let name = named((group, event))?;
                let switch = EVENTS.lock().share_switch_of(group, event, true)?;
                share.event = Some(name);
                Some(switch)
            }
        };
        let slot = Taken::new(
            deed,
            word.count,
            Other {
                switch,
                watch: None,
            },
        )
        .ok_or(Errno::ENOSPC)?;
        let program = program(deed, slot.number()).map_err(LoadError::from)?;
        let mut touched = touched::reserve(addresses.len())?;
        let probes = AttachedProbes::new(Program::load(program)?, &addresses)?;
        touched.add(&addresses);
        Ok(Self {
            functions: text(word.functions)?,
            act: text(word.act)?,
            event: word.event.map(named).transpose()?,
            addresses,
            _probes: probes,
            slot,
            _share: share,
        })
    }

    /// Whether `word` means it, whatever count it has.
    pub fn is_meant_by(&self, word: &CommandWord<'_>) -> bool {
        let event = self
            .event
            .as_ref()
            .map(|(group, event)| (&**group, &**event));
        (&*self.functions, &*self.act, event) == (word.functions, word.act, word.event)
    }

    /// Whether it is on the function that begins at `address`.
    pub fn is_on(&self, address: u64) -> bool {
        // They come from one table, by address.
        self.addresses.binary_search(&address).is_ok()
    }

    /// Writes a line for each of its functions.
    ///
    /// # Errors
    /// That of `out`.
    pub fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        for address in &self.addresses {
            write!(out, "{}:{}", function_name(*address), self.act)?;
            if let Some((group, event)) = &self.event {
                write!(out, ":{group}:{event}")?;
            }
            match self.slot.left() {
                Some(left) => writeln!(out, ":count={left}")?,
                None => out.write_str(":unlimited\n")?,
            }
        }
        Ok(())
    }
}
