//! What happens when memory runs out, and that hits need none.

use probes::{Jprobe, Kprobe, Kretprobe};

use super::{targets::*, *};
use crate::process::{
    PROBES, SLOT_PAGES,
    allocator::{allocations, with_room_for},
    boot, journal, text,
};
use std::sync::atomic::Ordering::Relaxed;

/// Registers `probes`, with room for ever more allocations, until it succeeds. Each failure must be told and change nothing.
fn with_ever_more_memory<T: Probe>(probes: &[&'static T]) -> u64 {
    for room in 0.. {
        let before = (list(), PROBES.slots_in_use(), text::image());
        let (result, short) = with_room_for(room, || PROBES.register_batch(probes));
        let Err(error) = result else {
            return room;
        };
        assert!(short, "{error}");
        assert_eq!((error.name(), error.errno()), ("OutOfMemory", 12));
        assert_eq!((list(), PROBES.slots_in_use(), text::image()), before);
        assert!(probes.iter().all(|probe| !probe.kprobe().is_registered()));
    }
    unreachable!("memory is finite")
}

// R20, R48
#[test]
fn every_allocation_may_fail() {
    let _machine = boot();
    let kprobe = leak(Kprobe::new().symbol("add").pre(pre::<1>));
    let with_post = leak(Kprobe::new().symbol("step_by_step").post(post::<2>));
    let joining = leak(Kprobe::new().symbol("add").post(post::<3>));
    assert!(with_ever_more_memory(&[kprobe]) > 0);
    with_ever_more_memory(&[with_post]);
    with_ever_more_memory(&[joining]);
    let call = leak(
        Kretprobe::<u64>::new()
            .symbol("add")
            .handler(returned::<4, u64>),
    );
    with_ever_more_memory(&[call]);
    probes::jprobe! {
        fn arguments(_a: u64, _b: u64) {
            journal::note(5);
        }
    }
    let jprobe = leak(Jprobe::new().symbol("add").entry(arguments));
    with_ever_more_memory(&[jprobe]);
    assert_eq!(add(1, 2), 3);
    assert_eq!(step_by_step(1), 4);
    assert_eq!(journal::take(), [1, 5, 3, 4, 2]);
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES
        .unregister_batch(&[kprobe, with_post, joining])
        .unwrap();
}

// R20: a batch large enough for tables and pages to grow in the middle of it.
#[test]
fn a_batch_that_runs_out_of_memory_is_rolled_back() {
    let _machine = boot();
    let mut batch: Vec<&'static Kprobe> = Vec::new();
    let code: Vec<_> = (0..12)
        .map(|_| crate::process::code::Code::new(|_| vec![0x90; 100]))
        .collect();
    for n in 0..code.len() * 100 {
        batch.push(leak(Kprobe::new().at(code[n / 100].start + n as u64 % 100)));
    }
    let before = (list(), PROBES.slots_in_use());
    for room in [3, 100, 700, 1199] {
        let (result, short) = with_room_for(room, || PROBES.register_batch(&batch));
        assert!(short);
        assert_eq!(result.unwrap_err().name(), "OutOfMemory");
        assert_eq!((list(), PROBES.slots_in_use()), before);
    }
    PROBES.register_batch(&batch).unwrap();
    PROBES.unregister_batch(&batch).unwrap();
}

// R20
#[test]
fn registration_fails_cleanly_when_there_are_no_slots() {
    let _machine = boot();
    // Pages that the pool has already stay; what they can hold is used up first.
    SLOT_PAGES.store(0, Relaxed);
    let code: Vec<_> = (0..250)
        .map(|_| crate::process::code::Code::new(|_| vec![0x90; 256]))
        .collect();
    let mut registered = Vec::new();
    let last = 'full: loop {
        for n in 0.. {
            let probe = leak(
                Kprobe::new()
                    .at(code[n / 256].start + n as u64 % 256)
                    .pre(pre::<1>),
            );
            match PROBES.register(probe) {
                Ok(()) => registered.push(probe),
                Err(error) => {
                    assert_eq!((error.name(), error.errno()), ("OutOfMemory", 12));
                    break 'full probe;
                }
            }
        }
    };
    refused(last, "OutOfMemory", 12);
    // Where a slot is there already, only a post handler needs another one.
    if let Some(first) = registered.first() {
        let shares = leak(Kprobe::new().at(first.addr()).pre(pre::<1>));
        PROBES.register(shares).unwrap();
        PROBES.unregister(shares).unwrap();
        if !stepping() {
            refused(
                leak(Kprobe::new().at(first.addr()).post(post::<1>)),
                "OutOfMemory",
                12,
            );
        }
    }
    PROBES.unregister_batch(&registered).unwrap();
    SLOT_PAGES.store(usize::MAX, Relaxed);
    PROBES.register(last).unwrap();
    PROBES.unregister(last).unwrap();
}

// H02
#[test]
fn hits_allocate_nothing() {
    let _machine = boot();
    probes::jprobe! {
        fn arguments(_a: u64, _b: u64) {}
    }
    let kprobe = leak(Kprobe::new().symbol("add").pre(pre::<1>).post(post::<2>));
    let call = leak(
        Kretprobe::<u64>::new()
            .symbol("add")
            .handler(returned::<3, u64>),
    );
    let jprobe = leak(Jprobe::new().symbol("add").entry(arguments));
    PROBES.register(kprobe).unwrap();
    PROBES.register(call).unwrap();
    PROBES.register(jprobe).unwrap();
    let made = allocations(|| {
        for _ in 0..10 {
            add(1, 2);
        }
    });
    assert_eq!(made, 0);
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES.unregister(kprobe).unwrap();
    assert_eq!(journal::take(), [1, 2, 3].repeat(10));
}
