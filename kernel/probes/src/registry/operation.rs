//! The operations: probes are linked, unlinked, enabled and disabled here, step by step.
//!
//! ```text
//!   register    link each: check, take memory, publish the site     a refusal: take all back
//!               ─► rewrite: jumps go, breakpoints come, jumps come
//!   unregister  unlink each ─► breakpoints go, sites leave the table
//!               ─► grace period ─► memory is free, breakpoints beside may become jumps
//!   enable      rewrite the one site
//! ```
//!
//! What can fail comes first: [`Probes::link`] takes all memory before it changes anything, and
//! what follows cannot fail. So a batch that is refused is unlinked like any other
//! ([`Removal::Rollback`]). Taking away needs no memory: the sites of an operation are a list
//! through themselves.
//!
//! # Contexts
//! Task context, under the registry's lock from start to end. Hits go on meanwhile on every CPU.

use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::{
        AtomicPtr,
        Ordering::{Relaxed, Release},
    },
};

use crate::{
    data::{
        entry_points::EntryPoints,
        kprobe::{Kprobe, flags},
        kretprobe::KretprobeCore,
        probe::{Container, Probe},
        site::Site,
    },
    error::ProbeError,
    hit::interrupts::synchronize_settled,
    registry::{
        list::{Linked, List},
        optimize::needs_breakpoint,
        optimizer::Optimizer,
        sites::maxactive,
        state::{Host, Probes, State},
        target::Function,
        text::write_breakpoints,
    },
};

/// The sites of the operation under way.
impl Linked for Site {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.touched
    }
}

/// Why probes are removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    /// Their owner wants it.
    Unregister,
    /// The registration of their batch has failed: they become what they were.
    Rollback,
}

impl<P: Host> Probes<P> {
    /// # Safety
    /// The probes stay alive and in place until they are unregistered.
    pub(super) unsafe fn register_all<T: Probe + ?Sized>(
        &self,
        probes: &[&T],
    ) -> Result<(), ProbeError> {
        let mut state = self.lock()?;
        if !state.ready {
            return Err(ProbeError::NotReady);
        }
        let mut touched = List::new();
        let mut function = Function::default();
        let entry = P::entry_points();
        // 1. Where a post handler or a jprobe comes, a jump becomes a breakpoint again.
        let breakpoints =
            state.optimizer.on && probes.iter().any(|probe| needs_breakpoint(probe.kprobe()));
        if breakpoints {
            self.prepare_breakpoints(&mut state, probes);
        }
        // 2. Check, take memory, link to the site, publish the site.
        let linked = probes.iter().enumerate().try_for_each(|(index, probe)| {
            self.link(&mut state, &entry, *probe, &mut touched, &mut function)
                .map_err(|error| (index, error))
        });
        if breakpoints {
            self.existing_sites(probes, |site| site.keeps_breakpoint.store(false, Relaxed));
        }
        if let Err((index, error)) = linked {
            // 3. If one is refused, all is as it was.
            touched.clear();
            if index > 0 {
                self.remove(&mut state, &probes[..index], Removal::Rollback);
            }
            let enabled = state.enabled;
            let mut around = self.around_existing_sites(&state.optimizer, probes);
            self.optimize(&mut state.optimizer, enabled, around.iter());
            around.clear();
            return Err(error);
        }
        // 4. Arm: breakpoints come into the text, and become jumps where they may.
        for site in touched.iter() {
            let arm = state.enabled && site.wants_arming() && !site.armed.load(Relaxed);
            site.to_write.store(arm, Relaxed);
        }
        self.rewrite(&mut state, touched.iter());
        touched.clear();
        Ok(())
    }

    /// Before probes with post handlers and jprobes are linked: their sites become breakpoints
    /// again, and stay so.
    fn prepare_breakpoints<T: Probe + ?Sized>(&self, state: &mut State, probes: &[&T]) {
        self.existing_sites(probes, |site| site.keeps_breakpoint.store(true, Relaxed));
        let enabled = state.enabled;
        let mut around = self.around_existing_sites(&state.optimizer, probes);
        self.deoptimize(&mut state.optimizer, enabled, around.iter());
        around.clear();
        // A hit that has entered a detour before would find the new probe, and run its pre handler
        // alone.
        self.free_detours_after_grace(&mut state.optimizer);
    }

    /// The sites that [`Probes::existing_sites`] visits, and those whose jumps would cover one of
    /// them.
    fn around_existing_sites<T: Probe + ?Sized>(
        &self,
        optimizer: &Optimizer,
        probes: &[&T],
    ) -> List<Site> {
        let mut around = List::new();
        self.existing_sites(probes, |site| optimizer.touch(self, &mut around, site));
        around
    }

