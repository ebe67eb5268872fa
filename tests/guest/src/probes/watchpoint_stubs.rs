//! The stubs of watchpoints' hits: what they keep, what handlers and routines find, and what they
//! leave to Rust.
//!
//! A function in assembly fills all registers, sets the carry and direction flags, stores to the
//! watched word, and notes what it finds then.

use super::watchpoints::{WATCHED_WORDS, address, note, told, watch, watched_store, word};
use crate::{interruptions::disturbed_hits::UNMAPPED, tools::jumps::Optimization};
use ::probes::watchpoint::WatchpointFrame;
use alloc::boxed::Box;
use core::{
    arch::{asm, global_asm, naked_asm},
    mem::offset_of,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::percpu,
    errno::Errno,
    mm::uaccess::copy_from_user_nofault,
    probes::{
        FaultVerdict, Kprobe, PreVerdict, PtRegs, Touched, WATCHPOINTS, Watchpoint, register,
    },
};
use x86_64::instructions::interrupts::without_interrupts;

/// What the code finds after its store: the registers by number, and the flags.
type Found = [u64; 17];

global_asm!(
    r#"
.pushsection .text.watched_registers, "ax", @progbits
    .globl watched_registers, watched_registers_next
    .type watched_registers, @function
watched_registers:
    .cfi_startproc
    .irp register, rbx, rbp, r12, r13, r14, r15, rsi
    push \register
    .cfi_adjust_cfa_offset 8
    .endr
    .set number, 0
    .irp register, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
    .if number != 4 && number != 7
    movabs \register, {pattern} + number * {pattern}
    .endif
    .set number, number + 1
    .endr
    std
    stc
    mov [rdi], rax
watched_registers_next:
    pushfq
    .cfi_adjust_cfa_offset 8
    .irp register, r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rsp, rbx, rdx, rcx, rax
    push \register
    .cfi_adjust_cfa_offset 8
    .endr
    cld
    mov rdi, [rsp + 8 * 17]
    mov rsi, rsp
    mov ecx, 17
    rep movsq
    add rsp, 8 * 18
    .cfi_adjust_cfa_offset -8 * 18
    .irp register, r15, r14, r13, r12, rbp, rbx
    pop \register
    .cfi_adjust_cfa_offset -8
    .endr
    ret
    .cfi_endproc
    .size watched_registers, . - watched_registers
.popsection
    "#,
    pattern = const PATTERN,
);

const PATTERN: u64 = 0x0101_0101_0101_0101;
const SP: usize = 4;
const DI: usize = 7;
const CARRY: u64 = 1;
const DIRECTION: u64 = 1 << 10;

const fn content(register: usize) -> u64 {
    PATTERN * (register as u64 + 1)
}

unsafe extern "C" {
    fn watched_registers(word: *const u64, found: *mut Found);
    static watched_registers_next: u8;
}

/// How often a handler or a routine was called, and how often it found something else.
static CALLS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

fn next() -> u64 {
    (&raw const watched_registers_next).addr() as u64
}

fn on_touch(watched: &Watchpoint, regs: &mut PtRegs, touched: &Touched) {
    let flags: u64;
    // SAFETY: reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    let found = [
        regs.ax, regs.cx, regs.dx, regs.bx, 0, regs.bp, regs.si, 0, regs.r8, regs.r9, regs.r10,
        regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ];
    let others = |(register, found): (usize, &u64)| {
        register == SP || register == DI || *found == content(register)
    };
    let mask = u64::MAX >> (64 - 8 * u32::from(watched.bytes()));
    let is_right = found.iter().enumerate().all(others)
        && regs.di == address(0)
        && regs.orig_ax == u64::MAX
        && (regs.ip, touched.ip) == (next(), next())
        && regs.flags & (CARRY | DIRECTION) == CARRY | DIRECTION
        && (touched.addr, touched.old) == (address(0), OLD & mask)
        && touched.new == content(0) & mask
        && flags & DIRECTION == 0;
    CALLS.fetch_add(1, SeqCst);
    WRONG.fetch_add((!is_right).into(), SeqCst);
}

/// What the word has before the store.
const OLD: u64 = 0x7172_7374_7576_7778;

/// Compares the frame, and changes all registers that it may.
#[unsafe(naked)]
extern "C" fn routine() {
    naked_asm!(
        ".cfi_startproc",
        "lock inc qword ptr [rip + {calls}]",
        ".macro compare field, expected",
        "movabs rax, \\expected",
        "cmp [rsp + \\field], rax",
        "jne 2f",
        ".endm",
        "compare {ax}, {pattern}",
        "compare {cx}, {pattern} * 2",
        "compare {dx}, {pattern} * 3",
        "compare {si}, {pattern} * 7",
        "compare {orig_ax}, -1",
        "compare {old}, {before}",
        "compare {new}, {pattern}",
        ".purgem compare",
        "lea rax, [rip + watched_registers_next]",
        "cmp [rsp + {ip}], rax",
        "jne 2f",
        "lea rax, [rip + {words}]",
        "cmp [rsp + {di}], rax",
        "je 3f",
        "2: lock inc qword ptr [rip + {wrong}]",
        "3: mov rax, -5",
        "mov rcx, rax",
        "mov rdx, rax",
        "mov rsi, rax",
        "mov rdi, rax",
        "cld",
        "ret",
        ".cfi_endproc",
        pattern = const PATTERN,
        before = const OLD,
        ax = const offset_of!(WatchpointFrame, ax),
        cx = const offset_of!(WatchpointFrame, cx),
        dx = const offset_of!(WatchpointFrame, dx),
        si = const offset_of!(WatchpointFrame, si),
        di = const offset_of!(WatchpointFrame, di),
        orig_ax = const offset_of!(WatchpointFrame, orig_ax),
        ip = const offset_of!(WatchpointFrame, ip),
        old = const offset_of!(WatchpointFrame, old),
        new = const offset_of!(WatchpointFrame, new),
        words = sym WATCHED_WORDS,
        calls = sym CALLS,
        wrong = sym WRONG,
    )
}

