//! Exceptions that neither the probes nor the kernel take, and interrupts on request.

use core::{
    hint, mem, ptr,
    sync::atomic::{
        AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use probes::PtRegs;
use x86_64::instructions::interrupts;

pub use crate::glue::{BREAKPOINT, DEBUG, PAGE_FAULT, PROTECTION};
use crate::glue::{
    Exception, cpu_id, send_interrupt, set_exception_handler, set_interrupt_handler,
};

/// What a hook for interrupts gets for a vector: it is none of an exception.
const INTERRUPT: u8 = 0xff;

/// Asked about what has happened, with its vector. True: resume.
pub type Hook = fn(&mut PtRegs, u8) -> bool;

static ON_EXCEPTION: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static ON_INTERRUPT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
/// How many interrupts have been handled.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// Sets who is asked about exceptions that belong to nothing else. Without one they end the kernel.
pub fn on_exception(hook: Hook) {
    ON_EXCEPTION.store(hook as *mut (), Release);
    set_exception_handler(Some(exception));
}

/// Sets what runs at [`super::cpu::interrupt`], with interrupts off.
pub fn on_interrupt(hook: Hook) {
    ON_INTERRUPT.store(hook as *mut (), Release);
    set_interrupt_handler(Some(interrupted));
}

/// Takes all hooks back.
pub fn clear_hooks() {
    set_exception_handler(None);
    set_interrupt_handler(None);
}

fn run(hook: &AtomicPtr<()>, regs: &mut PtRegs, vector: u8) -> bool {
    // SAFETY: the setters above store a hook before they have the kernel come here.
    let hook: Hook = unsafe { mem::transmute(hook.load(Acquire)) };
    hook(regs, vector)
}

fn exception(regs: &mut PtRegs, exception: &Exception) -> bool {
    run(&ON_EXCEPTION, regs, exception.vector)
}

fn interrupted(regs: &mut PtRegs) {
    run(&ON_INTERRUPT, regs, INTERRUPT);
    INTERRUPTS.fetch_add(1, Relaxed);
}

/// Sends an interrupt to each of `cpus`, and waits until all have handled it.
pub fn send(cpus: impl Iterator<Item = usize>) {
    let before = INTERRUPTS.load(Relaxed);
    let sent = cpus.map(send_interrupt).count() as u64;
    while INTERRUPTS.load(Relaxed) < before + sent {
        hint::spin_loop();
    }
}

/// Sends one to `cpu`, which is this one, and waits for it where it can come.
pub fn interrupt(cpu: usize) {
    debug_assert_eq!(cpu, cpu_id());
    let before = INTERRUPTS.load(Relaxed);
    send_interrupt(cpu);
    while interrupts::are_enabled() && INTERRUPTS.load(Relaxed) == before {
        hint::spin_loop();
    }
}
