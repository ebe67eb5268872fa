//! The runtime of user programs: entry, system calls, output.
//!
//! A program is a `#![no_std] #![no_main]` binary with [`main!`]. It may use the general registers
//! only, because the kernel does not switch vector state; therefore the target is soft-float.
//! Programs are linked statically at a fixed address and have one thread. A panic prints its
//! message to standard error and exits with [`PANIC_EXIT`].
#![no_std]

pub mod args;
pub mod print;
pub mod syscall;
pub mod text;

pub use abi;
pub use args::Args;

use core::{arch::naked_asm, ffi::c_char, panic::PanicInfo};

/// Exit code of a program that panicked.
pub const PANIC_EXIT: i32 = 101;

/// Exit code of a program that does not understand its arguments, and has done nothing.
pub const USAGE_EXIT: i32 = 2;

/// Declares the program's entry: a `fn(Args) -> i32` whose result is the exit code.
#[macro_export]
macro_rules! main {
    ($main:path) => {
        #[unsafe(no_mangle)]
        extern "Rust" fn user_main(args: $crate::Args) -> i32 {
            $main(args)
        }
    };
}

unsafe extern "Rust" {
    /// Defined by [`main!`] in each program.
    safe fn user_main(args: Args) -> i32;
}

/// Where the kernel enters a program.
///
/// ```text
///   rsp + 8*(argc+2)  envp[0] …, 0, then the auxiliary vector
///   rsp + 8*(argc+1)  0
///   rsp + 8           argv[0] …
///   rsp               argc              rsp is 16-aligned (System V psABI, 3.4.1)
/// ```
///
/// # Safety
/// Entered once, by the kernel, with the stack above.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "xor ebp, ebp", // the outermost frame
        "mov rdi, [rsp]",
        "lea rsi, [rsp + 8]",
        "call {start}", // rsp is 16-aligned here, as a call needs it
        "ud2",
        start = sym start,
    )
}

/// Runs the program on the arguments that `_start` found.
extern "C" fn start(argc: usize, argv: *const *const c_char) -> ! {
    // SAFETY: the kernel put `argc` valid pointers at `argv`, and nothing writes there afterwards.
    let args = unsafe { Args::new(argc, argv) };
    syscall::exit(user_main(args))
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    eprintln!("{info}");
    syscall::exit(PANIC_EXIT)
}
