//! The assembly of a breakpoint hit, for kernels in the top 2 GiB.
//!
//! [`breakpoint_entry!`](crate::breakpoint_entry!) defines `kprobe_breakpoint`, where the gate of #BP leads. It saves five
//! registers, looks the trap's address up and jumps to the stub that the first probe of the site names:
//!
//! ```text
//!   kprobe_breakpoint ── not in the table ──► the end of a jprobe's handler, or the kernel's own entry
//!      │ site found: its first probe's stub
//!      ├─► kprobe_hit             all registers, guard, the probe's `chain`, resume in the slot or where a handler says
//!      ├─► kprobe_hit_post        the same; then the displaced instruction and the post handlers
//!      ├─► kprobe_one_kretprobe   no more registers: take an instance, borrow the return address, resume in the slot
//!      ├─► kprobe_kretprobes      the same for each of several
//!      └─► kprobe_any_hit         all registers, `Probes::serve` in Rust: single steps, `popf`
//! ```
//!
//! The first four do in assembly what the last does for any probe; whatever is unusual (the guard is taken, no instance is free,
//! the call reuses a frame) they leave to it. [`Site::choose_stubs`](crate::data::site::Site) says when they may serve.
//!
//! # Post handlers
//! The displaced instruction runs in a post slot, which ends in `kprobe_post_stub`. Where it is `push` of a register, and it is at
//! most functions' entries, it is carried out on the frame at once: the processor aligns the stack down before it pushes a frame, so at an
//! odd word, as at an entry, the word that `push` writes lies free above the frame.
//!
//! # No look at CS
//! Keys of the table are kernel addresses, and no code of ring 3 runs at one: those pages are the supervisor's. So an address
//! that is found came from ring 0, with the kernel's GS. What is not found goes to the kernel's entry untouched.
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
//!   +0x70  di  +0x68 si  +0x60 dx  +0x58 cx  +0x50 ax    <- rsp at the lookup and in `kprobe_one_kretprobe`
//!   +0x48  r8  +0x40 r9  +0x38 r10 +0x30 r11 +0x28 bx  +0x20 bp  +0x18 r12  +0x10 r13  +0x08 r14
//!   +0x00  r15        <- the `PtRegs`
//!   -0x08  site       <- rsp at the call of a handler: 16-aligned (System V psABI, 3.2.2)
//! ```

