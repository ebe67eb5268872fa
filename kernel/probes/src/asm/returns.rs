//! Where control comes back to the probes without an exception: after a probed call, after a slot
//! with a post handler, after the handler of a jprobe.
//!
//! None of these functions is called like one: the trampolines are entered by a `ret`, the post
//! stub by the end of a slot, `jprobe_return` by a handler that will not be returned to. So each
//! builds the frame that an exception would have left, and begins by taking the guard or with it
//! held. What it does then is what the Rust in `hit` does; only rare cases go there.

/// These functions; part of [`entry_points!`](crate::entry_points).
#[macro_export]
macro_rules! returns {
    () => {
        r#"
# Handlers run with DF and AC clear; hardly any code has one of them set.
.macro clear_df_and_ac
    test dword ptr [rsp + {flags}], {df_and_ac}
    jz .Lclear\@
    push_word "[rsp + {flags}]"
    and dword ptr [rsp], ~{df_and_ac}
    pop_flags
.Lclear\@:
.endm

# In: rdx, the kretprobe; `instance`, a register. Changes the registers that a call changes.
.macro run_return_handler instance
    count_hit rdx, rcx
    mov gs:[{per_cpu} + {running}], rdx
    mov rdi, \instance
    call [rdx + {handler}]
.endm

# The frame of `kretprobe_trampoline`, drawn there; and the guard.
.macro build_return_frame
    push_word rsp
    push_word {ss}
    push_word "qword ptr [rsp + 8]"
    push_flags
    push_word {cs}
    push_word 0
    push_word -1
    push_all
    # One instruction: from here on this CPU switches no tasks, whichever it was before.
    inc dword ptr gs:[{per_cpu} + {guard}]
    clear_df_and_ac
.endm

# A return-probed function returns to it. It builds a frame, runs the handlers of the call's probes,
# gives their instances back and goes to where the call came from: as `hit/calls.rs::Returning`.
# Where the task's newest call is another one, `on_return` does all that in Rust.
#
#   S       rsp on arrival and on departure
#   S-0x08  return slot      S, its own end: while handlers run, where the call came from is in the
#                            instance list
#   S-0x10  ss               PtRegs, last field first: what the probed function left behind.
#   S-0x18  rsp (= S)        In the end where the call came from; `ret 16` takes it from there
#   S-0x20  rflags           A handler may change the flags and the general registers
#   S-0x28  cs
#   S-0x30  rip              where the call came from
#   S-0x38  orig_ax (-1)
#   S-0x40  rdi ... down to
#   S-0xb0  r15              <- rsi at the call: 16-aligned, as S is after a call
    function kretprobe_trampoline
    # The frame above is that of the return slot's address. As long as the slot holds its own end,
    # that is in the instance list.
    .cfi_startproc simple
    .cfi_def_cfa rsp, 0
    .cfi_offset rip, -8
    build_return_frame
    # rbx: the task's cell; r12: its newest call; rsi: this frame, if it is aligned.
    mov rbx, gs:[{per_cpu} + {cell}]
    mov r12, [rbx + {cell_head}]
    mov rsi, rsp
    and rsi, -16
    # Else the call has several probes, or is not the newest, or the stack has to be aligned.
    cmp [r12 + {return_frame}], rsi
    jne .Lreturn_not_single
    mov r14, [r12 + {next}]
    mov rbp, [r12 + {ret_addr}]
    mov [rsp + {ip}], rbp
    mov r15, [r12 + {instance_holder}]
    mov rdx, [r15 + {holder_kretprobe}]
    run_return_handler r12
    # The address first, because a stack walk in an NMI needs it or the instance list.
    mov [rsp + {sp}], rbp
    .cfi_offset rip, -24
    mov [rbx + {cell_head}], r14
    mov rax, [r15]
    push_instance r12, r15
.Lreturn_leave:
    dec dword ptr gs:[{per_cpu} + {guard}]
    .cfi_remember_state
    pop_all
    pop_words 3
    pop_flags
    ret 16
    # The assembler's adjustments forget what a `restore_state` has restored.
    .cfi_restore_state
    .cfi_def_cfa_offset {frame_bytes} + 8
    .cfi_offset rip, -8

.Lreturn_not_single:
    # Several probes: the frames of all instances of the call but the oldest are marked.
    .cfi_remember_state
    lea rax, [rsi - {shared}]
    cmp [r12 + {return_frame}], rax
    jne .Lreturn_slow_path
    mov rbp, [r12 + {ret_addr}]
    mov [rsp + {ip}], rbp
    # r14: the instance; then the next older call.
    mov r14, r12
.Lreturn_next:
    mov rdx, [r14 + {instance_holder}]
    mov rdx, [rdx + {holder_kretprobe}]
    mov rsi, rsp
    run_return_handler r14
    cmp [r14 + {return_frame}], rsp
    mov r14, [r14 + {next}]
    jne .Lreturn_next
    # As above: the address, the instance list, the instances.
    mov [rsp + {sp}], rbp
    .cfi_offset rip, -24
    mov [rbx + {cell_head}], r14
.Lreturn_give_back:
    mov rax, r12
    mov r12, [r12 + {next}]
    call kretprobe_give_back
    cmp r12, r14
    jne .Lreturn_give_back
    jmp .Lreturn_leave
    .cfi_restore_state
    .cfi_def_cfa_offset {frame_bytes} + 8
    .cfi_offset rip, -8

.Lreturn_slow_path:
    mov rdi, rsp
    call_aligned {on_return}
    mov [rsp + {sp}], rax
    jmp .Lreturn_leave
    end_function kretprobe_trampoline

# Where a slot ends when a post handler waits. Interrupts are off, the guard is free, and
# `finishing` is set.
#
#   E+8     rsp of the code once the instruction is done
#   E       on arrival: where execution goes on; then ss     PtRegs, last field first
#   E-0x08  rsp (= E, then corrected by 8)
#   E-0x10  rflags
#   E-0x18  cs
#   E-0x20  rip              copied from E
#   E-0x28  orig_ax (-1)
#   E-0x30  rdi ... down to
#   E-0xa0  r15              <- rsi at the call
    function kprobe_post_stub
    .cfi_startproc simple
    .cfi_signal_frame
    .cfi_def_cfa rsp, 8
    .cfi_offset rip, -8
    push_word rsp
    push_flags
    push_word {cs}
    push_word "qword ptr [rsp + 24]"
    .cfi_rel_offset rip, 0
    push_word -1
    push_all
    mov qword ptr [rsp + {ss_at}], {ss}
    add qword ptr [rsp + {sp}], 8
    # Interrupts are off already; so are DF and AC from here on.
    push_word 2
    pop_flags
    # The code's own IF and TF.
    mov eax, gs:[{per_cpu} + {saved_flags}]
    and eax, {if_and_tf}
    and dword ptr [rsp + {flags}], ~{if_and_tf}
    or [rsp + {flags}], eax
    # In this order: in between, as before, this CPU is seen to be in a hit.
    inc dword ptr gs:[{per_cpu} + {guard}]
    mov rdi, gs:[{per_cpu} + {finishing}]
    mov qword ptr gs:[{per_cpu} + {finishing}], 0
    # As `hit/...::is_canonical`.
    mov rax, [rsp + {ip}]
    shl rax, 16
    sar rax, 16
    cmp rax, [rsp + {ip}]
    jne .Lpost_not_canonical
    mov rsi, rsp
    call_aligned kprobe_run_posts
.Lpost_leave:
    dec dword ptr gs:[{per_cpu} + {guard}]
    resume_as_framed
.Lpost_not_canonical:
    # A call or jump to where nothing can be. Loaded by the `iretq` that would be a fault of ours;
    # in the plain slot the instruction raises it itself.
    mov rax, gs:[{per_cpu} + {saved_sp}]
    mov [rsp + {sp}], rax
    mov rax, [rdi + {site_slot}]
    mov [rsp + {ip}], rax
    jmp .Lpost_leave
    end_function kprobe_post_stub
"#
    };
}
