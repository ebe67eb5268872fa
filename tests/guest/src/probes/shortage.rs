//! Registrations while memory is short: every allocation of this kernel's fails once, and nothing
//! comes of it.
//!
//! The allocations of the crate itself are tried in a process, too; here the kernel's part of it
//! comes in: names, symbols, frames and page tables for slots, the heap.

use crate::tools::numbered_targets::numbered_targets;
use abi::WaitStatus;
use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};
use core::hint::black_box;
use kernel::{
    log,
    mm::{
        allocation_faults::{Outcome, with_room_for},
        heap,
    },
    probes::{
        Jprobe, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, Probe, ProbeError,
        PtRegs, ReturnMethod, disable_kprobe, enable_kprobe, jprobe, register, survey,
        unregister_kprobe,
    },
    symbols::{self, Symbol},
    task::{exec::run_program, kthread::spawn_kthread},
    time::ktime_get,
};

numbered_targets! { short_one 101 short_two 102 short_three 103 }

const TARGETS: [&str; 3] = ["short_one", "short_two", "short_three"];

/// The most data that a call may have.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "only its size counts")]
struct Large([u64; 512]);

impl Default for Large {
    fn default() -> Self {
        Self([0; 512])
    }
}

fn nothing(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn nothing_after(_probe: &Kprobe, _regs: &mut PtRegs, _zero: u64) {}

fn returned(_call: &mut KretprobeInstance<u64>, _regs: &mut PtRegs) {}

jprobe! {
    fn mirror(_a: u64) {}
}

/// The traces that a registration could leave besides memory: listed probes, slots, and text.
fn state() -> (Vec<u64>, usize, Vec<u8>) {
    let mut listed = Vec::new();
    PROBES.for_each(|each| listed.push(each.probe.addr()));
    let text = TARGETS.map(|name| {
        let symbol = symbols::lookup_name(name).expect("a function of this file");
        // SAFETY: kernel text is mapped and readable for ever.
        unsafe { core::slice::from_raw_parts(symbol.start as *const u8, symbol.size as usize) }
    });
    (listed, PROBES.slots_in_use(), text.concat())
}

/// Has `work` fail for want of memory at its first allocation, at its second, and so on until that
/// is not its answer any more. Returns that answer, and how many allocations it took.
fn with_ever_more_memory<T>(
    mut work: impl FnMut() -> Result<T, ProbeError>,
    mut kept: impl FnMut(u64, i64),
) -> (Result<T, ProbeError>, u64) {
    for room in 0.. {
        let before = state();
        let Outcome {
            result,
            refused,
            kept: bytes,
            ..
        } = with_room_for(room, &mut work);
        if !matches!(result, Err(ProbeError::OutOfMemory)) {
            assert_eq!(refused, 0, "an allocation was refused and nobody was told");
            return (result, room);
        }
        assert!(refused > 0);
        assert_eq!(result.map(drop).unwrap_err().errno(), 12);
        assert_eq!(state(), before, "allocation {room} has left a trace");
        kept(room, bytes);
    }
    unreachable!("memory is finite")
}

/// Registers with every allocation failing once in turn: first while pools grow, then, after that
/// registration is undone, again; then no failure may keep a byte. Returns also how many
/// allocations the last one took: it may be none, because sites are kept for the next probe.
fn registered_at_last<T>(
    mut register: impl FnMut() -> Result<T, ProbeError>,
    undo: impl FnOnce(T),
) -> (T, u64) {
    let (first, _) = with_ever_more_memory(&mut register, |_, _| {});
    undo(first.unwrap());
    let (again, allocations) = with_ever_more_memory(register, |room, bytes| {
        assert_eq!(bytes, 0, "bytes kept by the failure at allocation {room}");
    });
    (again.unwrap(), allocations)
}

/// Returns how many allocations the batch takes when pools have grown.
fn batch<T: Probe>(probes: [&'static T; 3]) -> u64 {
    let ((), allocations) = registered_at_last(
        || PROBES.register_batch(&probes),
        |()| PROBES.unregister_batch(&probes).unwrap(),
    );
    for target in [short_one, short_two, short_three] {
        target(black_box(1));
    }
    PROBES.unregister_batch(&probes).unwrap();
    allocations
}

fn owned<T: Probe + Send + 'static>(probe: T) {
    let probe = Arc::new(probe);
    let (handle, allocations) = registered_at_last(|| register(Arc::clone(&probe)), drop);
    assert!(allocations > 0);
    short_one(black_box(1));
    drop(handle);
    assert_eq!(Arc::strong_count(&probe), 1);
}

fn leak<T>(probe: T) -> &'static T {
    Box::leak(Box::new(probe))
}

