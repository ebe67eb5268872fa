//! Making sites and what probes need on them: slots, post slots, counters, instances.
//!
//! A site has a slot with the replacement of its instruction from the start, and a copy to be
//! single-stepped if its first probe asks for that. A post slot comes with the first post handler
//! and goes with the last. A counter, and the instances of a kretprobe, belong to each probe.
//!
//! Most instructions run unchanged anywhere, so the slot is their bytes and a jump, and nothing is
//! translated. An entry of which facts are known ([`EntryFacts`](crate::insn::EntryFacts)) begins
//! with one, so it is not even decoded.
//!
//! # Contexts
//! Under the registry's lock. A site is the operation's own until it is in the table. New code in a
//! slot of a site that is armed is seen by every CPU before a hit can be led there.

use alloc::boxed::Box;
use core::{
    ptr::{NonNull, null_mut},
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

use crate::{
    data::{
        instance::{Holder, RETIRED, TaskCell},
        kretprobe::KretprobeCore,
        method::StepMethod,
        position::Positions,
        probe::{Container, Probe},
        site::{Emulated, Site},
        trap_ip::TrapIp,
    },
    error::ProbeError,
    insn::{Class, Ending, FlagsOp, Insn, Refusal, pushed_register, step_copy, translate},
    platform::Platform,
    pt_regs::REGISTER_OFFSETS,
    registry::{
        memory::try_box,
        replacement::{fitting, plain_slot, post_ending},
        state::{Host, Probes, State},
        target::{Target, TargetInsn},
    },
};

impl<P: Host> Probes<P> {
    /// A site with its slots filled, not published yet.
    pub(crate) fn make_site(
        &self,
        state: &mut State,
        target: &Target<'_>,
        step: StepMethod,
    ) -> Result<NonNull<Site>, ProbeError> {
        let addr = target.addr;
        self.table
            .reserve(&mut state.fill, 1, || self.synchronize_hits())?;
        let mut place = state.sites.take(Site::sentinel(TrapIp::of(addr)))?;
        // SAFETY: just taken, and ours alone until it is published.
        let site = unsafe { place.as_mut() };
        site.entry = target.entry;
        let filled = match target.insn {
            TargetInsn::Decoded(insn, class) => self.fill_site(state, site, insn, class, step),
            TargetInsn::Plain(bytes) => self.fill_plain_site(state, site, bytes),
        };
        match filled {
            Ok(()) => Ok(place),
            Err(error) => {
                // SAFETY: taken above and not published.
                unsafe { self.free_site(state, place) };
                Err(error)
            }
        }
    }

    /// Fills a site for `insn`. On an error the slots that it has are those that were taken.
    fn fill_site(
        &self,
        state: &mut State,
        site: &mut Site,
        insn: &Insn,
        class: Class,
        step: StepMethod,
    ) -> Result<(), ProbeError> {
        let addr = insn.ip();
        let refused = |refusal| ProbeError::Instruction { addr, refusal };
        site.set_bytes(insn.bytes());
        site.pushed = place_of(insn.pushed_register());
        site.emulated = match class {
            Class::Flags(FlagsOp::Push(_)) => None,
            Class::Flags(op) => Some(Emulated::Flags(op)),
            Class::Return => Some(Emulated::Return(insn.discarded_arguments())),
            _ => None,
        };
        site.slot = self.slots.take(&mut state.slots)?;
        site.run.store(site.slot, Relaxed);
        let translation = translate(insn, site.slot, Ending::Resume);
        let code = fitting::<P>(&translation).map_err(refused)?;
        site.slot_positions = Positions::of(code).ok_or(ProbeError::OutOfMemory)?;
        self.slots.write(site.slot, site, code.code());
        // A step that ends on another CPU's data would not end: a slot needs none.
        if step == StepMethod::TrapFlag && !insn.writes_msr() {
            let slot = self.slots.take(&mut state.slots)?;
            let copy = step_copy(insn, slot).map_err(refused);
            let boxed = copy.and_then(|copy| try_box((slot, copy)));
            let written = boxed.map(|step| {
                self.slots.write(slot, site, step.1.code());
                site.step = Some(step);
            });
            if written.is_err() {
                self.slots.free(&mut state.slots, slot);
            }
            written?;
        }
        Ok(())
    }

    /// The same for an instruction of these bytes that runs unchanged anywhere and is not stepped:
    /// what [`translate`] makes of it.
    fn fill_plain_site(
        &self,
        state: &mut State,
        site: &mut Site,
        bytes: &[u8],
    ) -> Result<(), ProbeError> {
        site.set_bytes(bytes);
        site.pushed = place_of(pushed_register(bytes));
        site.slot = self.slots.take(&mut state.slots)?;
        site.run.store(site.slot, Relaxed);
        site.slot_positions = Positions::of_plain(site.len);
        let (code, len) = plain_slot(bytes, site.slot, site.next_ip());
        self.slots.write(site.slot, site, &code[..len]);
        Ok(())
    }

    /// Takes the memory that a probe needs on its site: a counter, instances, a post slot. Returns
    /// the first two.
    pub(super) fn prepare<T: Probe + ?Sized>(
        &self,
        state: &mut State,
        probe: &T,
        site: &Site,
    ) -> Result<(*mut Holder, NonNull<AtomicU64>), ProbeError> {
        let counter = state.counters.take(state.cpus)?;
        let holder = match probe.container() {
            Container::Kretprobe(core) => make_holder::<P>(state, core),
            _ => Ok(null_mut()),
        };
        let prepared = holder.and_then(|holder| {
            if probe.kprobe().post_handler.is_some()
                && site.step.is_none()
                && let Err(error) = self.make_post_slot(state, site)
            {
                // Only kretprobes have a holder, and they have no post handler.
                debug_assert!(holder.is_null());
                return Err(error);
            }
            Ok(holder)
        });
        match prepared {
            Ok(holder) => Ok((holder, counter)),
            Err(error) => {
                state.counters.give_back(counter);
                Err(error)
            }
        }
    }

    /// Makes `site` ready for a post handler, if it is not yet.
    fn make_post_slot(&self, state: &mut State, site: &Site) -> Result<(), ProbeError> {
        if site.emulated.is_some() {
            site.emulate.store(true, Relaxed);
        } else if site.post_slot.load(Relaxed) == 0
            && let Some(insn) = site.insn()
        {
            if insn.writes_msr() {
                let (addr, refusal) = (site.addr(), Refusal::MsrWrite);
                return Err(ProbeError::Instruction { addr, refusal });
            }
            let slot = self.slots.take(&mut state.slots)?;
            if let Err(error) = self.fill_post_slot(site, &insn, slot) {
                self.slots.free(&mut state.slots, slot);
                return Err(error);
            }
            if site.armed.load(Relaxed) {
                // Hits can enter the new code as soon as it is stored, and no CPU may have fetched
                // the bytes that were there before.
                P::synchronize_cores();
            }
            site.post_slot.store(slot, Release);
        }
        Ok(())
    }

    fn fill_post_slot(&self, site: &Site, insn: &Insn, slot: u64) -> Result<(), ProbeError> {
        let refused = |refusal| ProbeError::Instruction {
            addr: insn.ip(),
            refusal,
        };
        let translation = translate(insn, slot, post_ending::<P>());
        let code = fitting::<P>(&translation).map_err(refused)?;
        if site.post_positions.load(Relaxed).is_null() {
            let positions = try_box(Positions::of(code).ok_or(ProbeError::OutOfMemory)?)?;
            site.post_positions.store(Box::into_raw(positions), Release);
        }
        self.slots.write(slot, site, code.code());
        Ok(())
    }

    /// Gives back a site and its slots.
    ///
    /// # Safety
    /// 1. `place` is from [`Probes::make_site`], once.
    /// 2. No hit can reach it.
    pub(super) unsafe fn free_site(&self, state: &mut State, place: NonNull<Site>) {
        // SAFETY: live by (1).
        let site = unsafe { place.as_ref() };
        let step = site.step.as_ref().map_or(0, |step| step.0);
        for slot in [
            site.slot,
            site.post_slot.load(Relaxed),
            site.retired_post_slot.load(Relaxed),
            step,
        ] {
            if slot != 0 {
                self.slots.free(&mut state.slots, slot);
            }
        }
        // SAFETY: by the contract.
        unsafe { state.sites.give_back(place) };
    }
}

/// The holder of a kretprobe, with its instances.
fn make_holder<P: Platform>(
    state: &mut State,
    core: &KretprobeCore,
) -> Result<*mut Holder, ProbeError> {
    // Returns count there once their kretprobe is gone.
    let retired = &RETIRED.kprobe.hits;
    if !retired.is_counting() {
        retired.start(state.counters.take(state.cpus)?, state.counter_origin);
    }
    Holder::try_new(
        core,
        current_task::<P>,
        maxactive(state.cpus, core) as usize,
        core.data,
    )
}

/// The task that runs on this CPU, as the kernel numbers tasks for the probes. 0: a task that could
/// get no cell. The CPU cannot change meanwhile.
fn current_task<P: Platform>() -> u64 {
    P::this_cpu().cell().map_or(0, TaskCell::task)
}

/// How many calls of a kretprobe can be followed at once, with so many CPUs.
pub(super) fn maxactive(cpus: usize, core: &KretprobeCore) -> i32 {
    match core.maxactive.load(Relaxed) {
        ..=0 => (2 * cpus as i32).max(10),
        given => given,
    }
}

/// Where the register of this number is in [`PtRegs`](crate::PtRegs); negative for none.
fn place_of(register: Option<usize>) -> i16 {
    // At most 168.
    register.map_or(-1, |register| REGISTER_OFFSETS[register] as i16)
}
