//! The probed functions and the loop that calls them, in assembly.
//!
//! Every target begins with `push rbp; mov rbp, rsp`, as compiled functions do. The cost of a call
//! of `bench_empty` is known: 2 instructions of the loop, 1 call, 4 in the function. The others do
//! one more thing, at the offset that their row names.

use core::arch::global_asm;

/// How deep one call of `bench_recurse` goes.
pub const DEPTH: u64 = 8;

/// How many functions `bench_chain_0` and so on there are, each called by the next.
pub const CHAIN: usize = 16;

/// How many functions `bench_spread_0` and so on there are.
pub const SPREAD: usize = 64;

global_asm!(
    r#"
    .pushsection .text.bench_targets, "ax", @progbits

.macro target name
    .balign 16
    .globl \name
    .type \name, @function
\name:
    push rbp
    mov rbp, rsp
.endm

.macro end_target name
    pop rbp
    ret
    .size \name, . - \name
.endm

    target bench_empty
    end_target bench_empty

    target bench_mov
    mov eax, 1
    end_target bench_mov

    target bench_push
    push rax
    pop rcx
    end_target bench_push

    target bench_load
    mov rax, [rsp]
    end_target bench_load

    target bench_nop
    nop
    end_target bench_nop

    # xor is 2 bytes long.
    target bench_jcc_taken
    xor eax, eax
    jz 2f
    nop
2:
    end_target bench_jcc_taken

    target bench_jcc_not
    xor eax, eax
    jnz 2f
2:
    end_target bench_jcc_not

    target bench_call
    call bench_callee
    end_target bench_call

    target bench_callee
    end_target bench_callee

    # Its `ret` is at offset 5.
    target bench_ret
    end_target bench_ret

    target bench_rip
    mov eax, [rip + bench_word]
    end_target bench_rip

    target bench_store
    mov [rip + bench_watched], eax
    end_target bench_store

    # edi: levels to go. The innermost level winds it up again for the next call.
    target bench_recurse
    dec edi
    jz 2f
    call bench_recurse
    inc eax
    pop rbp
    ret
2:  mov edi, {depth}
    end_target bench_recurse

.macro spread number
    target bench_spread_\number
    end_target bench_spread_\number
.endm

# With frame information, for walks. Only the innermost calls nothing.
.macro chain number, inner
    .balign 16
    .globl bench_chain_\number
    .type bench_chain_\number, @function
bench_chain_\number:
    .cfi_startproc
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    .if \number
    call bench_chain_\inner
    .endif
    pop rbp
    .cfi_def_cfa rsp, 8
    ret
    .cfi_endproc
    .size bench_chain_\number, . - bench_chain_\number
.endm

    .altmacro
    .set number, 0
    .set inner, 0
    .rept {chain}
    chain %number, %inner
    .set inner, number
    .set number, number + 1
    .endr

    .set number, 0
    .rept {spread}
    spread %number
    .set number, number + 1
    .endr
    .noaltmacro

# u64 bench_calls(target in rdi, count in rsi): calls it count times. Returns the ticks of the calls
# and a constant. Targets may change rax, rcx, rdx, and rdi as `bench_recurse` does.
#
#   +0x18  return address
#   +0x10  rbx, +0x08 r12, +0x00 r13     <- rsp at the calls: 16-aligned
    .balign 16
    .globl bench_calls
    .type bench_calls, @function
bench_calls:
    push rbx
    push r12
    push r13
    mov r12, rdi
    mov rbx, rsi
    mov edi, {depth}
    lfence
    rdtsc
    shl rdx, 32
    lea r13, [rdx + rax]
    .balign 16
2:  call r12
    dec rbx
    jnz 2b
    lfence
    rdtsc
    shl rdx, 32
    add rax, rdx
    sub rax, r13
    pop r13
    pop r12
    pop rbx
    ret
    .size bench_calls, . - bench_calls
    .popsection

    .pushsection .rodata.bench_word, "a", @progbits
    .balign 4
bench_word: .long 1
    .popsection

    # In a page of its own, as far as watched words are.
    .pushsection .bss.bench_watched, "aw", @nobits
    .balign 4096
    .globl bench_watched
    .type bench_watched, @object
bench_watched: .skip 4096
    .size bench_watched, 4096
    .popsection
    "#,
    depth = const DEPTH,
    chain = const CHAIN,
    spread = const SPREAD,
);

unsafe extern "C" {
    /// # Safety
    /// 1. `target` is the address of a function of this file.
    /// 2. `count` is not 0.
    fn bench_calls(target: u64, count: u64) -> u64;
}

/// A function of this file.
#[derive(Clone, Copy, Debug)]
pub struct Target(u64);

impl Target {
    /// The target `name`.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> Self {
        assert!(name.starts_with("bench_"), "{name} is no target");
        match kernel::symbols::lookup_name(name) {
            Ok(symbol) => Self(symbol.start),
            Err(error) => panic!("{error}"),
        }
    }

    /// Its address.
    pub fn address(self) -> u64 {
        self.0
    }

    /// Calls it `count` times. Returns the ticks of the calls, with a constant that is the same for
    /// all counts.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn call(self, count: u64) -> u64 {
        assert!(count > 0, "the loop's end is checked after each call");
        // SAFETY: 1. `named` looked it up. 2. Checked above.
        unsafe { bench_calls(self.0, count) }
    }
}
