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
//! EVENT-1. All probes of an event are armed, or none is. If one cannot be armed, those that could
//!     are idle again.
//! EVENT-2. A change of what is to be done (a filter, a trigger) makes new programs. The old ones
//!     are detached first, and what they counted is added up. So no count is lost, and no hit is
//!     counted twice. A hit between the two is a hit of an event that is off.
//!
//! # Contexts
//! Task context, under the lock of the list of events ([`super::events`]).

use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};

use trace_events::{
    compile::{self, EventProgram, HITS},
    definition::{Definition, EventKind},
    filter::Filter,
    record::Layout,
    refusal::{Reason, Refusal},
};

use super::{
    names::KernelSymbols,
    program::{AttachedCall, AttachedProbe, LoadError, Program},
};
use crate::{
    errno::Errno,
    probes::{Kprobe, Kretprobe, ProbeError, Registered, register},
};

/// See the module's text.
pub struct Event {
    pub id: u16,
    pub layout: Arc<Layout>,
    pub probes: Vec<Probe>,
    /// Records are to be written.
    pub enabled: bool,
    pub filter: Option<Filter>,
    /// The text of the `filter` file after a refusal.
    pub refused_filter: Option<String>,
}

/// A probe of an event.
pub struct Probe {
    pub definition: Definition,
    state: State,
    /// What programs that were detached have counted.
    before: Profile,
}

/// How often a probe was hit, and how often that could not be handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    pub hits: u64,
    pub misses: u64,
}

/// The probe itself.
enum State {
    /// Registered, but disabled.
    Idle(Holder),
    Armed(AttachedProbe),
    ArmedCall(AttachedCall),
    /// Between two states, and after a failure of memory.
    Absent,
}

/// A disabled probe.
#[expect(dead_code, reason = "held for its place")]
enum Holder {
    Kprobe(Registered<Box<Kprobe>>),
    Kretprobe(Registered<Box<Kretprobe>>),
}

/// The probe that a definition asks for.
fn kprobe(definition: &Definition) -> Result<Kprobe, ProbeError> {
    let address = definition.place.address(&KernelSymbols);
    let address = address.ok().flatten().ok_or(ProbeError::NoTarget)?;
    Ok(Kprobe::new().at(address))
}

fn kretprobe(definition: &Definition) -> Result<Kretprobe, ProbeError> {
    let address = definition.place.address(&KernelSymbols);
    let address = address.ok().flatten().ok_or(ProbeError::NoTarget)?;
    let maxactive = definition.maxactive.unwrap_or(0).into();
    Ok(Kretprobe::new().at(address).maxactive(maxactive))
}

