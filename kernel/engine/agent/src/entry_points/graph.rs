//! The routines of the tracer of calls ([`crate::graph`]), in assembly, because with all functions
//! traced each call pays for each of their instructions.
//!
//! Each does the usual case: records are taken, of all tasks, to any depth and of any duration, and
//! no call is hidden, so [`Recording`](crate::records::Recording) is 0; and the call around this
//! one is the next older one on the task's list, or there is none. Anything else starts over in
//! Rust, with the same result.
//!
//! # Contexts
//! As for all entry points.

/// Writes the header, the prefix and the common header of a record, whose size and type are
/// constants, at `rdi`. `$frame`: the register from which on the flags of the processor are.
/// Changes `rax`.
#[doc(hidden)]
#[macro_export]
macro_rules! graph_headers {
    ($frame:literal) => {
        concat!(
            "
    mov dword ptr [rdi - {in_front}], {header}
    mov dword ptr [rdi - {prefix}], {size}
    mov dword ptr [rdi - {prefix} + 4], {size}
    mov word ptr [rdi], {kind}
    ",
            // 1 more, the flag for that, if interrupts were off.
            $crate::record_shown_words!(concat!(
                "bt dword ptr [",
                $frame,
                " + {flags}], {interrupt_flag}
    sbb eax, -1"
            ))
        )
    };
}

/// As `trace_ring_submit`, of the record at `rdi`; the end of the routine. Changes `rax`, `rsi` and
/// `rdi`.
#[doc(hidden)]
#[macro_export]
macro_rules! graph_submit {
    ($result:literal) => {
        concat!(
            $crate::record_submit!(),
            "
2:  ",
            $result,
            "
    ret
3:  mov rdi, rax
    call {publish}
    ",
            $result,
            "
    ret
    "
        )
    };
}

/// A routine: its lines, with the operands that all of them have, and its own.
#[doc(hidden)]
#[macro_export]
macro_rules! graph_routine {
    ($agent:ty, $record:ident, $slowly:ident, $($line:expr),+
        $(; $($name:ident = const $value:expr),+)?) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            $($line,)+
            ".cfi_endproc",
            recording = const $crate::per_cpu::recording::<$agent>(),
            ring = const $crate::per_cpu::ring::<$agent>(),
            reserved = const $crate::records::RESERVED,
            committed = const $crate::records::COMMITTED,
            page_mask = const $crate::records::PAGE_MASK,
            payload = const $crate::records::PAYLOAD,
            in_front = const $crate::records::IN_FRONT,
            prefix = const $crate::records::PREFIX_BYTES,
            header = const $crate::graph::$record.header,
            size = const $crate::graph::$record.size,
            kind = const $crate::graph::$record.kind,
            reserve = const $crate::graph::$record.reserve,
            need_resched = const <$agent as $crate::Agent>::SHOWN.need_resched,
            interrupt_flag = const $crate::graph::INTERRUPT_FLAG.trailing_zeros(),
            interrupt = const <$agent as $crate::Agent>::SHOWN.interrupt,
            preempt_count = const <$agent as $crate::Agent>::SHOWN.preempt_count,
            pid = const $crate::per_cpu::task::<$agent>(),
            entered = const $crate::graph::layout::ENTERED,
            depth = const $crate::graph::layout::DEPTH,
            function = const $crate::graph::layout::FUNCTION,
            publish = sym trace_publish,
            slowly = sym $slowly,
            $($($name = const $value,)+)?
        )
    };
}

