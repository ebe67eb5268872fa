//! An NMI between any two instructions by which a hit of a watchpoint is served: in the stubs, in
//! handlers and routines, and in Rust.
//!
//! Each case steps through one store to a watched word. At each step NMIs come whose handler stores
//! to the word, too, hits a probe and reads memory that is not there. While the debug registers of
//! the CPU are in action such a store is a hit or a miss, and else it is neither. The counts are
//! exact, and so are the values that handlers are told. Stack walks lead through each step to the
//! caller. In the end each instruction of the stub has been interrupted.

use crate::{
    interruptions::{
        between_instructions::{forget_visits, is_wanted},
        disturbed_hits::UNMAPPED,
    },
    tools::stepping::step_through_touch,
};
use ::probes::watchpoint::WatchpointFrame;
use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::{
    arch::naked_asm,
    hint::{self, black_box},
    mem::offset_of,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use iced_x86::{Decoder, DecoderOptions};
use kernel::{
    arch::{percpu, smp, traps},
    backtrace,
    errno::Errno,
    mm::uaccess::copy_from_user_nofault,
    pr_info,
    probes::{
        Kprobe, PreVerdict, PtRegs, RegisteredWatchpoint, Touched, WATCHPOINTS, Watchpoint,
        register,
    },
    symbols,
};
use x86_64::registers::debug::Dr7;

/// The word, and one that is watched in place of it for a hit of two watchpoints.
#[repr(C, align(16))]
struct Words([AtomicU64; 2]);

static WORDS: Words = Words([const { AtomicU64::new(0) }; 2]);

fn word() -> u64 {
    WORDS.0[0].as_ptr() as u64
}

/// Stores a number, and returns the next one.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn touching_store(to: u64, number: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "lea rax, [rsi + 1]",
        "mov [rdi], rsi",
        ".globl touching_store_next",
        "touching_store_next:",
        "ret",
        ".cfi_endproc",
    )
}

unsafe extern "C" {
    static touching_store_next: u8;
}

/// The number that is stored by the stepped call. NMIs store smaller ones.
const NUMBER: u64 = 0x77_0000_7177;

/// The call that is stepped through.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn touching_caller() {
    RESULT.store(touching_store(word(), black_box(NUMBER)), SeqCst);
}

static RESULT: AtomicU64 = AtomicU64::new(0);
/// The stack pointer at the first instruction of the caller; 0 before it.
static CALLER_SP: AtomicU64 = AtomicU64::new(0);
/// NMIs, and their calls that came to their right end.
static NMIS: AtomicU64 = AtomicU64::new(0);
static RIGHT: AtomicU64 = AtomicU64::new(0);
/// Stores of NMIs while this CPU watched: with the guard free, and with it held.
static SEEN_FREE: AtomicU64 = AtomicU64::new(0);
static SEEN_BUSY: AtomicU64 = AtomicU64::new(0);
/// Steps whose walk did not lead to the caller, and the address of the last one.
static LOST: AtomicU64 = AtomicU64::new(0);
static LOST_AT: AtomicU64 = AtomicU64::new(0);
/// Calls of the handler or the routine, and those that were told what is not so.
static TOLD: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
/// NMIs store.
static STORES: AtomicBool = AtomicBool::new(true);

/// Whether an NMI came in front of the instruction at that place of the stub.
static INTERRUPTED: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];
static STUB: AtomicU64 = AtomicU64::new(0);

