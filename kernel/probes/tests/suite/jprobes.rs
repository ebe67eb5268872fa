//! Jprobes: handlers that see a function's arguments.
//!
//! A handler is a function like the probed one, runs in its place and under the guard, and must
//! leave no trace: registers and the stack's next words are as they were when the function begins.
//! Handlers in assembly spoil all that they can. One that does not end as it must is found out.

use core::{
    arch::{global_asm, naked_asm},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use probes::{Jprobe, JprobeEntry, Kprobe, Kretprobe, PreVerdict, PtRegs, kprobe::ProbeKind};

use super::{
    code::{Bench, Code, End, Registers},
    targets::*,
    *,
};
use crate::platform::{dies, task::Stack};

/// A handler that is written by hand.
fn by_hand(handler: unsafe extern "C" fn()) -> JprobeEntry {
    // SAFETY: the handlers below end in `jprobe_return`, or are there to show what happens if they
    // do not.
    unsafe { JprobeEntry::new(handler as *const ()) }
}

/// The function goes on as its other probes want it, also if the last jprobe was alone. The kernel
/// knows whose handler runs.
#[test]
fn a_function_is_stepped_behind_a_jprobes_handler() {
    let _machine = boot();
    probes::jprobe! {
        fn says_who_runs(a: u64) {
            let running = PROBES.running_probe();
            let is_this = |(probe, entry): (&Kprobe, Option<u64>)| {
                entry.is_some() && probe.addr() == address("add") && a == 1
            };
            journal::note(u64::from(running.is_some_and(is_this)));
        }
    }
    let jprobe = leak(Jprobe::new().symbol("add").entry(says_who_runs));
    PROBES.register(jprobe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [1]);
    PROBES.unregister(jprobe).unwrap();
    let stepped = Kprobe::new()
        .symbol("add")
        .step_method(StepMethod::TrapFlag);
    let stepped = leak(stepped.post(post::<2>));
    PROBES.register(stepped).unwrap();
    PROBES.register(jprobe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [1, 2]);
    PROBES.unregister(jprobe).unwrap();
    PROBES.unregister(stepped).unwrap();
}

#[test]
fn a_handler_sees_up_to_thirteen_arguments() {
    let _machine = boot();
    probes::jprobe! {
        fn none() {
            journal::note(0);
        }
    }
    probes::jprobe! {
        fn one(a: u64) {
            journal::note(a);
        }
    }
    probes::jprobe! {
        fn six(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) {
            for n in [a, b, c, d, e, f] {
                journal::note(n);
            }
        }
    }
    probes::jprobe! {
        fn eight(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) {
            for n in [a, b, c, d, e, f, g, h] {
                journal::note(n);
            }
        }
    }
    probes::jprobe! {
        fn fourteen(
            a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64,
            i: u64, j: u64, k: u64, l: u64, m: u64, n: u64,
        ) {
            for n in [a, b, c, d, e, f, g, h, i, j, k, l, m, n] {
                journal::note(n);
            }
        }
    }
    let numbers: Vec<u64> = (1..=14).collect();
    for (handler, count) in [(none, 0), (one, 1), (six, 6), (eight, 8), (fourteen, 14)] {
        let jprobe = leak(Jprobe::new().symbol("sum").entry(handler));
        PROBES.register(jprobe).unwrap();
        for _ in 0..3 {
            assert_eq!(sum(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), 1015);
            let expected = if count == 0 { &[0] } else { &numbers[..count] };
            assert_eq!(journal::take(), expected);
        }
        assert_eq!((jprobe.kprobe().hits(), jprobe.kprobe().nmissed()), (3, 0));
        assert_eq!(jprobe.entry_addr(), handler.addr());
        PROBES.unregister(jprobe).unwrap();
    }
}

#[test]
fn arguments_of_any_type_and_writes_through_pointers() {
    let _machine = boot();
    probes::jprobe! {
        fn typed(place: *mut u32, small: u8, yes: bool, letter: i16) {
            journal::note(u64::from(small));
            journal::note(yes.into());
            journal::note(letter as u64);
            // SAFETY: the caller below passes a pointer to a live word.
            unsafe { *place += 1 };
        }
    }
    let jprobe = leak(Jprobe::new().symbol("store").entry(typed));
    PROBES.register(jprobe).unwrap();
    // Not in this frame, whose first words are put back as if they were arguments.
    let mut word = Box::new(41u32);
    let old = store(&raw mut *word, 200, true, -3);
    assert_eq!(
        (old, *word),
        (42, 200),
        "the function sees what the handler wrote"
    );
    assert_eq!(journal::take(), [200, 1, -3i64 as u64]);
    PROBES.unregister(jprobe).unwrap();
}

#[test]
fn a_handler_runs_in_a_handlers_context_and_drops_its_locals() {
    let _machine = boot();
    struct Loud(u64);
    impl Drop for Loud {
        fn drop(&mut self) {
            journal::note(self.0);
        }
    }
    probes::jprobe! {
        fn context(a: u64, _b: u64) {
            let _outer = Loud(100);
            journal::note(in_good_order().into());
            journal::note(cpu::can_sleep().into());
            journal::note(step_by_step(1));
            if a == 1 {
                return;
            }
            let _inner = Loud(200);
        }
    }
    let jprobe = leak(Jprobe::new().symbol("add").entry(context));
    let inside = leak(Kprobe::new().symbol("step_by_step").pre(pre::<7>));
    PROBES.register(jprobe).unwrap();
    PROBES.register(inside).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [1, 0, 4, 100]);
    assert_eq!(add(2, 2), 4);
    assert_eq!(journal::take(), [1, 0, 4, 200, 100]);
    assert_eq!((inside.hits(), inside.nmissed()), (0, 2));
    assert!(cpu::can_sleep());
    PROBES.unregister(inside).unwrap();
    PROBES.unregister(jprobe).unwrap();
}

