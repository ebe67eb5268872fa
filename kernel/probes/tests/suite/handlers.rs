//! When handlers run, in which order, what they see and what they may change.
//!
//! Pre handlers see the registers before the instruction, post handlers those after it, both newest
//! first. Changes of registers are taken, the ip only where the verdict says so. A hit inside a
//! handler is a miss of every enabled probe there, and executes.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use probes::{Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs};

use super::{
    code::{Bench, Code, End, Registers},
    flags::{AC, CF, DF, IF, PLAIN, STATUS},
    targets::*,
    *,
};

#[test]
fn handlers_see_the_registers_before_and_after_the_instruction() {
    let _machine = boot();
    static BEFORE: Mutex<PtRegs> = Mutex::new(PtRegs::new());
    static AFTER: Mutex<PtRegs> = Mutex::new(PtRegs::new());
    fn before(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        *BEFORE.lock() = *regs;
        PreVerdict::Execute
    }
    fn after(_: &Kprobe, regs: &mut PtRegs, _: u64) {
        *AFTER.lock() = *regs;
    }
    let code = Code::with_exit(&[0x48, 0x01, 0xd8]); // add rax, rbx
    let probe = leak(Kprobe::new().at(code.start).pre(before).post(after));
    PROBES.register(probe).unwrap();
    let mut bench = Bench::new();
    let mut registers = Registers::default();
    for n in 0..16 {
        registers.set(n, 0x1111_0000_0000_0000 + n as u64);
    }
    registers.sp = bench.sp();
    for flags in [PLAIN, PLAIN | STATUS | DF] {
        registers.flags = flags;
        let outcome = bench.run(code.start, registers);
        assert_eq!(outcome.end, End::Exit(1));
        let (before, after) = (*BEFORE.lock(), *AFTER.lock());
        assert_eq!(Registers::of(&before), registers);
        assert_eq!(before.ip, code.start + 1);
        assert_eq!(
            (before.cs, before.ss, before.orig_ax),
            (platform::CS, platform::SS, !0)
        );
        assert_eq!(Registers::of(&after), outcome.registers);
        assert_eq!(after.ip, code.start + 3);
        assert_eq!(
            (after.cs, after.ss, after.orig_ax),
            (platform::CS, platform::SS, !0)
        );
        let sum = registers.ax.wrapping_add(registers.bx);
        assert_eq!(outcome.registers.ax, sum);
    }
    PROBES.unregister(probe).unwrap();
}

#[test]
fn flags_survive_a_hit() {
    let _machine = boot();
    let nop = Code::with_exit(&[0x90]);
    let mut bench = Bench::new();
    let probes = [
        leak(Kprobe::new().at(nop.start).pre(pre::<1>)),
        leak(Kprobe::new().at(nop.start).post(post::<2>)),
    ];
    for probe in probes {
        PROBES.register(probe).unwrap();
        // CF, PF, AF, ZF, SF, OF, DF: each alone, and all.
        for bit in [0, 2, 4, 6, 7, 11, 10] {
            for flags in [PLAIN, PLAIN | 1 << bit, PLAIN | STATUS | DF] {
                let registers = Registers {
                    flags,
                    ..Registers::default()
                };
                let outcome = bench.run(nop.start, registers);
                assert_eq!(outcome.registers.flags, flags);
            }
        }
        PROBES.unregister(probe).unwrap();
    }
    journal::take();
}

