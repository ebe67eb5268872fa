//! The assembly of jprobes: to the handler, and back.

/// To the handler, and the end of one; part of [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! jprobe_routines {
    () => {
        r#"
# A jprobe: as `Hits::enter_jprobe`, but near the end of a page, where the stack might end, it
# leaves that to Rust.
    function jprobe_handle
    called
    mov r8, [rsi + {sp}]
    mov eax, r8d
    and eax, 4095
    cmp eax, 4096 - 8 * {stack_words}
    ja kprobe_handle_slow_path
    count_hit rdi, rdx
    mov rax, [rdi + {probe_site}]
    mov gs:[{per_cpu} + {jprobe} + {jprobe_kprobe}], rdi
    mov qword ptr gs:[{per_cpu} + {jprobe} + {jprobe_words}], {stack_words}
    mov byte ptr gs:[{per_cpu} + {jprobe} + {jprobe_plain}], 1
    mov qword ptr gs:[{per_cpu} + {running}], 0
    mov rdx, [rdi + {jprobe_entry}]
    mov r9, rsi
    mov rdi, gs:[{per_cpu} + {this}]
    add rdi, {jprobe_in_cpu} + {jprobe_regs}
    mov ecx, {frame_bytes} / 8
    rep movsq
    # The saved words of the stack follow the registers.
    mov rsi, r8
    mov ecx, {stack_words}
    rep movsq
    # Last: from here on an NMI takes the rest to be this hit's.
    mov gs:[{per_cpu} + {jprobe} + {jprobe_site}], rax
    mov [r9 + {ip}], rdx
    and dword ptr [r9 + {flags}], ~{if_and_tf}
    mov eax, {flow_jprobe}
    ret
    end_function jprobe_handle

# Ends a jprobe's handler. Outside a handler there is no saved stack pointer; then the breakpoint
# belongs to no call and is reported.
    function jprobe_return
    # Nothing returns from here. The word at rsp is first the return address of the call from the
    # handler, then that of the probed function's: both frames look the same.
    called
    cmp qword ptr gs:[{per_cpu} + {jprobe} + {jprobe_site}], 0
    je jprobe_return_breakpoint
    mov rsp, gs:[{per_cpu} + {jprobe} + {jprobe_regs} + {sp}]
    .globl jprobe_return_breakpoint
jprobe_return_breakpoint:
    int3
    ud2
    end_function jprobe_return
"#
    };
}

/// Where that is: the routine, and the breakpoint at the end of `jprobe_return`.
#[doc(hidden)]
#[macro_export]
macro_rules! jprobe_entries {
    () => {{
        unsafe extern "C" {
            fn jprobe_handle();
            static jprobe_return_breakpoint: u8;
        }
        [
            jprobe_handle as *const () as u64,
            (&raw const jprobe_return_breakpoint) as u64,
        ]
    }};
}

/// What `kprobe_breakpoint` asks of an address that is not in the table, before it goes to
/// `{other}`. Part of [`breakpoint_entry!`](crate::breakpoint_entry!).
#[doc(hidden)]
#[macro_export]
macro_rules! at_jprobe_return {
    () => {
        r#"
    compare_with_address rdx, "jprobe_return_breakpoint + 1"
    jne {other}
    mov rcx, gs:[{per_cpu} + {jprobe} + {jprobe_site}]
    test rcx, rcx
    jz {other}
    mov rdi, [rsp + 72]
    cmp rdi, gs:[{per_cpu} + {jprobe} + {jprobe_regs} + {sp}]
    jne {other}
    cmp byte ptr gs:[{per_cpu} + {jprobe} + {jprobe_plain}], 0
    jne jprobe_leave
"#
    };
}

/// Where that leads to. Part of [`breakpoint_entry!`](crate::breakpoint_entry!).
#[doc(hidden)]
#[macro_export]
macro_rules! jprobe_leave {
    () => {
        r#"
# The handler of a jprobe is over. In: rcx, the site. As `Hits::leave_jprobe`, where all words are
# saved and no post handler waits. The other registers need not be pushed, because the handler's are
# not needed any more.
    function jprobe_leave
    lookup_frame
    inc qword ptr gs:[{per_cpu} + {breakpoints}]
    mov rdx, rcx
    sub rsp, {frame_bytes} - 88
    .cfi_adjust_cfa_offset {frame_bytes} - 88
    cld
    mov rdi, rsp
    mov rsi, gs:[{per_cpu} + {this}]
    add rsi, {jprobe_in_cpu} + {jprobe_regs}
    mov ecx, {frame_bytes} / 8
    rep movsq
    # The words of the stack. They lie above this frame, which is where that of the function's entry
    # was.
    mov rdi, [rsp + {sp}]
    mov ecx, {stack_words}
    rep movsq
    mov rax, [rdx + {run}]
    mov [rsp + {ip}], rax
    mov qword ptr gs:[{per_cpu} + {jprobe} + {jprobe_site}], 0
    dec dword ptr gs:[{per_cpu} + {guard}]
    resume_as_framed
    end_function jprobe_leave
"#
    };
}
