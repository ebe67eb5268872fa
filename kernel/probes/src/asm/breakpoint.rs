//! The assembly of a breakpoint hit.
//!
//! [`breakpoint_entry!`](crate::breakpoint_entry!) defines `kprobe_breakpoint`, where the gate of
//! #BP leads. It saves five registers, looks the trap's address up and jumps to the stub that the
//! first probe of the site names:
//!
//! ```text
//!   kprobe_breakpoint ── not in the table ──► jprobe_leave, or the kernel's own entry
//!      │ site found: its first probe's stub
//!      ├─► kprobe_hit             all registers, guard, the probe's `chain`; resume in the slot
//!      ├─► kprobe_hit_post        the same; then the displaced instruction and the post handlers
//!      ├─► kprobe_one_kretprobe   no more registers: borrow the return address, resume in the slot
//!      ├─► kprobe_kretprobes      the same for each of several
//!      ├─► kprobe_action          no more registers, no guard: call the action, resume in the slot
//!      └─► kprobe_any_hit         all registers, `Hits::serve` in Rust: single steps, `popf`
//! ```
//!
//! The first five do in assembly what the last does for any probe. They leave the slow path to it:
//! the guard is taken, no instance is free, the call reuses a frame.
//! [`Site::choose_stubs`](crate::data::site::Site) says when they may serve.
//!
//! # Post handlers
//! The displaced instruction runs in a post slot, which ends in `kprobe_post_stub`.
//! Most functions begin with a `push` of a register, and that is carried out on the frame at once.
//! It can be, because the processor aligns the stack down before it pushes a frame: where the stack
//! pointer is at an odd word, as at a function's entry, the word that `push` writes lies free above
//! the frame.
//!
//! # Addresses of symbols
//! A kernel that runs at its link addresses in the top 2 GiB says so in
//! [`Platform::IN_TOP_2_GIB`](crate::Platform::IN_TOP_2_GIB). There a symbol's address fits into
//! the 32 bits of an instruction. Any other kernel may be position-independent. So its stubs take
//! addresses relative to RIP, which costs one instruction a lookup and one a borrowed return.
//!
//! # No look at CS
//! Keys of the table are kernel addresses. Ring 3 executes at none of them, because
//! those pages are the supervisor's. So an address that is found came from ring 0, with the
//! kernel's GS. A trap at any other address goes to the kernel's entry untouched.
//!
//! # The frame
//! ```text
//!   rsp at the trap, aligned down to 16
//!   +0xa0  ss       \
//!   +0x98  sp        |
//!   +0x90  flags     | pushed by the processor
//!   +0x88  cs        |
//!   +0x80  ip       /
//!   +0x78  orig_ax    -1
//!   +0x70  di  +0x68 si  +0x60 dx  +0x58 cx  +0x50 ax    <- rsp where a stub begins
//!   +0x48  r8  +0x40 r9  +0x38 r10 +0x30 r11 +0x28 bx  +0x20 bp  +0x18 r12  +0x10 r13  +0x08 r14
//!   +0x00  r15        <- the `PtRegs`
//!   -0x08  site       <- rsp at the call of a handler: 16-aligned (System V psABI, 3.2.2)
//! ```

