//! Several CPUs in the probes at once: exact counts, no lost call, nothing used after it is gone.
//!
//! The law of all these tests is the count law: each call is a hit or a miss of each probe that is
//! registered and enabled then. Some CPUs call while others register, arm, unregister and free.
//! Memory of a probe that has been unregistered is overwritten at once, so a late hit would be led
//! astray.

use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use probes::{Jprobe, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs};

use super::{targets::*, *};
use crate::platform::cpu::on_cpus;

/// How many rounds a test goes whose CPUs mostly wait for each other, of `rounds` where calls come
/// back by the assembly. The historic ways back change nothing in registering and arming, so a
/// quarter will do; and where CPUs are emulated a tenth.
fn rounds(rounds: u64) -> u64 {
    let rounds = rounds / platform::SLOWNESS;
    match platform::return_method() {
        ReturnMethod::Asm => rounds,
        ReturnMethod::Trap3 | ReturnMethod::Trap4 => rounds / 4,
    }
}

/// A counter for a test's handlers; tests run one at a time, and each starts it at 0.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Another one.
static OTHER: AtomicU64 = AtomicU64::new(0);

fn count_pre(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    COUNT.fetch_add(1, Relaxed);
    PreVerdict::Execute
}

fn count_post(_: &Kprobe, _: &mut PtRegs, _: u64) {
    OTHER.fetch_add(1, Relaxed);
}

fn count_return(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
    COUNT.fetch_add(1, Relaxed);
}

fn start_counting() {
    COUNT.store(0, Relaxed);
    OTHER.store(0, Relaxed);
}

#[test]
fn hits_on_many_cpus_are_counted_exactly() {
    let _machine = boot();
    const CALLS: u64 = 4_000;
    for cpus in [2, 4] {
        start_counting();
        let probe = leak(Kprobe::new().symbol("add").pre(count_pre).post(count_post));
        let plain = leak(Kprobe::new().symbol("step_by_step").pre(count_pre));
        PROBES.register(probe).unwrap();
        PROBES.register(plain).unwrap();
        on_cpus(cpus, |number| {
            for n in 0..CALLS {
                assert_eq!(add(n, number as u64), n + number as u64);
                assert_eq!(step_by_step(n), 3 * n + 1);
            }
        });
        let calls = CALLS * cpus as u64;
        assert_eq!((probe.hits(), probe.nmissed()), (calls, 0));
        assert_eq!((plain.hits(), plain.nmissed()), (calls, 0));
        assert_eq!(
            (COUNT.load(Relaxed), OTHER.load(Relaxed)),
            (2 * calls, calls)
        );
        PROBES.unregister(probe).unwrap();
        PROBES.unregister(plain).unwrap();
    }
}

// Misses are exact, too.
#[test]
fn misses_on_many_cpus_are_counted_exactly() {
    let _machine = boot();
    fn call_inner(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        if step_by_step(regs.di) == 3 * regs.di + 1 {
            COUNT.fetch_add(1, Relaxed);
        }
        PreVerdict::Execute
    }
    const CALLS: u64 = 2_000;
    start_counting();
    let outer = leak(Kprobe::new().symbol("add").pre(call_inner));
    let inner = leak(Kprobe::new().symbol("step_by_step").pre(pre::<1>));
    let call = leak(
        Kretprobe::new()
            .symbol("step_by_step")
            .handler(returned::<1, ()>),
    );
    PROBES.register(outer).unwrap();
    PROBES.register(inner).unwrap();
    PROBES.register(call).unwrap();
    on_cpus(4, |_| {
        for n in 0..CALLS {
            assert_eq!(add(n, 1), n + 1);
        }
    });
    assert_eq!(COUNT.load(Relaxed), 4 * CALLS);
    assert_eq!((outer.hits(), outer.nmissed()), (4 * CALLS, 0));
    assert_eq!((inner.hits(), inner.nmissed()), (0, 4 * CALLS));
    assert_eq!(
        (call.hits(), call.nmissed(), call.kprobe().nmissed()),
        (0, 0, 4 * CALLS)
    );
    PROBES.unregister(call).unwrap();
    PROBES.unregister(inner).unwrap();
    PROBES.unregister(outer).unwrap();
}

