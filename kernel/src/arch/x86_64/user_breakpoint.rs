//! The stub of breakpoints that are no probe's of the kernel: those of programs in ring 3.
//!
//! It finds the place in the running program's table, without a lock, and jumps to the code that
//! the probe of the place names, if there is one only and its instruction is carried out in a slot:
//!
//! ```text
//!   kprobe_breakpoint ─► asm_breakpoint_other
//!      │ a place of the program      ─► what its probe names:
//!      │    ├─ asm_user_action       call the action; to the slot
//!      │    ├─ asm_user_handler      call the handler with the whole frame; to the slot
//!      │    ├─ asm_user_call         enter a call, borrow its return address; to the slot
//!      │    └─ asm_user_place        Rust: several probes, post and entry handlers, one process
//!      │ the trampoline, and the newest call has returned ─► what its probe names:
//!      │    ├─ asm_user_return_action[_in_place]   give the call back, call the action
//!      │    └─ asm_user_return_handler             call the handler with the whole frame; both
//!      │                                           to the true return address
//!      └ anything else               ─► Rust
//! ```
//!
//! Whatever is unusual starts over in Rust, with the frame as it was: a probe that does not fire,
//! no room for a call, a stack pointer that is not below those of the calls before, a stack that
//! must be brought in or may not be written, a return address that is the trampoline or after it,
//! a return that is not the newest call's.
//!
//! # Registers
//! The five registers that `kprobe_breakpoint` has saved are free. On the way to a probe's code:
//! rax the program's memory ([`UserSpace`](crate::mm::user_space::UserSpace)), rcx the place, rdx
//! its address, rsi the probe, rdi as in the program. After the trampoline: rax as before, rcx room
//! for the next call, rdi the probe.
//!
//! # What the program can do
//! It may write its stack at any time, and come to the trampoline by any way. So the return address
//! that was borrowed is kept here, and so is the slot that the stack pointer is compared with. The
//! address is below the trampoline, or Rust has looked at it, so `iretq` takes it.
//!
//! # The way back
//! A request to run another task or to end this one may come from an action, and is then served
//! first. One from another CPU comes with an interrupt, or waits for the next tick: so the stub
//! asks only where it has called something.

