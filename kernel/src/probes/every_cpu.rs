//! Work that every CPU does once, for the probes.
//!
//! It goes with the synchronising IPI of [`text_poke`]: a CPU does what it has not done yet before
//! it answers, and the wait for the answers is the wait for the work.
//!
//! # Contexts
//! [`on_every_cpu`]: a task that may sleep. [`work_here`]: interrupts off.

use core::{
    mem, ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use x86_64::instructions::interrupts;

use super::text_poke;
use crate::{arch::percpu, sync::Mutex};

type Work<'a> = &'a (dyn Fn() + Sync);

/// What is to be done; null: nothing. And its number.
static WORK: AtomicPtr<Work<'static>> = AtomicPtr::new(ptr::null_mut());
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// The number of the last work that each CPU has done.
static DONE: [AtomicU64; percpu::MAX_CPUS] = [const { AtomicU64::new(0) }; percpu::MAX_CPUS];

/// Does the work that this CPU has not done yet, if there is some. On the way of the IPI.
pub(super) fn work_here() {
    // SAFETY: `on_every_cpu` keeps it alive until all CPUs have answered.
    let Some(work) = (unsafe { WORK.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let number = NUMBER.load(Ordering::Relaxed);
    if DONE[percpu::cpu_id()].swap(number, Ordering::Relaxed) != number {
        work();
    }
}

/// Calls `work` once on every CPU, with interrupts off, and returns when all have returned.
pub(super) fn on_every_cpu(work: Work<'_>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let work = ptr::from_ref(&work).cast_mut();
    // SAFETY: only the lifetime is another, and the pointer is taken back before `work` ends.
    let work = unsafe { mem::transmute::<*mut Work<'_>, *mut Work<'static>>(work) };
    // This CPU does its part here, so it must be the one that the wait leaves out.
    percpu::preempt_disable();
    NUMBER.fetch_add(1, Ordering::Relaxed);
    WORK.store(work, Ordering::Release);
    interrupts::without_interrupts(work_here);
    text_poke::synchronize_cores();
    WORK.store(ptr::null_mut(), Ordering::Release);
    percpu::preempt_enable();
}
