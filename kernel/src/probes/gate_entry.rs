//! An entry for a gate of #BP or #DB that calls a function before the usual entry runs.

/// Defines an entry for exceptions without an error code, for a table that a CPU loads for a
/// while. The entry does this:
///
/// 1. It executes `$first`, with the stack as the processor has left it.
/// 2. It saves a frame, calls `$note` with it, and restores the registers.
/// 3. It executes `$next`, with the stack as in step 1. ZF is set unless `$note` has changed the
///    frame's `orig_ax`.
///
/// GS must be the kernel's.
///
/// ```text
///   rsp at the exception, aligned down to 16
///   +0xa0  ss … +0x80 ip     pushed by the processor
///   +0x78  orig_ax (-1)
///   +0x70  di … +0x00 r15    <- the `PtRegs`, and rdi at the call
///   -0x08  padding           <- rsp at the call: 16-aligned (System V psABI, 3.2.2)
/// ```
macro_rules! gate_entry {
    ($name:ident, $note:path, $first:literal, $next:literal) => {
        /// The entry.
        ///
        /// # Safety
        /// Never called: the processor gets here by a gate of this file's table.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".entry.text")]
        unsafe extern "C" fn $name() {
            ::core::arch::naked_asm!(
                ".cfi_startproc simple",
                ".cfi_signal_frame",
                ".cfi_def_cfa rsp, 40",
                ".cfi_offset rip, -40",
                ".cfi_offset rsp, -16",
                $first,
                "push -1",
                ".cfi_adjust_cfa_offset 8",
                ::probes::push_general_registers!(),
                "cld",
                "mov rdi, rsp",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "call {note}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                ::probes::pop_general_registers!(),
                "cmp qword ptr [rsp], -1",
                "lea rsp, [rsp + 8]",
                ".cfi_adjust_cfa_offset -8",
                $next,
                ".cfi_endproc",
                note = sym $note,
            )
        }
    };
}

pub(super) use gate_entry;
