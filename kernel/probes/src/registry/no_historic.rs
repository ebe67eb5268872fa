//! The trampoline of a kernel that leaves out the feature `historic`: there is one.

use core::sync::atomic::Ordering::Relaxed;

use crate::{
    data::method::ReturnMethod,
    error::ProbeError,
    registry::state::{Host, Probes, State},
};

impl<P: Host> Probes<P> {
    /// The trampoline that calls return to.
    pub(crate) fn trampoline_of(&self, _: ReturnMethod) -> u64 {
        self.entry.trampoline.load(Relaxed)
    }

    /// The same. It needs no kprobe.
    ///
    /// # Errors
    /// None.
    pub(crate) fn ready_trampoline(
        &self,
        _: &mut State,
        method: ReturnMethod,
    ) -> Result<u64, ProbeError> {
        Ok(self.trampoline_of(method))
    }
}
