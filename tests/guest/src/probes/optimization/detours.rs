//! A detour does the same as a breakpoint: handlers see and leave the same, and so does the
//! code.
//!
//! Most tests run one function twice, with the knob on and off, from the same registers and flags,
//! and compare what a handler saw and what the call left. The rest is about code in the detour
//! itself: faults, backtraces, breakpoints, and code that a handler sends elsewhere.

use super::{
    HITS, address, breakpoints, count, is_jump, opt_add, opt_is_left, opt_load, opt_recursion,
    opt_rust,
};
use crate::platform::suite::flags::{AC, DF, IF, MASKED, PLAIN, STATUS};
use crate::tools::jumps::{Optimization, byte_at};
use crate::tools::register_state::{RegisterState, distinct, run};
use alloc::{boxed::Box, vec::Vec};
use core::{
    arch::naked_asm,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{
        idt::vector,
        percpu,
        traps::{self, Exception},
    },
    backtrace,
    probes::{
        EntryVerdict, FaultVerdict, Jprobe, JprobeEntry, Kprobe, Kretprobe, KretprobeInstance,
        PROBES, PreVerdict, PtRegs, register,
    },
    symbols,
    sync::SpinLock,
};
use probes::hit::Displaced;

/// A jprobe's handler that leaves another value in every register and flag, and in the words of the
/// stack that are put back.
#[unsafe(naked)]
unsafe extern "C" fn spoil_everything() {
    naked_asm!(
        ".cfi_startproc",
        "mov rax, 0x5b011ed",
        "mov [rsp], rax",
        "mov [rsp + 56], rax",
        "mov rbx, rax",
        "mov rcx, rax",
        "mov rdx, rax",
        "mov rsi, rax",
        "mov rdi, rax",
        "mov rbp, rax",
        "mov r8, rax",
        "mov r9, rax",
        "mov r10, rax",
        "mov r11, rax",
        "mov r12, rax",
        "mov r13, rax",
        "mov r14, rax",
        "mov r15, rax",
        "cmp rax, 0x5b011ed",
        "stc",
        "std",
        "jmp {jprobe_return}",
        ".cfi_endproc",
        jprobe_return = sym probes::jprobe_return,
    )
}

// SAFETY: it ends in `jprobe_return`, and has nothing to drop.
const SPOILER: JprobeEntry = unsafe { JprobeEntry::new(spoil_everything as *const ()) };

/// The registers that the handler of the last hit has seen.
static SEEN: SpinLock<PtRegs> = SpinLock::new(PtRegs::new());
/// The flags that the handler itself ran with.
static OWN_FLAGS: AtomicU64 = AtomicU64::new(0);

fn see(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    let flags = x86_64::registers::rflags::read_raw();
    OWN_FLAGS.store(flags, SeqCst);
    *SEEN.lock() = *regs;
    HITS.fetch_add(1, SeqCst);
    PreVerdict::Execute
}

/// Runs `name` with a probe at `offset` and interrupts on or off; what the handler saw and what the
/// function left.
fn observe(name: &'static str, offset: u32, flags: u64, on: bool) -> (PtRegs, RegisterState) {
    let _knob = Optimization::set(on);
    let probe = register(Box::new(Kprobe::new().symbol(name).offset(offset).pre(see))).unwrap();
    let first = byte_at(address(name) + u64::from(offset));
    assert_eq!(first, if on { 0xe9 } else { 0xcc }, "{name}+{offset}");
    let mut state = distinct();
    state[15] = flags;
    state[16] = address(name);
    let (hits, traps) = (HITS.load(SeqCst), breakpoints());
    // SAFETY: all of them keep rsp.
    unsafe { run(&mut state) };
    assert_eq!(HITS.load(SeqCst), hits + 1, "{name}+{offset}");
    assert_eq!(breakpoints(), traps + u64::from(!on), "{name}+{offset}");
    assert_eq!((probe.hits(), probe.nmissed()), (1, 0));
    drop(probe);
    (*SEEN.lock(), state)
}

