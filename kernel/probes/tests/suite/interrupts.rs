//! Interrupts, NMIs and debug traps at the worst of places.
//!
//! An NMI that itself hits probes is sent between any two instructions of a hit: in a stub, a slot,
//! a trampoline. An interrupt waits for the hit that is under way. A debugger that steps sees the
//! probed code alone. Afterwards results are right, and the counts exact.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use probes::{Jprobe, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs};

use super::flags::TF;
use super::{
    code::{Bench, Code, Registers},
    targets::*,
    *,
};
use crate::platform::traps::DEBUG;

/// How often something else than the right result came out of a call.
static WRONG: AtomicU64 = AtomicU64::new(0);

fn check(result: u64, expected: u64) {
    if result != expected {
        WRONG.fetch_add(1, Relaxed);
    }
}

// Hits nest anywhere, NMIs nest strictly, and the count law holds. Nothing steps the kernel unseen,
// so there NMIs come at random (`trouble`).
#[cfg(target_os = "linux")]
#[test]
fn an_nmi_that_hits_probes_may_come_between_any_two_instructions() {
    let _machine = boot();
    static NMIS: AtomicU64 = AtomicU64::new(0);
    static IN_SLOTS: AtomicU64 = AtomicU64::new(0);
    static IN_STUBS: AtomicU64 = AtomicU64::new(0);
    fn calls() {
        check(add(1, 2), 3);
        check(tail_f(4), 10);
        check(chain_a(1), 13);
        check(recurse(2), 3);
    }
    fn nmi(regs: &mut PtRegs, _: u8) -> bool {
        NMIS.fetch_add(1, Relaxed);
        let at = PROBES.original_ip(regs.ip);
        IN_SLOTS.fetch_add((at != regs.ip).into(), Relaxed);
        let stubs = [
            trampoline(),
            address("kprobe_post_stub"),
            address("jprobe_return"),
        ];
        let in_stub =
            symbols::covering(regs.ip).is_some_and(|symbol| stubs.contains(&symbol.start));
        IN_STUBS.fetch_add(in_stub.into(), Relaxed);
        calls();
        true
    }
    probes::jprobe! {
        fn arguments(a: u64) {
            check(a, 1);
        }
    }
    let stale = PROBES.stale_instances();
    let kprobes = [
        leak(Kprobe::new().symbol("add").pre(pre::<1>)),
        leak(Kprobe::new().symbol("chain_b").post(post::<1>)),
        // A call, a return, a jump, each with a post handler.
        leak(Kprobe::new().symbol("chain_b").offset(4).post(post::<1>)),
        leak(Kprobe::new().symbol("add").offset(4).post(post::<1>)),
        leak(Kprobe::new().symbol("tail_f").offset(3).post(post::<1>)),
    ];
    let calls_of = |name| {
        leak(
            Kretprobe::new()
                .symbol(name)
                .handler(returned::<1, ()>)
                .maxactive(20),
        )
    };
    let kretprobes = ["tail_f", "tail_g", "chain_a", "recurse"].map(calls_of);
    let jprobe = leak(Jprobe::new().symbol("chain_c").entry(arguments));
    PROBES.register_batch(&kprobes).unwrap();
    PROBES.register_batch(&kretprobes).unwrap();
    PROBES.register(jprobe).unwrap();
    traps::nmi_storm(nmi, || {
        calls();
        calls();
    });
    let nmis = NMIS.load(Relaxed);
    assert_eq!(WRONG.load(Relaxed), 0);
    let (in_slots, in_stubs) = (IN_SLOTS.load(Relaxed), IN_STUBS.load(Relaxed));
    println!("{nmis} NMIs, {in_slots} in slots, {in_stubs} in stubs");
    // A signal handler is not stepped, so fewer instructions are where calls come back through one.
    let (least, least_in_stubs) = if returning_by_trap() {
        (150, 12)
    } else {
        (600, 300)
    };
    assert!(nmis > least);
    assert!(
        in_slots > 15 && in_stubs > least_in_stubs,
        "in the interesting places, too"
    );
    let executions = nmis + 2;
    for probe in kprobes.iter().copied().chain([jprobe.kprobe()]) {
        assert_eq!(
            probe.hits() + probe.nmissed(),
            executions,
            "{}",
            symbols::describe(probe.addr())
        );
        assert!(probe.hits() > 0 && probe.nmissed() > 0);
    }
    for (call, each) in kretprobes.iter().zip([1, 2, 1, 3]) {
        let seen = call.hits() + call.nmissed() + call.kprobe().nmissed();
        // `tail_g` is called by `tail_f` alone.
        let each = if call.addr() == address("tail_g") {
            1
        } else {
            each
        };
        assert_eq!(
            seen,
            executions * each,
            "{}",
            symbols::describe(call.addr())
        );
        assert_eq!(call.nmissed(), 0);
    }
    assert_eq!(PROBES.stale_instances(), stale, "NMIs nest strictly");
    journal_may_overflow();
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister_batch(&kretprobes).unwrap();
    PROBES.unregister_batch(&kprobes).unwrap();
}

