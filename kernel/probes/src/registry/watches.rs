//! Registering and removing watchpoints.
//!
//! ```text
//!   register    check ─► a free register ─► the place, then DR7 ─► every CPU loads them
//!   unregister  DR7 ─► every CPU loads it ─► the place is empty ─► grace period
//!   aim         check ─► the watchpoint's own words ─► this CPU's register ─► the other CPUs'
//! ```
//!
//! Each change leaves DR7 as the sum of what is there: a register is in action if its watchpoint is
//! enabled and the knob of all probes is on.
//!
//! # Contexts
//! Task context, under the registry's lock from start to end. May sleep. Only [`Watchpoints::aim`]
//! takes no lock and does not wait.

use alloc::boxed::Box;
use core::{
    fmt,
    marker::PhantomData,
    ops::{Deref, Range},
    ptr::{self, NonNull, null_mut},
    sync::atomic::{
        AtomicPtr,
        Ordering::{Relaxed, Release},
    },
};

use crate::{
    data::{
        method::StepMethod,
        per_cpu::{PerCpu, bump},
        watchpoint::{ALL_OFF, AimedAt, MOST_WATCHPOINTS, WatchAccess, Watches, Watchpoint, value},
    },
    error::{AimError, ProbeError},
    hit::Hits,
    insn::JUMP_BYTES,
    pt_regs::PtRegs,
    registry::{
        memory::try_box,
        state::{Deferred, Host, Probes, State, defer},
        target::{self, Function},
    },
};

/// The bits of DR7 for register `number` (Intel SDM vol. 3B, figure 17-1): in action for all tasks,
/// the kind of access, the length.
fn control_of(number: usize, watch: &Watchpoint) -> u64 {
    let access = match watch.access {
        WatchAccess::Execute => 0b00,
        WatchAccess::Write => 0b01,
        WatchAccess::ReadWrite => 0b11,
    };
    let len = match watch.bytes() {
        1 => 0b00,
        2 => 0b01,
        4 => 0b11,
        _ => 0b10,
    };
    0b10 << (2 * number) | (access | len << 2) << (16 + 4 * number)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn bytes_of<T>(of: &T) -> Range<u64> {
    let start = ptr::from_ref(of).addr() as u64;
    start..start + size_of::<T>() as u64
}

/// The watchpoints of a kernel: the part of its [`Probes`] that is about them.
pub struct Watchpoints<'p, P: Host>(&'p Probes<P>);

impl<P: Host> Clone for Watchpoints<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Host> Copy for Watchpoints<'_, P> {}

impl<'p, P: Host> Watchpoints<'p, P> {
    /// Those of `probes`.
    pub const fn of(probes: &'p Probes<P>) -> Self {
        Self(probes)
    }

    /// Registers a watchpoint, for all CPUs. The `static` keeps it alive.
    ///
    /// # Errors
    /// [`ProbeError`]; nothing has changed then. Beside those of kprobes for wrong names and
    /// contexts: [`ProbeError::WatchLength`], [`ProbeError::WatchUnaligned`],
    /// [`ProbeError::NotWatchable`], [`ProbeError::NoWatchRegister`].
    pub fn register(self, watch: &'static Watchpoint) -> Result<(), ProbeError> {
        // SAFETY: static, so it outlives every registration.
        unsafe { self.watch(watch) }
    }

    /// Registers a watchpoint that the returned handle owns; dropping the handle unregisters it.
    ///
    /// # Errors
    /// Those of [`Watchpoints::register`]; the watchpoint is dropped then.
    pub fn register_owned(
        self,
        watch: Box<Watchpoint>,
    ) -> Result<RegisteredWatchpoint<P>, ProbeError> {
        let deferred = try_box(Deferred {
            next: AtomicPtr::new(null_mut()),
            owner: null_mut(),
            finish: finish::<P>,
        })?;
        let watch = NonNull::from(Box::leak(watch));
        // SAFETY: it is freed by `finish` alone, after its unregistration.
        match unsafe { self.watch(watch.as_ref()) } {
            Ok(()) => Ok(RegisteredWatchpoint {
                watch,
                deferred: Box::into_raw(deferred),
                platform: PhantomData,
            }),
            Err(error) => {
                // SAFETY: leaked above, and not registered.
                drop(unsafe { Box::from_raw(watch.as_ptr()) });
                Err(error)
            }
        }
    }

