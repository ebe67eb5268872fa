//! Registering, arming, disarming and removing probes.
//!
//! One [`Probes`] serves a kernel. Everything that changes it runs in task context under one sleeping lock, so the
//! writers below need no care for each other, only for the hits that go on meanwhile on every CPU.
//!
//! ```text
//!   register    check all ─► make or join the site ─► publish in the table ─► write int3, sync, write, sync
//!   unregister  unlink ─► restore the byte, sync, restore, sync ─► unpublish ─► grace period ─► free
//! ```
//!
//! # Invariants
//! R1. A site is in the address table before its breakpoint is in the text, and until after it has left it.
//! R2. What a hit can reach (site, slot, probe, table, instance) is freed only after a grace period since it was
//!     taken out of reach.
//! R3. A call that fails has left text, lists and the caller's probes as they were.
//! R4. Text is written in two rounds with a synchronisation after each: an emulator's translation of the old byte, made
//!     while the first store was on its way, is gone after the second. A processor needs the first round only.
//! R5. A batch pays for its one grace period once, and for these rounds once for each [`WRITTEN_AT_ONCE`] of its sites.
//!
//! # Contexts
//! All calls may sleep, save those that say otherwise; from an atomic context they are refused.

use alloc::{alloc::alloc, boxed::Box, string::String, sync::Arc, vec::Vec};
use core::{
    alloc::Layout,
    fmt,
    iter::once,
    marker::PhantomData,
    mem::offset_of,
    ops::{Deref, Range},
    ptr::{NonNull, null_mut},
    sync::atomic::{
        AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    },
};

use lock_api::{MappedMutexGuard, Mutex, MutexGuard};

pub(crate) mod historic;
mod in_flight;
pub mod optimize;

pub use crate::data::{
    method::{ReturnMethod, StepMethod},
    probe::{Container, Probe},
};
use crate::{
    data::{
        address_table::Fill,
        counters::FreeCounters,
        entry_points::EntryPoints,
        instance::{Holder, RETIRED, TaskCell},
        kprobe::{Kind, Kprobe, flags},
        kretprobe::KretprobeCore,
        per_cpu::PerCpu,
        position::Positions,
        site::{self, Emulated, Site},
    },
    error::{MAX_INSTANCE_DATA, ProbeError},
    hit::Hits,
    insn::{
        self, BoundaryError, BoundaryWalk, Class, DecodeError, Ending, FlagsOp, Insn, Refusal,
        SavedFlagsOperand, landing_pad_len, step_copy, translate,
    },
    platform::{Platform, Symbol, Text},
    pt_regs::REGISTER_OFFSETS,
    registry::{
        historic::Historic,
        in_flight::InFlight,
        optimize::{Optimizer, Visit, needs_breakpoint},
    },
    site_pool::FreeSites,
    slot::FreeSlots,
};

/// How many breakpoints are written between two synchronisations, in all rounds. Not all of a batch: where a batch covers the code that
/// writes it, all but its last ones are written before they slow that down.
const WRITTEN_AT_ONCE: usize = 4096;

/// The breakpoint instruction.
pub(crate) const INT3: u8 = 0xcc;

/// A registered probe, as lists show it.
#[derive(Clone, Copy)]
pub struct Listed<'a> {
    /// The probe; that of a jprobe or kretprobe is the kprobe at its function's entry.
    pub probe: &'a Kprobe,
    /// How often its handlers ran since registration: of a kretprobe the return handler.
    pub hits: u64,
    /// How often they should have run and did not: the CPU was busy with a probe, or a kretprobe had no free instance.
    pub misses: u64,
    /// Whether its breakpoint is in the text now.
    pub armed: bool,
}

impl<'a> Listed<'a> {
    /// Under the registry's lock, which keeps site, probe and container alive.
    fn new(site: &Site, probe: &'a Kprobe) -> Self {
        let mut misses = probe.nmissed();
        if let Some(kretprobe) = KretprobeCore::of(probe) {
            misses += kretprobe.nmissed.load(Relaxed);
        }
        Self {
            probe,
            hits: probe.hits(),
            misses,
            armed: site.armed.load(Relaxed),
        }
    }
}

/// A kernel that has its probes in a static.
pub trait Host: Platform {
    /// The probes of this kernel.
    fn probes() -> &'static Probes<Self>;
}

/// The probes of one kernel: what hits read, to which it dereferences, and what changes that.
#[repr(C)]
pub struct Probes<P: Platform> {
    hits: Hits<P>,
    historic: Historic,
    /// Handles that were dropped where nobody may wait: a stack of them.
    deferred: AtomicPtr<Deferred>,
    /// Made at the first use. Until then the registry, table and all, is zero and takes no room in the program's file.
    state: Mutex<P::RawMutex, Option<Box<State>>>,
}

impl<P: Platform> Deref for Probes<P> {
    type Target = Hits<P>;

    #[inline(always)]
    fn deref(&self) -> &Hits<P> {
        &self.hits
    }
}

/// What the lock protects.
pub(crate) struct State {
    ready: bool,
    /// The number of possible CPUs.
    pub(crate) cpus: usize,
    /// The global knob.
    pub(crate) enabled: bool,
    step: StepMethod,
    returns: ReturnMethod,
    pub(crate) fill: Fill,
    pub(crate) slots: FreeSlots,
    pub(crate) optimizer: Optimizer,
    sites: FreeSites,
    pub(crate) counters: FreeCounters,
    in_flight: InFlight,
    /// Of the abandoned calls, how many the log has told of.
    told_abandoned: u64,
}

