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
//!     the address does not fit into 32 bits, no older ones   far
//!     the same, and there are older ones                     far_chain
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
    kprobe::{Kprobe, ProbeKind},
    kretprobe::KretprobeCore,
    site::Site,
};

/// A handler routine: it does the work of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routine {
    Nothing,
    Count,
    Kprobe,
    Action,
    Kretprobe,
    KretprobeEntry,
    Jprobe,
    SlowPath,
}

impl Routine {
    /// Where the assembly of the routine is.
    pub(crate) fn address(self, routines: &Routines) -> u64 {
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
    /// The routine for this probe alone.
    pub(crate) fn choose_routine(&self, entry: &EntryPoints) -> Routine {
        match self.kind {
            _ if !self.is_enabled() => Routine::Nothing,
            ProbeKind::Kprobe | ProbeKind::Trampoline if self.pre_handler.is_none() => {
                Routine::Count
            }
            ProbeKind::Kprobe | ProbeKind::Trampoline if !self.action.is_null() => Routine::Action,
            ProbeKind::Kprobe | ProbeKind::Trampoline => Routine::Kprobe,
            ProbeKind::Jprobe => match Jprobe::of(self) {
                Some(jprobe) if jprobe.entry.is_some() => Routine::Jprobe,
                _ => Routine::Count,
            },
            ProbeKind::Kretprobe => match KretprobeCore::of(self) {
                Some(kretprobe)
                    if kretprobe.trampoline.load(Ordering::Relaxed) != entry.trampoline =>
                {
                    Routine::SlowPath
                }
                Some(kretprobe) if kretprobe.enter.is_some() => Routine::KretprobeEntry,
                _ => Routine::Kretprobe,
            },
        }
    }

    /// Takes note that the probe is disabled, whatever else is at its site. Any context.
    pub(crate) fn silence(&self, entry: &EntryPoints) {
        self.routine
            .store(entry.routines.nothing, Ordering::Relaxed);
        // In the list there may be others after it.
        self.chain
            .store(entry.routines.far_chain, Ordering::Relaxed);
        self.stub.store(entry.any_hit, Ordering::Relaxed);
        if let Some(kretprobe) = KretprobeCore::of(self) {
            kretprobe.set_alone(false);
        }
    }
}

/// Where the last probe of each sort stands in a list, newest first: the number of probes up to it,
/// 0 if there is none. So each probe knows in constant time what is among itself and the older
/// ones.
#[derive(Clone, Copy)]
struct Ends {
    enabled: usize,
    /// How many of the probes are enabled.
    number_enabled: usize,
    /// With a post handler.
    post: usize,
    /// Served by something else than a return without an entry handler.
    other: usize,
}

impl Ends {
    fn of<'a>(probes: impl Iterator<Item = &'a Kprobe>, entry: &EntryPoints) -> Self {
        let mut ends = Self {
            enabled: 0,
            number_enabled: 0,
            post: 0,
            other: 0,
        };
        for (number, probe) in (1..).zip(probes) {
            if probe.is_enabled() {
                ends.enabled = number;
                ends.number_enabled += 1;
            }
            if probe.post_handler.is_some() {
                ends.post = number;
            }
            let routine = probe.choose_routine(entry);
            if !matches!(routine, Routine::Kretprobe | Routine::Nothing) {
                ends.other = number;
            }
        }
        ends
    }
}

impl Site {
    /// Chooses how hits are served, for all probes here. Under the registry's lock.
    #[inline]
    pub(crate) fn choose_stubs(&self, entry: &EntryPoints) {
        // A handle that is dropped in a handler disables its probe without the lock. It writes the
        // flag first, then what follows from the flag. So if as many are enabled afterwards as
        // before, then nothing that was chosen here follows from a flag that has changed since.
        loop {
            let ends = Ends::of(self.probes(), entry);
            let mut number_enabled = 0;
            for (place, probe) in self.probes().enumerate() {
                self.choose_one(probe, ends, place, entry);
                fence(Ordering::SeqCst);
                number_enabled += usize::from(probe.is_enabled());
            }
            if number_enabled == ends.number_enabled {
                break;
            }
        }
    }

