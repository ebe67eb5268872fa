//! NMIs and interrupts in the middle of an action and of a record.
//!
//! A hit is stepped through, and between any two instructions of its action another one comes, by
//! an NMI or by an interrupt that wakes a reader. Both records are whole, and none is lost or
//! counted twice; the same while the rings are exchanged.

use alloc::{format, string::String, vec, vec::Vec};
use core::{
    hint,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use bpf::{AluOp, Builder, Condition, MapDef, ProgramKind, Reg::*, Size::B8, context::Register};
use kernel::{
    arch::{percpu, smp, traps},
    probes::PtRegs,
    task::kthread::spawn_kthread_on,
    trace::{
        TRACING,
        buffer::{Item, Which},
        program::{AttachedProbes, Program},
        script::{How, Outlet, Session, symbols_only::SymbolsOnly},
        shared::Shared,
        take_snapshot,
    },
};
use trace_answers::Presentation;
use trace_compiler::{Options, compile};
use trace_interface::Frame;

use super::{Rings, Since, address_of, fired_target, number_in, recorder};
use crate::{
    interruptions::between_instructions::{forget_visits, is_wanted},
    tools::jumps::Optimization,
    tools::nmi,
    tools::stepping::step_through,
};

/// The argument of the call that is interrupted; those in NMIs are below it.
const OUTER: u64 = 1 << 40;
/// How often the handler of an NMI calls the function.
static CALLS_IN_NMI: AtomicU64 = AtomicU64::new(0);
/// Calls in NMIs, of the function and of [`body_of_nmi`].
static IN_NMIS: AtomicU64 = AtomicU64::new(0);
static NMIS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

fn call(n: u64) {
    let is_wrong = fired_target(n) != n.wrapping_mul(5) + 2;
    WRONG.fetch_add(is_wrong.into(), SeqCst);
}

/// The handler of NMIs, which is traced itself. The argument is the number of its record.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn body_of_nmi(number: u64) {
    // Used, or else callers need not pass it.
    hint::black_box(number);
    for _ in 0..CALLS_IN_NMI.load(Relaxed) {
        call(IN_NMIS.fetch_add(1, SeqCst) + 1);
    }
    NMIS.fetch_add(1, SeqCst);
}

fn on_nmi(_: &PtRegs) {
    body_of_nmi(IN_NMIS.fetch_add(1, SeqCst) + 1);
}

extern "C" fn outer() {
    call(OUTER);
}

/// An NMI at this step.
fn interrupt(regs: &PtRegs) {
    if !is_wanted(regs.ip) {
        return;
    }
    let before = NMIS.load(SeqCst);
    smp::send_nmi(percpu::cpu_id());
    while NMIS.load(SeqCst) == before {
        hint::spin_loop();
    }
}

fn attach(program: Shared<Program>) -> AttachedProbes {
    let places = [address_of("fired_target"), address_of("body_of_nmi")];
    AttachedProbes::new(program, &places).unwrap()
}

/// Interrupts one call between any two instructions, of which there are more than 50. Returns the
/// number of calls.
fn interrupted(calls_in_nmi: u64) -> u64 {
    let calls = interrupted_however_short(calls_in_nmi);
    assert!(NMIS.load(SeqCst) > 50, "{} NMIs", NMIS.load(SeqCst));
    calls
}

/// The same for actions of any length.
fn interrupted_however_short(calls_in_nmi: u64) -> u64 {
    CALLS_IN_NMI.store(calls_in_nmi, SeqCst);
    for count in [&IN_NMIS, &NMIS, &WRONG] {
        count.store(0, SeqCst);
    }
    forget_visits();
    traps::set_nmi_handler(Some(on_nmi));
    step_through(outer, interrupt);
    traps::set_nmi_handler(None);
    assert_eq!(WRONG.load(SeqCst), 0, "results of calls");
    1 + IN_NMIS.load(SeqCst)
}

/// The numbers in the buffer, and how many records are lost.
fn numbers() -> (Vec<u64>, u64) {
    let (mut numbers, mut lost) = (vec![], 0);
    while TRACING
        .buffer
        .consume(None, |item| match item {
            Item::Record { bytes, .. } => numbers.push(number_in(bytes)),
            Item::Lost { count, .. } => lost += count,
        })
        .expect("there is memory")
    {}
    (numbers, lost)
}

/// Each hit leaves an intact record, and those of the NMIs are in their order.
fn nothing_is_lost(jumps: bool) {
    let _jumps = Optimization::set(jumps);
    let _rings = Rings::of(256, true);
    let since = Since::now();
    let probes = attach(recorder());
    let calls = interrupted(1);
    let totals = since.check(probes.program(), calls);
    assert_eq!((totals.dropped, totals.off, totals.overwritten), (0, 0, 0));
    let (numbers, lost) = numbers();
    assert_eq!((numbers.len() as u64, lost), (calls, 0));
    let of_nmis: Vec<u64> = numbers.into_iter().filter(|n| *n != OUTER).collect();
    assert_eq!(of_nmis, (1..calls).collect::<Vec<_>>());
}