#[test]
fn handlers_find_an_aligned_stack_and_clean_flags() {
    let _machine = boot();
    fn check_pre(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(in_good_order().into());
        PreVerdict::Execute
    }
    fn check_post(_: &Kprobe, _: &mut PtRegs, _: u64) {
        journal::note(in_good_order().into());
    }
    fn check_return(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
        journal::note(in_good_order().into());
    }
    let code = Code::new(|_| vec![0x90, 0xc3]); // nop; ret
    let probe = leak(Kprobe::new().at(code.start).pre(check_pre).post(check_post));
    let call = leak(Kretprobe::new().at(code.start).handler(check_return));
    PROBES.register(probe).unwrap();
    PROBES.register(call).unwrap();
    let mut bench = Bench::new();
    // At every alignment of the stack: call code; exit.
    let caller = Code::calling(code.start, 1);
    for misaligned in 0..16 {
        let registers = Registers {
            flags: PLAIN | DF,
            sp: bench.sp() - 64 + misaligned,
            ..Registers::default()
        };
        let outcome = bench.run(caller.start, registers);
        assert_eq!((outcome.end, outcome.registers), (End::Exit(1), registers));
        assert_eq!(journal::take(), [1, 1, 1], "rsp off by {misaligned}");
    }
    // With AC only where no literal of a slot is read: ring 3 checks their alignment.
    PROBES.unregister(probe).unwrap();
    let probe = leak(Kprobe::new().at(code.start).pre(check_pre));
    PROBES.register(probe).unwrap();
    let registers = Registers {
        flags: PLAIN | AC,
        sp: bench.sp() - 64,
        ..Registers::default()
    };
    let outcome = bench.run(caller.start, registers);
    assert_eq!((outcome.end, outcome.registers), (End::Exit(1), registers));
    // A jump on a function's entry relies on what every caller promises: AC is as it was. So it is
    // where ring 0 does not use it.
    let clean = u64::from(platform::CLEARS_AC && !platform::jumps());
    assert_eq!(journal::take(), [clean, 1]);
    PROBES.unregister(call).unwrap();
    PROBES.unregister(probe).unwrap();
}

#[test]
fn a_pre_handlers_changes_are_taken_but_for_the_ip() {
    let _machine = boot();
    fn change(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        regs.di = 100;
        regs.ip = 0xdead;
        PreVerdict::Execute
    }
    let probe = leak(Kprobe::new().symbol("add").pre(change));
    PROBES.register(probe).unwrap();
    assert_eq!(add(1, 5), 105);
    PROBES.unregister(probe).unwrap();
}

// A replaced branch that reads the ip from the saved registers would go on at the handler's
// address.
#[test]
fn an_ip_that_a_pre_handler_changes_does_not_leak_into_a_branch() {
    let _machine = boot();
    fn change(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        journal::note(1);
        regs.ip = 0xdead;
        PreVerdict::Execute
    }
    let mut bench = Bench::new();
    // The code before the branch, the branch, the flags before it. It leads to +32 or after
    // itself.
    let table: [(&[u8], &[u8], u64); 12] = [
        (&[], &[0xeb, 0x1e], PLAIN),                     // jmp +32
        (&[], &[0xe9, 0x1b, 0, 0, 0], PLAIN),            // jmp +32
        (&[], &[0x72, 0x1e], PLAIN | CF),                // jc +32, taken
        (&[], &[0x72, 0x1e], PLAIN),                     // jc +32, not taken
        (&[], &[0x0f, 0x82, 0x1a, 0, 0, 0], PLAIN | CF), // jc +32, taken
        (&[], &[0xe2, 0x1e], PLAIN),                     // loop +32, with rcx = 2
        (&[], &[0xe3, 0x1e], PLAIN),                     // jrcxz +32, not taken
        (&[], &[0xe8, 0x1b, 0, 0, 0], PLAIN),            // call +32
        (&[], &[0xff, 0xd7], PLAIN),                     // call rdi
        (&[], &[0xff, 0xe7], PLAIN),                     // jmp rdi
        (&[0x57], &[0xc3], PLAIN),                       // push rdi; ret
        (&[0x57], &[0xff, 0x24, 0x24], PLAIN),           // push rdi; jmp [rsp]
    ];
    for (setup, branch, flags) in table {
        let code = Code::with_exits(&[setup, branch].concat(), true);
        let registers = Registers {
            cx: 2,
            di: code.start + 32,
            flags,
            ..Registers::default()
        };
        let bare = bench.run(code.start, registers);
        let at = code.start + setup.len() as u64;
        let with_post = Kprobe::new().pre(change).post(post::<2>);
        for (shape, noted) in [(Kprobe::new().pre(change), &[1][..]), (with_post, &[1, 2])] {
            let probe = leak(shape.at(at));
            PROBES.register(probe).unwrap();
            assert_eq!(bench.run(code.start, registers), bare, "{branch:x?}");
            assert_eq!(journal::take(), noted, "{branch:x?}");
            PROBES.unregister(probe).unwrap();
        }
    }
}