/// The handlers above note more than the journal holds.
#[cfg(target_os = "linux")]
fn journal_may_overflow() {
    journal::clear();
}

// An interrupt between trap and resumption waits; what it hits is a hit of its own.
#[test]
fn interrupts_wait_until_a_handler_is_done() {
    let _machine = boot();
    fn interrupt(_: &mut PtRegs, _: u8) -> bool {
        journal::note(100 + step_by_step(1));
        true
    }
    fn send(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        cpu::interrupt();
        journal::note(1);
        PreVerdict::Execute
    }
    probes::jprobe! {
        fn sends(_a: u64, _b: u64) {
            cpu::interrupt();
            journal::note(2);
        }
    }
    traps::on_interrupt(interrupt);
    let inner = leak(Kprobe::new().symbol("step_by_step").pre(pre::<9>));
    PROBES.register(inner).unwrap();
    let probe = leak(Kprobe::new().symbol("add").pre(send));
    PROBES.register(probe).unwrap();
    assert_eq!(add(1, 2), 3);
    if platform::jumps() {
        // The handler runs with the interrupts of the code, and what hits meanwhile is missed.
        assert_eq!(journal::take(), [104, 1]);
        assert_eq!((inner.hits(), inner.nmissed()), (0, 1));
    } else {
        assert_eq!(journal::take(), [1, 9, 104]);
        assert_eq!((inner.hits(), inner.nmissed()), (1, 0));
    }
    PROBES.unregister(probe).unwrap();

    let jprobe = leak(Jprobe::new().symbol("add").entry(sends));
    PROBES.register(jprobe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [2, 9, 104]);
    PROBES.unregister(jprobe).unwrap();
    let missed = u64::from(platform::jumps());
    assert_eq!((inner.hits(), inner.nmissed()), (2 - missed, missed));
    PROBES.unregister(inner).unwrap();
}

#[test]
fn calls_from_an_interrupt_inside_a_probed_call_return_first() {
    let _machine = boot();
    extern "C" fn interrupted(depth: u64) {
        journal::note(depth);
        if depth > 0 {
            cpu::interrupt();
        }
    }
    fn interrupt(_: &mut PtRegs, _: u8) -> bool {
        check(calls_back(interrupted, 0), 1);
        true
    }
    traps::on_interrupt(interrupt);
    let call = leak(
        Kretprobe::new()
            .symbol("calls_back")
            .handler(returned::<7, ()>),
    );
    PROBES.register(call).unwrap();
    for _ in 0..10 {
        assert_eq!(calls_back(interrupted, 5), 6);
        assert_eq!(journal::take(), [5, 0, 7, 7]);
    }
    assert_eq!(
        (call.hits(), call.nmissed(), WRONG.load(Relaxed)),
        (20, 0, 0)
    );
    PROBES.unregister(call).unwrap();
}

