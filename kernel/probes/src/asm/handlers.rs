//! The assembly that runs the handlers of one hit: stubs and detours call it once they have built a
//! frame.
//!
//! Each [`Kprobe`](crate::Kprobe) names two routines. `routine` does what this probe alone wants
//! done; `chain` does that for it and every older probe of its site. So a hit calls the `chain` of
//! the site's first probe and is done. [`Site::choose_stubs`](crate::data::site::Site) chooses
//! both:
//!
//! ```text
//!   chain ─┬─ a single probe: its `routine`
//!          ├─ several: kprobe_handle_chain, the `routine` of each in turn
//!          └─ far from a detour: kprobe_handle_far or kprobe_handle_far_chain, which set the
//!             frame's ip first
//!
//!   routine ─┬─ kprobe_handle_nothing        disabled
//!            ├─ kprobe_handle_count          a kprobe without a pre handler
//!            ├─ kprobe_handle_action         an action
//!            ├─ kprobe_handle_kprobe         a pre handler
//!            ├─ kretprobe_handle             take an instance, borrow the return address
//!            ├─ kretprobe_handle_entry       the same, and run the entry handler
//!            ├─ jprobe_handle                save registers and stack, go to the handler
//!            └─ kprobe_handle_slow_path      any probe, in Rust: `Hits::run_probe`
//! ```
//!
//! # Calling convention
//! In: rdi the probe, rsi the frame, on an aligned stack as at any call; guard
//! held, DF and AC clear. Out: al, a [`Flow`](crate::hit::Flow). All registers are in the frame
//! already, so these routines keep rbp alone: `kprobe_handle_chain` has r15, what it calls rbx and
//! r12 to r14.

