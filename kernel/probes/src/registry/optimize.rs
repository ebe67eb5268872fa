//! Jump optimisation: the breakpoint of a probe becomes a jump to its [`Detour`], and a breakpoint
//! again when it must.
//!
//! ```text
//!                write the detour, point the site to it      wait until nothing is under the jump
//!   breakpoint ──────────────────────────────────► queued ──────────────────────────────► jump
//!        ▲                                    int3; tail; first byte                       │
//!        └───────── int3; original tail; hits go through the slot again; grace period ─────┘
//! ```
//!
//! A jump takes five bytes where a breakpoint takes one. So a site is optimised only if all of this
//! holds:
//! - its first bytes allow it ([`FunctionCode::region`], [`Platform::may_fault`](crate::Platform));
//! - a probe of it is enabled, none has a post handler, none is a jprobe;
//! - no enabled probe lies under the jump, and no instruction that a watchpoint watches;
//! - the knobs are on.
//!
//! Every operation of the registry asks this again, for the sites that it touches and for those
//! whose jump would cover them ([`Optimizer::touch`]). Before text is written it asks for the jumps
//! that must go. After it, for the breakpoints that may become jumps.
//!
//! # Nothing under the jump
//! When bytes 1 to 4 are written, no context may resume there. With the breakpoint in place,
//! control can get there in four ways, and each is closed:
//! 1. From the slot of the first instruction. Since the site points to the detour, hits execute the
//!    displaced copies there and come out after the jump. Those before are waited for:
//!    [`Hits::is_settled`](crate::hit::Hits::is_settled).
//! 2. In a task that an interrupt found there and that was preempted.
//!    [`Hits::may_preempt`](crate::hit::Hits::may_preempt) is false there from the moment the site
//!    has a detour, and `Platform::wait_for_preempted` waits for tasks that were preempted before.
//! 3. On a CPU that runs there now. No grace period ends meanwhile.
//! 4. Because a handler or a fault sends it there.
//!    [`Hits::executable_ip`](crate::hit::Hits::executable_ip) sends it elsewhere.
//!
//! Nothing returns there, because calls that would are not displaced. No fault there sleeps,
//! because functions with entries in the exception table are left alone.
//!
//! # Invariants
//! JUMP-1. A site with a detour is armed: its first byte is a breakpoint, or the jump's.
//! JUMP-2. Text is written as REGISTRY-4 says, and tail bytes only after a breakpoint that every
//!     CPU sees.
//! JUMP-3. All sites of an operation share its waits. All sites of a function share its decoding.
//!
//! # Contexts
//! Under the registry's lock, in task context. If there is no memory for a detour, the breakpoint
//! stays.

use alloc::vec::Vec;
use core::{
    array, fmt,
    ptr::{NonNull, null, null_mut},
    sync::atomic::Ordering::{Relaxed, Release},
};

use crate::{
    data::{
        detour::Detour,
        kprobe::{Kprobe, ProbeKind},
        kretprobe::KretprobeCore,
        method::StepMethod,
        site::Site,
    },
    error::ProbeError,
    hit::interrupts::synchronize_settled,
    insn::{FunctionCode, INT3, JUMP, JUMP_BYTES, MAX_DISPLACED, Obstacle, jump, landing_pad_len},
    platform::{Platform, Text},
    registry::{
        displaceable::{Displaceable, Displaced},
        list::List,
        optimizer::Optimizer,
        state::{Host, Probes},
        text::{Pristine, text},
        watches::Watchpoints,
    },
};

/// The return probe that is alone at `site`, or null.
fn lone(site: &Site) -> *const KretprobeCore {
    site.lone_kretprobe().map_or(null(), core::ptr::from_ref)
}

/// Why the code at an address keeps the breakpoint of a probe there from becoming a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoJump {
    /// It is text of the boot, or none.
    NotForGood,
    /// An instruction of the function may fault on purpose.
    MayFault,
    /// An obstacle in its instructions.
    Code(Obstacle),
    /// Not the code: there is no memory to look at it.
    OutOfMemory,
}

impl fmt::Display for NoJump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotForGood => f.write_str("it is not in text that stays"),
            Self::MayFault => {
                f.write_str("an instruction of the function may fault and go on elsewhere")
            }
            Self::Code(obstacle) => obstacle.fmt(f),
            Self::OutOfMemory => f.write_str("there is no memory to look at the code"),
        }
    }
}

