//! The entries of traps that have an owner (`gates.rs`): they offer each trap of kernel code to the
//! probes, and go on to the owner if it is not theirs.
//!
//! ```text
//!   +0xa0  ss sp flags cs ip   pushed by the processor, from an address aligned to 16
//!   +0x78  orig_ax             the error code, or -1
//!   +0x70  di ... down to
//!   +0x00  r15                 <- the `PtRegs`
//!   -0x08  a free word         <- rsp at the call, aligned to 16
//! ```
//!
//! What the probes change in the frame (a fault in a slot is rewound to the probed instruction) the
//! owner finds there, because `ip`, `flags` and `sp` are the words that the processor has pushed.
//!
//! # Contexts
//! Interrupts off: all gates are interrupt gates. GS is the kernel's wherever CS is.

use crate::{gates, pt_regs::PtRegs, registry::Host};

/// Whether the processor pushes an error code for exceptions of this vector (Intel SDM vol. 3A,
/// table 6-1).
pub const fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// Offers a trap to the probes. True: resume from `regs`.
///
/// # Safety
/// `regs` is the frame of a trap of this vector that kernel code has raised; interrupts are off.
pub unsafe extern "C" fn offer_trap<P: Host>(regs: *mut PtRegs, vector: u32) -> bool {
    // SAFETY: the frame is on this stack, and nothing else knows it.
    let regs = unsafe { &mut *regs };
    gates::offer::<P>(regs, vector as u8)
}

/// In an entry: offers the frame at rsp, of the trap `{vector}`, to the probes. If it is theirs, it
/// resumes from there. Else it goes on with the frame as it is.
#[doc(hidden)]
#[macro_export]
macro_rules! offer_frame {
    () => {
        concat!(
            r#"
    mov rdi, rsp
    mov esi, {vector}
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    call {offer}
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    test al, al
    .cfi_remember_state
    jz 2f
"#,
            $crate::pop_general_registers!(),
            r#"
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    iretq
2:
    .cfi_restore_state
    .cfi_def_cfa_offset 168
"#
        )
    };
}

/// Defines `$name`, where the gate of a vector leads: #DB, or a fault. It offers traps of kernel
/// code to the probes of a [`Platform`](crate::Platform), and goes on to `owner`, the path of a
/// [`GateOwner`](crate::gates::GateOwner), with all others and with those that are not the probes'.
///
/// - `vector`: its number. A program has one entry for each.
/// - `clear_ac`: as for [`breakpoint_entry!`](crate::breakpoint_entry!).
#[macro_export]
macro_rules! trap_entry {
    (
        $platform:ty, $name:ident,
        vector = $vector:literal, owner = $owner:path, clear_ac = $clear_ac:literal
    ) => {
        /// Where a gate leads.
        ///
        /// # Safety
        /// Never called.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            $crate::trap_code!($platform, $vector, owner = $owner, clear_ac = $clear_ac)
        }
    };
}

/// The body of [`trap_entry!`](crate::trap_entry!): of a naked function.
#[macro_export]
macro_rules! trap_code {
    ($platform:ty, $vector:literal, owner = $owner:path, clear_ac = $clear_ac:literal) => {
        ::core::arch::naked_asm!(
            // By this label a kernel's list of refused code finds the entry.
            concat!(".globl kprobe_trap_", $vector),
            concat!("kprobe_trap_", $vector, ":"),
            ".cfi_startproc simple",
            ".cfi_signal_frame",
            ".cfi_def_cfa rsp, 40 + 8 * {error_code}",
            ".cfi_offset rip, -40",
            ".cfi_offset rsp, -16",
            "test byte ptr [rsp + 8 + 8 * {error_code}], 3",
            "jnz 3f",
            ".if {error_code} == 0",
            "push -1",
            ".cfi_adjust_cfa_offset 8",
            ".endif",
            $crate::push_general_registers!(),
            "cld",
            $clear_ac,
            $crate::offer_frame!(),
            $crate::pop_general_registers!(),
            ".if {error_code} == 0",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            ".endif",
            "3:",
            "jmp qword ptr [rip + {owner}]",
            ".cfi_endproc",
            error_code = const $crate::asm::traps::has_error_code($vector) as u8,
            vector = const $vector,
            offer = sym $crate::asm::traps::offer_trap::<$platform>,
            owner = sym $owner,
        )
    };
}

/// Defines `kprobe_other_breakpoint`, the way of a breakpoint that `kprobe_breakpoint` has not
/// found in the table: to the probes once more if kernel code has raised it, else to `owner`, the
/// path of a [`GateOwner`](crate::gates::GateOwner).
#[macro_export]
macro_rules! other_breakpoint {
    ($platform:ty, owner = $owner:path, clear_ac = $clear_ac:literal) => {
        /// Where a breakpoint goes that is not in the table.
        ///
        /// # Safety
        /// Never called: `kprobe_breakpoint` jumps here.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn kprobe_other_breakpoint() {
            ::core::arch::naked_asm!(
                $crate::begin_at_other!(),
                "test byte ptr [rsp + 56], 3",
                "jnz 3f",
                ".irp register, r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15",
                "push \\register",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset \\register, 0",
                ".endr",
                "cld",
                $clear_ac,
                $crate::offer_frame!(),
                ".irp register, r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8",
                "pop \\register",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_restore \\register",
                ".endr",
                "3:",
                $crate::end_in_owner!(),
                vector = const 3,
                offer = sym $crate::asm::traps::offer_trap::<$platform>,
                owner = sym $owner,
            )
        }
    };
}