/// The routines for an entry in one role: with a frame, and by a jump. `$alone`: what to do if the
/// call is in no other. `$registers`: what is recorded beside, with `rax` free.
#[doc(hidden)]
#[macro_export]
macro_rules! graph_entry {
    ($agent:ty, $role:ident, $arguments:literal, $record:ident,
        $entry:ident, $by_jump:ident, $slowly:ident,
        alone = $alone:expr, registers = $registers:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn $entry(
            instance: *mut (),
            regs: &mut $crate::probes::PtRegs,
        ) -> $crate::probes::EntryVerdict {
            // SAFETY: `GraphTracer` gives it to actions that have the words.
            unsafe {
                $crate::graph::entry::<$agent, { $crate::graph::$role }, $arguments>(instance, regs)
            }
        }

        unsafe extern "C" fn $slowly(
            instance: *mut (),
            regs: *const $crate::graph::EntryRegisters,
        ) -> $crate::probes::EntryVerdict {
            // SAFETY: as above.
            unsafe {
                $crate::graph::entry_by_jump::<$agent, { $crate::graph::$role }, $arguments>(
                    instance, regs,
                )
            }
        }

        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $by_jump() {
            $crate::graph_routine!($agent, $record, $slowly,
                "mov rcx, gs:[{recording}]",
                "cmp qword ptr [rcx], 0",
                "jne 8f",
                // rcx: the next older call; rdx: its probe.
                "mov rcx, [rax + {next}]",
                "mov rdx, [rcx + {holder}]",
                "mov rdx, [rdx + {kretprobe}]",
                "mov rdi, [rsi + {handler}]",
                "cmp [rdx + {handler}], rdi",
                "jne 4f",
                "mov rdi, [rsi + {address}]",
                "mov esi, [rcx + {depth}]",
                "inc esi",
                "9:",
                "mov [rax + {function}], rdi",
                "mov [rax + {depth}], esi",
                "mov ecx, gs:[{cpu}]",
                "mov [rax + {entry_cpu}], ecx",
                "movabs rdx, {reserve}",
                $crate::record_reserve!(),
                // The time.
                "mov rcx, [rsp + {instance}]",
                "mov [rcx + {entered}], eax",
                "mov [rcx + {entered} + 4], edx",
                "mov rax, [rcx + {function}]",
                "mov [rdi + {record_function}], rax",
                "mov [rdi + {record_depth}], rsi",
                $registers,
                $crate::graph_headers!("rsp"),
                $crate::graph_submit!("xor eax, eax"),
                // Another kind of call is around this one, or none at all.
                "4:",
                "cmp qword ptr [rcx + {next}], 0",
                "jne 8f",
                $alone,
                "mov eax, {decline}",
                "ret",
                // Not usual: in Rust, with the `EntryRegisters` on the stack.
                "8:",
                "push [rsp + {flags}]",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push [rsp + 24 + {cx}]",
                ".cfi_adjust_cfa_offset 8",
                "push [rsp + 32 + {dx}]",
                ".cfi_adjust_cfa_offset 8",
                "push [rsp + 40 + {si}]",
                ".cfi_adjust_cfa_offset 8",
                "push [rsp + 48 + {di}]",
                ".cfi_adjust_cfa_offset 8",
                "mov rdi, [rsp + 56 + {instance}]",
                "mov rsi, rsp",
                "push r10",
                ".cfi_adjust_cfa_offset 8",
                "push r11",
                ".cfi_adjust_cfa_offset 8",
                "call {slowly}",
                "mov r11, [rsp]",
                "mov r10, [rsp + 8]",
                "mov r8, [rsp + 16 + 32]",
                "mov r9, [rsp + 16 + 40]",
                "add rsp, 72",
                ".cfi_adjust_cfa_offset -72",
                "ret";
                entry_cpu = const $crate::graph::layout::ENTRY_CPU,
                record_function = const $crate::graph::layout::RECORD_FUNCTION,
                record_depth = const $crate::graph::layout::RECORD_DEPTH,
                cpu = const $crate::per_cpu::number::<$agent>(),
                instance = const $crate::graph::layout::ENTRY_FRAME_INSTANCE,
                flags = const $crate::graph::layout::ENTRY_FRAME_FLAGS,
                di = const $crate::graph::layout::ENTRY_FRAME_DI,
                si = const $crate::graph::layout::ENTRY_FRAME_SI,
                dx = const $crate::graph::layout::ENTRY_FRAME_DX,
                cx = const $crate::graph::layout::ENTRY_FRAME_CX,
                address = const $crate::probes::action::ADDRESS_IN_PROBE,
                next = const $crate::probes::asm::layout::INSTANCE_NEXT,
                holder = const $crate::probes::asm::layout::INSTANCE_HOLDER,
                kretprobe = const $crate::probes::asm::layout::HOLDER_KRETPROBE,
                handler = const $crate::probes::asm::layout::KRETPROBE_HANDLER,
                decline = const $crate::probes::EntryVerdict::Decline as u8
            )
        }
    };
}

/// A routine of the return. `$frame`: where it finds the registers, from the register `$at` on.
/// `$instance`: a register that has the instance after the lines `$before` and, where that is
/// reserved, `$load`. `$slow`: the case that is not usual.
#[doc(hidden)]
#[macro_export]
macro_rules! graph_return {
    ($agent:ty, $frame:ty, $before:literal, $instance:literal, $load:literal, $at:literal,
        $($slow:expr),+ $(; $($name:ident = const $value:expr),+)?) => {
        $crate::graph_routine!($agent, RETURN, trace_graph_return_slowly,
            $before,
            "mov rcx, gs:[{recording}]",
            "cmp qword ptr [rcx], 0",
            "jne 8f",
            "movabs rdx, {reserve}",
            $crate::record_reserve!(),
            $load,
            concat!("mov rax, [", $instance, " + {function}]"),
            "mov [rdi + {record_function}], rax",
            concat!("mov rax, [", $at, " + {ax}]"),
            "mov [rdi + {record_result}], rax",
            concat!("mov rax, [", $instance, " + {depth}]"),
            "mov [rdi + {record_place}], rax",
            concat!("mov rax, [", $instance, " + {entered}]"),
            "mov [rdi + {record_entered}], rax",
            $crate::graph_headers!($at),
            $crate::graph_submit!(""),
            "8:",
            $($slow),+;
            ax = const ::core::mem::offset_of!($frame, ax),
            flags = const ::core::mem::offset_of!($frame, flags),
            record_function = const $crate::graph::layout::RECORD_FUNCTION,
            record_result = const $crate::graph::layout::RECORD_RESULT,
            record_place = const $crate::graph::layout::RECORD_PLACE,
            record_entered = const $crate::graph::layout::RECORD_ENTERED
            $(, $($name = const $value),+)?
        )
    };
}