impl Optimizer {
    /// Whether `site` may have a jump, as far as its probes and those next to it say. `enabled`:
    /// the global knob.
    #[inline]
    fn may_jump<P: Host>(&self, probes: &Probes<P>, enabled: bool, site: &Site) -> bool {
        self.on
            && enabled
            && site.wants_arming()
            && !site.obstacle.load(Relaxed)
            && !site.keeps_breakpoint.load(Relaxed)
            && site.step.is_none()
            && !site.probes().any(needs_breakpoint)
            && site
                .detour()
                .is_none_or(|detour| is_for_its_probes::<P>(detour, site))
            && !(1..JUMP_BYTES as u64).any(|after| {
                probes
                    .site_at(site.addr() + after)
                    .is_some_and(Site::wants_arming)
            })
            && !Watchpoints::of(probes)
                .are_executed(site.addr() + 1..site.addr() + JUMP_BYTES as u64)
    }

    /// Adds `site` to the sites that the operation under way touches, and those whose jumps would
    /// cover it.
    #[inline]
    pub(super) fn touch<P: Host>(&self, probes: &Probes<P>, touched: &mut List<Site>, site: &Site) {
        // SAFETY: the operation that has the list keeps its sites until it has emptied it.
        let mut push = |site: &Site| unsafe { touched.push(NonNull::from(site)) };
        push(site);
        // While the knob is off there is no jump, and none comes.
        if self.on {
            (1..JUMP_BYTES as u64)
                .filter_map(|before| probes.site_at(site.addr() - before))
                .for_each(push);
        }
    }
}

impl<P: Host> Probes<P> {
    /// Whether probes are optimised where they can be.
    pub fn optimization(&self) -> bool {
        self.state().optimizer.on
    }

