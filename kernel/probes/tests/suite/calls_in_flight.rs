//! Calls that are under way while something else happens to them: abandoned, unregistered, in other
//! tasks and on other stacks. Those that come back find their way home, the others give back what
//! they held.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use probes::{EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PtRegs};

use super::{
    code::{Bench, Code, End, Registers, exit},
    targets::*,
    telling::{By, telling},
    *,
};
use crate::platform::{dies, log, task::Coroutine};

#[test]
fn abandoned_calls_are_given_back_and_the_others_find_home() {
    let _machine = boot();
    extern "C" fn dive(depth: u64) {
        if depth == 0 {
            throw();
        } else {
            calls_back(dive, depth - 1);
        }
    }
    extern "C" fn dive_within_catch(depth: u64) {
        journal::note(catch(dive, depth));
    }
    let told = || {
        let log = log().into_iter();
        log.filter(|line| line.starts_with("kretprobe: "))
            .collect::<Vec<_>>()
    };
    for by in By::ALL {
        let known = told().len();
        let on = |name| Kretprobe::new().symbol(name);
        let call = leak(telling::<7>(on("calls_back").maxactive(6), by));
        PROBES.register(call).unwrap();
        let stale = PROBES.stale_instances();
        for round in 1..=4 {
            // One call that returns, with five above it that do not.
            assert_eq!(calls_back(dive_within_catch, 5), 6);
            assert_eq!(journal::take(), [1, 7]);
            assert_eq!(PROBES.stale_instances(), stale + 5 * round);
        }
        assert_eq!((call.hits(), call.nmissed()), (4, 0));

        // Abandoned, and then a tail call on the frame below.
        let tail = leak(telling::<8>(on("tail_g"), by));
        let jumps = leak(telling::<9>(on("calls_back_then_jumps"), by));
        PROBES.register(tail).unwrap();
        PROBES.register(jumps).unwrap();
        assert_eq!(calls_back_then_jumps(dive_within_catch, 5), 10);
        assert_eq!(journal::take(), [1, 8, 9]);
        assert_eq!(PROBES.stale_instances(), stale + 5 * 5);
        assert_eq!(told().len(), known, "no call is told of by itself");
        PROBES.unregister(jumps).unwrap();
        PROBES.unregister(tail).unwrap();
        PROBES.unregister(call).unwrap();
        assert_eq!(
            told()[known..],
            [
                "kretprobe: 25 calls were left without a return, by a jump or an unwinding; \
                 their instances were given back"
            ]
        );
    }
}

// With nothing probed below, abandoned calls are found by later, higher ones.
#[test]
fn abandoned_calls_do_not_pile_up() {
    let _machine = boot();
    extern "C" fn leave(_: u64) {
        throw();
    }
    extern "C" fn call_and_leave(_: u64) {
        calls_back(leave, 0);
    }
    extern "C" fn many_times(count: u64) {
        for _ in 0..count {
            catch(call_and_leave, 0);
            // A call whose frame is above the abandoned one.
            assert_eq!(add(1, 2), 3);
        }
    }
    let abandoned = leak(Kretprobe::<()>::new().symbol("calls_back").maxactive(4));
    let outer = leak(Kretprobe::<()>::new().symbol("add"));
    PROBES.register(abandoned).unwrap();
    PROBES.register(outer).unwrap();
    let stale = PROBES.stale_instances();
    many_times(20);
    assert_eq!((abandoned.hits(), abandoned.nmissed()), (0, 0));
    assert_eq!(outer.hits(), 20);
    assert_eq!(PROBES.stale_instances(), stale + 20);
    PROBES.disable(outer).unwrap();
    // The same place of the stack again and again, with no other probe's help.
    many_times(20);
    assert_eq!((abandoned.hits(), abandoned.nmissed()), (0, 0));
    extern "C" fn nothing(_: u64) {}
    assert_eq!(calls_back(nothing, 1), 2);
    assert_eq!((abandoned.hits(), abandoned.nmissed()), (1, 0));
    PROBES.unregister(outer).unwrap();
    PROBES.unregister(abandoned).unwrap();
}

