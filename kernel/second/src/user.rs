//! User mode: one program in assembly, its pages, its call of the kernel, and its traps.
//!
//! The program executes an `int3` of its own, as a debugger or a language's runtime has them. The
//! kernel counts those as the program's, whatever probes there are.
//!
//! # Contexts
//! [`init`]: once, before tasks. [`run`]: the body of a task. The rest: traps from ring 3.

use core::{
    arch::{asm, global_asm},
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use x86_64::structures::paging::PageTableFlags as Flags;

use crate::{
    cpu::{USER_CODE, USER_DATA},
    frame::Frame,
    memory::{self, PAGE_BYTES},
    say, tasks,
};

// In: rdi, how many breakpoints to execute. It keeps a sum in rax, and gives it to its only call of
// the kernel, which does not return.
global_asm!(
    r#"
    .pushsection .rodata.user_program, "a", @progbits
user_program:
    xor eax, eax
1:  push rdi
    int3
    pop rcx
    add rax, rcx
    dec rdi
    jnz 1b
    int 0x80
user_program_end:
    .popsection
    "#
);

unsafe extern "C" {
    static user_program: u8;
    static user_program_end: u8;
}

/// Where the program is, and after it the stacks of its runs.
const PROGRAM: u64 = 0x40_0000_0000;
const STACKS: u64 = PROGRAM + 16 * PAGE_BYTES;
const MAX_RUNS: u64 = 8;

/// How many breakpoints the runs have executed, and what they have returned together.
pub static BREAKPOINTS: AtomicU64 = AtomicU64::new(0);
pub static RESULTS: AtomicU64 = AtomicU64::new(0);

/// Maps the program and its stacks.
pub fn init() {
    memory::map(PROGRAM, None, Flags::USER_ACCESSIBLE);
    let code = &raw const user_program;
    let bytes = (&raw const user_program_end).addr() - code.addr();
    // SAFETY: a page that was just mapped for this, and a program that is shorter.
    unsafe { ptr::copy_nonoverlapping(code, memory::alias(PROGRAM), bytes) };
    let stack = Flags::USER_ACCESSIBLE | Flags::WRITABLE | Flags::NO_EXECUTE;
    for run in 0..MAX_RUNS {
        memory::map(STACKS + run * PAGE_BYTES, None, stack);
    }
}

/// Runs the program with `breakpoints` of them. The body of a task, which ends with the program.
pub extern "C" fn run(breakpoints: u64) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Relaxed) % MAX_RUNS;
    // SAFETY: the program and its stack are mapped, and the way back to ring 0 is a trap.
    unsafe {
        asm!(
            "cli",
            "swapgs",
            "push {ss}",
            "push {sp}",
            "push 0x202",
            "push {cs}",
            "push {ip}",
            "iretq",
            ss = const USER_DATA,
            sp = in(reg) STACKS + (run + 1) * PAGE_BYTES,
            cs = const USER_CODE,
            ip = in(reg) PROGRAM,
            in("rdi") breakpoints,
            options(noreturn),
        )
    }
}

/// The program's call: it ends, with its result.
pub fn system_call(frame: &Frame) -> ! {
    RESULTS.fetch_add(frame.ax, Relaxed);
    tasks::exit()
}

/// An exception of the program. A breakpoint is counted, and it goes on. Any other ends it.
pub fn exception(frame: &Frame) {
    if frame.vector != 3 {
        say(format_args!("the program ends by trap {}", frame.vector));
        tasks::exit();
    }
    BREAKPOINTS.fetch_add(1, Relaxed);
}
