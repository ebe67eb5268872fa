//! What the probes' self-test asks of this kernel: a second task, an NMI, and user code.
//!
//! # Contexts
//! One task, after all CPUs have started. [`on_nmi`]: an NMI.

use alloc::vec::Vec;
use core::{
    hint, mem, ptr,
    sync::atomic::{AtomicPtr, Ordering::Relaxed, Ordering::SeqCst},
};

use probes::SelfTest;
use spin::mutex::SpinMutex;
use x86_64::instructions::interrupts::without_interrupts;

use crate::{
    cpu::NUMBER,
    probes::Second,
    smp,
    tasks::{self, Handle},
    user,
};

/// The tasks that were started.
static STARTED: SpinMutex<Vec<Handle>> = SpinMutex::new(Vec::new());

/// What the next NMI is to do, a `fn()`; null: nothing.
static IN_NMI: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

impl SelfTest for Second {
    fn spawn(work: fn()) -> bool {
        let task = tasks::spawn_call("self-test", work);
        without_interrupts(|| STARTED.lock().push(task));
        true
    }

    fn cpus() -> usize {
        smp::online()
    }

    fn in_nmi(work: fn()) -> bool {
        IN_NMI.store(work as *mut (), SeqCst);
        smp::send_nmi(NUMBER.here().load(Relaxed));
        while !IN_NMI.load(SeqCst).is_null() {
            hint::spin_loop();
        }
        true
    }

    fn user_breakpoint() -> Option<bool> {
        const BREAKPOINTS: u64 = 4;
        let sums = || (user::BREAKPOINTS.load(Relaxed), user::RESULTS.load(Relaxed));
        let before = sums();
        tasks::spawn("user", None, user::run, BREAKPOINTS).join();
        Some(sums() == (before.0 + BREAKPOINTS, before.1 + 4 + 3 + 2 + 1))
    }
}

/// Does what an NMI is to do.
pub fn on_nmi() {
    let work = IN_NMI.load(SeqCst);
    if !work.is_null() {
        // SAFETY: `in_nmi` has stored such a function.
        let work: fn() = unsafe { mem::transmute(work) };
        work();
        IN_NMI.store(ptr::null_mut(), SeqCst);
    }
}

/// Waits for all tasks that were started.
pub fn join() {
    while let Some(task) = without_interrupts(|| STARTED.lock().pop()) {
        task.join();
    }
}
