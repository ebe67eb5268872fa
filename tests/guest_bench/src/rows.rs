//! The table of rows, and how one is measured.
//!
//! First the probes of a row have counting handlers, which must run as often as the row says. Then
//! they have empty ones, and the cost is that of these.

use alloc::{boxed::Box, vec::Vec};

use kernel::probes::ProbeError;
use test_protocol::Quantity;

use crate::{
    handlers::{
        Armed, Counting, Empty,
        HandlerKind::{
            self, Jprobe, Kprobe, KprobePost, Kretprobe, KretprobeEntry, Object, Watchpoint,
            WatchpointCount,
        },
        Handlers, counted,
    },
    skip,
    stopwatch::{self, Taken},
    targets::{DEPTH, Target},
    tell, wanted,
};

/// Calls that a figure is the mean of.
pub const CALLS: u64 = 1000;

/// One row of the benchmark.
pub struct Row {
    name: &'static str,
    target: &'static str,
    /// Where in the target the probes go.
    offset: u32,
    probes: &'static [HandlerKind],
    /// How often a call hits each probe.
    hits: u64,
    /// How many #BP and #DB exceptions a call takes.
    traps: u64,
}

/// A row whose probes are at the entry of `target`.
const fn row(name: &'static str, target: &'static str, probes: &'static [HandlerKind]) -> Row {
    Row {
        name,
        target,
        offset: 0,
        probes,
        hits: 1,
        traps: 0,
    }
}

impl Row {
    const fn offset(mut self, bytes: u32) -> Self {
        self.offset = bytes;
        self
    }

    const fn traps(mut self, per_call: u64) -> Self {
        self.traps = per_call;
        self
    }

    const fn hits(mut self, per_call: u64) -> Self {
        self.hits = per_call;
        self
    }
}

/// Everything that is served by breakpoints.
#[rustfmt::skip]
pub static BREAKPOINT: &[Row] = &[
    row("base", "bench_empty", &[]),
    row("k_int3", "bench_empty", &[Kprobe]).traps(1),
    row("k_int3_post", "bench_empty", &[KprobePost]).traps(1),
    row("r_int3", "bench_empty", &[Kretprobe]).traps(1),
    row("r_int3_entry", "bench_empty", &[KretprobeEntry]).traps(1),
    row("r2_int3", "bench_empty", &[Kretprobe, Kretprobe]).traps(1),
    row("j_int3", "bench_empty", &[Jprobe]).traps(2),
    row("kr_int3", "bench_empty", &[Kprobe, Kretprobe]).traps(1),
    row("jr_int3", "bench_empty", &[Jprobe, Kretprobe]).traps(2),

    row("base_mid_mov", "bench_mov", &[]),
    row("k_mid_mov", "bench_mov", &[Kprobe]).offset(4).traps(1),
    row("base_mid_push", "bench_push", &[]),
    row("k_mid_push", "bench_push", &[Kprobe]).offset(4).traps(1),
    row("base_mid_load", "bench_load", &[]),
    row("k_mid_load", "bench_load", &[Kprobe]).offset(4).traps(1),
    row("base_mid_nop", "bench_nop", &[]),
    row("k_mid_nop", "bench_nop", &[Kprobe]).offset(4).traps(1),
    row("base_mid_jcc_taken", "bench_jcc_taken", &[]),
    row("k_mid_jcc_taken", "bench_jcc_taken", &[Kprobe]).offset(6).traps(1),
    row("base_mid_jcc_not", "bench_jcc_not", &[]),
    row("k_mid_jcc_not", "bench_jcc_not", &[Kprobe]).offset(6).traps(1),
    row("base_mid_call", "bench_call", &[]),
    row("k_mid_call", "bench_call", &[Kprobe]).offset(4).traps(1),
    row("base_mid_ret", "bench_ret", &[]),
    row("k_mid_ret", "bench_ret", &[Kprobe]).offset(5).traps(1),
    row("base_mid_rip", "bench_rip", &[]),
    row("k_mid_rip", "bench_rip", &[Kprobe]).offset(4).traps(1),

    row("base_store", "bench_store", &[]),
    row("w_write", "bench_store", &[Watchpoint]).traps(1),
    row("w_count", "bench_store", &[WatchpointCount]).traps(1),
    row("w_object", "bench_store", &[Object]).traps(1),

    row("base_rec8", "bench_recurse", &[]),
    row("rec8_k", "bench_recurse", &[Kprobe]).hits(DEPTH).traps(DEPTH),
    row("rec8_r", "bench_recurse", &[Kretprobe]).hits(DEPTH).traps(DEPTH),
];