/// Batches of each kind, by name and by address, with and without post handlers.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn each_allocation_of_a_batch_may_fail() {
    batch(TARGETS.map(|name| leak(Kprobe::new().symbol(name).pre(nothing))));
    batch(TARGETS.map(|name| leak(Kprobe::new().symbol(name).pre(nothing).post(nothing_after))));
    let address = |name| symbols::lookup_name(name).unwrap().start;
    batch(TARGETS.map(|name| leak(Kprobe::new().at(address(name)).pre(nothing))));
    let calls = batch(TARGETS.map(|name| {
        let call = Kretprobe::<u64>::new().symbol(name);
        leak(call.handler(returned))
    }));
    assert!(calls >= 3, "each has its own instances");
    batch(TARGETS.map(|name| leak(Jprobe::new().symbol(name).entry(mirror))));
    assert_eq!(PROBES.slots_in_use(), 0);
}

/// A batch that has more sites than were ever there. In a boot with few probes before.
#[guest_test(cmdline = "kprobes.optimize=0 kprobes.return=trap4")]
fn each_allocation_of_a_batch_that_grows_the_pool_of_sites_may_fail() {
    let first = |symbol: Symbol<'static>| {
        let first = survey::function(&symbol).ok()?.into_iter().next()?;
        first.verdict.is_ok().then(|| first.insn.ip())
    };
    let probes: Vec<_> = symbols::functions()
        .filter_map(first)
        .take(512)
        .map(|addr| leak(Kprobe::new().at(addr).disabled()))
        .collect();
    let register = || PROBES.register_batch(&probes);
    let (result, allocations) = with_ever_more_memory(register, |_, _| {});
    result.unwrap();
    PROBES.unregister_batch(&probes).unwrap();
    let (result, of_the_second) = with_ever_more_memory(register, |room, bytes| {
        assert_eq!(bytes, 0, "bytes kept by the failure at allocation {room}");
    });
    result.unwrap();
    PROBES.unregister_batch(&probes).unwrap();
    assert!(
        allocations > of_the_second,
        "{allocations} and {of_the_second}"
    );
}

/// Handles of each kind, alone at their address and beside others.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn each_allocation_of_an_owned_probe_may_fail() {
    let kinds = || {
        owned(Kprobe::new().symbol("short_one").pre(nothing));
        owned(Kprobe::new().symbol("short_one").post(nothing_after));
        owned(
            Kretprobe::<u64>::new()
                .symbol("short_one")
                .handler(returned),
        );
        owned(Jprobe::new().symbol("short_one").entry(mirror));
        owned(Kprobe::new().symbol("short_one").disabled());
    };
    kinds();
    let resident = register(Box::new(Kprobe::new().symbol("short_one").pre(nothing))).unwrap();
    kinds();
    drop(resident);
}

