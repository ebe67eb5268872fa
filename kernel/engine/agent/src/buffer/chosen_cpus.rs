//! The CPUs that begin records. The others are left out.
//!
//! # Contexts
//! Task context, may sleep.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buffers, hold};
use crate::Agent;

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
        let _pause = A::tracing().recording.pause();
        A::probes().synchronize_hits();
        for cpu in 0..A::possible_cpus() {
            let Some(data) = A::cpu_tracing(cpu) else {
                continue;
            };
            let is_left_out = !is_chosen(cpu);
            data.left_out.store(is_left_out, Relaxed);
            let _held = hold::<A>(cpu);
            let own = [rings.rings.get(cpu), rings.others.get(cpu)];
            for owned in own.into_iter().flatten().filter(|_| is_left_out) {
                // So its writers ask (RECORD-4). Rings that are made later begin like this.
                // SAFETY: no record is being written while recording is paused.
                unsafe { owned.ring.end_page() };
            }
        }
    }
}
