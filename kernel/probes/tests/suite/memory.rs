//! Registrations when memory runs out, and hits, which need none.
//!
//! Without jumps: for want of memory a breakpoint stays one, and nothing is said (`shortage`).

use alloc::sync::Arc;
use core::cell::Cell;

use probes::{Jprobe, Kprobe, Kretprobe};

use super::{code::Code, targets::*, *};
use crate::platform::allocator::{allocations, kept_with_room_for, with_room_for};

/// All that a registration could leave behind but memory: the list, slots, text.
type State = (Vec<String>, usize, text::Image);

fn state() -> State {
    (list(), PROBES.slots_in_use(), text::image())
}

/// Has `work` fail for want of memory at its first allocation, at its second, and so on until it
/// succeeds. Each failure must be told and change nothing. Returns how many allocations it has.
#[track_caller]
fn with_ever_more_memory(
    mut work: impl FnMut() -> Result<(), ProbeError>,
    mut failed: impl FnMut(u64, i64),
) -> u64 {
    for room in 0.. {
        let before = state();
        let (result, short, kept) = kept_with_room_for(room, &mut work);
        let Err(error) = result else {
            assert!(!short, "an allocation failed and nobody was told");
            return room;
        };
        assert!(short, "{error}");
        assert_eq!((error.name(), error.errno()), ("OutOfMemory", 12));
        assert!(state() == before, "allocation {room} has left a trace");
        failed(room, kept);
    }
    unreachable!("memory is finite")
}

/// Does `work`, with every allocation failing once in turn: while the pools are small, so that they
/// grow, and, after `undo`, once more. Then nothing grows, and each failure must leave as much
/// memory as it has found. Returns how many allocations that was; the work is done then.
#[track_caller]
fn at_each_allocation(
    mut work: impl FnMut() -> Result<(), ProbeError>,
    undo: impl FnOnce(),
) -> u64 {
    with_ever_more_memory(&mut work, |_, _| {});
    undo();
    with_ever_more_memory(work, |room, kept| {
        assert_eq!(kept, 0, "bytes kept by the failure at allocation {room}");
    })
}

/// Registers `probes` as one, with every allocation failing once in turn.
#[track_caller]
fn registered_at_last<T: Probe>(probes: &[&'static T]) -> u64 {
    at_each_allocation(
        || {
            let result = PROBES.register_batch(probes);
            let registered = probes.iter().all(|probe| probe.kprobe().is_registered());
            assert_eq!(result.is_ok(), registered);
            result
        },
        || PROBES.unregister_batch(probes).unwrap(),
    )
}

probes::jprobe! {
    fn arguments(_a: u64, _b: u64) {
        journal::note(5);
    }
}

fn call<const N: u64>() -> Kretprobe<u64> {
    Kretprobe::new().handler(returned::<N, u64>)
}

#[test]
fn every_allocation_may_fail() {
    let _machine = boot().without_jumps();
    let kprobe = leak(Kprobe::new().symbol("add").pre(pre::<1>));
    let with_post = leak(Kprobe::new().symbol("step_by_step").post(post::<2>));
    assert!(registered_at_last(&[kprobe]) > 0);
    assert!(registered_at_last(&[with_post]) > 0);
    // The same for probes that join others.
    let joining = leak(Kprobe::new().symbol("add").post(post::<3>));
    let call = leak(call::<4>().symbol("add"));
    let jprobe = leak(Jprobe::new().symbol("add").entry(arguments));
    registered_at_last(&[joining]);
    assert!(registered_at_last(&[call]) > 0);
    registered_at_last(&[jprobe]);
    assert_eq!(add(1, 2), 3);
    assert_eq!(step_by_step(1), 4);
    assert_eq!(journal::take(), [1, 5, 3, 4, 2]);
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES
        .unregister_batch(&[kprobe, with_post, joining])
        .unwrap();
}

#[test]
fn every_allocation_of_a_batch_may_fail() {
    let _machine = boot().without_jumps();
    let names = ["add", "step_by_step", "neighbour"];
    let kprobes = names.map(|name| leak(Kprobe::new().symbol(name).pre(pre::<1>).post(post::<2>)));
    let calls = names.map(|name| leak(call::<3>().symbol(name)));
    let jprobes = names.map(|name| leak(Jprobe::new().symbol(name).entry(arguments)));
    let alone = registered_at_last(&kprobes[..1]);
    PROBES.unregister(kprobes[0]).unwrap();
    // Each probe allocates as if it were alone, except for the copy of its function's bytes: that
    // of the function before may have room for it.
    let allocations = registered_at_last(&kprobes);
    assert!((3 * alone - 2..=3 * alone).contains(&allocations));
    PROBES.unregister_batch(&kprobes).unwrap();
    assert!(registered_at_last(&calls) > 3);
    PROBES.unregister_batch(&calls).unwrap();
    assert!(registered_at_last(&jprobes) > 0);
    PROBES.unregister_batch(&jprobes).unwrap();
}

#[test]
fn every_allocation_for_an_owned_probe_may_fail() {
    let _machine = boot().without_jumps();
    fn try_all<T: Probe + Send + 'static>(probe: T) {
        let probe = Arc::new(probe);
        let handle = Cell::new(None);
        let made = at_each_allocation(
            || {
                handle.set(Some(PROBES.register_owned(Arc::clone(&probe))?));
                Ok(())
            },
            || drop(handle.take()),
        );
        assert!(made > 1, "the handle has memory of its own");
        assert_eq!(add(1, 2), 3);
        drop(handle.take());
        assert_eq!(Arc::strong_count(&probe), 1);
    }
    try_all(Kprobe::new().symbol("add").pre(pre::<1>));
    try_all(call::<2>().symbol("add"));
    try_all(Jprobe::new().symbol("add").entry(arguments));
    assert_eq!(journal::take(), [1, 2, 5]);
}