/// Registers, flags, stack and results are those of the breakpoint, bit for bit.
#[guest_test]
fn a_detour_shows_and_leaves_what_a_breakpoint_does() {
    let cases = [
        ("opt_add", 0),
        ("opt_add", 4),
        ("opt_stack", 0),
        ("opt_stack", 1),
        ("opt_carry", 0),
        ("opt_carry", 3),
        ("opt_carry", 6),
        ("opt_flags", 0),
        ("opt_flags", 1),
        ("opt_backwards", 0),
        ("opt_backwards", 1),
        ("opt_relative", 0),
        ("opt_relative", 1),
        ("opt_tail", 0),
        ("opt_short", 0),
        ("opt_short", 2),
    ];
    for (name, offset) in cases {
        // CF, PF, AF, ZF, SF, OF set or clear, interrupts on or off.
        // AC, which is clear at each entry.
        let all = [MASKED, MASKED | STATUS, PLAIN, PLAIN | STATUS, PLAIN | AC];
        for flags in all.into_iter().take(if offset == 0 { 4 } else { 5 }) {
            let with_trap = observe(name, offset, flags, false);
            let own = OWN_FLAGS.load(SeqCst);
            let without = observe(name, offset, flags, true);
            assert_eq!(without, with_trap, "{name}+{offset} with flags {flags:#x}");
            assert_eq!(own & (IF | DF | AC), 0);
            assert_eq!(
                OWN_FLAGS.load(SeqCst) & (IF | DF | AC),
                flags & IF,
                "as the code had them, DF and AC clear"
            );
            let regs = without.0;
            assert_eq!(regs.ip, address(name) + u64::from(offset) + 1);
            assert_eq!((regs.orig_ax, regs.user_mode()), (u64::MAX, false));
        }
    }
    assert_eq!(PROBES.detours_in_use(), 0);
}

/// Whatever a jprobe's handler leaves in the registers, the flags and the top of the stack, the
/// function finds its own; by the stubs in assembly, and with a post handler beside it, where
/// Rust ends the handler.
#[guest_test]
fn a_jprobes_handler_leaves_no_trace_in_any_register() {
    fn after(_: &Kprobe, _: &mut PtRegs, _: u64) {
        HITS.fetch_add(1, SeqCst);
    }
    let leaves = |flags: u64| {
        let mut state = distinct();
        (state[15], state[16]) = (flags, address("opt_add"));
        // SAFETY: keeps rsp.
        unsafe { run(&mut state) };
        state
    };
    for flags in [MASKED, MASKED | STATUS, PLAIN, PLAIN | STATUS] {
        let plain = leaves(flags);
        let jprobe = register(Box::new(Jprobe::new().symbol("opt_add").entry(SPOILER))).unwrap();
        assert_eq!(leaves(flags), plain, "flags {flags:#x}");
        let post = register(Box::new(Kprobe::new().symbol("opt_add").post(after))).unwrap();
        let hits = HITS.load(SeqCst);
        assert_eq!(
            leaves(flags),
            plain,
            "flags {flags:#x}, with a post handler"
        );
        assert_eq!((jprobe.kprobe().hits(), HITS.load(SeqCst) - hits), (2, 1));
        drop((jprobe, post));
    }
}

/// The code gets the registers and flags that a handler has changed.
#[guest_test]
fn changes_of_a_handler_are_taken_over() {
    fn change(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        regs.di = 100;
        regs.si = 20;
        regs.flags |= 1;
        PreVerdict::Execute
    }
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(change))).unwrap();
    assert!(is_jump("opt_rust"));
    assert_eq!(opt_rust(black_box(1), black_box(2)), 320);
    drop(probe);
    let probe = register(Box::new(Kprobe::new().symbol("opt_carry").pre(change))).unwrap();
    assert!(is_jump("opt_carry"));
    let mut state = [0; 17];
    (state[15], state[16]) = (2, address("opt_carry"));
    // SAFETY: keeps rsp.
    unsafe { run(&mut state) };
    assert_eq!(state[0], 1, "0 + 0 and the carry that the handler has set");
    drop(probe);
    assert_eq!(opt_rust(black_box(1), black_box(2)), 5);
}