/// The store, with what it leaves in the registers held against what it found in them. Returns the
/// traps that it took.
fn store() -> u64 {
    let mut found = [0; 17];
    let traps = without_interrupts(|| {
        let traps = &percpu::this().probes.debug_traps;
        let before = traps.load(SeqCst);
        // SAFETY: it stores to the word, and to `found`.
        unsafe { watched_registers(word(0), &raw mut found) };
        traps.load(SeqCst) - before
    });
    let [registers @ .., flags] = found;
    for (register, found) in registers.into_iter().enumerate() {
        match register {
            SP => {}
            DI => assert_eq!(found, address(0)),
            _ => assert_eq!(found, content(register), "register {register}"),
        }
    }
    assert_eq!(flags & (CARRY | DIRECTION), CARRY | DIRECTION);
    traps
}

/// A watchpoint that has last found the old value.
#[track_caller]
fn ready(watchpoint: Watchpoint) -> kernel::probes::RegisteredWatchpoint {
    WATCHED_WORDS.words[0].store(OLD, SeqCst);
    CALLS.store(0, SeqCst);
    WRONG.store(0, SeqCst);
    watch(watchpoint.at(address(0)))
}

/// The routine, in place of the handler.
fn set_routine(watched: &Watchpoint) {
    let start = routine as *const () as u64;
    // SAFETY: a function of the kernel, which does as such a routine does.
    unsafe { WATCHPOINTS.set_routine(watched, Some(start)) }.unwrap();
}

#[guest_test]
fn registers_and_flags_are_kept_and_told_whatever_serves_the_hit() {
    assert_eq!(store(), 0);
    for len in [1, 2, 4, 8] {
        let watched = ready(Watchpoint::new().len(len).handler(on_touch));
        assert_eq!(store(), 1);
        assert_eq!((watched.hits(), watched.nmissed()), (1, 0), "{len}");
        assert_eq!((CALLS.load(SeqCst), WRONG.load(SeqCst)), (1, 0), "{len}");
        drop(watched);
        let watched = ready(Watchpoint::new().len(len));
        assert_eq!(store(), 1);
        assert_eq!(watched.hits(), 1, "{len}");
        drop(watched);
    }
    let watched = ready(Watchpoint::new().handler(on_touch));
    set_routine(&watched);
    assert_eq!(store(), 1);
    assert_eq!(watched.hits(), 1);
    assert_eq!((CALLS.load(SeqCst), WRONG.load(SeqCst)), (1, 0));
    // SAFETY: none is set.
    unsafe { WATCHPOINTS.set_routine(&watched, None) }.unwrap();
    WATCHED_WORDS.words[0].store(OLD, SeqCst);
    let calls = CALLS.load(SeqCst);
    assert_eq!(store(), 1);
    assert_eq!(CALLS.load(SeqCst), calls + 1);
    drop(watched);
    assert_eq!(store(), 0);
}

/// A displaced instruction's hit has an ip that only Rust makes that of the code.
#[guest_test]
fn a_routine_leaves_displaced_instructions_to_the_handler() {
    let watched = ready(Watchpoint::new().handler(note));
    set_routine(&watched);
    told();
    // SAFETY: it stores to the word.
    let store = |value| unsafe { watched_store(word(0), value) };
    store(1);
    assert_eq!((told().len(), CALLS.load(SeqCst)), (0, 1));
    for optimized in [false, true] {
        let _knob = Optimization::set(optimized);
        let probe = Kprobe::new().symbol("watched_store");
        let probe = probe.pre(|_: &Kprobe, _: &mut PtRegs| PreVerdict::Execute);
        // A jump at the entry covers the store.
        let offset = if optimized { 0 } else { 4 };
        let probe = register(Box::new(probe.offset(offset))).unwrap();
        let calls = CALLS.load(SeqCst);
        store(2);
        assert_eq!((told().len(), CALLS.load(SeqCst)), (1, calls));
        assert_eq!(probe.hits(), 1);
    }
}

static FAULTS: AtomicU64 = AtomicU64::new(0);
static READ: AtomicBool = AtomicBool::new(false);

/// A fault in the handler of a watchpoint is no fault of the probe that ran last.
#[guest_test]
fn a_fault_in_a_handler_is_of_no_probe() {
    fn read(_: &Watchpoint, _: &mut PtRegs, _: &Touched) {
        let result = copy_from_user_nofault(&mut [0; 8], UNMAPPED);
        READ.store(result == Err(Errno::EFAULT), Relaxed);
    }
    fn on_fault(_: &Kprobe, _: &mut PtRegs, _: u8) -> FaultVerdict {
        FAULTS.fetch_add(1, Relaxed);
        FaultVerdict::Unhandled
    }
    let probe = Kprobe::new()
        .symbol("watched_load")
        .pre(|_: &Kprobe, _: &mut PtRegs| PreVerdict::Execute)
        .fault(on_fault);
    let probe = register(Box::new(probe)).unwrap();
    let _watched = ready(Watchpoint::new().handler(read));
    FAULTS.store(0, Relaxed);
    without_interrupts(|| {
        // SAFETY: they load from the word, and store to it.
        unsafe {
            super::watchpoints::watched_load(word(0), 0);
            watched_store(word(0), 1);
        }
    });
    assert_eq!(probe.hits(), 1);
    assert!(READ.load(Relaxed));
    assert_eq!(FAULTS.load(Relaxed), 0);
}
