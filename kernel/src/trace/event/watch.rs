//! Watches of events: the memory of definitions.
//!
//! A watch that is off holds no debug register, because there are four of them. So it may be
//! refused when it is turned on (EBUSY). While it is on, it keeps its register, and what it is
//! aimed at, whatever it is to do.
//!
//! # Contexts
//! As [`super::probe`]; stopping waits for all CPUs.

use fallible::try_box;
use tracefs::{
    definition::{Definition, ProbePlace},
    refusal::Reason,
};

use crate::{
    pr_err,
    probes::{ProbeError, WATCHPOINTS, WatchAccess, Watchpoint},
    trace::{names::KernelSymbols, program},
};

/// The watchpoint of a definition.
pub(super) fn watchpoint(definition: &Definition) -> Result<Watchpoint, ProbeError> {
    let place = &definition.place;
    let watched = place.watched(&KernelSymbols).ok_or(ProbeError::NoTarget)?;
    let access = match place {
        ProbePlace::Memory { reads: true, .. } => WatchAccess::ReadWrite,
        _ => WatchAccess::Write,
    };
    Ok(program::watchpoint(watched.address, watched.bytes, access))
}

/// Checks that the memory can be watched.
///
/// # Errors
/// The reason why it cannot be. What the processor or the kernel says of it is told in the log.
pub(super) fn check(definition: &Definition) -> Result<(), Reason> {
    let watchpoint = watchpoint(definition)
        .and_then(|watchpoint| try_box(watchpoint.disabled()).map_err(|_| ProbeError::OutOfMemory));
    match watchpoint.and_then(|watchpoint| WATCHPOINTS.register_owned(watchpoint)) {
        // It is looked at before a register is, and other watches may be gone when it is turned on.
        Ok(_) | Err(ProbeError::NoWatchRegister { .. }) => Ok(()),
        Err(ProbeError::OutOfMemory) => Err(Reason::OutOfMemory),
        Err(ProbeError::WatchUnaligned { .. } | ProbeError::WatchLength { .. }) => {
            Err(Reason::BadWatchLength)
        }
        Err(error) => {
            pr_err!("trace: {error}");
            Err(Reason::RegistrationFailed)
        }
    }
}