#[test]
fn calls_in_flight_at_an_unregistration_return_quietly() {
    let _machine = boot();
    static CALL: Mutex<Option<&Kretprobe>> = Mutex::new(None);
    fn call() -> &'static Kretprobe {
        CALL.lock().expect("the test has one")
    }
    extern "C" fn unregister_within(_: u64) {
        PROBES.unregister(call()).unwrap();
        assert_eq!(PROBES.reap().unwrap(), 1, "a call is in flight");
    }
    extern "C" fn exchange_within(_: u64) {
        PROBES.unregister(call()).unwrap();
        PROBES.register(call()).unwrap();
        calls_back(nothing, 3);
    }
    extern "C" fn nothing(_: u64) {}
    for by in By::ALL {
        let call = leak(telling::<7>(Kretprobe::new().symbol("calls_back"), by));
        *CALL.lock() = Some(call);
        for _ in 0..3 {
            PROBES.register(call).unwrap();
            assert_eq!(calls_back(unregister_within, 1), 2);
            assert_eq!(journal::take(), []);
            assert_eq!(PROBES.reap().unwrap(), 0, "it has returned");
        }
        // The old registration's call does not touch the new one's.
        PROBES.register(call).unwrap();
        assert_eq!(calls_back(exchange_within, 1), 2);
        assert_eq!(
            journal::take(),
            [7],
            "only the call within the new registration"
        );
        assert_eq!((call.hits(), call.nmissed()), (1, 0));
        PROBES.unregister(call).unwrap();
    }
}

#[test]
fn a_call_in_flight_tells_the_kretprobes_that_stay() {
    let _machine = boot();
    static OLDER: Kretprobe = Kretprobe::new()
        .symbol("calls_back")
        .handler(returned::<7, ()>);
    static NEWER: Kretprobe = Kretprobe::new()
        .symbol("calls_back")
        .handler(returned::<8, ()>);
    extern "C" fn unregister_older(_: u64) {
        PROBES.unregister(&OLDER).unwrap();
    }
    extern "C" fn unregister_newer(_: u64) {
        PROBES.unregister(&NEWER).unwrap();
    }
    for (unregister, gone, told) in [
        (unregister_older as extern "C" fn(u64), &OLDER, 8),
        (unregister_newer, &NEWER, 7),
    ] {
        PROBES.register(&OLDER).unwrap();
        PROBES.register(&NEWER).unwrap();
        assert_eq!(calls_back(unregister, 1), 2);
        assert_eq!(journal::take(), [told]);
        assert_eq!(gone.hits(), 0);
        PROBES.unregister_batch(&[&OLDER, &NEWER]).unwrap();
    }
}

#[test]
fn calls_in_flight_at_a_disabling_still_run_their_handler() {
    let _machine = boot();
    static CALL: Kretprobe = Kretprobe::new()
        .symbol("calls_back")
        .handler(returned::<7, ()>);
    extern "C" fn disable_within(_: u64) {
        PROBES.disable(&CALL).unwrap();
    }
    extern "C" fn knob_off_within(_: u64) {
        PROBES.set_enabled(false).unwrap();
    }
    PROBES.register(&CALL).unwrap();
    assert_eq!(calls_back(disable_within, 1), 2);
    assert_eq!(journal::take(), [7]);
    assert_eq!(calls_back(disable_within, 1), 2);
    assert_eq!(journal::take(), []);
    PROBES.enable(&CALL).unwrap();
    assert_eq!(calls_back(knob_off_within, 1), 2);
    PROBES.set_enabled(true).unwrap();
    assert_eq!(journal::take(), [7]);
    PROBES.unregister(&CALL).unwrap();
}

/// A body that calls a probed function and yields inside it.
fn yield_in_a_call(coroutine: &Coroutine) {
    extern "C" fn suspend(coroutine: u64) {
        let coroutine = core::ptr::with_exposed_provenance::<Coroutine>(coroutine as usize);
        // SAFETY: the address below, of the coroutine that runs this.
        unsafe { (*coroutine).suspend() };
    }
    let argument = core::ptr::from_ref(coroutine).expose_provenance() as u64;
    let result = calls_back(suspend, argument);
    journal::note((result == argument + 1).into());
}