    /// Turns the optimisation on or off. When this returns, every jump is there, or is a breakpoint
    /// again.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn set_optimization(&self, on: bool) -> Result<(), ProbeError> {
        let mut state = self.lock()?;
        if state.optimizer.on == on {
            return Ok(());
        }
        state.optimizer.on = on;
        let enabled = state.enabled;
        self.deoptimize(&mut state.optimizer, enabled, self.table.iter());
        self.optimize(&mut state.optimizer, enabled, self.table.iter());
        self.free_detours_after_grace(&mut state.optimizer);
        P::log(format_args!(
            "kprobe jump-optimization is {}",
            if on {
                "enabled. All kprobes are optimized if possible"
            } else {
                "disabled"
            }
        ));
        self.log_missing_jumps(&state.optimizer, enabled);
        Ok(())
    }

    /// Tells how many breakpoints could not become jumps when the knob was turned. Their probes
    /// work all the same, but each hit costs more.
    pub(crate) fn log_missing_jumps(&self, optimizer: &Optimizer, enabled: bool) {
        let is_missing = |site: &&Site| {
            site.detour.load(Relaxed).is_null() && optimizer.may_jump(self, enabled, site)
        };
        let missing = self.table.iter().filter(is_missing).count();
        if missing > 0 {
            P::log(format_args!(
                "{missing} kprobes keep their breakpoints: no memory for their jumps. Free some, \
                 then turn the knob off and on again"
            ));
        }
    }

    /// How many probed addresses have a detour.
    pub fn detours_in_use(&self) -> usize {
        self.state().optimizer.free.used()
    }

    /// Turns the jumps at `sites` that must not stay into breakpoints. When it returns, no CPU
    /// finds one of them. Text that was freed is not written, because no CPU executes it.
    pub(crate) fn deoptimize<'a>(
        &self,
        optimizer: &mut Optimizer,
        enabled: bool,
        sites: impl Iterator<Item = &'a Site>,
    ) {
        if self.detour_count.load(Relaxed) == 0 {
            return;
        }
        let (mut leaving, mut of_freed_text) = (List::new(), List::new());
        for site in sites {
            let Some(detour) = NonNull::new(site.detour.load(Relaxed)) else {
                continue;
            };
            if optimizer.may_jump(self, enabled, site) {
                continue;
            }
            let list = if site.gone.load(Relaxed) {
                &mut of_freed_text
            } else {
                &mut leaving
            };
            // SAFETY: live until it is freed, after the grace period.
            unsafe {
                detour.as_ref().installed.store(false, Relaxed);
                list.push(detour);
            }
        }
        if !leaving.is_empty() {
            write_first_bytes::<P>(&leaving, INT3);
            // The second round of the breakpoints, too (REGISTRY-4).
            write_tails::<P>(&leaving, |_, detour| tail(detour.original));
        }
        while let Some(detour) = leaving.pop().or_else(|| of_freed_text.pop()) {
            // SAFETY: live until it is freed, after the grace period.
            let site = unsafe { detour.as_ref() }.site();
            site.run.store(site.slot, Release);
            site.detour.store(null_mut(), Release);
            site.mark_optimized(false);
            self.detour_count.fetch_sub(1, Relaxed);
            // SAFETY: as above; it is freed when it is out of the list.
            unsafe { optimizer.retired.push(detour) };
        }
    }

    /// Turns into jumps the breakpoints at `sites` that can be.
    pub(crate) fn optimize<'a>(
        &self,
        optimizer: &mut Optimizer,
        enabled: bool,
        sites: impl Iterator<Item = &'a Site>,
    ) {
        let coming = self.make_detours(optimizer, enabled, sites);
        self.install_jumps(coming);
    }

    /// Makes the detours that breakpoints at `sites` can become. These are breakpoints that are
    /// there, and those that are about to be written. Called before breakpoints are written,
    /// because this code may be probed itself and would then be slow.
    pub(crate) fn make_detours<'a>(
        &self,
        optimizer: &mut Optimizer,
        enabled: bool,
        sites: impl Iterator<Item = &'a Site>,
    ) -> List<Detour> {
        let mut coming = List::new();
        if !optimizer.on || !enabled {
            return coming;
        }
        let mut candidates: Vec<&Site> = Vec::new();
        for site in sites {
            let has = !site.detour.load(Relaxed).is_null();
            site.mark_optimized(has);
            if !has
                && site.armed.load(Relaxed) != site.to_write.load(Relaxed)
                && optimizer.may_jump(self, enabled, site)
                && candidates.try_reserve(1).is_ok()
            {
                candidates.push(site);
            }
        }
        // By address, so that sites of one function are neighbours (JUMP-3).
        candidates.sort_unstable_by_key(|site| site.key);
        let mut function = None;
        for site in candidates {
            if let Some(detour) = self.make_detour(optimizer, site, &mut function) {
                // SAFETY: nothing frees it before it is installed and out of the list.
                unsafe { coming.push(detour) };
            }
        }
        coming
    }

    /// Turns the breakpoints into jumps whose detours were made.
    pub(crate) fn install_jumps(&self, mut coming: List<Detour>) {
        if coming.is_empty() {
            return;
        }
        for detour in coming.iter() {
            let site = detour.site();
            site.detour
                .store(core::ptr::from_ref(detour).cast_mut(), Release);
            site.mark_optimized(true);
            self.detour_count.fetch_add(1, Relaxed);
        }
        // Every CPU sees the detours, and preempts nothing under the jumps.
        P::synchronize_cores();
        for detour in coming.iter() {
            let site = detour.site();
            site.run.store(detour.block(), Release);
        }
        P::wait_for_preempted(&|ip| self.is_covered(ip));
        synchronize_settled(self);
        write_tails::<P>(&coming, |site, detour| tail(jump_to(site, detour)));
        for _round in 0..2 {
            write_first_bytes::<P>(&coming, JUMP);
        }
        while let Some(detour) = coming.pop() {
            // SAFETY: live while its site points to it.
            unsafe { detour.as_ref() }.installed.store(true, Relaxed);
        }
    }

    /// Makes and writes the detour of `site`, if the code there allows one. `function` as in
    /// [`Pristine::displaceable`].
    fn make_detour(
        &self,
        optimizer: &mut Optimizer,
        site: &Site,
        function: &mut Option<FunctionCode>,
    ) -> Option<NonNull<Detour>> {
        let code = if site.entry.are_known() {
            Pristine(self).known_displaceable(site)
        } else {
            match Pristine(self).displaceable(site.addr(), function) {
                Ok(mut code) => {
                    // Only what saves no flags asks. Elsewhere than at an entry the direction flag
                    // may be set, which an action that calls clears.
                    if code.at_entry && may_change_flags(site) {
                        let function = function.as_ref();
                        code.flags_are_dead =
                            function.is_some_and(|code| code.flags_are_dead(site.addr()));
                    }
                    Some(code)
                }
                Err(NoJump::OutOfMemory) => return None,
                Err(_) => None,
            }
        };
        let Some(code) = code else {
            site.obstacle.store(true, Relaxed);
            return None;
        };
        let start = self.detours.take(&mut optimizer.free).ok()?;
        let entry = P::entry_points();
        let detour = Detour::build(&entry, site, &code, start, &mut optimizer.draft);
        match detour.and_then(|detour| optimizer.memory.take(detour).ok()) {
            Some(detour) => {
                let code = optimizer.draft.code();
                self.detours.write(start, detour.as_ptr(), code);
                Some(detour)
            }
            None => {
                self.detours.free(&mut optimizer.free, start);
                None
            }
        }
    }

    /// Whether the code at `addr` allows a jump there. This asks neither its probes, nor their
    /// neighbours, nor the knobs. Task context, may sleep.
    ///
    /// # Errors
    /// [`NoJump`].
    pub fn allows_jump(&self, addr: u64) -> Result<(), NoJump> {
        let _state = self.state();
        Pristine(self).displaceable(addr, &mut None).map(drop)
    }

    /// Frees the detours that were taken out of use, if there are any, after a grace period for
    /// them alone.
    pub(crate) fn free_detours_after_grace(&self, optimizer: &mut Optimizer) {
        if !optimizer.retired.is_empty() {
            self.synchronize_hits();
            self.free_detours(optimizer);
        }
    }

    /// Frees the detours that were taken out of use before the grace period that has just ended.
    pub(crate) fn free_detours(&self, optimizer: &mut Optimizer) {
        while let Some(detour) = optimizer.retired.pop() {
            // SAFETY: live until it is given back, below.
            let start = unsafe { detour.as_ref() }.start;
            // After that nothing finds it by an address any more.
            self.detours.free(&mut optimizer.free, start);
            // SAFETY: taken in `make_detour`, and out of every CPU's reach.
            unsafe { optimizer.memory.give_back(detour) };
        }
    }
}

