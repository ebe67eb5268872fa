//! The cost of registering and unregistering many probes in one call, and the memory they take.

use alloc::boxed::Box;

use kernel::{
    mm::{frame, heap},
    probes::{Kprobe, Kretprobe, ProbeError, register},
};
use test_protocol::Quantity;

use crate::{crowd::Crowd, params, stopwatch, tell, wanted};

/// How many probes are registered at once.
const PROBES: usize = 10_000;
/// How many of those that become jumps.
const JUMPS: usize = 15_000;

/// Measures the cost, if this is requested.
///
/// # Errors
/// That of the first probe that is refused.
pub fn measure() -> Result<(), ProbeError> {
    if !(wanted("register_10000") || wanted("unregister_10000")) {
        return Ok(());
    }
    let mut crowd = Crowd::new(PROBES);
    // The pools grow the first time. That is not measured.
    round(&mut crowd)?;
    let (registering, unregistering) = round(&mut crowd)?;
    tell(Quantity::Cost, "register_10000", registering, PROBES as u64);
    tell(
        Quantity::Cost,
        "unregister_10000",
        unregistering,
        PROBES as u64,
    );
    Ok(())
}

/// Measures what it costs to register probes whose breakpoints become jumps at once, and to
/// unregister them, if that is asked for.
///
/// # Errors
/// That of the first probe that is refused.
///
/// # Panics
/// If one of them is no jump.
pub fn measure_jumps() -> Result<(), ProbeError> {
    if !(wanted("jump_15000") || wanted("unjump_15000")) {
        return Ok(());
    }
    let mut crowd = Crowd::apart(JUMPS);
    for is_measured in [false, true] {
        let (mut registered, mut unregistered) = (Ok(()), Ok(()));
        let register = stopwatch::ticks_of(|| registered = crowd.register_up_to(JUMPS));
        registered?;
        assert_eq!(crowd.jumps(), JUMPS, "probes that are jumps");
        let unregister = stopwatch::ticks_of(|| unregistered = crowd.unregister());
        unregistered?;
        if is_measured {
            tell(Quantity::Cost, "jump_15000", register, JUMPS as u64);
            tell(Quantity::Cost, "unjump_15000", unregister, JUMPS as u64);
        }
    }
    Ok(())
}

/// Registers and unregisters all of `crowd`. Returns the ticks that each took.
fn round(crowd: &mut Crowd) -> Result<(u64, u64), ProbeError> {
    let (mut registered, mut unregistered) = (Ok(()), Ok(()));
    let register = stopwatch::ticks_of(|| registered = crowd.register_up_to(PROBES));
    registered?;
    let unregister = stopwatch::ticks_of(|| unregistered = crowd.unregister());
    unregistered?;
    Ok((register, unregister))
}

/// Measures memory: of many probes, and after many rounds of registering and unregistering them.
///
/// # Errors
/// That of the first probe that is refused.
///
/// # Panics
/// If memory is lost.
pub fn measure_memory() -> Result<(), ProbeError> {
    let mut crowd = Crowd::new(PROBES);
    let before = memory();
    crowd.register_up_to(PROBES)?;
    let taken = memory() - before;
    crowd.unregister()?;
    let left = memory();
    for round in 1..=params().rounds {
        crowd.register_up_to(PROBES)?;
        crowd.unregister()?;
        assert_eq!(
            left,
            memory(),
            "bytes in use before and after round {round}"
        );
    }
    tell(
        Quantity::Memory,
        "memory_kprobe",
        size_of::<Kprobe>() as u64,
        1,
    );
    tell(
        Quantity::Memory,
        "memory_registered",
        taken as u64,
        PROBES as u64,
    );
    measure_instances()
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
    tell(
        Quantity::Memory,
        "memory_instance",
        (many - few) as u64,
        1000,
    );
    Ok(())
}

/// Bytes in use: of the heap, and of frames that are not the heap's.
fn memory() -> usize {
    let (used, mapped) = heap::usage();
    used + (usize::MAX / 2 - frame::free_frames() * frame::FRAME_SIZE) - mapped
}
