//! What a kernel says at the borders of its interrupt handlers, if it leaves the waits to the
//! bodies that [`Platform`] has for them.
//!
//! ```text
//!   entry of an interrupt handler    PROBES.irq_enter(regs.ip)
//!   its end                          PROBES.irq_exit()
//!   then, to preempt the task        PROBES.preempt(regs.ip, || schedule())
//! ```
//!
//! # Contexts
//! Interrupts off, on the CPU that was interrupted. NMIs may do the same.

use crate::{hit::Hits, platform::Platform};

impl<P: Platform> Hits<P> {
    /// An interrupt handler begins that has interrupted the code at `ip`, of whatever privilege.
    /// Interrupts off.
    pub fn irq_enter(&self, ip: u64) {
        P::this_cpu().interrupted.enter(ip);
    }

    /// The interrupt handler that has called [`Hits::irq_enter`] last on this CPU is over. Call it
    /// before a switch to another task, and before interrupts are on again.
    pub fn irq_exit(&self) {
        P::this_cpu().interrupted.exit();
    }

    /// Whether this CPU is outside slots, detours and handlers, in all code that is interrupted on
    /// it. Interrupts off, after [`Hits::irq_enter`], or in a task.
    pub fn is_outside(&self) -> bool {
        let cpu = P::this_cpu();
        !cpu.is_in_hit() && cpu.interrupted.all(|ip| self.may_preempt(ip))
    }

    /// Waits for a grace period. May sleep.
    pub fn synchronize_hits(&self) {
        P::synchronize_hits(&|| self.is_outside());
    }

    /// Preempts the task that was interrupted at `ip`: calls `switch`, which lets other tasks run
    /// and returns when this task goes on, on any CPU. Does not call it, and returns false, where
    /// the task may not be preempted: in a hit, or in an interrupt of an interrupt. Then ask at the
    /// next interrupt. Interrupts off, after [`Hits::irq_exit`].
    pub fn preempt(&self, ip: u64, switch: impl FnOnce()) -> bool {
        let interrupted = &P::this_cpu().interrupted;
        if !interrupted.is_in_task() {
            return false;
        }
        // First the note (INTERRUPTED-2).
        let note = interrupted.note(ip);
        let may = self.may_preempt(ip);
        if may {
            switch();
        }
        interrupted.forget(note);
        may
    }
}

/// Waits until no hit uses what was removed before the call, and none comes out under a jump that
/// is about to be written. That is sooner than a grace period, in which all hits end that were
/// under way. May sleep.
pub(crate) fn synchronize_settled<P: Platform>(hits: &Hits<P>) {
    P::synchronize_settled(&|| {
        let cpu = P::this_cpu();
        !cpu.is_in_hit() && cpu.interrupted.all(|ip| hits.is_settled(ip))
    });
}