/// Defines `kprobe_breakpoint` for a [`Platform`](crate::Platform) whose registry is the static
/// `$probes`, and `with_breakpoint_entry`, which adds its stubs to the entry points. Once a
/// program; the gate of vector 3 leads there, an interrupt gate without a stack of its own.
///
/// - `owner`: the path of a [`GateOwner`](crate::gates::GateOwner), the kernel's own stub for
///   breakpoints. It gets those that are not the probes', as the processor left them.
/// - `other`, in place of `owner`: where a breakpoint goes that is not in the table, for kernels
///   that ask [`Hits::on_breakpoint`](crate::hit::Hits::on_breakpoint) themselves. On arrival the
///   stack holds `ax`, `cx`, `dx`, `si`, `di` and -1, from its top on, and then what the processor
///   has pushed. These five registers are free. `rdx` is the trap's ip; `rsi` and `rdi` and GS are
///   as the code had them.
/// - `clear_ac`: an instruction that clears RFLAGS.AC, or does nothing where the processor has no
///   SMAP.
/// - `per_cpu`: as for [`entry_points!`](crate::entry_points!).
#[macro_export]
macro_rules! breakpoint_entry {
    ($platform:ty, $probes:path, owner = $owner:path, clear_ac = $clear_ac:literal
        $(, per_cpu = $kind:tt $per_cpu:path)?) => {
        $crate::other_breakpoint!($platform, owner = $owner, clear_ac = $clear_ac);
        $crate::breakpoint_entry!(
            $platform, $probes, other = kprobe_other_breakpoint, clear_ac = $clear_ac
            $(, per_cpu = $kind $per_cpu)?
        );
    };
    ($platform:ty, $probes:path, other = $other:path, clear_ac = $clear_ac:literal) => {
        $crate::breakpoint_entry!(
            $platform,
            $probes,
            other = $other,
            clear_ac = $clear_ac,
            per_cpu = const $crate::asm::NO_SYMBOL
        );
    };
    ($platform:ty, $probes:path, other = $other:path, clear_ac = $clear_ac:literal,
        per_cpu = $kind:tt $per_cpu:path) => {
        ::core::arch::global_asm!(
            $crate::stub_macros!(),
            $crate::instance_macros!(),
            ".macro clear_ac",
            $clear_ac,
            ".endm",
            $crate::breakpoint_lookup!(),
            $crate::at_jprobe_return!(),
            $crate::breakpoint_stubs!(),
            $crate::jprobe_leave!(),
            $crate::kretprobe_stubs!(),
            $crate::action_stub!(),
            ".purgem clear_ac",
            $crate::end_of_instance_macros!(),
            $crate::end_of_stub_macros!(),
            // Whether symbols have addresses of 32 bits.
            fixed = const <$platform as $crate::Platform>::IN_TOP_2_GIB as u8,
            // The registry and its address table.
            probes = sym $probes,
            table = const $crate::asm::layout::table_offset::<$platform>(),
            multiplier = const $crate::asm::layout::MULTIPLIER as i32,
            shift = const $crate::asm::layout::SHIFT,
            index_mask = const $crate::asm::layout::INDEX_MASK,
            // A site, and its first probe.
            key = const $crate::asm::layout::SITE_KEY,
            head = const $crate::asm::layout::SITE_HEAD,
            run = const $crate::asm::layout::SITE_RUN,
            post_slot = const $crate::asm::layout::SITE_POST_SLOT,
            len = const $crate::asm::layout::SITE_LEN,
            pushed = const $crate::asm::layout::SITE_PUSHED,
            stub = const $crate::asm::layout::PROBE_STUB,
            chain = const $crate::asm::layout::PROBE_CHAIN,
            probe_routine = const $crate::asm::layout::PROBE_ROUTINE,
            action = const $crate::asm::layout::PROBE_ACTION,
            action_breakpoint = const $crate::asm::layout::ACTION_BREAKPOINT,
            lookup_ip = const $crate::asm::layout::LOOKUP_IP,
            next_probe = const $crate::asm::layout::PROBE_NEXT,
            probe_site = const $crate::asm::layout::PROBE_SITE,
            nmissed = const $crate::asm::layout::KRETPROBE_NMISSED,
            kretprobe_holder = const $crate::asm::layout::KRETPROBE_HOLDER,
            // An instance, and a task's cell.
            next = const $crate::asm::layout::INSTANCE_NEXT,
            ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
            to_action_trampoline = const $crate::asm::layout::TO_ACTION_TRAMPOLINE,
            return_frame = const $crate::asm::layout::INSTANCE_RETURN_FRAME,
            below_slot = const $crate::asm::layout::BELOW_SLOT,
            shared = const $crate::asm::layout::SHARED,
            cell_head = const $crate::asm::layout::CELL_HEAD,
            // A frame, and its flags.
            ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
            sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
            flags = const ::core::mem::offset_of!($crate::PtRegs, flags),
            frame_bytes = const ::core::mem::size_of::<$crate::PtRegs>(),
            tf = const $crate::asm::bits::TF,
            interrupts = const $crate::asm::bits::IF,
            pushed_flags = const !($crate::asm::bits::RF | $crate::asm::bits::VM) as i32,
            // This CPU's data.
            per_cpu = $kind $per_cpu,
            guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
            breakpoints = const $crate::PerCpu::breakpoints_gs_offset::<$platform>(),
            finishing = const $crate::PerCpu::finishing_gs_offset::<$platform>(),
            saved_flags = const $crate::PerCpu::saved_flags_gs_offset::<$platform>(),
            saved_sp = const $crate::PerCpu::saved_sp_gs_offset::<$platform>(),
            cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
            jprobe = const $crate::PerCpu::jprobe_gs_offset::<$platform>(),
            jprobe_in_cpu = const $crate::PerCpu::JPROBE_OFFSET,
            this = const $crate::PerCpu::this_gs_offset::<$platform>(),
            // Saved by the hit of a jprobe.
            jprobe_site = const $crate::asm::layout::JPROBE_SITE,
            jprobe_plain = const $crate::asm::layout::JPROBE_PLAIN,
            jprobe_regs = const $crate::asm::layout::JPROBE_REGS,
            stack_words = const $crate::asm::STACK_WORDS,
            // Rust.
            flow_jprobe = const $crate::asm::Flow::Jprobe as u8,
            serve_hit = sym $crate::asm::serve::<$platform>,
            finish = sym $crate::asm::finish::<$platform>,
            resume = sym $crate::asm::resume_at::<$platform>,
            other = sym $other,
        );

        unsafe extern "C" {
            /// Where the gate of #BP leads.
            pub fn kprobe_breakpoint();
            fn kprobe_any_hit();
            fn kprobe_hit();
            fn kprobe_hit_post();
            fn kprobe_one_kretprobe();
            fn kprobe_kretprobes();
        }

        fn with_breakpoint_entry(entry: $crate::asm::EntryPoints) -> $crate::asm::EntryPoints {
            $crate::asm::EntryPoints {
                any_hit: kprobe_any_hit as *const () as u64,
                hit: kprobe_hit as *const () as u64,
                hit_post: kprobe_hit_post as *const () as u64,
                one_kretprobe: kprobe_one_kretprobe as *const () as u64,
                kretprobes: kprobe_kretprobes as *const () as u64,
                action: $crate::action_entry!(),
                ..entry
            }
        }
    };
}

