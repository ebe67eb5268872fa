//! What the operations ask of the optimiser, in a kernel that leaves out the feature `jumps`: each
//! breakpoint stays one.

use core::ptr::NonNull;

use crate::{
    data::{detour::Detour, kprobe::Kprobe, site::Site},
    registry::{
        list::List,
        optimizer::Optimizer,
        state::{Host, Probes},
    },
};

impl Optimizer {
    /// Adds `site` to the sites that the operation under way touches.
    pub(super) fn touch<P: Host>(&self, _: &Probes<P>, touched: &mut List<Site>, site: &Site) {
        // SAFETY: the operation that has the list keeps its sites until it has emptied it.
        unsafe { touched.push(NonNull::from(site)) };
    }
}

impl<P: Host> Probes<P> {
    pub(crate) fn log_missing_jumps(&self, _: &Optimizer, _enabled: bool) {}

    pub(crate) fn deoptimize<'a>(
        &self,
        _: &mut Optimizer,
        _enabled: bool,
        _sites: impl Iterator<Item = &'a Site>,
    ) {
    }

    pub(crate) fn optimize<'a>(
        &self,
        _: &mut Optimizer,
        _enabled: bool,
        _sites: impl Iterator<Item = &'a Site>,
    ) {
    }

    pub(crate) fn make_detours<'a>(
        &self,
        _: &mut Optimizer,
        _enabled: bool,
        _sites: impl Iterator<Item = &'a Site>,
    ) -> List<Detour> {
        List::new()
    }

    pub(crate) fn install_jumps(&self, _: List<Detour>) {}

    pub(crate) fn free_detours_after_grace(&self, _: &mut Optimizer) {}

    pub(crate) fn free_detours(&self, _: &mut Optimizer) {}
}

/// Whether `probe` keeps its address from being optimised: nothing has to keep it.
pub(crate) fn needs_breakpoint(_: &Kprobe) -> bool {
    false
}
