//! Probes of events in programs: the places of definitions.
//!
//! At a return the program of the event finds the registers of the return, and the address of the
//! function in place of the number of the system call.
//!
//! # Contexts
//! As [`super::probe`]; stopping waits for all CPUs.

use tracefs::definition::{Definition, EventKind, ProbePlace};

use crate::{
    trace::{
        program::Program,
        shared::Shared,
        user::{AttachedToProgram, Place, UserHolder},
    },
    uprobes::UprobeError,
};

/// The place of a definition.
fn place(definition: &Definition) -> Place<'_> {
    let (path, offset, reference_counter) = match &definition.place {
        ProbePlace::Program {
            path,
            offset,
            counter,
        } => (&**path, *offset, *counter),
        _ => ("", 0, None),
    };
    Place {
        path,
        function: None,
        offset,
        reference_counter,
        returns: definition.kind == EventKind::Return,
        maxactive: definition.maxactive.unwrap_or(0).into(),
        keeps_di: false,
    }
}

/// A disabled probe, which holds the place of `definition`: that of `held`, if there is one. A file
/// may have lost its name since, or have other content.
pub(super) fn hold(
    definition: &Definition,
    held: Option<&UserHolder>,
) -> Result<UserHolder, UprobeError> {
    UserHolder::idle(&place(definition), held)
}

/// A program on the place of its definition.
pub(in crate::trace) struct EventInProgram {
    // First, so that no handler runs when the program goes.
    probe: AttachedToProgram,
    program: Shared<Program>,
}

impl EventInProgram {
    /// Registers the probe of `definition`, whose hits do nothing yet: at the place of `held`.
    pub(super) fn new(
        program: Shared<Program>,
        definition: &Definition,
        held: Option<&UserHolder>,
    ) -> Result<Self, UprobeError> {
        let run = Program::in_program(&program)?;
        Ok(Self {
            probe: AttachedToProgram::new(run, &place(definition), held)?,
            program,
        })
    }

    pub(super) fn program(&self) -> &Shared<Program> {
        &self.program
    }

    pub(super) fn holder(&self) -> &UserHolder {
        self.probe.holder()
    }

    pub(super) fn misses(&self) -> u64 {
        self.probe.misses()
    }

    /// Lets hits run the program.
    pub(super) fn start(&self) {
        self.probe.start();
    }

    /// Keeps them from it. When this returns none runs; returns how many were missed.
    pub(super) fn stop(&self) -> u64 {
        self.probe.stop()
    }
}