global_asm!(
    // Overwrites all that a handler may overwrite: argument registers, flags, its stack arguments,
    // the words above them.
    ".globl spoil_everything",
    ".type spoil_everything, @function",
    "spoil_everything:",
    ".cfi_startproc",
    "mov rax, -1",
    "mov rdi, rax; mov rsi, rax; mov rdx, rax; mov rcx, rax; mov r8, rax; mov r9, rax",
    "mov r10, rax; mov r11, rax; mov rbx, rax; mov rbp, rax; mov r12, rax; mov r15, rax",
    "mov [rsp], rax",
    "mov [rsp + 0x08], rax; mov [rsp + 0x10], rax; mov [rsp + 0x18], rax; mov [rsp + 0x20], rax",
    "mov [rsp + 0x28], rax; mov [rsp + 0x30], rax; mov [rsp + 0x38], rax; mov [rsp + 0x40], rax",
    "cmp rax, 0",
    "std",
    "sub rsp, 0x128",
    "call jprobe_return",
    ".cfi_endproc",
    ".size spoil_everything, . - spoil_everything",
    // Overwrites as many words from the return address on as `WORDS_TO_SPOIL` says.
    ".globl spoil_words",
    ".type spoil_words, @function",
    "spoil_words:",
    ".cfi_startproc",
    "mov rcx, [rip + WORDS_TO_SPOIL]",
    "2: mov qword ptr [rsp + 8 * rcx - 8], -1",
    "dec rcx",
    "jnz 2b",
    "call jprobe_return",
    ".cfi_endproc",
    ".size spoil_words, . - spoil_words",
    // Goes to the breakpoint of `jprobe_return` with another stack pointer.
    ".globl lose_the_stack",
    ".type lose_the_stack, @function",
    "lose_the_stack:",
    ".cfi_startproc",
    "push rax",
    "jmp jprobe_return_breakpoint",
    ".cfi_endproc",
    ".size lose_the_stack, . - lose_the_stack",
    // Returns as a function does, without `jprobe_return`.
    ".globl just_return",
    ".type just_return, @function",
    "just_return:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".size just_return, . - just_return",
);

unsafe extern "C" {
    fn spoil_everything();
    fn spoil_words();
    fn lose_the_stack();
    fn just_return();
}