    /// Chooses what serves hits while `probe` is the first one here. That depends on the probe's
    /// state, which does not change meanwhile, and on the probes after it.
    pub(crate) fn choose_stub(&self, probe: &Kprobe, entry: &EntryPoints) {
        self.choose_one(probe, Ends::of(probe.and_older(), entry), 0, entry);
    }

    /// The same for the probe at `place` in the list that `ends` is of.
    fn choose_one(&self, probe: &Kprobe, ends: Ends, place: usize, entry: &EntryPoints) {
        let routines = &entry.routines;
        let routine = probe.choose_routine(entry);
        let address = routine.address(routines);
        let alone = probe.next.load(Ordering::Relaxed).is_null();
        let (enabled, post) = (place < ends.enabled, place < ends.post);
        let plain = routine == Routine::Kretprobe && place >= ends.other;
        // The ip that a detour pushes has 32 bits.
        let is_far = i32::try_from(self.key.0 as i64).is_err();
        let chain = match (is_far, alone) {
            (true, true) => routines.far,
            (true, false) => routines.far_chain,
            (false, true) => address,
            (false, false) => routines.chain,
        };
        // Where none is enabled, Rust counts the trap as stale.
        let stub = if !enabled || self.step.is_some() || self.pops_flags() {
            entry.any_hit
        } else if plain && !post {
            if alone {
                entry.one_kretprobe
            } else {
                entry.kretprobes
            }
        } else if alone && routine == Routine::Action && !post {
            entry.action
        } else if post {
            entry.hit_post
        } else {
            entry.hit
        };
        probe.routine.store(address, Ordering::Relaxed);
        probe.chain.store(chain, Ordering::Relaxed);
        probe.stub.store(stub, Ordering::Relaxed);
        if let Some(kretprobe) = KretprobeCore::of(probe) {
            kretprobe.set_alone(
                alone && matches!(routine, Routine::Kretprobe | Routine::KretprobeEntry),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    use crate::{
        Action, Jprobe, Kretprobe, PreVerdict, PtRegs,
        data::{
            entry_points::{Template, Templates, WatchStubs},
            site::Emulated,
            trap_ip::TrapIp,
        },
        insn::{FlagsOp, OperandSize, decode, step_copy},
    };

    const NOWHERE: Template = Template {
        start: 0,
        enter: 0,
        end: 0,
    };
    const ENTRY: EntryPoints = EntryPoints {
        trampoline: 0,
        action_trampoline: 0,
        historic_trampolines: [0; 2],
        post_stub: 0,
        jprobe_return: 0,
        detours: Templates {
            at_entry: NOWHERE,
            anywhere: NOWHERE,
            lone_entry: NOWHERE,
            lone_action: NOWHERE,
            lone_return: NOWHERE,
            lone_return_keeping_flags: NOWHERE,
            returns: NOWHERE,
        },
        routines: Routines {
            nothing: 1,
            count: 2,
            kprobe: 3,
            action: 4,
            kretprobe: 5,
            kretprobe_entry: 6,
            jprobe: 7,
            slow_path: 8,
            chain: 9,
            far: 17,
            far_chain: 10,
        },
        per_cpu: 0,
        any_hit: 11,
        hit: 12,
        hit_post: 13,
        one_kretprobe: 14,
        kretprobes: 15,
        action: 16,
        watch: WatchStubs::NONE,
    };

    fn handler(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        PreVerdict::Execute
    }

    #[test]
    fn a_disabled_probe_is_served_by_nothing_and_an_enabled_one_by_its_handler() {
        assert_eq!(Kprobe::new().choose_routine(&ENTRY), Routine::Count);
        assert_eq!(
            Kprobe::new().pre(handler).choose_routine(&ENTRY),
            Routine::Kprobe
        );
        for disabled in [
            Kprobe::new().disabled(),
            Kprobe::new().pre(handler).disabled(),
        ] {
            assert_eq!(disabled.choose_routine(&ENTRY), Routine::Nothing);
        }
    }

    fn after(_: &Kprobe, _: &mut PtRegs, _: u64) {}

    extern "C" fn in_place_of_an_action(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        PreVerdict::Execute
    }

    /// A kretprobe, as a registration leaves it.
    fn kretprobe<D: Copy + Default + Send + 'static>(trampoline: u64) -> &'static Kprobe {
        let kretprobe: &'static _ = Box::leak(Box::new(Kretprobe::<D>::new()));
        let core = core::ptr::from_ref(&kretprobe.core).cast_mut();
        kretprobe
            .core
            .trampoline
            .store(trampoline, Ordering::Relaxed);
        let container = &kretprobe.core.kprobe.container;
        container.store(core.cast(), Ordering::Relaxed);
        &kretprobe.core.kprobe
    }

    /// A jprobe without a handler, as a registration leaves it.
    fn jprobe() -> &'static Kprobe {
        let jprobe: &'static Jprobe = Box::leak(Box::default());
        let container = core::ptr::from_ref(jprobe).cast_mut().cast();
        jprobe.kprobe.container.store(container, Ordering::Relaxed);
        &jprobe.kprobe
    }

    const PROBED: u64 = 0xffff_ffff_8001_2340;

    /// Stub, chain and routine of the first of `probes`, oldest first, which all come to `site`.
    fn chosen(site: &Site, probes: &[&Kprobe]) -> [u64; 3] {
        probes.iter().for_each(|probe| site.link(probe, &ENTRY));
        site.choose_stubs(&ENTRY);
        let first = site.probes().next().unwrap();
        [&first.stub, &first.chain, &first.routine].map(|word| word.load(Ordering::Relaxed))
    }

    fn site() -> Site {
        Site::sentinel(TrapIp::of(PROBED))
    }

    #[test]
    fn each_list_of_probes_gets_the_stub_the_chain_and_the_routine_that_are_made_for_it() {
        let action = Action {
            jump: 0,
            jump_keeping_flags: 0,
            breakpoint: 0,
            handler: in_place_of_an_action,
        };
        // SAFETY: it lives to the end of the test.
        let acts = || unsafe { Kprobe::new().action(&raw const action) };
        let plain = || Kprobe::new().pre(handler);
        let (with_data, old) = (kretprobe::<u64>(0), kretprobe::<()>(1));
        let plain_returns = [(); 8].map(|()| kretprobe::<()>(0));
        let [lone, other, sibling, after_disabled, ..] = plain_returns;
        let [.., before_disabled, beside, early, over_post] = plain_returns;
        // Oldest first.
        let lists: [(&[&Kprobe], [u64; 3]); 19] = [
            (&[&Kprobe::new()], [12, 2, 2]),
            (&[&plain()], [12, 3, 3]),
            (&[&plain().disabled()], [11, 1, 1]),
            (&[&plain(), &plain().disabled()], [12, 9, 1]),
            (&[&plain().disabled(), &plain()], [12, 9, 3]),
            (&[&plain().post(after)], [13, 3, 3]),
            (&[&plain().post(after), &plain()], [13, 9, 3]),
            (&[&acts()], [16, 4, 4]),
            (&[&plain(), &acts()], [12, 9, 4]),
            (&[&acts().post(after)], [13, 4, 4]),
            (&[jprobe()], [12, 2, 2]),
            (&[lone], [14, 5, 5]),
            (&[other, sibling], [15, 9, 5]),
            (&[&plain().disabled(), after_disabled], [15, 9, 5]),
            (&[before_disabled, &plain().disabled()], [12, 9, 1]),
            (&[&plain(), beside], [12, 9, 5]),
            (&[early, &acts()], [12, 9, 4]),
            (&[&plain().post(after), over_post], [13, 9, 5]),
            (&[old], [12, 8, 8]),
        ];
        for (number, (probes, expected)) in lists.into_iter().enumerate() {
            assert_eq!(chosen(&site(), probes), expected, "list {number}");
        }
        assert_eq!(chosen(&site(), &[with_data]), [12, 6, 6]);
    }

    #[test]
    fn steps_and_popped_flags_are_served_in_rust_and_far_addresses_by_their_own_chain() {
        let mut stepped = site();
        let copy = step_copy(&decode(&[0x90], PROBED).unwrap(), PROBED).unwrap();
        stepped.step = Some(Box::new((PROBED, copy)));
        assert_eq!(chosen(&stepped, &[&Kprobe::new().pre(handler)]), [11, 3, 3]);
        let mut pops = site();
        pops.emulated = Some(Emulated::Flags(FlagsOp::Pop(OperandSize::Quad)));
        assert_eq!(chosen(&pops, &[&Kprobe::new().pre(handler)]), [11, 3, 3]);
        let far = || Site::sentinel(TrapIp::of(0xffff_8000_0001_2340));
        let [first, second, third] = [(); 3].map(|()| Kprobe::new().pre(handler));
        assert_eq!(chosen(&far(), &[&first]), [12, 17, 3]);
        assert_eq!(chosen(&far(), &[&second, &third]), [12, 10, 3]);
    }

    #[test]
    fn a_disabled_probe_is_served_in_rust_from_the_moment_that_it_is_there() {
        let probe = Kprobe::new().pre(handler).disabled();
        site().link(&probe, &ENTRY);
        assert_eq!(probe.stub.load(Ordering::Relaxed), 11);
    }

    /// A jprobe comes last, so those before it have one more after them.
    #[test]
    fn a_jprobe_that_comes_to_others_has_them_lead_on_to_it() {
        let (site, first) = (site(), Kprobe::new().pre(handler));
        site.link(&first, &ENTRY);
        let chain = || first.chain.load(Ordering::Relaxed);
        assert_eq!(chain(), 3);
        let jprobe = jprobe();
        site.link(jprobe, &ENTRY);
        assert_eq!(chain(), 9);
        site.unlink(jprobe, &ENTRY);
        assert_eq!(chain(), 3);
    }

    #[test]
    fn a_site_has_only_returns_while_another_probe_is_disabled_or_not_there() {
        let site = site();
        let has_only_returns = || site.has_only_returns(|| ENTRY.routines);
        let (first, second, with_data) =
            (kretprobe::<()>(0), kretprobe::<()>(0), kretprobe::<u64>(0));
        let (off, on) = (Kprobe::new().disabled(), Kprobe::new());
        assert!(!has_only_returns(), "no probe");
        site.link(first, &ENTRY);
        assert!(!has_only_returns(), "one probe");
        site.link(second, &ENTRY);
        assert!(has_only_returns());
        // Hits go by the newest probe.
        for newest in [with_data, &on, &off] {
            site.link(newest, &ENTRY);
            assert!(!has_only_returns());
            site.unlink(newest, &ENTRY);
            assert!(has_only_returns());
        }
        first.silence(&ENTRY);
        assert!(has_only_returns(), "the older one is disabled");
        second.silence(&ENTRY);
        assert!(!has_only_returns(), "the newest is");
    }

    #[test]
    fn a_kretprobe_is_alone_only_while_it_is() {
        let is_alone = |kprobe: &Kprobe| {
            let holder = KretprobeCore::of(kprobe)
                .unwrap()
                .lone_holder
                .load(Ordering::Relaxed);
            !core::ptr::eq(holder, &crate::data::instance::NO_HOLDER)
        };
        let (site, call, other) = (site(), kretprobe::<()>(0), Kprobe::new());
        let lone = || site.lone_kretprobe().map(core::ptr::from_ref);
        let core = KretprobeCore::of(call).map(core::ptr::from_ref);
        assert_eq!(lone(), None, "no probe");
        site.link(call, &ENTRY);
        assert!(is_alone(call));
        assert_eq!(lone(), core);
        site.link(&other, &ENTRY);
        assert_eq!(lone(), None, "two probes");
        site.unlink(&other, &ENTRY);
        assert!(is_alone(call), "again");
        call.silence(&ENTRY);
        assert!(!is_alone(call), "silent");
        assert_eq!(lone(), None, "silent");
        let words =
            [&call.stub, &call.chain, &call.routine].map(|word| word.load(Ordering::Relaxed));
        assert_eq!(words, [11, 10, 1]);
        site.choose_stubs(&ENTRY);
        assert!(is_alone(call));
        site.unlink(call, &ENTRY);
        assert!(!is_alone(call), "gone");
    }
}
