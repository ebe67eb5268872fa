//! Which assembly serves the hits of a site.
//!
//! Each probe names three pieces of assembly. They fit the list that begins with this probe, so a
//! hit reads the site's first probe and has all it needs.
//!
//! ```text
//!   the stub: takes a breakpoint, while this probe is the first of its site
//!     no probe is enabled, a single step, `popf`             any_hit        all in Rust
//!     one kretprobe without entry handler, nothing else      one_kretprobe  no frame
//!     several such kretprobes, nothing else                  kretprobes     no frame
//!     one kprobe with an action, nothing else                action         no frame
//!     a probe with a post handler                            hit_post
//!     anything else                                          hit
//!
//!   the chain: called by the stub or a detour, for this probe and all older ones
//!     the address does not fit into 32 bits                  far_chain
//!     this probe is the oldest                               its routine, at once
//!     there are older ones                                   chain
//!
//!   the routine: does the work of this probe alone
//!     disabled                                               nothing
//!     a kprobe without a pre handler                         count
//!     a kprobe with one                                      kprobe
//!     a kprobe with an action                                action
//!     a jprobe                                               jprobe
//!     a kretprobe with an entry handler or data              kretprobe_entry
//!     a kretprobe without                                    kretprobe
//!     a kretprobe with an old return method                  in Rust
//! ```

use core::sync::atomic::{Ordering, fence};

use crate::data::{
    entry_points::{EntryPoints, Routines},
    jprobe::Jprobe,
    kprobe::{Kind, Kprobe},
    kretprobe::KretprobeCore,
    site::Site,
};

/// Which of the routines serves a probe alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Nothing,
    Count,
    Kprobe,
    Action,
    Kretprobe,
    KretprobeEntry,
    Jprobe,
    SlowPath,
}

impl Service {
    /// The routine's address.
    pub(crate) fn routine(self, routines: &Routines) -> u64 {
        match self {
            Self::Nothing => routines.nothing,
            Self::Count => routines.count,
            Self::Kprobe => routines.kprobe,
            Self::Action => routines.action,
            Self::Kretprobe => routines.kretprobe,
            Self::KretprobeEntry => routines.kretprobe_entry,
            Self::Jprobe => routines.jprobe,
            Self::SlowPath => routines.slow_path,
        }
    }
}

impl Kprobe {
    /// Which routine serves this probe alone.
    pub(crate) fn service(&self, entry: &EntryPoints) -> Service {
        match self.kind {
            _ if !self.is_enabled() => Service::Nothing,
            Kind::Kprobe | Kind::Trampoline if self.pre_handler.is_none() => Service::Count,
            Kind::Kprobe | Kind::Trampoline if !self.action.is_null() => Service::Action,
            Kind::Kprobe | Kind::Trampoline => Service::Kprobe,
            Kind::Jprobe => match Jprobe::of(self) {
                Some(jprobe) if jprobe.entry.is_some() => Service::Jprobe,
                _ => Service::Count,
            },
            Kind::Kretprobe => match KretprobeCore::of(self) {
                Some(kretprobe)
                    if kretprobe.trampoline.load(Ordering::Relaxed) != entry.trampoline =>
                {
                    Service::SlowPath
                }
                Some(kretprobe) if kretprobe.enter.is_some() => Service::KretprobeEntry,
                _ => Service::Kretprobe,
            },
        }
    }

    /// Takes note that the probe is disabled, whatever else is at its site. Any context.
    pub(crate) fn silence(&self, entry: &EntryPoints) {
        self.serve.store(entry.routines.nothing, Ordering::Relaxed);
        // In the list there may be others behind it.
        self.chain
            .store(entry.routines.far_chain, Ordering::Relaxed);
        self.stub.store(entry.any_hit, Ordering::Relaxed);
        if let Some(kretprobe) = KretprobeCore::of(self) {
            kretprobe.set_alone(false);
        }
    }
}

impl Site {
    /// Chooses how hits are served, for all probes here. Under the registry's lock.
    pub(crate) fn choose_stubs(&self, entry: &EntryPoints) {
        for probe in self.probes() {
            self.choose_stub(probe, entry);
            // A handle that is dropped in a handler disables its probe without the lock. It writes
            // the flag first, then what follows from the flag.
            fence(Ordering::SeqCst);
            if !probe.is_enabled() {
                probe.silence(entry);
            }
        }
    }

    /// Chooses what serves hits while `probe` is the first one here. That depends on the probe's
    /// state, which does not change meanwhile, and on the probes behind it.
    pub(crate) fn choose_stub(&self, probe: &Kprobe, entry: &EntryPoints) {
        let routines = &entry.routines;
        let service = probe.service(entry);
        let routine = service.routine(routines);
        let alone = probe.next.load(Ordering::Relaxed).is_null();
        let (mut enabled, mut post, mut plain) = (false, false, service == Service::Kretprobe);
        for probe in probe.and_older() {
            enabled |= probe.is_enabled();
            post |= probe.post_handler.is_some();
            plain &= matches!(probe.service(entry), Service::Kretprobe | Service::Nothing);
        }
        // The ip that a detour pushes has 32 bits.
        let chain = if i32::try_from(self.key.0 as i64).is_err() {
            routines.far_chain
        } else if alone {
            routine
        } else {
            routines.chain
        };
        // Where nobody is enabled, Rust counts the trap as stale.
        let stub = if !enabled || self.step.is_some() || self.pops_flags() {
            entry.any_hit
        } else if plain && !post {
            if alone {
                entry.one_kretprobe
            } else {
                entry.kretprobes
            }
        } else if alone && service == Service::Action && !post {
            entry.action
        } else if post {
            entry.hit_post
        } else {
            entry.hit
        };
        probe.serve.store(routine, Ordering::Relaxed);
        probe.chain.store(chain, Ordering::Relaxed);
        probe.stub.store(stub, Ordering::Relaxed);
        if let Some(kretprobe) = KretprobeCore::of(probe) {
            kretprobe.set_alone(
                alone && matches!(service, Service::Kretprobe | Service::KretprobeEntry),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        PreVerdict, PtRegs,
        data::entry_points::{Template, Templates},
    };

    const NOWHERE: Template = Template {
        start: 0,
        enter: 0,
        end: 0,
    };
    const ENTRY: EntryPoints = EntryPoints {
        trampoline: 0,
        historic_trampolines: [0; 2],
        post_stub: 0,
        jprobe_return: 0,
        detours: Templates {
            at_entry: NOWHERE,
            anywhere: NOWHERE,
            lone_entry: NOWHERE,
            lone_return: NOWHERE,
        },
        routines: Routines {
            nothing: 0,
            count: 0,
            kprobe: 0,
            action: 0,
            kretprobe: 0,
            kretprobe_entry: 0,
            jprobe: 0,
            slow_path: 0,
            chain: 0,
            far_chain: 0,
        },
        any_hit: 0,
        hit: 0,
        hit_post: 0,
        one_kretprobe: 0,
        kretprobes: 0,
        action: 0,
    };

    fn handler(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        PreVerdict::Execute
    }

    #[test]
    fn a_disabled_probe_is_served_by_nothing_and_an_enabled_one_by_its_handler() {
        assert_eq!(Kprobe::new().service(&ENTRY), Service::Count);
        assert_eq!(Kprobe::new().pre(handler).service(&ENTRY), Service::Kprobe);
        for disabled in [
            Kprobe::new().disabled(),
            Kprobe::new().pre(handler).disabled(),
        ] {
            assert_eq!(disabled.service(&ENTRY), Service::Nothing);
        }
    }
}
