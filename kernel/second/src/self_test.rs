//! What the probes' self-test asks of this kernel: a second task, an NMI, and user code.
//!
//! # Contexts
//! One task, after all CPUs have started.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

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

impl SelfTest for Second {
    fn spawn(work: fn()) -> bool {
        let task = tasks::spawn_call("self-test", work);
        without_interrupts(|| STARTED.lock().push(task));
        true
    }

    fn cpus() -> usize {
        smp::online()
    }

    fn send_nmi() -> bool {
        smp::send_nmi(NUMBER.here().load(Relaxed));
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

/// Waits for all tasks that were started.
pub fn join() {
    while let Some(task) = without_interrupts(|| STARTED.lock().pop()) {
        task.join();
    }
}
