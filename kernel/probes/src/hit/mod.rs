//! The way of one hit, from the trap to the displaced instruction and back.
//!
//! ```text
//!   #BP ─ on_breakpoint ─ find the site ─ guard held already? ── yes ─► count the miss ─► slot ─► back
//!                                   │ no
//!                         take the guard, run pre handlers (a jprobe last: leaves to its handler,
//!                                   │                       comes back through its return breakpoint)
//!                         post handler here? ── no ── drop the guard ─► slot ─► back, as if nothing had been
//!                                   │ yes: drop the guard, note the site, interrupts off
//!                         post slot ─► kprobe_post_stub ─ take the guard, post handlers, drop it ─► back
//! ```
//!
//! This is the whole of it, for any probe; [`asm`](crate::asm) does the usual in assembly. What #DB has
//! to do with it, [`debug_trap`](crate::hit::debug_trap) says.
//!
//! # Invariants
//! H1. Nothing here locks, allocates, formats (but for the last words of a broken machine) or can fail.
//! H2. The guard of [`PerCpu`] is held while any handler runs. Whoever finds it held runs the plain slot, which needs
//!     no state of this CPU: hits nest to any depth.
//! H4. The guard is free while the displaced instruction runs, also where a post handler waits for it: the instruction may read the
//!     guard, as each check for a handler does, and reads what it would without a probe. Meanwhile interrupts are off, and the rest of
//!     the hit is noted in [`PerCpu`]. What comes all the same, an NMI, first puts that note aside ([`Hits::aside`]).
//! H3. Everything up to a handler and back from it is blacklisted, so no hit is needed to reach a handler.
//!
//! # Contexts
//! `on_breakpoint` and `on_fault` run with interrupts off. `on_return` runs with the interrupt flag of the function
//! that returned; the trampoline takes the guard, so that its CPU does not switch tasks.

mod breakpoint;
pub(crate) mod calls;
mod debug_trap;
mod faults;
mod jprobes;
mod lookup;
pub(crate) mod slots;

use core::{
    marker::PhantomData,
    mem::offset_of,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

pub use breakpoint::{Flow, IN_POST};
pub use lookup::Displaced;

use crate::{
    data::{
        address_table::AddressTable, detour::Detour, entry_points::EntryPoints,
        instance::TaskTable, site::Site,
    },
    hit::slots::SlotPool,
    platform::Platform,
};

/// What hits read, and what is asked about them: the half of [`Probes`](crate::Probes) that needs no lock.
#[repr(C)]
pub struct Hits<P> {
    pub(crate) table: AddressTable,
    pub(crate) slots: SlotPool<P, Site>,
    pub(crate) detours: SlotPool<P, Detour>,
    /// Detours that sites point to: 0 lets most questions about them be answered at once.
    pub(crate) detour_count: AtomicUsize,
    pub(crate) tasks: TaskTable,
    pub(crate) entry: EntryAddresses,
    /// Instances of calls that never returned, found when a frame above them did.
    pub(crate) stale_instances: AtomicU64,
    _platform: PhantomData<fn() -> P>,
}

/// The addresses that a hit compares with.
pub(crate) struct EntryAddresses {
    pub(crate) trampoline: AtomicU64,
    pub(crate) historic_trampolines: [AtomicU64; 2],
    pub(crate) jprobe_return: AtomicU64,
    pub(crate) post_stub: AtomicU64,
}

impl EntryAddresses {
    const fn new() -> Self {
        Self {
            trampoline: AtomicU64::new(0),
            historic_trampolines: [const { AtomicU64::new(0) }; 2],
            jprobe_return: AtomicU64::new(0),
            post_stub: AtomicU64::new(0),
        }
    }

    /// Notes them.
    pub(crate) fn set(&self, entry: &EntryPoints) {
        self.trampoline.store(entry.trampoline, Relaxed);
        let pairs = self
            .historic_trampolines
            .iter()
            .zip(entry.historic_trampolines);
        pairs.for_each(|(to, from)| to.store(from, Relaxed));
        self.jprobe_return.store(entry.jprobe_return, Relaxed);
        self.post_stub.store(entry.post_stub, Relaxed);
    }

    /// Whether a word that was found in a return slot has been put there by a kretprobe.
    #[inline(always)]
    pub(crate) fn is_trampoline(&self, word: u64) -> bool {
        let is = |trampoline: &AtomicU64| word == trampoline.load(Relaxed);
        is(&self.trampoline) || self.historic_trampolines.iter().any(is)
    }
}

impl<P: Platform> Hits<P> {
    /// Without probes, and not ready: all zero.
    pub(crate) const fn new() -> Self {
        Self {
            table: AddressTable::new(),
            slots: SlotPool::new(),
            detours: SlotPool::new(),
            detour_count: AtomicUsize::new(0),
            tasks: TaskTable::new(),
            entry: EntryAddresses::new(),
            stale_instances: AtomicU64::new(0),
            _platform: PhantomData,
        }
    }

    /// Where the entries of the address table are.
    pub(crate) const fn table_offset() -> usize {
        offset_of!(Self, table) + AddressTable::entries_offset()
    }

    /// Makes the address table ready for searches. Once, before any CPU can take a breakpoint exception.
    pub fn init_table(&self) {
        self.table.clear();
    }

    /// Instances that were given back because their call was abandoned.
    pub fn stale_instances(&self) -> u64 {
        self.stale_instances.load(Relaxed)
    }
}