#[test]
fn calls_of_many_tasks_interleave_and_change_cpus() {
    let _machine = boot();
    fn task_in(instance: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
        **instance = task::current();
        EntryVerdict::Track
    }
    fn task_out(instance: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
        let now = task::current();
        journal::note((now == **instance && now == instance.task()).into());
    }
    let call = leak(
        Kretprobe::<u64>::new()
            .symbol("calls_back")
            .entry(task_in)
            .handler(task_out)
            .maxactive(40),
    );
    PROBES.register(call).unwrap();
    let tasks: Vec<_> = (0..40).map(|_| Coroutine::new(yield_in_a_call)).collect();
    for task in &tasks {
        assert!(task.resume(), "it waits inside the probed function");
    }
    assert_eq!(call.hits(), 0);
    // Half of them return here, in another order; the others on another CPU.
    let (here, there): (Vec<_>, Vec<_>) = tasks.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    for (_, task) in here.iter().rev() {
        assert!(!task.resume());
    }
    cpu::on_cpus(1, |_| {
        for (_, task) in &there {
            assert!(!task.resume());
        }
    });
    assert_eq!(journal::take(), [1; 80]);
    assert_eq!((call.hits(), call.nmissed()), (40, 0));
    PROBES.unregister(call).unwrap();
}

#[test]
fn a_task_that_dies_inside_calls_gives_its_instances_back() {
    let _machine = boot();
    let call = leak(
        Kretprobe::new()
            .symbol("calls_back")
            .handler(returned::<7, ()>)
            .maxactive(3),
    );
    PROBES.register(call).unwrap();
    for _ in 0..5 {
        let tasks: Vec<_> = (0..3).map(|_| Coroutine::new(yield_in_a_call)).collect();
        for task in &tasks {
            assert!(task.resume());
        }
        extern "C" fn nothing(_: u64) {}
        let missed = call.nmissed();
        assert_eq!(calls_back(nothing, 1), 2);
        assert_eq!(call.nmissed(), missed + 1, "all are in use");
        drop(tasks);
        assert_eq!(calls_back(nothing, 1), 2);
        assert_eq!((call.nmissed(), journal::take()), (missed + 1, vec![7]));
    }
    PROBES.unregister(call).unwrap();
}

/// All of them, if it was inside several.
#[test]
fn a_task_that_dies_inside_nested_calls_gives_all_instances_back() {
    let _machine = boot();
    fn yield_in_nested_calls(coroutine: &Coroutine) {
        extern "C" fn deeper(coroutine: u64) {
            let coroutine = core::ptr::with_exposed_provenance::<Coroutine>(coroutine as usize);
            // SAFETY: the address below, of the coroutine that runs this.
            yield_in_a_call(unsafe { &*coroutine });
        }
        calls_back(
            deeper,
            core::ptr::from_ref(coroutine).expose_provenance() as u64,
        );
    }
    let call = Kretprobe::new().symbol("calls_back").maxactive(2);
    let call = leak(call.handler(returned::<7, ()>));
    PROBES.register(call).unwrap();
    for _ in 0..2 {
        let task = Coroutine::new(yield_in_nested_calls);
        assert!(task.resume());
        drop(task);
    }
    extern "C" fn again(rest: u64) {
        if rest > 0 {
            calls_back(again, rest - 1);
        }
    }
    assert_eq!(calls_back(again, 1), 2);
    assert_eq!((call.nmissed(), journal::take()), (0, vec![7; 2]));
    PROBES.unregister(call).unwrap();
}

// The last call of a dead task holds up what the unregistration has left.
#[test]
fn a_dead_tasks_calls_let_an_unregistered_kretprobe_go() {
    let _machine = boot();
    let call = leak(Kretprobe::<()>::new().symbol("calls_back"));
    PROBES.register(call).unwrap();
    let task = Coroutine::new(yield_in_a_call);
    assert!(task.resume());
    PROBES.unregister(call).unwrap();
    assert_eq!(PROBES.reap().unwrap(), 1);
    drop(task);
    assert_eq!(PROBES.reap().unwrap(), 0);
}

// The last word of a stack may be a return slot, too: what is after it belongs to nothing.
#[test]
fn a_call_from_the_very_end_of_a_stack_can_be_abandoned() {
    let _machine = boot();
    let leaves = Code::new(|start| exit(start, 1));
    let caller = Code::new(|start| {
        let distance = (leaves.start.wrapping_sub(start + 5) as u32).to_le_bytes();
        [&[0xe8][..], &distance].concat()
    });
    let call = leak(Kretprobe::<()>::new().at(leaves.start).maxactive(1));
    PROBES.register(call).unwrap();
    let stale = PROBES.stale_instances();
    // A task of its own, with whose end the last call is given back.
    cpu::on_cpus(1, |_| {
        let mut bench = Bench::new();
        for _ in 0..4 {
            let registers = Registers {
                sp: bench.end(),
                flags: flags::PLAIN,
                ..Registers::default()
            };
            assert_eq!(bench.run(caller.start, registers).end, End::Exit(1));
        }
    });
    assert_eq!((call.nmissed(), PROBES.stale_instances()), (0, stale + 3));
    PROBES.unregister(call).unwrap();
}