#[test]
fn the_function_runs_as_if_its_handler_had_not() {
    let _machine = boot();
    // The return address and seven argument words are put back; what lies above stays spoilt.
    let caller = Code::calling(address("sum"), 1);
    let mut bench = Bench::new();
    let mut registers = Registers::default();
    for n in 0..16 {
        registers.set(n, 0x4444_0000 + n as u64);
    }
    (registers.sp, registers.flags) = (bench.sp(), flags::PLAIN | flags::STATUS);
    let bare = bench.run(caller.start, registers);
    let jprobe = leak(Jprobe::new().symbol("sum").entry(by_hand(spoil_everything)));
    PROBES.register(jprobe).unwrap();
    let probed = bench.run(caller.start, registers);
    assert_eq!(probed.end, End::Exit(1));
    let expected = [&bare.stack[..7], &[!0], &bare.stack[8..]].concat();
    assert_eq!(
        probed.stack, expected,
        "the eighth argument word alone is spoilt"
    );
    // 14 times it, which is the last argument, to the sum.
    let spoilt = bare
        .registers
        .ax
        .wrapping_add(14u64.wrapping_mul((!0u64).wrapping_sub(bare.stack[7])));
    let expected = Registers {
        ax: spoilt,
        dx: 14u64.wrapping_mul(!0),
        ..bare.registers
    };
    assert_eq!(
        probed.registers,
        Registers {
            flags: probed.registers.flags,
            ..expected
        }
    );
    PROBES.unregister(jprobe).unwrap();

    // A function that leaves the flags alone shows that they are put back, DF too, and IF, which
    // only the kernel can clear.
    let nothing = Code::calling(address("tail_nothing"), 1);
    let jprobe = leak(
        Jprobe::new()
            .symbol("tail_nothing")
            .entry(by_hand(spoil_everything)),
    );
    PROBES.register(jprobe).unwrap();
    let without_interrupts = cfg!(not(target_os = "linux")).then_some(flags::MASKED);
    for flags in [
        flags::PLAIN,
        flags::PLAIN | flags::STATUS,
        flags::PLAIN | flags::DF,
    ]
    .into_iter()
    .chain(without_interrupts)
    {
        let registers = Registers { flags, ..registers };
        assert_eq!(bench.run(nothing.start, registers).registers, registers);
    }
    PROBES.unregister(jprobe).unwrap();
}

/// How many words `spoil_words` overwrites.
#[unsafe(no_mangle)]
static WORDS_TO_SPOIL: AtomicU64 = AtomicU64::new(0);

/// A stack that ends closer than eight words above is saved as far as it goes, and nothing
/// above its end is touched: what follows the kernel's stacks is not mapped.
#[test]
fn the_last_words_of_a_stack_are_saved_and_none_behind_them() {
    let _machine = boot();
    let caller = Code::calling(address("tail_nothing"), 1);
    let mut bench = Bench::new();
    let top = bench.sp() + 16 * 8;
    for words in 1..=20 {
        // The call takes one.
        let registers = Registers {
            sp: top - 8 * words + 8,
            flags: flags::PLAIN,
            ..Registers::default()
        };
        let bare = bench.run(caller.start, registers);
        assert_eq!(bare.stack.len() as u64, words - 1);
        WORDS_TO_SPOIL.store(words.min(8), Relaxed);
        let jprobe = leak(
            Jprobe::new()
                .symbol("tail_nothing")
                .entry(by_hand(spoil_words)),
        );
        PROBES.register(jprobe).unwrap();
        assert_eq!(bench.run(caller.start, registers), bare, "{words} words");
        assert_eq!(jprobe.kprobe().hits(), 1);
        PROBES.unregister(jprobe).unwrap();
    }
}

