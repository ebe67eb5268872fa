//! Snapshots: the ring of each CPU is exchanged with its other one, and recording goes on there.
//!
//! ```text
//!   echo 1 > snapshot ─┐                       ┌─► CPU 0: live ring ◄─► spare ring
//!   trigger `snapshot` ┴─► take, for each CPU ─┼─► CPU 1: live ring ◄─► spare ring
//!                                              └─► ...
//!   any interrupt of CPU n, and its rest ─► settle the spare of CPU n, and do what had to wait
//! ```
//!
//! [`trace_ring::spare`] has the theory. Here are the moments: [`take`] is asked at a hit or by a
//! task, and [`on_interrupt`] finds the quiet moments. An interrupt is one, if it has interrupted
//! no hit, because interrupts do not nest and a hit is never switched away from. The task side,
//! with the memory of the rings, is [`crate::buffer`].
//!
//! A hit that takes a snapshot pays for it: some hundred instructions for each CPU. Others pay
//! nothing, because the address of the ring is loaded at each hit anyway.
//!
//! A second snapshot within a tick of the first may wait for an interrupt. Until then its hits are
//! recorded in front of it.
//!
//! # Contexts
//! [`take`]: any, on the hit path: it neither waits, allocates nor panics. [`on_interrupt`]: in an
//! interrupt, before its work. [`on_rest`]: the idle task, interrupts off.

use probes::PtRegs;

use crate::Agent;

/// Takes a snapshot on all CPUs that have a second ring.
#[inline(always)]
pub fn take<A: Agent>() {
    for cpu in 0..A::possible_cpus() {
        take_of::<A>(cpu);
    }
}

/// Takes a snapshot of one CPU.
#[inline(always)]
pub fn take_of<A: Agent>(cpu: usize) {
    let Some(data) = A::cpu_tracing(cpu) else {
        return;
    };
    let (live, spare) = data.rings();
    // SAFETY: a CPU with a spare has a live ring, and both live until a grace period after they
    // were taken away.
    unsafe { spare.exchange(live) };
}

/// Settles the spare of this CPU if an exchange waits for that. An interrupt has left `regs`.
#[inline(always)]
pub fn on_interrupt<A: Agent>(regs: &PtRegs) {
    if A::this_cpu_tracing().rings().1.is_exchanged() && A::probes().may_preempt(regs.ip) {
        on_quiet::<A>();
    }
}

/// The same. The CPU has nothing to do.
#[inline(always)]
pub fn on_rest<A: Agent>() {
    if A::this_cpu_tracing().rings().1.is_exchanged() {
        on_quiet::<A>();
    }
}

/// The same. The CPU is kept, and is in no hit.
#[cold]
#[inline(never)]
pub(crate) fn on_quiet<A: Agent>() {
    let (live, spare) = A::this_cpu_tracing().rings();
    // SAFETY: 1. as in `take_of`; 2. by the caller.
    unsafe { spare.on_quiet(live) };
}