fn interrupt(regs: &PtRegs) {
    let caller = touching_caller as *const () as u64;
    if CALLER_SP.load(Relaxed) == 0 && regs.ip == caller {
        CALLER_SP.store(regs.sp, Relaxed);
    }
    let mut walk = backtrace::walk_interrupted(regs);
    if regs.sp > CALLER_SP.load(Relaxed) {
        // It leads somewhere and ends.
        walk.for_each(drop);
    } else {
        let is_caller = |code| symbols::lookup_addr(code).is_some_and(|at| at.start == caller);
        if !walk.any(|frame| is_caller(frame.code_address())) {
            LOST.fetch_add(1, Relaxed);
            LOST_AT.store(regs.ip, Relaxed);
        }
    }
    if !is_wanted(regs.ip) {
        return;
    }
    let offset = regs.ip.wrapping_sub(STUB.load(Relaxed)) as usize;
    if let Some(place) = INTERRUPTED.get(offset) {
        place.store(true, Relaxed);
    }
    let before = NMIS.load(SeqCst);
    smp::send_nmi(percpu::cpu_id());
    while NMIS.load(SeqCst) == before {
        hint::spin_loop();
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn touched_in_nmi(a: u64) -> u64 {
    black_box(a + 31)
}

fn in_nmi(_: &PtRegs) {
    let is_watching = Dr7::read_raw() & 0xff != 0;
    let is_busy = percpu::in_probe_handler();
    let mut is_right = touched_in_nmi(black_box(1)) == 32
        && copy_from_user_nofault(&mut [0; 8], UNMAPPED) == Err(Errno::EFAULT);
    if STORES.load(Relaxed) {
        let number = NMIS.load(Relaxed) + 1;
        is_right &= touching_store(word(), black_box(number)) == number + 1;
        if is_watching {
            let seen = if is_busy { &SEEN_BUSY } else { &SEEN_FREE };
            seen.fetch_add(1, SeqCst);
        }
    }
    RIGHT.fetch_add(is_right.into(), SeqCst);
    NMIS.fetch_add(1, SeqCst);
}

/// What a handler and a routine are told.
extern "C" fn check(ip: u64, addr: u64, new: u64) {
    TOLD.fetch_add(1, SeqCst);
    let next = (&raw const touching_store_next).addr() as u64;
    // An NMI on top of the hit may have stored since.
    let is_stored = new == NUMBER || new <= NMIS.load(SeqCst) + 1;
    let is_right = ip == next && addr == word() && is_stored;
    WRONG.fetch_add((!is_right).into(), SeqCst);
}

fn on_touch(_: &Watchpoint, regs: &mut PtRegs, touched: &Touched) {
    assert_eq!(regs.ip, touched.ip);
    check(touched.ip, touched.addr, touched.new);
}

/// The same as a routine. It changes all registers that it may.
#[unsafe(naked)]
extern "C" fn routine() {
    naked_asm!(
        ".cfi_startproc",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "push r10",
        ".cfi_adjust_cfa_offset 8",
        "push r11",
        ".cfi_adjust_cfa_offset 8",
        "cld",
        "mov rdi, [rsp + 32 + {ip}]",
        "lea rsi, [rip + {words}]",
        "mov rdx, [rsp + 32 + {new}]",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {check}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop r11",
        ".cfi_adjust_cfa_offset -8",
        "pop r10",
        ".cfi_adjust_cfa_offset -8",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "mov rax, -1",
        "mov rcx, rax",
        "mov rdx, rax",
        "mov rsi, rax",
        "mov rdi, rax",
        "ret",
        ".cfi_endproc",
        ip = const offset_of!(WatchpointFrame, ip),
        new = const offset_of!(WatchpointFrame, new),
        words = sym WORDS,
        check = sym check,
    )
}

/// The instructions of the stub of that name that no NMI came in front of.
fn missed_instructions(name: &str) -> Vec<String> {
    let stub = symbols::functions().find(|symbol| symbol.name == name);
    let stub = stub.expect("the stub is there");
    // SAFETY: text of the kernel.
    let code = unsafe { core::slice::from_raw_parts(stub.start as *const u8, stub.size as usize) };
    let decoder = Decoder::with_ip(64, code, stub.start, DecoderOptions::NONE);
    let mut missed = Vec::new();
    for instruction in decoder {
        let offset = (instruction.ip() - stub.start) as usize;
        if !INTERRUPTED[offset].load(SeqCst) {
            missed.push(format!("{name}+{offset:#x}"));
        }
    }
    missed
}

/// Whose hits are in the books of a case.
#[derive(Clone, Copy, PartialEq)]
enum Books {
    /// Hits that find the guard free; the others are missed.
    Guarded,
    /// All.
    All,
}

/// Steps through the store with `watchpoint`, and `routine` in place of its handler if that is
/// given.
#[track_caller]
fn case(
    stub: &str,
    watchpoint: Watchpoint,
    routine: Option<u64>,
    books: Books,
    is_told: bool,
) -> RegisteredWatchpoint {
    for counter in [
        &RESULT, &CALLER_SP, &NMIS, &RIGHT, &SEEN_FREE, &SEEN_BUSY, &LOST, &TOLD, &WRONG,
    ] {
        counter.store(0, SeqCst);
    }
    INTERRUPTED
        .iter()
        .for_each(|place| place.store(false, SeqCst));
    forget_visits();
    let start = symbols::functions().find(|symbol| symbol.name == stub);
    STUB.store(start.map_or(0, |symbol| symbol.start), SeqCst);
    WORDS.0[0].store(0, SeqCst);
    let watched = WATCHPOINTS.register_owned(Box::new(watchpoint)).unwrap();
    // SAFETY: a function of the kernel, which does as such a routine does.
    unsafe { WATCHPOINTS.set_routine(&watched, routine) }.unwrap();
    let in_nmis = register(Box::new(
        Kprobe::new()
            .symbol("touched_in_nmi")
            .pre(|_: &Kprobe, _: &mut PtRegs| PreVerdict::Execute)
            .post(|_: &Kprobe, _: &mut PtRegs, _: u64| {}),
    ))
    .unwrap();
    traps::set_nmi_handler(Some(in_nmi));
    let next = (&raw const touching_store_next).addr() as u64;
    step_through_touch(touching_caller, interrupt, next);
    traps::set_nmi_handler(None);
    let nmis = NMIS.load(SeqCst);
    let (free, busy) = (SEEN_FREE.load(SeqCst), SEEN_BUSY.load(SeqCst));
    pr_info!("{stub}: {nmis} NMIs, {free} and {busy} of them were seen");
    assert_eq!(RESULT.load(SeqCst), NUMBER + 1);
    assert_eq!(RIGHT.load(SeqCst), nmis);
    assert_eq!(in_nmis.hits() + in_nmis.nmissed(), nmis);
    let expected = match books {
        Books::Guarded => (1 + free, busy),
        Books::All => (1 + free + busy, 0),
    };
    assert_eq!((watched.hits(), watched.nmissed()), expected, "{stub}");
    if is_told {
        assert_eq!(TOLD.load(SeqCst), expected.0, "{stub}");
    }
    assert_eq!(WRONG.load(SeqCst), 0, "{stub}");
    let (lost, at) = (LOST.load(Relaxed), LOST_AT.load(Relaxed));
    let at = symbols::Address::of_instruction(at);
    assert_eq!(
        lost, 0,
        "{stub}: walks lost their way, the last one at {at}"
    );
    assert!(!percpu::in_probe_handler());
    // It watches as before.
    assert_eq!(touching_store(word(), 1), 2);
    assert_eq!(watched.hits(), expected.0 + 1);
    watched
}

#[guest_test(timeout = 40)]
fn an_nmi_anywhere_in_a_hit_is_seen_or_not() {
    let watch = || Watchpoint::new().at(word());
    let told = || watch().handler(on_touch);
    let handler = "kprobe_watch_handler_8";
    drop(case(handler, told(), None, Books::Guarded, true));
    let missed = missed_instructions(handler);
    // The way out where the guard is held.
    assert!(missed.len() <= 2, "{missed:?}");
    let count = "kprobe_watch_count";
    drop(case(count, watch(), None, Books::All, false));
    assert_eq!(missed_instructions(count), [""; 0]);
    let by_routine = "kprobe_watch_routine_8";
    let start = routine as *const () as u64;
    drop(case(by_routine, told(), Some(start), Books::All, true));
    assert_eq!(missed_instructions(by_routine), [""; 0]);
    for stub in ["kprobe_debug", "kprobe_watch_any"] {
        drop(case(stub, told().movable(), None, Books::Guarded, true));
        assert_eq!(missed_instructions(stub), [""; 0]);
    }
}