impl Probe {
    /// Registers the probe of `definition`, disabled. That also checks its place.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(definition: Definition) -> Result<Self, Refusal> {
        let state = Self::idle(&definition).map_err(|error| {
            Refusal::place(match error {
                ProbeError::MidInstruction { .. } => Reason::BadInstructionBoundary,
                ProbeError::OutOfMemory => Reason::OutOfMemory,
                _ => Reason::RegistrationFailed,
            })
        })?;
        Ok(Self {
            definition,
            state,
            before: Profile::default(),
        })
    }

    fn idle(definition: &Definition) -> Result<State, ProbeError> {
        Ok(State::Idle(match definition.kind {
            EventKind::Probe => Holder::Kprobe(register(Box::new(kprobe(definition)?.disabled()))?),
            EventKind::Return => {
                Holder::Kretprobe(register(Box::new(kretprobe(definition)?.disabled()))?)
            }
        }))
    }

    /// Hits and misses so far.
    pub fn profile(&self) -> Profile {
        let now = match &self.state {
            State::Idle(_) | State::Absent => Profile::default(),
            State::Armed(probe) => Profile {
                hits: probe.program().counter(HITS, 0),
                misses: probe.misses(),
            },
            State::ArmedCall(call) => Profile {
                hits: call.program().counter(HITS, 0),
                misses: call.misses(),
            },
        };
        Profile {
            hits: self.before.hits + now.hits,
            misses: self.before.misses + now.misses,
        }
    }

    /// The number of return instances in force, of a return probe that is armed.
    pub fn maxactive(&self) -> Option<u16> {
        match &self.state {
            State::ArmedCall(call) => call.kretprobe().maxactive_in_force().try_into().ok(),
            State::Idle(Holder::Kretprobe(probe)) => probe.maxactive_in_force().try_into().ok(),
            _ => self.definition.maxactive,
        }
    }

    /// Detaches the program, if there is one, and keeps the place.
    fn disarm(&mut self) {
        if matches!(self.state, State::Idle(_)) {
            return;
        }
        let (program, misses) = match &self.state {
            State::Armed(probe) => (Some(probe.program().clone()), probe.stop()),
            State::ArmedCall(call) => (Some(call.program().clone()), call.stop()),
            _ => (None, 0),
        };
        // This waits until nobody is in the program any more. Then its count is final.
        self.state = State::Absent;
        self.before.hits += program.map_or(0, |program| program.counter(HITS, 0));
        self.before.misses += misses;
        // Without memory the place is free until the event is armed again.
        if let Ok(idle) = Self::idle(&self.definition) {
            self.state = idle;
        }
    }

    /// Attaches `program`.
    fn arm(&mut self, programs: compile::Programs) -> Result<(), LoadError> {
        self.disarm();
        let hit = Program::load(programs.hit)?;
        let entry = programs.entry.map(Program::load).transpose()?;
        self.state = State::Absent;
        let armed = match self.definition.kind {
            EventKind::Probe => kprobe(&self.definition)
                .map_err(LoadError::from)
                .and_then(|probe| AttachedProbe::new(hit, probe))
                .map(State::Armed),
            EventKind::Return => kretprobe(&self.definition)
                .map_err(LoadError::from)
                .and_then(|probe| AttachedCall::new(entry, hit, probe))
                .map(State::ArmedCall),
        };
        match armed {
            Ok(state) => {
                self.state = state;
                Ok(())
            }
            Err(error) => {
                if let Ok(idle) = Self::idle(&self.definition) {
                    self.state = idle;
                }
                Err(error)
            }
        }
    }
}

impl Event {
    /// An event without probes.
    pub fn new(id: u16, layout: Layout) -> Self {
        Self {
            id,
            layout: Arc::new(layout),
            probes: Vec::new(),
            enabled: false,
            filter: None,
            refused_filter: None,
        }
    }

    /// Whether hits are to do anything.
    fn is_wanted(&self) -> bool {
        self.enabled
    }

    /// Whether it may not be deleted.
    pub fn is_busy(&self) -> bool {
        self.is_wanted()
    }

    /// Makes the probes do what is wanted now (EVENT-1, EVENT-2).
    ///
    /// # Errors
    /// That of the first probe that cannot be armed; then none is.
    pub fn apply(&mut self) -> Result<(), Errno> {
        let result = if self.is_wanted() {
            self.arm_all()
        } else {
            Err(None)
        };
        match result {
            Ok(()) => Ok(()),
            Err(error) => {
                self.probes.iter_mut().for_each(Probe::disarm);
                error.map_or(Ok(()), |error: LoadError| Err(error.into()))
            }
        }
    }

    fn arm_all(&mut self) -> Result<(), Option<LoadError>> {
        for probe in &mut self.probes {
            let mut program = EventProgram::new(&probe.definition, self.id, &KernelSymbols);
            program
                .record(self.filter.as_ref())
                .map_err(|error| Some(LoadError::Event(error)))?;
            let programs = program
                .finish()
                .map_err(|error| Some(LoadError::Event(error)))?;
            probe.arm(programs).map_err(Some)?;
        }
        Ok(())
    }

    /// Turns recording on or off.
    ///
    /// # Errors
    /// As [`Event::apply`]; then it is off.
    pub fn enable(&mut self, enabled: bool) -> Result<(), Errno> {
        if self.enabled == enabled {
            return Ok(());
        }
        self.enabled = enabled;
        let result = self.apply();
        if result.is_err() {
            self.enabled = false;
        }
        result
    }

    /// Sets or clears the filter.
    ///
    /// # Errors
    /// As [`Event::apply`]; then the old filter is in force.
    pub fn set_filter(&mut self, filter: Option<Filter>) -> Result<(), Errno> {
        let old = core::mem::replace(&mut self.filter, filter);
        let result = self.apply();
        if result.is_err() {
            self.filter = old;
            let _ = self.apply();
        }
        result
    }
}
