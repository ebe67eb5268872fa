//! An owner of breakpoints that are no probes: a debugger that counts where the kernel's own code
//! stops, and goes on.
//!
//! # Contexts
//! [`stop`] anywhere in ring 0. [`on_breakpoint`]: the handler of #BP, interrupts off.

use core::{
    arch::naked_asm,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::frame::Frame;

/// How often code has stopped.
pub static STOPS: AtomicU64 = AtomicU64::new(0);

/// Stops for the debugger.
#[unsafe(naked)]
pub extern "C" fn stop() {
    naked_asm!("int3", "ret")
}

/// Whether the breakpoint is one of [`stop`].
pub fn on_breakpoint(frame: &Frame) -> bool {
    let is_mine = frame.ip == stop as *const () as u64 + 1;
    if is_mine {
        STOPS.fetch_add(1, Relaxed);
    }
    is_mine
}
