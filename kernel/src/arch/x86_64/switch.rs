//! The change from one task's stack to another's, and the first frames of a new task.
//!
//! ```text
//!   kernel stack of a task that has not run yet, from the top:
//!   stack_top   PtRegs for ring 3 (TASK-4 in `task`)
//!   -0x0a8      return address: ret_from_fork     <- what `__switch_to` pops and returns to
//!   -0x0b0      rbp = 0                            ends chains of frame pointers
//!   -0x0b8      rbx = function
//!   -0x0c0      r12 = argument
//!   -0x0c8      r13
//!   -0x0d0      r14
//!   -0x0d8      r15                             <- saved_sp
//! ```

use super::{
    PtRegs,
    gdt::TSS_RSP0,
    percpu::{self, PerCpu},
};
use crate::task::{PID, SAVED_SP, STACK_TOP, Task, scheduler};
use core::{
    arch::{global_asm, naked_asm},
    mem::offset_of,
    sync::atomic::Ordering,
};
use unwind::{Frame, Memory, register};

/// Saves the registers of `task` that a call preserves, on its stack, and continues `next` where it
/// left off. Returns, on the stack of `next`, the task that was left. The only place where the
/// kernel changes from one task's stack to another's.
///
/// ```text
///   S        return address <- rsp on entry
///   S-0x08   rbp
///   S-0x10   rbx
///   S-0x18   r12
///   S-0x20   r13
///   S-0x28   r14
///   S-0x30   r15            <- saved_sp
/// ```
///
/// # Safety
/// 1. `task` is current, and interrupts are off.
/// 2. `next` is not on a CPU, and its `saved_sp` points to such a frame.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __switch_to(task: *const Task, next: *const Task) -> *const Task {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r13, 0",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r14, 0",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r15, 0",
        "mov [rdi + {saved_sp}], rsp",
        "mov rsp, [rsi + {saved_sp}]",
        "mov gs:[{current}], rsi",
        "mov eax, [rsi + {pid}]",
        "mov gs:[{ids}], eax",
        "mov gs:[{ids} + 4], eax",
        "mov rax, [rsi + {stack_top}]",
        "mov gs:[{kernel_stack_top}], rax",
        "mov gs:[{rsp0}], rax",
        "mov rax, rdi",
        "pop r15",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r15",
        "pop r14",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r14",
        "pop r13",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r13",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r12",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        saved_sp = const SAVED_SP,
        stack_top = const STACK_TOP,
        current = const percpu::CURRENT,
        pid = const PID,
        ids = const percpu::CURRENT_IDS,
        kernel_stack_top = const percpu::KERNEL_STACK_TOP,
        rsp0 = const offset_of!(PerCpu, tss) + TSS_RSP0,
    )
}

// The first code of a task. rax is the task that ran before, rbx a function, r12 its argument, rsp
// the frame for ring 3. When the function returns, the task leaves like all entries, to where the
// frame says.
global_asm!(
    r#"
    .pushsection .entry.text, "ax", @progbits
    .balign 16
    .globl ret_from_fork
    .type ret_from_fork, @function
ret_from_fork:
    .cfi_startproc simple
    .cfi_def_cfa rsp, {frame}
    .cfi_undefined rip
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    mov rdi, rax
    call {begin_task}
    mov rdi, r12
    call rbx
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    jmp exception_return
    .cfi_endproc
    .size ret_from_fork, . - ret_from_fork
    .popsection
    "#,
    frame = const size_of::<PtRegs>(),
    begin_task = sym scheduler::begin_task,
);

unsafe extern "C" {
    fn ret_from_fork();
}

/// The frame from which `task` called [`__switch_to`], for backtraces. For a task that does not
/// run.
pub(crate) fn saved_frame(task: &Task, memory: &impl Memory) -> Option<Frame> {
    let saved = task.saved_sp.load(Ordering::Acquire);
    let mut registers = [0; register::COUNT];
    let layout = [
        register::R15,
        register::R14,
        register::R13,
        register::R12,
        register::BX,
        register::BP,
        register::IP,
    ];
    for (index, number) in (0..).zip(layout) {
        registers[number] = memory.read(saved + index * 8)?;
    }
    registers[register::SP] = saved + 8 * layout.len() as u64;
    Some(Frame {
        registers,
        interrupted: false,
    })
}

/// Where the frame for ring 3 is on a kernel stack that ends at `stack_top`.
#[inline(always)]
pub(crate) fn user_regs(stack_top: u64) -> *mut PtRegs {
    (stack_top as usize - size_of::<PtRegs>()) as *mut PtRegs
}

/// Writes the first frames of a task that calls `function(argument)` and then goes to ring 3 as
/// `regs` say. Returns its `saved_sp`.
///
/// # Safety
/// 1. The kernel stack that ends at `stack_top` is mapped and unused.
pub(crate) unsafe fn prepare_stack(
    stack_top: u64,
    function: extern "C" fn(usize),
    argument: usize,
    regs: &PtRegs,
) -> u64 {
    let frame = user_regs(stack_top);
    let saved: [u64; 7] = [
        0, // r15
        0, // r14
        0, // r13
        argument as u64,
        function as usize as u64,
        0, // rbp
        ret_from_fork as *const () as u64,
    ];
    let sp = frame.addr() - size_of_val(&saved);
    // SAFETY: the topmost bytes of an unused stack (1).
    unsafe {
        frame.write(*regs);
        (sp as *mut [u64; 7]).write(saved);
    }
    sp as u64
}