// Return handlers run with the interrupts of the function, unless a breakpoint has turned them off;
// what hits meanwhile is missed.
#[test]
fn an_interrupt_during_a_return_handler_misses_its_probes() {
    let _machine = boot();
    fn interrupt(_: &mut PtRegs, _: u8) -> bool {
        journal::note(100 + step_by_step(1));
        true
    }
    fn sends(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
        cpu::interrupt();
        journal::note(1);
    }
    traps::on_interrupt(interrupt);
    let inner = leak(Kprobe::new().symbol("step_by_step").pre(pre::<9>));
    let call = leak(Kretprobe::new().symbol("add").handler(sends));
    PROBES.register(inner).unwrap();
    PROBES.register(call).unwrap();
    assert_eq!(add(1, 2), 3);
    if returning_by_trap() {
        // The interrupt waits until the handler, and with it the hit, is over.
        assert_eq!(journal::take(), [1, 9, 104]);
        assert_eq!((inner.hits(), inner.nmissed()), (1, 0));
    } else {
        assert_eq!(journal::take(), [104, 1]);
        assert_eq!((inner.hits(), inner.nmissed()), (0, 1));
    }
    PROBES.unregister(call).unwrap();
    PROBES.unregister(inner).unwrap();
}

/// The stops of a debugger that steps through code: the address after each instruction.
static STEPS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

fn debugger(regs: &mut PtRegs, vector: u8) -> bool {
    if vector == DEBUG {
        STEPS.lock().push(regs.ip);
    }
    vector == DEBUG
}

#[test]
fn a_debugger_that_steps_through_probed_code_sees_the_code_alone() {
    let _machine = boot();
    // Sets TF, runs some instructions, clears TF.
    let body: &[u8] = &[
        0x9c, // +0 pushf
        0x81, 0x0c, 0x24, 0x00, 0x01, 0x00, 0x00, // +1 or dword [rsp], TF
        0x9d, // +8 popf
        0x90, // +9 nop: the first one that is followed by a trap
        0x48, 0x01, 0xd8, // +10 add rax, rbx
        0x51, // +13 push rcx
        0x59, // +14 pop rcx
        0xeb, 0x00, // +15 jmp +17
        0xe8, 0x00, 0x00, 0x00, 0x00, // +17 call +22
        0x5a, // +22 pop rdx
        0xe8, 0x02, 0x00, 0x00, 0x00, // +23 call +30
        0xeb, 0x01, // +28 jmp +31
        0xc3, // +30 ret
        0x9c, // +31 pushf
        0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff, // +32 and dword [rsp], ~TF
        0x9d, // +39 popf, which is followed by a last trap
        0x90, // +40 nop
    ];
    let code = Code::with_exit(body);
    let offsets = [8, 9, 10, 13, 14, 15, 17, 22, 23, 28, 30, 31, 32, 39];
    let mut bench = Bench::new();
    traps::on_exception(debugger);
    let run = |bench: &mut Bench| {
        STEPS.lock().clear();
        let outcome = bench.run(code.start, Registers::default());
        let steps = STEPS.lock();
        (
            outcome,
            steps.iter().map(|ip| ip - code.start).collect::<Vec<_>>(),
        )
    };
    let bare = run(&mut bench);
    assert_eq!(bare.1, [10, 13, 14, 15, 17, 22, 23, 30, 28, 31, 32, 39, 40]);
    for handlers in [&[1u64][..], &[1, 2]] {
        let shape = || {
            let shape = Kprobe::new().pre(pre::<1>);
            if handlers.contains(&2) {
                shape.post(post::<2>)
            } else {
                shape
            }
        };
        for offset in offsets {
            let probe = leak(shape().at(code.start + offset));
            PROBES.register(probe).unwrap();
            assert_eq!(run(&mut bench), bare, "probe at +{offset}");
            assert_eq!(journal::take(), handlers);
            PROBES.unregister(probe).unwrap();
        }
        let all: Vec<_> = offsets
            .iter()
            .map(|offset| leak(shape().at(code.start + offset)))
            .collect();
        PROBES.register_batch(&all).unwrap();
        assert_eq!(run(&mut bench), bare);
        assert_eq!(journal::take(), handlers.repeat(offsets.len()));
        PROBES.unregister_batch(&all).unwrap();
    }
    assert_eq!(
        bench.run(code.start, Registers::default()).registers.flags & TF,
        0
    );
}

