//! Places for code that tests make: functions of nothing but breakpoints.
//!
//! Each has a symbol and call frame information of its own, so it can be probed like any other
//! function.

/// Defines `count` functions of `bytes` bytes each, from the label `$name` on; their own names
/// begin with it, too.
macro_rules! code_places {
    ($name:literal, align: $align:expr, count: $count:expr, bytes: $bytes:expr) => {
        ::core::arch::global_asm!(
            concat!(".pushsection ", $crate::glue::code_section!(), ", \"ax\", @progbits"),
            ".balign {align}",
            concat!(".globl ", $name),
            concat!($name, ":"),
            // The assembler numbers what a macro is expanded to, and symbols need names of their
            // own.
            concat!(".macro ", $name, "_place"),
            concat!(".type ", $name, "_\\@, @function"),
            concat!($name, "_\\@:"),
            ".cfi_startproc",
            ".skip {bytes}, 0xcc",
            ".cfi_endproc",
            concat!(".size ", $name, "_\\@, . - ", $name, "_\\@"),
            ".endm",
            ".rept {count}",
            concat!($name, "_place"),
            ".endr",
            ".popsection",
            align = const $align,
            count = const $count,
            bytes = const $bytes,
        );
    };
}
pub(crate) use code_places;
