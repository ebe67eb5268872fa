//! The other CPUs: how many there are, and how to reach them. [`super::start_up`] starts them.
//!
//! # Invariants
//! SMP-1. CPUs are numbered from 0, the one that booted, in the order in which they come up,
//!     without gaps.
//! SMP-2. Their number is final when [`super::start_up::start_others`] returns. A CPU that comes
//!     later halts for good, with interrupts off.
//!
//! # Contexts
//! Sending is possible in any context but NMI. [`flush_tlb_everywhere`] waits for the other CPUs.
//! So it is called with interrupts on and no spinlock held, because another CPU may be waiting for
//! this one.

use super::{PtRegs, apic, idt::vector, percpu};
use crate::time;
use core::{
    hint, ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering},
};
use percpu::MAX_CPUS;
use x86_64::instructions::{hlt, interrupts};

/// Set in [`NUMBERS`] when no further CPU is let in.
const CLOSED: usize = 1 << 31;

/// How many CPU numbers have been given out, and [`CLOSED`].
static NUMBERS: AtomicUsize = AtomicUsize::new(1);

/// How many CPUs are up. Written with Release after all that a CPU set up for itself.
static ONLINE: AtomicUsize = AtomicUsize::new(1);

/// How many CPUs run; they have the numbers from 0 to one less.
pub fn online_cpus() -> usize {
    ONLINE.load(Ordering::Acquire)
}

/// Gives the calling CPU its number (SMP-1); `None` if no further CPU is let in.
pub(super) fn take_number() -> Option<usize> {
    let number = NUMBERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |given| {
        (given & CLOSED == 0).then_some(given + 1)
    });
    number.ok()
}

/// Lets no further CPU in, and returns how many have a number.
pub(super) fn close() -> usize {
    NUMBERS.fetch_or(CLOSED, Ordering::Relaxed)
}

/// The calling CPU is up.
pub(super) fn count_online() {
    ONLINE.fetch_add(1, Ordering::Release);
}

/// How many CPUs there may ever be: [`MAX_CPUS`] until it is known.
pub fn possible_cpus() -> usize {
    let numbers = NUMBERS.load(Ordering::Relaxed);
    if numbers & CLOSED != 0 {
        numbers & !CLOSED
    } else {
        MAX_CPUS
    }
}

/// The numbers of the CPUs that run, except the caller's. The caller keeps preemption off as long
/// as that matters.
pub fn other_cpus() -> impl Iterator<Item = usize> {
    let this = percpu::cpu_id();
    (0..online_cpus()).filter(move |&cpu| cpu != this)
}

/// Stops this CPU for good.
pub(super) fn halt() -> ! {
    loop {
        interrupts::disable();
        hlt();
    }
}

/// Sends interrupt `vector` to CPU `cpu`.
pub fn send_ipi(cpu: usize, vector: u8) {
    apic::send_interrupt(percpu::of(cpu).apic_id(), vector);
}

/// Sends interrupt `vector` to every CPU but this one. The caller keeps preemption off.
pub fn send_ipi_all_but_self(vector: u8) {
    other_cpus().for_each(|cpu| send_ipi(cpu, vector));
}

/// Sends an NMI to CPU `cpu`.
pub fn send_nmi(cpu: usize) {
    apic::send_nmi(percpu::of(cpu).apic_id());
}

/// How many flushes have been asked for; each CPU notes in [`FLUSHED`] how far it is.
static FLUSHES: AtomicU64 = AtomicU64::new(0);
static FLUSHED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Drops this CPU's translations and says so.
pub(super) fn flush_tlb_here() {
    // Acquire pairs with the Release of who asked: the page tables as that CPU left them.
    let asked = FLUSHES.load(Ordering::Acquire);
    x86_64::instructions::tlb::flush_all();
    FLUSHED[percpu::cpu_id()].fetch_max(asked, Ordering::Release);
}

/// Drops all translations on all CPUs, and returns when that is done. Task context, interrupts on,
/// no spinlock held.
pub fn flush_tlb_everywhere() {
    debug_assert!(interrupts::are_enabled());
    percpu::preempt_disable();
    let mine = FLUSHES.fetch_add(1, Ordering::AcqRel) + 1;
    interrupts::without_interrupts(flush_tlb_here);
    send_ipi_all_but_self(vector::FLUSH_TLB);
    for cpu in other_cpus() {
        while FLUSHED[cpu].load(Ordering::Acquire) < mine {
            hint::spin_loop();
        }
    }
    percpu::preempt_enable();
}

/// One CPU has begun to end the kernel.
static STOPPING: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicUsize = AtomicUsize::new(0);
/// The registers with which the NMI found each CPU that it has stopped, or null.
static STOPPED_AT: [AtomicPtr<PtRegs>; MAX_CPUS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS];

/// Stops all other CPUs for good, wherever they are, by NMI. If another CPU got here first, stops
/// this one. Any context. Returns when the others have stopped, but waits for at most 100 ms.
pub fn stop_others() {
    interrupts::disable();
    if STOPPING.swap(true, Ordering::SeqCst) {
        stop_here();
    }
    other_cpus().for_each(send_nmi);
    let deadline = time::ktime_get() + 100 * time::NSEC_PER_MSEC;
    while STOPPED.load(Ordering::Relaxed) + 1 < online_cpus() && time::ktime_get() < deadline {
        hint::spin_loop();
    }
}

fn stop_here() -> ! {
    STOPPED.fetch_add(1, Ordering::Relaxed);
    halt()
}

/// The registers of CPU `cpu` where [`stop_others`] has stopped it; `None` if it has not.
pub fn stopped_at(cpu: usize) -> Option<&'static PtRegs> {
    // SAFETY: Acquire pairs with the store in `stop_if_asked`. The registers lie on the stack on
    // which that CPU has stopped for good.
    unsafe { STOPPED_AT.get(cpu)?.load(Ordering::Acquire).as_ref() }
}

/// Called first in the NMI handler, which got `regs`: does not return if the kernel is being ended.
pub(super) fn stop_if_asked(regs: &PtRegs) {
    if STOPPING.load(Ordering::SeqCst) {
        if let Some(at) = STOPPED_AT.get(percpu::cpu_id()) {
            at.store(ptr::from_ref(regs).cast_mut(), Ordering::Release);
        }
        stop_here();
    }
}
