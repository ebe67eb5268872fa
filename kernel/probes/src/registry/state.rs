//! The registry itself: what hits read, and the state that its lock protects.
//!
//! The other files of this folder are the operations on it. Each gets the [`State`] from
//! [`Probes::lock`] or [`Probes::state`], so whoever has one holds the lock.
//!
//! # Invariants
//! PROBES-1. A [`Probes`] is all zero until its first use, so it takes no room in the program's
//!     file. The state is made then, on the heap.
//! PROBES-2. A handle that was dropped where waiting is not allowed is finished by the next
//!     operation that may wait, before it takes the lock.
//!
//! # Contexts
//! Taking the lock: task context, may sleep. Hits go through [`Deref`] to [`Hits`], without it.

use alloc::boxed::Box;
use core::{
    mem::offset_of,
    ops::Deref,
    ptr::null_mut,
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use lock_api::{MappedMutexGuard, Mutex, MutexGuard};

use crate::{
    data::{
        address_table::Fill,
        counters::FreeCounters,
        kprobe::Kprobe,
        method::{ReturnMethod, StepMethod},
        no_grace::NoGrace,
        per_cpu::PerCpu,
        site::Site,
        trap_ip::TrapIp,
    },
    error::ProbeError,
    hit::Hits,
    limits::PART_BYTES,
    platform::Platform,
    pt_regs::PtRegs,
    registry::{in_flight::InFlight, optimizer::Optimizer, pool::Pool, slots::FreeSlots},
};

/// A kernel that has its probes in a static. [`kernel!`](crate::kernel!) implements it.
pub trait Host: Platform {
    /// The probes of this kernel.
    fn probes() -> &'static Probes<Self>;

    /// Whether a fault of the kernel is that of somebody who has to be asked before the probes, and
    /// is mended now: a tracer's. Interrupts off, on the hit path. If not implemented, there is
    /// nobody.
    #[inline(always)]
    fn mend(regs: &mut PtRegs) -> bool {
        let _ = regs;
        false
    }
}

/// The probes of one kernel: what hits read, to which it dereferences, and what changes that.
#[repr(C)]
pub struct Probes<P: Platform> {
    hits: Hits<P>,
    pub(super) historic: Historic,
    /// Handles that were dropped where waiting is not allowed: a stack of them.
    pub(super) deferred: AtomicPtr<Deferred>,
    /// Made at the first use. Until then the registry, table and all, is zero and takes no room in
    /// the program's file.
    state: Mutex<P::RawMutex, Option<Box<State>>>,
}

impl<P: Platform> Deref for Probes<P> {
    type Target = Hits<P>;

    #[inline(always)]
    fn deref(&self) -> &Hits<P> {
        &self.hits
    }
}

/// The state that the lock protects.
pub(crate) struct State {
    pub(super) ready: bool,
    /// The number of possible CPUs.
    pub(crate) cpus: usize,
    /// The global knob.
    pub(crate) enabled: bool,
    pub(super) step: StepMethod,
    pub(super) returns: ReturnMethod,
    pub(crate) fill: Fill,
    pub(crate) slots: FreeSlots,
    pub(crate) optimizer: Optimizer,
    pub(super) sites: Pool<Site>,
    pub(crate) counters: FreeCounters,
    /// From where the assembly finds the counters of CPU 0: see [`counter_origin`].
    pub(crate) counter_origin: u64,
    pub(super) in_flight: InFlight,
    /// How many abandoned calls the log has told of.
    pub(super) told_abandoned: u64,
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
            sites: Pool::new(),
            counters: FreeCounters::new(),
            counter_origin: 0,
            in_flight: InFlight::new(),
            told_abandoned: 0,
        }
    }
}

/// The address from which the assembly counts on CPU 0: the GS base, or 0 where each CPU keeps the
/// distance of its part.
pub(super) fn counter_origin<P: Platform>(cpus: usize) -> u64 {
    let gs_base = |cpu| {
        let data = P::per_cpu(cpu).map_or(0, |data| core::ptr::from_ref(data).addr() as u64);
        data.wrapping_sub(PerCpu::gs_distance::<P>().into())
    };
    if !P::PER_CPU_PAGES {
        return 0;
    }
    for cpu in 0..cpus {
        if gs_base(cpu) != gs_base(0) + (cpu * PART_BYTES) as u64 {
            P::fatal(format_args!(
                "Platform::PER_CPU_PAGES: the GS base of CPU {cpu} is {:#x}, that of CPU 0 {:#x}",
                gs_base(cpu),
                gs_base(0)
            ));
        }
    }
    gs_base(0)
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

    /// Where the tables that hits read are, from the start of the registry.
    pub(crate) const fn hits_offset() -> usize {
        offset_of!(Self, hits)
    }
}

/// A handle that was dropped in an atomic context.
pub(super) struct Deferred {
    pub(super) next: AtomicPtr<Deferred>,
    pub(super) owner: *mut (),
    /// Unregisters its probe and drops its owner.
    pub(super) finish: unsafe fn(*mut ()),
}

/// The kprobes on the trampolines. Null before their first use, because the registry is all zero in
/// the program's file.
pub(crate) struct Historic {
    pub(super) trap3: AtomicPtr<Kprobe>,
    pub(super) trap4: AtomicPtr<Kprobe>,
}

impl Historic {
    pub(crate) const fn new() -> Self {
        Self {
            trap3: AtomicPtr::new(null_mut()),
            trap4: AtomicPtr::new(null_mut()),
        }
    }
}

impl<P: Host> Probes<P> {
    /// The site at `addr`. The lock is held, and the caller frees no site that it still uses.
    pub(crate) fn site_at(&self, addr: u64) -> Option<&Site> {
        // SAFETY: sites are freed under the lock alone, by the caller's operation.
        let grace = unsafe { NoGrace::assume() };
        self.table.find(TrapIp::of(addr), grace)
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

    /// Finishes the handles that were dropped where waiting is not allowed (PROBES-2).
    fn run_deferred(&self) {
        let mut at = self.deferred.swap(null_mut(), Acquire);
        while !at.is_null() {
            // SAFETY: a handle that was dropped has left its node to us.
            let node = unsafe { Box::from_raw(at) };
            at = node.next.load(Relaxed);
            // SAFETY: the node's handle is gone, and nothing else finishes it.
            unsafe { (node.finish)(node.owner) };
        }
    }
}

/// Leaves the handle of `owner` to be finished by the next operation that may wait. Any
/// context.
///
/// # Safety
/// `node` is from `Box::into_raw` and given once. Its function finishes `owner`.
pub(super) unsafe fn defer<P: Host>(probes: &Probes<P>, node: *mut Deferred, owner: *mut ()) {
    // SAFETY: ours until the exchange.
    unsafe { (*node).owner = owner };
    let mut head = probes.deferred.load(Relaxed);
    loop {
        // SAFETY: as above.
        unsafe { (*node).next.store(head, Relaxed) };
        match probes
            .deferred
            .compare_exchange_weak(head, node, Release, Relaxed)
        {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}
