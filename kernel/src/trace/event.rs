//! One event: its probes, and what is to be done at a hit.
//!
//! ```text
//!   defined ─► idle: a disabled probe holds the place ◄──► armed: a program is attached
//!                 │ delete                                     enable, or a trigger
//!                 ▼
//!               gone: files that are still open say ENODEV
//! ```
//!
//! # Invariants
//! EVENT-1. All probes of an event are armed, or none is. A change that fails changes nothing,
//!     because all that may fail is done beside what is there: programs are loaded, and attached
//!     disabled.
//! EVENT-2. A change of what is to be done (a filter, a trigger) makes new programs. The old ones
//!     are detached first, and what they counted is added up. So no count is lost, and no hit is
//!     counted twice. A hit between the two is a hit of an event that is off.
//!
//! # Contexts
//! Task context, under the lock of the list of events ([`super::events`]).

mod error;
mod probe;
mod user;
mod watch;

use alloc::{string::String, vec::Vec};
use core::{
    fmt::{self, Write},
    sync::atomic::{AtomicU64, Ordering},
};

use bpf::{AluOp, Condition, Helper, Label, Reg, Size, verifier::verify};
use fallible::{copied, written};
use trace_agent::script::{clear_map, read_map};
use trace_maps::Map;
use tracefs::{
    compile::{self, EventProgram},
    definition::{Definition, EventKind},
    filter::Filter,
    hist::{self, Hist},
    record::Layout,
    trigger::{Action, FieldAddress, Switched, Trigger},
};

use self::probe::Loaded;
pub use self::{
    error::ArmError,
    probe::{Probe, Profile},
};
use super::{
    names::KernelSymbols,
    program::{LoadError, LoadedMap, Program},
    shared::{OutOfMemory, Shared, try_vec},
    touched,
    triggers::Taken,
};
use crate::{errno::Errno, probes::Kernel};

/// See the module's text.
pub struct Event {
    pub id: u16,
    pub layout: Shared<Layout>,
    pub probes: Vec<Probe>,
    /// What the probes that were deleted have counted.
    of_deleted: Profile,
    /// Records are to be written, unless triggers of other events say otherwise.
    enabled: bool,
    pub filter: Option<Filter>,
    /// Which tasks are chosen: what hits of others would record is not recorded.
    of_tasks: Option<Filter>,
    /// Each record is followed by one of the call stack.
    with_stacks: bool,
    /// The text of the `filter` file after a refusal.
    pub refused_filter: Option<String>,
    /// After `probes`, so that no program has a trigger's slot when that is dropped.
    pub triggers: Vec<ActiveTrigger>,
    /// The maps of its histograms, by name. They outlive programs.
    maps: Vec<(String, Shared<LoadedMap>)>,
    /// Whether hits are recorded, as triggers of other events say. It counts while there are such
    /// triggers.
    switch: Shared<AtomicU64>,
    /// How many triggers of other events have the switch.
    pub switch_users: usize,
    /// The histograms that do not count, a bit each ([`ActiveTrigger::bit`]). Hits look at it while
    /// there are triggers that change it.
    paused: Shared<AtomicU64>,
    /// How many such triggers there are.
    paused_users: usize,
    next_trigger: u32,
}

/// A trigger, and what it needs.
pub struct ActiveTrigger {
    pub trigger: Trigger,
    /// The beginning of the names of its maps.
    name: String,
    /// The slot of one that acts on something else than a histogram.
    pub slot: Option<Taken>,
    /// The bit of a histogram in the word that says which of them do not count. 0: it is none.
    bit: u64,
}

/// The parts that a program has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Those that are wanted now.
    Now,
    /// All that may ever be wanted, with the triggers and the filter that there are.
    Largest,
}

