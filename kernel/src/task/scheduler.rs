//! The scheduler.

/// Switches tasks because the running one was asked to give way.
pub fn preempt() {
    crate::arch::percpu::this().clear_need_resched();
}
