//! The trait that the three kinds of probes share.

use crate::data::{
    jprobe::Jprobe,
    kprobe::Kprobe,
    kretprobe::{Kretprobe, KretprobeCore},
};

/// Anything that can be registered.
pub trait Probe: Sync {
    /// The kprobe at its address.
    fn kprobe(&self) -> &Kprobe;

    #[doc(hidden)]
    fn container(&self) -> Container<'_>;
}

/// The probe that a kprobe is a part of.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub enum Container<'a> {
    None,
    Jprobe(&'a Jprobe),
    Kretprobe(&'a KretprobeCore),
}

impl Probe for Kprobe {
    fn kprobe(&self) -> &Kprobe {
        self
    }

    fn container(&self) -> Container<'_> {
        Container::None
    }
}

impl Probe for Jprobe {
    fn kprobe(&self) -> &Kprobe {
        &self.kprobe
    }

    fn container(&self) -> Container<'_> {
        Container::Jprobe(self)
    }
}

impl<D: Copy + Default + Send + 'static> Probe for Kretprobe<D> {
    fn kprobe(&self) -> &Kprobe {
        &self.core.kprobe
    }

    fn container(&self) -> Container<'_> {
        Container::Kretprobe(&self.core)
    }
}