/// The lookup.
#[doc(hidden)]
#[macro_export]
macro_rules! breakpoint_lookup {
    () => {
        r#"
# Leaves rcx, the site at the place rax of the address table.
.macro load_site
    .if {fixed}
    mov rcx, [{probes} + rax * 8 + {table}]
    .else
    lea rcx, [rip + {probes} + {table}]
    mov rcx, [rcx + rax * 8]
    .endif
.endm

# Compares an operand with the address of a symbol. May change rcx.
.macro compare_with_address operand, symbol
    .if {fixed}
    cmp \operand, offset \symbol
    .else
    lea rcx, [rip + \symbol]
    cmp \operand, rcx
    .endif
.endm

# As `Hits::on_breakpoint`.
    function kprobe_breakpoint
    pushed_frame 5
    push_word -1
    push_registers rdi, rsi, rdx, rcx, rax
    mov rdx, [rsp + 48]
    imul eax, edx, {multiplier}
    shr eax, {shift}
    load_site
    cmp [rcx + {key}], rdx
    jne .Lsearch_on
.Lsite_found:
    inc qword ptr gs:[{per_cpu} + {breakpoints}]
    mov rdi, [rcx + {head}]
    jmp [rdi + {stub}]
.Lsearch_on:
    # The place is another's: the search goes on until an empty one.
    cmp qword ptr [rcx + {key}], 0
    je .Lnot_found
    inc eax
    and eax, {index_mask}
    load_site
    cmp [rcx + {key}], rdx
    jne .Lsearch_on
    jmp .Lsite_found
.Lnot_found:
"#
    };
}

