//! The processor's single steps: behaviour in which emulators differ and on which the probes rely.
//!
//! Each piece of code runs with TF set, and an exception handler notes where the processor stopped
//! and with which flags. The manual's answer is always accepted; what an emulator is known to do
//! in its place is named beside it. The log tells what this one did: `cargo test
//! processor_single_step:: -- --nocapture` in QEMU, `cargo test -p tests --test bochs
//! processor_single_step:: -- --nocapture` in Bochs.

use crate::platform::suite::flags::{IF, RF, TF};
use alloc::vec::Vec;
use core::{
    arch::global_asm,
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};
use kernel::{
    arch::{
        idt::vector,
        traps::{self, Exception},
    },
    pr_info,
    probes::PtRegs,
};

global_asm!(
    r#"
    /* TF comes on with the popfq before the label of each of these, so the first trap is due */
    /* after the first instruction behind it. */
    .macro stepped name
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    pushfq
    .cfi_adjust_cfa_offset 8
    pushfq
    .cfi_adjust_cfa_offset 8
    or qword ptr [rsp], {tf}
    and qword ptr [rsp], ~{interrupts}
    popfq
    .cfi_adjust_cfa_offset -8
    .globl \name\()_code
\name\()_code:
    .endm

    .macro stepped_end name
    popfq
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size \name, . - \name
    .endm

    .pushsection .text.processor, "ax", @progbits

    stepped step_over_sti
    nop             /* +0 */
    sti             /* +1 */
    nop             /* +2 */
    nop             /* +3 */
    cli             /* +4 */
    stepped_end step_over_sti

    stepped step_over_mov_ss
    mov eax, ss     /* +0 */
    mov ss, eax     /* +2 */
    nop             /* +4 */
    nop             /* +5 */
    stepped_end step_over_mov_ss

    stepped step_over_rep
    mov ecx, 3      /* +0 */
    rep movsb       /* +5 */
    nop             /* +7 */
    stepped_end step_over_rep

    stepped step_over_pushf
    pushfq          /* +0 */
    .cfi_adjust_cfa_offset 8
    pop rax         /* +1 */
    .cfi_adjust_cfa_offset -8
    mov [rdi], rax  /* +2 */
    nop             /* +5 */
    stepped_end step_over_pushf

    stepped step_into_a_fault
    nop             /* +0 */
    ud2             /* +1 */
    nop             /* +3 */
    stepped_end step_into_a_fault

    .popsection
    "#,
    tf = const TF,
    interrupts = const IF,
);

unsafe extern "C" {
    fn step_over_sti();
    fn step_over_sti_code();
    fn step_over_mov_ss();
    fn step_over_mov_ss_code();
    /// Copies three bytes.
    fn step_over_rep(to: *mut u8, from: *const u8);
    fn step_over_rep_code();
    /// Stores the flags as `pushfq` has them.
    fn step_over_pushf(flags: *mut u64);
    fn step_over_pushf_code();
    fn step_into_a_fault();
    fn step_into_a_fault_code();
}

/// A processor's stops: the exception's vector, the address it came with, and the flags there.
static STOPS: [[AtomicU64; 3]; 16] = [const { [const { AtomicU64::new(0) }; 3] }; 16];
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn note(regs: &mut PtRegs, exception: &Exception) -> bool {
    let number = COUNT.fetch_add(1, SeqCst);
    let Some(stop) = STOPS.get(number) else {
        return false;
    };
    stop[0].store(exception.vector.into(), Relaxed);
    stop[1].store(regs.ip, Relaxed);
    stop[2].store(regs.flags, Relaxed);
    if exception.vector == vector::INVALID_OPCODE {
        // After `ud2`.
        regs.ip += 2;
    }
    true
}

/// Runs `code` and returns its stops: vector, offset from `start`, and flags; those in its tail
/// left out.
fn stops_of(start: unsafe extern "C" fn(), tail: u64, code: impl FnOnce()) -> Vec<(u8, u64, u64)> {
    COUNT.store(0, SeqCst);
    traps::set_exception_handler(Some(note));
    code();
    traps::set_exception_handler(None);
    let start = start as *const () as u64;
    STOPS[..COUNT.load(SeqCst)]
        .iter()
        .map(|[vector, ip, flags]| {
            (
                vector.load(Relaxed) as u8,
                ip.load(Relaxed) - start,
                flags.load(Relaxed),
            )
        })
        .filter(|(_, offset, _)| *offset < tail)
        .collect()
}