#[test]
fn a_debugger_that_steps_through_a_function_does_not_step_through_its_mirror() {
    probes::jprobe! {
        fn arguments(a: u64) {
            journal::note(a);
        }
    }
    let _machine = boot();
    let mut body = Vec::from([
        0x9c, // pushf
        0x81, 0x0c, 0x24, 0x00, 0x01, 0x00, 0x00, // or dword [rsp], TF
        0x9d, // popf
        0x48, 0xb8, // mov rax, add
    ]);
    body.extend(address("add").to_le_bytes());
    body.extend([
        0xff, 0xd0, // call rax
        0x9c, // pushf
        0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff, // and dword [rsp], ~TF
        0x9d, // popf
    ]);
    let code = Code::with_exit(&body);
    let mut bench = Bench::new();
    traps::on_exception(debugger);
    let mut run = || {
        STEPS.lock().clear();
        let outcome = bench.run(code.start, Registers::default());
        (outcome, STEPS.lock().clone())
    };
    let bare = run();
    assert!(bare.1.contains(&address("add")));
    let probe = leak(Jprobe::new().symbol("add").entry(arguments));
    PROBES.register(probe).unwrap();
    assert_eq!(run(), bare);
    assert_eq!(journal::take(), [Registers::default().di]);
    PROBES.unregister(probe).unwrap();
}

#[test]
fn a_debug_trap_that_is_not_a_step_of_the_probes_is_handed_on() {
    let _machine = boot();
    // A match of the debug registers at a trampoline is no return to it.
    for (ip, causes) in [
        (address("add"), &[0, 1, 1 << 13, 1 << 14][..]),
        (trampoline(), &[0, 1, 1 << 13]),
    ] {
        let mut regs = PtRegs {
            ip,
            ..PtRegs::default()
        };
        let before = regs;
        for dr6 in causes {
            assert!(!PROBES.on_debug(&mut regs, *dr6));
            assert_eq!(regs, before);
        }
    }
}

// A CPU may have fetched a breakpoint and tell of it when it is out of the text and the table
// again.
#[test]
fn a_breakpoint_that_is_gone_again_leads_to_the_instruction_that_is_there() {
    let _machine = boot();
    let after = |ip| PtRegs {
        ip: ip + 1,
        ..PtRegs::default()
    };
    let stale = &cpu::counts().stale_breakpoints;
    let before = stale.load(Relaxed);
    let add = address("add");
    let mut regs = after(add);
    assert!(PROBES.on_breakpoint(&mut regs));
    assert_eq!(regs.ip, add);
    assert_eq!(stale.load(Relaxed), before + 1);

    let code = Code::with_exit(&[0xcc]);
    let mut regs = after(code.start);
    assert!(!PROBES.on_breakpoint(&mut regs), "it is the code's own");
    assert_eq!(regs, after(code.start));
    assert_eq!(stale.load(Relaxed), before + 1);
}

// Debug registers match because the process says so; the kernel's own are tried in `debugger`.
#[cfg(target_os = "linux")]
#[test]
fn a_watchpoint_that_matches_during_a_step_is_handed_on_when_the_step_is_done() {
    use code::{End, data};

    let _machine = boot();
    let code = Code::with_exit(&[0x48, 0x89, 0x37]); // mov [rdi], rsi
    let probe = Kprobe::new().at(code.start).pre(pre::<1>).post(post::<2>);
    let probe = leak(probe.step_method(StepMethod::TrapFlag));
    PROBES.register(probe).unwrap();
    let mut bench = Bench::new();
    traps::on_exception(debugger);
    traps::match_debug_registers(1);
    STEPS.lock().clear();
    let registers = Registers {
        di: data(),
        si: 0x1234,
        ..Registers::default()
    };
    let outcome = bench.run(code.start, registers);
    assert_eq!(outcome.end, End::Exit(1));
    assert_eq!(outcome.data[..8], 0x1234u64.to_le_bytes());
    assert_eq!(
        *STEPS.lock(),
        [code.start + 3],
        "behind the instruction, not in its copy"
    );
    assert_eq!(journal::take(), [1, 2]);
    PROBES.unregister(probe).unwrap();
}
