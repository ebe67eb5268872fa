//! The templates that detours are copied from. See [`detour`](crate::detour).

/// Defines the templates of detours, `kprobe_detour_at_entry`, `kprobe_detour`, `kretprobe_detour_entry` and `kretprobe_detour`, and their
/// addresses. Part of [`entry_points!`](crate::entry_points).
///
/// The frame of the first three:
/// ```text
///   S       rsp of the probed code
///   S-0x08  ss               PtRegs, last field first
///   S-0x10  rsp (= S)        pushed 8 too low, then corrected
///   S-0x18  rflags
///   S-0x20  cs
///   S-0x28  rip              the probed address + 1
///   S-0x30  orig_ax (-1)
///   S-0x38  rdi ... down to
///   S-0xa8  r15              <- rsi at the call
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! detour_templates {
    ($platform:ty, cs = $cs:expr, ss = $ss:expr) => {
        $crate::detour_template! {
            $platform, $cs, $ss, kprobe_detour_at_entry, kprobe_detour_at_entry_enter, kprobe_detour_at_entry_end,
            cold = [],
            hot = [
                "cld",
                "movabs rdi, {site}",
                "mov rsi, rsp",
                "mov rdi, [rdi + {head}]",
                "call [rdi + {chain}]",
                "test al, al",
                "jnz 4b",
            ],
            operands = {
                head = const $crate::asm::layout::SITE_HEAD,
                chain = const $crate::asm::layout::PROBE_CHAIN,
            }
        }
        $crate::detour_template! {
            $platform, $cs, $ss, kprobe_detour, kprobe_detour_enter, kprobe_detour_end,
            cold = [],
            hot = [
                // Handlers run with DF and AC clear; hardly any code has one of them set.
                "test dword ptr [rsp + {flags}], {unwanted}",
                "jz 2f",
                "push [rsp + {flags}]",
                ".cfi_adjust_cfa_offset 8",
                "and dword ptr [rsp], ~{unwanted}",
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                "2:",
                "movabs rdi, {site}",
                "mov rsi, rsp",
                "mov rdi, [rdi + {head}]",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call [rdi + {chain}]",
                "mov rsp, rbp",
                ".cfi_def_cfa_register rsp",
                "test al, al",
                "jnz 4b",
            ],
            operands = {
                head = const $crate::asm::layout::SITE_HEAD,
                chain = const $crate::asm::layout::PROBE_CHAIN,
                flags = const ::core::mem::offset_of!($crate::PtRegs, flags),
                unwanted = const $crate::asm::layout::DF_AND_AC,
            }
        }
        $crate::detour_template! {
            $platform, $cs, $ss, kretprobe_detour_entry, kretprobe_detour_entry_enter, kretprobe_detour_entry_end,
            cold = [
                // The slot is in the ledger already, or calls were abandoned.
                "9:",
                "call {give_back}",
                // As for any other probes.
                "8:",
                "movabs rdi, {site}",
                "mov rsi, rsp",
                "mov rdi, [rdi + {head}]",
                "call [rdi + {chain}]",
                "test al, al",
                "jnz 4b",
                "jmp 5f",
                // The entry handler lets the call go.
                "6:",
                "call {decline}",
                "jmp 5f",
            ],
            hot = [
                "cld",
                "movabs r12, {kretprobe}",
                "mov rdi, [r12 + {lone_holder}]",
                $crate::pop_instance!("rdi", "8b"),
                // rax: the instance; rdx: the task's cell; rcx: its newest call; rbx: the return address. This frame is as far below the return
                // slot as that of the return will be.
                "mov rdx, gs:[{cell}]",
                "mov rcx, [rdx + {cell_head}]",
                "cmp [rcx + {frame}], rsp",
                "jbe 9b",
                "mov rbx, [rsp + {below_slot}]",
                "movabs r14, {trampoline}",
                "cmp rbx, r14",
                "je 9b",
                "mov [rax + {ret_addr}], rbx",
                "mov [rax + {frame}], rsp",
                "mov [rax + {next}], rcx",
                "mov [rdx + {cell_head}], rax",
                "mov gs:[{running}], r12",
                "mov rdi, rax",
                "mov rsi, rsp",
                "call [r12 + {enter}]",
                "test al, al",
                "jnz 6b",
                "mov [rsp + {below_slot}], r14",
            ],
            operands = {
                head = const $crate::asm::layout::SITE_HEAD,
                chain = const $crate::asm::layout::PROBE_CHAIN,
                kretprobe = const $crate::asm::KRETPROBE_MARK,
                trampoline = const $crate::asm::TRAMPOLINE_MARK,
                lone_holder = const $crate::asm::layout::KRETPROBE_LONE_HOLDER,
                enter = const $crate::asm::layout::KRETPROBE_ENTER,
                next = const $crate::asm::layout::INSTANCE_NEXT,
                ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
                frame = const $crate::asm::layout::INSTANCE_FRAME,
                below_slot = const $crate::asm::layout::BELOW_SLOT,
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
                cell_head = const $crate::asm::layout::CELL_HEAD,
                running = const $crate::PerCpu::running_gs_offset::<$platform>(),
                give_back = sym kretprobe_give_back,
                decline = sym kretprobe_decline,
            }
        }

        /// The template of the detours of functions with a return probe alone that has no entry handler and no data; never executed
        /// here. Builds no frame: takes an instance, borrows the return address, goes on. Whatever is unusual it leaves to
        /// the breakpoint behind `8`, which stands for that at the function's entry.
        ///
        /// ```text
        ///   S       return slot
        ///   S-0x08  rflags
        ///   S-0x10  rax
        ///   S-0x18  rcx
        ///   S-0x20  rdx
        ///   S-0x28  rbx
        ///   S-0x30  rdi
        /// ```
        ///
        /// # Safety
        /// Never called.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn kretprobe_detour() {
            ::core::arch::naked_asm!(
                ".cfi_startproc simple",
                ".cfi_def_cfa rsp, 56",
                ".cfi_offset rip, -8",
                ".cfi_offset rax, -24",
                ".cfi_offset rcx, -32",
                ".cfi_offset rdx, -40",
                ".cfi_offset rbx, -48",
                ".cfi_offset rdi, -56",
                // The slot is in the ledger already, or calls were abandoned.
                "8:",
                "call {give_back}",
                // Nothing was done.
                "9:",
                $crate::pop_registers!("rdi" "rbx" "rdx" "rcx" "rax"),
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                "int3",
                ".globl kretprobe_detour_enter",
                "kretprobe_detour_enter:",
                "pushfq",
                ".cfi_adjust_cfa_offset 8",
                $crate::push_registers!("rax" "rcx" "rdx" "rbx" "rdi"),
                "cmp dword ptr gs:[{guard}], -1",
                "jne 9b",
                "movabs rdi, {kretprobe}",
                "mov rdi, [rdi + {lone_holder}]",
                $crate::pop_instance!("rdi", "9b"),
                // rax: the instance; rdi: the task's cell; rbx: the frame of the return; rdx: the newest call; rcx: the return address.
                "mov rdi, gs:[{cell}]",
                "lea rbx, [rsp + 48 - {below_slot}]",
                "mov rdx, [rdi + {cell_head}]",
                "cmp [rdx + {frame}], rbx",
                "jbe 8b",
                "mov rcx, [rsp + 48]",
                "mov [rax + {ret_addr}], rcx",
                "mov [rax + {frame}], rbx",
                "mov [rax + {next}], rdx",
                "movabs rdx, {trampoline}",
                "cmp rcx, rdx",
                "je 8b",
                // The ledger first: a stack walk in an NMI that finds the trampoline asks it.
                "mov [rdi + {cell_head}], rax",
                "mov [rsp + 48], rdx",
                $crate::pop_registers!("rdi" "rbx" "rdx" "rcx" "rax"),
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                ".globl kretprobe_detour_end",
                "kretprobe_detour_end:",
                ".cfi_endproc",
                kretprobe = const $crate::asm::KRETPROBE_MARK,
                trampoline = const $crate::asm::TRAMPOLINE_MARK,
                lone_holder = const $crate::asm::layout::KRETPROBE_LONE_HOLDER,
                next = const $crate::asm::layout::INSTANCE_NEXT,
                ret_addr = const $crate::asm::layout::INSTANCE_RET_ADDR,
                frame = const $crate::asm::layout::INSTANCE_FRAME,
                below_slot = const $crate::asm::layout::BELOW_SLOT,
                cell_head = const $crate::asm::layout::CELL_HEAD,
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
                cell = const $crate::PerCpu::cell_gs_offset::<$platform>(),
                give_back = sym kretprobe_give_back,
            )
        }

        fn detour_templates() -> $crate::asm::Templates {
            let template = |start: *const (), enter: *const u8, end: *const u8| {
                $crate::asm::Template {
                    start: start as u64,
                    enter: enter as u64,
                    end: end as u64,
                }
            };
            $crate::asm::Templates {
                at_entry: template(
                    kprobe_detour_at_entry as *const (),
                    &raw const kprobe_detour_at_entry_enter,
                    &raw const kprobe_detour_at_entry_end,
                ),
                anywhere: template(
                    kprobe_detour as *const (),
                    &raw const kprobe_detour_enter,
                    &raw const kprobe_detour_end,
                ),
                lone_entry: template(
                    kretprobe_detour_entry as *const (),
                    &raw const kretprobe_detour_entry_enter,
                    &raw const kretprobe_detour_entry_end,
                ),
                lone_return: template(
                    kretprobe_detour as *const (),
                    &raw const kretprobe_detour_enter,
                    &raw const kretprobe_detour_end,
                ),
            }
        }

        unsafe extern "C" {
            static kretprobe_detour_enter: u8;
            static kretprobe_detour_end: u8;
        }
    };
}

