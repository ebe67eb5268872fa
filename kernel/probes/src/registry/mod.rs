//! Registering, arming, disarming and removing probes.
//!
//! One [`Probes`] serves a kernel. Everything that changes it runs in task context under one
//! sleeping lock. So writers need no care for each other, only for the hits that go on meanwhile on
//! every CPU.
//!
//! ```text
//!   register    check all ─► make or join the site ─► publish in the table
//!               ─► write int3, sync, write, sync
//!   unregister  unlink ─► restore the byte, sync, restore, sync ─► unpublish
//!               ─► grace period ─► free
//! ```
//!
//! # Invariants
//! REGISTRY-1. A site is in the address table before its breakpoint is in the text, and until after
//!     it has left it.
//! REGISTRY-2. Whatever a hit can reach (site, slot, probe, table, instance) is freed only after a
//!     grace period since it was taken out of reach.
//! REGISTRY-3. A call that fails has left text, lists and the caller's probes as they were.
//! REGISTRY-4. The first byte of an instruction is written in two rounds with a synchronisation
//!     after each. An emulator may keep a translation of the old byte that it made while the first
//!     store was on its way. It is gone after the second round. A processor needs the first round
//!     only. Bytes after a breakpoint need one round, because no translation of them is made. Where
//!     a breakpoint has replaced a jump, theirs is the second round of the breakpoint, because a
//!     translation of the jump covers these bytes, too.
//! REGISTRY-5. A batch pays once for its grace period. It pays for these rounds once for each 4,096
//!     of its sites.
//!
//! # Contexts
//! All calls may sleep, except those that say otherwise. From an atomic context they are refused.

use alloc::boxed::Box;
use core::{ops::Range, sync::atomic::Ordering::Relaxed};

#[cfg(feature = "jumps")]
mod displaceable;
#[cfg_attr(not(feature = "historic"), path = "no_historic.rs")]
pub(crate) mod historic;
mod in_flight;
mod list;
mod memory;
mod operation;
#[cfg_attr(not(feature = "jumps"), path = "no_jumps.rs")]
pub mod optimize;
#[cfg_attr(not(feature = "jumps"), path = "no_optimizer.rs")]
mod optimizer;
mod owned;
mod pool;
mod replacement;
mod sites;
mod slots;
mod state;
mod target;
#[cfg(feature = "jumps")]
mod templates;
mod text;
#[cfg_attr(not(feature = "watchpoints"), path = "no_watches.rs")]
mod watches;

pub use owned::{Owner, Registered};
pub use state::{Host, Probes};
use state::{State, counter_origin};
#[cfg(feature = "watchpoints")]
pub use watches::{RegisteredWatchpoint, Watchpoints};

pub use crate::data::{
    method::{ReturnMethod, StepMethod},
    probe::{Container, Probe},
};
use crate::{
    code::{self, Code},
    data::{
        kprobe::{Kprobe, ProbeKind, flags},
        kretprobe::KretprobeCore,
        site::{self, Site},
    },
    error::ProbeError,
    insn,
};

/// A registered probe, as lists show it.
#[derive(Clone, Copy)]
pub struct Listed<'a> {
    /// The probe; that of a jprobe or kretprobe is the kprobe at its function's entry.
    pub probe: &'a Kprobe,
    /// How often its handlers ran since registration: of a kretprobe the return handler.
    pub hits: u64,
    /// How often they should have run and did not: the CPU was in another hit, or a kretprobe had
    /// no free instance.
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

/// Makes the probes of a kernel ready as most kernels want them, with `code` to answer what they
/// ask about code: displaced instructions are translated, returns are followed without a trap, and
/// breakpoints become jumps. It is [`Probes::init`], with the same conditions; `take_gates` of
/// [`kernel!`](crate::kernel!) has made the table.
pub fn start<P: Host>(code: impl Code + 'static) {
    code::make_known(Box::new(code));
    P::probes().init(StepMethod::Translate, ReturnMethod::Asm, true);
}

impl<P: Host> Probes<P> {
    /// Makes the subsystem ready. Heap, symbols and per-CPU data are there, and
    /// [`Hits::init_table`](crate::hit::Hits::init_table) was called. Once, before the first
    /// registration. `step` and `returns` serve the probes that do not ask for a method themselves.
    /// `optimize`: whether breakpoints become jumps where they can, as [`Probes::set_optimization`]
    /// says.
    pub fn init(&self, step: StepMethod, returns: ReturnMethod, optimize: bool) {
        insn::init();
        let entry = P::entry_points();
        self.entry.set(&entry);
        site::IDLE.chain.store(entry.routines.nothing, Relaxed);
        site::IDLE.stub.store(entry.any_hit, Relaxed);
        let slots = P::slots();
        self.watches.slots[0].store(slots.start, Relaxed);
        self.watches.slots[1].store(slots.end - slots.start, Relaxed);
        let mut state = self.state();
        state.cpus = (0..).take_while(|cpu| P::per_cpu(*cpu).is_some()).count();
        state.counter_origin = counter_origin::<P>(state.cpus);
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

    /// Registers several probes, in order, as one: if one is refused, those before it are taken
    /// back. Probes of different kinds are a batch of `&dyn Probe`.
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

    /// Unregisters a probe: when this returns no handler of it runs or will. One that is not
    /// registered only loses its address.
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

    /// Lets a disabled probe fire again. While the knob is off, it fires once the knob is turned
    /// on.
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

    /// Turns the global knob. Off takes every breakpoint out of the text, on puts those of enabled
    /// probes back. Watchpoints are out of action while it is off. No probe's own state changes.
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
        watches::Watchpoints::of(self).apply(&state);
        P::log(format_args!(
            "kprobes globally {}",
            if on { "enabled" } else { "disabled" }
        ));
        self.log_missing_jumps(&state.optimizer, on);
        Ok(())
    }

    /// Visits every registered probe. Those of one address come newest first, a jprobe last. Task
    /// context, may sleep. The registry is locked meanwhile, so `visit` must not change it.
    pub fn for_each(&self, mut visit: impl FnMut(Listed<'_>)) {
        let _state = self.state();
        self.table.iter().for_each(|site| {
            site.probes()
                .filter(|probe| probe.kind != ProbeKind::Trampoline)
                .for_each(|probe| visit(Listed::new(site, probe)));
        });
    }

    /// How many slots the registered probes use.
    pub fn slots_in_use(&self) -> usize {
        self.state().slots.used()
    }

    /// Frees the instances of kretprobes that were unregistered while calls were in flight, as far
    /// as those calls have returned. Returns how many of these kretprobes still have calls in
    /// flight.
    ///
    /// # Errors
    /// [`ProbeError::AtomicContext`].
    pub fn reap(&self) -> Result<usize, ProbeError> {
        Ok(self.lock()?.in_flight.free_returned())
    }

    /// Tells of calls that were abandoned since this was last done: their frames matched no return.
    /// The hit that finds one out cannot print.
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

    /// The text `range` is about to be unmapped for good: its probes are gone and it is never
    /// written again.
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
}
