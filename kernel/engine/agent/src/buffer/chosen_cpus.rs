//! The CPUs that begin records. The others are left out.
//!
//! # Contexts
//! Task context, may sleep.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buffers, Owned, hold};
use crate::Agent;

/// Makes the rings of a CPU such that its writers ask whether it is left out (RECORD-4).
///
/// # Safety
/// No record is being written to them, and none will be before this is over.
pub(super) unsafe fn prepare<A: Agent>(cpu: usize, rings: [Option<&Owned>; 2]) {
    let is_left_out = A::cpu_tracing(cpu).is_some_and(|cpu| cpu.left_out.load(Relaxed));
    for owned in rings.into_iter().flatten().filter(|_| is_left_out) {
        // SAFETY: the same contract.
        unsafe { owned.ring.end_page() };
    }
}

impl<A: Agent> Buffers<A> {
    /// Whether a CPU begins records.
    pub fn is_chosen(&self, cpu: usize) -> bool {
        A::cpu_tracing(cpu).is_some_and(|cpu| !cpu.left_out.load(Relaxed))
    }

    /// Has the CPUs begin records that `is_chosen` chooses, and no others. Records that are not
    /// begun are counted. What is recorded already stays.
    pub fn choose_cpus(&self, is_chosen: impl Fn(usize) -> bool) {
        let rings = self.rings.lock();
        // No record is being written from here on (BUFFER-1).
        A::tracing().recording.pause();
        A::probes().synchronize_hits();
        for cpu in 0..A::possible_cpus() {
            if let Some(data) = A::cpu_tracing(cpu) {
                data.left_out.store(!is_chosen(cpu), Relaxed);
            }
            let _held = hold::<A>(cpu);
            // SAFETY: no record is being written while recording is paused.
            unsafe { prepare::<A>(cpu, [rings.rings.get(cpu), rings.others.get(cpu)]) };
        }
        A::tracing().recording.resume();
    }
}
