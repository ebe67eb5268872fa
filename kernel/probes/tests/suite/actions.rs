//! Actions: code in place of handlers, in the form that fits the way of each hit.
//!
//! The forms here are assembly that counts its runs, and spoils all that its contract lets it
//! spoil. So a stub or a detour that relied on more is found out by the probed code's registers and
//! flags.

use core::{
    arch::naked_asm,
    mem::offset_of,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use probes::{
    Action, CallAction, EntryVerdict, Kprobe, Kretprobe, Platform, PreVerdict, Probes, PtRegs,
    action::{
        ADDRESS_IN_PROBE, EntryFrame, EntryRoutine, JumpRoutine, RETURN_ADDRESS_IN_INSTANCE,
        WORDS_IN_INSTANCE,
    },
    kprobe::PreHandler,
};

use super::{
    code::{Bench, Code, End, Registers},
    flags::{PLAIN, STATUS},
    targets::*,
    *,
};

/// How often each form ran.
static JUMPS: AtomicU64 = AtomicU64::new(0);
static JUMPS_KEEPING_FLAGS: AtomicU64 = AtomicU64::new(0);
static BREAKPOINTS: AtomicU64 = AtomicU64::new(0);
static HANDLERS: AtomicU64 = AtomicU64::new(0);
/// The probed address, as the last run of any form found it.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Runs where no code reads the flags, and changes all of them.
#[unsafe(naked)]
extern "C" fn jump() {
    naked_asm!(
        "push rax",
        "mov rax, [rsp + 8]",
        "mov rax, [rax - 13]",
        "mov [rip + {seen}], rax",
        "inc qword ptr [rip + {count}]",
        "cmc",
        "pop rax",
        "ret",
        seen = sym SEEN,
        count = sym JUMPS,
    )
}

#[unsafe(naked)]
extern "C" fn jump_keeping_flags() {
    naked_asm!(
        "push rax",
        "pushfq",
        "mov rax, [rsp + 16]",
        "mov rax, [rax - 13]",
        "mov [rip + {seen}], rax",
        "inc qword ptr [rip + {count}]",
        "popfq",
        "pop rax",
        "ret",
        seen = sym SEEN,
        count = sym JUMPS_KEEPING_FLAGS,
    )
}

/// Takes the ip from the frame and spoils all registers that it may.
#[unsafe(naked)]
extern "C" fn breakpoint() {
    naked_asm!(
        "mov rax, [rsp + {ip}]",
        "dec rax",
        "mov [rip + {seen}], rax",
        "inc qword ptr [rip + {count}]",
        "mov rcx, -1",
        "mov rdx, rcx",
        "mov rsi, rcx",
        "mov rdi, rcx",
        "ret",
        ip = const offset_of!(probes::action::BreakpointFrame, ip),
        seen = sym SEEN,
        count = sym BREAKPOINTS,
    )
}

extern "C" fn handler(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    SEEN.store(regs.ip - 1, Relaxed);
    HANDLERS.fetch_add(1, Relaxed);
    PreVerdict::Execute
}

/// An action that counts how it was reached.
fn action() -> &'static Action {
    Box::leak(Box::new(Action {
        jump: jump as *const () as u64,
        jump_keeping_flags: jump_keeping_flags as *const () as u64,
        breakpoint: breakpoint as *const () as u64,
        handler: handler as PreHandler,
    }))
}

/// How often a form for jumps ran.
fn runs_by_jump() -> u64 {
    JUMPS.load(Relaxed) + JUMPS_KEEPING_FLAGS.load(Relaxed)
}

/// How often any form ran since the last question.
fn runs() -> u64 {
    [&JUMPS, &JUMPS_KEEPING_FLAGS, &BREAKPOINTS, &HANDLERS]
        .map(|count| count.swap(0, Relaxed))
        .iter()
        .sum()
}

/// A probe that carries the action.
fn probe_at(addr: u64) -> &'static Kprobe {
    // SAFETY: the action lives for ever, and its code is that of this file.
    leak(unsafe { Kprobe::new().at(addr).action(action()) })
}

