//! Programs that go while CPUs execute them, and while tasks will return through them.
//!
//! Code and maps of a program are freed a grace period after its last hit can have begun. Each
//! program here has a number, which it stores; a number of one that has gone would show. Data of a
//! call belongs to the program that began it, and is not seen by the next one.

use alloc::{collections::BTreeSet, vec::Vec};
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use bpf::{
    Builder, Condition, Helper, MapDef, MapIndex, ProgramKind, Reg::*, Size::B8, context::Register,
};
use kernel::{
    probes::{EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PtRegs, register},
    task::{self, kthread::spawn_kthread},
    trace::{
        program::{AttachedCall, AttachedProbe, Program},
        shared::Shared,
    },
};

use super::{Fire, address_of, fired_target};
use crate::{probes::program_probes::kill_in_its_sleep, tools::jumps::Optimization};

const COUNTS: MapIndex = MapIndex(0);

/// Counts hits, and `number` for each hit.
fn numbered(number: i32) -> Shared<Program> {
    let mut b = Builder::new(ProgramKind::Probe);
    let counts = b.map(MapDef::counters("counts", 2));
    b.add(counts, 0, 1).add(counts, 1, number).exit(0);
    Program::load(b.finish().unwrap()).unwrap()
}

/// Loads and unloads programs on a function that all CPUs call. Each one counts only for itself,
/// also where its code has the pages of the one before.
fn come_and_go(rounds: i32) {
    let fire = Fire::start();
    fire.wait_for(1);
    let (mut places, mut hits) = (BTreeSet::new(), 0);
    for number in 1..=rounds {
        let probe =
            AttachedProbe::new(numbered(number), Kprobe::new().symbol("fired_target")).unwrap();
        if number % 8 == 0 {
            fire.wait_for(3);
        }
        let program = probe.program().clone();
        drop(probe);
        let [count, sum] = [0, 1].map(|index| program.counter(COUNTS, index));
        assert_eq!(sum, count * number as u64, "code of another program ran");
        places.insert(program.code_start());
        hits += count;
    }
    let calls = fire.end();
    assert!(
        hits >= rounds as u64 / 8 && hits <= calls,
        "{hits} of {calls}"
    );
    assert!(places.len() < 4, "no page was used again: {places:x?}");
}

#[guest_test]
fn programs_come_and_go_under_fire_by_jumps() {
    let _jumps = Optimization::set(true);
    come_and_go(60);
}

/// The same for longer. Each round waits for the other CPUs several times.
#[guest_test(timeout = 1200, ignore)]
fn programs_come_and_go_under_fire_for_long() {
    let _jumps = Optimization::set(true);
    come_and_go(1_000);
}

#[guest_test(smp = 4)]
fn programs_come_and_go_under_fire_by_breakpoints() {
    let _breakpoints = Optimization::set(false);
    come_and_go(100);
}

/// A program of a call: it counts, at the return, the data that the entry has kept. The entry keeps
/// the argument if it is odd.
fn call_programs() -> (Shared<Program>, Shared<Program>) {
    let mut b = Builder::new(ProgramKind::Return { data: 8 });
    let sums = b.map(MapDef::counters("sums", 2));
    b.call(Helper::EntryData)
        .load(R3, R0, 0, B8)
        .load_map(R1, sums)
        .mov(R2, 1)
        .call(Helper::Add)
        .add(sums, 0, 1)
        .exit(0);
    let on_return = Program::load(b.finish().unwrap()).unwrap();
    let mut b = Builder::new(ProgramKind::Entry { data: 8 });
    b.map(MapDef::counters("sums", 2));
    let even = b.label();
    b.load_register(R6, Register::Di)
        .mov(R7, R6)
        .alu(bpf::AluOp::And, R7, 1)
        .branch(Condition::Equal, R7, 0, even)
        .call(Helper::EntryData)
        .store(R0, 0, B8, R6)
        .place(even)
        .exit(0);
    let entry = Program::load_beside(b.finish().unwrap(), &on_return).unwrap();
    (entry, on_return)
}

fn attached_call(probe: Kretprobe) -> AttachedCall {
    let (entry, on_return) = call_programs();
    AttachedCall::new(Some(entry), on_return, probe).unwrap()
}