/// What a jump may displace.
impl<P: Host> Pristine<'_, P> {
    /// The code that a jump at `addr` displaces. `decoded` is the function that was looked at last,
    /// and becomes this one. Under the registry's lock.
    fn displaceable(
        &self,
        addr: u64,
        decoded: &mut Option<FunctionCode>,
    ) -> Result<Displaceable, NoJump> {
        let contains = |code: &FunctionCode| addr.wrapping_sub(code.start()) < code.len();
        let code = match decoded.take() {
            Some(code) if contains(&code) => code,
            _ => self.code_around(addr)?,
        };
        let code = decoded.insert(code);
        let function = code.start()..code.start() + code.len();
        let behind = if addr + JUMP_BYTES as u64 > function.end {
            self.copy(function.end..function.end + unowned_after::<P>(function.end))
                .map_err(|_| NoJump::OutOfMemory)?
        } else {
            Vec::new()
        };
        let at_entry = addr == function.start + landing_pad_len(code.bytes()) as u64;
        let offset = (addr - function.start) as usize;
        let region = code.region(&behind, addr).ok_or(NoJump::OutOfMemory)?;
        let region = region.map_err(NoJump::Code)?;
        let mut original = [0; JUMP_BYTES];
        let covered = code.bytes().iter().chain(&behind).skip(offset);
        original
            .iter_mut()
            .zip(covered)
            .for_each(|(to, from)| *to = *from);
        Ok(Displaceable {
            insns: Displaced::Decoded(region),
            original,
            at_entry,
            flags_are_dead: false,
        })
    }

    /// The code of the function around `addr` as it is without probes, if jumps may be written
    /// there.
    fn code_around(&self, addr: u64) -> Result<FunctionCode, NoJump> {
        let symbol = P::symbol_at(addr).ok_or(NoJump::NotForGood)?;
        let function = symbol.start..symbol.start + symbol.size;
        if symbol.text != Text::Kernel {
            return Err(NoJump::NotForGood);
        }
        if P::may_fault(function.clone()) {
            return Err(NoJump::MayFault);
        }
        let bytes = self.copy(function).map_err(|_| NoJump::OutOfMemory)?;
        Ok(FunctionCode::new(bytes, symbol.start))
    }

    /// The code that a jump displaces at `site`, an entry of which facts are known. None: no jump
    /// may be there.
    fn known_displaceable(&self, site: &Site) -> Option<Displaceable> {
        let facts = site.entry;
        let len = facts.displaced_len();
        // SAFETY: part of a symbol, under the registry's lock.
        let text = unsafe { text(site.addr(), len) };
        let mut bytes = [0; MAX_DISPLACED];
        bytes[..len].copy_from_slice(text);
        // A breakpoint may be at each instruction, also one that its probes do not want any more
        // and that is about to go. A jump is not there: it is a breakpoint again by now.
        for behind in (0..JUMP_BYTES).filter(|behind| facts.begins(*behind)) {
            if let Some(site) = self.0.site_at(site.addr() + behind as u64) {
                bytes[behind] = site.opcode();
            }
        }
        (len > 0).then(|| Displaceable {
            original: array::from_fn(|at| bytes[at]),
            insns: Displaced::Plain(bytes, facts),
            at_entry: true,
            flags_are_dead: facts.flags_are_dead(),
        })
    }
}

