//! Return probes and jprobes on functions of every shape: arguments, results, recursion, nesting.
//!
//! Targets are called with values whose arguments and results the test knows, and the handlers note
//! what they see in [`SEEN`]. So order, number and content are compared at once.

use crate::tools::jumps::{Optimization, byte_at};
use alloc::{boxed::Box, vec, vec::Vec};
use core::{
    arch::naked_asm,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
};
use kernel::{
    arch::percpu,
    backtrace,
    probes::{
        EntryVerdict, Jprobe, Kprobe, Kretprobe, KretprobeInstance, PROBES, PreVerdict, PtRegs,
        borrowed_return_address, jprobe, register,
    },
    symbols,
    sync::SpinLock,
};

/// The values that handlers saw, in order.
static SEEN: SpinLock<Vec<u64>> = SpinLock::new(Vec::new());

/// Takes what was seen. The handlers themselves only append within the capacity made here: no
/// allocation in a handler.
fn seen() -> Vec<u64> {
    let fresh = Vec::with_capacity(256);
    core::mem::replace(&mut *SEEN.lock(), fresh)
}

fn see(value: u64) {
    let mut seen = SEEN.lock();
    assert!(seen.len() < seen.capacity());
    seen.push(value);
}

/// Defines functions that do not vanish into their callers, under their plain names.
macro_rules! targets {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)+) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name($($argument: $type),*) -> $result { $body }
        )+
    };
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wide([u64; 6]);