/// A handler that calls the probed function: the inner call runs without handlers and counts as
/// missed, for each enabled probe there.
#[guest_test]
fn a_hit_in_a_handler_is_missed_and_counted() {
    fn again(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        assert_eq!(opt_rust(black_box(4), black_box(2)), 14);
        PreVerdict::Execute
    }
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(again))).unwrap();
    assert!(is_jump("opt_rust"));
    assert_eq!(opt_rust(black_box(1), black_box(2)), 5);
    assert_eq!((probe.hits(), probe.nmissed()), (1, 1));
    let siblings = [
        Kprobe::new(),
        Kprobe::new().pre(count),
        Kprobe::new().disabled(),
    ]
    .map(|sibling| register(Box::new(sibling.symbol("opt_rust"))).unwrap());
    let call = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("opt_rust")
            .handler(|_, _| {}),
    ))
    .unwrap();
    assert!(is_jump("opt_rust"));
    assert_eq!(opt_rust(black_box(1), black_box(2)), 5);
    assert_eq!((probe.hits(), probe.nmissed()), (2, 2));
    assert_eq!(
        siblings
            .each_ref()
            .map(|sibling| (sibling.hits(), sibling.nmissed())),
        [(1, 1), (1, 1), (0, 0)]
    );
    assert_eq!(
        (call.hits(), call.nmissed(), call.kprobe().nmissed()),
        (1, 0, 1)
    );
    drop((call, siblings, probe));
}

/// A pre handler that has set the ip: to the caller, to the next instruction, which lies under the
/// jump, and to another function.
#[guest_test]
fn a_handler_may_send_the_code_elsewhere() {
    fn to_the_caller(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        // SAFETY: at a function's entry.
        regs.ip = unsafe { *(regs.sp as *const u64) };
        regs.sp += 8;
        regs.ax = 77;
        PreVerdict::Resume
    }
    fn over_the_first(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        regs.ax = 1000;
        regs.dx = 1;
        // lea rax, [rdi + rsi]
        regs.ip += 3;
        PreVerdict::Resume
    }
    fn to_another(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        regs.ip = opt_rust as *const () as u64;
        PreVerdict::Resume
    }
    let cases: [(fn() -> Kprobe, u64); 3] = [
        (|| Kprobe::new().pre(to_the_caller), 77),
        (|| Kprobe::new().pre(over_the_first), 1001),
        (|| Kprobe::new().pre(to_another), 11),
    ];
    for (probe, expected) in cases {
        for on in [false, true] {
            let _knob = Optimization::set(on);
            let probe = register(Box::new(probe().symbol("opt_add"))).unwrap();
            assert_eq!(is_jump("opt_add"), on);
            assert_eq!(opt_add(black_box(3), black_box(2)), expected);
            assert!(!percpu::this().probes.is_busy() && percpu::preemptible());
            drop(probe);
        }
    }
}

/// A return probe on an optimised entry: no trap at all, each return seen, with and without an
/// entry handler, recursion included.
#[guest_test]
fn return_probes_need_no_trap() {
    static SUM: AtomicU64 = AtomicU64::new(0);
    fn enter(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
        **call = regs.di;
        if regs.di == 3 {
            EntryVerdict::Decline
        } else {
            EntryVerdict::Track
        }
    }
    fn leave(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
        assert_eq!(regs.return_value(), **call);
        SUM.fetch_add(**call, SeqCst);
    }
    fn plain(_: &mut KretprobeInstance<u64>, regs: &mut PtRegs) {
        SUM.fetch_add(regs.return_value(), SeqCst);
    }
    let with_entry = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("opt_recursion")
            .maxactive(16)
            .entry(enter)
            .handler(leave),
    ))
    .unwrap();
    assert!(is_jump("opt_recursion"));
    let traps = breakpoints();
    SUM.store(0, SeqCst);
    assert_eq!(opt_recursion(8), 8);
    assert_eq!((SUM.load(SeqCst), with_entry.hits()), (36 - 3, 8));
    drop(with_entry);
    let without = register(Box::new(
        Kretprobe::<u64>::new()
            .symbol("opt_recursion")
            .maxactive(16)
            .handler(plain),
    ))
    .unwrap();
    assert!(is_jump("opt_recursion"));
    SUM.store(0, SeqCst);
    assert_eq!(opt_recursion(8), 8);
    assert_eq!(
        (SUM.load(SeqCst), without.hits(), without.nmissed()),
        (36, 9, 0)
    );
    assert_eq!(breakpoints(), traps);
    drop(without);
}