#[test]
fn a_pre_handler_may_say_where_to_go_on() {
    let _machine = boot();
    fn skip(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        journal::note(2);
        // Straight to the return: `lea` is four bytes long.
        regs.ip = regs.ip - 1 + 4;
        regs.ax = 77;
        PreVerdict::Resume
    }
    let oldest = leak(Kprobe::new().symbol("add").pre(pre::<1>).post(post::<11>));
    let middle = leak(Kprobe::new().symbol("add").pre(skip).post(post::<12>));
    let newest = leak(Kprobe::new().symbol("add").pre(pre::<3>).post(post::<13>));
    let call = leak(Kretprobe::new().symbol("add").handler(returned::<4, ()>));
    for probe in [oldest, middle, newest] {
        PROBES.register(probe).unwrap();
    }
    assert_eq!(add(1, 1), 77);
    assert_eq!(
        journal::take(),
        [3, 2],
        "older ones and all post handlers are passed over"
    );
    PROBES.unregister(oldest).unwrap();
    PROBES.unregister(newest).unwrap();
    PROBES.unregister(middle).unwrap();

    // An older kretprobe does not see the call.
    PROBES.register(call).unwrap();
    PROBES.register(middle).unwrap();
    assert_eq!(add(1, 1), 77);
    assert_eq!(journal::take(), [2]);
    assert_eq!((call.hits(), call.nmissed()), (0, 0));
    PROBES.unregister(middle).unwrap();
    assert_eq!(add(1, 1), 2);
    assert_eq!(journal::take(), [4]);
    PROBES.unregister(call).unwrap();
}

// The caller's mistake is its own, and does no harm to the probes.
#[test]
fn resuming_without_setting_the_ip_goes_on_behind_the_breakpoint() {
    let _machine = boot();
    fn resume(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        PreVerdict::Resume
    }
    let code = Code::with_exit(&[0x90, 0xb8, 5, 0, 0, 0]); // nop; mov eax, 5
    let probe = leak(Kprobe::new().at(code.start).pre(resume));
    PROBES.register(probe).unwrap();
    let mut bench = Bench::new();
    assert_eq!(bench.run(code.start, Registers::default()).registers.ax, 5);
    PROBES.unregister(probe).unwrap();
}

#[test]
fn both_chains_run_newest_first_and_skip_disabled_probes() {
    let _machine = boot();
    // At its first instruction, and at its return, which with a post handler is carried out on the
    // saved registers.
    for offset in [0, 4] {
        let at = || Kprobe::new().symbol("add").offset(offset);
        let a = leak(at().pre(pre::<1>).post(post::<11>));
        let b = leak(at().pre(pre::<2>).post(post::<12>));
        let c = leak(at().pre(pre::<3>).post(post::<13>));
        let without_post = leak(at().pre(pre::<4>));
        PROBES.register_batch(&[a, b, c]).unwrap();
        assert_eq!(add(1, 1), 2);
        assert_eq!(journal::take(), [3, 2, 1, 13, 12, 11]);
        PROBES.register(without_post).unwrap();
        assert_eq!(add(1, 1), 2);
        assert_eq!(journal::take(), [4, 3, 2, 1, 13, 12, 11]);
        PROBES.unregister(without_post).unwrap();
        PROBES.disable(b).unwrap();
        assert_eq!(add(1, 1), 2);
        assert_eq!(journal::take(), [3, 1, 13, 11]);
        PROBES.unregister(c).unwrap();
        PROBES.register(c).unwrap();
        PROBES.enable(b).unwrap();
        PROBES.unregister(a).unwrap();
        assert_eq!(add(1, 1), 2);
        assert_eq!(journal::take(), [3, 2, 13, 12]);
        PROBES.unregister_batch(&[b, c]).unwrap();
    }
}

