//! The assembly that runs the handlers of one hit: what breakpoints and detours call once they have built a frame.
//!
//! Each [`Kprobe`](crate::Kprobe) names two routines. `serve` does what this probe alone wants done; `chain` does that for it and every older probe
//! of its site, so a hit calls the `chain` of the site's first probe and is done. [`Site::choose_stubs`](crate::data::site::Site) chooses both:
//!
//! ```text
//!   chain ─┬─ a single probe: its `serve`
//!          ├─ several: kprobe_serve_chain, the `serve` of each in turn, until one says where to go on
//!          └─ an address that a detour cannot push: kprobe_serve_far_chain, which puts it into the frame first
//!
//!   serve ─┬─ kprobe_serve_nothing           disabled
//!          ├─ kprobe_serve_count             a kprobe without a pre handler
//!          ├─ kprobe_serve_kprobe            a pre handler
//!          ├─ kretprobe_serve                take an instance, borrow the return address
//!          ├─ kretprobe_serve_entry          the same, and run the entry handler
//!          ├─ jprobe_serve                   save registers and stack, go to the handler (see `breakpoint`)
//!          └─ kprobe_serve_unusual           any probe, in Rust
//! ```

/// The beginning of `kretprobe_serve` and `kretprobe_serve_entry`: takes an instance and fills it in. Leaves rax, the
/// instance; r13, the return slot; r8, the task's cell; r11, the trampoline. Where another kretprobe has taken up the call already it goes by
/// way of [`join_call!`](crate::join_call).
#[doc(hidden)]
#[macro_export]
macro_rules! take_up_call {
    () => {
        ::core::concat!(
            // r12: the frame of the return; r9: the task's newest call; r10: the return address.
            "mov r13, [rsi + {sp}]; ",
            "lea r12, [r13 - {below_slot}]; ",
            "mov r8, gs:[{cell}]; ",
            "mov r9, [r8 + {cell_head}]; ",
            "mov r10, [r13]; ",
            "lea r11, [rip + {trampoline}]; ",
            "cmp [r9 + {frame}], r12; ",
            "jbe 8f; ",
            "cmp r10, r11; ",
            "je 8f; ",
            "9: ",
            "mov r14, [rdi + {holder}]; ",
            $crate::pop_instance!("r14", "kprobe_serve_unusual"),
            "; ",
            "mov [rax + {ret_addr}], r10; ",
            "mov [rax + {frame}], r12; ",
            "mov [rax + {next}], r9",
        )
    };
}

/// The end of what [`take_up_call!`](crate::take_up_call) begins: if the slot is that of the task's newest call, and borrowed, takes the return
/// address from there.
#[doc(hidden)]
#[macro_export]
macro_rules! join_call {
    () => {
        "8: \
         mov rcx, [r9 + {frame}]; \
         add rcx, {shared}; \
         and rcx, ~{shared}; \
         cmp rcx, r12; \
         jne kprobe_serve_unusual; \
         cmp r10, r11; \
         jne kprobe_serve_unusual; \
         mov r10, [r9 + {ret_addr}]; \
         sub r12, {shared}; \
         jmp 9b"
    };
}