/// A call that never returns leaves its frame behind. The next call from the same place or from one
/// above it finds that out, gives the instance back and counts it, by the detour of a plain return
/// probe and by that of one with an entry handler.
#[guest_test]
fn abandoned_calls_are_found_at_the_next_one() {
    #[inline(never)]
    fn further_down(a: u64) -> u64 {
        black_box(opt_is_left(black_box(a), black_box(0)) + 1)
    }
    fn enter(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        EntryVerdict::Track
    }
    let plain = || Kretprobe::<()>::new().symbol("opt_leaves").maxactive(4);
    for probe in [plain(), plain().entry(enter)] {
        let probe = register(Box::new(probe.handler(|_, _| {}))).unwrap();
        assert!(is_jump("opt_leaves"));
        let stale = PROBES.stale_instances();
        let found = || PROBES.stale_instances() - stale;
        assert_eq!(opt_is_left(black_box(1), black_box(0)), 2);
        assert_eq!(found(), 0, "it may still return");
        for again in 1..=10 {
            assert_eq!(opt_is_left(black_box(again), black_box(0)), 2 * again);
            assert_eq!((found(), probe.hits()), (again, 0), "from the same place");
        }
        assert_eq!(further_down(2), 5);
        assert_eq!(found(), 10, "the one above it may still return");
        assert_eq!(opt_is_left(black_box(3), black_box(1)), 6);
        assert_eq!((found(), probe.hits()), (12, 1), "both are below this one");
        assert_eq!(probe.nmissed(), 0);
        assert_eq!(opt_is_left(black_box(4), black_box(1)), 8);
        assert_eq!((found(), probe.hits(), probe.nmissed()), (12, 2, 0));
        drop(probe);
    }
}

/// A fault in a displaced instruction is one at the original's address, for the probe's own fault
/// handler and for that of a probe whose handler has run into it.
#[guest_test]
fn faults_in_displaced_instructions_are_told_as_the_originals() {
    static GOOD: u64 = 40;
    static FAULT_IP: AtomicU64 = AtomicU64::new(0);
    fn repair(_: &Kprobe, regs: &mut PtRegs, vector: u8) -> FaultVerdict {
        FAULT_IP.store(regs.ip, SeqCst);
        assert_eq!(vector, 14);
        let good = &raw const GOOD as u64;
        for operand in [&mut regs.di, &mut regs.si] {
            if *operand == 0 {
                *operand = good;
            }
        }
        FaultVerdict::Handled
    }
    fn run_into(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
        assert_eq!(opt_load(&raw const GOOD as u64, black_box(0)), 80);
        PreVerdict::Execute
    }
    let probe = register(Box::new(
        Kprobe::new().symbol("opt_load").pre(count).fault(repair),
    ))
    .unwrap();
    assert!(is_jump("opt_load"));
    assert_eq!(opt_load(black_box(0), &raw const GOOD as u64), 80);
    assert_eq!(FAULT_IP.load(SeqCst), address("opt_load"));
    assert_eq!(probe.hits(), 2, "once more, as it resumed there");
    let other = register(Box::new(
        Kprobe::new().symbol("opt_rust").pre(run_into).fault(repair),
    ))
    .unwrap();
    assert_eq!(opt_rust(1, 2), 5);
    assert_eq!(
        FAULT_IP.load(SeqCst),
        address("opt_load") + 3,
        "the second, under the jump"
    );
    drop(other);
    drop(probe);
}

/// The fault of an instruction that the jump displaces as well is not the probe's: its fault
/// handler is not asked, and the kernel finds the fault at that instruction.
#[guest_test]
fn a_fault_behind_the_probed_instruction_is_not_the_probes() {
    static GOOD: u64 = 40;
    static ASKED: AtomicU64 = AtomicU64::new(0);
    static KERNEL_SAW: AtomicU64 = AtomicU64::new(0);
    fn claim(_: &Kprobe, regs: &mut PtRegs, _: u8) -> FaultVerdict {
        ASKED.fetch_add(1, SeqCst);
        (regs.di, regs.si) = (&raw const GOOD as u64, &raw const GOOD as u64);
        FaultVerdict::Handled
    }
    fn mend(regs: &mut PtRegs, exception: &Exception) -> bool {
        KERNEL_SAW.store(regs.ip, SeqCst);
        regs.si = &raw const GOOD as u64;
        exception.vector == vector::PAGE_FAULT
    }
    let probe = register(Box::new(
        Kprobe::new().symbol("opt_load").pre(count).fault(claim),
    ))
    .unwrap();
    assert!(is_jump("opt_load"));
    traps::set_exception_handler(Some(mend));
    assert_eq!(opt_load(&raw const GOOD as u64, black_box(0)), 80);
    traps::set_exception_handler(None);
    assert_eq!(
        (ASKED.load(SeqCst), KERNEL_SAW.load(SeqCst)),
        (0, address("opt_load") + 3)
    );
    assert_eq!(opt_load(black_box(0), &raw const GOOD as u64), 80);
    assert_eq!(ASKED.load(SeqCst), 1, "its own it is asked for");
    assert!(!percpu::in_probe_handler());
    drop(probe);
}

