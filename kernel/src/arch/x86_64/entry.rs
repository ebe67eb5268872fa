//! Entry stubs: the way from ring 3 or from an interrupted instruction into Rust, and back.
//!
//! All of it lies between `__entry_text_start` and `__entry_text_end`. A stub completes the words
//! that the processor has pushed to a [`PtRegs`], swaps GS if it comes from ring 3, and calls a
//! Rust function with the frame:
//!
//! ```text
//!   rsp at the interruption, aligned down to 16;
//!   for ring 3 and `syscall`: the task's kernel stack top
//!   +0xa0  ss       \
//!   +0x98  sp        |
//!   +0x90  flags     | pushed by the processor, or by the stub for `syscall` and NMI
//!   +0x88  cs        |
//!   +0x80  ip       /
//!   +0x78  orig_ax    error code, number of the system call, or -1
//!   +0x70  di  +0x68 si  +0x60 dx  +0x58 cx  +0x50 ax  +0x48 r8  +0x40 r9  +0x38 r10
//!   +0x30  r11  +0x28 bx  +0x20 bp  +0x18 r12  +0x10 r13  +0x08 r14
//!   +0x00  r15      <- the `PtRegs`, and rdi at the call
//!   -0x08  padding  <- rsp at the call: 16-aligned (System V psABI, 3.2.2)
//! ```
//!
//! The call frame information describes each stub at each instruction, as a signal frame. So an
//! unwinder that finds a return address in here goes on with the interrupted instruction.
//!
//! # GS
//! Exceptions and interrupts swap GS when the saved CS is ring 3's. A few instructions of this file
//! run in ring 0 with the user's GS. There nothing can fault, interrupts are off, and no breakpoint
//! may be placed, so the test is right for all entries but NMI and #DF. These two test the GS base
//! itself: the kernel's is negative, and user code cannot change its own (CR4.FSGSBASE is clear).
//!
//! # NMI
//! An `iretq` unmasks NMIs. An exception inside the NMI handler, for example a probe hit, ends in
//! one. The next NMI would then start at the top of the same interrupt stack. So the stub first
//! moves to another stack, while NMIs are certainly masked. That is the interrupted stack below
//! rsp, where nothing is alive (rule 4 of [`super`]). If rsp was still the user's, it is the top of
//! the task's kernel stack, which is empty then. After that, NMIs may come on top of each other.
//!
//! # `syscall`
//! `syscall` leaves the return address in rcx, the flags in r11, the user's rsp in place, and
//! interrupts off (FMASK). The stub makes the same frame of it. On the way out `sysretq` is used
//! when it restores exactly the frame's values; else `iretq`.

use super::{
    PtRegs, cpu,
    gdt::{USER_CS, USER_DS},
    idt::vector,
    percpu, traps,
    user_breakpoint::user_breakpoint_stub,
};
use crate::{
    mm::{paging, user_space::UserSpace},
    probes::watched_objects,
    task::Task,
    uprobes::{hit, probe::layout as probe, space::layout as space},
};
use core::{arch::global_asm, mem::offset_of, slice};
use x86_64::{
    VirtAddr,
    registers::{control::Cr0Flags, debug::Dr6Flags, rflags::RFlags},
};

const _: () = assert!(
    (size_of::<PtRegs>() + 8).is_multiple_of(16),
    "the calls need rsp 16-aligned"
);
const _: () = assert!(size_of::<PtRegs>() == 0xa8 && offset_of!(PtRegs, orig_ax) == 0x78);

/// What the frame of a `PtRegs` has below `ax`, which `kprobe_breakpoint` has not saved.
const EARLY: usize = offset_of!(PtRegs, ax);

