//! Programs of the tracer on user programs: user probes whose handlers run one.
//!
//! The program may read memory of the user program that was not touched yet ([`reading_program`]).
//! At a return it finds the registers of the return, and the address of the function in place of
//! the number of the system call. A script also finds what DI held at the entry, in place of SS:
//! there the caller has room for a result that is too large for registers.
//!
//! # Contexts
//! Task context, may sleep. Stopping waits for all CPUs.

#![forbid(unsafe_code)]

use alloc::{boxed::Box, format, string::String, sync::Arc};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use abi::open;
use fallible::{copied, try_box};
use trace_agent::facts::{InProgram, PlaceInProgram, RoutineInProgram, RunInProgram};

use crate::{
    fs,
    probes::{PreVerdict, PtRegs, WatchScope, watch_scopes},
    uprobes::{
        Uprobe, UprobeError, Uretprobe, UserCall,
        hit::reading_program,
        probe::{UprobeClosure, UretprobeClosure},
        registry::RegisteredUserProbe,
    },
};

/// Where a program of the tracer is to run.
pub(super) struct Place<'a> {
    pub(super) path: &'a str,
    pub(super) function: Option<&'a str>,
    pub(super) offset: u64,
    pub(super) reference_counter: Option<u64>,
    /// At the return of the function.
    pub(super) returns: bool,
    /// The most calls that are followed; 0: as many as by default.
    pub(super) maxactive: u32,
    /// At a return, SS is what DI was at the entry.
    pub(super) keeps_di: bool,
}

/// A user probe of either kind.
pub(super) enum UserHolder {
    Probe(RegisteredUserProbe<Uprobe>),
    Return(RegisteredUserProbe<Uretprobe>),
}

/// Names a place in a builder, whose methods have the same names for both kinds.
macro_rules! at_place {
    ($builder:expr, $place:expr) => {{
        let place: &Place<'_> = $place;
        let mut builder = $builder
            .program_string(copied(place.path)?)
            .offset(place.offset);
        if let Some(function) = place.function {
            builder = builder.symbol_string(copied(function)?);
        }
        if let Some(counter) = place.reference_counter {
            builder = builder.reference_counter(counter);
        }
        builder
    }};
}

impl UserHolder {
    /// A disabled probe, which holds the place: that of `held`, if there is one.
    pub(super) fn idle(place: &Place<'_>, held: Option<&Self>) -> Result<Self, UprobeError> {
        if place.returns {
            Self::of_return(at_place!(Uretprobe::new(), place).disabled(), held)
        } else {
            Self::of_probe(at_place!(Uprobe::new(), place).disabled(), held)
        }
    }

    fn of_probe(probe: Uprobe, held: Option<&Self>) -> Result<Self, UprobeError> {
        Ok(Self::Probe(match held {
            Some(Self::Probe(held)) => held.beside(probe)?,
            _ => RegisteredUserProbe::new(probe)?,
        }))
    }

    fn of_return(probe: Uretprobe, held: Option<&Self>) -> Result<Self, UprobeError> {
        Ok(Self::Return(match held {
            Some(Self::Return(held)) => held.beside(probe)?,
            _ => RegisteredUserProbe::new(probe)?,
        }))
    }

    fn misses(&self) -> u64 {
        match self {
            Self::Probe(probe) => probe.nmissed(),
            Self::Return(probe) => probe.nmissed(),
        }
    }

    fn disable(&self) {
        let disabled = match self {
            Self::Probe(probe) => probe.set_enabled(false),
            Self::Return(probe) => probe.set_enabled(false),
        };
        debug_assert_eq!(disabled, Ok(()), "it is registered, and this is a task");
    }
}

/// A user probe that runs something.
pub(super) struct AttachedToProgram {
    probe: UserHolder,
    /// Hits run it.
    started: Arc<AtomicBool>,
    /// What keeps it is in the probe's closure.
    routine: Option<RoutineInProgram>,
}

impl AttachedToProgram {
    /// Registers a probe whose hits do nothing yet: at the place of `held`, if there is one.
    pub(super) fn new(
        run: RunInProgram,
        place: &Place<'_>,
        held: Option<&UserHolder>,
    ) -> Result<Self, UprobeError> {
        let started = Arc::new(AtomicBool::new(false));
        let gate = started.clone();
        let RunInProgram { run, routine } = run;
        let run = move |regs: &mut PtRegs| {
            if gate.load(Relaxed) {
                reading_program(|| run(regs));
            }
        };
        let probe = if place.returns {
            let keeps_di = place.keeps_di;
            let handler: Box<UretprobeClosure> =
                try_box(move |call: &mut UserCall, regs: &mut PtRegs| {
                    let before = (regs.orig_ax, regs.ss);
                    regs.orig_ax = call.function();
                    if keeps_di {
                        regs.ss = call.data()[0];
                    }
                    run(regs);
                    (regs.orig_ax, regs.ss) = before;
                })?;
            let mut probe = at_place!(Uretprobe::new(), place).maxactive(place.maxactive);
            if keeps_di {
                probe = probe.keep_di();
            }
            UserHolder::of_return(probe.closure(handler)?, held)?
        } else {
            let handler: Box<UprobeClosure> = try_box(move |_: &Uprobe, regs: &mut PtRegs| {
                run(regs);
                PreVerdict::Execute
            })?;
            UserHolder::of_probe(at_place!(Uprobe::new(), place).closure(handler), held)?
        };
        Ok(Self {
            probe,
            started,
            routine,
        })
    }

    pub(super) fn holder(&self) -> &UserHolder {
        &self.probe
    }

    pub(super) fn misses(&self) -> u64 {
        self.probe.misses()
    }

    /// Lets hits run it.
    pub(super) fn start(&self) {
        self.started.store(true, Relaxed);
        self.set_action(self.routine);
    }

    fn set_action(&self, routine: Option<RoutineInProgram>) {
        match &self.probe {
            UserHolder::Probe(probe) => probe.set_action(routine),
            UserHolder::Return(probe) => probe.set_action(routine),
        }
    }

    /// Keeps them from it. When this returns nothing runs; returns how many were missed.
    pub(super) fn stop(&self) -> u64 {
        self.started.store(false, Relaxed);
        self.set_action(None);
        self.probe.disable();
        self.probe.misses()
    }
}

impl InProgram for AttachedToProgram {
    fn detach(self: Box<Self>) -> u64 {
        self.stop()
    }
}

/// The processes that run the program at `path`.
///
/// # Errors
/// Why there is no such file, in words.
pub(super) fn programs_of(path: &str) -> Result<WatchScope, String> {
    let file = fs::open(path, open::RDONLY);
    let file = file.map_err(|errno| format!("{path}: {}", errno.text()))?;
    Ok(watch_scopes::programs_of(file.node()))
}

/// A program of a script, at a place that the script names.
pub(super) fn attach(
    run: RunInProgram,
    place: &PlaceInProgram<'_>,
) -> Result<Box<dyn InProgram>, String> {
    let attached = AttachedToProgram::new(
        run,
        &Place {
            path: place.path,
            function: place.function,
            offset: place.offset,
            reference_counter: place.counter,
            returns: place.returns,
            maxactive: 0,
            keeps_di: true,
        },
        None,
    );
    let attached = attached.map_err(|error| format!("{}: {error}", place.path))?;
    attached.start();
    Ok(Box::new(attached))
}