#[test]
fn calls_on_many_cpus_share_the_instances_and_are_counted_exactly() {
    let _machine = boot();
    const CALLS: u64 = 4_000;
    for maxactive in [1, 2, 100] {
        start_counting();
        let call = leak(
            Kretprobe::new()
                .symbol("chain_a")
                .handler(count_return)
                .maxactive(maxactive),
        );
        let inner = leak(
            Kretprobe::new()
                .symbol("chain_c")
                .handler(count_return)
                .maxactive(maxactive),
        );
        PROBES.register(call).unwrap();
        PROBES.register(inner).unwrap();
        on_cpus(4, |_| {
            for n in 0..CALLS {
                assert_eq!(chain_a(n), (n + 5) * 2 + 1);
            }
        });
        for probe in [call, inner] {
            assert_eq!(probe.hits() + probe.nmissed(), 4 * CALLS, "of {maxactive}");
            assert_eq!(probe.kprobe().nmissed(), 0);
            assert!(probe.hits() > 0);
            assert!(maxactive < 100 || probe.nmissed() == 0);
        }
        assert_eq!(COUNT.load(Relaxed), call.hits() + inner.hits());
        PROBES.unregister(call).unwrap();
        PROBES.unregister(inner).unwrap();
    }
}

#[test]
fn jprobes_on_many_cpus_keep_to_themselves() {
    let _machine = boot();
    const CALLS: u64 = 3_000;
    start_counting();
    probes::jprobe! {
        fn arguments(a: u64, b: u64) {
            COUNT.fetch_add(a, Relaxed);
            OTHER.fetch_add(b, Relaxed);
        }
    }
    let jprobe = leak(Jprobe::new().symbol("add").entry(arguments));
    PROBES.register(jprobe).unwrap();
    on_cpus(4, |number| {
        for n in 0..CALLS {
            assert_eq!(add(n, number as u64), n + number as u64);
        }
    });
    assert_eq!(COUNT.load(Relaxed), 4 * CALLS * (CALLS - 1) / 2);
    assert_eq!(OTHER.load(Relaxed), CALLS * 6);
    assert_eq!(
        (jprobe.kprobe().hits(), jprobe.kprobe().nmissed()),
        (4 * CALLS, 0)
    );
    PROBES.unregister(jprobe).unwrap();
}

/// The work of the other CPUs meanwhile.
struct Others {
    /// How many calls each of them has finished.
    calls: [AtomicU64; 2],
    stop: AtomicBool,
}

impl Others {
    fn calls(&self) -> [u64; 2] {
        self.calls.each_ref().map(|calls| calls.load(Relaxed))
    }

    /// Waits until some CPU has begun and finished a call.
    fn go_on(&self) {
        let now: u64 = self.calls().iter().sum();
        // The first call of each of the two may have begun before.
        while self.calls().iter().sum::<u64>() < now + 3 {
            cpu::yield_now();
        }
    }

    /// Waits until each CPU has begun and finished a call; those before are over.
    fn all_go_on(&self) {
        let before = self.calls();
        while core::iter::zip(self.calls(), before).any(|(now, before)| now < before + 2) {
            cpu::yield_now();
        }
    }
}

/// Has two other CPUs call `work` until `main` is done, and returns how often they did.
fn while_others(work: impl Fn(u64) + Sync, main: impl FnOnce(&Others)) -> u64 {
    let others = Others {
        calls: [const { AtomicU64::new(0) }; 2],
        stop: AtomicBool::new(false),
    };
    /// Also when `main` fails, or the others would never end.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    cpu::scope(|scope| {
        for calls in &others.calls {
            let (work, stop) = (&work, &others.stop);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Relaxed) {
                        break;
                    }
                    work(n);
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
        let _stop = Stop(&others.stop);
        main(&others);
    });
    others.calls().iter().sum()
}

/// Calls every function that the tests below probe.
fn call_all(n: u64) {
    assert_eq!(add(n, 1), n + 1);
    assert_eq!(step_by_step(n), 3 * n + 1);
    assert_eq!(chain_a(n), (n + 5) * 2 + 1);
    assert_eq!(tail_f(n), 2 * n + 2);
    assert_eq!(recurse(3), 6);
}

#[test]
fn probes_come_and_go_a_thousand_times_under_load() {
    let _machine = boot();
    let rounds = rounds(1_000);
    start_counting();
    let calls = while_others(call_all, |others| {
        for n in 0..rounds {
            let offset = STEP_BY_STEP[n as usize % STEP_BY_STEP.len()];
            let probe = Kprobe::new()
                .symbol("step_by_step")
                .offset(offset)
                .pre(count_pre);
            let probe = if n % 3 == 0 {
                probe.post(count_post)
            } else {
                probe
            };
            let handle = PROBES.register_owned(Box::new(probe)).unwrap();
            if n % 4 == 0 {
                let call = Kretprobe::<u64>::new().symbol("recurse").maxactive(3);
                drop(PROBES.register_owned(Box::new(call)).unwrap());
            }
            if n % 4 == 1 {
                others.go_on();
            }
            drop(handle);
        }
    });
    assert!(calls >= rounds / 4 * 3 && COUNT.load(Relaxed) >= rounds / 4);
}