/// A breakpoint in a detour that is none of the probes', such as its padding, is not a hit.
#[guest_test]
fn a_breakpoint_in_a_detours_padding_is_no_hit() {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    fn come_back(regs: &mut PtRegs, exception: &Exception) -> bool {
        TOLD.store(regs.ip, SeqCst);
        // SAFETY: the return address of the call that led here.
        regs.ip = unsafe { *(regs.sp as *const u64) };
        (regs.sp, regs.ax) = (regs.sp + 8, 77);
        exception.vector == vector::BREAKPOINT
    }
    let probe = register(Box::new(Kprobe::new().symbol("opt_rust").pre(count))).unwrap();
    assert!(is_jump("opt_rust"));
    // SAFETY: kernel text is mapped and readable for ever.
    let distance = unsafe { ((address("opt_rust") + 1) as *const i32).read_unaligned() };
    let enter = (address("opt_rust") + 5).wrapping_add_signed(distance.into());
    let is_of_detour = |at: &u64| {
        let displaced = PROBES.displaced(*at);
        matches!(displaced, Some(Displaced::Detour { start, .. }) if start <= enter)
    };
    let last = (enter..).take_while(is_of_detour).last().unwrap();
    assert_eq!(byte_at(last), 0xcc);
    // SAFETY: the exception handler has the call come back.
    let padding: extern "C" fn(u64, u64) -> u64 = unsafe { core::mem::transmute(last) };
    traps::set_exception_handler(Some(come_back));
    let result = padding(black_box(1), black_box(2));
    traps::set_exception_handler(None);
    assert_eq!((result, TOLD.load(SeqCst), probe.hits()), (77, last + 1, 0));
    drop(probe);
}

/// From a handler in a detour the callers are found, by the registers and by the handler's own
/// stack.
#[guest_test]
fn a_backtrace_leads_through_a_detour() {
    static NAMES: SpinLock<[[u64; 16]; 2]> = SpinLock::new([[0; 16]; 2]);
    fn note(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        let mut names = NAMES.lock();
        for (chain, walk) in names
            .iter_mut()
            .zip([backtrace::walk(regs), backtrace::walk_current()])
        {
            *chain = [0; 16];
            for (place, frame) in chain.iter_mut().zip(walk) {
                *place =
                    symbols::lookup_addr(frame.code_address()).map_or(1, |symbol| symbol.start);
            }
        }
        PreVerdict::Execute
    }
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn opt_caller(which: u64) -> u64 {
        let value = if which == 0 {
            opt_add(black_box(1), black_box(2))
        } else {
            opt_rust(black_box(1), black_box(2))
        };
        black_box(value + 1)
    }
    for (name, which, offset) in [("opt_add", 0, 0), ("opt_add", 0, 4), ("opt_rust", 1, 0)] {
        let probe = register(Box::new(
            Kprobe::new().symbol(name).offset(offset).pre(note),
        ))
        .unwrap();
        assert_eq!(byte_at(address(name) + u64::from(offset)), 0xe9);
        opt_caller(black_box(which));
        drop(probe);
        let names = *NAMES.lock();
        let name_of = |at: &u64| symbols::lookup_addr(*at).map_or("?", |symbol| symbol.name);
        let callers: Vec<_> = names[0].iter().map(name_of).collect();
        assert_eq!(
            callers[..2],
            [name, "opt_caller"],
            "{name}+{offset} by its registers"
        );
        let through = names[1]
            .windows(2)
            .any(|pair| pair == [address(name), address("opt_caller")]);
        assert!(
            through,
            "{name}+{offset} through the detour: {:x?}",
            names[1]
        );
    }
}