/// Calls are in flight in more kretprobes than any list has room for by itself.
#[test]
fn unregistering_with_calls_in_flight_needs_no_memory() {
    let _machine = boot().without_jumps();
    static CALLS: Mutex<Vec<&'static Kretprobe<u64>>> = Mutex::new(Vec::new());
    let calls: Vec<_> = (0..40)
        .map(|_| leak(call::<1>().symbol("calls_back")))
        .collect();
    *CALLS.lock() = calls.clone();
    extern "C" fn unregister(_: u64) {
        let calls = CALLS.lock().clone();
        let (result, short) = with_room_for(0, || PROBES.unregister_batch(&calls));
        assert!(result.is_ok() && !short);
        assert_eq!(PROBES.reap(), Ok(calls.len()));
    }
    PROBES.register_batch(&calls).unwrap();
    assert_eq!(calls_back(unregister, 6), 7);
    assert_eq!(journal::take(), [], "they return quietly");
    assert_eq!(PROBES.reap(), Ok(0));
}

/// One for the displaced instruction, and one for what is executed in front of a post handler or
/// stepped.
#[test]
fn a_probe_has_as_many_slots_as_it_needs() {
    let _machine = boot();
    let kprobe = || Kprobe::new().symbol("add");
    let before = PROBES.slots_in_use();
    for (shape, step, slots) in [
        (kprobe(), StepMethod::Translate, 1),
        (kprobe().post(post::<1>), StepMethod::Translate, 2),
        (kprobe(), StepMethod::TrapFlag, 2),
        (kprobe().post(post::<1>), StepMethod::TrapFlag, 2),
    ] {
        let probe = leak(shape.step_method(step));
        PROBES.register(probe).unwrap();
        assert_eq!(PROBES.slots_in_use() - before, slots, "{step:?}");
        PROBES.unregister(probe).unwrap();
    }
}

/// A kretprobe is gone, and its calls have come back: the next operation gives its memory back,
/// whatever that operation is.
#[test]
fn the_next_operation_frees_what_has_come_back() {
    let _machine = boot().without_jumps();
    static CALL: Mutex<Option<&'static Kretprobe<u64>>> = Mutex::new(None);
    extern "C" fn unregister(_: u64) {
        let call = CALL.lock().unwrap();
        PROBES.unregister(call).unwrap();
    }
    let call = leak(call::<1>().symbol("calls_back"));
    *CALL.lock() = Some(call);
    PROBES.register(call).unwrap();
    assert_eq!(calls_back(unregister, 6), 7);
    // The knob is on already, so there is nothing else to be done.
    let turn = || PROBES.set_enabled(true).unwrap();
    let ((), _, kept) = kept_with_room_for(u64::MAX, turn);
    assert!(kept < 0, "{kept} bytes");
    let ((), _, kept) = kept_with_room_for(u64::MAX, turn);
    assert_eq!((kept, PROBES.reap()), (0, Ok(0)));
    assert_eq!(journal::take(), []);
}