/// The first kretprobe whose calls return by traps needs a probe at their trampoline, for which
/// memory may be short as well. In a boot without any before.
#[guest_test(cmdline = "kprobes.optimize=0 kprobes.step=tf")]
fn each_allocation_of_the_first_return_by_traps_may_fail() {
    for method in [ReturnMethod::Trap3, ReturnMethod::Trap4] {
        let probe = leak(
            Kretprobe::<u64>::new()
                .symbol("short_one")
                .return_method(method)
                .handler(returned),
        );
        let register = || PROBES.register(probe);
        let (first, allocations_of_first) = with_ever_more_memory(register, |_, _| {});
        first.unwrap();
        short_one(black_box(1));
        assert_eq!((probe.hits(), probe.nmissed()), (1, 0), "{method:?}");
        PROBES.unregister(probe).unwrap();
        let (again, allocations) = with_ever_more_memory(register, |_, _| {});
        again.unwrap();
        PROBES.unregister(probe).unwrap();
        assert!(
            allocations < allocations_of_first,
            "{method:?}: {allocations} of {allocations_of_first}, so the trampoline had its probe"
        );
    }
}

/// Registers `probe` with ever more memory, and `attempts` times with as much each time. None of
/// the failures may keep a page, if `pools_are_ready`. Then unregisters it.
fn fails_again_and_again<T: Probe>(probe: &'static T, attempts: u64, pools_are_ready: bool) {
    let is_registered_with = |room: u64| {
        (0..attempts).any(|_| {
            let outcome = with_room_for(room, || PROBES.register(probe));
            let (is_registered, kept) = (outcome.result.is_ok(), outcome.kept);
            assert!(
                is_registered || !pools_are_ready || kept < 4096,
                "{kept} bytes kept with room for {room}"
            );
            is_registered
        })
    };
    assert!((0..).any(is_registered_with));
    PROBES.unregister(probe).unwrap();
}

/// Registrations that are refused more often than a page of counters has room, which is 511, keep
/// none of them. In a boot of their own, where there is one page, and no trap returns before.
#[guest_test(cmdline = "kprobes.optimize=0 kprobes.return=asm")]
fn registrations_that_fail_again_and_again_keep_nothing() {
    let by = |method| {
        let probe = Kretprobe::<u64>::new().symbol("short_one");
        leak(probe.return_method(method).handler(returned))
    };
    let after = leak(Kprobe::new().symbol("short_one").post(nothing_after));
    fails_again_and_again(after, 1, false);
    fails_again_and_again(by(ReturnMethod::Trap3), 1, false);
    fails_again_and_again(after, 600, true);
    fails_again_and_again(by(ReturnMethod::Trap4), 600, true);
    // Those of the trampolines are not a user's.
    assert_eq!(PROBES.slots_in_use(), 0);
}

/// A Rust name is looked for in all symbols; a name that is wrong is answered with proposals.
/// Without memory that is the answer.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn each_allocation_for_a_name_may_fail() {
    owned(
        Kprobe::new()
            .symbol("kernel::init::load_modules")
            .pre(nothing),
    );
    let answer = |name: &'static str| {
        let probe = leak(Kprobe::new().symbol(name));
        let (answer, allocations) = with_ever_more_memory(
            || PROBES.register(probe),
            |room, bytes| {
                assert_eq!(bytes, 0, "bytes kept by the failure at allocation {room}");
            },
        );
        assert!(allocations > 2, "{name} is answered with texts");
        answer.unwrap_err()
    };
    let unknown = answer("short_on");
    assert_eq!((unknown.name(), unknown.errno()), ("UnknownSymbol", 2));
    let ambiguous: String = symbols::functions()
        .map(|symbol| alloc::format!("{symbol}"))
        .find(|name| {
            matches!(
                symbols::lookup_name(name),
                Err(symbols::LookupError::Ambiguous { .. })
            )
        })
        .expect("some generic function is there twice");
    let ambiguous = answer(ambiguous.leak());
    assert_eq!(
        (ambiguous.name(), ambiguous.errno()),
        ("AmbiguousSymbol", 99)
    );
}