/// Writes `byte` as the first byte of each site: one round.
fn write_first_bytes<P: Platform>(detours: &List<Detour>, byte: u8) {
    for detour in detours.iter() {
        // SAFETY: text of a site that is not gone, between a breakpoint and another first byte,
        // under the lock.
        unsafe { P::write_text(detour.site().addr(), byte) };
    }
    P::synchronize_cores();
}

/// Writes the other bytes of each site: one round.
fn write_tails<P: Platform>(
    detours: &List<Detour>,
    tail_of: impl Fn(&Site, &Detour) -> [u8; JUMP_BYTES - 1],
) {
    for detour in detours.iter() {
        let site = detour.site();
        // SAFETY: text of a site that is not gone, after its breakpoint, where no CPU is (see
        // the module's text), under the lock.
        unsafe { P::write_tail(site.addr() + 1, tail_of(site, detour)) };
    }
    P::synchronize_cores();
}

/// How many bytes after `end`, where a function ends, belong to no symbol: at most as many as
/// a jump can use, and on the function's last page.
fn unowned_after<P: Platform>(end: u64) -> u64 {
    let page = |at: u64| at >> 12;
    (end..end + JUMP_BYTES as u64 - 1)
        .take_while(|at| page(*at) == page(end - 1) && P::symbol_at(*at).is_none())
        .count() as u64
}

/// Whether what is alone at `site` has a detour that need not save the flags.
fn may_change_flags(site: &Site) -> bool {
    site.lone_action().is_some()
        || site
            .lone_kretprobe()
            .is_some_and(|kretprobe| kretprobe.enter.is_none())
}

/// Whether `detour`, which is that of `site`, still serves its probes.
fn is_for_its_probes<P: Platform>(detour: &Detour, site: &Site) -> bool {
    let action = site.lone_action().map_or(null(), |action| action.as_ptr());
    let only_returns = || site.has_only_returns(|| P::entry_points().routines);
    detour.action == action
        && (!detour.at_entry
            || detour.kretprobe == lone(site) && detour.only_returns == only_returns())
}

/// Whether `probe` keeps its address from being optimised.
pub(crate) fn needs_breakpoint(probe: &Kprobe) -> bool {
    probe.post_handler.is_some()
        || matches!(probe.kind, ProbeKind::Jprobe | ProbeKind::Trampoline)
        || probe.step == Some(StepMethod::TrapFlag)
}

/// The jump to a detour.
fn jump_to(site: &Site, detour: &Detour) -> [u8; JUMP_BYTES] {
    // In reach: the slot region is within 2 GiB of all text.
    jump(site.addr(), detour.enter())
}

/// All but the first byte.
fn tail([_, a, b, c, d]: [u8; JUMP_BYTES]) -> [u8; JUMP_BYTES - 1] {
    [a, b, c, d]
}