#[test]
fn targets_that_a_jprobe_cannot_mirror_are_refused() {
    let _machine = boot();
    probes::jprobe! {
        fn arguments(_a: u64, _b: u64) {
            journal::note(1);
        }
    }
    probes::jprobe! {
        fn others(_a: u64, _b: u64) {
            journal::note(2);
        }
    }
    #[inline(never)]
    #[unsafe(link_section = platform::code_section!())]
    fn rust_function(a: u64) -> u64 {
        core::hint::black_box(a) + 1
    }
    assert_eq!(rust_function(1), 2);
    let make = || Jprobe::new().entry(arguments);
    refused(
        leak(make().at(rust_function as *const () as u64)),
        "NotExternC",
        22,
    );
    refused(
        leak(make().symbol("step_by_step").offset(4)),
        "NotFunctionEntry",
        22,
    );
    refused(leak(Jprobe::new().symbol("add")), "NoHandler", 22);
    let at = |addr: u64| {
        // SAFETY: none of them is registered, and so none is called.
        let entry = unsafe { JprobeEntry::new(core::ptr::without_provenance(addr as usize)) };
        leak(Jprobe::new().symbol("add").entry(entry))
    };
    let data = core::ptr::from_ref(&journal::take).addr() as u64;
    for nowhere in [1, address("spoil_everything") + 1, data] {
        refused(at(nowhere), "HandlerNotFunction", 22);
    }
    refused(leak(make().symbol("no_such_function")), "UnknownSymbol", 2);
    refused(
        leak(make().symbol(platform::BLACKLISTED.0)),
        "Blacklisted",
        22,
    );

    let first = leak(make().symbol("add"));
    PROBES.register(first).unwrap();
    refused(
        leak(Jprobe::new().symbol("add").entry(others)),
        "SecondJprobe",
        17,
    );
    refused(first, "AlreadyRegistered", 22);
    assert_eq!(list(), ["add+0x0 j 0"]);
    assert_eq!(first.kprobe().kind(), ProbeKind::Jprobe);
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [1], "the first is unaffected");
    PROBES.unregister(first).unwrap();
    let second = leak(Jprobe::new().symbol("add").entry(others));
    PROBES.register(second).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [2]);
    PROBES.unregister(second).unwrap();
}

#[test]
fn jprobes_follow_the_rules_of_all_probes() {
    let _machine = boot();
    probes::jprobe! {
        fn first(_a: u64) {
            journal::note(1);
        }
    }
    let on = |name| leak(Jprobe::new().symbol(name).entry(first));
    let batch = [on("chain_a"), on("chain_b"), on("chain_c")];
    PROBES.register_batch(&batch).unwrap();
    assert_eq!(chain_a(1), 13);
    assert_eq!(journal::take(), [1, 1, 1]);
    PROBES.disable(batch[1]).unwrap();
    assert_eq!(chain_a(1), 13);
    assert_eq!(journal::take(), [1, 1]);
    PROBES.enable(batch[1]).unwrap();
    PROBES.unregister_batch(&batch).unwrap();
    let error = PROBES.register_batch(&[batch[0], batch[0]]).unwrap_err();
    assert_eq!(error.name(), "AlreadyRegistered");
    assert_eq!(list(), [""; 0]);
    let disabled = leak(Jprobe::new().symbol("landed").entry(first).disabled());
    PROBES.register(disabled).unwrap();
    assert_eq!(landed(1), 2);
    PROBES.enable(disabled).unwrap();
    assert_eq!(landed(1), 2);
    PROBES.unregister(disabled).unwrap();
    assert_eq!(journal::take(), [1]);
}

#[test]
fn a_jprobe_runs_last_and_its_function_is_probed_all_the_same() {
    let _machine = boot();
    probes::jprobe! {
        fn arguments(a: u64, b: u64) {
            journal::note(100 + a + b);
        }
    }
    let jprobe = leak(Jprobe::new().symbol("add").entry(arguments));
    let old = leak(Kprobe::new().symbol("add").pre(pre::<1>).post(post::<11>));
    let call = leak(
        Kretprobe::new()
            .symbol("add")
            .entry(entry::<2, ()>)
            .handler(returned::<12, ()>),
    );
    let new = leak(Kprobe::new().symbol("add").pre(pre::<3>).post(post::<13>));
    PROBES.register(old).unwrap();
    PROBES.register(jprobe).unwrap();
    PROBES.register(call).unwrap();
    PROBES.register(new).unwrap();
    for _ in 0..3 {
        assert_eq!(add(1, 2), 3);
        assert_eq!(journal::take(), [3, 2, 1, 103, 13, 11, 12]);
    }
    // A pre handler that goes on elsewhere keeps the jprobe from running.
    fn elsewhere(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
        regs.ip += 3;
        PreVerdict::Resume
    }
    let skips = leak(Kprobe::new().symbol("add").pre(elsewhere));
    PROBES.register(skips).unwrap();
    add(1, 2);
    assert_eq!(journal::take(), []);
    PROBES.unregister(skips).unwrap();
    PROBES.unregister(new).unwrap();
    PROBES.unregister(call).unwrap();
    PROBES.unregister(old).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [103]);
    PROBES.unregister(jprobe).unwrap();
}

