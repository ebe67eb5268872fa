//! The templates that [detours](crate::data::detour) are copied from.
//!
//! ```text
//!   S       rsp of the probed code
//!   S-0x08  ss               PtRegs, last field first
//!   S-0x10  rsp (= S)        pushed 8 too low, then corrected
//!   S-0x18  rflags
//!   S-0x20  cs
//!   S-0x28  rip              the probed address + 1
//!   S-0x30  orig_ax (-1)
//!   S-0x38  rdi ... down to
//!   S-0xa8  r15              <- rsi at the call
//! ```
//!
//! `kretprobe_detour`, `kretprobe_detour_keeping_flags`, `kretprobe_detour_action` and
//! `kretprobes_detour` build no such frame.

/// The templates; never executed where they are. Part of [`entry_points!`](crate::entry_points).
#[macro_export]
macro_rules! detours {
    () => {
        r#"
# Begins a template with what is seldom executed. At the first instruction the frame is whole, and
# what it says is where to go on.
.macro detour name
    function \name
    whole_frame
.L\name\()_miss:
    # In another hit: nothing is handled, but counted.
    cld
    movabs rdi, {site_mark}
    mov rsi, rsp
    call_aligned {miss}
    jmp .L\name\()_restore
.L\name\()_leave:
    # A handler has said where to go on.
    mov rdi, rsp
    call_aligned {resume}
    dec dword ptr gs:[{per_cpu} + {guard}]
    resume_as_framed
.endm

# Where the jump leads to. Builds the frame and takes the guard.
.macro detour_enter name
    .cfi_endproc
    # Until `ip` is pushed, the walk knows by the offset where the frame above is.
    .cfi_startproc simple
    .cfi_signal_frame
    .cfi_def_cfa rsp, 0
    .globl \name\()_enter
\name\()_enter:
    push_word {ss}
    push_word rsp
    push_flags
    push_word {cs}
    # push imm32, the long form
    .byte 0x68
    .long 0
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rip, 0
    push_word -1
    push_all
    # The rsp that was pushed is one word too low. A stack walk takes it from the frame, at `_miss`
    # from the first instruction on.
    add qword ptr [rsp + {sp}], 8
    inc dword ptr gs:[{per_cpu} + {guard}]
    jnz .L\name\()_miss
.endm

# Restores everything. The displaced instructions follow.
.macro detour_end name
.L\name\()_restore:
    dec dword ptr gs:[{per_cpu} + {guard}]
    pop_all
    pop_words 3
    pop_flags
    pop_words 2
    .globl \name\()_end
\name\()_end:
    end_function \name
.endm

# rdi and rsi for the `chain` of the site's first probe.
.macro detour_arguments
    movabs rdi, {site_mark}
    mov rsi, rsp
    mov rdi, [rdi + {head}]
.endm

# At a function's entry, where the stack is aligned.
    detour kprobe_detour_at_entry
    detour_enter kprobe_detour_at_entry
    cld
    detour_arguments
    call [rdi + {chain}]
    test al, al
    jnz .Lkprobe_detour_at_entry_leave
    detour_end kprobe_detour_at_entry

# Everywhere else.
    detour kprobe_detour
    detour_enter kprobe_detour
    clear_df_and_ac
    detour_arguments
    call_aligned "[rdi + {chain}]"
    test al, al
    jnz .Lkprobe_detour_leave
    detour_end kprobe_detour

# At a function's entry with nothing but a return probe that has an entry handler or data: as
# `kretprobe_handle_entry`, but the probe is known. The frame is as far below the return slot as
# that of the return will be.
    detour kretprobe_detour_entry
.Ldetour_entry_slow_path:
    call kretprobe_give_back
.Ldetour_entry_no_instance:
    # As for any other probes.
    detour_arguments
    call [rdi + {chain}]
    test al, al
    jnz .Lkretprobe_detour_entry_leave
    jmp .Lkretprobe_detour_entry_restore
.Ldetour_entry_declined:
    call kretprobe_decline
    jmp .Lkretprobe_detour_entry_restore
    detour_enter kretprobe_detour_entry
    cld
    movabs r12, {kretprobe_mark}
    mov rdi, [r12 + {lone_holder}]
    pop_instance rdi, .Ldetour_entry_no_instance
    borrow_return rdi, rsp, r14, .Ldetour_entry_slow_path, {trampoline_mark}
    mov gs:[{per_cpu} + {running}], r12
    mov rdi, rax
    mov rsi, rsp
    call [r12 + {enter}]
    test al, al
    jnz .Ldetour_entry_declined
    mov [rsp + {below_slot}], r14
    detour_end kretprobe_detour_entry

# At a function's entry with nothing but a return probe that wants nothing there: as
# `kprobe_one_kretprobe`. Whatever takes the slow path it leaves to the int3, which stands for the
# breakpoint at the function's entry. `flags`: 8 if the code may read the arithmetic flags that it
# finds, so that they are kept, else 0.
#
#   S       return slot
#   S-0x08  rflags, if they are kept; all below is 8 higher if not
#   S-0x10  rax
#   S-0x18  rcx
#   S-0x20  rdx
#   S-0x28  rbx
#   S-0x30  rdi
.macro lone_return name, flags
    function \name
    .cfi_startproc simple
    .cfi_def_cfa rsp, 48 + \flags
    .cfi_offset rip, -8
    .cfi_offset rax, -16 - \flags
    .cfi_offset rcx, -24 - \flags
    .cfi_offset rdx, -32 - \flags
    .cfi_offset rbx, -40 - \flags
    .cfi_offset rdi, -48 - \flags
.L\name\()_slow_path:
    call kretprobe_give_back
.L\name\()_nothing_done:
    pop_registers rdi, rbx, rdx, rcx, rax
    .if \flags
    pop_flags
    .endif
    int3
    .globl \name\()_enter
\name\()_enter:
    .if \flags
    push_flags
    .endif
    push_registers rax, rcx, rdx, rbx, rdi
    cmp dword ptr gs:[{per_cpu} + {guard}], -1
    jne .L\name\()_nothing_done
    movabs rdi, {kretprobe_mark}
    mov rdi, [rdi + {lone_holder}]
    pop_instance rdi, .L\name\()_nothing_done
    lea rbx, [rsp + 40 + \flags - {below_slot}]
    borrow_return rdi, rbx, rdx, .L\name\()_slow_path, {trampoline_mark}
    mov [rsp + 40 + \flags], rdx
    pop_registers rdi, rbx, rdx, rcx, rax
    .if \flags
    pop_flags
    .endif
    .globl \name\()_end
\name\()_end:
    end_function \name
.endm
    lone_return kretprobe_detour, 0
    lone_return kretprobe_detour_keeping_flags, 8

# At a function's entry with nothing but a return probe whose entry is an action's: as
# `kretprobe_detour_entry`, with few registers and no frame. Whatever takes the slow path it leaves
# to the int3, as `kretprobe_detour` does.
#
#   S       return slot      `EntryFrame`, last field first
#   S-0x08  rflags
#   S-0x10  rdi
#   S-0x18  rsi
#   S-0x20  rdx
#   S-0x28  rcx
#   S-0x30  rax
#   S-0x38  rbx, and then the instance: 16-aligned at the call
    function kretprobe_detour_action
    .cfi_startproc simple
    .cfi_def_cfa rsp, 64
    .cfi_offset rip, -8
    .cfi_offset rdi, -24
    .cfi_offset rsi, -32
    .cfi_offset rdx, -40
    .cfi_offset rcx, -48
    .cfi_offset rax, -56
.Ldetour_action_declined:
    call kretprobe_decline
    jmp .Ldetour_action_leave
.Ldetour_action_slow_path:
    .cfi_offset rbx, -64
    call kretprobe_give_back
.Ldetour_action_nothing_done:
    dec dword ptr gs:[{per_cpu} + {guard}]
    pop_registers rbx, rax, rcx, rdx, rsi, rdi
    pop_flags
    int3
    .globl kretprobe_detour_action_enter
kretprobe_detour_action_enter:
    push_flags
    push_registers rdi, rsi, rdx, rcx, rax, rbx
    inc dword ptr gs:[{per_cpu} + {guard}]
    jnz .Ldetour_action_nothing_done
    cld
    movabs rsi, {kretprobe_mark}
    mov rdi, [rsi + {lone_holder}]
    pop_instance rdi, .Ldetour_action_nothing_done
    lea rbx, [rsp + 56 - {below_slot}]
    borrow_return rdi, rbx, "[rsi + {kretprobe_trampoline}]", .Ldetour_action_slow_path
    pop_registers rbx
    push_word rax
    mov gs:[{per_cpu} + {running}], rsi
    call [rsi + {jump_entry}]
    test al, al
    jnz .Ldetour_action_declined
    movabs rdx, {trampoline_mark}
    mov [rsp + 56], rdx
.Ldetour_action_leave:
    dec dword ptr gs:[{per_cpu} + {guard}]
    pop_words 1
    pop_registers rax, rcx, rdx, rsi, rdi
    pop_flags
    .globl kretprobe_detour_action_end
kretprobe_detour_action_end:
    end_function kretprobe_detour_action

# The same with several such return probes and no other enabled probe: as `kprobe_kretprobes`. The
# first probe may be another one for a moment, before this detour is replaced.
#
#   S       return slot
#   S-0x08  rflags
#   S-0x10  rax, rcx, rdx, rbx, rdi, r8, r9 and r10, 8 bytes each
    function kretprobes_detour
    .cfi_startproc simple
    .cfi_def_cfa rsp, 80
    .cfi_offset rip, -8
    .cfi_offset rax, -24
    .cfi_offset rcx, -32
    .cfi_offset rdx, -40
    .cfi_offset rbx, -48
    .cfi_offset rdi, -56
    .cfi_offset r8, -64
    .cfi_offset r9, -72
    .cfi_offset r10, -80
.Lkretprobes_detour_slow_path:
    call kretprobe_give_back
.Lkretprobes_detour_nothing_done:
    pop_registers r10, r9, r8, rdi, rbx, rdx, rcx, rax
    pop_flags
    int3
    .globl kretprobes_detour_enter
kretprobes_detour_enter:
    push_flags
    push_registers rax, rcx, rdx, rbx, rdi, r8, r9, r10
    cmp dword ptr gs:[{per_cpu} + {guard}], -1
    jne .Lkretprobes_detour_nothing_done
    # r8: the probe; r10: the routine of a return probe that wants nothing at the call.
    movabs r8, {site_mark}
    movabs r10, {kretprobe_routine_mark}
    mov r8, [r8 + {head}]
    cmp [r8 + {probe_routine}], r10
    jne .Lkretprobes_detour_nothing_done
    mov rdi, [r8 + {kretprobe_holder}]
    pop_instance rdi, .Lkretprobes_detour_nothing_done
    lea rbx, [rsp + 72 - {below_slot}]
    borrow_return rdi, rbx, rdx, .Lkretprobes_detour_slow_path, {trampoline_mark}
    mov [rsp + 72], rdx
    # r9: what the others have as frame.
    lea r9, [rbx - {shared}]
.Lkretprobes_detour_next:
    mov r8, [r8 + {next_probe}]
    test r8, r8
    jz .Lkretprobes_detour_done
    cmp [r8 + {probe_routine}], r10
    jne .Lkretprobes_detour_next
    mov rdi, [r8 + {kretprobe_holder}]
    pop_instance rdi, .Lkretprobes_detour_missed
    join_newest_call
    jmp .Lkretprobes_detour_next
.Lkretprobes_detour_missed:
    lock inc qword ptr [r8 + {nmissed}]
    jmp .Lkretprobes_detour_next
.Lkretprobes_detour_done:
    pop_registers r10, r9, r8, rdi, rbx, rdx, rcx, rax
    pop_flags
    .globl kretprobes_detour_end
kretprobes_detour_end:
    end_function kretprobes_detour
"#
    };
}

