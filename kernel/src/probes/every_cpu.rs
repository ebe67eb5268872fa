//! Work that every CPU does once, for the probes.
//!
//! It goes with the synchronising IPI of [`text_poke`]: a CPU does what waits for it there before
//! it answers.
//!
//! # Invariants
//! EVERY-1. A CPU's place names work only while [`on_every_cpu`] waits for that CPU. So what is
//!     named is alive, and a CPU that starts meanwhile finds nothing.
//!
//! # Contexts
//! [`on_every_cpu`]: a task that may sleep. [`work_here`]: interrupts off.

use core::{
    mem, ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use x86_64::instructions::interrupts;

use super::text_poke;
use crate::{
    arch::{percpu, smp},
    sync::Mutex,
};

type Work<'a> = &'a (dyn Fn() + Sync);

/// What waits for each CPU; null: nothing.
static WAITING: [AtomicPtr<Work<'static>>; percpu::MAX_CPUS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; percpu::MAX_CPUS];

/// Does what waits for this CPU. On the way of the IPI.
pub(super) fn work_here() {
    let place = &WAITING[percpu::cpu_id()];
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
