//! Hits per second on one CPU, and on several at the same time: on one probe, and on a probe of its
//! own for each CPU.

use alloc::{format, sync::Arc, vec::Vec};
use core::{
    hint,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use kernel::{
    arch::smp,
    probes::ProbeError,
    task::kthread::spawn_kthread_on,
    time::{NSEC_PER_MSEC, NSEC_PER_SEC, ktime_get},
};
use test_protocol::Quantity;

use crate::{
    handlers::register_empty_at,
    targets::{SPREAD, Target},
    tell,
};

/// How long each CPU calls.
const DURATION_NS: u64 = 500 * NSEC_PER_MSEC;
/// From the start of the threads until they begin.
const HEAD_START_NS: u64 = 50 * NSEC_PER_MSEC;
/// Calls between two looks at the clock.
const CALLS: u64 = 1000;

/// Measures with 1 CPU, with 2, and so on.
///
/// # Errors
/// That of the first probe that is refused.
///
/// # Panics
/// If handlers did not run as often as they should.
pub fn measure() -> Result<(), ProbeError> {
    for cpus in 1..=smp::online_cpus().min(SPREAD) {
        let one = [Target::named("bench_empty")];
        rate(&format!("one_probe_{cpus}_cpus"), cpus, &one)?;
        let own: Vec<Target> = (0..cpus)
            .map(|cpu| Target::named(&format!("bench_spread_{cpu}")))
            .collect();
        rate(&format!("own_probes_{cpus}_cpus"), cpus, &own)?;
    }
    Ok(())
}

/// Lets `cpus` CPUs call `targets`, each its own or all the only one.
fn rate(name: &str, cpus: usize, targets: &[Target]) -> Result<(), ProbeError> {
    let probes = targets
        .iter()
        .map(|target| register_empty_at(target.address()))
        .collect::<Result<Vec<_>, _>>()?;
    let calls = Arc::new(AtomicU64::new(0));
    let start = ktime_get() + HEAD_START_NS;
    let threads: Vec<_> = (0..cpus)
        .map(|cpu| {
            let target = targets[cpu % targets.len()];
            let all_calls = calls.clone();
            let body = move || {
                while ktime_get() < start {
                    hint::spin_loop();
                }
                let mut calls = 0;
                while ktime_get() < start + DURATION_NS {
                    target.call(CALLS);
                    calls += CALLS;
                }
                all_calls.fetch_add(calls, Relaxed);
            };
            spawn_kthread_on(1 << cpu, "bench", body).expect("memory for a thread")
        })
        .collect();
    threads.iter().for_each(|thread| thread.wait_released());
    let calls = calls.load(Relaxed);
    let (hits, missed) = probes.iter().fold((0, 0), |(hits, missed), probe| {
        (hits + probe.hits(), missed + probe.missed())
    });
    assert_eq!(
        (hits, missed),
        (calls, 0),
        "{name}: hits and misses of {calls} calls"
    );
    tell(Quantity::Rate, name, calls * NSEC_PER_SEC, DURATION_NS);
    Ok(())
}
