//! An NMI between any two instructions by which a breakpoint of a program is served: in the stub,
//! also where GS is the program's, in the functions of Rust that it calls, in actions and handlers.
//!
//! Each case runs a program with probes, which checks its own results, and steps through each of
//! its breakpoints. At each instruction NMIs come whose handler hits probes of the kernel, reads
//! memory that is not there, and looks at the calls that the program is in. The counts of all
//! probes are exact. Stack walks from each instruction lead to the stub, and end there. In the end
//! each instruction of the stub has been interrupted.

use crate::{
    interruptions::{
        between_instructions::{forget_visits, is_wanted},
        disturbed_hits::UNMAPPED,
    },
    probes::user_returns::Action,
    tools::user_stepping::{HANDLED, step_breakpoints},
};
use abi::{WaitStatus, signal};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use iced_x86::{Decoder, DecoderOptions, FastFormatter};
use kernel::{
    arch::{percpu, traps},
    backtrace,
    errno::Errno,
    mm::{
        paging::USER_END,
        uaccess::{self, copy_from_user_nofault},
    },
    pr_info,
    probes::{Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs, register},
    symbols,
    task::exec::run_program,
    uprobes::{
        Uprobe, Uretprobe, UserCall, copy_from_program, hit::shown_return_address,
        registry::RegisteredUserProbe,
    },
};

const EXERCISE: &str = "/bin/exercise";
const STUB: &str = "asm_breakpoint_other";

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn in_nmi_of_a_program(a: u64) -> u64 {
    black_box(a + 7177)
}

/// Calls in NMIs that returned what they should.
static RIGHT: AtomicU64 = AtomicU64::new(0);
/// Instructions at which the test was asked.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// Steps whose walk did not lead to the stub, and the address of the last one.
static LOST: AtomicU64 = AtomicU64::new(0);
static LOST_AT: AtomicU64 = AtomicU64::new(0);
/// Ways back to ring 3, by `iretq`, at an address that the processor may refuse.
static WILD: AtomicU64 = AtomicU64::new(0);
/// Another task is asked for when the stub next calls Rust, or looks whether one is.
static RESCHEDULES: AtomicBool = AtomicBool::new(false);

/// Which bytes of the stub have been the next instruction at an NMI.
static SEEN: [AtomicBool; 2048] = [const { AtomicBool::new(false) }; 2048];
static START: AtomicU64 = AtomicU64::new(0);
static SIZE: AtomicU64 = AtomicU64::new(0);

fn in_stub(ip: u64) -> bool {
    ip.wrapping_sub(START.load(Relaxed)) < SIZE.load(Relaxed)
}

const CALL: u8 = 0xe8;
const IRETQ: u16 = 0xcf48;
const COMPARE_WITH_BYTE_OF_CPU: [u8; 4] = [0x65, 0x80, 0x3c, 0x25];

fn at_each(regs: &mut PtRegs) -> bool {
    STEPS.fetch_add(1, Relaxed);
    let last = backtrace::walk_interrupted(regs).last();
    let is_there = last
        .and_then(|frame| symbols::lookup_addr(frame.ip()))
        .is_some_and(|symbol| {
            [STUB, "kprobe_breakpoint", "exception_return"].contains(&symbol.name)
        });
    if !is_there {
        LOST.fetch_add(1, Relaxed);
        LOST_AT.store(regs.ip, Relaxed);
    }
    if in_stub(regs.ip) {
        SEEN[(regs.ip - START.load(Relaxed)) as usize].store(true, Relaxed);
        // SAFETY: text of the kernel, which goes on after the stub.
        let code = unsafe { (regs.ip as *const [u8; 4]).read_unaligned() };
        let is_place = code[0] == CALL || code == COMPARE_WITH_BYTE_OF_CPU;
        if is_place && RESCHEDULES.swap(false, Relaxed) {
            percpu::this().set_need_resched();
        }
    }
    // SAFETY: text of the kernel, and what it is about to take from the stack.
    let way_back = unsafe {
        let [instruction, ip, cs] =
            [regs.ip, regs.sp, regs.sp + 8].map(|address| (address as *const u64).read_unaligned());
        (instruction as u16 == IRETQ && cs & 3 == 3).then_some(ip)
    };
    WILD.fetch_add(way_back.is_some_and(|ip| ip > USER_END).into(), Relaxed);
    is_wanted(regs.ip)
}

fn in_nmi(regs: &PtRegs) {
    let is_right = in_nmi_of_a_program(black_box(1)) == 7178
        && copy_from_user_nofault(&mut [0; 8], UNMAPPED) == Err(Errno::EFAULT)
        && shown_return_address(regs.sp, 5) == 5;
    RIGHT.fetch_add(is_right.into(), SeqCst);
    HANDLED.fetch_add(1, SeqCst);
}

