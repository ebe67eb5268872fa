//! A hit's cost among other probes.
//!
//! The address of a probe alone says where its search in the address table starts. So a single
//! target may be lucky or unlucky. The figure is the mean over many targets, each of them the
//! newest probe, and the worst of them is reported too.

use alloc::format;

use kernel::probes::ProbeError;
use test_protocol::Quantity;

use crate::{
    crowd::{self, Crowd},
    handlers::register_empty_at,
    stopwatch::{self, Taken},
    targets::{SPREAD, Target},
    tell, wanted,
};

/// Each row: its name, and how many others are registered.
const ROWS: [(&str, usize); 5] = [
    ("k_int3_n0", 0),
    ("k_int3_n64", 64),
    ("k_int3_n1000", 1000),
    ("k_int3_n10000", 10_000),
    ("k_int3_n100000", crowd::SIZE),
];

/// Calls of each target.
const CALLS: u64 = 100;

/// Measures all requested rows.
///
/// # Errors
/// That of the first probe that is refused.
pub fn measure() -> Result<(), ProbeError> {
    let rows = ROWS.iter().filter(|(name, _)| wanted(name));
    let Some(most) = rows.clone().map(|(_, others)| *others).max() else {
        return Ok(());
    };
    let mut crowd = Crowd::new(most);
    for (name, others) in rows {
        crowd.register_up_to(*others)?;
        let (mut sum, mut worst) = (Taken { ticks: 0, traps: 0 }, 0);
        for target in 0..SPREAD {
            let taken = hit(&format!("bench_spread_{target}"))?;
            sum.ticks += taken.ticks;
            sum.traps += taken.traps;
            worst = worst.max(taken.ticks);
        }
        let calls = CALLS * SPREAD as u64;
        tell(Quantity::Cost, name, sum.ticks, calls);
        tell(Quantity::Traps, name, sum.traps, calls);
        tell(Quantity::Worst, name, worst, CALLS);
    }
    crowd.unregister()
}

/// The cost of [`CALLS`] calls of `symbol` with a probe on it.
fn hit(symbol: &str) -> Result<Taken, ProbeError> {
    let target = Target::named(symbol);
    let probe = register_empty_at(target.address())?;
    let taken = stopwatch::calls(target, CALLS);
    assert_eq!(
        (probe.hits(), probe.missed()),
        (stopwatch::calls_of(CALLS), 0),
        "hits and misses"
    );
    Ok(taken)
}
