//! Handlers of every kind that do one thing, whichever it is.
//!
//! # Contexts
//! Those of probe handlers; [`Deed::done`] says what else.

use kernel::probes::{EntryVerdict, Kprobe, KretprobeInstance, PreVerdict, PtRegs};

/// The deed of the handlers.
pub trait Deed {
    /// Does it, in a handler.
    fn done();
}

/// A pre handler.
pub fn before<D: Deed>(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    D::done();
    PreVerdict::Execute
}

/// A post handler.
pub fn after<D: Deed>(_: &Kprobe, _: &mut PtRegs, _: u64) {
    D::done();
}

/// An entry handler, which has the call followed.
pub fn at_entry<D: Deed>(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
    D::done();
    EntryVerdict::Track
}

/// A return handler.
pub fn at_return<D: Deed>(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
    D::done();
}