/// Calls on another stack of the task, tail calls among them, make none stale that is in flight on
/// this one, though their frames lie above its own.
#[test]
fn calls_on_another_stack_make_none_stale_here() {
    let _machine = boot();
    static ABOVE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn call_on_other_stacks(_: u64) {
        let caller = Code::calling(address("tail_f"), 1);
        let mut benches: Vec<_> = (0..4).map(|_| Bench::new()).collect();
        for bench in &mut benches {
            let here = core::ptr::from_ref(&caller).addr() as u64;
            ABOVE.fetch_add((bench.sp() > here).into(), Relaxed);
            let registers = Registers {
                di: 4,
                flags: flags::PLAIN,
                ..Registers::default()
            };
            journal::note(bench.run(caller.start, registers).registers.ax);
        }
    }
    let outer = leak(
        Kretprobe::new()
            .symbol("calls_back")
            .handler(returned::<7, ()>),
    );
    let jumps = leak(Kretprobe::new().symbol("tail_f").handler(returned::<8, ()>));
    let tail = leak(Kretprobe::new().symbol("tail_g").handler(returned::<9, ()>));
    let all = [outer, jumps, tail];
    PROBES.register_batch(&all).unwrap();
    let stale = PROBES.stale_instances();
    assert_eq!(calls_back(call_on_other_stacks, 1), 2);
    assert_eq!(
        journal::take(),
        [[9, 8, 10].repeat(4), vec![7]].concat(),
        "the outer call is told last"
    );
    assert_eq!(PROBES.stale_instances(), stale);
    assert_eq!(all.map(|call| call.hits()), [1, 4, 4]);
    // A process has its stacks where there is room.
    assert!(cfg!(target_os = "linux") || ABOVE.load(Relaxed) > 0);
    PROBES.unregister_batch(&all).unwrap();
}

