//! The path of one hit: the half of [`Probes`](crate::Probes) that takes no lock.
//!
//! ```text
//!   #BP ─► kprobe_breakpoint: save five registers, look the trap's ip up in the address table
//!            │ found: jump to the stub that the site's first probe names
//!            ▼
//!          the stub: complete the frame; is the guard held?
//!            │ no: take it                        yes ─► count the miss ─────────────────┐
//!            ▼                                                                           │
//!          the handlers, newest probe first (a jprobe last: control leaves to its        │
//!            │            handler and comes back by the breakpoint in `jprobe_return`)   │
//!            ▼                                                                           ▼
//!          post handler here? ─ no ─► drop the guard ──────────────────────────► the slot ─► back
//!            │ yes: drop the guard, note the site, interrupts off
//!            ▼
//!          the post slot ─► kprobe_post_stub: take the guard, post handlers, drop it ─► back
//! ```
//!
//! The gate of #BP leads to assembly, and nearly all hits never leave it. The assembly is there for
//! speed: it saves only the registers that it needs, which Rust cannot. The Rust here does the same
//! for any probe, in any state. It is the slow path of the assembly, and the part to read first. It
//! is the whole path where the kernel does not expand `breakpoint_entry!`, as in the host tests.
//!
//! ```text
//!   step                   Rust                     assembly              slow path when
//!   find the site          AddressTable::find       kprobe_breakpoint     it is not in the table
//!   take the guard, or     breakpoint: serve, miss  each stub             the guard is held
//!     count a miss
//!   the probes in order    breakpoint: serve        kprobe_handle_chain   single step, `popf`
//!   one probe              breakpoint: run_probe    kprobe_handle_kprobe  an old return method
//!   borrow a return        calls: enter_call        kretprobe_handle      no instance is free, or
//!     address                                                               the slot is borrowed
//!   return of a call       calls: leave_call        kretprobe_trampoline  it is not the newest
//!   post handlers          breakpoint: run_post     kprobe_run_posts      never
//!   resume                 breakpoint: finish       each stub             the instruction is done
//!                                                                           on the frame
//!   jprobe, in and out     jprobes                  jprobe_handle         the stack ends nearby
//! ```
//!
//! A jump in place of the breakpoint leads to a detour, which is all assembly
//! ([`Detour`]).
//!
//! Nothing here is reached for a hit that the assembly serves. [`Hits::on_breakpoint`] gets only a
//! #BP whose address was not found: the end of a jprobe's handler, the fallback of a detour, a
//! breakpoint that was removed between its fetch and now, or one that is not ours. [`debug_trap`]
//! tells about #DB.
//!
//! # Invariants
//! HIT-1. Nothing here locks, allocates or can fail. It formats only the last words of a broken
//!     machine.
//! HIT-2. The guard of [`PerCpu`](crate::PerCpu) is held while any handler runs. A hit that finds
//!     it held runs the plain slot, which needs no state of this CPU. So hits nest to any depth.
//! HIT-3. Everything up to a handler and back from it is blacklisted, so no hit is needed to reach
//!     a handler.
//! HIT-4. The guard is free while the displaced instruction runs, also where a post handler waits
//!     for it. The instruction may read the guard, as each check for a handler does, and then reads
//!     the same value as without a probe. Meanwhile interrupts are off, and the rest of the hit is
//!     noted in [`PerCpu`](crate::PerCpu). An NMI may come all the same. It first puts that note
//!     aside ([`Hits::aside`]), and likewise the note of a running handler, whose fault handler
//!     gets no faults of the NMI's code.
//!
//! # Contexts
//! `on_breakpoint`, `on_debug` and `on_fault` run with interrupts off. A return runs with the
//! interrupt flag of the function that returned. The trampoline takes the guard, so its CPU does
//! not switch tasks.