global_asm!(
    r#"
    .pushsection .entry.text, "ax", @progbits

# One instruction, `clac`, where the processor has SMAP. The boot code writes it over this
# no-operation.
.macro clac_if_smap
77: .byte 0x0f, 0x1f, 0x00
    .pushsection .clac_sites, "a", @progbits
    .quad 77b
    .popsection
.endm

# The same with `stac`.
.macro stac_if_smap
77: .byte 0x0f, 0x1f, 0x01
    .pushsection .clac_sites, "a", @progbits
    .quad 77b
    .popsection
.endm

.macro save reg
    push \reg
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset \reg, 0
.endm

.macro restore reg
    pop \reg
    .cfi_adjust_cfa_offset -8
    .cfi_restore \reg
.endm

# Starts the frame information of a stub. At its entry `words` words of the frame are on the stack.
.macro begin_frame words
    .cfi_startproc simple
    .cfi_signal_frame
    .cfi_def_cfa rsp, 8 * \words
    .cfi_offset rip, -40
    .cfi_offset rsp, -16
.endm

# The same where orig_ax, di and si are there too.
.macro begin_frame_with_si
    begin_frame 8
    .cfi_offset rdi, -56
    .cfi_offset rsi, -64
.endm

.macro save_rest
    save rdx
    save rcx
    save rax
    save_r8_to_r15
.endm

.macro save_r8_to_r15
    save r8
    save r9
    save r10
    save r11
    save rbx
    save rbp
    save r12
    save r13
    save r14
    save r15
.endm

.macro restore_all
    restore r15
    restore r14
    restore r13
    restore r12
    restore rbp
    restore rbx
    restore r11
    restore r10
    restore r9
    restore r8
    restore rax
    restore rcx
    restore rdx
    restore rsi
    restore rdi
.endm

# Completes the change to the kernel's world once the frame is whole.
.macro enter_kernel
    cld
    clac_if_smap
    test byte ptr [rsp + {cs}], 3
    jz 78f
    swapgs
78:
.endm

# Calls a Rust function with the frame at rsp as its first argument.
.macro call_with_frame function
    mov rdi, rsp
    push rdi
    .cfi_adjust_cfa_offset 8
    call \function
    add rsp, 8
    .cfi_adjust_cfa_offset -8
.endm

.macro begin_stub name
    .balign 16
    .globl \name
    .type \name, @function
\name:
.endm

.macro end_stub name
    .cfi_endproc
    .size \name, . - \name
.endm

# An exception that needs nothing but its vector told.
.macro exception name, number
    begin_stub \name
    begin_frame 5
    push -1
    .cfi_adjust_cfa_offset 8
    save rdi
    save rsi
    mov esi, \number
    jmp exception_common
    end_stub \name
.endm

.macro exception_with_error_code name, number
    begin_stub \name
    begin_frame 6
    save rdi
    save rsi
    mov esi, \number
    jmp exception_common
    end_stub \name
.endm

    exception asm_divide_error, 0
    exception asm_overflow, 4
    exception asm_bound_range, 5
    exception asm_invalid_opcode, 6
    exception asm_device_not_available, 7
    exception asm_coprocessor_overrun, 9
    exception_with_error_code asm_invalid_tss, 10
    exception_with_error_code asm_segment_not_present, 11
    exception_with_error_code asm_stack_segment, 12
    exception_with_error_code asm_general_protection, 13
    exception asm_reserved_15, 15
    exception asm_x87_error, 16
    exception_with_error_code asm_alignment_check, 17
    exception asm_machine_check, 18
    exception asm_simd_error, 19
    exception asm_virtualization, 20
    exception_with_error_code asm_control_protection, 21
    exception asm_reserved_22, 22
    exception asm_reserved_23, 23
    exception asm_reserved_24, 24
    exception asm_reserved_25, 25
    exception asm_reserved_26, 26
    exception asm_reserved_27, 27
    exception asm_hypervisor_injection, 28
    exception_with_error_code asm_vmm_communication, 29
    exception_with_error_code asm_security, 30
    exception asm_reserved_31, 31

begin_stub exception_common
    begin_frame_with_si
    save_rest
    enter_kernel
    call_with_frame {enter_exception}
    jmp exception_return
end_stub exception_common

    "#,
    user_breakpoint_stub!(),
    r#"
# A #DB that `kprobe_debug` has not served. A watched word that was touched takes the shorter way,
# and so does the end of a write to a watched object.
begin_stub asm_debug_other
    begin_frame 11
    .cfi_offset rdi, -56
    .cfi_offset rsi, -64
    .cfi_offset rdx, -72
    .cfi_offset rcx, -80
    .cfi_offset rax, -88
    save_r8_to_r15
    enter_kernel
    mov rsi, dr6
    test sil, {matched}
    jz 8f
    test esi, {other_causes}
    jnz 9f
    call_with_frame {enter_match}
    test al, al
    jnz exception_return
    jmp 9f
# rsi is the status. GS is the kernel's here. At the second #DB of QEMU that `hooks::on_debug` tells
# of it may not be, but that has matches.
8:  cmp byte ptr gs:[{object_step}], 0
    je 9f
    call_with_frame {enter_object_step}
    test al, al
    jnz exception_return
9:  call_with_frame {do_debug}
    jmp exception_return
end_stub asm_debug_other

# The address must be read before anything that may fault, thus before any probe can be hit.
begin_stub asm_page_fault
    begin_frame 6
    cmp qword ptr [{object_places}], 0
    jne asm_object_fault
.Lno_object_fault:
    save rdi
    save rsi
    save_rest
    enter_kernel
    mov rsi, [rsp + {orig_ax}]
    mov rdx, cr2
    call_with_frame {enter_page_fault}
    jmp exception_return
end_stub asm_page_fault

# A page fault while objects are watched. If it is a write of the kernel to a page of one, that
# write begins: `probes/watched_objects.rs` says how. While one is under way on this CPU, no other
# faults (OBJECT-2), so the fault is another then.
#
#   rsp + 0x48  ss
#         0x40  sp
#         0x38  flags
#         0x30  cs
#         0x28  ip
#         0x20  error code
#         0x18  rdi, rsi, rdx
#         0x00  rcx      <- rsp
begin_stub asm_object_fault
    begin_frame 6
    save rdi
    save rsi
    save rdx
    save rcx
    cmp qword ptr [rsp + 0x20], {write_of_present}
    jne 9f
    cmp byte ptr gs:[{object_step}], 0
    jne 9f
    mov rdx, cr2
    mov ecx, [{object_places}]
    # The last watch may have ended since.
    jecxz 9f
2:  mov rdi, [{object_watches} + rcx * 8 - 8]
    test rdi, rdi
    jz 3f
    mov rsi, rdx
    sub rsi, [rdi + {object_first_page}]
    cmp rsi, [rdi + {object_paged_bytes}]
    jb 4f
3:  dec ecx
    jnz 2b
9:  .cfi_remember_state
    restore rcx
    restore rdx
    restore rsi
    restore rdi
    jmp .Lno_object_fault
    .cfi_restore_state
    .cfi_def_cfa_offset 80
# From here on no NMI can begin a write (OBJECT-2).
4:  mov rcx, cr0
    btr rcx, {write_protect}
    mov cr0, rcx
    mov rcx, [rsp + 0x28]
    mov gs:[{object_ip}], rcx
    mov rcx, [rsp + 0x40]
    mov gs:[{object_sp}], rcx
    mov rcx, [rsp + 0x38]
    mov esi, ecx
    and esi, {stepped_flags}
    mov gs:[{object_flags}], rsi
    and ecx, ~{stepped_flags}
    or ecx, {trap_flag}
    mov [rsp + 0x38], rcx
    mov gs:[{object_touched}], rdx
    mov gs:[{object_watch}], rdi
    and rdx, -8
    mov rcx, [rdx]
    mov gs:[{object_words}], rcx
    add rdx, 8
    xor ecx, ecx
    test edx, 0xfff
    jz 5f
    mov rcx, [rdx]
5:  mov gs:[{object_words} + 8], rcx
    mov byte ptr gs:[{object_step}], 1
    restore rcx
    restore rdx
    restore rsi
    restore rdi
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    iretq
end_stub asm_object_fault

# Sixteen bytes for each vector from 32 on.
.macro interrupt number
    .balign 16
    begin_frame 5
    push -1
    .cfi_adjust_cfa_offset 8
    save rdi
    save rsi
    mov esi, \number
    jmp interrupt_common
    .cfi_endproc
.endm

    .balign 16
    .globl interrupt_stubs
    .type interrupt_stubs, @function
interrupt_stubs:
    .set interrupt_vector, {first_interrupt}
    .rept 256 - {first_interrupt}
    interrupt interrupt_vector
    .set interrupt_vector, interrupt_vector + 1
    .endr
    .size interrupt_stubs, . - interrupt_stubs

begin_stub interrupt_common
    begin_frame_with_si
    save_rest
    enter_kernel
    call_with_frame {do_interrupt}
    jmp exception_return
end_stub interrupt_common

# The one way back from exceptions and interrupts; rsp is at the frame.
begin_stub exception_return
    begin_frame 6
    .cfi_def_cfa rsp, 168
    .cfi_offset rdi, -56
    .cfi_offset rsi, -64
    .cfi_offset rdx, -72
    .cfi_offset rcx, -80
    .cfi_offset rax, -88
    .cfi_offset r8, -96
    .cfi_offset r9, -104
    .cfi_offset r10, -112
    .cfi_offset r11, -120
    .cfi_offset rbx, -128
    .cfi_offset rbp, -136
    .cfi_offset r12, -144
    .cfi_offset r13, -152
    .cfi_offset r14, -160
    .cfi_offset r15, -168
    cli
    test byte ptr [rsp + {cs}], 3
    jnz 2f
    .cfi_remember_state
    restore_all
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    iretq
    .cfi_restore_state
    .cfi_def_cfa_offset 168
2:  call_with_frame {exit_to_user}
    .globl return_to_user_by_iret
return_to_user_by_iret:
    swapgs
    restore_all
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    iretq
end_stub exception_return

begin_stub asm_syscall
    .cfi_startproc simple
    .cfi_signal_frame
    .cfi_def_cfa rsp, 0
    .cfi_register rip, rcx
    swapgs
    mov gs:[{user_rsp}], rsp
    mov rsp, gs:[{kernel_stack_top}]
    .globl asm_syscall_on_kernel_stack
asm_syscall_on_kernel_stack:
    push {user_ds}
    .cfi_adjust_cfa_offset 8
    push gs:[{user_rsp}]
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rsp, 0
    push r11
    .cfi_adjust_cfa_offset 8
    push {user_cs}
    .cfi_adjust_cfa_offset 8
    push rcx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rip, 0
    push rax
    .cfi_adjust_cfa_offset 8
    save rdi
    save rsi
    save_rest
    sti
    call_with_frame do_syscall
    cli
    call_with_frame {exit_to_user}
    test al, al
    jz return_to_user_by_iret
    restore_all
    mov rsp, [rsp + 32]
    .cfi_def_cfa rsp, 0
    .cfi_same_value rsp
    .cfi_register rip, rcx
    .globl asm_syscall_exit_on_user_stack
asm_syscall_exit_on_user_stack:
    swapgs
    sysretq
    .globl asm_syscall_exit_end
asm_syscall_exit_end:
end_stub asm_syscall

# On the interrupt stack of this CPU, NMIs masked:
#   +0x28  address of this CPU's `PerCpu`
#   +0x20  ss, +0x18 rsp, +0x10 flags, +0x08 cs, +0x00 rip    <- rsp
begin_stub asm_nmi
    begin_frame 5
    save rax
    save rcx
    save rdi
    mov rdi, [rsp + 24 + 40]
    mov rdi, [rdi + {kernel_stack_top}]
    test byte ptr [rsp + 24 + 8], 3
    jnz 3f
    mov rax, [rsp + 24]
    cmp rax, offset asm_syscall
    jb 2f
    cmp rax, offset asm_syscall_on_kernel_stack
    jb 3f
    cmp rax, offset asm_syscall_exit_on_user_stack
    jb 2f
    cmp rax, offset asm_syscall_exit_end
    jb 3f
2:  mov rdi, [rsp + 24 + 24]
    and rdi, -16
    # rdi: where the frame goes. Write it down to di, then move there.
3:  mov rax, [rsp + 24 + 32]
    mov [rdi - 8], rax
    mov rax, [rsp + 24 + 24]
    mov [rdi - 16], rax
    mov rax, [rsp + 24 + 16]
    mov [rdi - 24], rax
    mov rax, [rsp + 24 + 8]
    mov [rdi - 32], rax
    mov rax, [rsp + 24]
    mov [rdi - 40], rax
    mov qword ptr [rdi - 48], -1
    mov rax, [rsp]
    mov [rdi - 56], rax
    mov rcx, [rsp + 8]
    .cfi_same_value rcx
    mov rax, [rsp + 16]
    .cfi_same_value rax
    lea rsp, [rdi - 56]
    .cfi_def_cfa rsp, 56
    .cfi_offset rdi, -56
    save rsi
    save_rest
    # rbx: whether GS was swapped here and must be swapped back.
    mov ecx, {gs_base}
    rdmsr
    xor ebx, ebx
    test edx, edx
    js 4f
    swapgs
    inc ebx
4:  cld
    clac_if_smap
    call_with_frame {enter_nmi}
    test ebx, ebx
    jz 5f
    swapgs
5:  restore_all
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    iretq
end_stub asm_nmi

# On a stack of its own, for good: there is no way back from a double fault.
begin_stub asm_double_fault
    begin_frame 6
    save rdi
    save rsi
    save_rest
    mov ecx, {gs_base}
    rdmsr
    test edx, edx
    js 6f
    swapgs
6:  cld
    clac_if_smap
    call_with_frame {do_double_fault}
    ud2
end_stub asm_double_fault

    .popsection

    .pushsection .rodata.exception_stubs, "a", @progbits
    .balign 8
    .globl exception_stubs
exception_stubs:
    .quad asm_divide_error
    .quad kprobe_debug
    .quad asm_nmi
    .quad kprobe_breakpoint
    .quad asm_overflow
    .quad asm_bound_range
    .quad asm_invalid_opcode
    .quad asm_device_not_available
    .quad asm_double_fault
    .quad asm_coprocessor_overrun
    .quad asm_invalid_tss
    .quad asm_segment_not_present
    .quad asm_stack_segment
    .quad asm_general_protection
    .quad asm_page_fault
    .quad asm_reserved_15
    .quad asm_x87_error
    .quad asm_alignment_check
    .quad asm_machine_check
    .quad asm_simd_error
    .quad asm_virtualization
    .quad asm_control_protection
    .quad asm_reserved_22
    .quad asm_reserved_23
    .quad asm_reserved_24
    .quad asm_reserved_25
    .quad asm_reserved_26
    .quad asm_reserved_27
    .quad asm_hypervisor_injection
    .quad asm_vmm_communication
    .quad asm_security
    .quad asm_reserved_31
    .popsection
    "#,
    cs = const offset_of!(PtRegs, cs),
    early_ip = const offset_of!(PtRegs, ip) - EARLY,
    early_cs = const offset_of!(PtRegs, cs) - EARLY,
    early_sp = const offset_of!(PtRegs, sp) - EARLY,
    early_ss = const offset_of!(PtRegs, ss) - EARLY,
    early_orig_ax = const offset_of!(PtRegs, orig_ax) - EARLY,
    current = const percpu::CURRENT,
    need_resched = const percpu::NEED_RESCHED,
    own_space = const Task::OWN_SPACE_OFFSET,
    interrupted = const Task::INTERRUPTED_OFFSET,
    table = const UserSpace::PROBES_OFFSET + space::TABLE,
    trampoline = const UserSpace::PROBES_OFFSET + space::TRAMPOLINE,
    next_call = const UserSpace::PROBES_OFFSET + space::NEXT_CALL,
    end_of_calls = const UserSpace::PROBES_OFFSET + space::END_OF_CALLS,
    mask = const space::MASK,
    entries = const space::ENTRIES,
    entry_bits = const space::ENTRY_BITS,
    entry_place = const space::ENTRY_PLACE,
    served_by = const space::PLACE_SERVED_BY,
    slot = const space::PLACE_SLOT,
    serve = const probe::SERVE,
    state = const probe::STATE,
    hits = const probe::HITS,
    action = const probe::ACTION,
    serve_return = const probe::SERVE_RETURN,
    return_action = const probe::RETURN_ACTION,
    left = const probe::LEFT,
    holders = const probe::HOLDERS,
    keeps_di = const probe::KEEPS_DI,
    registered = const probe::REGISTERED,
    call_bytes = const probe::CALL_BYTES,
    call_probe = const probe::CALL_PROBE,
    call_followed = const probe::CALL_FOLLOWED,
    call_function = const probe::CALL_FUNCTION,
    call_slot = const probe::CALL_SLOT,
    call_return = const probe::CALL_RETURN,
    call_di = const probe::CALL_DI,
    orig_ax = const offset_of!(PtRegs, orig_ax),
    ip = const offset_of!(PtRegs, ip),
    flags = const offset_of!(PtRegs, flags),
    ss = const offset_of!(PtRegs, ss),
    user_flags = const traps::USER_FLAGS.bits() as u32,
    own_flags = const traps::OWN_FLAGS,
    first_interrupt = const vector::FIRST_INTERRUPT,
    user_rsp = const percpu::USER_RSP,
    kernel_stack_top = const percpu::KERNEL_STACK_TOP,
    user_ds = const USER_DS,
    user_cs = const USER_CS,
    gs_base = const 0xc000_0101u32,
    enter_exception = sym traps::enter_exception,
    enter_page_fault = sym traps::enter_page_fault,
    do_breakpoint = sym traps::do_breakpoint,
    user_breakpoint = sym traps::user_breakpoint,
    other_user_breakpoint = sym traps::other_user_breakpoint,
    user_place = sym traps::user_place,
    run_user_handler = sym hit::run_user_handler,
    run_user_return = sym hit::run_user_return,
    do_debug = sym traps::do_debug,
    enter_match = sym traps::enter_match,
    enter_object_step = sym traps::enter_object_step,
    object_step = const percpu::OBJECT_STEP,
    object_ip = const percpu::OBJECT_STEP_IP,
    object_sp = const percpu::OBJECT_STEP_SP,
    object_flags = const percpu::OBJECT_STEP_FLAGS,
    object_touched = const percpu::OBJECT_STEP_TOUCHED,
    object_watch = const percpu::OBJECT_STEP_WATCH,
    object_words = const percpu::OBJECT_STEP_WORDS,
    object_places = sym watched_objects::USED,
    object_watches = sym watched_objects::WATCHES,
    object_first_page = const watched_objects::FIRST_PAGE,
    object_paged_bytes = const watched_objects::PAGED_BYTES,
    write_of_present = const watched_objects::WRITE_OF_PRESENT,
    stepped_flags = const watched_objects::STEPPED,
    trap_flag = const RFlags::TRAP_FLAG.bits(),
    write_protect = const Cr0Flags::WRITE_PROTECT.bits().trailing_zeros(),
    matched = const Dr6Flags::TRAP.bits() as u8,
    other_causes = const Dr6Flags::STEP.bits()
        | Dr6Flags::ACCESS_DETECTED.bits()
        | Dr6Flags::SWITCH.bits(),
    do_interrupt = sym traps::do_interrupt,
    enter_nmi = sym traps::enter_nmi,
    do_double_fault = sym traps::do_double_fault,
    exit_to_user = sym traps::exit_to_user,
);

