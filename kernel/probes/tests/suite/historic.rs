//! Kretprobes that ask for their own way back: by two breakpoints, by one, or by the assembly.
//!
//! Handlers cannot tell the methods apart, so each does here what the others do, and has its
//! own price in #BP and #DB. The calls of one task may come back by different methods. The
//! trampolines' own probes are in no list.

use probes::{
    EntryVerdict, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs,
    registry::{
        ReturnMethod::{self, Asm, Trap3, Trap4},
        StepMethod,
    },
};

use super::{targets::*, *};
use crate::platform::dies;
use core::{
    arch::asm,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

const METHODS: [ReturnMethod; 3] = [Asm, Trap3, Trap4];

fn on(symbol: &'static str, method: ReturnMethod) -> Kretprobe<()> {
    Kretprobe::new()
        .symbol(symbol)
        .step_method(StepMethod::TrapFlag)
        .return_method(method)
}

/// #BP and #DB of this CPU so far.
fn interruptions() -> (u64, u64) {
    let cpu = cpu::counts();
    (cpu.breakpoints.load(Relaxed), cpu.debug_traps.load(Relaxed))
}

// The same handlers in the same order, and as many interruptions as each method promises.
#[test]
fn each_method_costs_its_interruptions() {
    let _machine = boot();
    for (method, cost) in METHODS.into_iter().zip([(1, 1), (2, 1), (2, 2)]) {
        let first = leak(on("add", method).handler(returned::<1, ()>));
        let second = leak(on("add", method).handler(returned::<2, ()>));
        PROBES.register_batch(&[first, second]).unwrap();
        let before = interruptions();
        assert_eq!(add(1, 2), 3);
        let after = interruptions();
        assert_eq!((after.0 - before.0, after.1 - before.1), cost, "{method:?}");
        assert_eq!(journal::take(), [1, 2]);
        PROBES.unregister_batch(&[first, second]).unwrap();
    }
}

/// `trap4`: the handlers run at the breakpoint; where the call came from is forgotten, and the way
/// there taken, when the no-op after it has been stepped. Both traps by hand, to look in between.
#[cfg(target_os = "linux")]
#[test]
fn a_call_by_trap4_goes_home_behind_the_step() {
    let _machine = boot();
    /// The processor names the cause, or a hypervisor has lost it.
    const CAUSES: [u64; 2] = [1 << 14, 0];
    static CAUSE: AtomicU64 = AtomicU64::new(0);
    static CALL: Mutex<(u64, u64)> = Mutex::new((0, 0));
    fn remember(call: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        *CALL.lock() = (call.return_slot(), call.ret_addr());
        EntryVerdict::Track
    }
    extern "C" fn come_back(_: u64) {
        let (frame, home) = *CALL.lock();
        let trampoline = address("kretprobe_trampoline_trap4");
        let known = || PROBES.return_address(task::current(), frame, trampoline);
        let mut regs = PtRegs {
            ip: trampoline + 1,
            sp: frame + 8,
            flags: flags::PLAIN,
            ..PtRegs::default()
        };
        assert!(PROBES.on_breakpoint(&mut regs));
        assert_eq!(journal::take(), [7], "the handler has run");
        assert_eq!((known(), regs.sp), (home, frame + 8));
        assert_ne!(regs.ip, home);
        assert_ne!(regs.flags & flags::TF, 0, "to step the no-op");
        regs.ip += 1;
        assert!(PROBES.on_debug(&mut regs, CAUSE.load(Relaxed)));
        assert_eq!(
            (regs.ip, regs.sp, regs.flags),
            (home, frame + 8, flags::PLAIN)
        );
        assert_eq!(known(), trampoline, "nobody knows the call any more");
        // SAFETY: the return address of the call that runs this, which really comes back here.
        unsafe { (frame as *mut u64).write(home) };
    }
    let call = on("calls_back", Trap4)
        .entry(remember)
        .handler(returned::<7, ()>);
    let call = leak(call.maxactive(1));
    PROBES.register(call).unwrap();
    for (round, cause) in (1..).zip(CAUSES) {
        CAUSE.store(cause, Relaxed);
        assert_eq!(calls_back(come_back, 1), 2);
        assert_eq!((call.hits(), call.nmissed()), (round, 0));
    }
    assert_eq!(journal::take(), []);
    PROBES.unregister(call).unwrap();
}

// The return slot holds the trampoline of its own kretprobe, whatever else is in flight.
#[test]
fn calls_of_one_task_may_come_back_by_different_methods() {
    let _machine = boot();
    fn where_from(call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
        // By breakpoint, or called from the assembly.
        journal::note((regs.ip != call.ret_addr()).into());
    }
    for methods in [
        [Asm, Trap3, Trap4],
        [Trap3, Trap4, Asm],
        [Trap4, Asm, Trap3],
    ] {
        let calls = core::iter::zip(["chain_a", "chain_b", "chain_c"], methods)
            .map(|(name, method)| leak(on(name, method).handler(where_from)));
        let calls: Vec<_> = calls.collect();
        PROBES.register_batch(&calls).unwrap();
        assert_eq!(chain_a(1), 13);
        let expected: Vec<_> = methods.iter().rev().map(|m| (*m != Asm).into()).collect();
        assert_eq!(journal::take(), expected);
        PROBES.unregister_batch(&calls).unwrap();
        // Two functions that return through one slot, by a jump: the later one's trampoline serves
        // both.
        let calls = [
            leak(on("tail_f", methods[0]).handler(returned::<1, ()>)),
            leak(on("tail_g", methods[1]).handler(returned::<2, ()>)),
        ];
        PROBES.register_batch(&calls).unwrap();
        assert_eq!(tail_f(4), 10);
        assert_eq!(journal::take(), [2, 1]);
        PROBES.unregister_batch(&calls).unwrap();
    }
}

#[test]
fn trampolines_are_in_no_list_and_no_knob_disarms_them() {
    let _machine = boot();
    let trampolines = ["kretprobe_trampoline_trap3", "kretprobe_trampoline_trap4"];
    let armed = || trampolines.map(|name| byte_at(address(name)));
    assert_eq!(armed(), [0xcc; 2]);
    assert!(list().is_empty());
    PROBES.set_enabled(false).unwrap();
    assert_eq!(armed(), [0xcc; 2]);
    PROBES.set_enabled(true).unwrap();
    assert_eq!(armed(), [0xcc; 2]);
    for name in trampolines {
        refused(leak(Kprobe::new().symbol(name)), "Blacklisted", 22);
        let text = PROBES.original_text(address(name)..address(name) + 1);
        assert_eq!(
            text.unwrap(),
            [0x90],
            "{}",
            symbols::describe(address(name))
        );
    }
}

#[test]
fn kretprobes_of_one_function_have_one_method() {
    let _machine = boot();
    for method in METHODS {
        let call = leak(on("add", method).handler(returned::<1, ()>));
        PROBES.register(call).unwrap();
        for other in METHODS.into_iter().filter(|other| *other != method) {
            refused(leak(on("add", other)), "MixedReturnMethods", 22);
        }
        // A function that it jumps to, or calls, is another function.
        let elsewhere = leak(on("chain_c", Asm).entry(|_, _| EntryVerdict::Decline));
        PROBES.register(elsewhere).unwrap();
        assert_eq!(add(1, 2), 3);
        PROBES.unregister(elsewhere).unwrap();
        PROBES.unregister(call).unwrap();
    }
    assert_eq!(journal::take(), [1; 3]);
}

/// The trampoline of `trap3`.
static TRAMPOLINE: AtomicU64 = AtomicU64::new(0);

/// Returns to it, in a handler.
fn return_in_a_handler(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    let trampoline = TRAMPOLINE.load(Relaxed);
    // SAFETY: the machine ends at the trampoline's breakpoint.
    unsafe { asm!("push {}", "ret", in(reg) trampoline) };
    PreVerdict::Execute
}

dies! {
    #[test]
    fn a_return_by_breakpoint_inside_a_handler_ends_the_machine()
        saying "a probed call returned while a handler ran on its CPU" => {
        let _machine = boot();
        TRAMPOLINE.store(address("kretprobe_trampoline_trap3"), Relaxed);
        let call = leak(on("neighbour", Trap3));
        let probe = leak(Kprobe::new().symbol("add").pre(return_in_a_handler));
        PROBES.register(call).unwrap();
        PROBES.register(probe).unwrap();
        add(1, 2);
    }
}