/// Defines the routines for a [`Platform`](crate::Platform); part of [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! serve_routines {
    ($platform:ty) => {
        /// Serves a disabled probe. See `probes::asm`, as for all of these.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_serve_nothing() {
            ::core::arch::naked_asm!(".cfi_startproc", "xor eax, eax", "ret", ".cfi_endproc")
        }

        /// Serves a kprobe without a pre handler.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_serve_count() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rax, [rdi + {hits}]",
                "mov rdx, gs:[{counter_part}]",
                "inc qword ptr [rax + rdx]",
                "xor eax, eax",
                "ret",
                ".cfi_endproc",
                hits = const $crate::asm::layout::PROBE_HITS,
                counter_part = const $crate::PerCpu::counter_part_gs_offset::<$platform>(),
            )
        }

        /// Serves a kprobe: counts the hit, notes the running probe for its fault handler, runs the pre handler.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_serve_kprobe() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rax, [rdi + {hits}]",
                "mov rdx, gs:[{counter_part}]",
                "inc qword ptr [rax + rdx]",
                "mov gs:[{running}], rdi",
                "jmp [rdi + {pre}]",
                ".cfi_endproc",
                pre = const $crate::asm::layout::PROBE_PRE,
                hits = const $crate::asm::layout::PROBE_HITS,
                counter_part = const $crate::PerCpu::counter_part_gs_offset::<$platform>(),
                running = const $crate::PerCpu::running_gs_offset::<$platform>(),
            )
        }

        /// Serves a kretprobe without entry handler and data. What is unusual about the call is left to Rust: the task has no cell, its
        /// newest call was abandoned, the return slot is borrowed for a call that is not the newest, no instance is free.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kretprobe_serve() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::take_up_call!(),
                // The ledger first: a stack walk in an NMI that finds the trampoline asks it.
                "mov [r8 + {cell_head}], rax",
                "mov [r13], r11",
                "xor eax, eax",
                "ret",
                $crate::join_call!(),
                ".cfi_endproc",
                shared = const $crate::asm::layout::SHARED,
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                holder = const $crate::asm::layout::KRETPROBE_HOLDER,
                next = const $crate::asm::layout::INSTANCE_NEXT,
                ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
                frame = const $crate::asm::layout::INSTANCE_FRAME,
                below_slot = const $crate::asm::layout::BELOW_SLOT,
                cell_head = const $crate::asm::layout::CELL_HEAD,
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
                trampoline = sym kretprobe_trampoline,
            )
        }

        /// Serves a kretprobe with an entry handler or data, as `kretprobe_serve`. The handler finds the call in the ledger and the return
        /// slot as the caller left it.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kretprobe_serve_entry() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::take_up_call!(),
                "mov [r8 + {cell_head}], rax",
                "mov gs:[{running}], rdi",
                "push r11",
                ".cfi_adjust_cfa_offset 8",
                // rdi: the instance; rax: the probe.
                "xchg rdi, rax",
                "call [rax + {enter}]",
                "pop r11",
                ".cfi_adjust_cfa_offset -8",
                "test al, al",
                "jnz 3f",
                "mov [r13], r11",
                "ret",
                "3:",
                "call kretprobe_decline",
                "xor eax, eax",
                "ret",
                $crate::join_call!(),
                ".cfi_endproc",
                shared = const $crate::asm::layout::SHARED,
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                holder = const $crate::asm::layout::KRETPROBE_HOLDER,
                enter = const $crate::asm::layout::KRETPROBE_ENTER,
                next = const $crate::asm::layout::INSTANCE_NEXT,
                ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
                frame = const $crate::asm::layout::INSTANCE_FRAME,
                below_slot = const $crate::asm::layout::BELOW_SLOT,
                cell_head = const $crate::asm::layout::CELL_HEAD,
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
                running = const $crate::PerCpu::running_gs_offset::<$platform>(),
                trampoline = sym kretprobe_trampoline,
            )
        }

        /// Takes the newest call of the current task off the ledger and gives its instance back: an entry handler has declined it. Ends
        /// in `kretprobe_give_back`.
        ///
        /// # Safety
        /// Hits only, by the CPU that has just chained the instance.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kretprobe_decline() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rdx, gs:[{cell}]",
                "mov rax, [rdx + {cell_head}]",
                "mov rcx, [rax + {next}]",
                "mov [rdx + {cell_head}], rcx",
                "jmp kretprobe_give_back",
                ".cfi_endproc",
                next = const $crate::asm::layout::INSTANCE_NEXT,
                cell_head = const $crate::asm::layout::CELL_HEAD,
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
            )
        }

        /// Gives an instance back, as `FreeList::push`. In: rax, the instance. Changes rax, rdx, rdi.
        ///
        /// # Safety
        /// Hits only; the instance is in hand.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kretprobe_give_back() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rdi, [rax + {holder}]",
                "mov rdx, rax",
                "mov rax, [rdi]",
                "2:",
                "mov [rdx + {next}], rax",
                "lock cmpxchg [rdi], rdx",
                "jne 2b",
                "ret",
                ".cfi_endproc",
                holder = const $crate::asm::layout::INSTANCE_HOLDER,
                next = const $crate::asm::layout::INSTANCE_NEXT,
            )
        }

        /// Serves any probe, in Rust.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_serve_unusual() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "jmp {serve}",
                ".cfi_endproc",
                serve = sym $crate::asm::serve_unusual::<$platform>,
            )
        }

        /// As `kprobe_serve_chain`, for an address that did not fit into the `push` of the detour: puts it into the frame first.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_serve_far_chain() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "mov rax, [rdi + {site}]",
                "mov rax, [rax + {key}]",
                "mov [rsi + {ip}], rax",
                "jmp kprobe_serve_chain",
                ".cfi_endproc",
                site = const $crate::asm::layout::PROBE_SITE,
                key = const $crate::asm::layout::SITE_KEY,
                ip = const ::core::mem::offset_of!($crate::PtRegs, ip),
            )
        }

        /// Serves a probe and all older ones of its site.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_serve_chain() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "2:",
                "mov r15, rdi",
                "call [rdi + {serve}]",
                "test al, al",
                "jnz 3f",
                "mov rdi, [r15 + {next}]",
                "mov rsi, [rsp]",
                "test rdi, rdi",
                "jnz 2b",
                "3:",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                ".cfi_endproc",
                serve = const $crate::asm::layout::PROBE_SERVE,
                next = const $crate::asm::layout::PROBE_NEXT,
            )
        }

        /// Runs the post handlers of a site, in the order of the pre handlers. In: rdi the site, rsi the frame. Changes rbx and r12, too.
        ///
        /// # Safety
        /// Hits only.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kprobe_run_posts() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "mov rbx, [rdi + {head}]",
                "mov r12, rsi",
                "2:",
                "mov rax, [rbx + {post}]",
                "test rax, rax",
                "jz 3f",
                "test dword ptr [rbx + {flags}], {silent}",
                "jnz 3f",
                "lea rdx, [rbx + {in_post}]",
                "mov gs:[{running}], rdx",
                "mov rdi, rbx",
                "mov rsi, r12",
                "xor edx, edx",
                "call rax",
                "3:",
                "mov rbx, [rbx + {next}]",
                "test rbx, rbx",
                "jnz 2b",
                "mov gs:[{running}], rbx",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                ".cfi_endproc",
                head = const $crate::asm::layout::SITE_HEAD,
                post = const $crate::asm::layout::PROBE_POST,
                flags = const $crate::asm::layout::PROBE_FLAGS,
                silent = const $crate::asm::layout::SILENT,
                in_post = const $crate::asm::IN_POST,
                next = const $crate::asm::layout::PROBE_NEXT,
                running = const $crate::PerCpu::running_gs_offset::<$platform>(),
            )
        }

        fn serve_routines() -> $crate::asm::Routines {
            $crate::asm::Routines {
                nothing: kprobe_serve_nothing as *const () as u64,
                count: kprobe_serve_count as *const () as u64,
                kprobe: kprobe_serve_kprobe as *const () as u64,
                kretprobe: kretprobe_serve as *const () as u64,
                kretprobe_entry: kretprobe_serve_entry as *const () as u64,
                jprobe: 0,
                unusual: kprobe_serve_unusual as *const () as u64,
                chain: kprobe_serve_chain as *const () as u64,
                far_chain: kprobe_serve_far_chain as *const () as u64,
            }
        }
    };
}
