//! A probe of an event: idle, with a disabled probe that holds the place, or armed with a program.
//!
//! What is attached is put beside what is there, disabled, because that may fail. Then it takes its
//! place ([`Probe::replace`]): the old program is stopped, its counts are final and are added up,
//! and the new one is started (EVENT-2 of [`super`]). Without memory for a holder, a program that
//! is to go stays there, stopped.
//!
//! # Contexts
//! Task context, under the lock of the list of events. Stopping waits for a grace period.

use alloc::boxed::Box;
use core::ops::AddAssign;

use tracefs::{
    compile::{FILTERED, HITS, UNASKED},
    definition::{Definition, EventKind, ProbePlace},
    field::LookupError,
    refusal::{Reason, Refusal},
};

use super::{
    error::ArmError,
    user::{self, EventInProgram},
    watch,
};
use crate::{
    probes::{Kprobe, Kretprobe, ProbeError, Registered, register},
    trace::{
        names::KernelSymbols,
        program::{AttachedCall, AttachedProbe, AttachedWatch, LoadError, Program, WatchPlace},
        shared::{Shared, try_box},
        user::UserHolder,
    },
    uprobes::UprobeError,
};

/// A probe of an event.
pub struct Probe {
    pub definition: Definition,
    /// Probes are listed in the order of these numbers: that of their definition.
    pub order: u64,
    state: State,
    /// The counts of programs that were detached.
    before: Profile,
}

/// How often a probe was hit, and what became of the hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Hits that were handled. Those that are not counted below were to be recorded.
    pub hits: u64,
    /// Hits that the filter has rejected.
    pub filtered: u64,
    /// Hits at which the event was off, so that only triggers acted.
    pub unasked: u64,
    /// Hits that were not handled. They are not among `hits`.
    pub misses: u64,
}

impl Profile {
    /// The counts of a program.
    fn of(program: &Program, misses: u64) -> Self {
        let counts = |name: &str| match program.maps().find(|(known, _)| *known == name) {
            Some((_, map)) => map.counter(0),
            None => 0,
        };
        let (filtered, unasked) = (counts(FILTERED), counts(UNASKED));
        Self {
            hits: program.counter(HITS, 0) + filtered + unasked,
            filtered,
            unasked,
            misses,
        }
    }
}

impl AddAssign for Profile {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.filtered += other.filtered;
        self.unasked += other.unasked;
        self.misses += other.misses;
    }
}

/// The probe itself, as it is registered.
pub(super) enum State {
    /// Registered, but disabled.
    Idle(Holder),
    Armed(AttachedProbe),
    ArmedCall(AttachedCall),
    ArmedInProgram(EventInProgram),
    ArmedWatch(AttachedWatch),
    /// Idle, and nothing is held: a probe of the kernel's own, or a watch.
    Absent,
}

/// A disabled probe.
#[expect(dead_code, reason = "held for its place")]
pub(super) enum Holder {
    Kprobe(Registered<Box<Kprobe>>),
    Kretprobe(Registered<Box<Kretprobe>>),
    OfProgram(UserHolder),
}

/// The address that a definition asks for.
fn address(definition: &Definition) -> Result<u64, ProbeError> {
    match definition.place.address(&KernelSymbols) {
        Ok(Some(address)) => Ok(address),
        Err(LookupError::OutOfMemory) => Err(ProbeError::OutOfMemory),
        Ok(None) | Err(LookupError::NotFound | LookupError::NotUnique(_)) => {
            Err(ProbeError::NoTarget)
        }
    }
}

fn kprobe(definition: &Definition) -> Result<Kprobe, ProbeError> {
    Ok(Kprobe::new().at(address(definition)?))
}

fn kretprobe(definition: &Definition) -> Result<Kretprobe, ProbeError> {
    let address = address(definition)?;
    let maxactive = definition.maxactive.unwrap_or(0).into();
    Ok(Kretprobe::new().at(address).maxactive(maxactive))
}