/// One template: `hot` is between the frame and its end, `cold` before the entry.
#[doc(hidden)]
#[macro_export]
macro_rules! detour_template {
    (
        $platform:ty, $cs:expr, $ss:expr, $name:ident, $enter:ident, $end:ident,
        cold = [$($cold:literal),* $(,)?], hot = [$($hot:expr),* $(,)?], operands = { $($operands:tt)* }
    ) => {
        /// A template of detours; never executed here.
        ///
        /// # Safety
        /// Never called.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            ::core::arch::naked_asm!(
                // The frame is whole, and what it says is where to go on.
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 168",
                ".cfi_offset rsp, -16",
                ".cfi_offset rip, -40",
                $crate::frame_of_general_registers!(),
                // In another hit: nothing is handled, but counted.
                "3:",
                "cld",
                "movabs rdi, {site}",
                "mov rsi, rsp",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call {miss}",
                "mov rsp, rbp",
                ".cfi_def_cfa_register rsp",
                "jmp 5f",
                // A handler has said where to go on.
                "4:",
                "mov rdi, rsp",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call {resume}",
                "mov rsp, rbp",
                ".cfi_def_cfa_register rsp",
                "dec dword ptr gs:[{guard}]",
                ".cfi_remember_state",
                $crate::pop_general_registers!(),
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "iretq",
                // The assembler's adjustments forget what a `restore_state` has restored.
                ".cfi_restore_state",
                ".cfi_def_cfa_offset 168",
                $($cold,)*
                ".cfi_endproc",
                // Until `ip` is pushed, the walk knows by the offset where the frame above is.
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 0",
                ::core::concat!(".globl ", ::core::stringify!($enter)),
                ::core::concat!(::core::stringify!($enter), ":"),
                "push {ss}",
                ".cfi_adjust_cfa_offset 8",
                "push rsp",
                ".cfi_adjust_cfa_offset 8",
                "pushfq",
                ".cfi_adjust_cfa_offset 8",
                "push {cs}",
                ".cfi_adjust_cfa_offset 8",
                // push imm32, the long form
                ".byte 0x68",
                ".long 0",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rip, 0",
                "push -1",
                ".cfi_adjust_cfa_offset 8",
                $crate::push_general_registers!(),
                // What was pushed as rsp is one word too low. A stack walk takes it from the frame,
                // at `3` from the first instruction on.
                "add qword ptr [rsp + {sp}], 8",
                "inc dword ptr gs:[{guard}]",
                "jnz 3b",
                $($hot,)*
                "5:",
                "dec dword ptr gs:[{guard}]",
                $crate::pop_general_registers!(),
                "lea rsp, [rsp + 24]",
                ".cfi_adjust_cfa_offset -24",
                "popfq",
                ".cfi_adjust_cfa_offset -8",
                "lea rsp, [rsp + 16]",
                ".cfi_adjust_cfa_offset -16",
                ::core::concat!(".globl ", ::core::stringify!($end)),
                ::core::concat!(::core::stringify!($end), ":"),
                ".cfi_endproc",
                ss = const $ss as i32,
                cs = const $cs as i32,
                sp = const ::core::mem::offset_of!($crate::PtRegs, sp),
                guard = const $crate::PerCpu::guard_gs_offset::<$platform>(),
                site = const $crate::asm::SITE_MARK,
                miss = sym $crate::asm::miss_in_detour::<$platform>,
                resume = sym $crate::asm::resume_at::<$platform>,
                $($operands)*
            )
        }

        unsafe extern "C" {
            static $enter: u8;
            static $end: u8;
        }
    };
}
