//! Watchpoints that are moved while they are registered: by tasks, by handlers, on all CPUs.
//!
//! The words and the code that stores to them are those of the tests of watchpoints. A store is one
//! instruction, and each store of a test has a value of its own. So a hit tells which one it was.

use alloc::{boxed::Box, vec, vec::Vec};
use core::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use kernel::{
    arch::{percpu, smp, traps},
    probes::{
        AimError, AimedAt, Kprobe, PreVerdict, PtRegs, Touched, WATCHPOINTS, Watchpoint, register,
        text_poke,
    },
    task::{kthread::spawn_kthread_on, schedule},
};

use crate::tools::stepping::step_through;

use super::watchpoints::{WATCHED_WORDS, address, note, told, watch, watched_store, word};

fn store(index: usize, value: u64) {
    // SAFETY: it stores to the word.
    unsafe { watched_store(word(index), value) };
}

/// The words, the old and the new values that handlers were told of.
fn seen() -> Vec<(u64, u64, u64)> {
    let index = |addr: u64| (addr - address(0)) / 8;
    let told = told().into_iter();
    told.map(|touched| (index(touched.addr), touched.old, touched.new))
        .collect()
}

fn aim(watch: &Watchpoint, from: AimedAt, to: Option<u64>) -> bool {
    WATCHPOINTS.aim(watch, from, to).expect("it can be moved")
}

#[guest_test]
fn a_moved_watchpoint_sees_the_new_word_alone() {
    told();
    let watched = watch(Watchpoint::new().movable().handler(note));
    assert_eq!((watched.addr(), watched.is_movable()), (0, true));
    for index in 0..4 {
        WATCHED_WORDS.words[index].store(10 + index as u64, Relaxed);
    }
    assert_eq!(seen(), []);
    assert!(aim(&watched, AimedAt::Nothing, Some(address(1))));
    assert_eq!(watched.addr(), address(1));
    store(0, 20);
    store(1, 21);
    assert_eq!(seen(), [(1, 11, 21)]);
    // The value that is found on arrival is the next old one.
    store(2, 22);
    assert!(aim(&watched, AimedAt::Anything, Some(address(2))));
    store(1, 31);
    store(2, 32);
    assert_eq!(seen(), [(2, 22, 32)]);
    // It is moved only from where the caller means.
    for (from, moves) in [
        (AimedAt::Nothing, false),
        (AimedAt::This(address(1)), false),
        (AimedAt::This(address(2)), true),
        (AimedAt::This(address(2)), false),
        (AimedAt::Nothing, true),
    ] {
        let to = address(3);
        let target = (from != AimedAt::This(address(2))).then_some(to);
        assert_eq!(aim(&watched, from, target), moves, "{from:x?}");
    }
    assert_eq!(watched.addr(), address(3));
    assert!(aim(&watched, AimedAt::Anything, None));
    for index in 0..4 {
        store(index, 50);
    }
    assert_eq!(seen(), []);
    assert_eq!(
        (watched.addr(), watched.hits(), watched.nmissed()),
        (0, 2, 0)
    );
}

/// What is off stays off when it is moved, and begins with the value of the moment when it is on.
#[guest_test]
fn a_watchpoint_that_is_off_can_be_moved() {
    let watched = watch(Watchpoint::new().movable().disabled().handler(note));
    store(1, 1);
    aim(&watched, AimedAt::Nothing, Some(address(1)));
    store(1, 2);
    told();
    WATCHPOINTS.enable(&watched).unwrap();
    store(1, 3);
    assert_eq!(seen(), [(1, 2, 3)]);
    WATCHPOINTS.disable(&watched).unwrap();
    aim(&watched, AimedAt::Anything, Some(address(2)));
    store(2, 4);
    assert_eq!(seen(), []);
    drop(watched);
    // One that is movable may have a first address.
    let watched = watch(Watchpoint::new().at(address(3)).movable().handler(note));
    store(3, 5);
    told();
    store(3, 6);
    assert_eq!(seen(), [(3, 5, 6)]);
    drop(watched);
}