/// Checks that the programs of a probe can be loaded, and loads nothing.
///
/// # Errors
/// The [`ArmError`] of the first that cannot.
pub fn check_loadable(
    built: Result<compile::Programs, compile::CompileError>,
) -> Result<(), ArmError> {
    let programs = built.map_err(ArmError::Program)?;
    for program in [Some(programs.hit), programs.entry].into_iter().flatten() {
        verify(program).map_err(LoadError::Refused)?;
    }
    Ok(())
}

/// The beginning of the names of a histogram's maps.
const HIST_MAP: &str = "hist";

fn is_hist_map(name: &str) -> bool {
    name.starts_with(HIST_MAP)
}

impl ActiveTrigger {
    /// Has the program call the trigger, whose answer is in `r0` then. Returns the label where it
    /// goes on at a hit that the filter does not match.
    fn act(&self, program: &mut EventProgram<'_>) -> Result<Label, compile::CompileError> {
        let end = program.builder.label();
        if let Some(filter) = &self.trigger.filter {
            program.filter(filter, end)?;
        }
        match &self.trigger.action {
            Action::AimWatch {
                address: Some(FieldAddress { field, adjust }),
                ..
            } => {
                program.number(field, Reg::R2)?;
                program.builder.alu(AluOp::Add, Reg::R2, *adjust);
            }
            _ => drop(program.builder.mov(Reg::R2, 0)),
        }
        let number = self.slot.as_ref().map_or(i32::MAX, Taken::number);
        program.builder.mov(Reg::R1, number).call(Helper::Trigger);
        Ok(end)
    }