/// While a call waits, another one is abandoned on a stack above. Then the first one makes a tail
/// call, from a slot that is borrowed but not the newest call's. Both functions are told, with the
/// true return address.
#[test]
fn a_tail_call_beside_an_abandoned_call_on_another_stack_is_told_twice() {
    let _machine = boot();
    /// A stack, code that calls `calls_back` there, and two callbacks: one leaves the call, the
    /// other returns.
    struct Other {
        bench: Bench,
        caller: Code,
        leaves: Code,
        returns: Code,
    }
    static OTHER: Mutex<Option<Other>> = Mutex::new(None);
    static ABOVE: AtomicU64 = AtomicU64::new(0);
    static ADDRESSES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    /// Calls `calls_back` on the other stack. The call is left, or it returns from a stack pointer
    /// that is higher.
    fn call_on_the_other_stack(is_left: bool) -> End {
        let mut other = OTHER.lock();
        let other = other.as_mut().expect("the test has one");
        let here = core::ptr::from_ref(&is_left).addr() as u64;
        ABOVE.fetch_add((other.bench.sp() > here).into(), Relaxed);
        let (callback, higher) = match is_left {
            true => (&other.leaves, 0),
            false => (&other.returns, 64),
        };
        let registers = Registers {
            di: callback.start,
            sp: other.bench.sp() + higher,
            flags: flags::PLAIN,
            ..Registers::default()
        };
        other.bench.run(other.caller.start, registers).end
    }
    extern "C" fn abandon_a_call(_: u64) {
        assert_eq!(call_on_the_other_stack(true), End::Exit(1));
    }
    fn note<const FUNCTION: u64>(call: &mut KretprobeInstance<()>, _: &mut PtRegs) {
        ADDRESSES[FUNCTION as usize].store(call.ret_addr(), Relaxed);
        journal::note(FUNCTION);
    }
    fn track(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        EntryVerdict::Track
    }
    let benches = (0..4).map(|_| Bench::new());
    *OTHER.lock() = benches.max_by_key(Bench::sp).map(|bench| Other {
        bench,
        caller: Code::calling(address("calls_back"), 2),
        leaves: Code::new(|start| exit(start, 1)),
        returns: Code::new(|_| vec![0xc3]),
    });
    fn noting<const FUNCTION: u64>(name: &'static str, by: By, has_entry: bool) -> Kretprobe {
        let call = Kretprobe::new().symbol(name);
        match by {
            By::Handler if has_entry => call.entry(track).handler(note::<FUNCTION>),
            By::Handler => call.handler(note::<FUNCTION>),
            by => telling::<FUNCTION>(call, by),
        }
    }
    // Return probes alone, with entry handlers, and beside a kprobe are served by different code,
    // and so are actions.
    let kinds = [(false, false), (true, false), (false, true)];
    let by_all = || By::ALL.into_iter().flat_map(|a| By::ALL.map(|b| (a, b)));
    for ((has_entry, has_kprobe), (jumps_by, tail_by)) in kinds
        .into_iter()
        .flat_map(|kind| by_all().map(move |by| (kind, by)))
    {
        let kprobe = leak(Kprobe::new().symbol("tail_g"));
        if has_kprobe {
            PROBES.register(kprobe).unwrap();
        }
        let abandoned = Kretprobe::new().symbol("calls_back");
        let abandoned = leak(telling::<7>(abandoned, tail_by));
        let jumps = leak(noting::<0>("calls_back_then_jumps", jumps_by, has_entry));
        let tail = leak(noting::<1>("tail_g", tail_by, has_entry));
        let all = [abandoned, jumps, tail];
        PROBES.register_batch(&all).unwrap();
        let stale = PROBES.stale_instances();
        for round in 1..=3 {
            assert_eq!(calls_back_then_jumps(abandon_a_call, 4), 8);
            assert_eq!(journal::take(), [1, 0], "the inner one first");
            // Those that handlers were told.
            let told = ADDRESSES.each_ref().map(|addr| addr.swap(0, Relaxed));
            assert_eq!(
                told.map(|addr| addr != 0),
                [jumps_by, tail_by].map(|by| by == By::Handler)
            );
            for addr in told {
                assert!(addr != trampoline() && addr != address("kretprobe_trampoline_action"));
            }
            if jumps_by == tail_by {
                assert_eq!(told[0], told[1]);
            }
            // A call from above the abandoned one shows that this does not come back.
            assert_eq!(call_on_the_other_stack(false), End::Exit(2));
            assert_eq!(journal::take(), [7]);
            assert_eq!(PROBES.stale_instances(), stale + round);
        }
        assert_eq!(all.map(|call| call.hits()), [3, 3, 3]);
        PROBES.unregister_batch(&all).unwrap();
        if has_kprobe {
            PROBES.unregister(kprobe).unwrap();
        }
    }
    // A process has its stacks where there is room.
    assert!(cfg!(target_os = "linux") || ABOVE.load(Relaxed) > 0);
    *OTHER.lock() = None;
}

// A call that waits on another stack is not stale, however its frame compares. A task of the kernel
// has one stack.
#[cfg(target_os = "linux")]
#[test]
fn calls_on_other_stacks_of_the_task_are_left_alone() {
    let _machine = boot();
    static INNER: AtomicU64 = AtomicU64::new(0);
    /// Runs a coroutine's stack as a second stack of this task, not as a task of its own.
    extern "C" fn step_on_other_stack(_: u64) {
        let task = task::current();
        let other = core::ptr::with_exposed_provenance::<Coroutine>(INNER.load(Relaxed) as usize);
        // SAFETY: the coroutine of the test below, which lives until it is over.
        unsafe { (*other).resume_as(task) };
    }
    let call = leak(
        Kretprobe::new()
            .symbol("calls_back")
            .handler(returned::<7, ()>),
    );
    let tail = leak(Kretprobe::new().symbol("tail_g").handler(returned::<8, ()>));
    let jumps = leak(
        Kretprobe::new()
            .symbol("calls_back_then_jumps")
            .handler(returned::<9, ()>),
    );
    PROBES.register(call).unwrap();
    PROBES.register(tail).unwrap();
    PROBES.register(jumps).unwrap();
    let stale = PROBES.stale_instances();
    let other = Coroutine::new(yield_in_a_call);
    INNER.store(
        core::ptr::from_ref(&*other).expose_provenance() as u64,
        Relaxed,
    );
    // Outer call on this stack, inner one waits on the other stack, outer one returns first.
    assert_eq!(calls_back(step_on_other_stack, 1), 2);
    assert_eq!(journal::take(), [7]);
    // The inner one returns inside another call, which then makes a tail call.
    assert_eq!(calls_back_then_jumps(step_on_other_stack, 4), 8);
    assert_eq!(journal::take(), [7, 1, 8, 9]);
    assert_eq!(PROBES.stale_instances(), stale);
    assert_eq!((call.hits(), call.nmissed()), (2, 0));

    // The other way round: waits inside a call that makes a tail call afterwards.
    let other = Coroutine::new(yield_in_a_call);
    INNER.store(
        core::ptr::from_ref(&*other).expose_provenance() as u64,
        Relaxed,
    );
    assert_eq!(calls_back_then_jumps(step_on_other_stack, 4), 8);
    assert_eq!(
        journal::take(),
        [8, 9],
        "with one return of each, and no sibling missed"
    );
    step_on_other_stack(0);
    assert_eq!(journal::take(), [7, 1]);
    PROBES.unregister(jumps).unwrap();
    PROBES.unregister(tail).unwrap();
    PROBES.unregister(call).unwrap();
}