#[test]
fn a_handler_gets_its_own_probe() {
    let _machine = boot();
    fn own(probe: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(core::ptr::from_ref(probe).addr() as u64);
        PreVerdict::Execute
    }
    fn own_post(probe: &Kprobe, _: &mut PtRegs, _: u64) {
        journal::note(core::ptr::from_ref(probe).addr() as u64);
    }
    let make = || leak(Kprobe::new().symbol("add").pre(own).post(own_post));
    let (a, b) = (make(), make());
    let (at_a, at_b) = (
        core::ptr::from_ref(a).addr() as u64,
        core::ptr::from_ref(b).addr() as u64,
    );
    PROBES.register(a).unwrap();
    add(1, 1);
    PROBES.register(b).unwrap();
    add(1, 1);
    assert_eq!(journal::take(), [at_a, at_a, at_b, at_a, at_b, at_a]);
    PROBES.unregister_batch(&[a, b]).unwrap();
}

#[test]
fn a_post_handlers_changes_are_taken_and_the_ip_too() {
    let _machine = boot();
    fn change(_: &Kprobe, regs: &mut PtRegs, _: u64) {
        journal::note(regs.ip);
        // Over the instruction after: mov eax, 5, to mov ebx, 6.
        regs.ip += 5;
        regs.cx = 33;
        regs.flags |= 1; // CF
    }
    let code = Code::with_exit(&[0x90, 0xb8, 5, 0, 0, 0, 0xbb, 6, 0, 0, 0]);
    let probe = leak(Kprobe::new().at(code.start).post(change));
    PROBES.register(probe).unwrap();
    let mut bench = Bench::new();
    let outcome = bench.run(code.start, Registers::default());
    let now = outcome.registers;
    assert_eq!((now.ax, now.bx, now.cx, now.flags & 1), (0, 6, 33, 1));
    assert_eq!(journal::take(), [code.start + 1]);
    PROBES.unregister(probe).unwrap();
}

/// The same after a push, whose word lies where a kernel's stub has its frame: ip, stack pointer,
/// flags and the pushed register.
#[test]
fn a_post_handlers_changes_are_taken_after_a_push_too() {
    let _machine = boot();
    static MOVE: AtomicU64 = AtomicU64::new(0);
    fn change(_: &Kprobe, regs: &mut PtRegs, _: u64) {
        // SAFETY: the instruction has pushed it.
        journal::note(unsafe { (regs.sp as *const u64).read() });
        // Over the instruction after: mov eax, 5, to mov ebx, 6.
        regs.ip += 5;
        regs.sp = regs.sp.wrapping_add(MOVE.load(Relaxed));
        regs.di = 77;
        regs.flags |= 1; // CF
    }
    let mut bench = Bench::new();
    // push rdi, push rbp, push r12
    for push in [&[0x57][..], &[0x55], &[0x41, 0x54]] {
        let code = Code::with_exit(&[push, &[0xb8, 5, 0, 0, 0, 0xbb, 6, 0, 0, 0]].concat());
        let registers = Registers {
            di: 0x1234,
            bp: 0x1234,
            r12: 0x1234,
            sp: bench.sp(),
            flags: PLAIN,
            ..Registers::default()
        };
        // Where the push has left it, where it was, above and below.
        for by in [0i64, 8, 24, -8, -240] {
            MOVE.store(by as u64, Relaxed);
            let probe = leak(Kprobe::new().at(code.start).post(change));
            PROBES.register(probe).unwrap();
            let outcome = bench.run(code.start, registers);
            PROBES.unregister(probe).unwrap();
            let expected = Registers {
                bx: 6,
                di: 77,
                sp: (registers.sp - 8).wrapping_add_signed(by),
                flags: PLAIN | CF,
                ..registers
            };
            assert_eq!((outcome.end, outcome.registers), (End::Exit(1), expected));
            assert_eq!(journal::take(), [0x1234]);
        }
    }
}

