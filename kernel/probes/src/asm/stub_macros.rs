//! The assembler macros that the stubs are written with: frames, saved registers, calls, instances.
//!
//! [`stub_macros!`](crate::stub_macros) defines them at the beginning of a `global_asm!`, and
//! [`end_of_stub_macros!`](crate::end_of_stub_macros) takes them back at its end. Those of
//! instances are [`instance_macros!`](crate::instance_macros). They describe each push and pop to
//! the unwinder at once, because an NMI may take a backtrace at any instruction. A macro that
//! changes more registers than its operands says which.
//!
//! The frame is a [`PtRegs`](crate::PtRegs), built from its end. `lookup_frame` and `whole_frame`
//! begin a function where a part of it has been pushed already: by `kprobe_breakpoint`, or whole.

/// Pushes all general registers below `orig_ax`, as [`PtRegs`](crate::PtRegs) has them, with call
/// frame information.
#[macro_export]
macro_rules! push_general_registers {
    () => {
        r#"
    .irp register, rdi, rsi, rdx, rcx, rax, r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15
    push \register
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset \register, 0
    .endr
"#
    };
}

/// The reverse of [`push_general_registers!`].
#[macro_export]
macro_rules! pop_general_registers {
    () => {
        r#"
    .irp register, r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi
    pop \register
    .cfi_adjust_cfa_offset -8
    .cfi_restore \register
    .endr
"#
    };
}

/// Begins a function at whose entry the stack is as at `other` of
/// [`breakpoint_entry!`](crate::breakpoint_entry): the first words of a trap's frame, down to `ax`.
#[doc(hidden)]
#[macro_export]
macro_rules! begin_at_other {
    () => {
        r#"
    .cfi_startproc simple
    .cfi_signal_frame
    .cfi_def_cfa rsp, 88
    .cfi_offset rip, -40
    .cfi_offset rsp, -16
    .cfi_offset rdi, -56
    .cfi_offset rsi, -64
    .cfi_offset rdx, -72
    .cfi_offset rcx, -80
    .cfi_offset rax, -88
"#
    };
}

/// Ends such a function: the gate's owner, at the address in `{owner}`, gets the trap as the
/// processor left it.
#[doc(hidden)]
#[macro_export]
macro_rules! end_in_owner {
    () => {
        r#"
    .irp register, rax, rcx, rdx, rsi, rdi
    pop \register
    .cfi_adjust_cfa_offset -8
    .cfi_restore \register
    .endr
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    jmp qword ptr [rip + {owner}]
    .cfi_endproc
"#
    };
}

/// The definitions, for the beginning of a `global_asm!`.
/// [`end_of_stub_macros!`](crate::end_of_stub_macros) takes them back, because two `global_asm!`
/// may become one source for the assembler.
#[macro_export]
macro_rules! stub_macros {
    () => {
        ::core::concat!(
            r#"
# Begins a function. Its call frame information is begun by the next line: `called`, `lookup_frame`,
# `whole_frame` or one of its own.
.macro function name
    .pushsection .text.\name, "ax", @progbits
    .balign 16
    .globl \name
    .type \name, @function
\name:
.endm

.macro end_function name
    .cfi_endproc
    .size \name, . - \name
    .popsection
.endm

# For a function that is called.
.macro called
    .cfi_startproc
.endm

# For one that begins with the lowest `words` words of a frame still to be pushed, those above it
# pushed.
.macro pushed_frame words
    .cfi_startproc simple
    .cfi_signal_frame
    .cfi_def_cfa rsp, 8 * \words
    .cfi_offset rip, -40
    .cfi_offset rsp, -16
.endm

# For one that begins where `kprobe_breakpoint` has found the site.
.macro lookup_frame
    pushed_frame 11
    .cfi_offset rdi, -56
    .cfi_offset rsi, -64
    .cfi_offset rdx, -72
    .cfi_offset rcx, -80
    .cfi_offset rax, -88
.endm

# For one that begins with the whole frame pushed.
.macro whole_frame
    lookup_frame
    .cfi_def_cfa_offset 168
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
.endm

.macro push_word value
    push \value
    .cfi_adjust_cfa_offset 8
.endm

.macro pop_word value
    pop \value
    .cfi_adjust_cfa_offset -8
.endm

.macro push_flags
    pushfq
    .cfi_adjust_cfa_offset 8
.endm

.macro pop_flags
    popfq
    .cfi_adjust_cfa_offset -8
.endm

.macro pop_words count
    lea rsp, [rsp + 8 * \count]
    .cfi_adjust_cfa_offset -8 * \count
.endm

.macro push_registers registers:vararg
    .irp register, \registers
    push \register
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset \register, 0
    .endr
.endm

.macro pop_registers registers:vararg
    .irp register, \registers
    pop \register
    .cfi_adjust_cfa_offset -8
    .cfi_restore \register
    .endr
.endm

.macro push_all
"#,
            $crate::push_general_registers!(),
            r#"
.endm

.macro pop_all
"#,
            $crate::pop_general_registers!(),
            r#"
.endm

# Goes on as a frame says, of which all down to `orig_ax` is left on the stack.
.macro return_from_trap
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    iretq
.endm

# Goes on as the whole frame at rsp says. The code that follows begins with the whole frame, too.
.macro resume_as_framed
    .cfi_remember_state
    pop_all
    return_from_trap
    # The assembler's adjustments forget what a `restore_state` has restored.
    .cfi_restore_state
    .cfi_def_cfa_offset 168
.endm

# Calls with the stack aligned, wherever it was. Changes rbp.
.macro call_aligned target
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    and rsp, -16
    call \target
    mov rsp, rbp
    .cfi_def_cfa_register rsp
.endm
"#
        )
    };
}