// SAFETY: what its lists lead to is memory of the registry; nothing in it belongs to a thread.
unsafe impl Send for State {}

impl State {
    const fn new() -> Self {
        Self {
            ready: false,
            cpus: 0,
            enabled: true,
            step: StepMethod::Translate,
            returns: ReturnMethod::Asm,
            fill: Fill::new(),
            slots: FreeSlots::new(),
            optimizer: Optimizer::new(),
            sites: FreeSites::new(),
            counters: FreeCounters::new(),
            in_flight: InFlight::new(),
            told_abandoned: 0,
        }
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

/// Where a probe goes, after all checks that need no memory.
pub(crate) struct Target<'a> {
    addr: u64,
    insn: &'a Insn,
    class: Class,
}

/// The function that was probed last, so that a batch decodes it once. Text does not change before a batch is all linked.
#[derive(Default)]
pub(crate) struct Function {
    start: u64,
    /// Its bytes as they are without probes.
    bytes: Vec<u8>,
    walk: BoundaryWalk,
}

impl<P: Platform> Default for Probes<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> Probes<P> {
    /// No probes; [`Probes::init`] makes it ready.
    pub const fn new() -> Self {
        Self {
            hits: Hits::new(),
            historic: Historic::new(),
            deferred: AtomicPtr::new(null_mut()),
            state: Mutex::new(None),
        }
    }

    /// Where the entries of the address table are, from the start of the registry.
    #[doc(hidden)]
    pub const fn table_offset() -> usize {
        offset_of!(Self, hits) + Hits::<P>::table_offset()
    }
}

impl<P: Host> Probes<P> {
    /// Makes the subsystem ready: heap, symbols and per-CPU data are there. Once, before the first registration, after
    /// [`Probes::init_table`]. `step` and `returns` serve the probes that do not ask for a method themselves. `optimize`: whether
    /// breakpoints become jumps where they can, as [`Probes::set_optimization`] says.
    pub fn init(&self, step: StepMethod, returns: ReturnMethod, optimize: bool) {
        insn::init();
        let entry = P::entry_points();
        self.entry.set(&entry);
        site::IDLE.chain.store(entry.routines.nothing, Relaxed);
        site::IDLE.stub.store(entry.any_hit, Relaxed);
        let mut state = self.state();
        state.cpus = (0..).take_while(|cpu| P::per_cpu(*cpu).is_some()).count();
        state.step = step;
        state.returns = returns;
        state.optimizer.on = optimize;
        state.ready = true;
    }

    /// Registers one probe and arms it, unless it is disabled. The `static` keeps it alive.
    ///
    /// # Errors
    /// [`ProbeError`]; nothing has changed then.
    pub fn register<T: Probe>(&self, probe: &'static T) -> Result<(), ProbeError> {
        // SAFETY: static, so it outlives every registration.
        unsafe { self.register_all(&[probe]) }
    }

    /// Registers several probes, in order, as one: if one is refused, those before it are taken back. Probes of different kinds are
    /// a batch of `&dyn Probe`.
    ///
    /// # Errors
    /// That of the first probe that is refused; [`ProbeError::EmptyBatch`].
    pub fn register_batch<T: Probe + ?Sized>(
        &self,
        probes: &[&'static T],
    ) -> Result<(), ProbeError> {
        if probes.is_empty() {
            return Err(ProbeError::EmptyBatch);
        }
        // SAFETY: static, so they outlive every registration.
        unsafe { self.register_all(probes) }
    }

    /// Registers a probe that the returned handle owns; dropping the handle unregisters it.
    ///
    /// # Errors
    /// [`ProbeError`]; the probe is dropped then.
    pub fn register_owned<O: Owner>(&self, owner: O) -> Result<Registered<P, O>, ProbeError> {
        let deferred = try_box(Deferred {
            next: AtomicPtr::new(null_mut()),
            owner: null_mut(),
            finish: finish::<P, O>,
        })?;
        let probe = O::into_raw(owner);
        // SAFETY: `into_raw` keeps the probe alive and in place until `from_raw`, which comes after its unregistration.
        match unsafe { self.register_all(&[&*probe]) } {
            Ok(()) => Ok(Registered {
                // SAFETY: `into_raw` gives no null.
                probe: unsafe { NonNull::new_unchecked(probe.cast_mut()) },
                deferred: Box::into_raw(deferred),
                _owner: PhantomData,
            }),
            Err(error) => {
                // SAFETY: not registered, so the only reference is this one.
                drop(unsafe { O::from_raw(probe) });
                Err(error)
            }
        }
    }

    /// Unregisters a probe: when this returns no handler of it runs or will. One that is not registered only loses its address.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn unregister<T: Probe>(&self, probe: &'static T) -> Result<(), ProbeError> {
        self.unregister_all(&[probe])
    }

    /// Unregisters several probes with one grace period.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn unregister_batch<T: Probe + ?Sized>(
        &self,
        probes: &[&'static T],
    ) -> Result<(), ProbeError> {
        self.unregister_all(probes)
    }

    /// Lets a disabled probe fire again. While the knob is off that takes effect when it is turned on.
    ///
    /// # Errors
    /// [`ProbeError::NotRegistered`], [`ProbeError::Gone`], [`ProbeError::AtomicContext`].
    pub fn enable<T: Probe>(&self, probe: &T) -> Result<(), ProbeError> {
        self.set_disabled(probe.kprobe(), false)
    }