#[test]
fn a_post_handler_may_come_and_go_while_another_probe_stays() {
    let _machine = boot();
    let stays = leak(Kprobe::new().symbol("add").pre(pre::<1>));
    let comes = leak(Kprobe::new().symbol("add").post(post::<2>));
    PROBES.register(stays).unwrap();
    let slots = PROBES.slots_in_use();
    for _ in 0..20 {
        assert_eq!(add(20, 22), 42);
        assert_eq!(journal::take(), [1]);
        PROBES.register(comes).unwrap();
        assert_eq!(add(20, 22), 42);
        assert_eq!(journal::take(), [1, 2]);
        PROBES.unregister(comes).unwrap();
        assert_eq!(PROBES.slots_in_use(), slots);
    }
    PROBES.unregister(stays).unwrap();
}

#[test]
fn a_hit_inside_a_handler_is_missed_and_still_executes() {
    let _machine = boot();
    fn call_again(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(add(3, 4));
        PreVerdict::Execute
    }
    fn call_again_after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        journal::note(add(5, 6));
    }
    let stale = &cpu::counts().stale_breakpoints;
    let stale_before = stale.load(Relaxed);
    // Its first instruction, and its return, which with a post handler is carried out on the saved
    // registers.
    for offset in [0, 4] {
        let probe = leak(
            Kprobe::new()
                .symbol("add")
                .offset(offset)
                .pre(call_again)
                .post(call_again_after),
        );
        PROBES.register(probe).unwrap();
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), [7, 11]);
        assert_eq!((probe.hits(), probe.nmissed()), (1, 2));
        PROBES.unregister(probe).unwrap();
        PROBES.register(probe).unwrap();
        assert_eq!((probe.hits(), probe.nmissed()), (0, 0), "both count anew");
        PROBES.unregister(probe).unwrap();
    }
    assert_eq!(stale.load(Relaxed), stale_before, "a miss is not stale");
}

#[test]
fn every_enabled_probe_at_a_missed_address_counts_it() {
    let _machine = boot();
    fn run_all(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        journal::note(step_by_step(33));
        PreVerdict::Execute
    }
    let outer = leak(Kprobe::new().symbol("add").pre(run_all).post(post::<1>));
    PROBES.register(outer).unwrap();
    let inner: Vec<_> = on_each_step()
        .map(|probe| leak(probe.pre(pre::<9>).post(post::<9>)))
        .collect();
    let disabled: Vec<_> = on_each_step()
        .map(|probe| leak(probe.pre(pre::<9>).disabled()))
        .collect();
    let call = leak(
        Kretprobe::new()
            .symbol("step_by_step")
            .handler(returned::<9, ()>),
    );
    PROBES.register_batch(&inner).unwrap();
    PROBES.register_batch(&disabled).unwrap();
    PROBES.register(call).unwrap();
    for round in 1..=3 {
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), [100, 1]);
        for probe in &inner {
            assert_eq!((probe.hits(), probe.nmissed()), (0, round));
        }
        for probe in &disabled {
            assert_eq!(probe.nmissed(), 0);
        }
        // Missed by the guard, not for want of an instance.
        assert_eq!(
            (call.kprobe().nmissed(), call.nmissed(), call.hits()),
            (round, 0, 0)
        );
    }
    PROBES.disable(inner[0]).unwrap();
    assert_eq!(inner[0].nmissed(), 3);
    PROBES.enable(inner[0]).unwrap();
    assert_eq!(inner[0].nmissed(), 3);
    PROBES.unregister(call).unwrap();
    PROBES.unregister_batch(&inner).unwrap();
    PROBES.unregister_batch(&disabled).unwrap();
    PROBES.unregister(outer).unwrap();
}

