//! The optimiser of a kernel that leaves out the feature `jumps`: it does nothing.

use core::sync::atomic::AtomicPtr;

use crate::{data::detour::Detour, registry::list::Linked};

/// The optimiser's part of the state that the registry's lock protects.
pub(crate) struct Optimizer {
    /// The knob, which turns nothing.
    pub(crate) on: bool,
}

impl Optimizer {
    pub(crate) const fn new() -> Self {
        Self { on: false }
    }
}

/// There is none.
impl Linked for Detour {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}