    /// Whether a map with that name is one of its histogram.
    fn owns(&self, map: &str) -> bool {
        map.strip_prefix(&*self.name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Stacks of a histogram.
struct StackNames<'a>(&'a Event, &'a ActiveTrigger);

impl hist::Names for StackNames<'_> {
    fn frame(&self, stack: u64, frame: u32) -> Option<u64> {
        let is_it = |name: &str| name.strip_prefix(&*self.1.name) == Some(".stacks");
        let Some(Map::Stacks(stacks)) = self.0.map(is_it) else {
            return None;
        };
        let mut frames = [0; trace_maps::MAX_FRAMES];
        let count = stacks.frames(stack, &mut frames)?;
        frames[..count].get(frame as usize).copied()
    }

    fn syscall(&self, number: u64) -> Option<&str> {
        super::sources::syscall_name(number)
    }
}

impl Event {
    /// An event without probes.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(id: u16, layout: Layout) -> Result<Self, OutOfMemory> {
        Ok(Self {
            id,
            layout: Shared::try_new(layout)?,
            probes: Vec::new(),
            of_deleted: Profile::default(),
            enabled: false,
            filter: None,
            of_tasks: None,
            with_stacks: false,
            refused_filter: None,
            triggers: Vec::new(),
            maps: Vec::new(),
            switch: Shared::try_new(AtomicU64::new(0))?,
            switch_users: 0,
            paused: Shared::try_new(AtomicU64::new(0))?,
            paused_users: 0,
            next_trigger: 0,
        })
    }

    /// The map of a histogram whose name `is_it`.
    fn map(&self, is_it: impl Fn(&str) -> bool) -> Option<&Map> {
        let (_, map) = self.maps.iter().find(|(name, _)| is_it(name))?;
        map.own()
    }

    /// Whether hits are to do anything.
    pub fn is_wanted(&self) -> bool {
        self.enabled || self.is_watched_by_triggers()
    }

    /// Whether it has triggers, or those of others have something of it. Linux calls that soft
    /// mode.
    const fn is_watched_by_triggers(&self) -> bool {
        !self.triggers.is_empty() || self.switch_users > 0 || self.paused_users > 0
    }

    /// Whether it is one of the kernel's own.
    pub fn is_fixed(&self) -> bool {
        self.layout.fixed
    }

    /// Whether it may not be deleted.
    pub fn is_busy(&self) -> bool {
        self.is_wanted()
    }

    /// Makes the probes do what is wanted now (EVENT-1, EVENT-2).
    ///
    /// # Errors
    /// That of the first probe that cannot be armed; then nothing has changed.
    pub fn apply(&mut self) -> Result<(), Errno> {
        if !self.is_wanted() {
            self.probes.iter_mut().for_each(Probe::disarm);
            return Ok(());
        }
        let maps_before = self.maps.len();
        let result = self.arm_all();
        if result.is_err() {
            self.maps.truncate(maps_before);
        }
        result.map_err(Errno::from)
    }

    /// All that may fail comes first, beside what is there.
    fn arm_all(&mut self) -> Result<(), ArmError> {
        let mut armed = try_vec(self.probes.len())?;
        let mut touched = touched::reserve(self.probes.len())?;
        for probe in &self.probes {
            let programs = self.programs(&probe.definition, Extent::Now);
            let programs = programs.map_err(ArmError::Program)?;
            let maps = &mut self.maps;
            let shared = |wanted: &str| {
                let mut known = maps.iter();
                known
                    .find(|(name, _)| name == wanted)
                    .map(|(_, map)| map.clone())
            };
            let hit = match probe.definition.kind {
                EventKind::Watch => Program::load_for_watchpoint(programs.hit, shared),
                EventKind::Probe | EventKind::Return => Program::load_sharing(programs.hit, shared),
            }?;
            let entry = programs.entry.map(Program::load).transpose()?;
            // The maps of a new histogram are made with the first program that has them.
            for (name, map) in hit.maps().filter(|(name, _)| is_hist_map(name)) {
                if !maps.iter().any(|(known, _)| known == name) {
                    let name = copied(name).map_err(|_| LoadError::OutOfMemory)?;
                    maps.try_reserve(1).map_err(|_| LoadError::OutOfMemory)?;
                    maps.push((name, map.clone()));
                }
            }
            armed.push(probe.attach(Loaded { hit, entry })?);
        }
        for (probe, state) in self.probes.iter_mut().zip(armed) {
            probe.replace(state);
            touched.add(probe.function().as_slice());
        }
        Ok(())
    }

    /// [`Event::apply`] after a change that lets the programs grow. All programs that the event may
    /// need are checked first: the largest has the parts of all others. So a filter or a trigger is
    /// refused when it is set, and not when the event is turned on or off.
    ///
    /// # Errors
    /// EINVAL if a program is too large; ENOMEM; and as [`Event::apply`].
    pub fn apply_growth(&mut self) -> Result<(), Errno> {
        for probe in &self.probes {
            check_loadable(self.programs(&probe.definition, Extent::Largest))?;
        }
        self.apply()
    }

    /// The programs of one of its probes: triggers, then the record.
    fn programs(
        &self,
        definition: &Definition,
        extent: Extent,
    ) -> Result<compile::Programs, compile::CompileError> {
        let mut program = EventProgram::new(definition, self.id, &KernelSymbols)?;
        program.with_stacks = self.with_stacks || extent == Extent::Largest;
        let is_after = |active: &&ActiveTrigger| active.trigger.action.is_after_the_record();
        for active in self.triggers.iter().filter(|active| !is_after(active)) {
            match &active.trigger.action {
                Action::Hist(hist) if self.paused_users > 0 || extent == Extent::Largest => {
                    let end = program.builder.label();
                    let paused = core::ptr::from_ref(&*self.paused).addr() as i64;
                    program
                        .builder
                        .set(Reg::R0, paused)
                        .load(Reg::R0, Reg::R0, 0, Size::B8)
                        .alu(AluOp::And, Reg::R0, active.bit as i32)
                        .branch(Condition::NotEqual, Reg::R0, 0, end);
                    program.count(hist, &active.name)?;
                    program.builder.place(end);
                }
                Action::Hist(_) if self.is_paused(active) => {}
                Action::Hist(hist) => program.count(hist, &active.name)?,
                _ => {
                    let end = active.act(&mut program)?;
                    program.builder.place(end);
                }
            }
        }
        // That of tasks is the cheaper one for most hits.
        let filters = || self.of_tasks.iter().chain(&self.filter);
        if self.switch_users > 0 || extent == Extent::Largest {
            let (off, end) = (program.builder.label(), program.builder.label());
            let switch = core::ptr::from_ref(&*self.switch).addr() as i64;
            program
                .builder
                .set(Reg::R0, switch)
                .load(Reg::R0, Reg::R0, 0, Size::B8)
                .branch(Condition::Equal, Reg::R0, 0, off);
            program.record(filters())?;
            program.builder.jump(end).place(off);
            program.count_unasked();
            program.builder.place(end);
        } else if self.enabled {
            program.record(filters())?;
        } else {
            program.count_unasked();
        }
        // A snapshot has the record of the hit that takes it, and its stack.
        let after = || self.triggers.iter().filter(is_after);
        let is_snapshot = |active: &&ActiveTrigger| active.trigger.action == Action::Snapshot;
        for active in after().filter(|active| !is_snapshot(active)) {
            let end = active.act(&mut program)?;
            program.builder.branch(Condition::Equal, Reg::R0, 0, end);
            program.record_stack();
            program.builder.place(end);
        }
        for active in after().filter(is_snapshot) {
            let end = active.act(&mut program)?;
            program.builder.place(end);
        }
        program.finish()
    }

    /// Adds a trigger. `slot` is that of one that is no histogram. As in Linux, a histogram comes
    /// last, and another trigger first: they are shown in that order, and done in it at a hit.
    ///
    /// # Errors
    /// The same as [`Event::apply_growth`]; then it is not there, and comes back.
    pub fn add_trigger(
        &mut self,
        trigger: Trigger,
        slot: Option<Taken>,
        paused: bool,
    ) -> (Result<(), Errno>, Option<Trigger>) {
        self.next_trigger += 1;
        let name = written(&format_args!("{HIST_MAP}{}", self.next_trigger));
        let (Ok(name), Ok(())) = (name, self.triggers.try_reserve(1)) else {
            return (Err(Errno::ENOMEM), Some(trigger));
        };
        let bit = match trigger.action {
            Action::Hist(_) => self.free_bit(),
            _ => Some(0),
        };
        let Some(bit) = bit else {
            return (Err(Errno::EINVAL), Some(trigger));
        };
        self.set_paused(bit, paused);
        let at = match trigger.action {
            Action::Hist(_) => self.triggers.len(),
            _ => 0,
        };
        let active = ActiveTrigger {
            trigger,
            name,
            slot,
            bit,
        };
        self.triggers.insert(at, active);
        let result = self.apply_growth();
        let back = match result {
            Ok(()) => None,
            Err(_) => Some(self.triggers.remove(at).trigger),
        };
        (result, back)
    }

    /// Takes a trigger away. Returns it.
    ///
    /// # Errors
    /// The same as [`Event::apply`].
    pub fn remove_trigger(&mut self, index: usize) -> Result<ActiveTrigger, Errno> {
        let active = self.triggers.remove(index);
        if let Err(errno) = self.apply() {
            // The programs have its slot and its maps still.
            self.triggers.insert(index, active);
            return Err(errno);
        }
        self.maps.retain(|(name, _)| !active.owns(name));
        Ok(active)
    }

    /// Takes all histograms away.
    ///
    /// # Errors
    /// The same as [`Event::apply`]; then those that are left stay.
    pub fn remove_histograms(&mut self) -> Result<(), Errno> {
        let is_hist = |active: &ActiveTrigger| matches!(active.trigger.action, Action::Hist(_));
        while let Some(last) = self.triggers.iter().rposition(is_hist) {
            self.remove_trigger(last)?;
        }
        Ok(())
    }

    /// Lets a histogram count, or not.
    ///
    /// # Errors
    /// The same as [`Event::apply`].
    pub fn pause(&mut self, index: usize, paused: bool) -> Result<(), Errno> {
        let active = &self.triggers[index];
        let (bit, old) = (active.bit, self.is_paused(active));
        self.set_paused(bit, paused);
        let result = self.apply();
        if result.is_err() {
            self.set_paused(bit, old);
        }
        result
    }

    /// A bit that no histogram has. None: all are in use. A program compares with 31 bits.
    fn free_bit(&self) -> Option<u64> {
        let is_free = |bit: &u64| self.triggers.iter().all(|active| active.bit != *bit);
        (0..31).map(|at| 1 << at).find(is_free)
    }

    fn is_paused(&self, active: &ActiveTrigger) -> bool {
        self.paused.load(Ordering::Relaxed) & active.bit != 0
    }

    fn set_paused(&self, bit: u64, paused: bool) {
        match paused {
            true => self.paused.fetch_or(bit, Ordering::Relaxed),
            false => self.paused.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// Empties a histogram.
    pub fn clear(&self, index: usize) {
        let active = &self.triggers[index];
        for (_, map) in self.maps.iter().filter(|(name, _)| active.owns(name)) {
            if let Some(map) = map.own() {
                clear_map::<Kernel>(map);
            }
        }
    }

    /// The word that triggers of other events set: the switch, or which histograms do not count, of
    /// all at once.
    pub fn word_of(&self, switched: Switched) -> &Shared<AtomicU64> {
        match switched {
            Switched::Records => &self.switch,
            Switched::Histograms => &self.paused,
        }
    }

    fn users_of(&mut self, switched: Switched) -> &mut usize {
        match switched {
            Switched::Records => &mut self.switch_users,
            Switched::Histograms => &mut self.paused_users,
        }
    }

    /// One more trigger of another event has that word, or one less.
    ///
    /// # Errors
    /// The same as [`Event::apply`].
    pub fn share(&mut self, switched: Switched, more: bool) -> Result<(), Errno> {
        if switched == Switched::Records {
            if self.switch_users == 0 {
                self.switch.store(self.enabled.into(), Ordering::Relaxed);
            }
            if !more && self.switch_users <= 1 {
                // The event stays as the triggers have left it. So programs that ask for the
                // switch still, because memory is short, find what counts now.
                self.enabled = self.is_recorded();
            }
        }
        let before = *self.users_of(switched);
        *self.users_of(switched) = match more {
            true => before + 1,
            false => before.saturating_sub(1),
        };
        let result = self.apply();
        if more && result.is_err() {
            *self.users_of(switched) = before;
        }
        result
    }

    /// Whether a hit is recorded now, if the filter matches.
    pub fn is_recorded(&self) -> bool {
        match self.switch_users {
            0 => self.enabled,
            _ => self.switch.load(Ordering::Relaxed) != 0,
        }
    }

    /// The content of `enable`.
    pub fn enabled_text(&self) -> &'static str {
        match (self.is_recorded(), self.is_watched_by_triggers()) {
            (false, false) => "0",
            (true, false) => "1",
            (false, true) => "0*",
            (true, true) => "1*",
        }
    }

    /// Takes the probes away that `goes` is true of. Their records may be in the buffer, so what
    /// they counted stays with the event.
    pub fn delete_probes(&mut self, goes: impl Fn(&Probe) -> bool) {
        for probe in self.probes.iter().filter(|probe| goes(probe)) {
            self.of_deleted += probe.profile();
        }
        self.probes.retain(|probe| !goes(probe));
    }

    /// The hits and misses of all its probes, also of those that were deleted.
    pub fn profile(&self) -> Profile {
        let mut sum = self.of_deleted;
        for probe in &self.probes {
            sum += probe.profile();
        }
        sum
    }

    /// Writes the lines of `trigger`.
    ///
    /// # Errors
    /// That of `out`.
    pub fn show_triggers(&self, out: &mut dyn Write) -> fmt::Result {
        for active in &self.triggers {
            let left = active.slot.as_ref().and_then(Taken::left);
            let missed = active.slot.as_ref().map_or(0, Taken::missed);
            let line = active.trigger.line(left, self.is_paused(active), missed);
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Writes the text of `hist`.
    ///
    /// # Errors
    /// ENOMEM, or that of `out`.
    pub fn show_histograms(&self, out: &mut dyn Write) -> Result<(), Errno> {
        let mut is_first = true;
        for active in &self.triggers {
            let Action::Hist(hist) = &active.trigger.action else {
                continue;
            };
            if !is_first {
                out.write_str("\n\n")?;
            }
            is_first = false;
            let table = self.table(hist, &active.name)?;
            table.write(
                self.is_paused(active),
                &KernelSymbols,
                &StackNames(self, active),
                out,
            )?;
        }
        Ok(())
    }

    /// The contents of a histogram.
    fn table<'a>(&self, hist: &'a Hist, name: &str) -> Result<hist::Table<'a>, Errno> {
        let mut table = hist::Table::new(hist);
        if let Some(map) = self.map(|known| known == name) {
            for entry in read_map::<Kernel>(map)? {
                table
                    .add(&entry.key, &entry.value)
                    .map_err(|_| Errno::ENOMEM)?;
            }
        }
        let is_drops = |known: &str| known.strip_prefix(name) == Some(".drops");
        if let Some(Map::Array(drops)) = self.map(is_drops) {
            let mut sum = [0];
            drops.read_sum(0, &mut sum);
            table.dropped = sum[0];
        }
        table.sort();
        Ok(table)
    }

    /// Turns recording on or off, also if a trigger of another event has switched it.
    ///
    /// # Errors
    /// The same as [`Event::apply`]; then it is as it was.
    pub fn enable(&mut self, enabled: bool) -> Result<(), Errno> {
        if self.enabled != enabled {
            self.enabled = enabled;
            if let Err(errno) = self.apply() {
                self.enabled = !enabled;
                return Err(errno);
            }
        }
        self.switch.store(enabled.into(), Ordering::Relaxed);
        Ok(())
    }

    /// Sets or clears the filter.
    ///
    /// # Errors
    /// The same as [`Event::apply_growth`]; then the old filter is in force.
    pub fn set_filter(&mut self, filter: Option<Filter>) -> Result<(), Errno> {
        let grows = filter.is_some();
        self.exchange(|event| &mut event.filter, filter, grows)
    }

    /// Records hits of the tasks that `filter` keeps.
    ///
    /// # Errors
    /// As [`Event::set_filter`].
    pub fn set_tasks(&mut self, filter: Option<Filter>) -> Result<(), Errno> {
        if filter == self.of_tasks {
            return Ok(());
        }
        let grows = filter.is_some();
        self.exchange(|event| &mut event.of_tasks, filter, grows)
    }

    /// Has each record followed by its call stack, or not.
    ///
    /// # Errors
    /// As [`Event::apply`]; then it is as it was.
    pub fn set_stacks(&mut self, on: bool) -> Result<(), Errno> {
        if on == self.with_stacks {
            return Ok(());
        }
        // The largest program has them anyway.
        self.exchange(|event| &mut event.with_stacks, on, false)
    }

    /// Puts `value` in the place of another one, which lets the programs grow or not; if that
    /// fails, that one is in force as before.
    fn exchange<T>(
        &mut self,
        place: fn(&mut Self) -> &mut T,
        value: T,
        grows: bool,
    ) -> Result<(), Errno> {
        let old = core::mem::replace(place(self), value);
        let result = match grows {
            true => self.apply_growth(),
            false => self.apply(),
        };
        if result.is_err() {
            *place(self) = old;
        }
        result
    }
}
