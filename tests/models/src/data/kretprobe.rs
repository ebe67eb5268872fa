//! As much of the probes' `kretprobe.rs` as the included files use.

use core::sync::atomic::{AtomicPtr, AtomicU64};
use std::alloc::Layout;

use crate::data::{instance::Holder, kprobe::Kprobe};

pub(crate) struct KretprobeCore {
    pub(crate) enter: Option<()>,
    pub(crate) lone_holder: AtomicPtr<Holder>,
    pub(crate) trampoline: AtomicU64,
}

impl KretprobeCore {
    pub(crate) const fn new(enter: Option<()>, _: Layout) -> Self {
        Self {
            enter,
            lone_holder: AtomicPtr::new(std::ptr::null_mut()),
            trampoline: AtomicU64::new(0),
        }
    }

    pub(crate) const fn retired() -> Self {
        Self::new(None, Layout::new::<()>())
    }

    /// No kprobe of a model is part of one.
    pub(crate) fn of(_: &Kprobe) -> Option<&Self> {
        None
    }

    pub(crate) fn set_alone(&self, _: bool) {}
}