/// When an unregistration returns nothing looks at the probe any more, so its memory may become
/// something else at once. Here it is overwritten, and what is left of it would lead a late hit
/// astray.
#[test]
fn an_unregistered_probes_memory_may_hold_anything() {
    let _machine = boot();
    start_counting();
    /// The addresses of the probes that are registered now.
    static KPROBE: AtomicU64 = AtomicU64::new(0);
    static KRETPROBE: AtomicU64 = AtomicU64::new(0);
    static LATE: AtomicU64 = AtomicU64::new(0);
    fn check(current: &AtomicU64, used: Option<&Kprobe>) {
        let current = current.load(Relaxed);
        let other = used.is_some_and(|probe| core::ptr::from_ref(probe).addr() as u64 != current);
        LATE.fetch_add((current == 0 || other).into(), Relaxed);
        COUNT.fetch_add(1, Relaxed);
    }
    fn before(probe: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        check(&KPROBE, Some(probe));
        PreVerdict::Execute
    }
    fn after(probe: &Kprobe, _: &mut PtRegs, _: u64) {
        check(&KPROBE, Some(probe));
    }
    fn back(call: &mut KretprobeInstance<u64>, _: &mut PtRegs) {
        // None while the unregistration waits for this handler.
        check(&KRETPROBE, call.kretprobe().map(Probe::kprobe));
    }
    /// A registered probe, its address in `current`, and how to end it.
    fn live<T: Probe + 'static>(probe: T, current: &'static AtomicU64) -> impl FnOnce() {
        let place = Box::into_raw(Box::new(probe));
        // SAFETY: just made, and never given back: the bytes below are written when nothing uses
        // the reference any more.
        let probe = unsafe { &*place };
        current.store(core::ptr::from_ref(probe.kprobe()).addr() as u64, Relaxed);
        PROBES.register(probe).unwrap();
        move || {
            PROBES.unregister(probe).unwrap();
            current.store(0, Relaxed);
            // SAFETY: memory of this probe and of nothing else; see above.
            unsafe { place.cast::<u8>().write_bytes(0x5a, size_of::<T>()) };
        }
    }
    LATE.store(0, Relaxed);
    while_others(call_all, |others| {
        for n in 0..rounds(400) as usize {
            let offset = STEP_BY_STEP[n % STEP_BY_STEP.len()];
            let kprobe = Kprobe::new().symbol("step_by_step").offset(offset);
            let kprobe = match n % 3 {
                0 => kprobe.pre(before),
                1 => kprobe.post(after),
                _ => kprobe.pre(before).post(after),
            };
            let call = Kretprobe::<u64>::new().symbol("recurse").handler(back);
            let ends = (live(kprobe, &KPROBE), live(call.maxactive(3), &KRETPROBE));
            if n % 4 == 1 {
                others.go_on();
            }
            ends.0();
            ends.1();
        }
    });
    assert!(COUNT.load(Relaxed) > 0);
    assert_eq!(
        LATE.load(Relaxed),
        0,
        "hits of probes that were unregistered"
    );
}

#[test]
fn arming_and_disarming_under_load_loses_no_call() {
    let _machine = boot();
    let rounds = rounds(500);
    start_counting();
    let probe = leak(Kprobe::new().symbol("add").pre(count_pre));
    // One that is switched by the knob alone, at an instruction that each call runs once.
    let stays = leak(Kprobe::new().symbol("add").offset(4).post(count_post));
    let call = leak(
        Kretprobe::new()
            .symbol("chain_b")
            .handler(returned::<1, ()>),
    );
    PROBES.register(probe).unwrap();
    PROBES.register(stays).unwrap();
    PROBES.register(call).unwrap();
    let calls = while_others(call_all, |others| {
        for n in 0..rounds {
            PROBES.disable(probe).unwrap();
            if n % 10 == 0 {
                // Handlers that ran are done.
                others.all_go_on();
                let before = (probe.hits(), stays.hits());
                others.all_go_on();
                assert_eq!(probe.hits(), before.0, "disabled");
                assert!(stays.hits() > before.1, "its neighbour is not");
            }
            PROBES.enable(probe).unwrap();
            if n % 10 == 5 {
                let before = probe.hits();
                others.all_go_on();
                assert!(probe.hits() > before, "enabled again");
            }
        }
    });
    assert_eq!(
        (stays.hits(), stays.nmissed()),
        (calls, 0),
        "no call is lost"
    );
    let knob_calls = while_others(call_all, |others| {
        for _ in 0..rounds / 20 {
            PROBES.set_enabled(false).unwrap();
            others.all_go_on();
            let before = [probe.hits(), stays.hits(), call.hits()];
            others.all_go_on();
            assert_eq!([probe.hits(), stays.hits(), call.hits()], before, "off");
            PROBES.set_enabled(true).unwrap();
            others.all_go_on();
            let now = [probe.hits(), stays.hits(), call.hits()];
            assert!(
                core::iter::zip(now, before).all(|(now, before)| now > before),
                "on"
            );
        }
    });
    for (probe, handled) in [(probe, &COUNT), (stays, &OTHER)] {
        assert_eq!(probe.hits(), handled.load(Relaxed));
        assert!(probe.hits() + probe.nmissed() <= calls + knob_calls);
    }
    journal::clear();
    PROBES.unregister(call).unwrap();
    PROBES.unregister(stays).unwrap();
    PROBES.unregister(probe).unwrap();
}