/// The routines.
#[doc(hidden)]
#[macro_export]
macro_rules! graph_routines {
    ($agent:ty) => {
        $crate::graph_entry!(
            $agent, ROOT, false, ENTRY,
            trace_graph_root, trace_graph_root_by_jump, trace_graph_root_slowly,
            alone = "mov rdi, [rsi + {address}]; xor esi, esi; jmp 9b",
            registers = ""
        );
        $crate::graph_entry!(
            $agent, INNER, false, ENTRY,
            trace_graph_inner, trace_graph_inner_by_jump, trace_graph_inner_slowly,
            alone = "", registers = ""
        );
        $crate::graph_entry!(
            $agent, ROOT, true, LONG_ENTRY,
            trace_graph_root_arguments, trace_graph_root_arguments_by_jump,
            trace_graph_root_arguments_slowly,
            alone = "mov rdi, [rsi + {address}]; xor esi, esi; jmp 9b",
            registers = $crate::graph_arguments!()
        );
        $crate::graph_entry!(
            $agent, INNER, true, LONG_ENTRY,
            trace_graph_inner_arguments, trace_graph_inner_arguments_by_jump,
            trace_graph_inner_arguments_slowly,
            alone = "", registers = $crate::graph_arguments!()
        );

        #[unsafe(no_mangle)]
        extern "C" fn trace_graph_hidden(
            instance: *mut (),
            regs: &mut $crate::probes::PtRegs,
        ) -> $crate::probes::EntryVerdict {
            // SAFETY: `GraphTracer` gives it to actions that have the words.
            unsafe {
                $crate::graph::entry::<$agent, { $crate::graph::HIDE }, false>(instance, regs)
            }
        }

        unsafe extern "C" fn trace_graph_return_slowly(
            instance: *mut (),
            result: u64,
            flags: u64,
        ) {
            // SAFETY: `GraphTracer` gives the routines to actions whose entry is one of those
            // above.
            unsafe { $crate::graph::on_return::<$agent>(instance, result, flags) }
        }

        /// The return of a call that was followed, as a C function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn trace_graph_return(
            instance: *mut (),
            regs: &mut $crate::probes::PtRegs,
        ) {
            $crate::graph_return!($agent, $crate::probes::PtRegs,
                "mov r8, rdi", "r8", "", "rsi",
                "mov rdi, r8",
                "mov rdx, [rsi + {flags}]",
                "mov rsi, [rsi + {ax}]",
                "jmp {slowly}"
            )
        }

        /// The same for a call that a jump has followed.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn trace_graph_return_by_jump() {
            $crate::graph_return!($agent, $crate::probes::action::EntryFrame,
                "", "rcx", "mov rcx, [rsp + {instance}]", "rsp",
                "mov rdi, [rsp + {instance}]",
                "mov rsi, [rsp + {ax}]",
                "mov rdx, [rsp + {flags}]",
                $crate::call_slowly!("{slowly}");
                instance = const $crate::graph::layout::ENTRY_FRAME_INSTANCE
            )
        }

        /// Publishes the records from the one on that is named in `rdi`. Keeps what a routine
        /// keeps.
        #[unsafe(naked)]
        unsafe extern "C" fn trace_publish() {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                $crate::call_slowly!("{slowly}"),
                ".cfi_endproc",
                slowly = sym trace_publish_slowly,
            )
        }
    };
}

/// Records the registers of arguments, at the entry by a jump.
#[doc(hidden)]
#[macro_export]
macro_rules! graph_arguments {
    () => {
        "
    mov rax, [rsp + {di}]
    mov [rdi + {record_depth} + 8], rax
    mov rax, [rsp + {si}]
    mov [rdi + {record_depth} + 16], rax
    mov rax, [rsp + {dx}]
    mov [rdi + {record_depth} + 24], rax
    mov rax, [rsp + {cx}]
    mov [rdi + {record_depth} + 32], rax
    mov [rdi + {record_depth} + 40], r8
    mov [rdi + {record_depth} + 48], r9
    "
    };
}
