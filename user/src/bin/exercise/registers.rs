//! The registers of a program after a system call.

use core::arch::naked_asm;
use user::{Args, abi::nr};

/// Makes the system call `number`, which takes no arguments, `rounds` times. Each register has a
/// value of its own, and the direction flag is set.
///
/// Returns 0 if only rax, rcx and r11 have changed, rcx to the address after the call and r11 to
/// the flags (Intel SDM vol. 2B, SYSCALL). Otherwise returns 1.
#[unsafe(naked)]
extern "C" fn hold(rounds: u64, number: u64) -> u64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rsi",
        "push rdi",
        "2:",
        "mov rbx, -102",
        "mov rdx, -104",
        "mov rsi, -105",
        "mov rdi, -106",
        "mov rbp, -107",
        "mov r8, -108",
        "mov r9, -109",
        "mov r10, -110",
        "mov r12, -112",
        "mov r13, -113",
        "mov r14, -114",
        "mov r15, -115",
        "mov rax, [rsp + 8]",
        "std",
        "stc",
        "syscall",
        "3:",
        "pushfq",
        "pop rax",
        "cld",
        "cmp rax, r11",
        "jne 4f",
        "and eax, 0x401",
        "cmp eax, 0x401",
        "jne 4f", // direction and carry
        "lea rax, [rip + 3b]",
        "cmp rax, rcx",
        "jne 4f",
        "cmp rbx, -102",
        "jne 4f",
        "cmp rdx, -104",
        "jne 4f",
        "cmp rsi, -105",
        "jne 4f",
        "cmp rdi, -106",
        "jne 4f",
        "cmp rbp, -107",
        "jne 4f",
        "cmp r8, -108",
        "jne 4f",
        "cmp r9, -109",
        "jne 4f",
        "cmp r10, -110",
        "jne 4f",
        "cmp r12, -112",
        "jne 4f",
        "cmp r13, -113",
        "jne 4f",
        "cmp r14, -114",
        "jne 4f",
        "cmp r15, -115",
        "jne 4f",
        "dec qword ptr [rsp]",
        "jnz 2b",
        "xor eax, eax",
        "jmp 5f",
        "4: mov eax, 1",
        "5: pop rdi",
        "pop rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}

/// `registers ROUNDS`
pub fn registers(mut args: Args) {
    let rounds = args.parse_next().expect("a number");
    assert_eq!(hold(rounds, nr::GETPID), 0, "getpid");
    assert_eq!(hold(rounds / 4, nr::SCHED_YIELD), 0, "sched_yield");
}