fn pass(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn pass_return(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {}

/// Runs the program by which the probes of a case are hit, to its good end.
#[track_caller]
fn case(name: &str, args: &[&str]) {
    assert_eq!(outcome(name, args), WaitStatus::exited(0), "{name}");
}

/// The same with another task at the first place where that is asked for.
#[track_caller]
fn case_with_another_task(name: &str, args: &[&str]) {
    RESCHEDULES.store(true, SeqCst);
    case(name, args);
    assert!(!RESCHEDULES.load(SeqCst), "{name}: nobody asked");
}

#[track_caller]
fn outcome(name: &str, args: &[&str]) -> WaitStatus {
    for counter in [&HANDLED, &RIGHT, &STEPS, &LOST, &WILD] {
        counter.store(0, SeqCst);
    }
    forget_visits();
    let stub = symbols::lookup_name(STUB).expect("it is there");
    assert!((stub.size as usize) < SEEN.len());
    START.store(stub.start, SeqCst);
    SIZE.store(stub.size, SeqCst);
    let hit = Kprobe::new().symbol("in_nmi_of_a_program").pre(pass);
    let hit = register(Box::new(hit)).expect("it can be probed");
    let call = Kretprobe::new().symbol("in_nmi_of_a_program").maxactive(16);
    let call = register(Box::new(call.handler(pass_return))).expect("it can be probed");
    traps::set_nmi_handler(Some(in_nmi));
    let mut ended = None;
    step_breakpoints(at_each, || ended = run_program(EXERCISE, args).ok());
    traps::set_nmi_handler(None);
    let (nmis, steps) = (HANDLED.load(SeqCst), STEPS.load(SeqCst));
    pr_info!("{name}: {nmis} NMIs at {steps} instructions");
    assert!(nmis > 50, "{name}: {nmis} NMIs");
    assert_eq!(RIGHT.load(SeqCst), nmis, "{name}: calls in NMIs");
    assert_eq!((hit.hits(), hit.nmissed()), (nmis, 0), "{name}");
    assert_eq!((call.hits(), call.nmissed()), (nmis, 0), "{name}");
    assert_eq!(WILD.load(SeqCst), 0, "{name}: addresses in ring 3");
    let (lost, at) = (LOST.load(SeqCst), LOST_AT.load(SeqCst));
    assert_eq!(
        lost,
        0,
        "{name}: walks lost their way, the last one at {}",
        symbols::Address::of_instruction(at)
    );
    ended.expect("the program can be run")
}

fn at(symbol: &'static str) -> Uprobe {
    Uprobe::new().program(EXERCISE).symbol(symbol)
}

fn probe(probe: Uprobe) -> RegisteredUserProbe<Uprobe> {
    RegisteredUserProbe::new(probe).expect("the function is there")
}

fn return_probe(probe: Uretprobe) -> RegisteredUserProbe<Uretprobe> {
    RegisteredUserProbe::new(probe).expect("the function is there")
}

fn returns_of(symbol: &'static str) -> Uretprobe {
    let probe = Uretprobe::new().program(EXERCISE).symbol(symbol);
    probe.handler(|_: &mut UserCall, _| {})
}

/// Returns from the function in place of it, with 7.
fn return_7(_: &Uprobe, regs: &mut PtRegs) -> PreVerdict {
    let mut word = [0; 8];
    copy_from_program(&mut word, regs.sp).expect("the stack is there");
    (regs.ip, regs.sp, regs.ax) = (u64::from_le_bytes(word), regs.sp + 8, 7);
    PreVerdict::Resume
}

/// Each way through the stub, and those of Rust that follow it.
#[guest_test(smp = 1, timeout = 120)]
fn an_nmi_may_come_anywhere_in_a_breakpoint_of_a_program() {
    SEEN.iter().for_each(|seen| seen.store(false, SeqCst));
    let counts = |probe: &Uprobe| (probe.hits(), probe.nmissed());
    let call_counts = |probe: &Uretprobe| (probe.hits(), probe.nmissed(), probe.active());

    let action = Action::counting_hits("probed_add");
    case("an action", &["probed", "2"]);
    assert_eq!(action.end(), (10, 0));

    let handler = probe(at("probed_add").handler(|_, _| PreVerdict::Execute));
    case("a handler", &["probed", "2"]);
    case_with_another_task("a handler, and another task", &["probed", "2"]);
    assert_eq!(counts(&handler), (20, 0));
    let second = probe(at("probed_add").handler(|_, _| PreVerdict::Execute));
    case("two handlers", &["probed", "2"]);
    case_with_another_task("two handlers, and another task", &["probed", "2"]);
    assert_eq!((counts(&handler), counts(&second)), ((40, 0), (20, 0)));
    drop((handler, second));

    let instead = probe(at("probed_jump").handler(return_7));
    case("a handler that says where to go on", &["probed", "2"]);
    assert_eq!(counts(&instead), (2, 0));
    drop(instead);

    let post = probe(at("probed_add").post_handler(|_, _| {}));
    case("a post handler", &["probed", "1"]);
    assert_eq!(counts(&post), (5, 0));
    drop(post);

    let action = Action::counting("probed_factorial");
    case("calls and returns by an action", &["probed", "1"]);
    case_with_another_task("the same, and another task", &["probed", "1"]);
    assert_eq!(action.end(), (20, 0));
    let action = Action::looking_at_the_function("probed_factorial");
    case("by an action that looks at the function", &["probed", "1"]);
    assert_eq!(action.end(), (10, 0));

    let returns = return_probe(returns_of("probed_factorial"));
    case("calls and returns by a handler", &["probed", "1"]);
    assert_eq!(call_counts(&returns), (10, 0, 0));
    case("more calls than a task may have", &["probed_deep", "66"]);
    assert_eq!(call_counts(&returns), (74, 2, 0));
    drop(returns);
    let few = return_probe(returns_of("probed_factorial").maxactive(3));
    case("more calls than the probe may have", &["probed", "1"]);
    case_with_another_task("the same, and another task", &["probed", "1"]);
    assert_eq!(call_counts(&few), (6, 14, 0));
    drop(few);

    let (add, tail) = (
        return_probe(returns_of("probed_add")),
        return_probe(returns_of("probed_tail")),
    );
    case("calls with one slot", &["probed", "1"]);
    assert_eq!(
        (call_counts(&add), call_counts(&tail)),
        ((5, 0, 0), (1, 0, 0))
    );
    drop((add, tail));
    let pops = return_probe(returns_of("probed_pops"));
    case("a return that takes arguments off", &["probed", "1"]);
    case_with_another_task("the same, and another task", &["probed", "1"]);
    assert_eq!(call_counts(&pops), (2, 0, 0));
    drop(pops);
    let (inner, outer) = (
        return_probe(returns_of("probed_inner")),
        return_probe(returns_of("probed_outer")),
    );
    case("calls that are left", &["probed", "70"]);
    assert_eq!(
        (call_counts(&inner), call_counts(&outer)),
        ((0, 0, 0), (70, 0, 0))
    );
    drop((inner, outer));
    let stacks = return_probe(returns_of("probed_anywhere"));
    case("stacks that cannot be written", &["probed_stacks"]);
    assert_eq!(call_counts(&stacks), (4, 7, 0));
    drop(stacks);

    let wild = return_probe(returns_of("probed_anywhere"));
    let ended = outcome("a return to nowhere", &["probed_wild_return", "none"]);
    assert_eq!(ended, WaitStatus::killed(signal::SEGV));
    assert_eq!(call_counts(&wild), (1, 0, 0));
    drop(wild);
    let elsewhere = probe(at("probed_add"));
    let own = outcome("the program's own", &["raise", "breakpoint"]);
    assert_eq!(own, WaitStatus::killed(signal::TRAP));
    drop(elsewhere);

    let missing = unseen();
    assert!(missing.is_empty(), "no NMI at {missing:#?}");
}

/// The instructions of the stub at which no NMI came, but for those that serve breakpoints of ring
/// 0, to which the first branch leads, and that where a fault goes on, whose handler is not
/// stepped.
fn unseen() -> Vec<String> {
    let (start, size) = (START.load(SeqCst), SIZE.load(SeqCst));
    // SAFETY: text of the kernel.
    let text = unsafe { core::slice::from_raw_parts(start as *const u8, size as usize) };
    let all = || Decoder::with_ip(64, text, start, DecoderOptions::NONE).into_iter();
    let first_branch = all().find(|insn| insn.is_jcc_short_or_near());
    let of_kernel = first_branch.expect("it has some").near_branch_target();
    all()
        .take_while(|insn| insn.ip() < of_kernel)
        .filter(|insn| !SEEN[(insn.ip() - start) as usize].load(SeqCst))
        .filter(|insn| !uaccess::may_fault_in(insn.ip()..insn.next_ip()))
        .map(|insn| {
            let mut text = format!("+{:#x} ", insn.ip() - start);
            FastFormatter::new().format(&insn, &mut text);
            text
        })
        .collect()
}