unsafe extern "C" {
    static exception_stubs: [u64; vector::FIRST_INTERRUPT as usize];
    static interrupt_stubs: [[u8; INTERRUPT_STUB_BYTES]; 256 - vector::FIRST_INTERRUPT as usize];
    fn asm_syscall();
}

const INTERRUPT_STUB_BYTES: usize = 16;

/// The address of the stub that the gate of `vector` names.
pub fn stub(vector: u8) -> VirtAddr {
    match vector.checked_sub(vector::FIRST_INTERRUPT) {
        // SAFETY: the table is in read-only data, filled by the assembler.
        None => VirtAddr::new(unsafe { exception_stubs }[usize::from(vector)]),
        // SAFETY: only the address of the stub is taken.
        Some(n) => VirtAddr::from_ptr(unsafe { &raw const interrupt_stubs[usize::from(n)] }),
    }
}

/// The address of the `syscall` stub.
pub(super) fn syscall_stub() -> VirtAddr {
    VirtAddr::from_ptr(asm_syscall as *const ())
}

unsafe extern "C" {
    static __clac_sites_start: [u64; 0];
    static __clac_sites_end: [u64; 0];
}

/// The instruction `clac`; one more in its last byte makes it `stac` (Intel SDM vol. 2A and 2B).
/// The last bytes of the no-operations in the stubs are 0 and 1.
const CLAC: [u8; 3] = [0x0f, 0x01, 0xca];

/// Writes `clac` and `stac` into the stubs where the processor has SMAP. Call once, on the CPU that
/// boots, before another CPU can run the stubs.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn apply_processor_features() {
    if !cpu::has_smap() {
        return;
    }
    let (start, end) = (&raw const __clac_sites_start, &raw const __clac_sites_end);
    let count = (end.addr() - start.addr()) / size_of::<u64>();
    // SAFETY: the linker script puts the symbols around the table that the stubs' macro fills.
    let sites = unsafe { slice::from_raw_parts(start.cast::<u64>(), count) };
    for &site in sites {
        for (offset, byte) in (0..).zip(CLAC) {
            let alias = paging::text_alias(VirtAddr::new(site + offset));
            // SAFETY: the alias of live text may be read.
            let is_stac = offset == 2 && unsafe { alias.read_volatile() } == 1;
            // SAFETY: the site holds a no-operation of this length. No other CPU runs, and this one
            // is not inside a stub.
            unsafe { alias.write_volatile(byte + u8::from(is_stac)) };
        }
    }
}
