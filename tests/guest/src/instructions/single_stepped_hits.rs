//! Hits whose displaced instruction is single-stepped, many of them.

use crate::platform::suite::flags::TF;
use alloc::boxed::Box;
use core::{
    arch::naked_asm,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use kernel::{
    arch::{
        idt::vector,
        traps::{self, Exception},
    },
    probes::{FaultVerdict, Kprobe, PreVerdict, PtRegs, register},
};

/// Its instructions are probed, each for one way in which a step ends.
#[unsafe(naked)]
extern "C" fn stepped(_from: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "lea rax, [rdi + 1]",  // +0, completed; its handler runs into a probe
        "mov rax, [rdi + 16]", // +4, faults
        "pushfq",              // +8
        "popfq",               // +9, loads flags without TF
        "mov eax, 5",          // +10, its handler goes on after it
        "ret",                 // +15
        ".cfi_endproc",
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hit_in_a_handler(a: u64) -> u64 {
    black_box(a + 23)
}

static FAULTS: AtomicU64 = AtomicU64::new(0);
/// Debug exceptions that belonged to nothing.
static STRAY: AtomicU64 = AtomicU64::new(0);

fn nested(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    black_box(hit_in_a_handler(black_box(1)));
    PreVerdict::Execute
}

fn skip_load(_: &Kprobe, regs: &mut PtRegs, _: u8) -> FaultVerdict {
    FAULTS.fetch_add(1, Relaxed);
    regs.ip += 4;
    FaultVerdict::Handled
}

fn go_on_behind(_: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    regs.ip += 5 - 1;
    regs.ax = 7;
    PreVerdict::Resume
}

fn execute(_: &Kprobe, _: &mut PtRegs) -> PreVerdict {
    PreVerdict::Execute
}

fn after(_: &Kprobe, regs: &mut PtRegs, _: u64) {
    STRAY.fetch_add(u64::from(regs.flags & TF != 0), Relaxed);
}

fn note_stray(regs: &mut PtRegs, exception: &Exception) -> bool {
    let stray = exception.vector == vector::DEBUG;
    STRAY.fetch_add(stray.into(), Relaxed);
    regs.flags &= !TF;
    stray
}

/// A million hits whose steps end in turn normally, by a nested hit, by a fault, by `popf` and by a
/// handler that goes on elsewhere: the trap flag stays off, and no debug exception is left for
/// anybody else.
#[guest_test(cmdline = "kprobes.step=tf", timeout = 300)]
fn a_million_mixed_steps_leave_no_trap_flag() {
    const ROUNDS: u64 = 1_000_000 / 6;
    let start = (stepped as *const ()).addr() as u64;
    let at = |offset: u64| Kprobe::new().at(start + offset);
    traps::set_exception_handler(Some(note_stray));
    let probes = [
        at(0).pre(nested).post(after),
        at(4).pre(execute).fault(skip_load),
        at(8).pre(execute).post(after),
        at(9).pre(execute).post(after),
        at(10).pre(go_on_behind),
        at(15).pre(execute),
    ]
    .map(|probe| register(Box::new(probe)).expect("an ordinary instruction"));
    let inner = Kprobe::new().symbol("hit_in_a_handler").pre(execute);
    let inner = register(Box::new(inner)).expect("an ordinary function");
    for _ in 0..ROUNDS {
        assert_eq!(stepped(black_box(0)), 7);
    }
    assert_eq!(x86_64::registers::rflags::read_raw() & TF, 0);
    traps::set_exception_handler(None);
    assert_eq!(STRAY.load(Relaxed), 0, "stray steps");
    assert_eq!(probes.each_ref().map(|probe| probe.hits()), [ROUNDS; 6]);
    assert_eq!(FAULTS.load(Relaxed), ROUNDS);
    assert_eq!((inner.hits(), inner.nmissed()), (0, ROUNDS));
    drop((probes, inner));
}