/// Registers a probe of each kind on [`add`].
fn one_of_each_on_add() -> (&'static Kprobe, &'static Kretprobe<u64>, &'static Jprobe) {
    let kprobe = leak(Kprobe::new().symbol("add").pre(pre::<1>).post(post::<2>));
    let call = leak(call::<3>().symbol("add"));
    let jprobe = leak(Jprobe::new().symbol("add").entry(arguments));
    PROBES.register(kprobe).unwrap();
    PROBES.register(call).unwrap();
    PROBES.register(jprobe).unwrap();
    (kprobe, call, jprobe)
}

#[test]
fn only_registering_needs_memory() {
    let _machine = boot().without_jumps();
    let (kprobe, call, jprobe) = one_of_each_on_add();
    let handle = PROBES
        .register_owned(Box::new(Kprobe::new().symbol("neighbour")))
        .unwrap();
    let ((), short) = with_room_for(0, || {
        PROBES.disable(kprobe).unwrap();
        PROBES.disable(call).unwrap();
        PROBES.enable(kprobe).unwrap();
        PROBES.enable(call).unwrap();
        PROBES.unregister(jprobe).unwrap();
        PROBES.unregister(call).unwrap();
        PROBES.unregister_batch(&[kprobe]).unwrap();
        drop(handle);
        PROBES.reap().unwrap();
    });
    assert!(!short);
    assert_eq!(list(), [""; 0]);
}

// A batch large enough for tables and pages to grow in the middle of it.
#[test]
fn a_batch_that_runs_out_of_memory_is_rolled_back() {
    let _machine = boot().without_jumps();
    let mut batch: Vec<&'static Kprobe> = Vec::new();
    let code: Vec<_> = (0..12).map(|_| Code::new(|_| vec![0x90; 100])).collect();
    for n in 0..code.len() * 100 {
        batch.push(leak(Kprobe::new().at(code[n / 100].start + n as u64 % 100)));
    }
    let before = (list(), PROBES.slots_in_use());
    let mut failures = 0;
    for room in (0..).map(|n| 1 << n) {
        let (result, short) = with_room_for(room, || PROBES.register_batch(&batch));
        if !short {
            result.unwrap();
            break;
        }
        failures += 1;
        assert_eq!(result.unwrap_err(), ProbeError::OutOfMemory);
        assert_eq!((list(), PROBES.slots_in_use()), before);
    }
    assert!(failures > 2, "{failures} times short of memory");
    PROBES.unregister_batch(&batch).unwrap();
}

// The kernel's pool of slots has no end but memory's, which `shortage` tries there.
#[cfg(target_os = "linux")]
#[test]
fn registration_fails_cleanly_when_there_are_no_slots() {
    let _machine = boot().without_jumps();
    // Pages that the pool has already stay; what they can hold is used up first.
    text::limit_slot_pages(0);
    let code: Vec<_> = (0..250).map(|_| Code::new(|_| vec![0x90; 256])).collect();
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
    text::limit_slot_pages(usize::MAX);
    PROBES.register(last).unwrap();
    PROBES.unregister(last).unwrap();
}

/// The memory of a probe serves the next one: with every kind registered and unregistered more
/// often than pools have room.
#[test]
fn probes_that_come_and_go_hold_no_more_memory_in_the_end() {
    let _machine = boot().without_jumps();
    let kprobe = leak(Kprobe::new().symbol("add").pre(pre::<1>).post(post::<2>));
    let calls = [ReturnMethod::Asm, ReturnMethod::Trap3, ReturnMethod::Trap4]
        .map(|method| leak(call::<3>().symbol("add").return_method(method)));
    let round = || {
        PROBES.register(kprobe).unwrap();
        for call in calls {
            PROBES.register(call).unwrap();
            PROBES.unregister(call).unwrap();
        }
        PROBES.unregister(kprobe).unwrap();
    };
    round();
    // A page of counters has 511.
    let rounds = || (0..600).for_each(|_| round());
    let ((), _, kept) = kept_with_room_for(u64::MAX, rounds);
    assert_eq!(kept, 0);
}

#[test]
fn hits_allocate_nothing() {
    let _machine = boot();
    let (kprobe, call, jprobe) = one_of_each_on_add();
    let made = allocations(|| {
        for _ in 0..10 {
            add(1, 2);
        }
    });
    assert_eq!(made, 0);
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES.unregister(kprobe).unwrap();
    assert_eq!(journal::take(), [1, 5, 2, 3].repeat(10));
}