#[guest_test]
fn an_nmi_between_any_two_instructions_of_a_record_by_jump_loses_nothing() {
    nothing_is_lost(true);
}

#[guest_test]
fn an_nmi_between_any_two_instructions_of_a_record_by_breakpoint_loses_nothing() {
    nothing_is_lost(false);
}

/// Steps left until the one at which an NMI takes a snapshot.
static STEPS_LEFT: AtomicU64 = AtomicU64::new(0);

/// An NMI that takes a snapshot comes at one step.
fn interrupt_once(_: &PtRegs) {
    if STEPS_LEFT.fetch_sub(1, SeqCst) != 1 {
        return;
    }
    let before = NMIS.load(SeqCst);
    smp::send_nmi(percpu::cpu_id());
    while NMIS.load(SeqCst) == before {
        hint::spin_loop();
    }
}

/// The rings are exchanged between any two instructions of a record, and an NMI's record goes to
/// the other ring at once. Both records are complete, in one of the two.
fn an_exchange_loses_nothing(jumps: bool) {
    let _jumps = Optimization::set(jumps);
    let _rings = Rings::of(4, true);
    let since = Since::now();
    TRACING.buffer.take_snapshot(None).unwrap();
    let probes = attach(recorder());
    CALLS_IN_NMI.store(0, SeqCst);
    for count in [&IN_NMIS, &NMIS, &WRONG] {
        count.store(0, SeqCst);
    }
    traps::set_nmi_handler(Some(|_| {
        take_snapshot();
        body_of_nmi(IN_NMIS.fetch_add(1, SeqCst) + 1);
    }));
    let mut in_snapshot = 0;
    let mut calls = 0;
    for step in 1.. {
        STEPS_LEFT.store(step, SeqCst);
        step_through(outer, interrupt_once);
        calls += 1;
        // The call had fewer steps.
        if NMIS.load(SeqCst) < step {
            break;
        }
        calls += 1;
        let mut old = Vec::new();
        TRACING.buffer.settle_snapshot();
        TRACING
            .buffer
            .view(Which::Snapshot, None, |item| {
                match item {
                    Item::Record { bytes, .. } => old.push(number_in(bytes)),
                    Item::Lost { .. } => panic!("lost records"),
                }
                true
            })
            .unwrap();
        let (new, lost) = numbers();
        assert_eq!(lost, 0);
        match &old[..] {
            [] => assert_eq!(new, [step, OUTER], "at step {step}"),
            [OUTER] => assert_eq!(new, [step], "at step {step}"),
            _ => panic!("{old:?} and {new:?} at step {step}"),
        }
        in_snapshot += old.len();
        TRACING.buffer.clear_snapshot(None);
    }
    traps::set_nmi_handler(None);
    assert_eq!(WRONG.load(SeqCst), 0, "results of calls");
    let steps = calls / 2;
    // Before the ring is known, and after.
    assert!(
        in_snapshot > 10 && in_snapshot < steps as usize,
        "{steps} steps"
    );
    let totals = since.check(probes.program(), calls);
    assert_eq!((totals.dropped, totals.off, totals.overwritten), (0, 0, 0));
    assert_eq!(totals.cleared, in_snapshot as u64);
    drop(probes);
    TRACING.buffer.free_snapshot().unwrap();
    numbers();
}

#[guest_test]
fn a_snapshot_between_any_two_instructions_of_a_record_by_jump_loses_nothing() {
    an_exchange_loses_nothing(true);
}

#[guest_test]
fn a_snapshot_between_any_two_instructions_of_a_record_by_breakpoint_loses_nothing() {
    an_exchange_loses_nothing(false);
}

/// The NMIs in the middle of one record fill the only page: what has no room is counted, and the
/// interrupted record is intact.
#[guest_test]
fn records_that_fill_the_page_of_an_interrupted_one_are_counted() {
    for (jumps, overwrites) in [(true, true), (false, true), (true, false)] {
        let _jumps = Optimization::set(jumps);
        let _rings = Rings::of(4, overwrites);
        let since = Since::now();
        let probes = attach(recorder());
        let calls = interrupted(12);
        let totals = since.check(probes.program(), calls);
        assert!(totals.dropped > 0, "the page had room: {totals:?}");
        let (numbers, lost) = numbers();
        assert_eq!(numbers.len() as u64, totals.unread);
        assert!(lost >= totals.overwritten, "{lost} told, {totals:?}");
        let of_nmis: Vec<u64> = numbers.into_iter().filter(|n| *n != OUTER).collect();
        assert!(of_nmis.is_sorted_by(|a, b| a < b), "{of_nmis:?}");
    }
}

