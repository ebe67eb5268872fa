//! What a hit costs here, in guest instructions, where the emulator counts those: the rows that the
//! benchmark of our kernel has, for the same function.
//!
//! # Contexts
//! One task, on a machine with one CPU and `-icount shift=0`.

use alloc::boxed::Box;
use core::arch::{global_asm, x86_64::_rdtsc};

use probes::{
    Jprobe, Kprobe, Kretprobe, KretprobeInstance, PreVerdict, PtRegs, jprobe, registry::Owner,
};
use x86_64::instructions::interrupts::without_interrupts;

use second_kernel::{PROBES, say};

// One call is 2 instructions of the loop, 1 call, and 4 in the function.
global_asm!(
    r#"
    .pushsection probeable, "ax", @progbits
    .globl empty
    .type empty, @function
empty:
    push rbp
    mov rbp, rsp
    pop rbp
    ret
    .size empty, . - empty
    .popsection

    .globl call_empty
call_empty:
    push rbx
    push rbp
    mov rbx, rdi
    mov rbp, rsp
    # Into a page, because the hit of a jprobe costs more near the end of one.
    and rsp, -4096
    sub rsp, 1024
2:  call empty
    dec rbx
    jnz 2b
    mov rsp, rbp
    pop rbp
    pop rbx
    ret
    "#
);

unsafe extern "C" {
    /// Calls the empty function `count` times.
    safe fn call_empty(count: u64);
}

/// The instructions of one call.
fn cost() -> u64 {
    const CALLS: u64 = 1000;
    let ticks = |count| {
        // SAFETY: every processor has the counter.
        let start = unsafe { _rdtsc() };
        call_empty(count);
        // SAFETY: as above.
        unsafe { _rdtsc() - start }
    };
    // What the timing itself costs is in both.
    let (few, many) = without_interrupts(|| (ticks(1), ticks(1 + CALLS)));
    (many - few + CALLS / 2) / CALLS
}

fn row<O: Owner>(name: &str, jumps: bool, probe: O) {
    PROBES.set_optimization(jumps).expect("this is a task");
    let registered = PROBES.register_owned(probe).expect("it is a function");
    say(format_args!("figure: {name} {}", cost()));
    drop(registered);
}

fn empty_pre(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn empty_return(_: &mut KretprobeInstance<()>, _: &mut PtRegs) {}

jprobe! {
    fn empty_entry() {}
}

/// Measures all rows, and says them.
pub fn run() {
    say(format_args!("figure: base {}", cost()));
    let kprobe = || Box::new(Kprobe::new().symbol("empty").pre(empty_pre));
    let kretprobe = || Box::new(Kretprobe::new().symbol("empty").handler(empty_return));
    row("k_int3", false, kprobe());
    row("r_int3", false, kretprobe());
    row(
        "j_int3",
        false,
        Box::new(Jprobe::new().symbol("empty").entry(empty_entry)),
    );
    row("k_opt", true, kprobe());
    row("r_opt", true, kretprobe());
}
