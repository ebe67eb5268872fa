//! What it costs to register and unregister many probes in one call, and what memory they take.

use alloc::boxed::Box;

use kernel::{
    mm::{frame, heap},
    probes::{Kprobe, Kretprobe, ProbeError, register},
};
use test_protocol::Quantity;

use crate::{crowd::Crowd, params, stopwatch, tell, wanted};

/// How many probes are registered at once.
const PROBES: usize = 10_000;

/// Measures what is asked for.
///
/// # Errors
/// That of the first probe that is refused.
///
/// # Panics
/// If memory is lost.
pub fn measure() -> Result<(), ProbeError> {
    if ["register_10000", "unregister_10000"]
        .iter()
        .any(|name| wanted(name))
    {
        measure_kprobes()?;
        measure_instances()?;
    }
    Ok(())
}

fn measure_kprobes() -> Result<(), ProbeError> {
    let mut crowd = Crowd::new(PROBES);
    // The first time the pools grow, which is not what is measured.
    let before = memory();
    crowd.register_up_to(PROBES)?;
    let taken = memory() - before;
    crowd.unregister()?;
    let left = memory();

    let mut round = || -> Result<(u64, u64), ProbeError> {
        let (mut registered, mut unregistered) = (Ok(()), Ok(()));
        let register = stopwatch::ticks_of(|| registered = crowd.register_up_to(PROBES));
        registered?;
        let unregister = stopwatch::ticks_of(|| unregistered = crowd.unregister());
        unregistered?;
        Ok((register, unregister))
    };
    let first = round()?;
    for _ in 1..params().rounds.max(2) {
        let again = round()?;
        assert!(
            !params().exact || first == again,
            "two equal rounds took {first:?} and {again:?} ticks"
        );
    }
    let after = memory();
    assert_eq!(left, after, "bytes in use before and after the rounds");

    tell(Quantity::Cost, "register_10000", first.0, PROBES as u64);
    tell(Quantity::Cost, "unregister_10000", first.1, PROBES as u64);
    let own = PROBES * size_of::<Kprobe>();
    tell(Quantity::Memory, "kprobe", own as u64, PROBES as u64);
    tell(
        Quantity::Memory,
        "kprobe_registered",
        (own + taken) as u64,
        PROBES as u64,
    );
    Ok(())
}

fn measure_instances() -> Result<(), ProbeError> {
    let with = |instances: i32| -> Result<usize, ProbeError> {
        let before = memory();
        let probe = register(Box::new(
            Kretprobe::<()>::new()
                .symbol("bench_empty")
                .maxactive(instances),
        ))?;
        let taken = memory() - before;
        drop(probe);
        Ok(taken)
    };
    let (few, many) = (with(1000)?, with(2000)?);
    tell(Quantity::Memory, "instance", (many - few) as u64, 1000);
    Ok(())
}

/// Bytes in use: of the heap, and of frames that are not the heap's.
fn memory() -> usize {
    let (used, mapped) = heap::usage();
    used + (usize::MAX / 2 - frame::free_frames() * frame::FRAME_SIZE) - mapped
}
