//! Where control comes back to the probes without an exception: after a probed call, after a slot with a post handler, after the handler
//! of a jprobe. None of these functions is called like one.

/// Defines a trampoline that is one `nop`, for a kprobe of the probes' own.
#[doc(hidden)]
#[macro_export]
macro_rules! nop_trampoline {
    ($name:ident) => {
        /// Where a return-probed function returns to by one of the historic methods. See [`probes::historic`](::probes::historic).
        ///
        /// ```text
        ///   S       rsp on arrival and on departure; the return slot, S-8, has been consumed
        /// ```
        ///
        /// # Safety
        /// Never called: the only way in is the `ret` of a call whose return address was borrowed.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            ::core::arch::naked_asm!(
                // The frame above is that of the return slot's address, which is in the ledger.
                ".cfi_startproc simple",
                ".cfi_def_cfa rsp, 0",
                ".cfi_offset rip, -8",
                "nop",
                // The kprobe on the nop never lets control come here.
                "ud2",
                ".cfi_endproc",
            )
        }
    };
}

/// Defines `kretprobe_trampoline` and the two historic ones, `kprobe_post_stub` and `jprobe_return`; part of
/// [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! return_stubs {
    ($platform:ty, cs = $cs:expr, ss = $ss:expr) => {
        /// Where a return-probed function returns to. Builds a frame, runs the handlers of the call's probes, gives their instances
        /// back and goes to where the call came from; asks `on_return` to do that where the call is unusual. A call with one probe goes
        /// straight on, one with several to `6`.
        ///
        /// ```text
        ///   S       rsp on arrival and on departure
        ///   S-0x08  return slot      0: while handlers run, where the call came from is in the ledger
        ///   S-0x10  ss               PtRegs, last field first: what the probed function left behind.
        ///   S-0x18  rsp (= S)        A handler may change the general registers and the flags, and the caller
        ///                            sees that. In the end where the call came from; `ret 16` consumes it
        ///   S-0x20  rflags           and the caller sees that.
        ///   S-0x28  cs
        ///   S-0x30  rip              where the call came from
        ///   S-0x38  orig_ax (-1)
        ///   S-0x40  rdi ... down to
        ///   S-0xb0  r15              <- rsi at the call: 16-aligned, as S is behind a call (System V psABI, 3.2.2)
        /// ```
        ///
        /// # Safety
        /// Never called: the only way in is the `ret` of a call whose return address was borrowed.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kretprobe_trampoline() {
            ::core::arch::naked_asm!(
                // The frame above is that of the return slot's address. As long as the slot holds 0, that is in the ledger.
                ".cfi_startproc simple",
                ".cfi_def_cfa rsp, 0",
                ".cfi_offset rip, -8",
                "push 0",
                ".cfi_adjust_cfa_offset 8",
                "push {ss}",
                ".cfi_adjust_cfa_offset 8",
                "push rsp",
                ".cfi_adjust_cfa_offset 8",
                "pushfq",
                ".cfi_adjust_cfa_offset 8",
                "push {cs}",
                ".cfi_adjust_cfa_offset 8",
                "push 0",
                ".cfi_adjust_cfa_offset 8",
                "push -1",
                ".cfi_adjust_cfa_offset 8",
                $crate::push_general_registers!(),
                // One instruction: from here on this CPU switches no tasks, whichever it was before.
                "inc dword ptr gs:[{guard}]",
                // What was pushed as rsp is two words too low.
                "add qword ptr [rsp + {sp}], 16",
                // Handlers run with DF and AC clear; a function hardly ever returns with one of them set.
                "test dword ptr [rsp + {flags}], {unwanted}",
                "jz 2f",
                "push [rsp + {flags}]",
                ".cfi_adjust_cfa_offset 8",
                "and dword ptr [rsp], ~{unwanted}",
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                "2:",
                // rbx: the task's cell; r12: its newest call; rsi: this frame, if it is aligned.
                "mov rbx, gs:[{cell}]",
                "mov r12, [rbx + {cell_head}]",
                "mov rsi, rsp",
                "and rsi, -16",
                // Else the call has several probes, is not the newest, or the stack has to be aligned.
                "cmp [r12 + {frame}], rsi",
                "jne 6f",
                "mov r14, [r12 + {next}]",
                "mov rbp, [r12 + {ret_addr}]",
                "mov [rsp + {ip}], rbp",
                // r15: the holder; rdx: its kretprobe.
                "mov r15, [r12 + {holder}]",
                "mov rdx, [r15 + {kretprobe}]",
                "mov rax, [rdx + {hits}]",
                "mov rcx, gs:[{counter_part}]",
                "inc qword ptr [rax + rcx]",
                "mov gs:[{running}], rdx",
                "mov rdi, r12",
                "call [rdx + {handler}]",
                // The address first: a stack walk in an NMI needs it or the ledger. `ret 16` takes it from there.
                "mov [rsp + {sp}], rbp",
                ".cfi_offset rip, -24",
                "mov [rbx + {cell_head}], r14",
                // See `FreeList::push`.
                "mov rax, [r15]",
                "4:",
                "mov [r12 + {next}], rax",
                "lock cmpxchg [r15], r12",
                "jne 4b",
                "5:",
                "dec dword ptr gs:[{guard}]",
                ".cfi_remember_state",
                $crate::pop_general_registers!(),
                "lea rsp, [rsp + 24]",
                ".cfi_adjust_cfa_offset -24",
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                "ret 16",
                // The assembler's adjustments forget what a `restore_state` has restored.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset {slot} + 8",
                ".cfi_offset rip, -8",
                // Several probes: all instances of the call but the oldest are marked.
                ".cfi_remember_state",
                "6:",
                "lea rax, [rsi - {shared}]",
                "cmp [r12 + {frame}], rax",
                "jne 9f",
                "mov rbp, [r12 + {ret_addr}]",
                "mov [rsp + {ip}], rbp",
                // r14: the instance; then the next older call.
                "mov r14, r12",
                "7:",
                "mov rdx, [r14 + {holder}]",
                "mov rdx, [rdx + {kretprobe}]",
                "mov rax, [rdx + {hits}]",
                "mov rcx, gs:[{counter_part}]",
                "inc qword ptr [rax + rcx]",
                "mov gs:[{running}], rdx",
                "mov rdi, r14",
                "mov rsi, rsp",
                "call [rdx + {handler}]",
                "cmp [r14 + {frame}], rsp",
                "mov r14, [r14 + {next}]",
                "jne 7b",
                // As above: the address, the ledger, the instances.
                "mov [rsp + {sp}], rbp",
                ".cfi_offset rip, -24",
                "mov [rbx + {cell_head}], r14",
                "8:",
                "mov rax, r12",
                "mov r12, [r12 + {next}]",
                "call kretprobe_give_back",
                "cmp r12, r14",
                "jne 8b",
                "jmp 5b",
                ".cfi_restore_state",
                ".cfi_def_cfa_offset {slot} + 8",
                ".cfi_offset rip, -8",
                "9:",
                "mov rdi, rsp",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call {on_return}",
                "mov rsp, rbp",
                ".cfi_def_cfa_register rsp",
                "mov [rsp + {sp}], rax",
                "jmp 5b",
                ".cfi_endproc",
                shared = const $crate::asm::layout::SHARED,
                ss = const $ss as i32,
                cs = const $cs as i32,
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
                cell_head = const $crate::asm::layout::CELL_HEAD,
                frame = const $crate::asm::layout::INSTANCE_FRAME,
                next = const $crate::asm::layout::INSTANCE_NEXT,
                ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
                holder = const $crate::asm::layout::INSTANCE_HOLDER,
                kretprobe = const $crate::asm::layout::HOLDER_KRETPROBE,
                hits = const $crate::asm::layout::PROBE_HITS,
                handler = const $crate::asm::layout::KRETPROBE_HANDLER,
                counter_part = const $crate::PerCpu::counter_part_gs_offset::<$platform>(),
                running = const $crate::PerCpu::running_gs_offset::<$platform>(),
                ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                flags = const ::core::mem::offset_of!($crate::PtRegs, flags),
                unwanted = const $crate::asm::layout::DF_AND_AC,
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
                slot = const ::core::mem::size_of::<$crate::PtRegs>(),
                on_return = sym $crate::asm::on_return::<$platform>,
            )
        }

        $crate::nop_trampoline!(kretprobe_trampoline_trap3);
        $crate::nop_trampoline!(kretprobe_trampoline_trap4);

        /// Where a slot ends when a post handler waits. Interrupts are off, the guard is free, and `finishing` is set.
        ///
        /// ```text
        ///   E+8     rsp of the code once the instruction is done
        ///   E       on arrival: where execution goes on; then ss     PtRegs, last field first
        ///   E-0x08  rsp (= E, then corrected by 8)
        ///   E-0x10  rflags
        ///   E-0x18  cs
        ///   E-0x20  rip              copied from E
        ///   E-0x28  orig_ax (-1)
        ///   E-0x30  rdi ... down to
        ///   E-0xa0  r15              <- rsi at the call
        /// ```
        ///
        /// # Safety
        /// Never called: slots jump here.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_post_stub() {
            ::core::arch::naked_asm!(
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 8",
                ".cfi_offset rip, -8",
                "push rsp",
                ".cfi_adjust_cfa_offset 8",
                "pushfq",
                ".cfi_adjust_cfa_offset 8",
                "push {cs}",
                ".cfi_adjust_cfa_offset 8",
                "push qword ptr [rsp + 24]",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rip, 0",
                "push -1",
                ".cfi_adjust_cfa_offset 8",
                $crate::push_general_registers!(),
                "mov qword ptr [rsp + {ss_at}], {ss}",
                "add qword ptr [rsp + {sp}], 8",
                // Interrupts are off already; so are DF and AC from here on.
                "push 2",
                ".cfi_adjust_cfa_offset 8",
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                // The code's own IF and TF.
                "mov eax, gs:[{saved_flags}]",
                "and eax, {if_and_tf}",
                "and dword ptr [rsp + {flags}], ~{if_and_tf}",
                "or [rsp + {flags}], eax",
                // In this order: in between, as before, this CPU is seen to be in a hit.
                "inc dword ptr gs:[{guard}]",
                "mov rdi, gs:[{finishing}]",
                "mov qword ptr gs:[{finishing}], 0",
                "mov rax, [rsp + {ip}]",
                "shl rax, 16",
                "sar rax, 16",
                "cmp rax, [rsp + {ip}]",
                "jne 3f",
                "mov rsi, rsp",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call kprobe_run_posts",
                "mov rsp, rbp",
                ".cfi_def_cfa_register rsp",
                "2:",
                "dec dword ptr gs:[{guard}]",
                ".cfi_remember_state",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                // A call or jump to where nothing can be; where the processor has 57-bit addresses, some are denied that it could go to.
                // Loaded by the `iretq` that would be a fault of ours; in the plain slot the instruction raises it itself.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset {frame_bytes}",
                "3:",
                "mov rax, gs:[{saved_sp}]",
                "mov [rsp + {sp}], rax",
                "mov rax, [rdi + {site_slot}]",
                "mov [rsp + {ip}], rax",
                "jmp 2b",
                ".cfi_endproc",
                ss = const $ss as i32,
                cs = const $cs as i32,
                ss_at = const ::core::mem::offset_of!($crate::PtRegs, ss),
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
                flags = const ::core::mem::offset_of!($crate::PtRegs, flags),
                frame_bytes = const ::core::mem::size_of::<$crate::PtRegs>(),
                if_and_tf = const $crate::asm::bits::IF | $crate::asm::bits::TF,
                saved_flags = const $crate::PerCpu::saved_flags_gs_offset::<$platform>(),
                saved_sp = const $crate::PerCpu::saved_sp_gs_offset::<$platform>(),
                finishing = const $crate::PerCpu::finishing_gs_offset::<$platform>(),
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
                site_slot = const $crate::asm::layout::SITE_SLOT,
            )
        }

        /// Ends a jprobe handler. See [`probes::jprobe`](::probes::jprobe).
        ///
        /// Outside a handler there is no saved stack pointer; then the breakpoint belongs to nobody and is reported.
        ///
        /// # Safety
        /// See its declaration in `probes::asm`.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn jprobe_return() -> ! {
            ::core::arch::naked_asm!(
                // Nothing returns from here. The word at rsp is first the return address of the
                // call from the handler, then that of the probed function's: both frames look the
                // same.
                ".cfi_startproc",
                "cmp qword ptr gs:[{jprobe} + {site}], 0",
                "je jprobe_return_breakpoint",
                "mov rsp, gs:[{jprobe} + {regs} + {sp}]",
                ".globl jprobe_return_breakpoint",
                "jprobe_return_breakpoint:",
                "int3",
                "ud2",
                ".cfi_endproc",
                jprobe = const $crate::PerCpu::jprobe_gs_offset::<$platform>(),
                site = const $crate::asm::layout::JPROBE_SITE,
                regs = const $crate::asm::layout::JPROBE_REGS,
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
            )
        }

        unsafe extern "C" {
            static jprobe_return_breakpoint: u8;
        }
    };
}