/// Enabling, disabling, the knob and unregistering need none.
#[guest_test(cmdline = "kprobes.optimize=0")]
fn all_but_registering_needs_no_memory() {
    static PROBE: Kprobe = Kprobe::new()
        .symbol("short_one")
        .pre(nothing)
        .post(nothing_after);
    let handle = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("short_one")
            .handler(returned),
    ))
    .unwrap();
    PROBES.register(&PROBE).unwrap();
    let outcome = with_room_for(0, || {
        disable_kprobe(&PROBE).unwrap();
        enable_kprobe(&PROBE).unwrap();
        PROBES.set_enabled(false).unwrap();
        PROBES.set_enabled(true).unwrap();
        unregister_kprobe(&PROBE).unwrap();
        drop(handle);
    });
    assert_eq!(outcome.refused, 0);
    assert_eq!(state().0, []);
}

/// With jump optimisation memory for the detour may be short as well: the probe is registered then,
/// with a breakpoint, and nothing is lost.
#[guest_test]
fn a_probe_without_memory_for_its_jump_keeps_the_breakpoint() {
    static PROBE: Kprobe = Kprobe::new().symbol("short_one").pre(nothing);
    let start = symbols::lookup_name("short_one").unwrap().start as *const u8;
    // SAFETY: kernel text is mapped and readable for ever.
    let first_byte = || unsafe { start.read_volatile() };
    let (mut refused, mut with_breakpoint) = (0, 0);
    PROBES.register(&PROBE).unwrap();
    assert_eq!(first_byte(), 0xe9, "with memory it is a jump");
    PROBES.unregister(&PROBE).unwrap();
    for room in 0.. {
        let before = state();
        let outcome = with_room_for(room, || match PROBES.register(&PROBE) {
            Ok(()) => {
                let byte = first_byte();
                assert_eq!(short_one(black_box(1)), 102);
                PROBES.unregister(&PROBE).unwrap();
                Ok((byte, PROBE.hits()))
            }
            Err(error) => Err(error),
        });
        assert_eq!(outcome.kept, 0, "bytes kept with room for {room}");
        assert_eq!(state(), before);
        match outcome.result {
            Err(error) => {
                assert_eq!(error, ProbeError::OutOfMemory);
                refused += 1;
            }
            Ok(shape) if outcome.refused > 0 => {
                assert_eq!(shape, (0xcc, 1));
                with_breakpoint += 1;
            }
            Ok(shape) => {
                assert_eq!(shape, (0xe9, 1));
                break;
            }
        }
    }
    assert!(
        refused > 0 && with_breakpoint > 0,
        "{refused}, {with_breakpoint}"
    );
    assert_eq!(PROBES.detours_in_use(), 0);
}

/// Either knob turned on without memory for jumps: every probe works, with a breakpoint, and the
/// log says how many have no jump. With memory nothing is said.
#[guest_test(cmdline = "kprobes.optimize=1")]
fn a_knob_goes_on_past_jumps_that_find_no_memory() {
    let begin = ktime_get();
    let logged = || {
        log::history()
            .filter(|record| record.stamp.time_ns >= begin)
            .map(|record| String::from_utf8_lossy(record.text()).into_owned())
            .filter(|text| text.contains(" kprobes keep their breakpoints: no memory"))
            .inspect(|text| assert!(text.starts_with("3 "), "{text}"))
            .count()
    };
    let first_bytes = || {
        TARGETS.map(|name| {
            let symbol = symbols::lookup_name(name).expect("a function of this file");
            // SAFETY: kernel text is mapped and readable for ever.
            unsafe { (symbol.start as *const u8).read_volatile() }
        })
    };
    let probes = TARGETS.map(|name| leak(Kprobe::new().symbol(name).pre(nothing)));
    PROBES.register_batch(&probes).unwrap();
    let knobs: [fn(bool) -> Result<(), ProbeError>; 2] = [
        |on| PROBES.set_enabled(on),
        |on| PROBES.set_optimization(on),
    ];
    for (round, knob) in (1..).zip(knobs) {
        assert_eq!(first_bytes(), [0xe9; 3]);
        knob(false).unwrap();
        let short = with_room_for(0, || knob(true));
        assert_eq!(short.result, Ok(()));
        assert!(short.refused > 0);
        assert_eq!(first_bytes(), [0xcc; 3]);
        for target in [short_one, short_two, short_three] {
            target(black_box(1));
        }
        assert_eq!(probes.map(Kprobe::hits), [round; 3]);
        assert_eq!(logged(), round as usize);
        knob(false).unwrap();
        knob(true).unwrap();
        assert_eq!(logged(), round as usize, "there was memory");
    }
    assert_eq!(first_bytes(), [0xe9; 3]);
    PROBES.unregister_batch(&probes).unwrap();
}