    /// Keeps a probe from firing. A handler that runs already is not waited for.
    ///
    /// # Errors
    /// [`ProbeError::NotRegistered`], [`ProbeError::AtomicContext`].
    pub fn disable<T: Probe>(&self, probe: &T) -> Result<(), ProbeError> {
        self.set_disabled(probe.kprobe(), true)
    }

    /// The global knob.
    pub fn enabled(&self) -> bool {
        self.state().enabled
    }

    /// Turns the global knob: off takes every breakpoint out of the text, on puts those of enabled probes back. No
    /// probe's own state changes.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn set_enabled(&self, on: bool) -> Result<(), ProbeError> {
        let mut state = self.lock()?;
        if state.enabled == on {
            return Ok(());
        }
        state.enabled = on;
        self.table.iter().for_each(|site| {
            site.to_write.store(
                site.armed.load(Relaxed) != ((on || site.is_trampoline()) && site.wants_arming()),
                Relaxed,
            )
        });
        self.rewrite(&mut state, self.table.iter());
        P::log(format_args!(
            "kprobes globally {}",
            if on { "enabled" } else { "disabled" }
        ));
        self.log_missing_jumps(&state.optimizer, on);
        Ok(())
    }

    /// Visits every registered probe; those of one address newest first, a jprobe last. Task context, may sleep; the registry
    /// is locked meanwhile, so `visit` must not change it.
    pub fn for_each(&self, mut visit: impl FnMut(Listed<'_>)) {
        let _state = self.state();
        self.table.iter().for_each(|site| {
            site.probes()
                .filter(|probe| probe.kind != Kind::Trampoline)
                .for_each(|probe| visit(Listed::new(site, probe)));
        });
    }

    /// The bytes of `range`, part of one symbol, as they are without probes. Task context, may sleep.
    ///
    /// # Errors
    /// [`ProbeError::NoSymbolAt`] where there is no kernel text; [`ProbeError::OutOfMemory`].
    pub fn original_text(&self, range: Range<u64>) -> Result<Vec<u8>, ProbeError> {
        // Locked, so that no text is freed and no site disappears while it is read.
        let _state = self.state();
        let addr = range.start;
        match P::symbol_at(addr) {
            Some(symbol)
                if matches!(symbol.text, Text::Kernel | Text::Init)
                    && range.end <= symbol.start + symbol.size =>
            {
                self.pristine(range)
            }
            _ => Err(ProbeError::NoSymbolAt { addr }),
        }
    }

    /// How many slots the registered probes use.
    pub fn slots_in_use(&self) -> usize {
        self.state().slots.used()
    }

    /// Frees what calls in flight at an unregistration have left behind, as far as they have returned. Returns how many
    /// kretprobes still have calls in flight.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn reap(&self) -> Result<usize, ProbeError> {
        Ok(self.lock()?.in_flight.free_returned())
    }

    /// Tells of calls that were abandoned since this was last done: their frames matched no return. The
    /// hit that finds one out cannot print.
    fn log_abandoned_calls(&self, state: &mut State) {
        let all = self.stale_instances();
        let new = all - core::mem::replace(&mut state.told_abandoned, all);
        if new > 0 {
            P::log(format_args!(
                "kretprobe: {new} calls were left without a return, by a jump or an unwinding; \
                 their instances were given back"
            ));
        }
    }

    /// The text `range` is about to be unmapped for good: its probes are gone and it is never written again.
    pub fn text_freed(&self, range: Range<u64>) {
        let _state = self.state();
        self.table.iter().for_each(|site| {
            if range.contains(&site.addr()) {
                site.gone.store(true, Relaxed);
                site.armed.store(false, Relaxed);
                for probe in site.probes() {
                    probe.flags.fetch_or(flags::GONE, Relaxed);
                }
                site.choose_stubs(&P::entry_points());
            }
        });
    }

    /// A copy of `range`, part of a symbol, as it is without probes.
    ///
    /// # Errors
    /// [`ProbeError::OutOfMemory`].
    pub(crate) fn pristine(&self, range: Range<u64>) -> Result<Vec<u8>, ProbeError> {
        let start = range.start;
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact((range.end - range.start) as usize)
            .map_err(|_| ProbeError::OutOfMemory)?;
        bytes.extend(range.map(|at| self.pristine_byte(at)));
        self.undo_jumps(&mut bytes, start);
        Ok(bytes)
    }

    /// The byte of live text at `at` as it is without breakpoints.
    fn pristine_byte(&self, at: u64) -> u8 {
        // SAFETY: inside an executable symbol, so mapped and readable (clause 2 of `Platform`).
        match unsafe { (at as *const u8).read_volatile() } {
            INT3 => self
                .table
                .find(at + 1)
                .filter(|site| site.armed.load(Relaxed))
                .map_or(INT3, |site| site.opcode()),
            byte => byte,
        }
    }

