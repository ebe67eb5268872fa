//! Glue between the `probes` crate and this kernel.

pub use ::probes::PtRegs;

/// Asks the probes whether a #BP is theirs. Called first by the #BP handler, interrupts off. True: resume with `regs`.
pub fn on_breakpoint(_regs: &mut PtRegs) -> bool {
    false
}

/// Asks the probes whether a #DB is theirs. Called first by the #DB handler, interrupts off. True: resume with `regs`.
pub fn on_debug(_regs: &mut PtRegs) -> bool {
    false
}

/// Lets the probes look at a fault of any other vector first: rewinds `regs.ip` from a slot to the probed
/// address and asks fault handlers. True: handled, resume with `regs`.
pub fn on_fault(_regs: &mut PtRegs, _vector: u8) -> bool {
    false
}

/// Whether an interrupt that found the kernel at `ip` may switch tasks on its way out.
pub fn may_preempt(_ip: u64) -> bool {
    true
}

/// Runs on the CPU that gets the probes' synchronising IPI, interrupts off.
pub fn on_sync_ipi(_regs: &PtRegs) {}

/// A task is gone and its last switch is over: give its return-probe instances back.
pub fn flush_task(_task: u64) {}

/// The scheduler made `task` current on this CPU; called in the switch, interrupts off.
pub fn task_switched(_task: u64) {}

/// The init text `range` was unmapped.
pub fn init_text_freed(_range: core::ops::Range<u64>) {}
