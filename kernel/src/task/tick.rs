//! The tick, and its rest: a CPU that has nothing to do takes no interrupts until something is due.
//!
//! ```text
//!   a task runs: every tick          idle: one alarm, or none
//!        ▲                                  │
//!        └── the scheduler leaves the idle task; or the console has something to print
//! ```
//!
//! An idle CPU is woken by its alarm, by a device, or by another CPU that has a task for it (S3 of [`super::scheduler`]). The alarm is
//! for what was left to its ticks: sleepers that fell asleep there, a console whose port takes nothing, and input that has no
//! interrupt. It is never nearer than a tick, so that interrupts come no faster than ticks do.
//!
//! # Contexts
//! On the CPU that is meant, interrupts off.

use super::sleep;
use crate::{
    arch::{apic, percpu},
    console, terminal,
    time::ktime_get,
};

/// Lets the tick rest, with an alarm for what is due.
pub(super) fn rest() {
    let percpu = percpu::this();
    let tick = apic::tick_ns();
    let waits = console::is_pending() || terminal::is_polled();
    let next = sleep::earliest_of(percpu.cpu_id())
        .map(|deadline| deadline.saturating_sub(ktime_get()).max(tick));
    percpu.set_resting(true);
    apic::set_alarm(if waits { Some(tick) } else { next });
}

/// Has the tick go on.
pub(super) fn resume() {
    let percpu = percpu::this();
    if percpu.is_resting() {
        percpu.set_resting(false);
        apic::start_timer();
    }
}
