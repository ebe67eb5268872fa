//! Probes of events in programs.
//!
//! The handler of a user probe runs the program of the event. It may read memory of the program
//! that was not touched yet ([`reading_program`]). At a return it finds the registers of the
//! return, and the address of the function in place of the number of the system call.
//!
//! # Contexts
//! As [`super::probe`]; stopping waits for all CPUs.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fallible::{copied, try_box};
use tracefs::definition::{Definition, EventKind, ProbePlace};

use crate::{
    probes::{PreVerdict, PtRegs},
    trace::{program::Program, shared::Shared},
    uprobes::{
        Uprobe, UprobeError, Uretprobe, UserCall,
        hit::reading_program,
        probe::{UprobeClosure, UretprobeClosure},
        registry::RegisteredUserProbe,
    },
};

/// A user probe of either kind.
pub(in crate::trace) enum UserHolder {
    Probe(RegisteredUserProbe<Uprobe>),
    Return(RegisteredUserProbe<Uretprobe>),
}

/// Names the place of a definition in a builder, whose methods have the same names for both kinds.
macro_rules! at_place {
    ($builder:expr, $definition:expr) => {{
        let mut builder = $builder;
        if let ProbePlace::Program {
            path,
            offset,
            counter,
        } = &$definition.place
        {
            builder = builder.program_string(copied(path)?).offset(*offset);
            if let Some(counter) = counter {
                builder = builder.reference_counter(*counter);
            }
        }
        builder
    }};
}

impl UserHolder {
    /// A disabled probe, which holds the place of `definition`.
    pub(super) fn idle(definition: &Definition) -> Result<Self, UprobeError> {
        Ok(match definition.kind {
            EventKind::Probe => {
                let probe = at_place!(Uprobe::new(), definition).disabled();
                Self::Probe(RegisteredUserProbe::new(probe)?)
            }
            EventKind::Return => {
                let probe = at_place!(Uretprobe::new(), definition).disabled();
                Self::Return(RegisteredUserProbe::new(probe)?)
            }
        })
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

/// A user probe that runs a program.
pub(in crate::trace) struct AttachedToProgram {
    // First, so that no handler runs when the program goes.
    probe: UserHolder,
    program: Shared<Program>,
    /// Hits run the program.
    started: Arc<AtomicBool>,
}

impl AttachedToProgram {
    /// Registers the probe of `definition`, whose hits do nothing yet.
    pub(super) fn new(
        program: Shared<Program>,
        definition: &Definition,
    ) -> Result<Self, UprobeError> {
        let started = Arc::new(AtomicBool::new(false));
        let (action, gate) = (program.clone(), started.clone());
        let run = move |regs: &mut PtRegs| {
            if gate.load(Relaxed) {
                reading_program(|| _ = action.run_at_hit(regs));
            }
        };
        let probe = match definition.kind {
            EventKind::Probe => {
                let handler: Box<UprobeClosure> = try_box(move |_: &Uprobe, regs: &mut PtRegs| {
                    run(regs);
                    PreVerdict::Execute
                })?;
                let probe = at_place!(Uprobe::new(), definition).closure(handler);
                UserHolder::Probe(RegisteredUserProbe::new(probe)?)
            }
            EventKind::Return => {
                let handler: Box<UretprobeClosure> =
                    try_box(move |call: &mut UserCall, regs: &mut PtRegs| {
                        // A frame of #BP has nothing there.
                        let nothing = core::mem::replace(&mut regs.orig_ax, call.function());
                        run(regs);
                        regs.orig_ax = nothing;
                    })?;
                let maxactive = definition.maxactive.unwrap_or(0).into();
                let probe = at_place!(Uretprobe::new(), definition).maxactive(maxactive);
                UserHolder::Return(RegisteredUserProbe::new(probe.closure(handler))?)
            }
        };
        Ok(Self {
            probe,
            program,
            started,
        })
    }

    pub(super) fn program(&self) -> &Shared<Program> {
        &self.program
    }

    pub(super) fn misses(&self) -> u64 {
        self.probe.misses()
    }

    /// Lets hits run the program.
    pub(super) fn start(&self) {
        self.started.store(true, Relaxed);
    }

    /// Keeps them from it. When this returns none runs; returns how many were missed.
    pub(super) fn stop(&self) -> u64 {
        self.started.store(false, Relaxed);
        self.probe.disable();
        self.probe.misses()
    }
}