mod breakpoint;
pub(crate) mod calls;
pub(crate) mod debug_trap;
mod faults;
pub(crate) mod interrupts;
#[cfg_attr(not(feature = "jprobes"), path = "no_jprobes.rs")]
mod jprobes;
mod lookup;
pub(crate) mod slots;
#[cfg_attr(not(feature = "watchpoints"), path = "no_watchpoints.rs")]
mod watchpoints;

use core::{
    marker::PhantomData,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

pub use breakpoint::Flow;
pub use lookup::Displaced;

use crate::{
    data::{
        address_table::AddressTable, detour::Detour, entry_points::EntryPoints,
        instance::TaskTable, no_grace::NoGrace, site::Site, watchpoint::Watches,
    },
    hit::slots::SlotPool,
    platform::Platform,
};

/// The tables that hits read, and the questions about them.
#[repr(C)]
pub struct Hits<P> {
    pub(crate) table: AddressTable,
    pub(crate) slots: SlotPool<P, Site>,
    pub(crate) detours: SlotPool<P, Detour>,
    /// Detours that sites point to: 0 lets most questions about them be answered at once.
    pub(crate) detour_count: AtomicUsize,
    pub(crate) tasks: TaskTable,
    pub(crate) entry: EntryAddresses,
    pub(crate) watches: Watches,
    /// Instances of calls that never returned, found when a frame above them did.
    pub(crate) stale_instances: AtomicU64,
    _platform: PhantomData<fn() -> P>,
}

/// The addresses that a hit compares with.
pub(crate) struct EntryAddresses {
    pub(crate) trampoline: AtomicU64,
    pub(crate) action_trampoline: AtomicU64,
    pub(crate) historic_trampolines: [AtomicU64; 2],
    pub(crate) jprobe_return: AtomicU64,
    pub(crate) post_stub: AtomicU64,
}

impl EntryAddresses {
    const fn new() -> Self {
        Self {
            trampoline: AtomicU64::new(0),
            action_trampoline: AtomicU64::new(0),
            historic_trampolines: [const { AtomicU64::new(0) }; 2],
            jprobe_return: AtomicU64::new(0),
            post_stub: AtomicU64::new(0),
        }
    }

    /// Notes them.
    pub(crate) fn set(&self, entry: &EntryPoints) {
        self.trampoline.store(entry.trampoline, Relaxed);
        self.action_trampoline
            .store(entry.action_trampoline, Relaxed);
        let pairs = self
            .historic_trampolines
            .iter()
            .zip(entry.historic_trampolines);
        pairs.for_each(|(to, from)| to.store(from, Relaxed));
        self.jprobe_return.store(entry.jprobe_return, Relaxed);
        self.post_stub.store(entry.post_stub, Relaxed);
    }

    /// Whether this is a trampoline that takes no trap.
    #[inline(always)]
    pub(crate) fn is_assembly(&self, word: u64) -> bool {
        word == self.trampoline.load(Relaxed) || word == self.action_trampoline.load(Relaxed)
    }

    /// Whether a word that was found in a return slot has been put there by a kretprobe.
    #[inline(always)]
    pub(crate) fn is_trampoline(&self, word: u64) -> bool {
        let is = |trampoline: &AtomicU64| word == trampoline.load(Relaxed);
        self.is_assembly(word) || self.historic_trampolines.iter().any(is)
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
            watches: Watches::new(),
            stale_instances: AtomicU64::new(0),
            _platform: PhantomData,
        }
    }

    /// Makes the address table ready for searches. Once, before any CPU can take a breakpoint
    /// exception.
    pub fn init_table(&self) {
        self.table.clear();
    }

    /// Hits, and questions about code that stands in a slot or detour, come while no grace period
    /// ends.
    #[inline(always)]
    fn no_grace(&self) -> NoGrace<'_> {
        // SAFETY: clause 7 of `Platform`: interrupts are off, the guard is held, or code stands
        // where the grace period waits for it.
        unsafe { NoGrace::assume() }
    }

    /// Instances that were given back because their call was abandoned.
    pub fn stale_instances(&self) -> u64 {
        self.stale_instances.load(Relaxed)
    }
}