/// Wherever the memory for a jump is missing, the breakpoint becomes one as soon as there is some.
#[guest_test(cmdline = "kprobes.optimize=1")]
fn a_jump_that_found_no_memory_comes_when_there_is_some() {
    static PROBE: Kprobe = Kprobe::new().symbol("short_one").pre(nothing);
    let start = symbols::lookup_name("short_one").unwrap().start as *const u8;
    // SAFETY: kernel text is mapped and readable for ever.
    let first_byte = || unsafe { start.read_volatile() };
    PROBES.register(&PROBE).unwrap();
    for room in 0.. {
        PROBES.set_optimization(false).unwrap();
        let short = with_room_for(room, || PROBES.set_optimization(true));
        assert_eq!(short.result, Ok(()));
        let is_jump = first_byte() == 0xe9;
        assert_eq!(is_jump, short.refused == 0, "with room for {room}");
        PROBES.set_optimization(false).unwrap();
        PROBES.set_optimization(true).unwrap();
        assert_eq!(first_byte(), 0xe9, "after room for {room}");
        if is_jump {
            assert!(room > 0, "it took no allocation");
            break;
        }
    }
    PROBES.unregister(&PROBE).unwrap();
}

/// Return probes with large pools, until memory really is out: that one is refused, those before it
/// work, and when they are gone there is room again. Not for as many, perhaps: what the first ones
/// had the registry keep lies among the free memory.
#[guest_test(timeout = 120)]
fn memory_that_is_out_refuses_a_pool_and_comes_back() {
    const CALLS: i32 = 1000;
    let pool = || {
        let call = Kretprobe::<Large>::new()
            .symbol("short_two")
            .maxactive(CALLS)
            .handler(|_, _| {});
        Box::new(call)
    };
    let as_many_as_fit = || {
        let mut pools = Vec::with_capacity(1000);
        let error = loop {
            match register(pool()) {
                Ok(handle) => pools.push(handle),
                Err(error) => break error,
            }
        };
        assert_eq!((error.name(), error.errno()), ("OutOfMemory", 12));
        assert_eq!(short_two(black_box(1)), 103);
        assert!(
            pools
                .iter()
                .all(|call| (call.hits(), call.nmissed()) == (1, 0))
        );
        pools.len()
    };
    let first = with_room_for(u64::MAX, as_many_as_fit);
    assert!(first.result > 3, "{} pools of 4 MB", first.result);
    let again = with_room_for(u64::MAX, as_many_as_fit);
    assert!(
        again.result > first.result / 2,
        "{} pools, then {}",
        first.result,
        again.result
    );
    assert_eq!(again.kept, 0, "bytes kept by {} pools", again.result);
    // The heap keeps what it has taken. Others still have memory: each of these needs a stack, and
    // the program needs what the heap gives back then.
    let threads: Vec<_> = (0..16)
        .map(|_| spawn_kthread("after", || {}).expect("memory for a thread"))
        .collect();
    for thread in threads {
        thread.wait_released();
    }
    let ran = run_program("/bin/exercise", &["rounds", "1"]);
    assert_eq!(ran, Ok(WaitStatus::exited(0)));
    while heap::give_back() {}
}