    /// # Safety
    /// The watchpoint stays alive and in place until it is unregistered.
    unsafe fn watch(self, watch: &Watchpoint) -> Result<(), ProbeError> {
        let mut state = self.0.lock()?;
        if !state.ready {
            return Err(ProbeError::NotReady);
        }
        if watch.is_registered() {
            return Err(ProbeError::AlreadyRegistered { addr: watch.addr() });
        }
        let addr = self.named_address(watch)?;
        let is_free = |place: &&AtomicPtr<Watchpoint>| place.load(Relaxed).is_null();
        let Some(place) = self.0.watches.places().find(is_free) else {
            let mut addrs = [0; MOST_WATCHPOINTS];
            for (number, other) in self.registered() {
                addrs[number] = other.addr();
            }
            return Err(ProbeError::NoWatchRegister { addrs });
        };
        let found = match (watch.access, watch.scope) {
            (WatchAccess::Execute, _) => 0,
            // Each CPU finds its own when a task of the scope comes.
            (_, Some(_)) => 0,
            // SAFETY: `named_address` has seen that it can be read.
            (_, None) => unsafe { value_at(addr, watch.len) },
        };
        watch.aim.set(addr, found);
        watch.hits.store(0, Relaxed);
        watch.nmissed.store(0, Relaxed);
        watch.disabled.store(watch.starts_disabled, Relaxed);
        watch.routine.store(0, Relaxed);
        watch.choose_stub(&P::entry_points().watch);
        watch.registered.store(true, Release);
        place.store(ptr::from_ref(watch).cast_mut(), Release);
        self.let_jumps_go_or_come(&mut state, watch);
        self.apply(&state);
        Ok(())
    }

