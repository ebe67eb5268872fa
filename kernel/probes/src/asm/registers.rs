//! Registers onto the stack and back, with their call frame information.

/// `push`, with its call frame information.
#[doc(hidden)]
#[macro_export]
macro_rules! push_registers {
    ($($register:literal)+) => {
        ::core::concat!($(
            "push ", $register, "; .cfi_adjust_cfa_offset 8; .cfi_rel_offset ", $register, ", 0; ",
        )+)
    };
}

/// `pop`, with its call frame information.
#[doc(hidden)]
#[macro_export]
macro_rules! pop_registers {
    ($($register:literal)+) => {
        ::core::concat!($(
            "pop ", $register, "; .cfi_adjust_cfa_offset -8; .cfi_restore ", $register, "; ",
        )+)
    };
}

/// Pushes all general registers below `orig_ax`, as [`PtRegs`](crate::PtRegs) has them.
#[doc(hidden)]
#[macro_export]
macro_rules! push_general_registers {
    () => {
        $crate::push_registers!(
            "rdi" "rsi" "rdx" "rcx" "rax" "r8" "r9" "r10" "r11" "rbx" "rbp" "r12" "r13" "r14"
            "r15"
        )
    };
}

/// The reverse of [`push_general_registers!`].
#[doc(hidden)]
#[macro_export]
macro_rules! pop_general_registers {
    () => {
        $crate::pop_registers!(
            "r15" "r14" "r13" "r12" "rbp" "rbx" "r11" "r10" "r9" "r8" "rax" "rcx" "rdx" "rsi"
            "rdi"
        )
    };
}

/// Where all registers of a whole frame are, for code that begins below one: the call frame information of what
/// [`push_general_registers!`] and the words before it have pushed. But for rsp and rip.
#[doc(hidden)]
#[macro_export]
macro_rules! frame_of_general_registers {
    () => {
        ".cfi_offset rdi, -56; .cfi_offset rsi, -64; .cfi_offset rdx, -72; .cfi_offset rcx, -80; .cfi_offset rax, -88; \
         .cfi_offset r8, -96; .cfi_offset r9, -104; .cfi_offset r10, -112; .cfi_offset r11, -120; .cfi_offset rbx, -128; \
         .cfi_offset rbp, -136; .cfi_offset r12, -144; .cfi_offset r13, -152; .cfi_offset r14, -160; .cfi_offset r15, -168"
    };
}