/// Counts by key are exact, too, or else the program is told.
#[guest_test]
fn an_nmi_between_any_two_instructions_of_a_count_by_key_is_counted() {
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        let mut b = Builder::new(ProgramKind::Probe);
        let counts = b.map(MapDef::counters("counts", 2));
        let keys = b.map(MapDef::counters_by_key("keys", 8, 64));
        let end = b.label();
        b.load_register(R6, Register::Di)
            .alu(AluOp::And, R6, 7)
            .store(R10, -8, B8, R6)
            .add(counts, 0, 1)
            .add_by_key(keys, -8, 1)
            .branch(Condition::Equal, R0, 0, end)
            .add(counts, 1, 1)
            .place(end)
            .exit(0);
        let probes = attach(Program::load(b.finish().unwrap()).unwrap());
        let calls = interrupted(2);
        let program = probes.program();
        let sum: u64 = (0..8_u64)
            .map(|key| program.sum_of_key(keys, &key.to_le_bytes()))
            .sum();
        assert_eq!(program.counter(counts, 0), calls);
        assert_eq!(sum + program.counter(counts, 1), calls);
        assert!(sum > calls / 2, "{sum} of {calls}");
    }
}

/// Keeps the answers of a program of the language as text.
struct Answers {
    presentation: Presentation,
    text: String,
}

impl Outlet for Answers {
    fn send(&mut self, frame: &Frame) {
        self.presentation
            .frame(frame, &SymbolsOnly, &mut self.text)
            .expect("text in memory");
    }
}

/// The answers of a program for the function, of which one call is interrupted between any two
/// instructions; and the arguments of all calls.
fn answers_of(program: &str) -> (String, Vec<u64>) {
    let tree = trace_language::parse(program).unwrap();
    let compiled = compile(&tree, &SymbolsOnly, &Options::default()).unwrap();
    let mut answers = Answers {
        presentation: Presentation::new(compiled.view),
        text: String::new(),
    };
    let session = Session::start(&compiled.script, How::default(), &mut answers).unwrap();
    let calls = interrupted_however_short(1);
    assert!(NMIS.load(SeqCst) > 20, "{} NMIs", NMIS.load(SeqCst));
    session.end(&mut answers);
    // Each NMI calls `body_of_nmi` with an odd number, then the function with the next one.
    let arguments: Vec<u64> = (2..calls).step_by(2).chain([OUTER]).collect();
    (answers.text, arguments)
}

fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|found| found == line)
}

/// All that is gathered is exact, for each way to gather. The interrupted call has the greatest
/// argument.
#[guest_test]
fn an_nmi_between_any_two_instructions_of_an_aggregation_is_gathered() {
    type Expected = fn(&[u64]) -> String;
    let sum: Expected = |all| format!("{}", all.iter().sum::<u64>());
    let count: Expected = |all| format!("{}", all.len());
    let ways: [(&str, Expected); 8] = [
        ("= count()", count),
        ("++", count),
        ("= sum(arg0)", sum),
        ("+= arg0", sum),
        ("= max(arg0)", |_| format!("{OUTER}")),
        ("= min(-arg0)", |_| format!("-{OUTER}")),
        ("= avg(arg0)", |all| {
            format!("{}", all.iter().sum::<u64>() / all.len() as u64)
        }),
        ("= stats(arg0)", |all| {
            let (count, sum) = (all.len() as u64, all.iter().sum::<u64>());
            let average = sum / count;
            format!("{{ .count = {count}, .average = {average}, .total = {sum} }}")
        }),
    ];
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        for map in ["@", "@[1]"] {
            for (way, expected) in &ways {
                let program = format!("kprobe:fired_target {{ {map} {way}; }}");
                let (text, arguments) = answers_of(&program);
                let line = format!("{map}: {}", expected(&arguments));
                assert!(has_line(&text, &line), "{line}\n{text}");
                assert!(text.contains(" + 0 missed"), "{text}");
            }
            for histogram in ["hist(arg0)", "lhist(arg0, 0, 40, 10)"] {
                let program = format!("kprobe:fired_target {{ {map} = {histogram}; }}");
                let (text, arguments) = answers_of(&program);
                let counts = text.lines().filter_map(|line| {
                    let (_, count) = line.split_once('|')?.0.split_once(')')?;
                    count.trim().parse::<usize>().ok()
                });
                assert_eq!(counts.sum::<usize>(), arguments.len(), "{text}");
            }
        }
    }
}