// The count law of one probe holds while others at its address come and go.
#[test]
fn siblings_come_and_go_without_a_gap() {
    let _machine = boot();
    start_counting();
    let stays = leak(Kprobe::new().symbol("add").pre(count_pre));
    PROBES.register(stays).unwrap();
    let calls = while_others(
        |n| assert_eq!(add(n, 1), n + 1),
        |others| {
            for n in 0..rounds(300) {
                let comes = Kprobe::new().symbol("add").pre(pre::<1>);
                let comes = if n % 2 == 0 {
                    comes.post(count_post)
                } else {
                    comes
                };
                let comes = PROBES.register_owned(Box::new(comes)).unwrap();
                if n % 4 == 0 {
                    others.go_on();
                }
                drop(comes);
            }
        },
    );
    assert_eq!((stays.hits(), stays.nmissed()), (calls, 0));
    assert_eq!(COUNT.load(Relaxed), calls);
    journal::clear();
    PROBES.unregister(stays).unwrap();
}

// The promise of a call holds for the other CPUs as soon as it returns.
#[test]
fn every_cpu_sees_a_registration_and_an_unregistration_at_once() {
    let _machine = boot();
    start_counting();
    static TURN: AtomicU64 = AtomicU64::new(0);
    let rounds = rounds(500);
    TURN.store(0, Relaxed);
    /// Waits for the other side; both spin briefly and then let others run.
    fn wait_for(turn: u64) {
        while TURN.load(Acquire) != turn {
            cpu::yield_now();
        }
    }
    cpu::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2 * rounds {
                wait_for(2 * round + 1);
                assert_eq!(add(round, 1), round + 1);
                TURN.store(2 * round + 2, Release);
            }
        });
        let probe = leak(Kprobe::new().symbol("add").pre(count_pre));
        for round in 0..rounds {
            PROBES.register(probe).unwrap();
            TURN.store(4 * round + 1, Release);
            wait_for(4 * round + 2);
            assert_eq!(COUNT.load(Relaxed), round + 1, "registered, so it is hit");
            PROBES.unregister(probe).unwrap();
            TURN.store(4 * round + 3, Release);
            wait_for(4 * round + 4);
            assert_eq!(COUNT.load(Relaxed), round + 1, "unregistered, so it is not");
        }
    });
}

#[test]
fn an_unregistration_waits_for_handlers_that_run() {
    let _machine = boot();
    let by_pre = leak(Kprobe::new().symbol("add").pre(waiting_handlers::pre));
    let by_post = leak(Kprobe::new().symbol("add").post(waiting_handlers::post));
    let by_return = leak(
        Kretprobe::new()
            .symbol("add")
            .handler(waiting_handlers::returned),
    );
    type Pair<'a> = (&'a dyn Fn(), &'a (dyn Fn() + Sync));
    let probes: [Pair<'_>; 3] = [
        (&|| PROBES.register(by_pre).unwrap(), &|| {
            PROBES.unregister(by_pre).unwrap()
        }),
        (&|| PROBES.register(by_post).unwrap(), &|| {
            PROBES.unregister(by_post).unwrap()
        }),
        (&|| PROBES.register(by_return).unwrap(), &|| {
            PROBES.unregister(by_return).unwrap()
        }),
    ];
    for (register, unregister) in probes {
        register();
        cpu::scope(|scope| {
            waiting_handlers::enter(scope);
            let writes = text::stamp();
            let waiter = scope.spawn(|| {
                unregister();
                journal::note(2);
            });
            // Its first wait comes after the store that takes the breakpoint away. That it waits
            // for the handler shows in the order of the notes.
            while text::stamp() == writes && !waiter.is_finished() {
                cpu::yield_now();
            }
            assert!(!waiter.is_finished());
            waiting_handlers::let_go();
        });
        assert_eq!(journal::take(), [1, 2]);
    }
}