/// Checks that the processor stopped at `manual`, or where the emulator `known` is known to.
fn judge(what: &str, seen: &[u64], manual: &[u64], known: Option<(&str, &[u64])>) {
    if seen == manual {
        pr_info!("processor: {what}: as the manual says: {seen:?}");
        return;
    }
    let known = known.filter(|(_, stops)| seen == *stops);
    let (emulator, _) =
        known.unwrap_or_else(|| panic!("{what}: {seen:?}, but {manual:?} in the manual"));
    pr_info!("processor: {what}: {seen:?} as in {emulator}, but {manual:?} in the manual");
}

fn offsets(stops: &[(u8, u64, u64)]) -> Vec<u64> {
    assert!(
        stops.iter().all(|(vector, ..)| *vector == vector::DEBUG),
        "{stops:?}"
    );
    stops.iter().map(|(_, offset, _)| *offset).collect()
}

/// `sti` holds back interrupts for one instruction, but no trap (SDM vol. 2B, STI).
#[guest_test]
fn a_step_over_sti_traps_behind_it() {
    // SAFETY: functions that keep to their calling convention.
    let stops = stops_of(step_over_sti_code, 5, || unsafe { step_over_sti() });
    judge(
        "sti",
        &offsets(&stops),
        &[1, 2, 3, 4],
        Some(("QEMU", &[1, 3, 4])),
    );
}

/// A load of SS holds back traps as well (SDM vol. 3A, 6.8.3).
#[guest_test]
fn a_step_over_mov_ss_traps_one_instruction_later() {
    // SAFETY: as above; the stack segment is the one that was there.
    let stops = stops_of(step_over_mov_ss_code, 6, || unsafe { step_over_mov_ss() });
    judge("mov ss", &offsets(&stops), &[2, 5], None);
}

/// A trap for each iteration, the address being that of the instruction until the last one (SDM
/// vol. 3B, 17.3.1.4).
#[guest_test]
fn a_step_over_a_repeated_instruction_traps_at_each_iteration() {
    let mut to = [0; 3];
    // SAFETY: as above; both have three bytes.
    let stops = stops_of(step_over_rep_code, 8, || unsafe {
        step_over_rep(to.as_mut_ptr(), b"abc".as_ptr())
    });
    assert_eq!(to, *b"abc");
    judge("rep movsb", &offsets(&stops), &[5, 5, 5, 7], None);
}

#[guest_test]
fn a_stepped_pushf_stores_the_trap_flag() {
    let mut flags = 0;
    // SAFETY: as above.
    let stops = stops_of(step_over_pushf_code, 6, || unsafe {
        step_over_pushf(&mut flags)
    });
    assert_eq!(offsets(&stops), [1, 2, 5]);
    assert_eq!(flags & TF, TF);
}

/// The frame of a fault has TF as the code had it, and RF set, so that an instruction breakpoint is
/// not met again (SDM vol. 3B, 17.3.1.1). A trap's frame has it clear.
#[guest_test]
fn a_fault_has_the_resume_flag_set_in_its_frame() {
    // SAFETY: as above; the exception is dealt with.
    let stops = stops_of(step_into_a_fault_code, 4, || unsafe { step_into_a_fault() });
    let places: Vec<_> = stops
        .iter()
        .map(|(vector, offset, _)| (*vector, *offset))
        .collect();
    assert_eq!(
        places[..2],
        [(vector::DEBUG, 1), (vector::INVALID_OPCODE, 1)]
    );
    let [trap, fault] = [stops[0].2, stops[1].2];
    assert_eq!((trap & (TF | RF), fault & TF), (TF, TF));
    judge(
        "RF in a fault's frame",
        &[fault & RF],
        &[RF],
        Some(("QEMU", &[0])),
    );
}