// In a pre handler the ip of the registers is after the breakpoint, and nowhere else. The kernel
// asks this when it prints registers.
#[test]
fn pre_and_entry_handlers_are_told_from_all_other_code() {
    let _machine = boot();
    fn told() {
        journal::note(PROBES.in_pre_handler().into());
    }
    fn before(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        told();
        PreVerdict::Execute
    }
    fn after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        told();
    }
    fn entered(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        told();
        EntryVerdict::Track
    }
    fn left(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {
        told();
    }
    // The second is carried out on the saved registers.
    for offset in [0, 4] {
        let probe = Kprobe::new().symbol("add").offset(offset);
        let probe = leak(probe.pre(before).post(after));
        PROBES.register(probe).unwrap();
        assert!(!PROBES.in_pre_handler());
        assert_eq!(add(1, 2), 3);
        assert!(!PROBES.in_pre_handler());
        assert_eq!(journal::take(), [1, 0]);
        PROBES.unregister(probe).unwrap();
    }
    let call = leak(Kretprobe::new().symbol("add").entry(entered).handler(left));
    PROBES.register(call).unwrap();
    assert_eq!(add(1, 2), 3);
    assert!(!PROBES.in_pre_handler());
    // The assembly does not mark a return handler, because its ip is after a call, not after a
    // breakpoint. By `trap3` and `trap4` it runs inside a pre or post handler of the trampoline.
    assert_eq!(journal::take(), [1, u64::from(!returning_by_trap())]);
    PROBES.unregister(call).unwrap();
}

#[test]
fn handlers_run_with_interrupts_off_and_cannot_sleep() {
    let _machine = boot();
    fn context(bits: u64) {
        journal::note(bits | u64::from(cpu::can_sleep()));
    }
    fn in_pre(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        context(regs.flags & IF);
        PreVerdict::Execute
    }
    fn in_post(_: &Kprobe, regs: &mut PtRegs, _: u64) {
        context(regs.flags & IF);
    }
    fn in_entry(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) -> EntryVerdict {
        context(regs.flags & IF);
        EntryVerdict::Track
    }
    fn in_return(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        context(regs.flags & IF);
    }
    let probe = leak(Kprobe::new().symbol("add").pre(in_pre).post(in_post));
    let call = leak(
        Kretprobe::new()
            .symbol("add")
            .entry(in_entry)
            .handler(in_return),
    );
    PROBES.register(probe).unwrap();
    PROBES.register(call).unwrap();
    assert_eq!(add(1, 2), 3);
    // The flags that they see are the code's own.
    assert_eq!(journal::take(), [IF; 4]);
    PROBES.unregister(call).unwrap();
    PROBES.unregister(probe).unwrap();
}

#[test]
fn a_foreign_breakpoint_is_handed_on_untouched() {
    let _machine = boot();
    static SEEN: AtomicU64 = AtomicU64::new(0);
    fn debugger(regs: &mut PtRegs, vector: u8) -> bool {
        SEEN.store(regs.ip, Relaxed);
        vector == traps::BREAKPOINT && regs.ax == 5
    }
    let code = Code::with_exit(&[0xb8, 5, 0, 0, 0, 0xcc]); // mov eax, 5; int3
    let mut bench = Bench::new();
    traps::on_exception(debugger);
    assert_eq!(bench.run(code.start, Registers::default()).registers.ax, 5);
    assert_eq!(SEEN.load(Relaxed), code.start + 6);
    // With a probe right before it.
    let probe = leak(Kprobe::new().at(code.start).pre(pre::<1>));
    PROBES.register(probe).unwrap();
    assert_eq!(bench.run(code.start, Registers::default()).registers.ax, 5);
    PROBES.unregister(probe).unwrap();
}

// One trap a hit.
#[test]
fn a_hit_costs_one_trap_or_two_when_stepped() {
    let _machine = boot();
    let probe = leak(Kprobe::new().symbol("add").pre(pre::<1>));
    let with_post = leak(Kprobe::new().symbol("step_by_step").post(post::<2>));
    PROBES.register(probe).unwrap();
    PROBES.register(with_post).unwrap();
    let traps = || {
        let cpu = cpu::counts();
        (cpu.breakpoints.load(Relaxed), cpu.debug_traps.load(Relaxed))
    };
    for _ in 0..5 {
        let before = traps();
        add(1, 1);
        step_by_step(1);
        let after = traps();
        let steps = if stepping() { 2 } else { 0 };
        // A jump needs none; a post handler needs a breakpoint.
        let breakpoints = if platform::jumps() { 1 } else { 2 };
        assert_eq!(
            (after.0 - before.0, after.1 - before.1),
            (breakpoints, steps)
        );
    }
    PROBES.unregister(probe).unwrap();
    PROBES.unregister(with_post).unwrap();
}