#[test]
fn an_action_runs_once_a_hit_and_leaves_everything_as_it_was() {
    let _machine = boot();
    // add rax, rbx, which writes all flags; adc rcx, rdx, which reads one. In both orders.
    let (add, adc) = ([0x48, 0x01, 0xd8], [0x48, 0x11, 0xd1]);
    let mut bench = Bench::new();
    for (first, second, behind) in [(add, adc, 0), (add, adc, 3), (adc, add, 0), (adc, add, 3)] {
        let code = Code::with_exit(&[first, second].concat());
        // After the entry nothing asks whether they are read.
        let flags_are_dead = first == add && behind == 0;
        let probe = probe_at(code.start + behind);
        for flags in [PLAIN, PLAIN | STATUS] {
            let mut registers = Registers::default();
            for n in 0..16 {
                registers.set(n, 0xf111_0000_0000_0000 + n as u64);
            }
            registers.sp = bench.sp();
            registers.flags = flags;
            let bare = bench.run(code.start, registers);
            PROBES.register(probe).unwrap();
            runs();
            let probed = bench.run(code.start, registers);
            let has_jump = probe.flags() & OPTIMIZED != 0;
            assert_eq!(runs_by_jump(), u64::from(has_jump));
            assert_eq!(JUMPS.load(Relaxed), u64::from(has_jump && flags_are_dead));
            PROBES.unregister(probe).unwrap();
            assert_eq!(probed.end, End::Exit(1));
            assert_eq!(probed.registers, bare.registers);
            assert_eq!(runs(), 1);
            assert_eq!(SEEN.load(Relaxed), code.start + behind);
            assert_eq!(probe.hits(), 0, "an action counts for itself");
        }
    }
}