/// The end of that, and the stubs that run handlers.
#[macro_export]
macro_rules! breakpoint_stubs {
    () => {
        r#"
    jmp {other}
    end_function kprobe_breakpoint

# Completes the frame, and makes the flags those that handlers run with.
.macro complete_frame
    push_registers r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15
    cld
    clear_ac
.endm

# Calls with the stack aligned; keeps rcx, the site.
.macro call_keeping_site target
    push_word rcx
    call \target
    pop rcx
    .cfi_adjust_cfa_offset -8
.endm

# Completes the frame and takes the guard, for the handlers. In: rdi, the first probe; rcx, the
# site. Leaves rsi, the frame.
.macro begin_handlers
    lookup_frame
    complete_frame
    inc dword ptr gs:[{per_cpu} + {guard}]
    jnz .Lhit_missed
    mov rsi, rsp
.endm

# In: rdi, the first probe; rcx, the site. As `Hits::serve`, where no probe has a post handler.
    function kprobe_hit
    begin_handlers
    # Where the hit goes on is kept on the stack, which aligns it, too. The slot or detour there
    # stays as long as this hit, because no grace period ends meanwhile.
    push_word "qword ptr [rcx + {run}]"
    call [rdi + {chain}]
    test al, al
    jnz .Lhit_chosen
    pop_word "qword ptr [rsp + {ip}]"
.Lhit_leave:
    dec dword ptr gs:[{per_cpu} + {guard}]
.Lhit_resume:
    resume_as_framed
.Lhit_chosen:
    .cfi_adjust_cfa_offset 8
    pop_word rcx
.Lhit_goes_elsewhere:
    # To the handler of a jprobe, with the guard held; or a handler has said where to go on, which
    # may be under a jump.
    cmp al, {flow_jprobe}
    je .Lhit_resume
    mov rdi, rsp
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    call {resume}
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    jmp .Lhit_leave
.Lhit_missed:
    # Inside another hit: not to be handled, but to be counted.
    dec dword ptr gs:[{per_cpu} + {guard}]
    jmp .Lany_hit_framed
    end_function kprobe_hit

# In: rdi, the first probe; rcx, the site. As `Hits::serve`, where a probe has a post handler.
    function kprobe_hit_post
    begin_handlers
    call_keeping_site "[rdi + {chain}]"
    test al, al
    jnz .Lhit_post_goes_elsewhere
    # `push` of a register, the stack pointer at an odd word and still the code's, no TF: on the
    # frame.
    movsx eax, word ptr [rcx + {pushed}]
    test eax, eax
    js .Lhit_pause
    lea rdx, [rsp + {frame_bytes} + 8]
    cmp rdx, [rsp + {sp}]
    jne .Lhit_pause
    test dword ptr [rsp + {flags}], {tf}
    jnz .Lhit_pause
    mov rax, [rsp + rax]
    sub rdx, 8
    mov [rdx], rax
    mov rax, [rcx + {key}]
    movzx esi, byte ptr [rcx + {len}]
    lea rax, [rax + rsi - 1]
    jmp kprobe_hit_pushed
.Lhit_pause:
    # As `Hits::pause`: in the post slot, with interrupts off, the guard dropped and the rest of the
    # hit noted. A TF stays, see `hit/debug_trap.rs`.
    mov rax, [rcx + {post_slot}]
    test rax, rax
    jz .Lhit_finish
    mov [rsp + {ip}], rax
    mov gs:[{per_cpu} + {finishing}], rcx
    mov rax, [rsp + {sp}]
    mov gs:[{per_cpu} + {saved_sp}], rax
    # As `pushf` would store them: without RF and VM.
    mov eax, [rsp + {flags}]
    and eax, {pushed_flags}
    mov gs:[{per_cpu} + {saved_flags}], rax
    and dword ptr [rsp + {flags}], ~{interrupts}
    jmp .Lhit_leave
.Lhit_finish:
    # Without a post slot: carried out in Rust.
    mov rdi, rcx
    mov rsi, rsp
    call_keeping_site {finish}
    jmp .Lhit_resume
.Lhit_post_goes_elsewhere:
    # A jprobe here comes back through Rust.
    mov byte ptr gs:[{per_cpu} + {jprobe} + {jprobe_plain}], 0
    jmp .Lhit_goes_elsewhere
    end_function kprobe_hit_post

# Ends a hit whose instruction, a `push`, has been carried out on the frame. In: rcx, the site; rdx,
# the code's stack pointer now; rax, its next instruction. A function of its own, because in the
# others a stack walk takes the interrupted ip to be after a breakpoint.
    function kprobe_hit_pushed
    whole_frame
    .cfi_register rsp, rdx
    .cfi_register rip, rax
    mov [rsp + {sp}], rdx
    .cfi_offset rsp, -16
    mov [rsp + {ip}], rax
    .cfi_offset rip, -40
    mov rdi, rcx
    mov rsi, rsp
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    call kprobe_run_posts
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    dec dword ptr gs:[{per_cpu} + {guard}]
    resume_as_framed
    end_function kprobe_hit_pushed

# In: rcx, the site. Any probes, in Rust.
    function kprobe_any_hit
    lookup_frame
    complete_frame
.Lany_hit_framed:
    mov rdi, rcx
    mov rsi, rsp
    call_keeping_site {serve_hit}
    resume_as_framed
    end_function kprobe_any_hit
"#
    };
}