#[test]
fn post_handlers_see_where_branches_calls_and_returns_have_led() {
    let _machine = boot();
    static SEEN: Mutex<(PtRegs, u64)> = Mutex::new((PtRegs::new(), 0));
    fn see(_: &Kprobe, regs: &mut PtRegs, zero: u64) {
        // SAFETY: the bench's stack has words there.
        let top = unsafe { (regs.sp as *const u64).read() };
        *SEEN.lock() = (*regs, top);
        journal::note(1 + zero);
    }
    let mut bench = Bench::new();
    // Instruction, CF and rcx before it, how far it moves RSP, where it leads. After it and at +32
    // are exits.
    let table: [(&[u8], u64, i64, u64); 9] = [
        (&[0xeb, 0x1e], 0, 0, 32),           // jmp +32
        (&[0xe9, 0x1b, 0, 0, 0], 0, 0, 32),  // jmp +32
        (&[0x72, 0x1e], 1, 0, 32),           // jc +32, taken
        (&[0x72, 0x1e], 0, 0, 2),            // jc +32, not taken
        (&[0xe2, 0x1e], 0, 0, 32),           // loop +32, with rcx = 2
        (&[0xe8, 0x1b, 0, 0, 0], 0, -8, 32), // call +32
        (&[0xff, 0xd7], 0, -8, 32),          // call rdi
        (&[0xff, 0xe7], 0, 0, 32),           // jmp rdi
        (&[0x57], 0, -8, 1),                 // push rdi
    ];
    for (bytes, carry, moved, to) in &table {
        let code = Code::with_exits(bytes, true);
        let registers = Registers {
            cx: 2,
            di: code.start + 32,
            flags: PLAIN | carry,
            ..Registers::default()
        };
        let bare = bench.run(code.start, registers);
        let probe = leak(Kprobe::new().at(code.start).post(see));
        PROBES.register(probe).unwrap();
        assert_eq!(bench.run(code.start, registers), bare, "{bytes:x?}");
        PROBES.unregister(probe).unwrap();
        assert_eq!(journal::take(), [1], "{bytes:x?}");
        let (seen, top) = *SEEN.lock();
        assert_eq!(seen.ip, code.start + to, "{bytes:x?}");
        assert_eq!(
            seen.sp,
            bench.sp().wrapping_add_signed(*moved),
            "{bytes:x?}"
        );
        if *moved == -8 {
            let pushed = if bytes.len() == 1 {
                registers.di
            } else {
                code.start + bytes.len() as u64
            };
            assert_eq!(top, pushed, "{bytes:x?}");
        }
    }
    // push rdi; ret: back to where rdi says.
    for ret in [&[0xc3][..], &[0xc2, 8, 0]] {
        let code = Code::with_exits(&[&[0x57], ret].concat(), false);
        let registers = Registers {
            di: code.start + 32,
            ..Registers::default()
        };
        let probe = leak(Kprobe::new().at(code.start + 1).post(see));
        PROBES.register(probe).unwrap();
        let outcome = bench.run(code.start, registers);
        PROBES.unregister(probe).unwrap();
        assert_eq!((outcome.end, journal::take()), (End::Exit(2), vec![1]));
        let seen = SEEN.lock().0;
        let discarded = if ret.len() == 1 { 0 } else { 8 };
        assert_eq!(
            (seen.ip, seen.sp),
            (code.start + 32, bench.sp() + discarded)
        );
    }
}