targets! {
    args_0() -> u64 { black_box(100) }
    args_1(a: u64) -> u64 { black_box(100 + a) }
    args_2(a: u64, b: u64) -> u64 { black_box(100 + a + 2 * b) }
    args_3(a: u64, b: u64, c: u64) -> u64 { black_box(100 + a + 2 * b + 3 * c) }
    args_4(a: u64, b: u64, c: u64, d: u64) -> u64 { black_box(100 + a + 2 * b + 3 * c + 4 * d) }
    args_5(a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
        black_box(100 + a + 2 * b + 3 * c + 4 * d + 5 * e)
    }
    args_6(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 {
        black_box(100 + a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f)
    }
    args_7(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64) -> u64 {
        black_box(100 + a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g)
    }
    args_8(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) -> u64 {
        black_box(100 + a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h)
    }
    wide_integer(a: u64, b: u64) -> u128 { black_box((u128::from(a) << 64) + u128::from(b)) }
    in_memory(a: u64) -> Wide { black_box(Wide([a, a + 1, a + 2, a + 3, a + 4, a + 5])) }
    factorial_of(n: u64) -> u64 {
        if n == 0 { 1 } else { black_box(n).wrapping_mul(factorial_of(black_box(n - 1))) }
    }
    outermost(n: u64) -> u64 { black_box(middle(black_box(n)) + 1) }
    middle(n: u64) -> u64 { black_box(innermost(black_box(n)) + 10) }
    innermost(n: u64) -> u64 { black_box(n + 600) }
}

fn call(arguments: u64) -> u64 {
    let [a, b, c, d, e, f, g, h] = black_box([11, 22, 33, 44, 55, 66, 77, 88]);
    match arguments {
        0 => args_0(),
        1 => args_1(a),
        2 => args_2(a, b),
        3 => args_3(a, b, c),
        4 => args_4(a, b, c, d),
        5 => args_5(a, b, c, d, e),
        6 => args_6(a, b, c, d, e, f),
        7 => args_7(a, b, c, d, e, f, g),
        _ => args_8(a, b, c, d, e, f, g, h),
    }
}

fn see_result(_call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    see(regs.return_value());
}

const NAMES: [&str; 9] = [
    "args_0", "args_1", "args_2", "args_3", "args_4", "args_5", "args_6", "args_7", "args_8",
];

/// A return probe sees the result of a function with any number of arguments, and the caller gets
/// it unchanged.
#[guest_test]
fn return_probe_sees_the_result_of_0_to_8_arguments() {
    for (count, name) in (0u64..).zip(NAMES) {
        let expected = call(count);
        let probe = register(Box::new(Kretprobe::new().symbol(name).handler(see_result))).unwrap();
        seen();
        assert_eq!(call(count), expected, "{name} probed");
        drop(probe);
        assert_eq!(seen(), [expected], "{name}");
    }
}

fn see_arguments(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    for value in [regs.di, regs.si, regs.dx, regs.cx, regs.r8, regs.r9] {
        see(value);
    }
    for n in 1..=2 {
        // SAFETY: the seventh and the eighth argument lie above the return address (System V psABI,
        // 3.2.3).
        see(unsafe { (regs.sp as *const u64).add(n).read() });
    }
    PreVerdict::Execute
}

/// A kprobe at a function's entry finds the arguments where the calling convention has them.
#[guest_test]
fn kprobe_at_an_entry_sees_8_arguments() {
    let probe = register(Box::new(Kprobe::new().symbol("args_8").pre(see_arguments))).unwrap();
    seen();
    call(8);
    drop(probe);
    assert_eq!(seen(), [11, 22, 33, 44, 55, 66, 77, 88]);
}

jprobe! {
    fn mirror_of_args_8(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) {
        for value in [a, b, c, d, e, f, g, h] {
            see(value);
        }
    }
}

jprobe! {
    fn mirror_of_args_0() {
        see(1);
    }
}

jprobe! {
    fn spoiler_of_args_8(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) {
        let (mut a, mut b, mut c, mut g, mut h) = (a, b, c + d + e + f, g, h);
        for argument in [&mut a, &mut b, &mut c, &mut g, &mut h] {
            *black_box(argument) = 0xdead;
        }
    }
}

/// A jprobe's handler is called with the arguments of the function, in registers and on the stack.
#[guest_test]
fn jprobe_sees_0_to_8_arguments() {
    let expected = (call(0), call(8));
    let none = register(Box::new(
        Jprobe::new().symbol("args_0").entry(mirror_of_args_0),
    ))
    .unwrap();
    let eight = register(Box::new(
        Jprobe::new().symbol("args_8").entry(mirror_of_args_8),
    ))
    .unwrap();
    seen();
    assert_eq!((call(0), call(8)), expected);
    drop((none, eight));
    assert_eq!(seen(), [1, 11, 22, 33, 44, 55, 66, 77, 88]);
}

/// A jprobe's handler may change its arguments, and the function still gets its own.
#[guest_test]
fn jprobe_handler_cannot_spoil_the_arguments() {
    let expected = call(8);
    let probe = register(Box::new(
        Jprobe::new().symbol("args_8").entry(spoiler_of_args_8),
    ))
    .unwrap();
    assert_eq!(call(8), expected);
    drop(probe);
}

fn see_both_halves(_call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    see(regs.ax);
    see(regs.dx);
}

fn see_memory(_call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    // SAFETY: a struct returned in memory: rax points to it (System V psABI, 3.2.3).
    for value in unsafe { (regs.return_value() as *const Wide).read() }.0 {
        see(value);
    }
}

/// Results in two registers and in memory arrive as they are.
#[guest_test]
fn wide_results_survive_a_return_probe() {
    let integer = register(Box::new(
        Kretprobe::new()
            .symbol("wide_integer")
            .handler(see_both_halves),
    ))
    .unwrap();
    let memory = register(Box::new(
        Kretprobe::new().symbol("in_memory").handler(see_memory),
    ))
    .unwrap();
    seen();
    assert_eq!(wide_integer(black_box(7), black_box(9)), (7 << 64) + 9);
    assert_eq!(in_memory(black_box(40)), Wide([40, 41, 42, 43, 44, 45]));
    drop((integer, memory));
    assert_eq!(seen(), [9, 7, 40, 41, 42, 43, 44, 45]);
}

fn remember_argument(call: &mut KretprobeInstance<u64>, regs: &mut PtRegs) -> EntryVerdict {
    assert_eq!(**call, 0, "each call starts with the default");
    **call = regs.di;
    EntryVerdict::Track
}

fn see_argument(call: &mut KretprobeInstance<u64>, _regs: &mut PtRegs) {
    see(**call);
}

/// Fifty calls of one function in flight at once each come back with their own data, deepest first.
#[guest_test]
fn recursion_50_deep_returns_through_its_own_instances() {
    let expected = factorial_of(black_box(50));
    let probe = register(Box::new(
        Kretprobe::new()
            .symbol("factorial_of")
            .maxactive(51)
            .entry(remember_argument)
            .handler(see_argument),
    ))
    .unwrap();
    seen();
    assert_eq!(factorial_of(black_box(50)), expected);
    let missed = probe.nmissed();
    drop(probe);
    assert_eq!(missed, 0);
    assert_eq!(seen(), (0..=50).collect::<Vec<u64>>());
}

/// Deeper than there are instances: the outer calls are followed, the inner ones counted.
#[guest_test]
fn recursion_deeper_than_maxactive_counts_what_it_misses() {
    let probe = register(Box::new(
        Kretprobe::new()
            .symbol("factorial_of")
            .maxactive(5)
            .entry(remember_argument)
            .handler(see_argument),
    ))
    .unwrap();
    seen();
    for _ in 0..3 {
        factorial_of(black_box(20));
        assert_eq!(seen(), [16, 17, 18, 19, 20]);
    }
    assert_eq!(probe.nmissed(), 3 * 16);
    assert_eq!(probe.hits(), 3 * 5);
    drop(probe);
}

fn see_entry_first(_call: &mut KretprobeInstance<()>, _regs: &mut PtRegs) -> EntryVerdict {
    see(1);
    EntryVerdict::Track
}

fn see_entry_second(_call: &mut KretprobeInstance<()>, _regs: &mut PtRegs) -> EntryVerdict {
    see(2);
    EntryVerdict::Track
}

fn see_return_first(call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    assert_eq!(call.ret_addr(), regs.ip);
    see(10);
}

fn see_return_second(call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    assert_eq!(call.ret_addr(), regs.ip);
    see(20);
}

/// Two return probes on one function: entries newest first, returns oldest first, both with the
/// true return address.
#[guest_test]
fn two_return_probes_on_one_function_both_run() {
    let first = register(Box::new(
        Kretprobe::new()
            .symbol("args_2")
            .entry(see_entry_first)
            .handler(see_return_first),
    ))
    .unwrap();
    let second = register(Box::new(
        Kretprobe::new()
            .symbol("args_2")
            .entry(see_entry_second)
            .handler(see_return_second),
    ))
    .unwrap();
    seen();
    assert_eq!(call(2), 100 + 11 + 44);
    drop((first, second));
    assert_eq!(seen(), [2, 1, 10, 20]);
}

/// The word in the return slot at the function's entry.
static SLOT: AtomicU64 = AtomicU64::new(0);

fn see_slot(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    // SAFETY: the return address at a function's entry.
    see(unsafe { (regs.sp as *const u64).read() });
    PreVerdict::Execute
}

/// Notes whether the call is still in the ledger of borrowed return addresses, and whether a walk
/// from here leads to its caller.
fn see_ledger(call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    SLOT.store(regs.sp - 8, Ordering::Relaxed);
    let borrowed = borrowed_return_address(percpu::current_raw().addr() as u64, regs.sp - 8);
    see(u64::from(borrowed == Some(call.ret_addr())));
    let caller = |walk: backtrace::Walk| {
        walk.into_iter().any(|frame| {
            symbols::lookup_addr(frame.code_address()).is_some_and(|symbol| symbol.name == "middle")
        })
    };
    see(u64::from(caller(backtrace::walk(regs))));
    see(u64::from(caller(backtrace::walk_current())));
}

/// A kprobe at the entry that is younger than the return probe runs before it, and finds the
/// caller in the return slot; an older one runs after it, and finds the trampoline.
#[guest_test]
fn whether_the_return_slot_shows_the_trampoline_depends_on_the_age() {
    let kprobe = || register(Box::new(Kprobe::new().symbol("innermost").pre(see_slot))).unwrap();
    let older = kprobe();
    let call = register(Box::new(
        Kretprobe::<()>::new()
            .symbol("innermost")
            .handler(see_result),
    ))
    .unwrap();
    let younger = kprobe();
    seen();
    assert_eq!(middle(black_box(5)), 615);
    let seen = seen();
    let caller = symbols::lookup_addr(seen[0]).map(|symbol| symbol.name);
    assert_eq!((caller, seen[2]), (Some("middle"), 605), "{seen:x?}");
    assert_eq!(
        symbols::lookup_addr(seen[1]).map(|symbol| symbol.name),
        Some("kretprobe_trampoline"),
        "{seen:x?}"
    );
    drop((younger, call, older));
}

/// Two return probes on one call: while the handler of either runs, the call is in the ledger
/// and walks find its caller; then it is not any more.
#[guest_test]
fn a_call_leaves_the_ledger_when_all_its_handlers_have_run() {
    for count in [1, 2, 3] {
        let probes: Vec<_> = (0..count)
            .map(|_| {
                register(Box::new(
                    Kretprobe::<()>::new()
                        .symbol("innermost")
                        .handler(see_ledger),
                ))
                .unwrap()
            })
            .collect();
        seen();
        assert_eq!(middle(black_box(5)), 615);
        assert_eq!(
            seen(),
            vec![1; 3 * count],
            "{count} probes: ledger, walk from the registers, walk from the handler"
        );
        let task = percpu::current_raw().addr() as u64;
        assert_eq!(
            borrowed_return_address(task, SLOT.load(Ordering::Relaxed)),
            None
        );
        drop(probes);
    }
}

/// Return probes along a call chain come back in the order of the returns.
#[guest_test]
fn return_probes_nest_along_a_call_chain() {
    let probes = ["outermost", "middle", "innermost"]
        .map(|name| register(Box::new(Kretprobe::new().symbol(name).handler(see_result))).unwrap());
    seen();
    assert_eq!(outermost(black_box(5)), 616);
    drop(probes);
    assert_eq!(seen(), [605, 615, 616]);
}

/// Calls `left_or_returning`, `below` bytes deeper than where this was entered, an odd number of
/// words; returns what that does, or 5 if it was left by a jump.
#[unsafe(naked)]
extern "C" fn call_below(leave: u64, below: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov r8, rsp",
        ".cfi_def_cfa_register r8",
        "lea r9, [rip + 2f]",
        "sub rsp, rsi",
        "call left_or_returning",
        "mov rsp, r8",
        ".cfi_remember_state",
        ".cfi_def_cfa_register rsp",
        "ret",
        ".cfi_restore_state",
        ".cfi_def_cfa r8, 8",
        "2: mov eax, 5",
        "mov rsp, r8",
        ".cfi_def_cfa_register rsp",
        "ret",
        ".cfi_endproc",
    )
}

