//! Functions to be probed, each with a number of its own.

/// Defines functions that add their number to their argument. The numbers differ in all files, or
/// else the linker would make one function of two.
macro_rules! numbered_targets {
    ($($name:ident $number:literal)+) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name(a: u64) -> u64 {
                ::core::hint::black_box(a + $number)
            }
        )+
    };
}
pub(crate) use numbered_targets;
