//! Commands on functions: `FUNCTION:COMMAND[:COUNT]` in `set_ftrace_filter`.
//!
//! Each call of the function does something, at most `COUNT` times if that is given: `traceon`,
//! `traceoff`, `snapshot`, `stacktrace`, and `enable_event:GROUP:EVENT` or
//! `disable_event:GROUP:EVENT`. `dump` and `cpudump` act once, whatever the count says. All of them
//! act whatever tracer runs. A command has a slot of the triggers ([`super::super::triggers`]) and
//! a compiled program at the entries of its functions.
//!
//! A word may mean many functions. With a count each of them acts so often, so each is a command of
//! its own. Only acts on events and dumps have one count for all. A word that takes away may mean
//! some functions of a command, or those of several.
//!
//! # Contexts
//! Task context, under the lock of the tracers, and then that of the events.

use alloc::{string::String, vec::Vec};
use core::fmt::Write;

use bpf::{BuildError, Builder, Condition, Helper, MapDef, Program as Source, ProgramKind, Reg};
use fallible::{copied, push};
use tracefs::trigger::parse_count;

use super::set::{FunctionSet, function_name};
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
/// Acts that are done once. What follows them means nothing, as on Linux.
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
            // It means nothing then, so a line of the file can be given back.
            _ if is_removal => None,
            // As on Linux, a colon needs no count, but after an event.
            Some("") if event.is_none() => None,
            Some(count) => parse_count(count).ok()?,
            None => None,
        };
        (is_removal || parts.next().is_none()).then_some(Self {
            is_removal,
            functions,
            act,
            event,
            count,
        })
    }

    /// Checks that the functions and the event are there that it names.
    ///
    /// # Errors
    /// EINVAL if not; ENOMEM.
    pub fn check(&self) -> Result<(), Errno> {
        FunctionSet::empty().change(self.functions)?;
        match self.event {
            Some((group, event)) if !EVENTS.lock().has(group, event) => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// Whether each function has a count of its own.
    fn counts_apart(&self) -> bool {
        self.count.is_some() && PLAIN.iter().any(|(known, _)| *known == self.act)
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
    act: String,
    event: Option<(String, String)>,
    functions: FunctionSet,
    // Dropped in this order: a program with its number is gone before the slot is free.
    probes: AttachedProbes,
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

/// Puts a command on the functions that `word` means and that do not have it, or takes it away from
/// those that do.
///
/// # Errors
/// EINVAL if no function has the name or there is no such event; ENODEV if none has what is to go;
/// EEXIST if all have what is to come; ENOSPC if too few slots are free; ENOMEM. Nothing has then
/// changed.
pub fn obey(commands: &mut Vec<Command>, word: &CommandWord<'_>) -> Result<(), Errno> {
    let mut functions = FunctionSet::empty();
    functions.change(word.functions)?;
    if word.is_removal {
        let mut is_there = false;
        commands.retain_mut(|command| {
            let is_meant = command.is_meant_by(word) && command.is_on_any(&functions);
            is_there |= is_meant;
            !is_meant || command.leave(&functions)
        });
        return is_there.then_some(()).ok_or(Errno::ENODEV);
    }
    for command in commands.iter().filter(|command| command.is_meant_by(word)) {
        functions.retain(|address| !command.is_on(address));
    }
    if functions.is_empty() {
        return Err(Errno::EEXIST);
    }
    let mut new = Vec::new();
    if word.counts_apart() {
        for address in functions.addresses() {
            push(&mut new, Command::new(word, FunctionSet::one(*address)?)?)?;
        }
    } else {
        push(&mut new, Command::new(word, functions)?)?;
    }
    commands.try_reserve(new.len()).map_err(|_| Errno::ENOMEM)?;
    let count = new
        .iter()
        .map(|command| command.functions.addresses().len());
    let mut touched = touched::reserve(count.sum())?;
    // Nothing is refused any more, so all of them begin.
    for command in &new {
        touched.add(command.functions.addresses());
        command.slot.set_left(word.count);
    }
    commands.append(&mut new);
    Ok(())
}

impl Command {
    /// Puts the command on these functions. It has no turns yet, so its hits do nothing: others of
    /// the same word may be refused still.
    ///
    /// # Errors
    /// EINVAL if there is no such event; ENOSPC if all slots are in use; ENOMEM.
    fn new(word: &CommandWord<'_>, functions: FunctionSet) -> Result<Self, Errno> {
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
        let other = Other {
            switch,
            watch: None,
        };
        let slot = Taken::new(deed, Some(0), other).ok_or(Errno::ENOSPC)?;
        let program = program(deed, slot.number()).map_err(LoadError::from)?;
        let probes = AttachedProbes::new(Program::load(program)?, functions.addresses())?;
        Ok(Self {
            act: text(word.act)?,
            event: word.event.map(named).transpose()?,
            functions,
            probes,
            slot,
            _share: share,
        })
    }

    /// Whether `word` means what it does, whatever count it has.
    fn is_meant_by(&self, word: &CommandWord<'_>) -> bool {
        let event = self
            .event
            .as_ref()
            .map(|(group, event)| (&**group, &**event));
        (&*self.act, event) == (word.act, word.event)
    }

    /// Whether it is on the function that begins at `address`.
    pub fn is_on(&self, address: u64) -> bool {
        self.functions.has(address)
    }

    fn is_on_any(&self, functions: &FunctionSet) -> bool {
        let mut its = self.functions.addresses().iter();
        its.any(|address| functions.has(*address))
    }

    /// Takes it away from these functions. False: it is on no other one, and is to be dropped.
    fn leave(&mut self, functions: &FunctionSet) -> bool {
        self.functions.retain(|address| !functions.has(address));
        let is_left = !self.functions.is_empty();
        if is_left {
            self.probes.detach_some(|address| functions.has(address));
        }
        is_left
    }

    /// Writes a line for each of its functions.
    ///
    /// # Errors
    /// That of `out`.
    pub fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        for address in self.functions.addresses() {
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