/// Counts by stack are exact, although an NMI notes a stack while another one is being noted.
#[guest_test]
fn an_nmi_between_any_two_instructions_of_a_count_by_stack_is_counted() {
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        let (text, arguments) = answers_of("kprobe:fired_target { @[kstack(2)] = count(); }");
        let counts = text
            .lines()
            .filter_map(|line| line.strip_prefix("]: ")?.parse::<usize>().ok());
        assert_eq!(counts.sum::<usize>(), arguments.len(), "{text}");
        for frame in ["fired_target+", "interrupts::outer+", "body_of_nmi+"] {
            assert!(text.contains(frame), "{text}");
        }
    }
}

/// The value that the entry and the return of a call share is that of the same call. Where the
/// guard is held, calls are missed, and they are counted.
#[guest_test]
fn an_nmi_between_any_two_instructions_of_a_followed_call_is_gathered_or_missed() {
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        let (text, arguments) = answers_of(
            "session:fired_target { $n = arg0; } return { @calls = count(); @most = max($n); \
             @wrong = sum(reg(\"ax\") != $n * 5 + 2); }",
        );
        let calls = text.lines().find_map(|line| line.strip_prefix("@calls: "));
        let calls: usize = calls.unwrap().parse().unwrap();
        assert!(calls > 20, "{text}");
        let (hits, missed) = (arguments.len(), arguments.len() - calls);
        let books = format!("{hits} hits = {calls} recorded + {missed} missed");
        assert!(text.contains(&books), "{books}\n{text}");
        assert!(has_line(&text, &format!("@most: {OUTER}")), "{text}");
        assert!(has_line(&text, "@wrong: 0"), "{text}");
    }
}

/// Keys come and go in the NMIs between any two instructions of a key's coming and going. Each key
/// is there once in the end, with a value of its own.
#[guest_test]
fn an_nmi_between_any_two_instructions_of_an_assignment_leaves_a_sound_map() {
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        let (text, arguments) = answers_of(
            "kprobe:fired_target { delete(@[(arg0 + 2) & 7]); @[arg0 & 7] = arg0; \
             delete(@[arg0 & 7]); @[arg0 & 7] = arg0; }",
        );
        let mut keys = [0; 8];
        for line in text.lines().filter(|line| line.starts_with("@[")) {
            let (key, value) = line[2..].split_once("]: ").unwrap();
            let (key, value): (u64, u64) = (key.parse().unwrap(), value.parse().unwrap());
            assert!(value & 7 == key && arguments.contains(&value), "{text}");
            keys[key as usize] += 1;
        }
        assert!(keys.iter().all(|times| *times <= 1), "{text}");
        assert!(keys.contains(&1), "{text}");
    }
}

/// NMIs and interrupts on one CPU from another one, at any place, while a reader takes records out.
#[guest_test]
fn records_under_nmis_from_another_cpu_are_intact() {
    static STOP: AtomicBool = AtomicBool::new(false);
    static OUTER_CALLS: AtomicU64 = AtomicU64::new(0);
    STOP.store(false, SeqCst);
    for count in [&IN_NMIS, &NMIS, &WRONG, &OUTER_CALLS] {
        count.store(0, SeqCst);
    }
    CALLS_IN_NMI.store(3, SeqCst);
    let _rings = Rings::of(16, true);
    let since = Since::now();
    let probes = attach(recorder());
    traps::set_nmi_handler(Some(on_nmi));
    let holder = spawn_kthread_on(2, "fires", || {
        while !STOP.load(Relaxed) {
            call(OUTER + OUTER_CALLS.fetch_add(1, SeqCst));
        }
    })
    .unwrap();
    let sender = spawn_kthread_on(1, "sends", || {
        for _ in 0..2_000 {
            nmi::send(1, &NMIS, || false);
        }
        STOP.store(true, SeqCst);
    })
    .unwrap();
    let (mut read, mut lost) = (0, 0);
    let (mut last, mut last_in_nmi) = (0, 0);
    let mut take = || {
        TRACING
            .buffer
            .consume(Some(1), |item| match item {
                Item::Record { bytes, .. } => {
                    let n = number_in(bytes);
                    let last = if n >= OUTER {
                        &mut last
                    } else {
                        &mut last_in_nmi
                    };
                    assert!(*last < n, "{last}, then {n}");
                    *last = n;
                    read += 1;
                }
                Item::Lost { count, .. } => lost += count,
            })
            .expect("there is memory")
    };
    while !STOP.load(SeqCst) {
        take();
    }
    sender.wait_released();
    holder.wait_released();
    traps::set_nmi_handler(None);
    while take() {}
    let calls = OUTER_CALLS.load(SeqCst) + IN_NMIS.load(SeqCst);
    let totals = since.check(probes.program(), calls);
    assert_eq!(WRONG.load(SeqCst), 0, "results of calls");
    assert_eq!((totals.read, totals.unread), (read, 0));
    assert!(lost >= totals.overwritten && lost <= totals.overwritten + totals.dropped);
}