/// The same by jumps.
pub static OPTIMISED: &[Row] = &[
    row("k_opt", "bench_empty", &[Kprobe]),
    row("r_opt", "bench_empty", &[Kretprobe]),
    row("r_opt_entry", "bench_empty", &[KretprobeEntry]),
    row("r2_opt", "bench_empty", &[Kretprobe, Kretprobe]),
    row("kr_opt", "bench_empty", &[Kprobe, Kretprobe]),
    row("rec8_r_opt", "bench_recurse", &[Kretprobe]).hits(DEPTH),
];

/// The return path of 2005 with four exceptions.
pub static FOUR: &[Row] = &[row("r_2005_four", "bench_empty", &[Kretprobe]).traps(4)];

/// The return path of 2005 with three exceptions.
pub static THREE: &[Row] = &[row("r_2005_three", "bench_empty", &[Kretprobe]).traps(3)];

/// Measures the requested ones of `rows`.
///
/// # Errors
/// That of the first probe that is refused.
///
/// # Panics
/// If handlers did not run, or exceptions were not taken, as often as they should.
pub fn measure_all(rows: &[Row]) -> Result<(), ProbeError> {
    let mut wanted = rows.iter().filter(|row| wanted(row.name));
    wanted.try_for_each(|row| {
        let taken = measure(row)?;
        assert_eq!(
            taken.traps,
            CALLS * row.traps,
            "{}: exceptions in {CALLS} calls",
            row.name
        );
        publish(row, taken);
        Ok(())
    })
}

/// The same for rows that this kernel may not have. A row that takes other exceptions than it
/// should is skipped for `reason`.
///
/// # Errors
/// That of the first probe that is refused.
///
/// # Panics
/// If handlers did not run as often as they should.
pub fn measure_available(rows: &[Row], reason: &str) -> Result<(), ProbeError> {
    for row in rows.iter().filter(|row| wanted(row.name)) {
        let taken = measure(row)?;
        if taken.traps == CALLS * row.traps {
            publish(row, taken);
        } else {
            skip(row.name, reason);
        }
    }
    Ok(())
}

fn publish(row: &Row, taken: Taken) {
    tell(Quantity::Cost, row.name, taken.ticks, CALLS);
    tell(Quantity::Traps, row.name, taken.traps, CALLS);
}

fn measure(row: &Row) -> Result<Taken, ProbeError> {
    let target = Target::named(row.target);

    let probes = register::<Counting>(row)?;
    counted();
    target.call(CALLS);
    drop(probes);
    let handlers: u64 = row.probes.iter().map(|kind| kind.handlers()).sum();
    let (ran, due) = (counted(), CALLS * row.hits * handlers);
    assert_eq!(
        ran, due,
        "{}: handlers ran {ran} times, not {due}",
        row.name
    );

    let probes = register::<Empty>(row)?;
    let taken = stopwatch::calls(target, CALLS);
    for probe in &probes {
        assert_eq!(
            (probe.hits(), probe.missed()),
            (stopwatch::calls_of(CALLS) * row.hits, 0),
            "{}: hits and misses",
            row.name
        );
    }
    Ok(taken)
}

fn register<H: Handlers + 'static>(row: &Row) -> Result<Vec<Box<dyn Armed>>, ProbeError> {
    row.probes
        .iter()
        .map(|kind| kind.register::<H>(row.target, row.offset))
        .collect()
}
