//! The idle task of each CPU: it prints the text that waits, and lets the CPU sleep.
//!
//! A CPU that has nothing to do takes no ticks until something is due. Its alarm wakes it, or a
//! device, or another CPU that has a task for it (SCHED-3 of [`super::scheduler`]). The alarm does
//! the work of the CPU's ticks:
//!
//! - it wakes the sleepers that fell asleep on this CPU;
//! - it tries again to print, when the console's port has taken nothing;
//! - it looks for input that has no interrupt;
//! - it ends a test whose time is over ([`crate::test_runner`]).
//!
//! The alarm is never nearer than a tick, so interrupts come no faster than ticks do.

use super::{scheduler::schedule, sleepers, tick};
use crate::{
    arch::{apic, percpu},
    console, terminal, test_runner,
    time::ktime_get,
    trace,
};
use x86_64::instructions::interrupts;

/// The idle loop. The calling code becomes the idle task's.
pub fn run() -> ! {
    schedule();
    loop {
        let printed = !console::is_pending() || {
            interrupts::without_interrupts(tick::resume);
            console::print_when_idle()
        };
        interrupts::disable();
        if percpu::this().need_resched() {
            interrupts::enable();
            schedule();
        } else if printed && console::is_pending() {
            interrupts::enable();
        } else {
            console::idle_ends();
            rest();
            // No interrupt is lost between the check and `hlt`, because `sti` takes effect after
            // the next instruction.
            interrupts::enable_and_hlt();
        }
    }
}

/// Lets the tick rest, with an alarm for what is due. Interrupts off.
fn rest() {
    let percpu = percpu::this();
    let tick = apic::tick_ns();
    let waits = console::is_pending() || terminal::is_polled();
    let next = [
        sleepers::earliest_of(percpu.cpu_id()),
        test_runner::deadline_ns(),
    ]
    .into_iter()
    .flatten()
    .min()
    .map(|deadline| deadline.saturating_sub(ktime_get()).max(tick));
    trace::on_rest();
    percpu.set_resting(true);
    apic::set_alarm(if waits { Some(tick) } else { next });
}
