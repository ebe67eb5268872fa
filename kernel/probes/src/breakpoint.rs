//! The assembly of a breakpoint hit, for kernels in the top 2 GiB.
//!
//! [`breakpoint_entry!`](crate::breakpoint_entry!) defines `kprobe_breakpoint`, where the gate of #BP leads. It saves five
//! registers, looks the trap's address up and jumps to the stub that the first probe of the site names:
//!
//! ```text
//!   kprobe_breakpoint ── not in the table ──► the kernel's own entry, with five registers saved
//!      │ site found: its first probe's stub
//!      ├─► kprobe_one_kprobe      all registers, guard, pre handler, resume in the slot or where the handler says
//!      ├─► kprobe_one_kretprobe   no more registers: take an instance, borrow the return address, resume in the slot
//!      └─► kprobe_any_hit         all registers, `Probes::serve` in Rust: aggregates, post handlers, jprobes, single steps
//! ```
//!
//! The first two do in assembly what the third does for any probe; whatever is unusual (the guard is taken, no instance is free,
//! the call reuses a frame) they leave to it. [`Site::choose_stub`](crate::site::Site) says when they may serve.
//!
//! # No look at CS
//! Keys of the table are kernel addresses, and no code of ring 3 runs at one: those pages are the supervisor's. So an address
//! that is found came from ring 0, with the kernel's GS. What is not found goes to the kernel's entry untouched.
//!
//! # The frame
//! ```text
//!   rsp at the trap, aligned down to 16
//!   +0xa0  ss       \
//!   +0x98  sp        |
//!   +0x90  flags     | pushed by the processor
//!   +0x88  cs        |
//!   +0x80  ip       /
//!   +0x78  orig_ax    -1
//!   +0x70  di  +0x68 si  +0x60 dx  +0x58 cx  +0x50 ax    <- rsp at the lookup and in `kprobe_one_kretprobe`
//!   +0x48  r8  +0x40 r9  +0x38 r10 +0x30 r11 +0x28 bx  +0x20 bp  +0x18 r12  +0x10 r13  +0x08 r14
//!   +0x00  r15        <- the `PtRegs`
//!   -0x08  site       <- rsp at the call of a handler: 16-aligned (System V psABI, 3.2.2)
//! ```

use core::mem::offset_of;

use crate::{
    address_table,
    instance::{Holder, Instance, TaskCell},
    kprobe::Kprobe,
    kretprobe::KretprobeCore,
    limits::TABLE_BITS,
    site::Site,
};

/// Where the stubs find what they use. Offsets in bytes.
#[doc(hidden)]
pub mod layout {
    use super::*;

    pub const MULTIPLIER: u32 = address_table::MULTIPLIER;
    pub const SHIFT: u32 = address_table::SHIFT;
    pub const INDEX_MASK: u32 = (1 << TABLE_BITS) - 1;
    pub const SITE_KEY: usize = offset_of!(Site, key);
    pub const SITE_HEAD: usize = Site::head_offset();
    pub const SITE_RUN: usize = offset_of!(Site, run);
    pub const PROBE_STUB: usize = offset_of!(Kprobe, stub);
    pub const PROBE_DETOUR_STUB: usize = offset_of!(Kprobe, detour_stub);
    pub const PROBE_BARE: usize = offset_of!(Kprobe, bare);
    pub const PROBE_PRE: usize = offset_of!(Kprobe, pre_handler);
    pub const PROBE_HITS: usize = offset_of!(Kprobe, hits);
    pub const KRETPROBE_HOLDER: usize = offset_of!(KretprobeCore, holder);
    pub const KRETPROBE_HANDLER: usize = offset_of!(KretprobeCore, handler);
    pub const HOLDER_KRETPROBE: usize = offset_of!(Holder, kretprobe);
    pub const INSTANCE_NEXT: usize = offset_of!(Instance, next);
    pub const INSTANCE_HOLDER: usize = offset_of!(Instance, holder);
    pub const INSTANCE_RET_ADDR: usize = offset_of!(Instance, ret_addr);
    pub const INSTANCE_FRAME: usize = offset_of!(Instance, frame);
    pub const INSTANCE_CELL: usize = offset_of!(Instance, cell);
    pub const CELL_HEAD: usize = offset_of!(TaskCell, head);

