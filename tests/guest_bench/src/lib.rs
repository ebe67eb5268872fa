//! The benchmark: a module that measures the cost of probes, reports to the host, and ends the
//! kernel.
//!
//! ```text
//!   actions        compiled programs in place of handlers
//!   rows           the table of rows: a target, the probes on it, how often a call hits them
//!   targets        the probed functions, in assembly, so that the bare cost is exactly known
//!   handlers       the handlers: empty ones for the figures, counting ones for the check
//!   stopwatch      ticks of a number of calls, with nothing in between
//!   crowd          100,000 instructions for other probes to sit on
//!   growth         a hit's cost among other probes
//!   programs       probes in a program of ring 3
//!   registration   cost of registering and unregistering, and of the memory
//!   boot           cost of a boot to the first hit
//!   rates          hits per second on several CPUs
//! ```
//!
//! Under QEMU's `-icount shift=0` a tick is an instruction, and all figures are exact. Each
//! measurement is made twice, and a difference fails the run. On hardware (`exact=0`) a tick is one
//! of the time stamp counter, and the median counts.
//!
//! A row is useful only if the probes did their work. So each row is checked in the same run: the
//! same probes with counting handlers must run exactly as often as expected, and the measured
//! probes must count their hits, miss none and take as many traps as they report.
#![no_std]

extern crate alloc;

mod actions;
mod boot;
mod crowd;
mod growth;
mod handlers;
mod programs;
mod rates;
mod registration;
mod rows;
mod stopwatch;
mod targets;

use core::{fmt::Display, hint};

pub use boot::note_entry;
use kernel::{
    log::{self, Level},
    panic::{ExitCode, exit},
    pr_err,
    probes::ProbeError,
};
use test_protocol::{Measurement, Quantity, Skipped};

kernel::module! {
    name: bench,
    description: "Measures what probes cost, and powers off",
    params: {
        /// The measurement: breakpoint (all hits come by breakpoints), optimised, four, three (the
        /// return paths of 2005), memory, or rates (hits per second).
        set: &str = "breakpoint",
        /// Names of the rows to measure, separated by commas. Empty: all of the set.
        rows: &str = "",
        /// Whether ticks are instructions: then equal measurements must agree to the tick.
        exact: bool = true,
        /// How many times 10,000 probes are registered and unregistered to show that no memory is
        /// lost.
        rounds: u32 = 100,
    },
    init: init,
    exit: no_exit,
}

/// Measures, then ends the kernel, because nothing else must run in this machine.
fn init() -> Result<(), ProbeError> {
    let unavailable = "this kernel has no such return path";
    match params().set {
        "breakpoint" => {
            boot::measure()?;
            rows::measure_all(rows::BREAKPOINT)?;
            growth::measure()?;
            registration::measure()?;
            actions::measure("_int3").unwrap_or_else(|error| panic!("{error}"));
            programs::measure();
        }
        "optimised" => {
            rows::measure_all(rows::OPTIMISED)?;
            registration::measure_jumps()?;
            actions::measure("").unwrap_or_else(|error| panic!("{error}"));
        }
        "four" => rows::measure_available(rows::FOUR, unavailable)?,
        "three" => rows::measure_available(rows::THREE, unavailable)?,
        "memory" => registration::measure_memory()?,
        "rates" => rates::measure()?,
        other => {
            pr_err!(
                "bench.set={other} is unknown; breakpoint, optimised, four, three, memory and \
             rates are known"
            );
            exit(ExitCode::Failure);
        }
    }
    exit(ExitCode::Success)
}

/// It is never unloaded.
fn no_exit() {}

/// Whether the row `name` is requested.
fn wanted(name: &str) -> bool {
    let rows = params().rows;
    rows.is_empty() || rows.split(',').any(|row| row == name)
}

/// Tells the host a result: `total` of `quantity` in `count` calls (or probes, or seconds).
fn tell(quantity: Quantity, name: &str, total: u64, count: u64) {
    report(&Measurement {
        quantity,
        name,
        total,
        count,
    });
}

/// Tells the host why a row has no result.
fn skip(name: &str, reason: &str) {
    report(&Skipped { name, reason });
}

fn report(line: &dyn Display) {
    // Again and again while the log is full: the host depends on it.
    while log::printk(Level::Emerg, &format_args!("{line}")) == 0 {
        hint::spin_loop();
    }
}
