//! The stub for sites with nothing but an action.

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

/// Its address. Part of [`breakpoint_entry!`](crate::breakpoint_entry!).
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