#[test]
fn an_action_beside_other_probes_is_a_handler() {
    let _machine = boot();
    let addr = address("add");
    let probe = probe_at(addr);
    let other = leak(Kprobe::new().at(addr).pre(pre::<1>));
    PROBES.register(probe).unwrap();
    runs();
    assert_eq!(add(1, 2), 3);
    assert_eq!(runs_by_jump(), u64::from(probe.flags() & OPTIMIZED != 0));
    assert_eq!(runs(), 1);
    PROBES.register(other).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(HANDLERS.load(Relaxed), 1);
    assert_eq!(runs(), 1);
    assert_eq!(other.hits(), 1);
    PROBES.unregister(other).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(runs(), 1);
    PROBES.disable(probe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(runs(), 0);
    PROBES.enable(probe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(runs(), 1);
    PROBES.unregister(probe).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!(runs(), 0);
    // The same if it is the newest of them.
    PROBES.register_batch(&[other, probe]).unwrap();
    assert_eq!(add(1, 2), 3);
    assert_eq!((other.hits(), HANDLERS.load(Relaxed), runs()), (1, 1, 1));
    PROBES.unregister_batch(&[other, probe]).unwrap();
}

/// The call's instance, as the entry got it.
static INSTANCE: AtomicU64 = AtomicU64::new(0);

/// The words that the entry and the return of a call share.
fn words(instance: *mut ()) -> *mut u64 {
    instance.wrapping_byte_add(WORDS_IN_INSTANCE).cast()
}

/// The function whose call is handled.
fn function_of<P: Platform>(_: &Probes<P>) -> u64 {
    CallAction::function::<P>()
}

/// How often each form of an entry ran.
static FRAMED_ENTRIES: AtomicU64 = AtomicU64::new(0);
static ENTRIES_BY_JUMP: AtomicU64 = AtomicU64::new(0);

/// The entry notes the first argument, the return adds the result.
extern "C" fn note_argument(instance: *mut (), regs: &mut PtRegs) -> EntryVerdict {
    FRAMED_ENTRIES.fetch_add(1, Relaxed);
    SEEN.store(function_of(&PROBES), Relaxed);
    INSTANCE.store(instance.addr() as u64, Relaxed);
    // SAFETY: the action has two words.
    unsafe { words(instance).write(regs.di) };
    match regs.di {
        7 => EntryVerdict::Decline,
        _ => EntryVerdict::Track,
    }
}

/// The same by a jump. It spoils all registers that it may.
#[unsafe(naked)]
extern "C" fn note_argument_by_jump() {
    naked_asm!(
        "inc qword ptr [rip + {count}]",
        "mov rdx, [rsp + {instance}]",
        // Both are the instance.
        "sub rax, rdx",
        "add rdx, rax",
        "mov rax, [rsi + {address}]",
        "mov [rip + {seen}], rax",
        "mov [rip + {noted}], rdx",
        "mov rax, [rsp + {di}]",
        "mov [rdx + {words}], rax",
        "mov rcx, -1",
        "mov rdx, rcx",
        "mov rsi, rcx",
        "mov rdi, rcx",
        "cmp rax, 7",
        "sete al",
        "ret",
        address = const ADDRESS_IN_PROBE,
        instance = const offset_of!(EntryFrame, instance),
        di = const offset_of!(EntryFrame, di),
        words = const WORDS_IN_INSTANCE,
        count = sym ENTRIES_BY_JUMP,
        seen = sym SEEN,
        noted = sym INSTANCE,
    )
}

static SUM: AtomicU64 = AtomicU64::new(0);
static CAME_FROM: AtomicU64 = AtomicU64::new(0);

extern "C" fn add_result(instance: *mut (), regs: &mut PtRegs) {
    assert_eq!(SEEN.load(Relaxed), function_of(&PROBES));
    assert_eq!(INSTANCE.load(Relaxed), instance.addr() as u64);
    // SAFETY: in the instance, which is in hand.
    let ret_addr = unsafe {
        instance
            .byte_add(RETURN_ADDRESS_IN_INSTANCE)
            .cast::<u64>()
            .read()
    };
    CAME_FROM.store(ret_addr, Relaxed);
    // SAFETY: the action has two words.
    SUM.store(unsafe { words(instance).read() } * 1000 + regs.ax, Relaxed);
}

/// As [`add_result`], for a return of a call that a jump has followed. It changes what it may.
#[unsafe(naked)]
unsafe extern "C" fn add_result_by_jump() {
    naked_asm!(
        "mov rdx, [rsp + {instance}]",
        "mov [rip + {noted}], rdx",
        "mov rax, [rsi + {address}]",
        "mov [rip + {seen}], rax",
        "mov rax, [rdx + {ret_addr}]",
        "mov [rip + {came_from}], rax",
        "imul rax, [rdx + {words}], 1000",
        "add rax, [rsp + {ax}]",
        "mov [rip + {sum}], rax",
        "inc qword ptr [rip + {count}]",
        "mov rax, -1",
        "mov rcx, rax",
        "mov rdx, rax",
        "mov rsi, rax",
        "mov rdi, rax",
        "ret",
        address = const ADDRESS_IN_PROBE,
        instance = const offset_of!(EntryFrame, instance),
        ax = const offset_of!(EntryFrame, ax),
        ret_addr = const RETURN_ADDRESS_IN_INSTANCE,
        words = const WORDS_IN_INSTANCE,
        count = sym RETURNS_BY_JUMP,
        seen = sym SEEN,
        noted = sym INSTANCE,
        came_from = sym CAME_FROM,
        sum = sym SUM,
    )
}

/// How often [`add_result_by_jump`] ran.
static RETURNS_BY_JUMP: AtomicU64 = AtomicU64::new(0);

/// A return probe on `step_by_step`, which reads no flags, with an action of these forms.
fn call_probe(entry: Option<EntryRoutine>, jump_entry: Option<JumpRoutine>) -> &'static Kretprobe {
    // SAFETY: the code is that of this file, and uses its two words only.
    leak(unsafe {
        Kretprobe::new()
            .at(address("step_by_step"))
            .action(CallAction {
                entry,
                jump_entry,
                on_return: add_result,
                jump_return: Some(add_result_by_jump),
                shared_words: 2,
            })
    })
}

/// Calls the function and says which form of the entry ran: with a frame, or by a jump.
fn forms_of_a_call(a: u64) -> (u64, u64) {
    assert_eq!(step_by_step(a), a * 3 + 1);
    (
        FRAMED_ENTRIES.swap(0, Relaxed),
        ENTRIES_BY_JUMP.swap(0, Relaxed),
    )
}

#[test]
fn entry_and_return_of_an_action_share_words() {
    let _machine = boot();
    for jump_entry in [None, Some(note_argument_by_jump as JumpRoutine)] {
        let probe = call_probe(Some(note_argument), jump_entry);
        PROBES.register(probe).unwrap();
        let is_optimized = probe.kprobe().flags() & OPTIMIZED != 0;
        let has_jump = jump_entry.is_some() && is_optimized;
        // A detour for one return probe with a frame has an address of 32 bits in it.
        let has_own_detour = has_jump || i32::try_from(probe.addr() as i64).is_ok();
        let forms = (u64::from(!has_jump), u64::from(has_jump));
        for a in [5, 1] {
            assert_eq!(forms_of_a_call(a), forms);
            let returns_by_jump = RETURNS_BY_JUMP.swap(0, Relaxed);
            assert_eq!(returns_by_jump, u64::from(is_optimized && has_own_detour));
            assert_eq!(SUM.swap(0, Relaxed), a * 1000 + a * 3 + 1);
            assert_eq!(SEEN.load(Relaxed), address("step_by_step"));
            assert_ne!(CAME_FROM.swap(0, Relaxed), 0);
        }
        // The entry declines this call.
        assert_eq!(forms_of_a_call(7), forms);
        assert_eq!(SUM.load(Relaxed), 0);
        assert_eq!(probe.hits(), 2);
        PROBES.unregister(probe).unwrap();
    }
}

#[test]
fn the_entry_of_an_action_beside_other_probes_gets_a_frame() {
    let _machine = boot();
    let probe = call_probe(Some(note_argument), Some(note_argument_by_jump));
    let other = leak(Kprobe::new().at(address("step_by_step")).pre(pre::<1>));
    PROBES.register(probe).unwrap();
    PROBES.register(other).unwrap();
    RETURNS_BY_JUMP.store(0, Relaxed);
    assert_eq!(forms_of_a_call(5), (1, 0));
    assert_eq!(SUM.swap(0, Relaxed), 5 * 1000 + 16);
    assert_eq!(
        RETURNS_BY_JUMP.load(Relaxed),
        0,
        "as the entry, so the return"
    );
    PROBES.unregister(other).unwrap();
    let has_jump = probe.kprobe().flags() & OPTIMIZED != 0;
    assert_eq!(
        forms_of_a_call(5),
        (u64::from(!has_jump), u64::from(has_jump))
    );
    assert_eq!(SUM.swap(0, Relaxed), 5 * 1000 + 16);
    PROBES.unregister(probe).unwrap();
}

/// The return adds what the entry noted: nothing.
extern "C" fn add_words(instance: *mut (), regs: &mut PtRegs) {
    // SAFETY: the action has two words.
    let noted = unsafe { words(instance).read() + words(instance).add(1).read() };
    SUM.store(noted * 1000 + regs.ax, Relaxed);
    // SAFETY: as above. The next call gets the same instance.
    unsafe { words(instance).write(9) };
}

#[test]
fn words_are_zero_if_there_is_no_entry() {
    let _machine = boot();
    // SAFETY: the code is that of this file, and uses its two words only.
    let probe = leak(unsafe {
        Kretprobe::new()
            .at(address("step_by_step"))
            .maxactive(1)
            .action(CallAction {
                entry: None,
                jump_entry: Some(note_argument_by_jump),
                on_return: add_words,
                jump_return: None,
                shared_words: 2,
            })
    });
    PROBES.register(probe).unwrap();
    for _ in 0..2 {
        assert_eq!(
            forms_of_a_call(5),
            (0, 0),
            "without an entry there is none by a jump"
        );
        assert_eq!(SUM.swap(0, Relaxed), 16);
    }
    PROBES.unregister(probe).unwrap();
}