#[guest_test]
fn what_cannot_be_watched_is_not_aimed_at() {
    let fixed = watch(Watchpoint::new().at(address(0)));
    let movable = watch(Watchpoint::new().movable());
    aim(&movable, AimedAt::Nothing, Some(address(1)));
    let local = 0_u64;
    let on_stack = core::ptr::from_ref(&local).addr() as u64;
    static NEVER: Watchpoint = Watchpoint::new().movable();
    for (watched, to, expected) in [
        (&*fixed, address(1), AimError::NotMovable),
        (&NEVER, address(1), AimError::NotRegistered),
        (&movable, address(1) + 4, AimError::Unaligned),
        (&movable, 0, AimError::NotWatchable),
        (&movable, on_stack, AimError::NotWatchable),
        (&movable, 0x40_0000, AimError::NotWatchable),
        (&movable, 1 << 62, AimError::NotWatchable),
        (&movable, u64::MAX - 7, AimError::NotWatchable),
    ] {
        let error = WATCHPOINTS
            .aim(watched, AimedAt::Anything, Some(to))
            .unwrap_err();
        assert_eq!((error, error.errno()), (expected, 22), "{to:#x}");
        assert!(!alloc::format!("{error}").is_empty());
    }
    assert_eq!((fixed.addr(), movable.addr()), (address(0), address(1)));
    // Four are four, wherever they are aimed.
    let _third = watch(Watchpoint::new().movable());
    let _fourth = watch(Watchpoint::new().movable());
    let fifth = WATCHPOINTS.register_owned(Box::new(Watchpoint::new().movable()));
    assert_eq!(fifth.expect_err("it was taken").name(), "NoWatchRegister");
}

/// The watchpoint that a handler moves.
static MOVED: AtomicPtr<Watchpoint> = AtomicPtr::new(core::ptr::null_mut());

/// Follows the word that the probed function is about to store to.
fn follow(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    // SAFETY: the test unregisters the probe before the watchpoint.
    let watched = unsafe { &*MOVED.load(SeqCst) };
    aim(watched, AimedAt::Anything, Some(regs.di));
    PreVerdict::Execute
}

/// The handler aims it at the word, and the instruction that the probe has displaced touches it.
#[guest_test(smp = 2)]
fn a_handler_aims_it_at_what_it_finds() {
    let watched = watch(Watchpoint::new().movable().handler(note));
    MOVED.store(core::ptr::from_ref(&*watched).cast_mut(), SeqCst);
    let probe = register(Box::new(Kprobe::new().symbol("watched_store").pre(follow))).unwrap();
    for index in 0..4 {
        WATCHED_WORDS.words[index].store(7, Relaxed);
    }
    told();
    for index in [2, 0, 3, 3] {
        store(index, index as u64 + 40);
    }
    assert_eq!(seen(), [(2, 7, 42), (0, 7, 40), (3, 7, 43), (3, 43, 43)]);
    assert_eq!((probe.hits(), probe.nmissed()), (4, 0));
}

/// Two match in one instruction, and the handler of the first moves the second: that one was not
/// touched where it is now.
#[guest_test]
fn a_handler_may_move_another_that_has_matched() {
    fn move_other(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        // SAFETY: the test drops both together.
        let other = unsafe { &*MOVED.load(SeqCst) };
        aim(other, AimedAt::Anything, Some(address(3)));
    }
    told();
    let _first = watch(Watchpoint::new().at(address(1)).len(4).handler(move_other));
    let second = watch(Watchpoint::new().movable().handler(note));
    MOVED.store(core::ptr::from_ref(&*second).cast_mut(), SeqCst);
    aim(&second, AimedAt::Nothing, Some(address(1)));
    store(1, 7);
    // The processor tells of both, QEMU 7.2 of the first only (docs/emulators.md).
    assert_eq!(
        (seen(), second.hits(), second.addr()),
        (vec![], 0, address(3))
    );
    let before = WATCHED_WORDS.words[3].load(Relaxed);
    store(3, 8);
    assert_eq!(seen(), [(3, before, 8)]);
}

