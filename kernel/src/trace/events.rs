//! All events: the commands that define and delete them, and the questions about all or some.
//!
//! The list is sorted by group and name, and holds the events of the kernel's own and those that
//! were defined. A command that is refused has changed nothing, and its refusal is in `error_log`.
//! Files follow the list by a callback ([`Watcher`]), so this module knows of no file.
//!
//! # Contexts
//! Task context, may sleep. One lock protects the list and all events. Files take it when they are
//! used, so a file of a deleted event finds that the event is gone.

#![forbid(unsafe_code)]

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{fmt::Write, sync::atomic::AtomicU64};

use fallible::{copied, push, written};
use tracefs::{
    commands::{Commands, Words},
    compile::compile,
    definition::{Command, DEFAULT_WATCH_GROUP, Definition, Deletion, File},
    error_log::{ErrorLog, WPROBE_TRIGGER},
    event::check_append,
    fetch::Grammar,
    filter::{Filter, FilterError, of_tasks},
    hist::{HistError, HistReason},
    line::stack,
    record::Layout,
    refusal::{Reason, Refusal},
    trigger::{Action, Change, Line, LogSource, Switched, Trigger, TriggerError, WatchReason},
};

use super::{
    TRACING,
    event::{Event, Probe, check_loadable},
    names::KernelSymbols,
    shared::{OutOfMemory, Shared, try_box, try_vec},
    sources,
    tasks::{TaskList, TaskSet},
    triggers::{Deed, Other, Taken},
};
use crate::{
    errno::Errno, mm::user_space::is_memory_short, probes::Kprobe, sync::Mutex, time::ktime_get,
};

/// Group and name.
pub type Name = (String, String);

/// An event of the list.
struct Entry {
    name: Name,
    event: Event,
}

/// The events, by name.
pub struct Events {
    /// The events, in the order of the names.
    #[expect(
        clippy::vec_box,
        reason = "an entry is large, and the others move for a new one"
    )]
    list: Vec<Box<Entry>>,
    /// The number of the next event, if it is free. Numbers are used again as late as possible,
    /// because records may be there that have them.
    next_id: u16,
    /// [`Probe::order`] of the next one.
    next_order: u64,
    /// The tasks whose hits are recorded, by [`TaskList`].
    tasks: [TaskSet; TaskList::COUNT],
    /// Each record is followed by one of the call stack.
    with_stacks: bool,
    pub errors: ErrorLog,
    /// Is told of each change of the list from now on.
    pub watcher: Option<Watcher>,
}

/// What follows the list of events: their files. Called under the lock of the list.
#[derive(Clone, Copy)]
pub struct Watcher {
    /// An event of this name and number is about to come; if the flag is true, as the first one of
    /// its group. If this fails, it has changed nothing, and the event does not come.
    pub added: fn(&Name, u16, bool) -> Result<(), Errno>,
    /// An event of this name is gone; if the flag is true, as the last one of its group. It takes
    /// no memory.
    pub removed: fn(&Name, bool),
}

/// The number of the first event; those below are the kernel's own on Linux.
const FIRST_ID: u16 = 1024;
/// The number of the first event of the kernel's own. Those below are of records that belong to no
/// event, as in Linux.
const FIRST_FIXED_ID: u16 = 32;
const _: () = assert!(stack::ID < FIRST_FIXED_ID);

pub static EVENTS: Mutex<Events> = Mutex::new(Events {
    list: Vec::new(),
    next_id: FIRST_ID,
    next_order: 0,
    tasks: [const { TaskSet::empty() }; TaskList::COUNT],
    with_stacks: false,
    errors: ErrorLog::new(),
    watcher: None,
});

fn no_memory() -> Refusal {
    Refusal::line(Reason::OutOfMemory)
}

fn errno(reason: Reason) -> Errno {
    Errno::from_code(reason.errno()).unwrap_or(Errno::EINVAL)
}

impl Events {
    /// Where the event of that name is, or where it would be.
    fn position(&self, name: &Name) -> Result<usize, usize> {
        self.list.binary_search_by(|entry| entry.name.cmp(name))
    }

    fn find(&mut self, name: &Name) -> Option<&mut Event> {
        let at = self.position(name).ok()?;
        Some(&mut self.list[at].event)
    }