/// The definitions of those that take instances and borrow return addresses, after
/// [`stub_macros!`](crate::stub_macros).
#[macro_export]
macro_rules! instance_macros {
    () => {
        ::core::concat!(
            r#"
# As `FreeList::pop`: takes an instance from `list`. Leaves rax, the instance; changes rbx, rcx and
# rdx.
.macro pop_instance list, on_empty
"#,
            $crate::pop_instance!("\\list", "\\on_empty"),
            r#"
.endm

# Fills the instance rax in. In: rcx, the return address; rdx, the task's newest call.
.macro fill_instance return_frame
    mov [rax + {ret_addr}], rcx
    mov [rax + {return_frame}], \return_frame
    mov [rax + {next}], rdx
.endm

# Borrows a return address, as `Hits::enter_call` in `hit/calls.rs` does, but leaves what takes the
# slow path to it: calls were abandoned, or the slot is borrowed already. In: rax, an instance of
# this CPU's own; `return_frame`, the register with the address of the frame that the trampoline
# will build. The address of `kretprobe_trampoline` is a constant, in memory, or in a register,
# which is loaded from `mark` where one is given. Leaves `cell`, the task's cell; changes rcx and
# rdx. At `slow_path` the instance is still this CPU's, rdx the newest call if there is no `mark`.
#
# A borrowed slot holds the address of either trampoline, so it is one of a range, of which no other
# address is ever returned to.
#
# The caller then stores the trampoline's address in the return slot. That is the last step, because
# a stack walk in an NMI that finds the trampoline there asks the instance list.
.macro borrow_return cell, return_frame, trampoline, slow_path, mark
    mov \cell, gs:[{per_cpu} + {cell}]
    mov rdx, [\cell + {cell_head}]
    cmp [rdx + {return_frame}], \return_frame
    jbe \slow_path
    mov rcx, [\return_frame + {below_slot}]
    fill_instance \return_frame
    .ifnb \mark
    movabs \trampoline, \mark
    .endif
    sub rcx, \trampoline
    cmp rcx, {to_action_trampoline}
    jbe \slow_path
    mov [\cell + {cell_head}], rax
.endm

# Has another return probe join the task's newest call. In: rax, an instance of its own; r9, the
# call's frame with the mark. Changes rcx, rdx and rdi.
.macro join_newest_call
    mov rdi, gs:[{per_cpu} + {cell}]
    mov rdx, [rdi + {cell_head}]
    mov rcx, [rdx + {ret_addr}]
    fill_instance r9
    mov [rdi + {cell_head}], rax
.endm
"#
        )
    };
}

/// The end of a `global_asm!` that [`stub_macros!`](crate::stub_macros) has begun.
#[macro_export]
macro_rules! end_of_stub_macros {
    () => {
        r#"
    .irp name, function, end_function, called, pushed_frame, lookup_frame, whole_frame
    .purgem \name
    .endr
    .irp name, push_word, pop_word, push_flags, pop_flags, pop_words, push_registers, pop_registers
    .purgem \name
    .endr
    .irp name, push_all, pop_all, return_from_trap, resume_as_framed, call_aligned
    .purgem \name
    .endr
"#
    };
}

/// The end of what [`instance_macros!`](crate::instance_macros) has begun.
#[macro_export]
macro_rules! end_of_instance_macros {
    () => {
        r#"
    .irp name, pop_instance, fill_instance, borrow_return, join_newest_call
    .purgem \name
    .endr
"#
    };
}