    /// Visits the sites that exist already for those of `probes` that need the breakpoint, as far
    /// as that can be told.
    fn existing_sites<T: Probe + ?Sized>(&self, probes: &[&T], mut visit: impl FnMut(&Site)) {
        for kprobe in probes.iter().map(|probe| probe.kprobe()) {
            if !needs_breakpoint(kprobe) {
                continue;
            }
            // SAFETY: a registered probe's site lives while the lock is held.
            let own = unsafe { kprobe.site.load(Relaxed).as_ref() };
            let site = own.or_else(|| self.site_at(self.resolve(kprobe).ok()?.0));
            site.into_iter().for_each(&mut visit);
        }
    }

    /// Brings the text of `sites`, those that the operation touches and some of them marked
    /// `to_write`, into the wanted state. Jumps that must go become breakpoints. Breakpoints come
    /// and go, and become jumps where they may.
    pub(super) fn rewrite<'a>(
        &self,
        state: &mut State,
        sites: impl Iterator<Item = &'a Site> + Clone,
    ) {
        let enabled = state.enabled;
        self.deoptimize(&mut state.optimizer, enabled, sites.clone());
        let coming = self.make_detours(&mut state.optimizer, enabled, sites.clone());
        write_breakpoints::<P>(sites);
        self.install_jumps(coming);
        self.free_detours_after_grace(&mut state.optimizer);
    }

    /// Checks one probe and links it to its site, without writing text.
    fn link<T: Probe + ?Sized>(
        &self,
        state: &mut State,
        entry: &EntryPoints,
        probe: &T,
        touched: &mut List<Site>,
        function: &mut Function,
    ) -> Result<(), ProbeError> {
        let kprobe = probe.kprobe();
        let (addr, symbol) = self.resolve(kprobe)?;
        self.check_container(state, probe, addr, &symbol)?;
        let trampoline = match probe.container() {
            Container::Kretprobe(core) => {
                self.ready_trampoline(state, core.method.unwrap_or(state.returns))?
            }
            _ => 0,
        };
        let existing = self.site_at(addr).map(NonNull::from);
        let fresh = match existing {
            Some(_) => None,
            None => {
                let step = kprobe.step.unwrap_or(state.step);
                let target = self.target(addr, &symbol, step, function)?;
                Some(self.make_site(state, &target, step)?)
            }
        };
        let Some(place) = existing.or(fresh) else {
            return Err(ProbeError::OutOfMemory);
        };
        // SAFETY: sites in the table live while the lock is held. The fresh one is ours until the
        // table has it.
        let site = unsafe { place.as_ref() };
        let (holder, counter) = match self.prepare(state, probe, site) {
            Ok(memory) => memory,
            Err(error) => {
                if let Some(fresh) = fresh {
                    // SAFETY: made just above and not published.
                    unsafe { self.free_site(state, fresh) };
                }
                return Err(error);
            }
        };

        // From here on nothing fails.
        kprobe.addr.store(addr, Relaxed);
        kprobe.flags.fetch_and(flags::DISABLED, Relaxed);
        kprobe.nmissed.store(0, Relaxed);
        kprobe.hits.start(counter, state.counter_origin);
        match probe.container() {
            Container::None => {}
            Container::Jprobe(jprobe) => kprobe
                .container
                .store(core::ptr::from_ref(jprobe).cast_mut().cast(), Relaxed),
            Container::Kretprobe(core) => {
                kprobe
                    .container
                    .store(core::ptr::from_ref(core).cast_mut().cast(), Relaxed);
                core.nmissed.store(0, Relaxed);
                core.maxactive.store(maxactive(state.cpus, core), Relaxed);
                core.trampoline.store(trampoline, Relaxed);
                core.holder.store(holder, Release);
            }
        }
        kprobe
            .site
            .store(core::ptr::from_ref(site).cast_mut(), Release);
        site.link(kprobe, entry);
        if fresh.is_some() {
            self.table.insert(&mut state.fill, site);
        }
        state.optimizer.touch(self, touched, site);
        Ok(())
    }

    pub(super) fn unregister_all<T: Probe + ?Sized>(
        &self,
        probes: &[&T],
    ) -> Result<(), ProbeError> {
        let mut state = self.lock()?;
        self.remove(&mut state, probes, Removal::Unregister);
        Ok(())
    }

    /// Takes probes away; waits once. Cannot fail and allocates nothing.
    fn remove<T: Probe + ?Sized>(&self, state: &mut State, probes: &[&T], removal: Removal) {
        // 1. New hits do not find the probes.
        let touched = self.unlink_all(&state.optimizer, probes);
        if touched.is_empty() {
            return;
        }
        // 2. The text is as it was, and new hits do not find the empty sites.
        let enabled = state.enabled;
        self.deoptimize(&mut state.optimizer, enabled, touched.iter());
        write_breakpoints::<P>(touched.iter());
        for site in touched.iter().filter(|site| site.is_empty()) {
            self.table.remove(&mut state.fill, site);
        }
        // 3. Hits that had found them are over.
        synchronize_settled(self);
        // 4. Their memory is free, and breakpoints beside them may become jumps.
        self.log_abandoned_calls(state);
        self.free_detours(&mut state.optimizer);
        probes
            .iter()
            .for_each(|probe| Self::release(state, *probe, removal));
        self.optimize(&mut state.optimizer, enabled, touched.iter());
        state.in_flight.free_returned();
        self.free_unused(state, touched);
    }

    /// Takes the probes out of the lists of their sites. Marks the breakpoints that must go, the
    /// post slots that nothing needs any more, and the kretprobes whose calls return quietly from
    /// now on. Returns the sites that this touches.
    fn unlink_all<T: Probe + ?Sized>(&self, optimizer: &Optimizer, probes: &[&T]) -> List<Site> {
        let mut touched = List::new();
        let entry = P::entry_points();
        for probe in probes {
            let kprobe = probe.kprobe();
            // SAFETY: a registered probe's site lives while the lock is held.
            let Some(site) = (unsafe { kprobe.site.load(Relaxed).as_ref() }) else {
                kprobe.set_addr(0);
                continue;
            };
            site.unlink(kprobe, &entry);
            optimizer.touch(self, &mut touched, site);
            site.to_write
                .store(site.armed.load(Relaxed) && !site.wants_arming(), Relaxed);
            if !site.has_post() {
                site.emulate.store(false, Relaxed);
                let unused = site.post_slot.swap(0, Relaxed);
                if unused != 0 {
                    site.retired_post_slot.store(unused, Relaxed);
                }
            }
            if let Some(core) = registered_kretprobe(*probe) {
                // SAFETY: a registered kretprobe has a live holder.
                unsafe { (*core.holder.load(Relaxed)).retire() };
            }
        }
        touched
    }

    /// Gives back the memory of one probe, and makes it ready to be registered again. A grace
    /// period is over since it was unlinked.
    fn release<T: Probe + ?Sized>(state: &mut State, probe: &T, removal: Removal) {
        if let Some(core) = registered_kretprobe(probe) {
            let holder = core.holder.swap(null_mut(), Relaxed);
            if let Some(holder) = NonNull::new(holder) {
                // SAFETY: taken from its kretprobe, cleared above, and the grace period is over.
                unsafe { state.in_flight.push(holder) };
            }
        }
        let kprobe = probe.kprobe();
        if let Some(counter) = kprobe.hits.stop() {
            state.counters.give_back(counter);
        }
        kprobe.next.store(null_mut(), Relaxed);
        if kprobe.is_registered() {
            match removal {
                // A probe that is registered again starts as it did at first.
                Removal::Unregister => kprobe.flags.store(kprobe.first_flags(), Relaxed),
                Removal::Rollback => kprobe.addr.store(kprobe.given.load(Relaxed), Relaxed),
            }
        }
        kprobe.site.store(null_mut(), Release);
    }

    /// Frees the sites that have no probe left, and the post slots that nothing needs any more.
    fn free_unused(&self, state: &mut State, mut touched: List<Site>) {
        while let Some(site) = touched.pop() {
            // SAFETY: registered sites are live.
            let this = unsafe { site.as_ref() };
            if this.is_empty() {
                // SAFETY: out of the table since before the grace period, and handed out once.
                unsafe { self.free_site(state, site) };
            } else {
                let slot = this.retired_post_slot.swap(0, Relaxed);
                if slot != 0 {
                    self.slots.free(&mut state.slots, slot);
                }
            }
        }
    }

    pub(super) fn set_disabled(&self, kprobe: &Kprobe, disabled: bool) -> Result<(), ProbeError> {
        let mut state = self.lock()?;
        // SAFETY: a registered probe's site lives while the lock is held.
        let Some(site) = (unsafe { kprobe.site.load(Relaxed).as_ref() }) else {
            return Err(ProbeError::NotRegistered);
        };
        if !disabled && kprobe.flags() & flags::GONE != 0 {
            return Err(ProbeError::Gone { addr: site.addr() });
        }
        if disabled {
            kprobe.flags.fetch_or(flags::DISABLED, Relaxed);
        } else {
            kprobe.flags.fetch_and(!flags::DISABLED, Relaxed);
        }
        site.choose_stubs(&P::entry_points());
        let wanted = state.enabled && site.wants_arming();
        site.to_write
            .store(site.armed.load(Relaxed) != wanted, Relaxed);
        let mut touched = List::new();
        state.optimizer.touch(self, &mut touched, site);
        self.rewrite(&mut state, touched.iter());
        touched.clear();
        Ok(())
    }
}

fn registered_kretprobe<T: Probe + ?Sized>(probe: &T) -> Option<&KretprobeCore> {
    match probe.container() {
        Container::Kretprobe(core) if probe.kprobe().is_registered() => Some(core),
        _ => None,
    }
}
