//! The trampolines of the historic ways to return (`registry/historic.rs`).

/// These functions; part of [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! historic_returns {
    () => {
        r#"
# Where a return-probed function returns to by one of the historic methods (`registry/historic.rs`):
# a kprobe of the probes' own is on the nop, and never lets control come after it.
#
#   S       rsp on arrival and on departure; the return slot, S-8, has been consumed
.macro nop_trampoline name
    function \name
    # The frame above is that of the return slot's address, which is in the instance list.
    .cfi_startproc simple
    .cfi_def_cfa rsp, 0
    .cfi_offset rip, -8
    nop
    ud2
    end_function \name
.endm
    nop_trampoline kretprobe_trampoline_trap3
    nop_trampoline kretprobe_trampoline_trap4
"#
    };
}

/// Declares them. Part of [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! historic_declarations {
    () => {
        unsafe extern "C" {
            fn kretprobe_trampoline_trap3();
            fn kretprobe_trampoline_trap4();
        }
    };
}

/// Their addresses. Part of [`entry_points!`](crate::entry_points).
#[doc(hidden)]
#[macro_export]
macro_rules! historic_trampolines {
    () => {
        [
            kretprobe_trampoline_trap3 as *const () as u64,
            kretprobe_trampoline_trap4 as *const () as u64,
        ]
    };
}
