//! What the optimiser keeps: the memory of detours, and those that wait to be freed.

use core::sync::atomic::AtomicPtr;

use crate::{
    data::detour::Detour,
    registry::{
        list::{Linked, List},
        pool::Pool,
        slots::FreeSlots,
        templates::Draft,
    },
};

/// The optimiser's part of the state that the registry's lock protects.
pub(crate) struct Optimizer {
    /// The knob.
    pub(crate) on: bool,
    pub(super) free: FreeSlots,
    /// Detours that no hit enters any more, to be freed after a grace period.
    pub(super) retired: List<Detour>,
    pub(super) draft: Draft,
    /// Where detours are.
    pub(super) memory: Pool<Detour>,
}

impl Optimizer {
    pub(crate) const fn new() -> Self {
        Self {
            on: false,
            free: FreeSlots::new(),
            retired: List::new(),
            draft: Draft::new(),
            memory: Pool::new(),
        }
    }
}

/// The detours that come, that leave, or that are to be freed.
impl Linked for Detour {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}
