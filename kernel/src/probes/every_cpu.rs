//! Work that every CPU does once, for the probes.
//!
//! It goes with the synchronising IPI of [`text_poke`]: a CPU does what waits for it there before
//! it answers. Debug registers are also loaded at the request of a handler that has moved a
//! watchpoint, and nothing waits for that.
//!
//! # Invariants
//! EVERY-1. A CPU's place names work only while [`on_every_cpu`] waits for that CPU. So what is
//!     named is alive, and a CPU that starts meanwhile finds nothing.
//!
//! # Contexts
//! [`on_every_cpu`]: a task that may sleep. [`work_here`]: interrupts off.
//! [`load_watches_elsewhere`]: any.

use core::{
    mem, ptr,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};

use x86_64::instructions::interrupts;

use super::{WATCHPOINTS, text_poke};
use crate::{
    arch::{apic, idt::vector, percpu, smp},
    sync::Mutex,
};

type Work<'a> = &'a (dyn Fn() + Sync);

/// What waits for each CPU; null: nothing.
static WAITING: [AtomicPtr<Work<'static>>; percpu::MAX_CPUS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; percpu::MAX_CPUS];

/// The CPUs that are to load their debug registers.
static LOADS: [AtomicBool; percpu::MAX_CPUS] = [const { AtomicBool::new(false) }; percpu::MAX_CPUS];

/// Has each other CPU load its debug registers, and does not wait for it. Any context, also an NMI.
pub(super) fn load_watches_elsewhere() {
    for cpu in smp::other_cpus() {
        let (Some(load), Some(percpu)) = (LOADS.get(cpu), percpu::get(cpu)) else {
            return;
        };
        // Release pairs with the swap in `work_here`: a watchpoint was moved before.
        load.store(true, Ordering::Release);
        apic::send_interrupt_from_hit(percpu.apic_id(), vector::PROBES_SYNC);
    }
}

/// Does what waits for this CPU. On the way of the IPI.
pub(super) fn work_here() {
    let cpu = percpu::cpu_id();
    // A swap would make each IPI write a line that most never need.
    if LOADS[cpu].load(Ordering::Relaxed) && LOADS[cpu].swap(false, Ordering::Acquire) {
        WATCHPOINTS.load();
    }
    let place = &WAITING[cpu];
    // Acquire pairs with the store in `on_every_cpu`: what the work reads was written before.
    // SAFETY: EVERY-1.
    let Some(work) = (unsafe { place.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    work();
    // Release pairs with the loads in `on_every_cpu`: what the work has written is seen there.
    place.store(ptr::null_mut(), Ordering::Release);
}

/// Calls `work` once on every CPU, with interrupts off, and returns when all have returned.
pub(super) fn on_every_cpu(work: Work<'_>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let work = ptr::from_ref(&work).cast_mut();
    // SAFETY: only the lifetime is another, and all places are empty before `work` ends.
    let work = unsafe { mem::transmute::<*mut Work<'_>, *mut Work<'static>>(work) };
    // This CPU does its part here, so it must be the one that the wait leaves out.
    percpu::preempt_disable();
    let places = &WAITING[..smp::online_cpus()];
    for place in places {
        place.store(work, Ordering::Release);
    }
    interrupts::without_interrupts(work_here);
    // Another task's IPI may have come between the work and the answer, and answered for ours.
    while places
        .iter()
        .any(|place| !place.load(Ordering::Acquire).is_null())
    {
        text_poke::synchronize_cores();
    }
    percpu::preempt_enable();
}