#[test]
fn registrations_from_many_cpus_leave_the_text_as_it_was() {
    let _machine = boot();
    on_cpus(4, |number| {
        let own: Vec<_> = on_each_step()
            .map(|probe| leak(probe.pre(count_pre)))
            .collect();
        for n in 0..rounds(120) as usize {
            // Two CPUs at an address, the other two near by.
            let probe = own[(n + number / 2 * 3) % own.len()];
            // Other CPUs' calls hit it, too; this one's does so for certain.
            // Meanwhile those come and go.
            let hit_by_a_call = |probes: &[&Kprobe], times| {
                for _ in 0..3 {
                    let before: Vec<_> = probes.iter().map(|probe| probe.hits()).collect();
                    assert_eq!(step_by_step(33), 100);
                    for (probe, before) in probes.iter().zip(before) {
                        let place = symbols::describe(probe.addr());
                        assert!(probe.hits() >= before + times, "{times} times: {place}");
                        assert_eq!(probe.nmissed(), 0);
                    }
                    cpu::yield_now();
                }
            };
            PROBES.register(probe).unwrap();
            hit_by_a_call(&[probe], 1);
            PROBES.disable(probe).unwrap();
            hit_by_a_call(&[probe], 0);
            PROBES.enable(probe).unwrap();
            hit_by_a_call(&[probe], 1);
            PROBES.unregister(probe).unwrap();
            if n % 10 == number {
                PROBES.register_batch(&own).unwrap();
                hit_by_a_call(&own, 1);
                PROBES.unregister_batch(&own).unwrap();
            }
        }
    });
    assert_eq!(list(), [""; 0]);
}

// With real interrupts, at any place.
#[test]
fn interrupts_that_hit_probes_keep_the_counts_exact() {
    let _machine = boot();
    start_counting();
    static WRONG: AtomicU64 = AtomicU64::new(0);
    static INTERRUPTS: AtomicU64 = AtomicU64::new(0);
    fn interrupt(_: &mut PtRegs, _: u8) -> bool {
        INTERRUPTS.fetch_add(1, Relaxed);
        WRONG.fetch_add((add(1, 2) != 3 || chain_a(1) != 13).into(), Relaxed);
        true
    }
    probes::jprobe! {
        fn arguments(_a: u64) {}
    }
    traps::on_interrupt(interrupt);
    let probe = leak(Kprobe::new().symbol("add").pre(count_pre).post(count_post));
    let call = leak(
        Kretprobe::new()
            .symbol("chain_a")
            .handler(returned::<1, ()>)
            .maxactive(50),
    );
    let jprobe = leak(Jprobe::new().symbol("chain_c").entry(arguments));
    PROBES.register(probe).unwrap();
    PROBES.register(call).unwrap();
    PROBES.register(jprobe).unwrap();
    const CALLS: u64 = 3_000;
    let done = AtomicU64::new(0);
    cpu::scope(|scope| {
        let workers = scope.spawn(|| {
            on_cpus(2, |_| {
                for n in 0..CALLS {
                    assert_eq!(add(n, 1), n + 1);
                    assert_eq!(chain_a(n), (n + 5) * 2 + 1);
                }
                done.fetch_add(1, Relaxed);
                // Stays online until all is over, so that it can be interrupted without looking.
                while done.load(Relaxed) < 3 {
                    cpu::yield_now();
                }
            });
        });
        // Once at the least, should both be done before the first.
        while done.load(Relaxed) < 2 || INTERRUPTS.load(Relaxed) == 0 {
            cpu::interrupt_others();
        }
        done.fetch_add(1, Relaxed);
        workers.join();
    });
    let executions = 2 * CALLS + INTERRUPTS.load(Relaxed);
    assert_eq!(WRONG.load(Relaxed), 0);
    assert!(INTERRUPTS.load(Relaxed) > 0);
    assert_eq!(probe.hits() + probe.nmissed(), executions);
    assert_eq!(COUNT.load(Relaxed), probe.hits());
    assert_eq!(OTHER.load(Relaxed), probe.hits());
    assert_eq!(call.hits() + call.kprobe().nmissed(), executions);
    assert_eq!(call.nmissed(), 0);
    assert_eq!(
        jprobe.kprobe().hits() + jprobe.kprobe().nmissed(),
        executions
    );
    journal::clear();
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES.unregister(probe).unwrap();
}