/// The text of the stub, for the assembly of the entry stubs, whose macros it uses.
macro_rules! user_breakpoint_stub {
    () => {
        r#"
# Has a Rust function serve a breakpoint of ring 3 with the whole frame, and goes back.
.macro serve_user_breakpoint function
    save_r8_to_r15
    call_with_frame \function
    test al, al
    jnz return_to_user_by_iret
    jmp exception_return
.endm

# The assembler's adjustments forget what a `.cfi_restore_state` has restored.
.macro restore_state_at_other
    .cfi_restore_state
    .cfi_def_cfa_offset 88
    .cfi_remember_state
.endm

# Goes back to ring 3 with the registers that are saved.
.macro back_to_user
    swapgs
    restore rax
    restore rcx
    restore rdx
    restore rsi
    restore rdi
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    iretq
    restore_state_at_other
.endm

# The same, unless something is to be done first.
.macro back_to_user_or_kernel
    cmp byte ptr gs:[{need_resched}], 0
    jne .Luser_later
    mov rax, gs:[{current}]
    cmp byte ptr [rax + {interrupted}], 0
    jne .Luser_later
    back_to_user
.endm

# An instruction that may fault, and where to go on then.
.macro may_fault_to label
    .pushsection __ex_table, "a", @progbits
    .balign 8
    .quad 76b, \label
    .popsection
.endm

# The newest call is over, and counted.
.macro take_newest_call
    sub qword ptr [rax + {next_call}], {call_bytes}
    lock inc qword ptr [rdi + {hits}]
.endm

# The same, and it gives its rights back. The place of the probe still holds it, because a probe is
# taken from there before this CPU is asked for an answer.
.macro end_newest_call
    take_newest_call
    lock inc dword ptr [rdi + {left}]
    lock dec qword ptr [rdi + {holders}]
.endm

.macro call_return_action
    push rdi
    .cfi_adjust_cfa_offset 8
    call [rdi + {return_action}]
    add rsp, 8
    .cfi_adjust_cfa_offset -8
.endm

# rdx: the trap's ip.
begin_stub asm_breakpoint_other
    begin_frame 11
    .cfi_offset rdi, -56
    .cfi_offset rsi, -64
    .cfi_offset rdx, -72
    .cfi_offset rcx, -80
    .cfi_offset rax, -88
    .cfi_remember_state
    cld
    clac_if_smap
    test byte ptr [rsp + {early_cs}], 3
    jz .Lkernel_breakpoint
    swapgs
    # A task of ring 3 has memory (TASK-3).
    mov rax, gs:[{current}]
    mov rax, [rax + {own_space}]
    mov rsi, [rax + {table}]
    dec rdx
    mov rcx, rdx
    shr rcx, 4
    xor rcx, rdx
    and rcx, [rsi + {mask}]
    shl rcx, {entry_bits}
    add rcx, [rsi + {entries}]
    cmp [rcx], rdx
    jne .Luser_other
    mov rcx, [rcx + {entry_place}]
    mov rsi, [rcx + {served_by}]
    jmp [rsi + {serve}]

    .globl asm_user_action
asm_user_action:
    cmp byte ptr [rsi + {state}], {registered}
    jne asm_user_place
    lock inc qword ptr [rsi + {hits}]
    push rcx
    .cfi_adjust_cfa_offset 8
    call [rsi + {action}]
    pop rcx
    .cfi_adjust_cfa_offset -8
    mov rax, [rcx + {slot}]
    mov [rsp + {early_ip}], rax
    back_to_user_or_kernel

    .globl asm_user_handler
asm_user_handler:
    cmp byte ptr [rsi + {state}], {registered}
    jne asm_user_place
    lock inc qword ptr [rsi + {hits}]
    mov [rsp + {early_ip}], rdx
    save_r8_to_r15
    mov rdi, rsi
    mov rsi, rsp
    push rcx
    .cfi_adjust_cfa_offset 8
    call {run_user_handler}
    pop rcx
    .cfi_adjust_cfa_offset -8
    # Where a handler has said where to go on, that may be no address of a program.
    test al, al
    jnz exception_return
    mov rax, [rcx + {slot}]
    mov [rsp + {ip}], rax
.Luser_handled:
    # What a handler may have changed, as `make_user` of `traps.rs`.
    mov eax, [rsp + {flags}]
    and eax, {user_flags}
    or eax, {own_flags}
    mov [rsp + {flags}], rax
    mov qword ptr [rsp + {cs}], {user_cs}
    mov qword ptr [rsp + {ss}], {user_ds}
    cmp byte ptr gs:[{need_resched}], 0
    jne exception_return
    mov rax, gs:[{current}]
    cmp byte ptr [rax + {interrupted}], 0
    jne exception_return
    jmp return_to_user_by_iret
    restore_state_at_other

    .globl asm_user_call
asm_user_call:
    mov rcx, [rcx + {slot}]
    mov [rsp + {early_ip}], rcx
    mov rcx, [rax + {next_call}]
    cmp rcx, [rax + {end_of_calls}]
    je .Luser_call_in_rust
    mov [rcx + {call_di}], rdi
    mov rdi, [rsi + {state}]
    cmp dil, {registered}
    jne .Luser_call_in_rust
    mov [rcx + {call_followed}], rdi
    mov [rcx + {call_function}], rdx
    # Below the slot of the newest call. That of no call is such that the word is the program's.
    mov rdi, [rsp + {early_sp}]
    cmp [rcx - {call_bytes} + {call_slot}], rdi
    jbe .Luser_call_in_rust
    mov [rcx + {call_slot}], rdi
    lock dec dword ptr [rsi + {left}]
    js .Luser_call_undone
    stac_if_smap
76: mov rdx, [rdi]
    may_fault_to .Luser_call_fault
    cmp rdx, [rax + {trampoline}]
    jae .Luser_call_fault
    mov [rcx + {call_return}], rdx
    mov rdx, [rax + {trampoline}]
76: mov [rdi], rdx
    may_fault_to .Luser_call_fault
    clac_if_smap
    mov [rcx + {call_probe}], rsi
    lock inc qword ptr [rsi + {holders}]
    add qword ptr [rax + {next_call}], {call_bytes}
    back_to_user

    # Nothing has changed but the number of calls that are left.
.Luser_call_fault:
    clac_if_smap
.Luser_call_undone:
    lock inc dword ptr [rsi + {left}]
    mov rdx, [rcx + {call_function}]
.Luser_call_in_rust:
    inc rdx
    mov [rsp + {early_ip}], rdx
.Luser_anew:
    serve_user_breakpoint {user_breakpoint}
    restore_state_at_other

    .globl asm_user_place
asm_user_place:
    mov rsi, rcx
    serve_user_breakpoint {user_place}
    restore_state_at_other

.Luser_other:
    cmp rdx, [rax + {trampoline}]
    jne .Luser_elsewhere
    # The program can come here with any stack pointer, also without a call. What is before the
    # first call has a probe that is not registered.
    mov rcx, [rax + {next_call}]
    mov rsi, [rsp + {early_sp}]
    sub rsi, 8
    cmp [rcx - {call_bytes} + {call_slot}], rsi
    jne .Luser_return
    mov rdi, [rcx - {call_bytes} + {call_probe}]
    mov rdx, [rcx - {call_bytes} + {call_followed}]
    cmp rdx, [rdi + {state}]
    jne .Luser_return
    jmp [rdi + {serve_return}]

    .globl asm_user_return_handler
asm_user_return_handler:
    mov rdx, [rcx - {call_bytes} + {call_return}]
    mov [rsp + {early_ip}], rdx
    take_newest_call
    lea rdi, [rcx - {call_bytes}]
    save_r8_to_r15
    mov rsi, rsp
    push rdi
    .cfi_adjust_cfa_offset 8
    call {run_user_return}
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    jmp .Luser_handled
    restore_state_at_other

    .globl asm_user_return_action
asm_user_return_action:
    mov rdx, [rcx - {call_bytes} + {call_return}]
    mov [rsp + {early_ip}], rdx
    end_newest_call
    call_return_action
    back_to_user_or_kernel

    # As a handler of the tracer does it (`trace/user.rs`): the action finds the function, and what
    # DI was, in words of the frame that ring 3 does not need. It takes one off the ip.
    .globl asm_user_return_action_in_place
asm_user_return_action_in_place:
    mov rdx, [rcx - {call_bytes} + {call_return}]
    inc rdx
    mov [rsp + {early_ip}], rdx
    mov rdx, [rcx - {call_bytes} + {call_function}]
    mov [rsp + {early_orig_ax}], rdx
    cmp byte ptr [rdi + {keeps_di}], 0
    je 2f
    mov rdx, [rcx - {call_bytes} + {call_di}]
    mov [rsp + {early_ss}], rdx
2:  end_newest_call
    call_return_action
    dec qword ptr [rsp + {early_ip}]
    mov qword ptr [rsp + {early_ss}], {user_ds}
    back_to_user_or_kernel

    # Either nothing is there, or a place whose turn comes later.
.Luser_elsewhere:
    cmp qword ptr [rcx], 0
    jne .Luser_anew
.Luser_return:
    serve_user_breakpoint {other_user_breakpoint}
    restore_state_at_other

.Luser_later:
    save_r8_to_r15
    jmp exception_return
    restore_state_at_other

.Lkernel_breakpoint:
    save_r8_to_r15
    call_with_frame {do_breakpoint}
    jmp exception_return
end_stub asm_breakpoint_other
"#
    };
}

pub(super) use user_breakpoint_stub;