/// Returns 6, or goes on at r9 if `leave` is not 0. By `ret`, because code that jumps anywhere has
/// no probe with a jump.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn left_or_returning(leave: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "mov eax, 6",
        "test rdi, rdi",
        "jz 2f",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "ret",
        ".cfi_adjust_cfa_offset -8",
        "2: ret",
        ".cfi_endproc",
    )
}

/// Ends in another function, whose return is its own.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn ends_in_another(n: u64) -> u64 {
    naked_asm!(".cfi_startproc", "lea rdi, [rdi + 8]", "nop", "jmp {}", ".cfi_endproc", sym another)
}

#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn another(n: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "lea rax, [rdi + 800]",
        "ret",
        ".cfi_endproc"
    )
}

/// A call that is left by a jump never returns. Its instance goes back when the next call uses the
/// same stack or more of it, and only that call's return is seen.
#[guest_test]
fn calls_that_never_return_cost_no_instance() {
    fn enter(_: &mut KretprobeInstance<()>, _: &mut PtRegs) -> EntryVerdict {
        EntryVerdict::Track
    }
    let plain = || Kretprobe::<()>::new().handler(see_result);
    for (probe, jumps) in [
        (plain(), false),
        (plain(), true),
        (plain().entry(enter), false),
        (plain().entry(enter), true),
    ] {
        let _knob = Optimization::set(jumps);
        calls_are_left(probe, jumps);
    }
}