// A call that returns while a newer one waits on another stack tells all kretprobes that follow it.
// A task of the kernel has one stack.
#[cfg(target_os = "linux")]
#[test]
fn a_call_behind_a_newer_one_on_another_stack_tells_all_its_kretprobes() {
    let _machine = boot();
    static INNER: AtomicU64 = AtomicU64::new(0);
    /// Runs a coroutine's stack as a second stack of this task, not as a task of its own.
    extern "C" fn step_on_other_stack(_: u64) {
        let task = task::current();
        let other = core::ptr::with_exposed_provenance::<Coroutine>(INNER.load(Relaxed) as usize);
        // SAFETY: the coroutine of the test below, which lives until it is over.
        unsafe { (*other).resume_as(task) };
    }
    let call = || Kretprobe::new().symbol("calls_back");
    let all = [
        leak(call().handler(returned::<1, ()>)),
        leak(call().handler(returned::<2, ()>)),
        leak(call().handler(returned::<3, ()>)),
    ];
    PROBES.register_batch(&all).unwrap();
    let stale = PROBES.stale_instances();
    let other = Coroutine::new(yield_in_a_call);
    INNER.store(
        core::ptr::from_ref(&*other).expose_provenance() as u64,
        Relaxed,
    );
    // The outer call is on this stack. The inner one waits on the other stack, and returns last.
    assert_eq!(calls_back(step_on_other_stack, 1), 2);
    let outer = journal::take();
    step_on_other_stack(0);
    assert_eq!((outer, journal::take()), (vec![1, 2, 3], vec![1, 2, 3, 1]));
    assert_eq!(PROBES.stale_instances(), stale);
    assert_eq!(all.map(|call| (call.hits(), call.nmissed())), [(2, 0); 3]);
    PROBES.unregister_batch(&all).unwrap();
}

/// Returns to the trampoline from a stack on which no call has left its address.
fn return_to_the_trampoline() {
    let code = Code::with_exit(
        &[
            &[0x48, 0xb8][..], // mov rax, trampoline
            &trampoline().to_le_bytes(),
            &[0x50, 0xc3], // push rax; ret
        ]
        .concat(),
    );
    Bench::new().run(code.start, Registers::default());
}

dies! {
    #[test]
    fn a_return_that_nobody_knows_ends_the_machine_with_the_known_line()
        saying "kretprobe BUG!: Processing kretprobe 0x0 @ 0x" => {
        let _machine = boot();
        return_to_the_trampoline();
    }
}

/// Whether the process has named the call that it said would be named.
fn names_the_newest(printed: &str) -> bool {
    let newest = printed
        .split_once("the newest: ")
        .and_then(|(_, rest)| rest.split_once('.'));
    newest.is_some_and(|(newest, _)| {
        printed.contains(&format!("kretprobe BUG!: Processing kretprobe {newest} @ "))
    })
}

dies! {
    #[test]
    fn an_unbalanced_return_names_the_probe_of_the_newest_call()
        saying "kretprobe BUG!: Processing kretprobe 0x", names_the_newest => {
        let _machine = boot();
        extern "C" fn return_twice(_: u64) {
            return_to_the_trampoline();
        }
        extern "C" fn within(_: u64) {
            calls_back_then_jumps(return_twice, 1);
        }
        // One function is not called, one has an outer call, one the newest call.
        let calls = ["add", "calls_back", "calls_back_then_jumps"]
            .map(|name| leak(Kretprobe::<()>::new().symbol(name)));
        PROBES.register_batch(&calls).unwrap();
        platform::say(format_args!("the newest: {:p}.", calls[2]));
        calls_back(within, 1);
    }
}