    /// Whether there is an event of that group.
    fn has_group(&self, group: &str) -> bool {
        self.list.iter().any(|entry| entry.name.0 == group)
    }

    /// Adds an event without probes, off, with its files. Returns its place in the list.
    ///
    /// # Errors
    /// ENOMEM; then nothing has changed.
    fn add(&mut self, name: Name, id: u16, layout: Layout) -> Result<usize, Errno> {
        let filter = filter_of_tasks(&name, &layout, &self.tasks)?;
        let mut event = Event::new(id, layout)?;
        // It has no probes yet.
        event.set_tasks(filter)?;
        event.set_stacks(self.with_stacks)?;
        let entry = try_box(Entry { name, event })?;
        self.list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let at = self.position(&entry.name).err().ok_or(Errno::EEXIST)?;
        let with_group = !self.has_group(&entry.name.0);
        if let Some(watcher) = self.watcher {
            (watcher.added)(&entry.name, id, with_group)?;
        }
        self.list.insert(at, entry);
        Ok(at)
    }

    /// The tasks in that list.
    pub const fn tasks(&self, list: TaskList) -> &TaskSet {
        &self.tasks[list as usize]
    }

    /// Puts other tasks in their place.
    ///
    /// # Errors
    /// EINVAL if the program of an event would be too large, ENOMEM; then nothing has changed.
    pub fn replace_tasks(&mut self, list: TaskList, tasks: TaskSet) -> Result<(), Errno> {
        let old = core::mem::replace(&mut self.tasks[list as usize], tasks);
        let result = self.choose_tasks();
        if result.is_err() {
            self.tasks[list as usize] = old;
            // An event for which there is no memory has the new tasks until the next change.
            let _ = self.choose_tasks();
        }
        result
    }

    /// Has all events record the hits of the chosen tasks.
    fn choose_tasks(&mut self) -> Result<(), Errno> {
        for entry in &mut self.list {
            let filter = filter_of_tasks(&entry.name, &entry.event.layout, &self.tasks)?;
            entry.event.set_tasks(filter)?;
        }
        Ok(())
    }

    /// Whether each record is followed by one of the call stack.
    pub const fn with_stacks(&self) -> bool {
        self.with_stacks
    }

    /// Has the records of all events followed by their call stacks, or not: those of the events
    /// that come later, too.
    ///
    /// # Errors
    /// ENOMEM; then nothing has changed.
    pub fn set_stacks(&mut self, on: bool) -> Result<(), Errno> {
        let set = |list: &mut [Box<Entry>], on| {
            let mut events = list.iter_mut().map(|entry| &mut entry.event);
            events.try_for_each(|event| event.set_stacks(on))
        };
        let result = set(&mut self.list, on);
        match result {
            Ok(()) => self.with_stacks = on,
            // An event for which there is no memory has them until the next change.
            Err(_) => drop(set(&mut self.list, self.with_stacks)),
        }
        result
    }

    /// The event of that name.
    ///
    /// # Errors
    /// ENODEV if it is gone.
    pub fn event(&mut self, name: &Name) -> Result<&mut Event, Errno> {
        self.find(name).ok_or(Errno::ENODEV)
    }

    /// The event of that name, with that number.
    ///
    /// # Errors
    /// ENODEV if it is gone, also if there is another one of its name.
    pub fn numbered(&mut self, name: &Name, id: u16) -> Result<&mut Event, Errno> {
        let event = self.find(name).filter(|event| event.id == id);
        event.ok_or(Errno::ENODEV)
    }

    /// The number for a new event. Numbers are used again only when all have been used.
    fn free_id(&self) -> Option<u16> {
        let is_free = |id: &u16| self.list.iter().all(|entry| entry.event.id != *id);
        (self.next_id..=u16::MAX)
            .chain(FIRST_ID..self.next_id)
            .find(is_free)
    }