fn calls_are_left(probe: Kretprobe<()>, jumps: bool) {
    let probe = probe.symbol("left_or_returning").maxactive(64);
    let probe = register(Box::new(probe)).unwrap();
    let entry = symbols::lookup_name("left_or_returning").unwrap().start;
    assert_eq!(byte_at(entry) == 0xe9, jumps, "a jump");
    for (abandoned, returning) in [(8, 8), (72, 8)] {
        seen();
        let (hits, stale) = (probe.hits(), PROBES.stale_instances());
        for _ in 0..20 {
            assert_eq!(call_below(black_box(1), abandoned), 5);
            assert_eq!(call_below(black_box(1), abandoned), 5);
            assert_eq!(call_below(black_box(0), returning), 6);
        }
        assert_eq!(seen(), [6; 20]);
        assert_eq!((probe.hits() - hits, probe.nmissed()), (20, 0));
        assert_eq!(PROBES.stale_instances() - stale, 40);
    }
    drop(probe);
    assert_eq!(PROBES.reap(), Ok(0), "no call is in flight");
}

/// A function that ends in another one: both returns are one, and both handlers run there.
#[guest_test]
fn a_tail_call_returns_from_both_functions_at_once() {
    let probes = ["ends_in_another", "another"].map(|name| {
        register(Box::new(
            Kretprobe::<()>::new()
                .symbol(name)
                .maxactive(4)
                .handler(see_result),
        ))
        .unwrap()
    });
    for _ in 0..20 {
        seen();
        assert_eq!(ends_in_another(black_box(1)), 809);
        assert_eq!(another(black_box(1)), 801);
        assert_eq!(seen(), [809, 809, 801]);
    }
    assert_eq!(
        probes
            .each_ref()
            .map(|probe| (probe.hits(), probe.nmissed())),
        [(20, 0), (40, 0)]
    );
    drop(probes);
}

