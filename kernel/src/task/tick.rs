//! The tick of a CPU whose idle task ends.
//!
//! ```text
//!   a task runs: every tick          idle: one alarm, or none
//!        ▲                                  │
//!        └── the scheduler leaves the idle task, or the console has something to print
//! ```
//!
//! [`super::idle`] lets the tick rest.

use crate::arch::{apic, percpu};

/// Starts the tick again if it rests. On the CPU that is meant, interrupts off.
pub(super) fn resume() {
    let percpu = percpu::this();
    if percpu.is_resting() {
        percpu.set_resting(false);
        apic::start_timer();
    }
}
