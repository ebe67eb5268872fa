//! Stage 3 of the boot loader under BIOS: from protected mode, which stage 2 leaves, to long mode,
//! which stage 4 wants.
//!
//! It replaces the package `bootloader-x86_64-bios-stage-3`. That package compiles a `core` for
//! 32-bit code and two dozen screen fonts, for a message that is never seen. This took a third of
//! the time of all stages.
//!
//! # State that stage 2 leaves
//! Flat 32-bit segments, interrupts off, this file at 1 MiB, and on its stack:
//! ```text
//!   esp + 4   address of the boot information; its first word is the address of stage 4
//!   esp       return address, never used
//! ```
//!
//! # State that stage 4 finds
//! Long mode. The first 10 GiB of addresses are mapped to themselves in pages of 2 MiB, writable.
//! Selector 8 is for code, 0x10 for data. `rdi`, the first argument of a call, is the address of
//! the boot information. The stack is the one of stage 2.
#![no_std]
#![no_main]

use core::arch::global_asm;

/// How many GiB are mapped: stage 4 counts on as many.
const GIBIBYTES: u32 = 10;

// Bits of the entries of page tables.
const PRESENT: u32 = 1 << 0;
const WRITABLE: u32 = 1 << 1;
const HUGE: u32 = 1 << 7;

global_asm!(
    r#"
.section .start, "ax"
.code32
.globl _start
_start:
    mov esi, [esp + 4]

    // All tables empty.
    mov edi, offset level_4
    mov ecx, {tables} * 1024
    xor eax, eax
    cld
    rep stosd

    mov dword ptr [level_4], offset level_3 + {table}

    // One table of level 2 for each GiB.
    mov eax, offset level_2 + {table}
    mov edi, offset level_3
    mov ecx, {gibibytes}
2:  mov [edi], eax
    add eax, 4096
    add edi, 8
    loop 2b

    // edx:eax is the address of a page of 2 MiB, and its flags.
    mov eax, {page}
    xor edx, edx
    mov edi, offset level_2
    mov ecx, {gibibytes} * 512
3:  mov [edi], eax
    mov [edi + 4], edx
    add eax, 2 << 20
    adc edx, 0
    add edi, 8
    loop 3b

    mov eax, offset level_4
    mov cr3, eax

    mov eax, cr4
    or eax, 1 << 5                  // physical address extension
    mov cr4, eax

    mov ecx, 0xc0000080             // EFER
    rdmsr
    or eax, 1 << 8                  // long mode
    wrmsr

    mov eax, cr0
    or eax, 1 << 31                 // paging
    mov cr0, eax

    lgdt [gdt_pointer]
    and esp, 0xfffffff0
    push 8
    mov eax, offset long_mode
    push eax
    retf

.code64
long_mode:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov edi, esi
    and rsp, 0xfffffffffffffff0
    call [rdi]
4:  hlt
    jmp 4b

.balign 8
gdt:
    .quad 0
    .quad 0x00209b0000000000        // code: 64 bits, present, accessed
    .quad 0x0000930000000000        // data: present, writable, accessed
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .long gdt

.section .tables, "aw", @nobits
.balign 4096
level_4: .skip 4096
level_3: .skip 4096
level_2: .skip 4096 * {gibibytes}
"#,
    table = const PRESENT | WRITABLE,
    page = const PRESENT | WRITABLE | HUGE,
    gibibytes = const GIBIBYTES,
    tables = const 2 + GIBIBYTES,
);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