/// A handler that calls the probed function: that call is missed, and no instance is taken for it.
#[guest_test]
fn a_call_from_a_handler_is_missed() {
    fn calls(_probe: &Kprobe, _regs: &mut PtRegs) -> PreVerdict {
        see(another(black_box(2)));
        PreVerdict::Execute
    }
    let call = register(Box::new(
        Kretprobe::<()>::new()
            .symbol("another")
            .maxactive(1)
            .handler(see_result),
    ))
    .unwrap();
    let kprobe = register(Box::new(Kprobe::new().symbol("innermost").pre(calls))).unwrap();
    seen();
    assert_eq!(innermost(black_box(1)), 601);
    assert_eq!(seen(), [802]);
    assert_eq!(
        (call.hits(), call.nmissed(), call.kprobe().nmissed()),
        (0, 0, 1)
    );
    drop((kprobe, call));
}

fn replace_result(_call: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    regs.set_return_value(4242);
}

fn replace_argument(_probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    regs.di = 1000;
    PreVerdict::Execute
}

/// Handlers may change arguments and results.
#[guest_test]
fn changed_arguments_and_results_take_effect() {
    let argument = register(Box::new(
        Kprobe::new().symbol("args_1").pre(replace_argument),
    ))
    .unwrap();
    assert_eq!(call(1), 1100);
    drop(argument);
    let result = register(Box::new(
        Kretprobe::new().symbol("args_1").handler(replace_result),
    ))
    .unwrap();
    assert_eq!(call(1), 4242);
    drop(result);
    assert_eq!(call(1), 111);
}