    /// All events, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Event)> {
        self.list.iter().map(|entry| (&entry.name, &entry.event))
    }

    /// Visits all events, by name, with the log of errors, until a visit fails.
    ///
    /// # Errors
    /// Those of the visit.
    pub fn for_each(
        &mut self,
        mut visit: impl FnMut(&Name, &mut Event, &mut ErrorLog) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (list, errors) = (&mut self.list, &mut self.errors);
        list.iter_mut()
            .try_for_each(|entry| visit(&entry.name, &mut entry.event, errors))
    }

    /// Obeys the commands that were written to `file`, one by one. The first one that is refused
    /// ends it; those before it stay.
    ///
    /// A line has at most 4,094 bytes. Any allocation for it may fail, which is ENOMEM; then it has
    /// changed nothing. A definition is also refused while less than the kernel's reserve is free.
    ///
    /// # Errors
    /// That of the refusal, which is in `error_log` then.
    pub fn obey(&mut self, file: File, text: &[u8]) -> Result<(), Errno> {
        for command in Commands::new(text) {
            let words = match command {
                Ok(words) => words,
                Err(bad) => {
                    self.errors.add_bad_line(ktime_get(), &bad);
                    return Err(errno(bad.reason));
                }
            };
            if let Err(refusal) = self.obey_one(file, &words) {
                self.errors.add_refusal(ktime_get(), file, &words, &refusal);
                return Err(errno(refusal.reason));
            }
        }
        Ok(())
    }

    fn obey_one(&mut self, file: File, words: &Words<'_>) -> Result<(), Refusal> {
        match Command::parse(words, file, &KernelSymbols, &Grammar::default())? {
            Command::Create(_) if is_memory_short() => Err(no_memory()),
            Command::Create(definition) => self.create(definition),
            Command::Delete(deletion) => self.delete(file, &deletion),
        }
    }

    /// Defines an event, or adds a probe to one that is there.
    fn create(&mut self, definition: Definition) -> Result<(), Refusal> {
        let name = (copied(&definition.group)?, copied(&definition.event)?);
        check_program(&definition)?;
        let order = self.next_order;
        self.next_order += 1;
        if let Some(event) = self.find(&name) {
            if event.is_fixed() {
                return Err(Refusal::line(Reason::EventExists));
            }
            check_append(
                &definition,
                event.probes.iter().map(|probe| &probe.definition),
            )?;
            push(&mut event.probes, Probe::new(definition, order)?)?;
            if let Err(errno) = event.apply_growth() {
                event.probes.pop();
                return Err(match errno {
                    Errno::ENOMEM => no_memory(),
                    _ => Refusal::place(Reason::RegistrationFailed),
                });
            }
            return Ok(());
        }
        let id = self.free_id().ok_or_else(no_memory)?;
        let layout = Layout::of(&definition)?;
        let mut probes = Vec::new();
        push(&mut probes, Probe::new(definition, order)?)?;
        let at = self.add(name, id, layout).map_err(|_| no_memory())?;
        self.list[at].event.probes = probes;
        self.next_id = id.checked_add(1).unwrap_or(FIRST_ID);
        Ok(())
    }

    /// Deletes the probes of `file` that match, and the events that have none left.
    fn delete(&mut self, file: File, deletion: &Deletion) -> Result<(), Refusal> {
        let matches = |probe: &Probe| deletion.matches(&probe.definition);
        let is_chosen = |event: &Event| has(file, event) && event.probes.iter().any(matches);
        let mut chosen =
            (self.list.iter().map(|entry| &entry.event)).filter(|event| is_chosen(event));
        let Some(first) = chosen.next() else {
            return Err(Refusal::line(Reason::NotFound));
        };
        if first.is_busy() || chosen.any(Event::is_busy) {
            return Err(Refusal::line(Reason::Busy));
        }
        for at in (0..self.list.len()).rev() {
            let event = &mut self.list[at].event;
            if is_chosen(event) {
                event.delete_probes(matches);
                if event.probes.is_empty() {
                    self.remove(at);
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, at: usize) {
        let entry = self.list.remove(at);
        if let Some(watcher) = self.watcher {
            (watcher.removed)(&entry.name, !self.has_group(&entry.name.0));
        }
    }

    /// Deletes all events that `file` has.
    ///
    /// # Errors
    /// EBUSY if one of them is in use; then all stay.
    pub fn clear(&mut self, file: File) -> Result<(), Errno> {
        let mut own = (self.list.iter().map(|entry| &entry.event)).filter(|event| has(file, event));
        if own.any(Event::is_busy) {
            return Err(Errno::EBUSY);
        }
        for at in (0..self.list.len()).rev() {
            if has(file, &self.list[at].event) {
                self.remove(at);
            }
        }
        Ok(())
    }

    /// The probes of events that `file` has, in the order of their definition.
    fn in_order(&self, file: File) -> Result<Vec<&Probe>, Errno> {
        let events = (self.list.iter().map(|entry| &entry.event)).filter(|event| has(file, event));
        let mut probes = Vec::new();
        for event in events {
            let room = probes.try_reserve(event.probes.len());
            room.map_err(|_| Errno::ENOMEM)?;
            probes.extend(&event.probes);
        }
        probes.sort_unstable_by_key(|probe| probe.order);
        Ok(probes)
    }

    /// Writes the definitions that `file` has, so that they can be written back.
    ///
    /// # Errors
    /// ENOMEM, or that of `out`.
    pub fn show(&self, file: File, out: &mut dyn Write) -> Result<(), Errno> {
        for probe in self.in_order(file)? {
            let line = probe.definition.with_maxactive(probe.maxactive());
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Writes hits and misses of each probe of the kernel.
    ///
    /// # Errors
    /// ENOMEM, or that of `out`.
    pub fn show_profile(&self, out: &mut dyn Write) -> Result<(), Errno> {
        for probe in self.in_order(File::KprobeEvents)? {
            let name = &probe.definition.event;
            let profile = probe.profile();
            writeln!(
                out,
                "  {name:<44} {:15} {:15}",
                profile.hits, profile.misses
            )?;
        }
        Ok(())
    }

    /// The kprobes of events whose hits the registry does not count, by their places in memory,
    /// and how many hits each has. They stay as long as the events are locked.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn counted_kprobes(&self) -> Result<Vec<(*const Kprobe, u64)>, OutOfMemory> {
        let mut counted = Vec::new();
        for (_, event) in self.iter() {
            for (kprobe, hits) in event.probes.iter().filter_map(Probe::counted_kprobe) {
                push(&mut counted, (core::ptr::from_ref(kprobe), hits))?;
            }
        }
        counted.sort_unstable_by_key(|(kprobe, _)| *kprobe);
        Ok(counted)
    }

    /// The addresses in the kernel that events are on, ascending.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn traced(&self) -> Result<Vec<u64>, Errno> {
        let mut addresses = Vec::new();
        for (_, event) in self.iter().filter(|(_, event)| event.is_wanted()) {
            for address in event.probes.iter().filter_map(Probe::function) {
                push(&mut addresses, address)?;
            }
        }
        addresses.sort_unstable();
        Ok(addresses)
    }

    /// Writes file and hits of each probe of a program, as Linux does. Beside the event's name it
    /// writes no misses: a call that is not followed counts in the event's own `profile`.
    ///
    /// # Errors
    /// ENOMEM, or that of `out`.
    pub fn show_user_profile(&self, out: &mut dyn Write) -> Result<(), Errno> {
        for probe in self.in_order(File::UprobeEvents)? {
            let path = probe.definition.place.program().unwrap_or("");
            let name = &probe.definition.event;
            writeln!(out, "  {path} {name:<44} {:15}", probe.profile().hits)?;
        }
        Ok(())
    }

    /// Turns the events that `select` chooses on or off.
    ///
    /// # Errors
    /// That of the first one that cannot be turned on. It is none if there are no such events.
    pub fn enable(&mut self, enabled: bool, select: impl Fn(&Name) -> bool) -> Result<(), Errno> {
        let mut result = Ok(());
        for entry in self.list.iter_mut().filter(|entry| select(&entry.name)) {
            result = result.and(entry.event.enable(enabled));
        }
        result
    }

    /// Whether the events that `select` chooses are on: `0`, `1`, or `X` if some are. As on Linux,
    /// one that triggers keep is on.
    pub fn enabled(&self, select: impl Fn(&Name) -> bool) -> char {
        let mut states = self
            .iter()
            .filter(|(name, _)| select(name))
            .map(|(_, event)| event.is_wanted());
        match states.next() {
            None => '0',
            Some(first) if !states.all(|state| state == first) => 'X',
            Some(true) => '1',
            Some(false) => '0',
        }
    }

    /// Obeys a line that was written to the `trigger` file of the event `name`.
    ///
    /// # Errors
    /// That of the refusal, which is in `error_log` then if it concerns a filter, a histogram or a
    /// watch.
    pub fn set_trigger(&mut self, name: &Name, text: &str) -> Result<(), Errno> {
        let event = self.event(name)?;
        let line = Line::parse(text, &event.layout.fields, &KernelSymbols);
        let change = line.and_then(|line| {
            let there = event.triggers.iter().map(|active| &active.trigger);
            Ok((line.apply(there)?, line.trigger))
        });
        let (change, trigger) = match change {
            Ok(change) => change,
            Err(error) => return Err(self.refuse_trigger(name, text, error)),
        };
        match change {
            Change::None => match &trigger.action {
                // A name that was mistyped is told, as on Linux.
                Action::SetEvent { group, event, .. } if !self.has(group, event) => {
                    Err(Errno::EINVAL)
                }
                _ => Ok(()),
            },
            Change::Add { paused } => {
                if let Err(reason) = self.check_watch(&trigger) {
                    let error = TriggerError::watch(reason, text);
                    return Err(self.refuse_trigger(name, text, error));
                }
                // What the refusal means if it comes from the programs.
                let error = match &trigger.action {
                    Action::SetEvent { group, event, .. } if !self.has(group, event) => {
                        return Err(Errno::EINVAL);
                    }
                    Action::Hist(_) => {
                        let (reason, column) = (HistReason::TooLarge, 0);
                        TriggerError::Hist(HistError::Trigger { reason, column })
                    }
                    _ => TriggerError::Filter(FilterError::TOO_LARGE),
                };
                match self.add_trigger(name, trigger, paused) {
                    Err(Errno::EINVAL) => Err(self.refuse_trigger(name, text, error)),
                    result => result,
                }
            }
            Change::Remove(index) => {
                let active = self.event(name)?.remove_trigger(index)?;
                self.disarm(&active.trigger)
            }
            Change::Pause(index) => self.event(name)?.pause(index, true),
            Change::Continue(index) => self.event(name)?.pause(index, false),
            Change::Clear(index) => {
                self.event(name)?.clear(index);
                Ok(())
            }
        }
    }

    /// Notes in `error_log` why a line for the event `name` is refused. Returns the errno.
    fn refuse_trigger(&mut self, name: &Name, text: &str, error: TriggerError) -> Errno {
        if let Some(entry) = error.log_entry(text) {
            let source = match entry.source {
                LogSource::Hist => written(&format_args!("hist:{}:{}", name.0, name.1)),
                LogSource::Filter => copied(FilterError::LOCATION),
                LogSource::Watch => copied(WPROBE_TRIGGER),
            };
            let (now, column) = (ktime_get(), entry.column);
            let (reason, command) = (&entry.text, entry.command());
            // Without memory the errno has to do.
            if let Ok(source) = source {
                self.errors.add(now, &source, reason, &command, column);
            }
        }
        Errno::from_code(error.errno()).unwrap_or(Errno::EINVAL)
    }

    fn add_trigger(&mut self, name: &Name, trigger: Trigger, paused: bool) -> Result<(), Errno> {
        let count = trigger.count;
        let taken = match &trigger.action {
            Action::Hist(_) => {
                let event = self.event(name)?;
                return event.add_trigger(trigger, None, paused).0;
            }
            Action::TraceOn => Taken::new(Deed::TraceOn, count, Other::default()),
            Action::TraceOff => Taken::new(Deed::TraceOff, count, Other::default()),
            Action::SetEvent {
                enable,
                switched,
                group,
                event,
            } => {
                let other = self.called(group, event).ok_or(Errno::EINVAL)?;
                other.share(*switched, true)?;
                let deeds = match switched {
                    Switched::Records => [Deed::DisableEvent, Deed::EnableEvent],
                    Switched::Histograms => [Deed::DisableHist, Deed::EnableHist],
                };
                let deed = deeds[usize::from(*enable)];
                let other = Other {
                    switch: Some(other.word_of(*switched).clone()),
                    watch: None,
                };
                Taken::new(deed, count, other)
            }
            Action::AimWatch {
                set,
                event,
                address,
            } => {
                let watch = self.watch_called(event).ok_or(Errno::EINVAL)?;
                watch.share(Switched::Records, true)?;
                let other = Other {
                    switch: Some(watch.word_of(Switched::Records).clone()),
                    watch: watch.probes.first().and_then(Probe::watch).cloned(),
                };
                let deed = match (set, address) {
                    (true, _) => Deed::SetWatch,
                    (false, None) => Deed::ClearWatch,
                    (false, Some(_)) => Deed::ClearWatchAt,
                };
                Taken::new(deed, count, other)
            }
            Action::StackTrace => Taken::new(Deed::StackTrace, count, Other::default()),
            Action::Snapshot => {
                TRACING.buffer.arm()?;
                Taken::new(Deed::Snapshot, count, Other::default())
            }
        };
        let (result, back) = match (taken, self.event(name)) {
            (Some(taken), Ok(event)) => event.add_trigger(trigger, Some(taken), false),
            (None, _) => (Err(Errno::ENOSPC), Some(trigger)),
            (_, Err(errno)) => (Err(errno), Some(trigger)),
        };
        if let Some(trigger) = back {
            self.disarm(&trigger)?;
        }
        result
    }

    /// Whether there is an event with that name. It takes no memory.
    pub fn has(&mut self, group: &str, event: &str) -> bool {
        self.called(group, event).is_some()
    }

    /// The event with that name, found without memory.
    fn called(&mut self, group: &str, event: &str) -> Option<&mut Event> {
        let is_it = |entry: &&mut Box<Entry>| entry.name.0 == group && entry.name.1 == event;
        self.list
            .iter_mut()
            .find(is_it)
            .map(|found| &mut found.event)
    }

    /// The switch of an event, for something that turns it on or off at hits: one more has it, or
    /// one less.
    ///
    /// # Errors
    /// EINVAL if there is no such event, and as [`Event::apply`].
    pub fn share_switch_of(
        &mut self,
        group: &str,
        event: &str,
        more: bool,
    ) -> Result<Shared<AtomicU64>, Errno> {
        let event = self.called(group, event).ok_or(Errno::EINVAL)?;
        event.share(Switched::Records, more)?;
        Ok(event.word_of(Switched::Records).clone())
    }

    /// A trigger is gone. It gives back what it had: another event's switch, or the rings of
    /// snapshots.
    fn disarm(&mut self, trigger: &Trigger) -> Result<(), Errno> {
        if trigger.action == Action::Snapshot {
            TRACING.buffer.disarm();
        }
        let (other, switched) = match &trigger.action {
            Action::SetEvent {
                switched,
                group,
                event,
                ..
            } => (self.called(group, event), *switched),
            Action::AimWatch { event, .. } => {
                (self.called(DEFAULT_WATCH_GROUP, event), Switched::Records)
            }
            _ => return Ok(()),
        };
        other.map_or(Ok(()), |other| other.share(switched, false))
    }

    /// The watch with that name that triggers can aim.
    fn watch_called(&mut self, event: &str) -> Option<&mut Event> {
        let event = self.called(DEFAULT_WATCH_GROUP, event)?;
        let is_one = event.probes.len() == 1;
        Some(event).filter(|event| is_one && event.probes.iter().all(|probe| probe.is_aimed()))
    }

    /// Checks that the watch of a trigger can be aimed by it.
    fn check_watch(&mut self, trigger: &Trigger) -> Result<(), WatchReason> {
        let Action::AimWatch { set, event, .. } = &trigger.action else {
            return Ok(());
        };
        let Some(found) = self.called(DEFAULT_WATCH_GROUP, event) else {
            return Err(WatchReason::NotFound);
        };
        if *set && found.is_recorded() && found.switch_users == 0 {
            return Err(WatchReason::Busy);
        }
        match self.watch_called(event) {
            Some(_) => Ok(()),
            None => Err(WatchReason::Fixed),
        }
    }

    /// The events by number, for a reader of records.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn layouts(&self) -> Result<Layouts, Errno> {
        let mut layouts = try_vec(self.list.len())?;
        for ((_, name), event) in self.iter() {
            let name = copied(name).map_err(|_| Errno::ENOMEM)?;
            layouts.push((event.id, name, event.layout.clone()));
        }
        layouts.sort_unstable_by_key(|(id, ..)| *id);
        Ok(Layouts {
            list: layouts,
            last: 0,
        })
    }
}

/// Names and layouts of events.
pub struct Layouts {
    /// The events, in the order of their numbers.
    list: Vec<(u16, String, Shared<Layout>)>,
    /// Where the last one was: most records are of the same event as the one before.
    last: usize,
}

impl Layouts {
    /// Those of the event with that number.
    pub fn of(&mut self, id: u16) -> Option<(&str, &Layout)> {
        if self
            .list
            .get(self.last)
            .is_none_or(|(last, ..)| *last != id)
        {
            self.last = self.list.binary_search_by_key(&id, |(id, ..)| *id).ok()?;
        }
        let (_, name, layout) = &self.list[self.last];
        Some((name, layout))
    }
}

/// The filter that keeps the chosen tasks. As on Linux, a switch of tasks is a record of both, and
/// a task that is woken one of it and of the one that wakes it.
fn filter_of_tasks(
    (group, event): &Name,
    layout: &Layout,
    tasks: &[TaskSet; TaskList::COUNT],
) -> Result<Option<Filter>, Errno> {
    let fields: &[&str] = match (&**group, &**event) {
        ("sched", "sched_switch") if layout.fixed => &["prev_pid", "next_pid"],
        ("sched", "sched_wakeup") if layout.fixed => &["common_pid", "pid"],
        _ => &["common_pid"],
    };
    let [only, without] = [TaskList::Only, TaskList::Without].map(|list| &tasks[list as usize]);
    let text = of_tasks(fields, only.numbers(), without.numbers())?;
    let filter = text.map(|text| Filter::parse(&text, &layout.fields, &KernelSymbols));
    let refused = |error: FilterError| Errno::from_code(error.errno()).unwrap_or(Errno::EINVAL);
    filter.transpose().map_err(refused)
}

/// Whether `file` has the event: it is one that was defined, of the kernel or of a program.
fn has(file: File, event: &Event) -> bool {
    let first = event.probes.first().map(|probe| &probe.definition);
    let is_of_program = first.is_some_and(Definition::is_of_program);
    let is_watch = first.is_some_and(Definition::is_watch);
    !event.is_fixed()
        && match file {
            File::KprobeEvents => !is_of_program && !is_watch,
            File::UprobeEvents => is_of_program,
            File::DynamicEvents => true,
        }
}

/// Checks that the definition has a program that can be loaded. So a definition that is too long is
/// refused when it is written, and not when it is enabled.
fn check_program(definition: &Definition) -> Result<(), Refusal> {
    check_loadable(compile(definition, 0, &KernelSymbols, None)).map_err(|error| {
        Refusal::line(match error.is_out_of_memory() {
            true => Reason::OutOfMemory,
            false => Reason::EventTooBig,
        })
    })
}

/// Adds the events of the kernel's own, all of them off. Once, in the boot.
///
/// # Errors
/// ENOMEM.
pub fn define_fixed() -> Result<(), Errno> {
    let mut events = EVENTS.lock();
    for (definition, id) in sources::definitions().into_iter().zip(FIRST_FIXED_ID..) {
        let name = (definition.group.clone(), definition.event.clone());
        let layout = Layout::of(&definition).map_err(|_| Errno::ENOMEM)?;
        let at = events.add(name, id, layout)?;
        events.list[at].event.probes.push(Probe::fixed(definition));
    }
    Ok(())
}

/// Defines and enables the events of the boot parameter `kprobe_event`.
pub fn define_at_boot(parameter: &str) {
    let mut events = EVENTS.lock();
    for line in tracefs::commands::boot_lines(parameter) {
        let before: Vec<Name> = events.iter().map(|(name, _)| name.clone()).collect();
        match events.obey(File::KprobeEvents, line.as_bytes()) {
            Ok(()) => {
                let _ = events.enable(true, |name| !before.contains(name));
            }
            Err(errno) => crate::pr_warn!("kprobe_event: {line}: {errno}\n{}", events.errors),
        }
    }
}