    /// Takes the lock.
    pub(crate) fn state(&self) -> MappedMutexGuard<'_, P::RawMutex, State> {
        MutexGuard::map(self.state.lock(), |state| {
            &mut **state.get_or_insert_with(|| Box::new(State::new()))
        })
    }

    /// Takes the lock and does what others had to leave undone.
    pub(crate) fn lock(&self) -> Result<MappedMutexGuard<'_, P::RawMutex, State>, ProbeError> {
        if !P::can_sleep() {
            return Err(ProbeError::AtomicContext);
        }
        self.run_deferred();
        let mut state = self.state();
        state.in_flight.free_returned();
        Ok(state)
    }

    fn run_deferred(&self) {
        let mut at = self.deferred.swap(null_mut(), Acquire);
        while !at.is_null() {
            // SAFETY: a handle that was dropped has left its node to us.
            let node = unsafe { Box::from_raw(at) };
            at = node.next.load(Relaxed);
            // SAFETY: the node's handle is gone, and nobody else finishes it.
            unsafe { (node.finish)(node.owner) };
        }
    }

    /// # Safety
    /// The probes stay alive and in place until they are unregistered.
    unsafe fn register_all<T: Probe + ?Sized>(&self, probes: &[&T]) -> Result<(), ProbeError> {
        let mut state = self.lock()?;
        if !state.ready {
            return Err(ProbeError::NotReady);
        }
        let mut touched = Touched::new();
        let mut function = Function::default();
        let entry = P::entry_points();
        let breakpoints =
            state.optimizer.on && probes.iter().any(|probe| needs_breakpoint(probe.kprobe()));
        if breakpoints {
            self.prepare_breakpoints(&mut state, probes);
        }
        let linked = probes.iter().enumerate().try_for_each(|(index, probe)| {
            self.link(&mut state, &entry, *probe, &mut touched, &mut function)
                .map_err(|error| (index, error))
        });
        if breakpoints {
            self.existing_sites(probes, |site| site.keeps_breakpoint.store(false, Relaxed));
        }
        if let Err((index, error)) = linked {
            touched.clear();
            if index > 0 {
                self.remove(&mut state, &probes[..index], Removal::Rollback);
            }
            let enabled = state.enabled;
            self.optimize(&mut state.optimizer, enabled, &|visit| {
                self.existing_sites(probes, visit)
            });
            return Err(error);
        }
        for site in touched.iter() {
            let arm = state.enabled && site.wants_arming() && !site.armed.load(Relaxed);
            site.to_write.store(arm, Relaxed);
        }
        self.rewrite(&mut state, touched.iter());
        touched.clear();
        Ok(())
    }

    /// Before probes with post handlers and jprobes are linked: their sites become breakpoints again, and stay so.
    fn prepare_breakpoints<T: Probe + ?Sized>(&self, state: &mut State, probes: &[&T]) {
        self.existing_sites(probes, |site| site.keeps_breakpoint.store(true, Relaxed));
        let enabled = state.enabled;
        self.deoptimize(&mut state.optimizer, enabled, &|visit| {
            self.existing_sites(probes, visit)
        });
    }

    /// Visits the sites that exist already where those of `probes` go that need the breakpoint, as far as that can be told.
    fn existing_sites<T: Probe + ?Sized>(&self, probes: &[&T], mut visit: impl FnMut(&Site)) {
        for kprobe in probes.iter().map(|probe| probe.kprobe()) {
            if !needs_breakpoint(kprobe) {
                continue;
            }
            // SAFETY: a registered probe's site lives while the lock is held.
            let own = unsafe { kprobe.site.load(Relaxed).as_ref() };
            let site = own.or_else(|| self.table.find(self.resolve(kprobe).ok()?.0 + 1));
            site.into_iter().for_each(&mut visit);
        }
    }

    /// Brings the text of `sites`, some marked `to_write`, into the state that is wanted: jumps that must go become
    /// breakpoints, breakpoints come and go, and become jumps where they may.
    fn rewrite<'a>(&self, state: &mut State, sites: impl Iterator<Item = &'a Site> + Clone) {
        let enabled = state.enabled;
        let visit_all: Visit<'_> = &|visit| sites.clone().for_each(visit);
        self.deoptimize(&mut state.optimizer, enabled, visit_all);
        let coming = self.make_detours(&mut state.optimizer, enabled, visit_all);
        self.write_text(sites.clone());
        self.install_jumps(coming);
        self.free_detours_after_grace(&mut state.optimizer);
    }

    /// Checks one probe and links it to its site, without writing text.
    fn link<T: Probe + ?Sized>(
        &self,
        state: &mut State,
        entry: &EntryPoints,
        probe: &T,
        touched: &mut Touched,
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
        let existing = self.table.find(addr + 1).map(NonNull::from);
        let fresh = match existing {
            Some(_) => None,
            None => {
                let target = self.target(addr, &symbol, function)?;
                Some(self.make_site(state, &target, kprobe.step.unwrap_or(state.step))?)
            }
        };
        let Some(place) = existing.or(fresh) else {
            return Err(ProbeError::OutOfMemory);
        };
        // SAFETY: sites in the table live while the lock is held; the fresh one is ours until the table has it.
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
        kprobe.hits.start(counter);
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
        touched.add(site);
        Ok(())
    }

    /// Where `kprobe` goes and the symbol there, or why it may not.
    fn resolve(&self, kprobe: &Kprobe) -> Result<(u64, Symbol), ProbeError> {
        let given = kprobe.given.load(Relaxed);
        if kprobe.is_registered() {
            let addr = kprobe.addr();
            if !kprobe.told_of_double.swap(true, Relaxed) {
                P::log(format_args!(
                    "kprobes: the probe at {addr:#x} is being registered a second time"
                ));
            }
            return Err(ProbeError::AlreadyRegistered { addr });
        }
        let base = match (&kprobe.symbol_name, given) {
            (Some(_), 1..) => return Err(ProbeError::SymbolAndAddress),
            (None, 0) => return Err(ProbeError::NoTarget),
            (Some(name), 0) => P::lookup_symbol(name)?,
            (None, addr) => addr,
        };
        let mut addr = base.wrapping_add(u64::from(kprobe.offset));
        let symbol = P::symbol_at(addr).ok_or_else(|| Self::no_symbol_at(kprobe, base, addr))?;
        if symbol.text == Text::No {
            return Err(ProbeError::NotText { addr });
        }
        if let Some(reason) = P::blacklisted(addr) {
            return Err(ProbeError::Blacklisted { addr, reason });
        }
        if symbol.text == Text::Freed {
            return Err(ProbeError::NoSymbolAt { addr });
        }
        // The landing pad of indirect branches must stay: the entry of such a function is behind it.
        if addr == symbol.start {
            addr = self.entry_of(&symbol);
        }
        Ok((addr, symbol))
    }

    /// Why `kprobe` has no place: there is no symbol at `addr`, which its offset makes of `base`.
    fn no_symbol_at(kprobe: &Kprobe, base: u64, addr: u64) -> ProbeError {
        let (Some(given), Some(symbol)) = (&kprobe.symbol_name, P::symbol_at(base)) else {
            return ProbeError::NoSymbolAt { addr };
        };
        let mut name = String::new();
        if name.try_reserve(given.len()).is_ok() {
            name.push_str(given);
        }
        ProbeError::OffsetTooLarge {
            name,
            size: symbol.size,
            offset: kprobe.offset,
        }
    }

    /// Where a probe of the function's entry goes.
    fn entry_of(&self, symbol: &Symbol) -> u64 {
        let mut pad = [0; 4];
        let len = symbol.size.min(4) as usize;
        for (byte, at) in pad[..len].iter_mut().zip(symbol.start..) {
            *byte = self.pristine_byte(at);
        }
        self.undo_jumps(&mut pad[..len], symbol.start);
        symbol.start + landing_pad_len(&pad[..len]) as u64
    }

    /// Whether a function of the kernel begins at `addr`.
    fn is_function(addr: u64) -> bool {
        P::symbol_at(addr).is_some_and(|symbol| {
            symbol.start == addr && matches!(symbol.text, Text::Kernel | Text::Init)
        })
    }

    /// What jprobes and kretprobes ask for beyond a kprobe.
    fn check_container<T: Probe + ?Sized>(
        &self,
        state: &State,
        probe: &T,
        addr: u64,
        symbol: &Symbol,
    ) -> Result<(), ProbeError> {
        let container = probe.container();
        if matches!(container, Container::None) {
            return Ok(());
        }
        let entry = self.entry_of(symbol);
        if addr != entry {
            return Err(ProbeError::NotFunctionEntry { addr, entry });
        }
        match container {
            Container::None => Ok(()),
            Container::Jprobe(jprobe) if jprobe.entry.is_none() => Err(ProbeError::NoHandler),
            Container::Jprobe(jprobe) if !Self::is_function(jprobe.entry_addr()) => {
                Err(ProbeError::HandlerNotFunction {
                    handler: jprobe.entry_addr(),
                })
            }
            Container::Jprobe(_) if !symbol.exported => Err(ProbeError::NotExternC { addr }),
            Container::Jprobe(_) => match self.table.find(addr + 1) {
                Some(site) if site.probes().any(|other| other.kind == Kind::Jprobe) => {
                    Err(ProbeError::SecondJprobe { addr })
                }
                _ => Ok(()),
            },
            Container::Kretprobe(core) => {
                if let Some(reason) = P::return_blacklisted(addr) {
                    return Err(ProbeError::ReturnBlacklisted { addr, reason });
                }
                let method = core.method.unwrap_or(state.returns);
                let trampoline = self.trampoline_of(method);
                if let Some(site) = self.table.find(addr + 1)
                    && site
                        .probes()
                        .filter_map(KretprobeCore::of)
                        .any(|other| other.trampoline.load(Relaxed) != trampoline)
                {
                    return Err(ProbeError::MixedReturnMethods { addr });
                }
                match core.data.size() {
                    bytes @ MAX_INSTANCE_DATA.. if bytes > MAX_INSTANCE_DATA => {
                        Err(ProbeError::DataTooLarge { bytes })
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// The instruction at `addr`, if it may be probed.
    pub(crate) fn target<'a>(
        &self,
        addr: u64,
        symbol: &Symbol,
        function: &'a mut Function,
    ) -> Result<Target<'a>, ProbeError> {
        let end = symbol.start + symbol.size;
        if function.start != symbol.start || function.bytes.len() as u64 != symbol.size {
            *function = Function {
                start: symbol.start,
                bytes: self.pristine(symbol.start..end)?,
                walk: BoundaryWalk::new(),
            };
        }
        let Function { start, bytes, walk } = function;
        walk.find(bytes, *start, addr)
            .map_err(|error| match error {
                BoundaryError::MidInstruction { at, start } => {
                    ProbeError::MidInstruction { addr: at, start }
                }
                BoundaryError::Undecodable { at, cause } => {
                    ProbeError::Undecodable { addr: at, cause }
                }
                // A function that ends with its landing pad has no instruction behind it.
                BoundaryError::Outside { at, .. } => ProbeError::Undecodable {
                    addr: at,
                    cause: DecodeError::Truncated { ip: at },
                },
            })?;
        let (insn, following) = walk
            .found(bytes, *start)
            .ok_or(ProbeError::NotText { addr })?;
        let class = insn::classify(insn, following)
            .map_err(|refusal| ProbeError::Instruction { addr, refusal })?;
        Ok(Target { addr, insn, class })
    }

    /// Judges an instruction by itself, as a registration would: whether it can be executed elsewhere. `following` is the
    /// instruction behind it, if there is one. Changes nothing. Task context.
    ///
    /// # Errors
    /// [`ProbeError::Instruction`].
    pub fn judge(&self, insn: &Insn, following: Option<&Insn>) -> Result<(), ProbeError> {
        let addr = insn.ip();
        let refused = |refusal| ProbeError::Instruction { addr, refusal };
        insn::classify(insn, following).map_err(refused)?;
        // Slots differ in nothing but their addresses, all of which are within reach or none.
        let slot = P::slots().start;
        for ending in [Ending::Resume, Self::post_ending()] {
            Self::fitting(&translate(insn, slot, ending)).map_err(refused)?;
        }
        Ok(())
    }

    /// A site with its slots filled, not published yet.
    pub(crate) fn make_site(
        &self,
        state: &mut State,
        target: &Target<'_>,
        step: StepMethod,
    ) -> Result<NonNull<Site>, ProbeError> {
        let addr = target.addr;
        let refused = |refusal| ProbeError::Instruction { addr, refusal };
        self.table
            .reserve(&mut state.fill, 1, P::synchronize_hits)?;
        let mut place = state.sites.take(Site::sentinel(addr + 1))?;
        // SAFETY: just taken, and ours alone until it is published.
        let site = unsafe { place.as_mut() };
        let len = target.insn.len();
        site.bytes[..len].copy_from_slice(target.insn.bytes());
        // At most 15.
        site.len = len as u8;
        if let Some(register) = target.insn.pushed_register() {
            // At most 168.
            site.pushed = REGISTER_OFFSETS[register] as i16;
        }
        site.emulated = match target.class {
            Class::Flags(FlagsOp::Push(_)) => None,
            Class::Flags(op) => Some(Emulated::Flags(op)),
            Class::Return => Some(Emulated::Return(target.insn.discarded_arguments())),
            _ => None,
        };
        let filled = (|| {
            site.slot = self.slots.take(&mut state.slots)?;
            site.run.store(site.slot, Relaxed);
            let translation = translate(target.insn, site.slot, Ending::Resume);
            let code = Self::fitting(&translation).map_err(refused)?;
            site.slot_positions = Positions::of(code).ok_or(ProbeError::OutOfMemory)?;
            self.slots.write(site.slot, site, code.code());
            // A step that ends on another CPU's data would not end: a slot needs none.
            if step == StepMethod::TrapFlag && !target.insn.writes_msr() {
                let slot = self.slots.take(&mut state.slots)?;
                let copy = step_copy(target.insn, slot).map_err(refused);
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
        })();
        match filled {
            Ok(()) => Ok(place),
            Err(error) => {
                // SAFETY: taken above and not published.
                unsafe { self.free_site(state, place) };
                Err(error)
            }
        }
    }

    /// How the replacement of an instruction ends where a post handler waits.
    fn post_ending() -> Ending {
        Ending::Post {
            stub: P::entry_points().post_stub,
            saved_flags: Some(SavedFlagsOperand {
                gs_offset: PerCpu::saved_flags_gs_offset::<P>(),
            }),
        }
    }

    /// The replacement, if it fits into a slot. With prefixes, and an address in a literal, it may
    /// not. By reference, because a replacement is large and each move of it is a copy.
    fn fitting(
        translation: &Result<insn::Translation, Refusal>,
    ) -> Result<&insn::Translation, Refusal> {
        match translation {
            Ok(code) if code.code().len() <= P::SLOT_BYTES => Ok(code),
            Ok(_) => Err(Refusal::NoRoom),
            Err(refusal) => Err(*refusal),
        }
    }

    /// Takes the memory that a probe needs on its site: a counter, instances, a post slot. Returns the first two.
    fn prepare<T: Probe + ?Sized>(
        &self,
        state: &mut State,
        probe: &T,
        site: &Site,
    ) -> Result<(*mut Holder, NonNull<AtomicU64>), ProbeError> {
        let counter = state.counters.take(state.cpus)?;
        let holder = match probe.container() {
            Container::Kretprobe(core) => Self::make_holder(state, core),
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

    fn make_holder(state: &mut State, core: &KretprobeCore) -> Result<*mut Holder, ProbeError> {
        // Returns count there once their kretprobe is gone.
        let retired = &RETIRED.kprobe.hits;
        if !retired.is_counting() {
            retired.start(state.counters.take(state.cpus)?);
        }
        Holder::try_new(
            core,
            current_task::<P>,
            maxactive(state.cpus, core) as usize,
            core.data,
        )
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
                // Hits can enter the new code as soon as it is stored: nobody may have fetched what was there before.
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
        let translation = translate(insn, slot, Self::post_ending());
        let code = Self::fitting(&translation).map_err(refused)?;
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
    unsafe fn free_site(&self, state: &mut State, place: NonNull<Site>) {
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

    fn unregister_all<T: Probe + ?Sized>(&self, probes: &[&T]) -> Result<(), ProbeError> {
        let mut state = self.lock()?;
        self.remove(&mut state, probes, Removal::Unregister);
        Ok(())
    }

    /// Takes probes away; waits once. Cannot fail and allocates nothing.
    fn remove<T: Probe + ?Sized>(&self, state: &mut State, probes: &[&T], removal: Removal) {
        let mut touched = Touched::new();
        let entry = P::entry_points();
        for kprobe in probes.iter().map(|probe| probe.kprobe()) {
            // SAFETY: a registered probe's site lives while the lock is held.
            let Some(site) = (unsafe { kprobe.site.load(Relaxed).as_ref() }) else {
                kprobe.set_addr(0);
                continue;
            };
            site.unlink(kprobe, &entry);
            touched.add(site);
        }
        if touched.is_empty() {
            return;
        }
        for site in touched.iter() {
            site.to_write
                .store(site.armed.load(Relaxed) && !site.wants_arming(), Relaxed);
            if !site.has_post() {
                site.emulate.store(false, Relaxed);
                let unused = site.post_slot.swap(0, Relaxed);
                if unused != 0 {
                    site.retired_post_slot.store(unused, Relaxed);
                }
            }
        }
        for core in probes
            .iter()
            .filter_map(|probe| registered_kretprobe(*probe))
        {
            // SAFETY: a registered kretprobe has a live holder.
            unsafe { (*core.holder.load(Relaxed)).retire() };
        }
        let enabled = state.enabled;
        let visit_touched: Visit<'_> = &|visit| touched.iter().for_each(visit);
        self.deoptimize(&mut state.optimizer, enabled, visit_touched);
        self.write_text(touched.iter());
        for site in touched.iter().filter(|site| site.is_empty()) {
            self.table.remove(&mut state.fill, site);
        }
        P::synchronize_hits();
        self.log_abandoned_calls(state);
        self.free_detours(&mut state.optimizer);
        for probe in probes {
            if let Some(core) = registered_kretprobe(*probe) {
                let holder = core.holder.swap(null_mut(), Relaxed);
                // SAFETY: taken from its kretprobe, cleared above, and the grace period is over.
                unsafe { state.in_flight.push(holder) };
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
        self.optimize(&mut state.optimizer, enabled, &|visit| {
            touched.iter().for_each(visit)
        });
        state.in_flight.free_returned();
        touched.drain(|site| {
            // SAFETY: registered sites are live.
            let this = unsafe { site.as_ref() };
            if this.is_empty() {
                // SAFETY: out of the table since before the grace period, and handed out once by the list.
                unsafe { self.free_site(state, site) };
            } else {
                let slot = this.retired_post_slot.swap(0, Relaxed);
                if slot != 0 {
                    self.slots.free(&mut state.slots, slot);
                }
            }
        });
    }

    fn set_disabled(&self, kprobe: &Kprobe, disabled: bool) -> Result<(), ProbeError> {
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
        self.rewrite(&mut state, once(site));
        Ok(())
    }

    /// Flips the breakpoints of those among `sites` that are marked `to_write`. Returns when every CPU sees the new text.
    pub(crate) fn write_text<'a>(&self, mut sites: impl Iterator<Item = &'a Site> + Clone) {
        while sites.clone().next().is_some() {
            self.write_some_text(sites.clone().take(WRITTEN_AT_ONCE));
            sites.nth(WRITTEN_AT_ONCE - 1);
        }
    }

    /// The same for [`WRITTEN_AT_ONCE`] sites at the most.
    fn write_some_text<'a>(&self, sites: impl Iterator<Item = &'a Site> + Clone) {
        for _round in 0..2 {
            let mut any = false;
            for site in sites.clone() {
                if !site.to_write.load(Relaxed) || site.gone.load(Relaxed) {
                    continue;
                }
                any = true;
                let byte = if site.armed.load(Relaxed) {
                    site.opcode()
                } else {
                    INT3
                };
                // SAFETY: live text (not gone), the first byte of an instruction, under the lock.
                unsafe { P::write_text(site.addr(), byte) };
            }
            if !any {
                return;
            }
            P::synchronize_cores();
        }
        for site in sites {
            if site.to_write.swap(false, Relaxed) && !site.gone.load(Relaxed) {
                site.armed.store(!site.armed.load(Relaxed), Relaxed);
            }
        }
    }
}

/// The task that runs on this CPU, as the kernel numbers tasks for the probes; 0: one that could get no cell. The CPU cannot change
/// meanwhile.
fn current_task<P: Platform>() -> u64 {
    P::this_cpu().cell().map_or(0, TaskCell::task)
}

/// How many calls of a kretprobe can be followed at once, with so many CPUs.
fn maxactive(cpus: usize, core: &KretprobeCore) -> i32 {
    match core.maxactive.load(Relaxed) {
        ..=0 => (2 * cpus as i32).max(10),
        given => given,
    }
}

fn registered_kretprobe<T: Probe + ?Sized>(probe: &T) -> Option<&KretprobeCore> {
    match probe.container() {
        Container::Kretprobe(core) if probe.kprobe().is_registered() => Some(core),
        _ => None,
    }
}

/// The sites of the operation under way: a list through the sites themselves, so that it needs no memory.
struct Touched {
    first: *const Site,
}

impl Touched {
    const fn new() -> Self {
        Self {
            first: core::ptr::null(),
        }
    }

    fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds a site once.
    fn add(&mut self, site: &Site) {
        if site.touched.load(Relaxed).is_null() {
            let next = if self.first.is_null() {
                core::ptr::from_ref(site)
            } else {
                self.first
            };
            site.touched.store(next.cast_mut(), Relaxed);
            self.first = site;
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Site> + Clone {
        let mut at = self.first;
        core::iter::from_fn(move || {
            // SAFETY: sites in the list live until the operation that made it drains or clears it.
            let site = unsafe { at.as_ref() }?;
            let next = site.touched.load(Relaxed).cast_const();
            at = if core::ptr::eq(next, site) {
                core::ptr::null()
            } else {
                next
            };
            Some(site)
        })
    }

    /// Empties the list, handing each site out once; it may be freed then.
    fn drain(&mut self, mut visit: impl FnMut(NonNull<Site>)) {
        let mut at = core::mem::replace(&mut self.first, core::ptr::null());
        // SAFETY: as in `iter`; the link is read before the site is handed out.
        while let Some(site) = unsafe { at.as_ref() } {
            let this = NonNull::from(site);
            let next = site.touched.swap(null_mut(), Relaxed).cast_const();
            at = if core::ptr::eq(next, site) {
                core::ptr::null()
            } else {
                next
            };
            visit(this);
        }
    }

    fn clear(&mut self) {
        self.drain(|_| {});
    }
}

/// What can own a registered probe: it keeps the probe alive and in place.
///
/// # Safety
/// What `into_raw` returns stays valid for shared use until it is given to `from_raw`.
pub unsafe trait Owner {
    /// The probe.
    type Probe: Probe;
    /// Gives up the value, keeping the probe alive.
    fn into_raw(self) -> *const Self::Probe;
    /// Takes the value back.
    ///
    /// # Safety
    /// Once for each pointer from `into_raw`.
    unsafe fn from_raw(probe: *const Self::Probe) -> Self;
}

// SAFETY: a box's content neither moves nor dies while it is a raw pointer.
unsafe impl<T: Probe> Owner for Box<T> {
    type Probe = T;
    fn into_raw(self) -> *const T {
        Box::into_raw(self)
    }
    unsafe fn from_raw(probe: *const T) -> Self {
        // SAFETY: by the contract.
        unsafe { Box::from_raw(probe.cast_mut()) }
    }
}

// SAFETY: the count that the raw pointer stands for keeps the content alive, and it never moves.
unsafe impl<T: Probe> Owner for Arc<T> {
    type Probe = T;
    fn into_raw(self) -> *const T {
        Arc::into_raw(self)
    }
    unsafe fn from_raw(probe: *const T) -> Self {
        // SAFETY: by the contract.
        unsafe { Arc::from_raw(probe) }
    }
}

/// A registered probe that this handle owns. Dropping it unregisters; where that may not wait (in a handler, with
/// interrupts off) the probe is disabled at once and unregistered by the next call that may. Forgetting it
/// leaves the probe registered for ever.
pub struct Registered<P: Host, O: Owner> {
    probe: NonNull<O::Probe>,
    /// Memory for the deferred case, taken while that can fail.
    deferred: *mut Deferred,
    _owner: PhantomData<(O, fn() -> P)>,
}

// SAFETY: the probe is `Sync` and the handle is its owner.
unsafe impl<P: Host, O: Owner + Send> Send for Registered<P, O> {}
// SAFETY: a shared handle gives shared access to the probe only.
unsafe impl<P: Host, O: Owner + Sync> Sync for Registered<P, O> {}

/// A handle that was dropped in an atomic context.
struct Deferred {
    next: AtomicPtr<Deferred>,
    owner: *mut (),
    finish: unsafe fn(*mut ()),
}

impl<P: Host, O: Owner> Deref for Registered<P, O> {
    type Target = O::Probe;
    fn deref(&self) -> &O::Probe {
        // SAFETY: alive until the handle is dropped.
        unsafe { self.probe.as_ref() }
    }
}

impl<P: Host, O: Owner> fmt::Debug for Registered<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:#x})", self.kprobe().addr())
    }
}

impl<P: Host, O: Owner> Drop for Registered<P, O> {
    fn drop(&mut self) {
        let probe: *mut O::Probe = self.probe.as_ptr();
        if P::can_sleep() {
            // SAFETY: made by `Box::into_raw`, and this handle is its only user.
            drop(unsafe { Box::from_raw(self.deferred) });
            // SAFETY: the handle is gone.
            unsafe { finish::<P, O>(probe.cast()) };
            return;
        }
        let kprobe = self.kprobe();
        kprobe.flags.fetch_or(flags::DISABLED, SeqCst);
        fence(SeqCst);
        kprobe.silence(&P::entry_points());
        let deferred = &P::probes().deferred;
        // SAFETY: as above; from the exchange on the node belongs to the list.
        unsafe { (*self.deferred).owner = probe.cast() };
        let mut head = deferred.load(Relaxed);
        loop {
            // SAFETY: still ours.
            unsafe { (*self.deferred).next.store(head, Relaxed) };
            match deferred.compare_exchange_weak(head, self.deferred, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Unregisters the probe of a handle that is gone, and drops its owner.
///
/// # Safety
/// `probe` is the probe of such a handle, once, and the caller may sleep.
unsafe fn finish<P: Host, O: Owner>(probe: *mut ()) {
    let probe: *const O::Probe = probe.cast_const().cast();
    // SAFETY: alive until `from_raw` below.
    let removed = P::probes().unregister_all(&[unsafe { &*probe }]);
    if removed.is_ok() {
        // SAFETY: nobody reaches it any more, and the handle is gone.
        drop(unsafe { O::from_raw(probe) });
    }
}

/// A box, or an error where `Box::new` would end the kernel.
pub(crate) fn try_box<T>(value: T) -> Result<Box<T>, ProbeError> {
    let layout = Layout::new::<T>();
    debug_assert!(layout.size() != 0);
    // SAFETY: the layout is not empty.
    let memory: *mut T = unsafe { alloc(layout) }.cast();
    if memory.is_null() {
        return Err(ProbeError::OutOfMemory);
    }
    // SAFETY: fresh memory of the right layout, from the global allocator that `Box` gives it back to.
    unsafe {
        memory.write(value);
        Ok(Box::from_raw(memory))
    }
}