/// A template by its three symbols.
#[macro_export]
macro_rules! detour_template {
    ($start:ident $enter:ident $end:ident) => {{
        unsafe extern "C" {
            fn $start();
            static $enter: u8;
            static $end: u8;
        }
        $crate::asm::Template {
            start: $start as *const () as u64,
            enter: (&raw const $enter) as u64,
            end: (&raw const $end) as u64,
        }
    }};
}

/// The templates by their symbols. Part of [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! detour_templates {
    () => {
        $crate::asm::Templates {
            at_entry: $crate::detour_template!(
                kprobe_detour_at_entry
                kprobe_detour_at_entry_enter
                kprobe_detour_at_entry_end
            ),
            anywhere: $crate::detour_template!(
                kprobe_detour kprobe_detour_enter kprobe_detour_end
            ),
            lone_entry: $crate::detour_template!(
                kretprobe_detour_entry
                kretprobe_detour_entry_enter
                kretprobe_detour_entry_end
            ),
            lone_action: $crate::detour_template!(
                kretprobe_detour_action
                kretprobe_detour_action_enter
                kretprobe_detour_action_end
            ),
            lone_return: $crate::detour_template!(
                kretprobe_detour kretprobe_detour_enter kretprobe_detour_end
            ),
            lone_return_keeping_flags: $crate::detour_template!(
                kretprobe_detour_keeping_flags
                kretprobe_detour_keeping_flags_enter
                kretprobe_detour_keeping_flags_end
            ),
            returns: $crate::detour_template!(
                kretprobes_detour kretprobes_detour_enter kretprobes_detour_end
            ),
        }
    };
}