    const _: () = assert!(offset_of!(KretprobeCore, kprobe) == 0);
}

/// Defines `kprobe_breakpoint` for a [`Platform`](crate::Platform) whose registry is the static `$probes`, and
/// `with_breakpoint_entry`, which adds its stubs to the entry points. Once a program; the gate of vector 3 leads there, an
/// interrupt gate without a stack of its own.
///
/// - `other`: where a breakpoint goes that is not in the table. On arrival the stack holds what `kprobe_breakpoint` has saved, and the
///   saved registers are free.
/// - `clear_ac`: an instruction that clears RFLAGS.AC, or does nothing where the processor has no SMAP.
#[macro_export]
macro_rules! breakpoint_entry {
    ($platform:ty, $probes:path, other = $other:path, clear_ac = $clear_ac:literal) => {
        /// Where a #BP comes in. See `probes::breakpoint`.
        ///
        /// # Safety
        /// Never called: the processor gets here by the gate of #BP.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_breakpoint() {
            ::core::arch::naked_asm!(
                // The assembler's adjustments forget what a `restore_state` has restored: hence the offsets after each.
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 40",
                ".cfi_offset rip, -40",
                ".cfi_offset rsp, -16",
                "push -1",
                ".cfi_adjust_cfa_offset 8",
                $crate::push_registers!("rdi" "rsi" "rdx" "rcx" "rax"),
                "mov rdx, [rsp + 48]",
                "imul eax, edx, {multiplier}",
                "shr eax, {shift}",
                "mov rcx, [{probes} + rax * 8 + {table}]",
                "cmp [rcx + {key}], rdx",
                "jne 3f",
                "2:",
                "inc qword ptr gs:[{breakpoints}]",
                "mov rdi, [rcx + {head}]",
                "jmp [rdi + {stub}]",
                // The place is another's: the search goes on until an empty one.
                "3:",
                "cmp qword ptr [rcx + {key}], 0",
                "je {other}",
                "inc eax",
                "and eax, {index_mask}",
                "mov rcx, [{probes} + rax * 8 + {table}]",
                "cmp [rcx + {key}], rdx",
                "jne 3b",
                "jmp 2b",

                // rdi: the only probe, a kprobe; rcx: the site.
                ".globl kprobe_one_kprobe",
                "kprobe_one_kprobe:",
                ".cfi_remember_state",
                $crate::push_registers!("r8" "r9" "r10" "r11" "rbx" "rbp" "r12" "r13" "r14" "r15"),
                "cld",
                $clear_ac,
                "inc dword ptr gs:[{guard}]",
                "jnz 5f",
                "mov rsi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "mov rax, [rdi + {hits}]",
                "mov rdx, gs:[{counter_part}]",
                "inc qword ptr [rax + rdx]",
                "mov gs:[{running}], rdi",
                "call [rdi + {pre}]",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "test al, al",
                "jnz 92f",
                "mov rax, [rcx + {run}]",
                "mov [rsp + {ip}], rax",
                "4:",
                "dec dword ptr gs:[{guard}]",
                ".cfi_remember_state",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 168",
                // The handler has said where to go on: which may be under a jump.
                "92:",
                "mov rdi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "call {resume}",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "jmp 4b",
                // Inside another hit: not to be handled, but to be counted.
                "5:",
                "dec dword ptr gs:[{guard}]",
                "jmp 6f",

                // rcx: the site.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 88",
                ".globl kprobe_any_hit",
                "kprobe_any_hit:",
                ".cfi_remember_state",
                $crate::push_registers!("r8" "r9" "r10" "r11" "rbx" "rbp" "r12" "r13" "r14" "r15"),
                "cld",
                $clear_ac,
                "6:",
                "mov rdi, rcx",
                "mov rsi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "call {serve}",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",

                // rdi: the only probe, the kprobe of a kretprobe; rcx: the site.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 88",
                ".globl kprobe_one_kretprobe",
                "kprobe_one_kretprobe:",
                "cmp dword ptr gs:[{guard}], -1",
                "jne kprobe_any_hit",
                $crate::push_registers!("rbx"),
                "mov rsi, rcx",
                // Take an instance; see `FreeList::pop`.
                "mov rdi, [rdi + {holder}]",
                "mov rdx, [rdi + 8]",
                "mov rax, [rdi]",
                "7:",
                "test rax, rax",
                "jz 9f",
                "mov rbx, [rax + {next}]",
                "lea rcx, [rdx + 1]",
                "lock cmpxchg16b [rdi]",
                "jne 7b",
                // rax: the instance; rdi: the task's cell; rbx: the return slot; rdx: the newest call; rcx: the return address.
                "mov rdi, gs:[{cell}]",
                "mov rbx, [rsp + 80]",
                "mov rdx, [rdi + {cell_head}]",
                "cmp [rdx + {frame}], rbx",
                "jbe 8f",
                "mov rcx, [rbx]",
                "cmp rcx, offset {trampoline}",
                "je 8f",
                "mov [rax + {ret_addr}], rcx",
                "mov [rax + {frame}], rbx",
                "mov [rax + {instance_cell}], rdi",
                "mov [rax + {next}], rdx",
                "mov qword ptr [rbx], offset {trampoline}",
                "mov [rdi + {cell_head}], rax",
                "mov rax, [rsi + {run}]",
                "mov [rsp + 56], rax",
                ".cfi_remember_state",
                $crate::pop_registers!("rbx" "rax" "rcx" "rdx" "rsi" "rdi"),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 96",
                // The slot is in the ledger already, or calls were abandoned: give the instance back, as `FreeList::push`.
                "8:",
                "mov rdi, [rax + {instance_holder}]",
                "mov rdx, rax",
                "mov rax, [rdi]",
                "82:",
                "mov [rdx + {next}], rax",
                "lock cmpxchg [rdi], rdx",
                "jne 82b",
                "9:",
                "mov rcx, rsi",
                $crate::pop_registers!("rbx"),
                "jmp kprobe_any_hit",
                ".cfi_endproc",
                multiplier = const $crate::breakpoint::layout::MULTIPLIER as i32,
                shift = const $crate::breakpoint::layout::SHIFT,
                index_mask = const $crate::breakpoint::layout::INDEX_MASK,
                probes = sym $probes,
                table = const $crate::Probes::<$platform>::table_offset(),
                key = const $crate::breakpoint::layout::SITE_KEY,
                head = const $crate::breakpoint::layout::SITE_HEAD,
                run = const $crate::breakpoint::layout::SITE_RUN,
                stub = const $crate::breakpoint::layout::PROBE_STUB,
                pre = const $crate::breakpoint::layout::PROBE_PRE,
                hits = const $crate::breakpoint::layout::PROBE_HITS,
                holder = const $crate::breakpoint::layout::KRETPROBE_HOLDER,
                next = const $crate::breakpoint::layout::INSTANCE_NEXT,
                instance_holder = const $crate::breakpoint::layout::INSTANCE_HOLDER,
                ret_addr = const $crate::breakpoint::layout::INSTANCE_RET_ADDR,
                frame = const $crate::breakpoint::layout::INSTANCE_FRAME,
                instance_cell = const $crate::breakpoint::layout::INSTANCE_CELL,
                cell_head = const $crate::breakpoint::layout::CELL_HEAD,
                ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
                breakpoints = const $crate::PerCpu::breakpoints_gs_offset::<$platform>(),
                counter_part = const $crate::PerCpu::counter_part_gs_offset::<$platform>(),
                running = const $crate::PerCpu::running_gs_offset::<$platform>(),
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
                trampoline = sym kretprobe_trampoline,
                serve = sym $crate::hit::serve::<$platform>,
                resume = sym $crate::detour::resume_at::<$platform>,
                other = sym $other,
            )
        }

        unsafe extern "C" {
            static kprobe_any_hit: u8;
            static kprobe_one_kprobe: u8;
            static kprobe_one_kretprobe: u8;
        }

        fn with_breakpoint_entry(
            entry: $crate::platform::EntryPoints,
        ) -> $crate::platform::EntryPoints {
            $crate::platform::EntryPoints {
                any_hit: (&raw const kprobe_any_hit) as u64,
                one_kprobe: (&raw const kprobe_one_kprobe) as u64,
                one_kretprobe: (&raw const kprobe_one_kretprobe) as u64,
                ..entry
            }
        }
    };
}