fn boxed<T>(probe: T) -> Result<Box<T>, ProbeError> {
    try_box(probe).map_err(|_| ProbeError::OutOfMemory)
}

impl Probe {
    /// Registers the probe of `definition`, disabled. That also checks its place. `order` is larger
    /// than that of all older ones.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(definition: Definition, order: u64) -> Result<Self, Refusal> {
        let state = Self::idle(&definition, None).map_err(Refusal::place)?;
        Ok(Self {
            definition,
            order,
            state,
            before: Profile::default(),
        })
    }

    /// The probe of an event of the kernel's own. Its place needs no holder.
    pub fn fixed(definition: Definition) -> Self {
        Self {
            definition,
            order: 0,
            state: State::Absent,
            before: Profile::default(),
        }
    }

    /// What keeps the place of a definition that is not armed: that of `held`, if there is one.
    fn idle(definition: &Definition, held: Option<&UserHolder>) -> Result<State, Reason> {
        if definition.fixed {
            return Ok(State::Absent);
        }
        if definition.is_watch() {
            return watch::check(definition).map(|()| State::Absent);
        }
        if definition.is_of_program() {
            let holder = user::hold(definition, held).map_err(|error| match error {
                UprobeError::MidInstruction { .. } => Reason::BadInstructionBoundary,
                UprobeError::NotFunctionEntry { .. } | UprobeError::EntryPoint => {
                    Reason::BadReturnProbe
                }
                UprobeError::NotText { .. } => Reason::BadUserOffset,
                UprobeError::NotCounter { .. } => Reason::BadReferenceCounter,
                UprobeError::OutOfMemory => Reason::OutOfMemory,
                _ => Reason::RegistrationFailed,
            })?;
            return Ok(State::Idle(Holder::OfProgram(holder)));
        }
        Self::idle_in_kernel(definition)
            .map(State::Idle)
            .map_err(|error| match error {
                ProbeError::MidInstruction { .. } => Reason::BadInstructionBoundary,
                ProbeError::OutOfMemory => Reason::OutOfMemory,
                _ => Reason::RegistrationFailed,
            })
    }

    fn idle_in_kernel(definition: &Definition) -> Result<Holder, ProbeError> {
        Ok(match definition.kind {
            EventKind::Probe => Holder::Kprobe(register(boxed(kprobe(definition)?.disabled())?)?),
            EventKind::Return => {
                Holder::Kretprobe(register(boxed(kretprobe(definition)?.disabled())?)?)
            }
            // Holds nothing: see `idle`.
            EventKind::Watch => return Err(ProbeError::NoTarget),
        })
    }

    /// Hits and misses so far.
    pub fn profile(&self) -> Profile {
        let mut profile = self.before;
        match &self.state {
            State::Idle(_) | State::Absent => {}
            State::Armed(probe) => profile += Profile::of(probe.program(), probe.misses()),
            State::ArmedCall(call) => profile += Profile::of(call.program(), call.misses()),
            State::ArmedInProgram(probe) => {
                profile += Profile::of(probe.program(), probe.misses());
            }
            State::ArmedWatch(watch) => {
                profile += Profile::of(watch.program(), watch.misses());
            }
        }
        profile
    }

    /// The kprobe whose hits the program counts and not the registry, and how many there were since
    /// it was registered.
    pub fn counted_kprobe(&self) -> Option<(&Kprobe, u64)> {
        match &self.state {
            State::Armed(probe) => Some((probe.kprobe(), Profile::of(probe.program(), 0).hits)),
            _ => None,
        }
    }

    /// The address of the instruction in the kernel that it is on, if it is armed. The kernel's own
    /// events are apart, as on Linux.
    pub fn function(&self) -> Option<u64> {
        match &self.state {
            _ if self.definition.fixed => None,
            State::Armed(_) | State::ArmedCall(_) => address(&self.definition).ok(),
            _ => None,
        }
    }

    /// Whether triggers say what it watches.
    pub fn is_aimed(&self) -> bool {
        matches!(
            self.definition.place,
            ProbePlace::Memory { location: None, .. }
        )
    }

    /// The watchpoint of a watch that is armed.
    pub fn watch(&self) -> Option<&Shared<WatchPlace>> {
        match &self.state {
            State::ArmedWatch(watch) => Some(watch.place()),
            _ => None,
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

    /// The probe of a program that keeps the place.
    fn held(&self) -> Option<&UserHolder> {
        match &self.state {
            State::Idle(Holder::OfProgram(holder)) => Some(holder),
            State::ArmedInProgram(probe) => Some(probe.holder()),
            _ => None,
        }
    }

    /// Puts `next` in place of the program that is attached now, if there is one.
    pub(super) fn replace(&mut self, next: State) {
        let (program, misses) = match &self.state {
            State::Armed(probe) => (Some(probe.program().clone()), probe.stop()),
            State::ArmedCall(call) => (Some(call.program().clone()), call.stop()),
            State::ArmedInProgram(probe) => (Some(probe.program().clone()), probe.stop()),
            State::ArmedWatch(watch) => (Some(watch.program().clone()), watch.stop()),
            State::Idle(_) | State::Absent => (None, 0),
        };
        // This waits until no CPU is in the old program any more. Then its count is final.
        self.state = next;
        if let Some(program) = program {
            self.before += Profile::of(&program, misses);
        }
        match &self.state {
            State::Armed(probe) => probe.start(),
            State::ArmedCall(call) => call.start(),
            State::ArmedInProgram(probe) => probe.start(),
            State::ArmedWatch(watch) => watch.start(),
            State::Idle(_) | State::Absent => {}
        }
    }

    /// Detaches the program, if there is one, and keeps the place.
    pub(super) fn disarm(&mut self) {
        if matches!(self.state, State::Idle(_) | State::Absent) {
            return;
        }
        if self.definition.is_watch() {
            return self.replace(State::Absent);
        }
        match (Self::idle(&self.definition, self.held()), &self.state) {
            (Ok(idle), _) => self.replace(idle),
            // Without memory for another probe, this one keeps the place, disabled.
            (Err(_), State::Armed(probe)) => _ = probe.stop(),
            (Err(_), State::ArmedCall(call)) => _ = call.stop(),
            (Err(_), State::ArmedInProgram(probe)) => _ = probe.stop(),
            (Err(_), State::ArmedWatch(watch)) => _ = watch.stop(),
            (Err(_), State::Idle(_) | State::Absent) => {}
        }
    }

    /// Attaches programs beside what is there, disabled.
    pub(super) fn attach(&self, loaded: Loaded) -> Result<State, ArmError> {
        if self.definition.is_of_program() {
            let attached = EventInProgram::new(loaded.hit, &self.definition, self.held());
            return Ok(State::ArmedInProgram(attached.map_err(ArmError::User)?));
        }
        Ok(match self.definition.kind {
            EventKind::Probe => {
                let probe = kprobe(&self.definition)?.disabled();
                State::Armed(AttachedProbe::new(loaded.hit, probe)?)
            }
            EventKind::Watch => {
                let place = match &self.state {
                    State::ArmedWatch(watch) => watch.place().clone(),
                    _ => {
                        let watchpoint = watch::watchpoint(&self.definition)?;
                        let place = Shared::try_new(WatchPlace::new(watchpoint)?);
                        place.map_err(LoadError::from)?
                    }
                };
                State::ArmedWatch(AttachedWatch::new(loaded.hit, place))
            }
            EventKind::Return => {
                let probe = kretprobe(&self.definition)?.disabled();
                State::ArmedCall(AttachedCall::new(loaded.entry, loaded.hit, probe)?)
            }
        })
    }
}

/// The programs of a probe.
pub(super) struct Loaded {
    pub(super) hit: Shared<Program>,
    pub(super) entry: Option<Shared<Program>>,
}