/// The routines; part of [`entry_points!`](crate::entry_points).
#[macro_export]
macro_rules! handlers {
    () => {
        r#"
.macro count_hit probe, scratch
    mov rax, [\probe + {hits}]
    .if {per_cpu_pages}
    inc qword ptr gs:[rax]
    .else
    mov \scratch, gs:[{per_cpu} + {counter_part}]
    inc qword ptr [rax + \scratch]
    .endif
.endm

# A disabled probe.
    function kprobe_handle_nothing
    called
    xor eax, eax
    ret
    end_function kprobe_handle_nothing

# A kprobe without a pre handler.
    function kprobe_handle_count
    called
    count_hit rdi, rdx
    xor eax, eax
    ret
    end_function kprobe_handle_count

# A kprobe: counts the hit, notes the running probe for its fault handler, runs the pre handler.
    function kprobe_handle_kprobe
    called
    count_hit rdi, rdx
    mov gs:[{per_cpu} + {running}], rdi
    jmp [rdi + {pre}]
    end_function kprobe_handle_kprobe

# A kprobe with an action, whose handler counts what it wants itself.
    function kprobe_handle_action
    called
    mov gs:[{per_cpu} + {running}], rdi
    jmp [rdi + {pre}]
    end_function kprobe_handle_action

# Any probe, in Rust.
    function kprobe_handle_slow_path
    called
    jmp {handle_slow_path}
    end_function kprobe_handle_slow_path

# Puts the address into the frame, which did not fit into the `push` of the detour.
.macro put_far_address
    mov rax, [rdi + {probe_site}]
    mov rax, [rax + {key}]
    mov [rsi + {ip}], rax
.endm

# The only probe of a site with such an address.
    function kprobe_handle_far
    called
    put_far_address
    jmp [rdi + {probe_routine}]
    end_function kprobe_handle_far

# As `kprobe_handle_chain`, for such an address.
    function kprobe_handle_far_chain
    called
    put_far_address
    jmp kprobe_handle_chain
    end_function kprobe_handle_far_chain

# A probe and all older ones of its site: as the loop in `hit/breakpoint.rs::serve`, but each
# probe's routine skips it if it is disabled.
    function kprobe_handle_chain
    called
    push_word rsi
.Lchain_next:
    mov r15, rdi
    call [rdi + {probe_routine}]
    test al, al
    jnz .Lchain_end
    mov rdi, [r15 + {next_probe}]
    mov rsi, [rsp]
    test rdi, rdi
    jnz .Lchain_next
.Lchain_end:
    pop rsi
    .cfi_adjust_cfa_offset -8
    ret
    end_function kprobe_handle_chain

# The post handlers of a site: as `hit/breakpoint.rs::run_post`. In: rdi, the site; rsi, the frame.
# Changes rbx and r12, too.
    function kprobe_run_posts
    called
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    mov rbx, [rdi + {head}]
    mov r12, rsi
.Lposts_next:
    mov rax, [rbx + {post}]
    test rax, rax
    jz .Lposts_skip
    test dword ptr [rbx + {probe_flags}], {silent}
    jnz .Lposts_skip
    lea rdx, [rbx + {in_post}]
    mov gs:[{per_cpu} + {running}], rdx
    mov rdi, rbx
    mov rsi, r12
    xor edx, edx
    call rax
.Lposts_skip:
    mov rbx, [rbx + {next_probe}]
    test rbx, rbx
    jnz .Lposts_next
    mov gs:[{per_cpu} + {running}], rbx
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    ret
    end_function kprobe_run_posts

# The beginning of the next two. Leaves rax, the instance; rbx, its frame; r11, the trampoline; r13,
# the return slot.
.macro take_call name
    mov r13, [rsi + {sp}]
    mov r14, [rdi + {kretprobe_holder}]
    pop_instance r14, kprobe_handle_slow_path
    lea rbx, [r13 - {below_slot}]
    lea r11, [rip + kretprobe_trampoline]
    borrow_return r14, rbx, r11, .L\name\()_borrowed
.endm

# Where the slot is borrowed for the task's newest call, by another kretprobe: joins it, as
# `Hits::sibling` in `hit/calls.rs` has it joined. Everything else is for Rust. Goes on as after
# `take_call`.
.macro join_call name
.L\name\()_borrowed:
    mov rcx, [rdx + {return_frame}]
    add rcx, {shared}
    and rcx, ~{shared}
    cmp rcx, rbx
    jne .L\name\()_slow_path
    cmp [r13], r11
    jne .L\name\()_slow_path
    mov rcx, [rdx + {ret_addr}]
    sub rbx, {shared}
    fill_instance rbx
    mov [r14 + {cell_head}], rax
    jmp .L\name\()_taken
.L\name\()_slow_path:
    call kretprobe_give_back
    jmp kprobe_handle_slow_path
.endm

# A kretprobe without entry handler and data.
    function kretprobe_handle
    called
    take_call kretprobe_handle
.Lkretprobe_handle_taken:
    mov [r13], r11
    xor eax, eax
    ret
    join_call kretprobe_handle
    end_function kretprobe_handle

# A kretprobe with an entry handler or data. The handler finds the call in the instance list and the
# return slot as the caller left it.
    function kretprobe_handle_entry
    called
    take_call kretprobe_handle_entry
.Lkretprobe_handle_entry_taken:
    mov gs:[{per_cpu} + {running}], rdi
    push_word r11
    # rdi: the instance; rax: the probe.
    xchg rdi, rax
    call [rax + {enter}]
    pop r11
    .cfi_adjust_cfa_offset -8
    test al, al
    jnz .Lentry_declined
    mov [r13], r11
    ret
.Lentry_declined:
    call kretprobe_decline
    xor eax, eax
    ret
    join_call kretprobe_handle_entry
    end_function kretprobe_handle_entry

# Takes the newest call of the current task off the instance list and gives its instance back: an
# entry handler has declined it.
    function kretprobe_decline
    called
    mov rdx, gs:[{per_cpu} + {cell}]
    mov rax, [rdx + {cell_head}]
    mov rcx, [rax + {next}]
    mov [rdx + {cell_head}], rcx
    jmp kretprobe_give_back
    end_function kretprobe_decline

# As `FreeList::push`: puts an instance on the list that `list` points to. In: rax, the list's head.
.macro push_instance instance, list
.Lpush_again\@:
    mov [\instance + {next}], rax
    lock cmpxchg [\list], \instance
    jne .Lpush_again\@
.endm

# Gives an instance back. In: rax, the instance. Changes rax, rcx and rdx.
    function kretprobe_give_back
    called
    mov rcx, [rax + {instance_holder}]
    mov rdx, rax
    mov rax, [rcx]
    push_instance rdx, rcx
    ret
    end_function kretprobe_give_back
"#
    };
}
