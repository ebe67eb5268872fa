//! What the self-test of the probes asks of this kernel.
//!
//! # Contexts
//! [`self_test`](::probes::self_test()) runs in a task, once at a time.

use core::{
    hint,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst},
};

use ::probes::SelfTest;

use super::Kernel;
use crate::{
    arch::{PtRegs, percpu, smp, traps},
    task,
};

/// What the NMI is to do: a `fn()`.
static WORK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static IS_DONE: AtomicBool = AtomicBool::new(false);

impl SelfTest for Kernel {
    fn spawn(work: fn()) -> bool {
        task::spawn_kthread("self-test", work).is_ok()
    }

    fn in_nmi(work: fn()) -> bool {
        WORK.store(work as *mut (), SeqCst);
        IS_DONE.store(false, SeqCst);
        traps::set_nmi_handler(Some(on_nmi));
        smp::send_nmi(percpu::cpu_id());
        while !IS_DONE.load(SeqCst) {
            hint::spin_loop();
        }
        traps::set_nmi_handler(None);
        true
    }
}

fn on_nmi(_: &PtRegs) {
    // SAFETY: `in_nmi` has stored a function of this type before it sent the NMI.
    let work: fn() = unsafe { core::mem::transmute(WORK.load(SeqCst)) };
    work();
    IS_DONE.store(true, SeqCst);
}