/// The data of one call is not there for the next one that gets its instance.
#[guest_test]
fn data_of_one_call_is_not_seen_by_the_next() {
    let probe = Kretprobe::new().symbol("fired_target").maxactive(1);
    let call = attached_call(probe);
    for n in [7, 2, 9, 4, 4] {
        fired_target(n);
    }
    assert_eq!(call.program().counter(COUNTS, 0), 5);
    assert_eq!(call.program().counter(COUNTS, 1), 16);
}

/// Nor when the first call never returns, because its task is killed in it.
#[guest_test]
fn data_of_a_killed_call_is_not_seen_by_the_next() {
    static ENTRIES: AtomicU64 = AtomicU64::new(0);
    fn enter(_: &mut KretprobeInstance<u64>, _: &mut PtRegs) -> EntryVerdict {
        ENTRIES.fetch_add(1, SeqCst);
        EntryVerdict::Decline
    }
    // Each entry keeps a word that is not zero.
    let mut b = Builder::new(ProgramKind::Return { data: 8 });
    b.map(MapDef::counters("counts", 2));
    b.exit(0);
    let on_return = Program::load(b.finish().unwrap()).unwrap();
    let mut b = Builder::new(ProgramKind::Entry { data: 8 });
    let counts = b.map(MapDef::counters("counts", 2));
    let fresh = b.label();
    b.add(counts, 0, 1)
        .call(Helper::EntryData)
        .load(R6, R0, 0, B8)
        .store(R0, 0, B8, -1)
        .branch(Condition::Equal, R6, 0, fresh)
        // The data of another call.
        .add(counts, 1, 1)
        .place(fresh)
        .exit(0);
    let entry = Program::load_beside(b.finish().unwrap(), &on_return).unwrap();
    let entered = Kretprobe::<u64>::new().symbol("sys_nanosleep").entry(enter);
    let entered = register(alloc::boxed::Box::new(entered)).unwrap();
    let probe = Kretprobe::new().symbol("sys_nanosleep").maxactive(4);
    let call = AttachedCall::new(Some(entry), on_return, probe).unwrap();
    for _ in 0..12 {
        kill_in_its_sleep(&ENTRIES);
    }
    let [entries, stale] = [0, 1].map(|index| call.program().counter(counts, index));
    // More than there are instances, so each was used again.
    assert!(entries > 8, "{entries} entries");
    assert_eq!(stale, 0, "data of a killed call");
    drop((call, entered));
}

static ASLEEP: AtomicU64 = AtomicU64::new(0);
static WAKE: AtomicBool = AtomicBool::new(false);

/// Stays inside until [`WAKE`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_sleeper(n: u64) -> u64 {
    ASLEEP.fetch_add(1, SeqCst);
    while !WAKE.load(SeqCst) {
        task::schedule();
    }
    core::hint::black_box(n) + 3
}

/// The return program goes while tasks are in the function. They return past it, also where its
/// pages have other code by then.
#[guest_test(smp = 4)]
fn a_return_program_goes_while_tasks_sleep_in_the_function() {
    const TASKS: u64 = 6;
    for _ in 0..8 {
        ASLEEP.store(0, SeqCst);
        WAKE.store(false, SeqCst);
        let at = address_of("traced_sleeper");
        let call = attached_call(Kretprobe::new().at(at).maxactive(TASKS as i32));
        let threads: Vec<_> = (0..TASKS)
            .map(|n| spawn_kthread("sleeps", move || assert_eq!(traced_sleeper(n), n + 3)).unwrap())
            .collect();
        while ASLEEP.load(SeqCst) < TASKS {
            task::schedule();
        }
        let program = call.program().clone();
        assert_eq!(call.misses(), 0);
        let place = program.code_start();
        drop(call);
        assert_eq!(program.holders(), 1, "somebody has the program still");
        drop(program);
        // Other code in the same pages.
        let others: Vec<_> = (1..4).map(numbered).collect();
        assert!(others.iter().any(|other| other.code_start() == place));
        WAKE.store(true, SeqCst);
        threads.iter().for_each(|thread| thread.wait_released());
        for other in others {
            assert_eq!(other.counter(COUNTS, 0), 0);
        }
    }
    while kernel::probes::PROBES.reap().unwrap() > 0 {
        task::schedule();
    }
    ASLEEP.store(0, Relaxed);
}