#[test]
fn a_jprobe_hit_inside_a_handler_is_missed() {
    let _machine = boot();
    static DEPTH: AtomicU64 = AtomicU64::new(0);
    DEPTH.store(0, Relaxed);
    probes::jprobe! {
        fn calls_itself(a: u64, _b: u64) {
            DEPTH.fetch_add(1, Relaxed);
            journal::note(add(a, 10));
        }
    }
    let jprobe = leak(Jprobe::new().symbol("add").entry(calls_itself));
    PROBES.register(jprobe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!((journal::take(), DEPTH.load(Relaxed)), (vec![11], 1));
    assert_eq!((jprobe.kprobe().hits(), jprobe.kprobe().nmissed()), (1, 1));
    assert_eq!(list(), ["add+0x0 j 0"]);
    PROBES.unregister(jprobe).unwrap();
}

/// Calls `function` on the stack that ends at `top`.
#[unsafe(naked)]
extern "C" fn call_on(top: u64, function: extern "C" fn()) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, rdi",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
    )
}

// A hit above the frame of the handler says that the handler is over, but only on its own stack.
#[test]
fn a_hit_on_a_stack_above_does_not_end_a_jprobes_handler() {
    let _machine = boot();
    static TOPS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    static ABOVE: AtomicU64 = AtomicU64::new(0);
    extern "C" fn hit() {
        journal::note(add(3, 4));
    }
    probes::jprobe! {
        fn calls_elsewhere(_a: u64, _b: u64) {
            let here = core::ptr::from_ref(&TOPS.len()).addr() as u64;
            for top in TOPS.iter().map(|top| top.load(Relaxed)) {
                ABOVE.fetch_add((top > here).into(), Relaxed);
                call_on(top, hit);
            }
        }
    }
    let stacks: [Stack; 4] = core::array::from_fn(|_| Stack::new());
    for (top, stack) in TOPS.iter().zip(&stacks) {
        top.store(stack.range().end, Relaxed);
    }
    let jprobe = leak(Jprobe::new().symbol("add").entry(calls_elsewhere));
    PROBES.register(jprobe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(journal::take(), [7; 4]);
    assert_eq!((jprobe.kprobe().hits(), jprobe.kprobe().nmissed()), (1, 4));
    // A process has its stacks where there is room.
    assert!(cfg!(target_os = "linux") || ABOVE.load(Relaxed) > 0);
    PROBES.unregister(jprobe).unwrap();
}

dies! {
    #[test]
    fn a_handler_that_loses_its_stack_ends_the_machine_with_both_register_sets()
        saying "its handler returned with sp 0x",
        |printed| printed.matches("PtRegs {").count() == 2 => {
        let _machine = boot();
        let jprobe = leak(Jprobe::new().symbol("add").entry(by_hand(lose_the_stack)));
        PROBES.register(jprobe).unwrap();
        add(1, 2);
    }
}

dies! {
    #[test]
    fn a_handler_that_returns_like_a_function_is_found_out()
        saying "its handler has ended without jprobe_return" => {
        let _machine = boot();
        let jprobe = leak(Jprobe::new().symbol("chain_c").entry(by_hand(just_return)));
        // After the call.
        let other = leak(Kprobe::new().symbol("chain_b").offset(9).pre(pre::<1>));
        PROBES.register(jprobe).unwrap();
        PROBES.register(other).unwrap();
        chain_a(1);
    }
}

// Where nothing is hit any more, the next switch of tasks finds out: the process has none of its
// own.
#[cfg(not(target_os = "linux"))]
dies! {
    #[test]
    fn a_handler_that_returns_like_a_function_is_found_out_at_a_switch_of_tasks()
        saying "of the jprobe at chain_c+0x0" => {
        let _machine = boot();
        let jprobe = leak(Jprobe::new().symbol("chain_c").entry(by_hand(just_return)));
        PROBES.register(jprobe).unwrap();
        chain_a(1);
        cpu::yield_now();
    }
}

dies! {
    #[test]
    fn jprobe_return_outside_a_handler_is_a_foreign_breakpoint()
        saying platform::UNEXPECTED_BREAKPOINT => {
        let _machine = boot();
        // SAFETY: nothing is to be dropped, and the process ends here.
        unsafe { probes::jprobe_return() }
    }
}