/// Defines `kprobe_breakpoint` for a [`Platform`](crate::Platform) whose registry is the static `$probes`, and
/// `with_breakpoint_entry`, which adds its stubs to the entry points. Once a program; the gate of vector 3 leads there, an
/// interrupt gate without a stack of its own.
///
/// - `other`: where a breakpoint goes that is not in the table. On arrival the stack holds what `kprobe_breakpoint` has saved, and the
///   saved registers are free.
/// - `clear_ac`: an instruction that clears RFLAGS.AC, or does nothing where the processor has no SMAP.
#[macro_export]
macro_rules! breakpoint_entry {
    ($platform:ty, $probes:path, other = $other:path, clear_ac = $clear_ac:literal) => {
        /// Where a #BP comes in. See `probes::asm`.
        ///
        /// # Safety
        /// Never called: the processor gets here by the gate of #BP.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_breakpoint() {
            ::core::arch::naked_asm!(
                // The assembler's adjustments forget what a `restore_state` has restored: hence the offsets after each.
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 40",
                ".cfi_offset rip, -40",
                ".cfi_offset rsp, -16",
                "push -1",
                ".cfi_adjust_cfa_offset 8",
                $crate::push_registers!("rdi" "rsi" "rdx" "rcx" "rax"),
                "mov rdx, [rsp + 48]",
                "imul eax, edx, {multiplier}",
                "shr eax, {shift}",
                "mov rcx, [{probes} + rax * 8 + {table}]",
                "cmp [rcx + {key}], rdx",
                "jne 3f",
                "2:",
                "inc qword ptr gs:[{breakpoints}]",
                "mov rdi, [rcx + {head}]",
                "jmp [rdi + {stub}]",
                // The place is another's: the search goes on until an empty one.
                "3:",
                "cmp qword ptr [rcx + {key}], 0",
                "je 8f",
                "inc eax",
                "and eax, {index_mask}",
                "mov rcx, [{probes} + rax * 8 + {table}]",
                "cmp [rcx + {key}], rdx",
                "jne 3b",
                "jmp 2b",

                // Not in the table: the end of a jprobe's handler? Whatever is unusual about that is for Rust.
                ".cfi_remember_state",
                "8:",
                "cmp rdx, offset jprobe_return_breakpoint + 1",
                "jne {other}",
                "mov rdx, gs:[{jprobe} + {jprobe_site}]",
                "test rdx, rdx",
                "jz {other}",
                "mov rdi, [rsp + 72]",
                "cmp rdi, gs:[{jprobe} + {jprobe_regs} + {sp}]",
                "jne {other}",
                "cmp byte ptr gs:[{jprobe} + {jprobe_plain}], 0",
                "je {other}",
                "inc qword ptr gs:[{breakpoints}]",
                "mov qword ptr gs:[{jprobe} + {jprobe_site}], 0",
                // The words of the stack: they lie above this frame, which is where that of the function's entry was.
                "cld",
                "mov rsi, gs:[{this}]",
                "add rsi, {jprobe_in_cpu} + {jprobe_stack}",
                "mov ecx, {words}",
                "rep movsq",
                "mov rax, gs:[{jprobe} + {jprobe_regs} + {flags}]",
                "mov [rsp + 64], rax",
                "mov rax, [rdx + {run}]",
                "mov [rsp + 48], rax",
                "mov r15, gs:[{jprobe} + {jprobe_regs} + 0x00]",
                "mov r14, gs:[{jprobe} + {jprobe_regs} + 0x08]",
                "mov r13, gs:[{jprobe} + {jprobe_regs} + 0x10]",
                "mov r12, gs:[{jprobe} + {jprobe_regs} + 0x18]",
                "mov rbp, gs:[{jprobe} + {jprobe_regs} + 0x20]",
                "mov rbx, gs:[{jprobe} + {jprobe_regs} + 0x28]",
                "mov r11, gs:[{jprobe} + {jprobe_regs} + 0x30]",
                "mov r10, gs:[{jprobe} + {jprobe_regs} + 0x38]",
                "mov r9, gs:[{jprobe} + {jprobe_regs} + 0x40]",
                "mov r8, gs:[{jprobe} + {jprobe_regs} + 0x48]",
                "mov rax, gs:[{jprobe} + {jprobe_regs} + 0x50]",
                "mov rcx, gs:[{jprobe} + {jprobe_regs} + 0x58]",
                "mov rdx, gs:[{jprobe} + {jprobe_regs} + 0x60]",
                "mov rsi, gs:[{jprobe} + {jprobe_regs} + 0x68]",
                "mov rdi, gs:[{jprobe} + {jprobe_regs} + 0x70]",
                "dec dword ptr gs:[{guard}]",
                "add rsp, 48",
                ".cfi_adjust_cfa_offset -48",
                "iretq",

                // rdi: the first probe; rcx: the site.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 88",
                ".globl kprobe_hit",
                "kprobe_hit:",
                ".cfi_remember_state",
                $crate::push_registers!("r8" "r9" "r10" "r11" "rbx" "rbp" "r12" "r13" "r14" "r15"),
                "cld",
                $clear_ac,
                "inc dword ptr gs:[{guard}]",
                "jnz 5f",
                "mov rsi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "call [rdi + {chain}]",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "test al, al",
                "jnz 92f",
                "mov rax, [rcx + {run}]",
                "mov [rsp + {ip}], rax",
                "4:",
                "dec dword ptr gs:[{guard}]",
                "41:",
                ".cfi_remember_state",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 168",
                // To the handler of a jprobe, with the guard held; or a handler has said where to go on, which may be under a jump.
                "92:",
                "cmp al, {flow_jprobe}",
                "je 41b",
                "mov rdi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "call {resume}",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "jmp 4b",
                // Inside another hit: not to be handled, but to be counted.
                "5:",
                "dec dword ptr gs:[{guard}]",
                "jmp 6f",

                // As `kprobe_hit`, with a post handler at the site.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 88",
                ".globl kprobe_hit_post",
                "kprobe_hit_post:",
                ".cfi_remember_state",
                $crate::push_registers!("r8" "r9" "r10" "r11" "rbx" "rbp" "r12" "r13" "r14" "r15"),
                "cld",
                $clear_ac,
                "inc dword ptr gs:[{guard}]",
                "jnz 5b",
                "mov rsi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "call [rdi + {chain}]",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "test al, al",
                "jnz 93f",
                // `push` of a register, the stack pointer at an odd word and still the code's, no TF: on the frame.
                "movsx eax, word ptr [rcx + {pushed}]",
                "test eax, eax",
                "js 94f",
                "lea rdx, [rsp + {frame_bytes} + 8]",
                "cmp rdx, [rsp + {sp}]",
                "jne 94f",
                "test dword ptr [rsp + {flags}], {tf}",
                "jnz 94f",
                "mov rax, [rsp + rax]",
                "sub rdx, 8",
                "mov [rdx], rax",
                "mov rax, [rcx + {key}]",
                "movzx esi, byte ptr [rcx + {len}]",
                "lea rax, [rax + rsi - 1]",
                "jmp kprobe_hit_pushed",
                // A jprobe here comes back through Rust.
                "93:",
                "mov byte ptr gs:[{jprobe} + {jprobe_plain}], 0",
                "jmp 92b",
                // In the post slot, with interrupts off, the guard dropped and the rest of the hit noted. A TF stays: see
                // `probes::debug_trap`.
                "94:",
                "mov rax, [rcx + {post_slot}]",
                "test rax, rax",
                "jz 95f",
                "mov [rsp + {ip}], rax",
                "mov gs:[{finishing}], rcx",
                "mov rax, [rsp + {sp}]",
                "mov gs:[{saved_sp}], rax",
                // As `pushf` would store them: without RF and VM.
                "mov eax, [rsp + {flags}]",
                "and eax, {pushed_flags}",
                "mov gs:[{saved_flags}], rax",
                "and dword ptr [rsp + {flags}], ~{interrupts}",
                "jmp 4b",
                "95:",
                "mov rdi, rcx",
                "mov rsi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "call {finish}",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "jmp 41b",

                // rcx: the site.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 88",
                ".globl kprobe_any_hit",
                "kprobe_any_hit:",
                ".cfi_remember_state",
                $crate::push_registers!("r8" "r9" "r10" "r11" "rbx" "rbp" "r12" "r13" "r14" "r15"),
                "cld",
                $clear_ac,
                "6:",
                "mov rdi, rcx",
                "mov rsi, rsp",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "call {serve_hit}",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",

                // rdi: the only probe, the kprobe of a kretprobe; rcx: the site.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 88",
                ".globl kprobe_one_kretprobe",
                "kprobe_one_kretprobe:",
                "cmp dword ptr gs:[{guard}], -1",
                "jne kprobe_any_hit",
                $crate::push_registers!("rbx"),
                "mov rsi, rcx",
                "mov rdi, [rdi + {holder}]",
                $crate::pop_instance!("rdi", "9f"),
                // rax: the instance; rdi: the task's cell; rdx: its newest call; rbx: the frame of the return; rcx: the return address, then
                // its slot.
                "mov rdi, gs:[{cell}]",
                "mov rcx, [rsp + 80]",
                "mov rdx, [rdi + {cell_head}]",
                "lea rbx, [rcx - {below_slot}]",
                "cmp [rdx + {frame}], rbx",
                "jbe 96f",
                "mov rcx, [rcx]",
                "cmp rcx, offset {trampoline}",
                "je 96f",
                "mov [rax + {ret_addr}], rcx",
                "mov [rax + {frame}], rbx",
                "mov [rax + {next}], rdx",
                // The ledger first: a stack walk in an NMI that finds the trampoline asks it.
                "mov [rdi + {cell_head}], rax",
                "mov qword ptr [rbx + {below_slot}], offset {trampoline}",
                "mov rax, [rsi + {run}]",
                "mov [rsp + 56], rax",
                ".cfi_remember_state",
                $crate::pop_registers!("rbx" "rax" "rcx" "rdx" "rsi" "rdi"),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 96",
                // The slot is in the ledger already, or calls were abandoned.
                "96:",
                "call kretprobe_give_back",
                "9:",
                "mov rcx, rsi",
                $crate::pop_registers!("rbx"),
                "jmp kprobe_any_hit",

                // rdi: the first probe, whose call begins as that of `kprobe_one_kretprobe`; rcx: the site.
                ".cfi_def_cfa_offset 88",
                ".globl kprobe_kretprobes",
                "kprobe_kretprobes:",
                "cmp dword ptr gs:[{guard}], -1",
                "jne kprobe_any_hit",
                $crate::push_registers!("rbx" "r8" "r9"),
                "mov rsi, rcx",
                "mov r8, rdi",
                "mov rdi, [rdi + {holder}]",
                $crate::pop_instance!("rdi", "34f"),
                "mov rdi, gs:[{cell}]",
                "mov rcx, [rsp + 96]",
                "mov rdx, [rdi + {cell_head}]",
                "lea rbx, [rcx - {below_slot}]",
                "cmp [rdx + {frame}], rbx",
                "jbe 33f",
                "mov rcx, [rcx]",
                "cmp rcx, offset {trampoline}",
                "je 33f",
                "mov [rax + {ret_addr}], rcx",
                "mov [rax + {frame}], rbx",
                "mov [rax + {next}], rdx",
                // The ledger first, as above.
                "mov [rdi + {cell_head}], rax",
                "mov qword ptr [rbx + {below_slot}], offset {trampoline}",
                // The others join the call, newest first. r8: the probe; r9: what they have as frame. One that is disabled meanwhile, or joins
                // the list just now, is served by another routine.
                "lea r9, [rbx - {shared}]",
                "31:",
                "mov r8, [r8 + {next_probe}]",
                "test r8, r8",
                "jz 32f",
                "cmp qword ptr [r8 + {serve}], offset kretprobe_serve",
                "jne 31b",
                "mov rdi, [r8 + {holder}]",
                $crate::pop_instance!("rdi", "35f"),
                "mov rdi, gs:[{cell}]",
                "mov rdx, [rdi + {cell_head}]",
                "mov rcx, [rdx + {ret_addr}]",
                "mov [rax + {ret_addr}], rcx",
                "mov [rax + {frame}], r9",
                "mov [rax + {next}], rdx",
                "mov [rdi + {cell_head}], rax",
                "jmp 31b",
                "32:",
                "mov rax, [rsi + {run}]",
                "mov [rsp + 72], rax",
                ".cfi_remember_state",
                $crate::pop_registers!("r9" "r8" "rbx" "rax" "rcx" "rdx" "rsi" "rdi"),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 112",
                // No instance is free for one that joins.
                "35:",
                "lock inc qword ptr [r8 + {nmissed}]",
                "jmp 31b",
                // The slot is in the ledger already, or calls were abandoned.
                "33:",
                "call kretprobe_give_back",
                "34:",
                "mov rcx, rsi",
                $crate::pop_registers!("r9" "r8" "rbx"),
                "jmp kprobe_any_hit",
                ".cfi_endproc",
                next_probe = const $crate::asm::layout::PROBE_NEXT,
                serve = const $crate::asm::layout::PROBE_SERVE,
                nmissed = const $crate::asm::layout::KRETPROBE_NMISSED,
                shared = const $crate::asm::layout::SHARED,
                multiplier = const $crate::asm::layout::MULTIPLIER as i32,
                shift = const $crate::asm::layout::SHIFT,
                index_mask = const $crate::asm::layout::INDEX_MASK,
                probes = sym $probes,
                table = const $crate::Probes::<$platform>::table_offset(),
                key = const $crate::asm::layout::SITE_KEY,
                head = const $crate::asm::layout::SITE_HEAD,
                run = const $crate::asm::layout::SITE_RUN,
                post_slot = const $crate::asm::layout::SITE_POST_SLOT,
                len = const $crate::asm::layout::SITE_LEN,
                pushed = const $crate::asm::layout::SITE_PUSHED,
                stub = const $crate::asm::layout::PROBE_STUB,
                chain = const $crate::asm::layout::PROBE_CHAIN,
                flow_jprobe = const $crate::asm::Flow::Jprobe as u8,
                holder = const $crate::asm::layout::KRETPROBE_HOLDER,
                next = const $crate::asm::layout::INSTANCE_NEXT,
                ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
                frame = const $crate::asm::layout::INSTANCE_FRAME,
                below_slot = const $crate::asm::layout::BELOW_SLOT,
                cell_head = const $crate::asm::layout::CELL_HEAD,
                jprobe_site = const $crate::asm::layout::JPROBE_SITE,
                jprobe_plain = const $crate::asm::layout::JPROBE_PLAIN,
                jprobe_regs = const $crate::asm::layout::JPROBE_REGS,
                jprobe_stack = const $crate::asm::layout::JPROBE_STACK,
                words = const $crate::asm::STACK_WORDS,
                ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                flags = const ::core::mem::offset_of!($crate::PtRegs, flags),
                frame_bytes = const ::core::mem::size_of::<$crate::PtRegs>(),
                tf = const $crate::asm::bits::TF,
                interrupts = const $crate::asm::bits::IF,
                pushed_flags = const !($crate::asm::bits::RF | $crate::asm::bits::VM) as i32,
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
                breakpoints = const $crate::PerCpu::breakpoints_gs_offset::<$platform>(),
                finishing = const $crate::PerCpu::finishing_gs_offset::<$platform>(),
                saved_flags = const $crate::PerCpu::saved_flags_gs_offset::<$platform>(),
                saved_sp = const $crate::PerCpu::saved_sp_gs_offset::<$platform>(),
                this = const $crate::PerCpu::this_gs_offset::<$platform>(),
                jprobe = const $crate::PerCpu::jprobe_gs_offset::<$platform>(),
                jprobe_in_cpu = const $crate::PerCpu::JPROBE_OFFSET,
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
                trampoline = sym kretprobe_trampoline,
                serve_hit = sym $crate::asm::serve::<$platform>,
                finish = sym $crate::asm::finish::<$platform>,
                resume = sym $crate::asm::resume_at::<$platform>,
                other = sym $other,
            )
        }

        /// Ends a hit whose instruction, a `push`, has been carried out on the frame. In: rcx, the site; rdx, the code's stack pointer now; rax,
        /// its next instruction. A function of its own, as in `kprobe_breakpoint` a walk takes the interrupted ip to be behind a breakpoint.
        ///
        /// # Safety
        /// Breakpoint hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_hit_pushed() {
            ::core::arch::naked_asm!(
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 168",
                ".cfi_register rsp, rdx",
                ".cfi_register rip, rax",
                $crate::frame_of_general_registers!(),
                "mov [rsp + {sp}], rdx",
                ".cfi_offset rsp, -16",
                "mov [rsp + {ip}], rax",
                ".cfi_offset rip, -40",
                "mov rdi, rcx",
                "mov rsi, rsp",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call kprobe_run_posts",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "dec dword ptr gs:[{guard}]",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                ".cfi_endproc",
                ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
            )
        }

        /// Serves a jprobe: saves all registers and the top of the stack and goes to the handler. Near the end of a page, where the
        /// stack might end, Rust does it. See `probes::asm`.
        ///
        /// # Safety
        /// Breakpoint hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn jprobe_serve() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov r8, [rsi + {sp}]",
                "mov eax, r8d",
                "and eax, 4095",
                "cmp eax, 4096 - 8 * {words}",
                "ja kprobe_serve_unusual",
                "mov rax, [rdi + {hits}]",
                "mov rdx, gs:[{counter_part}]",
                "inc qword ptr [rax + rdx]",
                "mov rax, [rdi + {site}]",
                "mov gs:[{jprobe} + {jprobe_site}], rax",
                "mov gs:[{jprobe} + {jprobe_kprobe}], rdi",
                "mov qword ptr gs:[{jprobe} + {jprobe_words}], {words}",
                "mov byte ptr gs:[{jprobe} + {jprobe_plain}], 1",
                "mov qword ptr gs:[{running}], 0",
                "mov rdx, [rdi + {entry}]",
                "mov r9, rsi",
                "mov rdi, gs:[{this}]",
                "add rdi, {jprobe_in_cpu} + {jprobe_regs}",
                "mov ecx, {frame_words}",
                "rep movsq",
                "mov rsi, r8",
                "mov ecx, {words}",
                "rep movsq",
                "mov [r9 + {ip}], rdx",
                "and dword ptr [r9 + {flags}], ~{if_and_tf}",
                "mov eax, {flow_jprobe}",
                "ret",
                ".cfi_endproc",
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
                flags = const ::core::mem::offset_of!($crate::PtRegs, flags),
                if_and_tf = const $crate::asm::bits::IF | $crate::asm::bits::TF,
                frame_words = const ::core::mem::size_of::<$crate::PtRegs>() / 8,
                words = const $crate::asm::STACK_WORDS,
                flow_jprobe = const $crate::asm::Flow::Jprobe as u8,
                hits = const $crate::asm::layout::PROBE_HITS,
                site = const $crate::asm::layout::PROBE_SITE,
                entry = const $crate::asm::layout::JPROBE_ENTRY,
                jprobe_site = const $crate::asm::layout::JPROBE_SITE,
                jprobe_kprobe = const $crate::asm::layout::JPROBE_KPROBE,
                jprobe_words = const $crate::asm::layout::JPROBE_WORDS,
                jprobe_plain = const $crate::asm::layout::JPROBE_PLAIN,
                jprobe_regs = const $crate::asm::layout::JPROBE_REGS,
                counter_part = const $crate::PerCpu::counter_part_gs_offset::<$platform>(),
                running = const $crate::PerCpu::running_gs_offset::<$platform>(),
                this = const $crate::PerCpu::this_gs_offset::<$platform>(),
                jprobe = const $crate::PerCpu::jprobe_gs_offset::<$platform>(),
                jprobe_in_cpu = const $crate::PerCpu::JPROBE_OFFSET,
            )
        }

        unsafe extern "C" {
            static kprobe_any_hit: u8;
            static kprobe_hit: u8;
            static kprobe_hit_post: u8;
            static kprobe_one_kretprobe: u8;
            static kprobe_kretprobes: u8;
        }

        fn with_breakpoint_entry(
            entry: $crate::asm::EntryPoints,
        ) -> $crate::asm::EntryPoints {
            $crate::asm::EntryPoints {
                any_hit: (&raw const kprobe_any_hit) as u64,
                hit: (&raw const kprobe_hit) as u64,
                hit_post: (&raw const kprobe_hit_post) as u64,
                one_kretprobe: (&raw const kprobe_one_kretprobe) as u64,
                kretprobes: (&raw const kprobe_kretprobes) as u64,
                routines: $crate::asm::Routines {
                    jprobe: jprobe_serve as *const () as u64,
                    ..entry.routines
                },
                ..entry
            }
        }
    };
}