    /// Unregisters a watchpoint: when this returns no handler of it runs or will. Nothing happens
    /// if it is not registered.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn unregister(self, watch: &Watchpoint) -> Result<(), ProbeError> {
        let mut state = self.0.lock()?;
        let watches = &self.0.watches;
        let Some(place) = watches.register_of(watch).and_then(|n| watches.place(n)) else {
            return Ok(());
        };
        watch.registered.store(false, Release);
        self.apply(&state);
        place.store(null_mut(), Release);
        self.0.synchronize_hits();
        self.let_jumps_go_or_come(&mut state, watch);
        Ok(())
    }

    /// Lets a disabled watchpoint fire again. The old value of its next hit is the one of now.
    ///
    /// # Errors
    /// [`ProbeError::NotRegistered`], [`ProbeError::NotWatchable`], [`ProbeError::AtomicContext`].
    pub fn enable(self, watch: &Watchpoint) -> Result<(), ProbeError> {
        let state = self.0.lock()?;
        if self.0.watches.register_of(watch).is_none() {
            return Err(ProbeError::NotRegistered);
        }
        if watch.is_disabled() {
            let addr = watch.addr();
            if addr != 0 && watch.scope.is_none() && watch.access != WatchAccess::Execute {
                // The memory may be gone by now.
                self.check(addr, watch)?;
                // SAFETY: just checked. If it is moved meanwhile, who moves it has the value.
                watch.aim.note_at(addr, unsafe { value(addr, watch.len) });
            }
            watch.disabled.store(false, Relaxed);
            self.apply(&state);
        }
        Ok(())
    }

    /// Keeps a watchpoint from firing. When this returns no handler of it runs.
    ///
    /// # Errors
    /// [`ProbeError::NotRegistered`], [`ProbeError::AtomicContext`].
    pub fn disable(self, watch: &Watchpoint) -> Result<(), ProbeError> {
        let state = self.0.lock()?;
        if self.0.watches.register_of(watch).is_none() {
            return Err(ProbeError::NotRegistered);
        }
        watch.disabled.store(true, Relaxed);
        self.apply(&state);
        Ok(())
    }

    /// Has each hit that has no other cause run `routine` in place of the handler; none: the
    /// handler again. The handler is still called where a step ends at the same instruction,
    /// several watchpoints have matched, the instruction is a displaced one, or the watchpoint is
    /// movable. So both do the same. A hit with a routine is never missed. Changes nothing where
    /// the kernel has no [`debug_entry!`](crate::debug_entry).
    ///
    /// # Safety
    /// 1. The routine keeps what an action keeps at a breakpoint, and reaches no probe, as one does
    ///    (`data/action.rs`). It finds its arguments as [`WatchpointFrame`] says.
    /// 2. It stays until another call has replaced it, or the watchpoint was disabled or
    ///    unregistered.
    ///
    /// # Errors
    /// [`ProbeError::NotRegistered`], [`ProbeError::AtomicContext`].
    ///
    /// [`WatchpointFrame`]: crate::watchpoint::WatchpointFrame
    pub unsafe fn set_routine(
        self,
        watch: &Watchpoint,
        routine: Option<u64>,
    ) -> Result<(), ProbeError> {
        let state = self.0.lock()?;
        if self.0.watches.register_of(watch).is_none() {
            return Err(ProbeError::NotRegistered);
        }
        let stubs = P::entry_points().watch;
        // No stub that calls a routine while there is none.
        watch.stub.store(stubs.any, Release);
        self.0.synchronize_hits();
        watch.routine.store(routine.unwrap_or(0), Relaxed);
        watch.choose_stub(&stubs);
        drop(state);
        Ok(())
    }

    /// Aims a movable watchpoint at the memory from `to` on, or at nothing, if it is aimed `from`
    /// there now. Returns whether it was. Its next hit has the value of now as the old one, unless
    /// it has been there already.
    ///
    /// This CPU watches there when this returns. The others follow when the interrupt comes that
    /// [`Platform::load_watches_elsewhere`](crate::Platform::load_watches_elsewhere) sends; what
    /// they touch before that is not seen. Any context that stays on its CPU, for example a
    /// handler.
    ///
    /// # Errors
    /// [`AimError`]; it is where it was then.
    pub fn aim(self, watch: &Watchpoint, from: AimedAt, to: Option<u64>) -> Result<bool, AimError> {
        if !watch.movable || !P::CAN_LOAD_WATCHES_ELSEWHERE {
            return Err(AimError::NotMovable);
        }
        let watches = &self.0.watches;
        let number = watches.register_of(watch);
        let number = number.ok_or(AimError::NotRegistered)?;
        let (addr, now) = match to {
            None => (0, 0),
            // To read the value would be a hit of a watchpoint for reads.
            Some(addr) if addr == watch.addr() && from.includes(addr) => return Ok(true),
            Some(addr) if !addr.is_multiple_of(watch.len.into()) => {
                return Err(AimError::Unaligned);
            }
            Some(addr) if self.is_own(addr, watch.len) => return Err(AimError::NotWatchable),
            Some(addr) => {
                let value = P::watchable_value(addr, watch.len);
                (addr, value.ok_or(AimError::NotWatchable)?)
            }
        };
        if !watch.aim.shift(from, addr, now) {
            return Ok(false);
        }
        watches.follow::<P>(number);
        P::load_watches_elsewhere();
        Ok(true)
    }

    /// Makes the debug registers of this CPU what they are to be: what the other CPUs do when
    /// [`Platform::load_watches_elsewhere`](crate::Platform::load_watches_elsewhere) asks. In an
    /// interrupt handler, interrupts off.
    pub fn load(self) {
        self.0.watches.load::<P>();
    }

    /// The running program of this CPU was replaced, or it has got memory in place of some that was
    /// not there: watchpoints with a scope begin with what is there now. Interrupts off.
    #[inline(always)]
    pub fn program_changed(self) {
        if self.0.watches.are_scoped.load(Relaxed) {
            self.load();
        }
    }

    /// Serves a #DB whose only causes are matches of debug registers: `dr6` has none of BS, BD and
    /// BT, except that a program may have been stepped, of which nothing is done here. A kernel may
    /// call it in place of [`Hits::on_debug`], which does the same for such a #DB on a longer way.
    /// False: the registers are not the probes'. Interrupts off.
    #[inline(always)]
    pub fn on_match(self, regs: &mut PtRegs, dr6: u64) -> bool {
        const MATCHED: u64 = 0b1111;
        const STEP: u64 = 1 << 14;
        let cpu = P::this_cpu();
        bump(&cpu.debug_traps);
        let are_ours = Watches::pause::<P>(cpu);
        if are_ours {
            self.0
                .watches
                .serve(self.0, cpu, regs, (dr6 & MATCHED, dr6 & STEP != 0));
        }
        are_ours
    }

    /// Visits every registered watchpoint. Task context, may sleep. The registry is locked
    /// meanwhile, so `visit` must not change it.
    pub fn for_each(self, mut visit: impl FnMut(&Watchpoint)) {
        let _state = self.0.state();
        self.registered().for_each(|(_, watch)| visit(watch));
    }

    /// The watchpoints and the numbers of their registers. Under the lock.
    fn registered(self) -> impl Iterator<Item = (usize, &'p Watchpoint)> {
        let places = self.0.watches.places().enumerate();
        places.filter_map(|(number, place)| {
            // SAFETY: a registered watchpoint lives, and it leaves its place under the lock alone.
            Some((number, unsafe { place.load(Relaxed).as_ref() }?))
        })
    }

    /// Makes the debug registers of every CPU what the registered watchpoints want. Under the lock.
    pub(super) fn apply(self, state: &State) {
        let mut control = ALL_OFF;
        let mut are_scoped = false;
        for (number, watch) in self.registered() {
            if state.enabled && watch.is_registered() && !watch.is_disabled() {
                control |= control_of(number, watch);
                are_scoped |= watch.scope.is_some();
            }
        }
        if self.0.watches.control.load(Relaxed) == 0 && control == ALL_OFF {
            // No register was ever in action.
            return;
        }
        let watches = &self.0.watches;
        // A CPU that finds only one of the two has an interrupt to come, and switches tasks after
        // it.
        watches.are_scoped.store(are_scoped, Relaxed);
        watches.control.store(control, Release);
        let hits: &Hits<P> = self.0;
        P::on_every_cpu(&|| hits.watches.load::<P>());
    }

    /// What `watch` is to watch from its registration on, or why it may not. 0: nothing yet.
    fn named_address(self, watch: &Watchpoint) -> Result<u64, ProbeError> {
        let len = watch.bytes();
        if !matches!(len, 1 | 2 | 4 | 8) {
            return Err(ProbeError::WatchLength { len });
        }
        if watch.movable && watch.symbol_name.is_none() && watch.given == 0 {
            return Ok(0);
        }
        let base = target::base::<P>(watch.symbol_name(), watch.given)?;
        let addr = base.wrapping_add(watch.offset.into());
        self.check(addr, watch)?;
        if watch.movable && watch.scope.is_some() {
            let reason = "a watchpoint that moves is for all tasks; give it no scope";
            return Err(ProbeError::NotWatchable { addr, reason });
        }
        if watch.movable && watch.access == WatchAccess::Execute {
            let reason = "a watchpoint of an instruction does not move; register another";
            return Err(ProbeError::NotWatchable { addr, reason });
        }
        Ok(addr)
    }

    /// Jumps that would cover a watched instruction of the kernel are breakpoints while `watch` is
    /// registered, because the copies that hits execute in its place are not watched. Called when
    /// that has changed.
    fn let_jumps_go_or_come(self, state: &mut State, watch: &Watchpoint) {
        if watch.access != WatchAccess::Execute || watch.in_programs {
            return;
        }
        let executes = |(_, watch): (usize, &Watchpoint)| watch.access == WatchAccess::Execute;
        let are_any = self.registered().any(executes);
        self.0.watches.executes.store(are_any, Relaxed);
        let addr = watch.addr();
        let before = 1..JUMP_BYTES as u64;
        let covering = before.filter_map(|bytes| self.0.site_at(addr.wrapping_sub(bytes)));
        self.0.rewrite(state, covering);
    }

    /// Whether one of the instructions from `range` on is watched. Under the lock.
    pub(super) fn are_executed(self, range: Range<u64>) -> bool {
        self.0.watches.executes.load(Relaxed)
            && self.registered().any(|(_, watch)| {
                watch.access == WatchAccess::Execute && range.contains(&watch.addr())
            })
    }

    /// Why the instruction at `addr` may not be watched, if it may not.
    fn check_instruction(self, addr: u64) -> Result<(), ProbeError> {
        let symbol = target::permitted::<P>(addr)?;
        if self.0.site_at(addr).is_some() {
            return Ok(());
        }
        let step = StepMethod::Translate;
        let mut function = Function::default();
        match self.0.target(addr, &symbol, step, &mut function) {
            // It is not displaced, so it need not be one that can be.
            Err(ProbeError::Instruction { .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Why `watch` may not watch from `addr` on, if it may not.
    fn check(self, addr: u64, watch: &Watchpoint) -> Result<(), ProbeError> {
        let len = watch.bytes();
        if watch.access == WatchAccess::Execute && !watch.in_programs {
            return self.check_instruction(addr);
        }
        if !addr.is_multiple_of(len.into()) {
            return Err(ProbeError::WatchUnaligned { addr, len });
        }
        let refused = |reason| Err(ProbeError::NotWatchable { addr, reason });
        if self.is_own(addr, len) {
            return refused("the trap itself works with it");
        }
        // A multiple of the length cannot be so near the end that this overflows, but for 0.
        let range = addr..addr.saturating_add(len.into());
        let reason = match (watch.in_programs, watch.access) {
            (false, _) => P::not_watchable(range),
            (true, WatchAccess::Write | WatchAccess::Execute) => {
                P::not_watchable_in_programs(range)
            }
            (true, WatchAccess::ReadWrite) => Some(
                "a program that loads SS from it puts the trap off into the entry of a system \
                 call, which has no stack yet; watch for writes",
            ),
        };
        match reason {
            Some(reason) => refused(reason),
            None => Ok(()),
        }
    }

    /// Whether the trap itself works with the memory. Any context.
    #[inline(always)]
    fn is_own(self, addr: u64, len: u8) -> bool {
        let range = addr..addr.saturating_add(len.into());
        let own = (0..).map_while(P::per_cpu).map(bytes_of::<PerCpu>);
        own.chain([bytes_of(self.0)])
            .any(|own| overlap(&own, &range))
    }
}

/// What a watchpoint at `addr` finds first: the value there, or 0 if `addr` is 0, so nothing.
///
/// # Safety
/// That of [`value`], unless `addr` is 0.
unsafe fn value_at(addr: u64, len: u8) -> u64 {
    match addr {
        0 => 0,
        // SAFETY: by the contract.
        _ => unsafe { value(addr, len) },
    }
}

/// A registered watchpoint that this handle owns. Dropping the handle unregisters it. Where that
/// may not wait (in a handler, with interrupts off), the next call that may wait does it; until
/// then the watchpoint fires. Forgetting the handle leaves it registered for ever.
pub struct RegisteredWatchpoint<P: Host> {
    watch: NonNull<Watchpoint>,
    /// Memory for the deferred case, taken while that can fail.
    deferred: *mut Deferred,
    platform: PhantomData<fn() -> P>,
}

// SAFETY: a watchpoint is `Sync`, and the handle is its owner.
unsafe impl<P: Host> Send for RegisteredWatchpoint<P> {}
// SAFETY: a shared handle gives shared access to the watchpoint only.
unsafe impl<P: Host> Sync for RegisteredWatchpoint<P> {}

impl<P: Host> Deref for RegisteredWatchpoint<P> {
    type Target = Watchpoint;

    fn deref(&self) -> &Watchpoint {
        // SAFETY: alive until the handle is dropped.
        unsafe { self.watch.as_ref() }
    }
}

impl<P: Host> fmt::Debug for RegisteredWatchpoint<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredWatchpoint({:#x})", self.addr())
    }
}

impl<P: Host> Drop for RegisteredWatchpoint<P> {
    fn drop(&mut self) {
        let watch = self.watch.as_ptr().cast();
        if P::can_sleep() {
            // SAFETY: made by `Box::into_raw`, and this handle is its only user.
            drop(unsafe { Box::from_raw(self.deferred) });
            // SAFETY: the handle is gone.
            unsafe { finish::<P>(watch) };
            return;
        }
        // SAFETY: as above; from here on the node belongs to the list.
        unsafe { defer(P::probes(), self.deferred, watch) };
    }
}

/// Unregisters the watchpoint of a handle that is gone, and drops it.
///
/// # Safety
/// `watch` is the watchpoint of such a handle, once, and the caller may sleep.
unsafe fn finish<P: Host>(watch: *mut ()) {
    let watch: *mut Watchpoint = watch.cast();
    // SAFETY: alive until it is dropped below.
    let removed = Watchpoints::of(P::probes()).unregister(unsafe { &*watch });
    if removed.is_ok() {
        // SAFETY: from `Box::leak`, nothing reaches it any more, and the handle is gone.
        drop(unsafe { Box::from_raw(watch) });
    }
}