/// The stubs for sites with nothing but return probes that want nothing at the call.
#[macro_export]
macro_rules! kretprobe_stubs {
    () => {
        r#"
.if {fixed} == 0
.pushsection .data.rel.ro, "aw"
    .balign 8
.Lkretprobe_trampoline_address:
    .quad kretprobe_trampoline
.popsection
.endif

# Borrows the return address for `kretprobe_trampoline`. In: rax, an instance of this CPU's own;
# rbx, the address of the trampoline's frame. Leaves `cell`, the task's cell; changes rcx and rdx.
.macro borrow_return_at_breakpoint cell, slow_path
    .if {fixed}
    borrow_return \cell, rbx, "offset kretprobe_trampoline", \slow_path
    mov qword ptr [rbx + {below_slot}], offset kretprobe_trampoline
    .else
    borrow_return \cell, rbx, "[rip + .Lkretprobe_trampoline_address]", \slow_path
    lea rcx, [rip + kretprobe_trampoline]
    mov [rbx + {below_slot}], rcx
    .endif
.endm

# In: rdi, the only probe, the kprobe of a kretprobe; rcx, the site. As `Hits::enter_call`; needs no
# guard, because interrupts are off and no handler runs.
    function kprobe_one_kretprobe
    lookup_frame
    cmp dword ptr gs:[{per_cpu} + {guard}], -1
    jne kprobe_any_hit
    push_registers rbx
    # As in `kprobe_hit`.
    push_word "qword ptr [rcx + {run}]"
    mov rsi, [rdi + {kretprobe_holder}]
    pop_instance rsi, .Lone_no_instance
    # The stack pointer of the code is the return slot.
    mov rbx, [rsp + 88]
    sub rbx, {below_slot}
    borrow_return_at_breakpoint rsi, .Lone_slow_path
    pop_word "qword ptr [rsp + 56]"
    .cfi_remember_state
    pop_registers rbx, rax, rcx, rdx, rsi, rdi
    return_from_trap
    .cfi_restore_state
    .cfi_def_cfa_offset 104
.Lone_slow_path:
    call kretprobe_give_back
.Lone_no_instance:
    mov rcx, [rdi + {probe_site}]
    pop_word rbx
    pop_registers rbx
    jmp kprobe_any_hit
    end_function kprobe_one_kretprobe

# In: rdi, the first probe, whose call begins as that of `kprobe_one_kretprobe`; rcx, the site. Then
# the other probes join the call, newest first.
    function kprobe_kretprobes
    lookup_frame
    cmp dword ptr gs:[{per_cpu} + {guard}], -1
    jne kprobe_any_hit
    push_registers rbx, r8, r9
    # As in `kprobe_hit`.
    push_word "qword ptr [rcx + {run}]"
    mov r8, rdi
    mov rdi, [rdi + {kretprobe_holder}]
    pop_instance rdi, .Lseveral_no_instance
    mov rbx, [rsp + 104]
    sub rbx, {below_slot}
    borrow_return_at_breakpoint rdi, .Lseveral_slow_path
    # r8: the probe; r9: what the others have as frame.
    lea r9, [rbx - {shared}]
.Lseveral_next:
    mov r8, [r8 + {next_probe}]
    test r8, r8
    jz .Lseveral_done
    # One that is disabled meanwhile, or joins the list just now, is served by another routine.
    compare_with_address "qword ptr [r8 + {probe_routine}]", kretprobe_handle
    jne .Lseveral_next
    mov rdi, [r8 + {kretprobe_holder}]
    pop_instance rdi, .Lseveral_missed
    join_newest_call
    jmp .Lseveral_next
.Lseveral_missed:
    lock inc qword ptr [r8 + {nmissed}]
    jmp .Lseveral_next
.Lseveral_done:
    pop_word "qword ptr [rsp + 72]"
    .cfi_remember_state
    pop_registers r9, r8, rbx, rax, rcx, rdx, rsi, rdi
    return_from_trap
    .cfi_restore_state
    .cfi_def_cfa_offset 120
.Lseveral_slow_path:
    call kretprobe_give_back
.Lseveral_no_instance:
    mov rcx, [r8 + {probe_site}]
    pop_word rbx
    pop_registers r9, r8, rbx
    jmp kprobe_any_hit
    end_function kprobe_kretprobes
"#
    };
}
