//! Events: several probes under one name, and the table of all of them.
//!
//! A definition with the name of an event that is there adds a probe to it. All probes of an event
//! leave the same records, so they agree in kind and in the number, names, types and sizes of their
//! arguments.
//!
//! # Invariants
//! N1. Each probe belongs to one event of the table, and each event has a probe.
//! N2. The names and fields of an event are its own and not those of its first probe. So the first
//!     probe can be deleted like any other.
//! N3. A refused deletion deletes nothing, even if it names several events.
//!
//! # Contexts
//! Task context. The owner locks the table.

use crate::{
    definition::{Definition, Deletion},
    record::{Layout, first_difference},
    refusal::{Reason, Refusal},
};
use alloc::{string::String, vec::Vec};

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its number, which its records carry.
    pub id: u16,
    /// Its group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// The layout of its records.
    pub layout: Layout,
}

/// A probe of an event.
#[derive(Clone, Debug)]
pub struct Probe<H> {
    /// The number of its event.
    pub event: u16,
    /// Its definition.
    pub definition: Definition,
    /// The owner's hold on the probe.
    pub handle: H,
}

/// What a deletion took away.
#[derive(Clone, Debug)]
pub struct Deleted<H> {
    /// The probes.
    pub probes: Vec<Probe<H>>,
    /// The events that have no probe left.
    pub events: Vec<Event>,
}

/// The events that are defined. `H` is the owner's hold on a probe.
#[derive(Clone, Debug)]
pub struct Events<H> {
    events: Vec<Event>,
    /// In the order of their definitions, which is that of the listing.
    probes: Vec<Probe<H>>,
}

impl<H> Default for Events<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Events<H> {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            events: Vec::new(),
            probes: Vec::new(),
        }
    }

    /// The events in the order of their definitions.
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// The event with this group and name.
    pub fn named(&self, group: &str, name: &str) -> Option<&Event> {
        self.events
            .iter()
            .find(|event| event.group == group && event.name == name)
    }

    /// The event with this number.
    pub fn numbered(&self, id: u16) -> Option<&Event> {
        self.events.iter().find(|event| event.id == id)
    }

    /// All probes in the order of their definitions.
    pub fn probes(&self) -> &[Probe<H>] {
        &self.probes
    }

    /// The probes of an event.
    pub fn probes_of(&self, id: u16) -> impl Iterator<Item = &Probe<H>> {
        self.probes.iter().filter(move |probe| probe.event == id)
    }

    /// Checks whether a probe may be added: to the event that it returns, or to a new one.
    ///
    /// # Errors
    /// [`Refusal`]; see [`check_append`].
    pub fn check(&self, definition: &Definition) -> Result<Option<&Event>, Refusal> {
        let Some(event) = self.named(&definition.group, &definition.event) else {
            return Ok(None);
        };
        check_append(
            definition,
            self.probes_of(event.id).map(|probe| &probe.definition),
        )?;
        Ok(Some(event))
    }

    /// Adds a probe that [`Events::check`] has allowed. A new event gets the number `new_id`.
    /// Returns the number of the event.
    ///
    /// # Errors
    /// [`Reason::OutOfMemory`] with the handle, and nothing is added.
    pub fn add(
        &mut self,
        definition: Definition,
        new_id: u16,
        handle: H,
    ) -> Result<u16, (Refusal, H)> {
        let room = self
            .probes
            .try_reserve(1)
            .and_then(|()| self.events.try_reserve(1));
        if room.is_err() {
            return Err((Refusal::line(Reason::OutOfMemory), handle));
        }
        let there = self
            .named(&definition.group, &definition.event)
            .map(|event| event.id);
        let event = there.unwrap_or(new_id);
        if there.is_none() {
            self.events.push(Event {
                id: event,
                group: definition.group.clone(),
                name: definition.event.clone(),
                layout: Layout::of(&definition),
            });
        }
        self.probes.push(Probe {
            event,
            definition,
            handle,
        });
        Ok(event)
    }

    /// Deletes what `deletion` names. An event that `is_busy` keeps a probe.
    ///
    /// # Errors
    /// [`Reason::NotFound`] if it names nothing, [`Reason::Busy`] if it would take the last probe
    /// of a busy event.
    pub fn delete(
        &mut self,
        deletion: &Deletion,
        is_busy: impl Fn(&Event) -> bool,
    ) -> Result<Deleted<H>, Refusal> {
        if !self
            .probes
            .iter()
            .any(|probe| deletion.matches(&probe.definition))
        {
            return Err(Refusal::line(Reason::NotFound));
        }
        self.take(|definition| deletion.matches(definition), is_busy)
    }

    /// Deletes all events, as opening the file for a new text does.
    ///
    /// # Errors
    /// [`Reason::Busy`] if one of them `is_busy`.
    pub fn clear(&mut self, is_busy: impl Fn(&Event) -> bool) -> Result<Deleted<H>, Refusal> {
        self.take(|_| true, is_busy)
    }

    /// Takes the probes that `is_taken`.
    fn take(
        &mut self,
        is_taken: impl Fn(&Definition) -> bool,
        is_busy: impl Fn(&Event) -> bool,
    ) -> Result<Deleted<H>, Refusal> {
        let stays = |event: &Event| {
            self.probes_of(event.id)
                .any(|probe| !is_taken(&probe.definition))
        };
        if self
            .events
            .iter()
            .any(|event| !stays(event) && is_busy(event))
        {
            return Err(Refusal::line(Reason::Busy));
        }
        let probes: Vec<_> = self
            .probes
            .extract_if(.., |probe| is_taken(&probe.definition))
            .collect();
        let is_empty = |event: &mut Event| self.probes.iter().all(|probe| probe.event != event.id);
        let events = self.events.extract_if(.., is_empty).collect();
        Ok(Deleted { probes, events })
    }
}

/// Checks whether the probe `new` may join the probes `there` of the event with its name.
///
/// # Errors
/// [`Refusal`]: another kind, other arguments, or a probe that is there already.
pub fn check_append<'a>(
    new: &Definition,
    there: impl IntoIterator<Item = &'a Definition>,
) -> Result<(), Refusal> {
    for old in there {
        if new.kind != old.kind {
            return Err(Refusal::line(Reason::DifferentProbeType));
        }
        if let Some(number) = first_difference(&new.arguments, &old.arguments) {
            let word = Refusal::ARGUMENTS + number;
            return Err(Refusal::new(Reason::DifferentArgumentType, word, 0));
        }
        let texts = |probe: &'a Definition| probe.arguments.iter().map(|argument| &argument.text);
        let is_same_text = new
            .arguments
            .iter()
            .map(|argument| &argument.text)
            .eq(texts(old));
        if new.place == old.place && is_same_text {
            return Err(Refusal::line(Reason::SameProbe));
        }
    }
    Ok(())
}
