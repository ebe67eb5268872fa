//! The stub for sites with nothing but an action, and the trampoline for returns to actions.

/// The stub; part of [`breakpoint_entry!`](crate::breakpoint_entry!).
#[macro_export]
macro_rules! action_stub {
    () => {
        r#"
# In: rdi, the only probe, a kprobe with an action; rcx, the site. The five registers that
# `kprobe_breakpoint` has saved are the action's to use, see `data/action.rs::BreakpointFrame`.
    function kprobe_action
    lookup_frame
    mov rax, [rdi + {action}]
    push_word rcx
    call [rax + {action_breakpoint}]
    pop rcx
    .cfi_adjust_cfa_offset -8
    mov rax, [rcx + {run}]
    mov [rsp + {lookup_ip}], rax
    pop_registers rax, rcx, rdx, rsi, rdi
    return_from_trap
    end_function kprobe_action
"#
    };
}

/// The trampoline; part of [`entry_points!`](crate::entry_points!), after
/// [`returns!`](crate::returns!).
#[macro_export]
macro_rules! action_returns {
    () => {
        r#"
# As `kretprobe_trampoline`, for a call that a jump has followed for an action: with few registers
# and no frame. Where the task's newest call is another one, `kretprobe_trampoline` has the return,
# as if it had been there that the function returned to. The one that is found here has no siblings,
# and its probe has this routine: any other probe would have put its own trampoline in the slot.
#
#   S       rsp on arrival and on departure
#   S-0x08  return slot      `EntryFrame`, last field first. It holds its own end, as there, and in
#                            the end where the call came from
#   S-0x10  rflags
#   S-0x18  rdi
#   S-0x20  rsi
#   S-0x28  rdx
#   S-0x30  rcx
#   S-0x38  rax
#   S-0x40  the instance     16-aligned at the call
    .pushsection .text.kretprobe_trampoline, "ax", @progbits
    .org kretprobe_trampoline + {to_action_trampoline}, 0xcc
    .globl kretprobe_trampoline_action
    .type kretprobe_trampoline_action, @function
kretprobe_trampoline_action:
    .cfi_startproc simple
    .cfi_def_cfa rsp, 0
    .cfi_offset rip, -8
    push_word rsp
    push_flags
    push_registers rdi, rsi, rdx, rcx, rax
    # As in `kretprobe_trampoline`: from here on this CPU switches no tasks.
    inc dword ptr gs:[{per_cpu} + {guard}]
    cld
    mov rcx, gs:[{per_cpu} + {cell}]
    mov rax, [rcx + {cell_head}]
    lea rdx, [rsp + 48 - {below_slot}]
    cmp [rax + {return_frame}], rdx
    jne .Laction_return_elsewhere
    mov rsi, [rax + {instance_holder}]
    mov rsi, [rsi + {holder_kretprobe}]
    push_word rax
    count_hit rsi, rdx
    mov gs:[{per_cpu} + {running}], rsi
    call [rsi + {jump_return}]
    pop_word rdx
    # As there: the address, the instance list, the instance.
    mov rax, [rdx + {ret_addr}]
    mov [rsp + 48], rax
    mov rcx, gs:[{per_cpu} + {cell}]
    mov rax, [rdx + {next}]
    mov [rcx + {cell_head}], rax
    mov rcx, [rdx + {instance_holder}]
    mov rax, [rcx]
    push_instance rdx, rcx
    dec dword ptr gs:[{per_cpu} + {guard}]
    .cfi_remember_state
    pop_registers rax, rcx, rdx, rsi, rdi
    pop_flags
    ret
    # The assembler's adjustments forget what a `restore_state` has restored.
    .cfi_restore_state
    .cfi_def_cfa_offset 56
.Laction_return_elsewhere:
    dec dword ptr gs:[{per_cpu} + {guard}]
    pop_registers rax, rcx, rdx, rsi, rdi
    pop_flags
    pop_words 1
    jmp kretprobe_trampoline
    end_function kretprobe_trampoline_action
"#
    };
}

/// Its address. Part of [`entry_points!`](crate::entry_points!).
#[doc(hidden)]
#[macro_export]
macro_rules! action_trampoline {
    () => {{
        unsafe extern "C" {
            fn kretprobe_trampoline_action();
        }
        kretprobe_trampoline_action as *const () as u64
    }};
}

/// The stub's address. Part of [`breakpoint_entry!`](crate::breakpoint_entry!).
#[doc(hidden)]
#[macro_export]
macro_rules! action_entry {
    () => {{
        unsafe extern "C" {
            fn kprobe_action();
        }
        kprobe_action as *const () as u64
    }};
}
