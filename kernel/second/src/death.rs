//! The end of this kernel by a panic: the other CPUs stop, and the tracer gets the last calls.
//!
//! # Contexts
//! [`die`]: any in which the kernel has panicked, with any lock held. [`stop_if_near`]: an NMI.

use core::{
    hint,
    panic::PanicInfo,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
};

use trace_agent::last_words;
use x86_64::instructions::{hlt, interrupts};

use crate::{
    exit,
    probes::Second,
    shout, smp,
    tracing::{self, TRACING},
};

/// A CPU has panicked.
static IS_NEAR: AtomicBool = AtomicBool::new(false);
/// The others that have stopped.
static STOPPED: AtomicUsize = AtomicUsize::new(0);

/// Ends the kernel.
pub fn die(info: &PanicInfo<'_>) -> ! {
    interrupts::disable();
    TRACING.stop_recording();
    if IS_NEAR.swap(true, SeqCst) {
        // Of another CPU, which the first one stops; or of what is below.
        exit(false);
    }
    smp::send_nmi_to_others();
    // A CPU that does not answer an NMI runs no code any more.
    let others = smp::online() - 1;
    for _ in 0..100_000_000 {
        if STOPPED.load(SeqCst) == others {
            break;
        }
        hint::spin_loop();
    }
    shout(format_args!("{info}"));
    // SAFETY: the other CPUs have stopped, and this one does not return.
    unsafe { last_words::tell::<Second>(info, &mut tracing::write_by_force) };
    exit(false)
}

/// Stops this CPU if another one has panicked.
pub fn stop_if_near() {
    if IS_NEAR.load(Relaxed) {
        STOPPED.fetch_add(1, SeqCst);
        loop {
            interrupts::disable();
            hlt();
        }
    }
}
