//! Calls of functions with all registers and flags known, before and after.

use core::arch::naked_asm;

use crate::{
    platform::suite::flags::PLAIN,
    tools::preserved_registers::{pop_preserved, push_preserved},
};

/// The general registers but rsp, in the order of [`run`]'s code; then flags, and the function to
/// call.
pub type RegisterState = [u64; 17];

/// Another value in each register; no flags and no function yet.
pub fn distinct() -> RegisterState {
    core::array::from_fn(|n| 0x1111_1111_1111_1111 * (n as u64 + 1))
}

/// Calls the function with the registers and flags of `state`, and stores those it leaves.
///
/// # Safety
/// The function keeps rsp.
#[unsafe(naked)]
pub unsafe extern "C" fn run(state: &mut RegisterState) {
    naked_asm!(
        push_preserved!(),
        "push rdi",
        "mov rax, rdi",
        "push [rax + 128]",
        "push [rax + 128]",
        "push [rax + 120]",
        "mov rbx, [rax + 8]",
        "mov rcx, [rax + 16]",
        "mov rdx, [rax + 24]",
        "mov rsi, [rax + 32]",
        "mov rdi, [rax + 40]",
        "mov rbp, [rax + 48]",
        "mov r8, [rax + 56]",
        "mov r9, [rax + 64]",
        "mov r10, [rax + 72]",
        "mov r11, [rax + 80]",
        "mov r12, [rax + 88]",
        "mov r13, [rax + 96]",
        "mov r14, [rax + 104]",
        "mov r15, [rax + 112]",
        "mov rax, [rax]",
        "popfq",
        "call [rsp]",
        "pushfq",
        "push rax",
        "mov rax, [rsp + 32]",
        "mov [rax + 8], rbx",
        "mov [rax + 16], rcx",
        "mov [rax + 24], rdx",
        "mov [rax + 32], rsi",
        "mov [rax + 40], rdi",
        "mov [rax + 48], rbp",
        "mov [rax + 56], r8",
        "mov [rax + 64], r9",
        "mov [rax + 72], r10",
        "mov [rax + 80], r11",
        "mov [rax + 88], r12",
        "mov [rax + 96], r13",
        "mov [rax + 104], r14",
        "mov [rax + 112], r15",
        "pop [rax]",
        "pop [rax + 120]",
        "push {plain}",
        "popfq",
        "add rsp, 16",
        "pop rdi",
        pop_preserved!(),
        "ret",
        plain = const PLAIN,
    )
}
