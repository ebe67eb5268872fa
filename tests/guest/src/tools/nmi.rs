//! NMIs to another CPU, one after the other.
//!
//! A breakpoint or a fault in an NMI's handler unmasks NMIs when it returns. One that is sent as
//! soon as the handler has said that it ran then comes on top of the handler's exit, and the next
//! one on top of that one's, until the stack is full. So the sender leaves the handler time to
//! return: some turns of a loop, longer than the exit, and not always as many, or a machine whose
//! CPUs run in step would always be interrupted at the same places.

use core::{
    hint,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::arch::smp;

/// At least so many turns of a loop are longer than the way out of an NMI.
const LEAST_TURNS: u64 = 64;
/// A prime, so that it keeps step with no loop of the other CPU.
const MORE_TURNS: u64 = 61;

/// Sends an NMI to `cpu`, another one than the caller's, and returns when its handler has counted
/// it in `handled`, and has had time to return; or when `stop` says that it is not waited for. Task
/// context.
pub fn send(cpu: usize, handled: &AtomicU64, stop: impl Fn() -> bool) {
    let before = handled.load(SeqCst);
    smp::send_nmi(cpu);
    while handled.load(SeqCst) == before && !stop() {
        hint::spin_loop();
    }
    for _ in 0..LEAST_TURNS + before % MORE_TURNS {
        hint::spin_loop();
    }
}