/// The other CPUs follow when their interrupt has come. A CPU that has answered a later question
/// has had it.
#[guest_test(smp = 4)]
fn all_cpus_follow_a_moved_watchpoint() {
    const ROUNDS: u64 = 50;
    static ROUND: AtomicU64 = AtomicU64::new(0);
    static STORED: AtomicU64 = AtomicU64::new(0);
    ROUND.store(0, SeqCst);
    let watched = watch(Watchpoint::new().movable());
    let cpus = smp::online_cpus() as u64;
    let threads = (1..cpus).map(|cpu| {
        let work = || {
            for round in 1..=ROUNDS {
                while ROUND.load(SeqCst) < round {
                    schedule();
                }
                // All words, and one of them is watched.
                (0..4).for_each(|index| store(index, round));
                STORED.fetch_add(1, SeqCst);
            }
        };
        spawn_kthread_on(1 << cpu, "stores", work).expect("memory for a thread")
    });
    let threads: Vec<_> = threads.collect();
    for round in 1..=ROUNDS {
        STORED.store(0, SeqCst);
        let target = address(round as usize % 4);
        assert!(aim(&watched, AimedAt::Anything, Some(target)));
        text_poke::synchronize_cores();
        ROUND.store(round, SeqCst);
        while STORED.load(SeqCst) < cpus - 1 {
            schedule();
        }
        assert_eq!(watched.hits(), round * (cpus - 1), "round {round}");
    }
    for thread in threads {
        thread.wait_released();
    }
    assert_eq!(watched.nmissed(), 0);
}

/// All CPUs move it and store at once: no hit has the value of another word.
#[guest_test(smp = 4)]
fn no_hit_has_the_old_value_of_another_word() {
    const MOVES: u64 = 400;
    static WRONG: AtomicU64 = AtomicU64::new(0);
    /// Word `n` only ever has values whose remainder by 4 is `n`.
    fn check(_: &Watchpoint, _: &mut PtRegs, touched: &Touched) {
        let index = (touched.addr - address(0)) / 8;
        if touched.old % 4 != index || touched.new % 4 != index {
            WRONG.fetch_add(1, SeqCst);
        }
    }
    WRONG.store(0, SeqCst);
    for index in 0..4 {
        WATCHED_WORDS.words[index].store(index as u64, Relaxed);
    }
    let watched = watch(Watchpoint::new().movable().handler(check));
    MOVED.store(core::ptr::from_ref(&*watched).cast_mut(), SeqCst);
    let cpus = smp::online_cpus() as u64;
    let threads = (0..cpus).map(|cpu| {
        let work = move || {
            // SAFETY: the watchpoint stays until all threads have ended.
            let watched = unsafe { &*MOVED.load(SeqCst) };
            for value in 0..MOVES {
                let index = (cpu + value) % 4;
                // A task may be moved to no other CPU, and may be interrupted.
                aim(watched, AimedAt::Anything, Some(address(index as usize)));
                (0..4).for_each(|index| store(index as usize, 4 * value + index));
            }
        };
        spawn_kthread_on(1 << cpu, "moves", work).expect("memory for a thread")
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.wait_released();
    }
    assert_eq!(WRONG.load(SeqCst), 0);
    // Each CPU has just aimed it when it stores, so others can take it away only now and then.
    assert!(watched.hits() > MOVES, "{} hits", watched.hits());
}

/// It is moved between any two instructions of the code that sends an interrupt to another CPU, and
/// that one arrives all the same.
#[guest_test(smp = 2)]
fn a_watchpoint_is_moved_while_an_interrupt_is_being_sent() {
    static ARRIVED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    static STEPS: AtomicU64 = AtomicU64::new(0);
    fn count(_: &PtRegs) {
        ARRIVED[percpu::cpu_id()].fetch_add(1, SeqCst);
    }
    extern "C" fn send() {
        smp::send_nmi(1);
    }
    fn to_and_fro(_: &PtRegs) {
        // SAFETY: the watchpoint stays until the steps are done.
        let watched = unsafe { &*MOVED.load(SeqCst) };
        let next = usize::from(watched.addr() == address(0));
        aim(watched, AimedAt::Anything, Some(address(next)));
        STEPS.fetch_add(1, SeqCst);
    }
    let watched = watch(Watchpoint::new().movable());
    MOVED.store(core::ptr::from_ref(&*watched).cast_mut(), SeqCst);
    STEPS.store(0, SeqCst);
    let before = ARRIVED.each_ref().map(|count| count.load(SeqCst));
    traps::set_nmi_handler(Some(count));
    step_through(send, to_and_fro);
    while ARRIVED[1].load(SeqCst) == before[1] {
        core::hint::spin_loop();
    }
    text_poke::synchronize_cores();
    traps::set_nmi_handler(None);
    let after = ARRIVED.each_ref().map(|count| count.load(SeqCst));
    assert_eq!(after, [before[0], before[1] + 1]);
    assert!(STEPS.load(SeqCst) > 20, "{} steps", STEPS.load(SeqCst));
}