#[test]
fn a_nested_hit_leaves_the_registers_of_the_outer_one_alone() {
    let _machine = boot();
    fn nests(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let before = *regs;
        // A push, a call and a return among the instructions that are hit.
        journal::note(step_by_step(1) + chain_a(1));
        journal::note((*regs == before).into());
        PreVerdict::Execute
    }
    fn nests_after(_: &Kprobe, regs: &mut PtRegs, _: u64) {
        let before = *regs;
        journal::note(step_by_step(1) + chain_a(1));
        journal::note((*regs == before).into());
    }
    let code = Code::with_exit(&[0x57, 0x5e]); // push rdi; pop rsi
    let inner: Vec<_> = on_each_step()
        .chain([0, 4, 9].map(|offset| Kprobe::new().symbol("chain_a").offset(offset)))
        .map(|probe| leak(probe.pre(pre::<9>).post(post::<9>)))
        .collect();
    let outer = leak(Kprobe::new().at(code.start).pre(nests).post(nests_after));
    PROBES.register_batch(&inner).unwrap();
    PROBES.register(outer).unwrap();
    let mut bench = Bench::new();
    let mut registers = Registers::default();
    for n in 0..16 {
        registers.set(n, 0x3333_0000_0000_0000 + n as u64);
    }
    (registers.sp, registers.flags) = (bench.sp(), PLAIN);
    let outcome = bench.run(code.start, registers);
    assert_eq!(outcome.end, End::Exit(1));
    assert_eq!(
        outcome.registers,
        Registers {
            si: registers.di,
            ..registers
        }
    );
    assert_eq!(journal::take(), [17, 1, 17, 1]);
    PROBES.unregister(outer).unwrap();
    PROBES.unregister_batch(&inner).unwrap();
}

#[test]
fn a_gone_sibling_is_passed_over() {
    let _machine = boot();
    let code = Code::new(|_| vec![0x90, 0xc3]); // nop; ret
    let probe = leak(Kprobe::new().at(code.start).pre(pre::<1>).post(post::<2>));
    let sibling = leak(Kprobe::new().at(code.start).pre(pre::<3>).post(post::<4>));
    PROBES.register(probe).unwrap();
    PROBES.register(sibling).unwrap();
    code.call(0, 0);
    assert_eq!(journal::take(), [3, 1, 4, 2]);
    PROBES.disable(sibling).unwrap();
    PROBES.text_freed(code.start..code.start + 2);
    // Freed text is not executed any more; here it still can be, with the breakpoint in it.
    code.call(0, 0);
    assert_eq!(journal::take(), []);
    let counts = |probe: &Kprobe| (probe.hits(), probe.nmissed());
    assert_eq!((counts(probe), counts(sibling)), ((1, 0), (1, 0)));
    PROBES.unregister(sibling).unwrap();
    code.call(0, 0);
    assert_eq!(journal::take(), [], "nor does one that is alone");
    PROBES.unregister(probe).unwrap();
}

/// The registry is locked while the list is read. Hits of every kind come through all the same, on
/// the CPU that has the lock and on another one.
#[test]
fn hits_take_no_lock() {
    let _machine = boot();
    probes::jprobe! {
        fn arguments(a: u64) {
            journal::note(a);
        }
    }
    let probe = leak(Kprobe::new().symbol("add").pre(pre::<1>).post(post::<2>));
    let call = leak(
        Kretprobe::new()
            .symbol("chain_a")
            .entry(entry::<3, ()>)
            .handler(returned::<4, ()>),
    );
    let jprobe = leak(probes::Jprobe::new().symbol("tail_g").entry(arguments));
    PROBES.register(probe).unwrap();
    PROBES.register(call).unwrap();
    PROBES.register(jprobe).unwrap();
    let calls = || {
        assert_eq!((add(1, 2), chain_a(1), tail_g(5)), (3, 13, 10));
    };
    let mut visits = 0;
    PROBES.for_each(|_| {
        visits += 1;
        calls();
        cpu::on_cpus(1, |_| calls());
    });
    assert_eq!(visits, 3);
    let hits = [1, 2, 3, 4, 5];
    assert_eq!(journal::take(), hits.repeat(6));
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES.unregister(probe).unwrap();
}
