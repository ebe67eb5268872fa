//! The way of a program's breakpoints through the kernel, interrupted between any two of its
//! instructions.
//!
//! While programs run, the CPU uses a table of interrupts of its own:
//!
//! ```text
//!   #BP of ring 3 ─► step_user_breakpoint  sets TF; kprobe_breakpoint, asm_breakpoint_other, …
//!   #DB of ring 0 ─► step_kernel           asks the test; if it wants, an NMI comes, with GS and
//!                                          the stack as the interrupted code has them
//!   #DB of ring 3 ─► kprobe_debug, as usual
//! ```
//!
//! Steps end where `iretq` goes back to ring 3, where interrupts come on, and where another task is
//! to run. Ring 3 and the handlers of faults and interrupts are not stepped.

use crate::{
    platform::suite::flags::TF,
    tools::stepping::{IRET, POPF, REX_W, with_entries},
};
use core::{
    arch::naked_asm,
    hint, mem,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{debug::clear_single_step, smp},
    probes::PtRegs,
    task::schedule,
};
use x86_64::registers::debug::Dr6;

const STI: u8 = 0xfb;

/// The look of a test between two instructions, at the registers of that moment. It must do nothing
/// that a handler of an NMI may not. True: an NMI is to come.
pub type AtEach = fn(&mut PtRegs) -> bool;

static AT_EACH: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// NMIs whose handlers have run. The handler counts here.
pub static HANDLED: AtomicU64 = AtomicU64::new(0);

/// Does `run`, and asks `at_each` between any two instructions by which breakpoints of programs are
/// served meanwhile. Task context, on a machine with one CPU.
pub fn step_breakpoints(at_each: AtEach, run: impl FnOnce()) {
    assert_eq!(smp::online_cpus(), 1, "the table is for one CPU");
    AT_EACH.store(at_each as *mut (), SeqCst);
    let (debug, breakpoint) = (step_kernel as *const (), step_user_breakpoint as *const ());
    // SAFETY: each entry expects its vector, and there is one CPU.
    unsafe { with_entries(debug, breakpoint, run) };
}

/// Called by [`step_kernel`] with the frame of the interrupted code. Whether an NMI is to come.
extern "C" fn on_step(regs: &mut PtRegs) -> bool {
    clear_single_step(Dr6::read_raw());
    // SAFETY: `step_breakpoints`, the only writer, stored a function of this type.
    let at_each = unsafe { mem::transmute::<*mut (), AtEach>(AT_EACH.load(SeqCst)) };
    let wants_nmi = at_each(regs);
    // SAFETY: what the interrupted code is about to execute, and the words of its stack that it is
    // about to pop.
    unsafe {
        let (code, top) = (regs.ip as *const u8, regs.sp as *mut u64);
        match code.read() {
            POPF => *top |= TF,
            STI => regs.flags &= !TF,
            REX_W if code.add(1).read() == IRET => match *top.add(1) & 3 {
                0 => *top.add(2) |= TF,
                _ => regs.flags &= !TF,
            },
            _ if regs.ip == schedule as *const () as u64 => regs.flags &= !TF,
            _ => {}
        }
    }
    wants_nmi
}

/// Has an NMI come. GS may be the program's: this uses none, and no data of the CPU.
extern "C" fn send_nmi() {
    let before = HANDLED.load(SeqCst);
    smp::send_nmi(0);
    while HANDLED.load(SeqCst) == before {
        hint::spin_loop();
    }
}

/// Where #DB comes in. rbx: whether GS was swapped here and must be swapped back.
///
/// ```text
///   rsp at the step, aligned down to 16
///   +0xa0  ss … +0x80 ip     pushed by the processor
///   +0x78  orig_ax (-1)
///   +0x70  di … +0x00 r15    <- the `PtRegs`, and rdi at the call
///   -0x08  padding           <- rsp at the call: 16-aligned (System V psABI, 3.2.2)
/// ```
#[unsafe(naked)]
unsafe extern "C" fn step_kernel() {
    naked_asm!(
        ".cfi_startproc simple",
        ".cfi_signal_frame",
        ".cfi_def_cfa rsp, 40",
        ".cfi_offset rip, -40",
        ".cfi_offset rsp, -16",
        "test byte ptr [rsp + 8], 3",
        "jnz kprobe_debug",
        "push -1",
        ".cfi_adjust_cfa_offset 8",
        ::probes::push_general_registers!(),
        "cld",
        "xor ebx, ebx",
        "mov ecx, {gs_base}",
        "rdmsr",
        "test edx, edx",
        "js 2f",
        "swapgs",
        "inc ebx",
        "2:",
        "mov rdi, rsp",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "call {on_step}",
        "test ebx, ebx",
        "jz 3f",
        "swapgs",
        "3:",
        "test al, al",
        "jz 4f",
        "call {send_nmi}",
        "4:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        ::probes::pop_general_registers!(),
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "iretq",
        ".cfi_endproc",
        gs_base = const 0xc000_0101_u32,
        on_step = sym on_step,
        send_nmi = sym send_nmi,
    )
}

/// Where #BP comes in. The stack is as the processor has left it, and so it is for
/// `kprobe_breakpoint`.
#[unsafe(naked)]
unsafe extern "C" fn step_user_breakpoint() {
    naked_asm!(
        ".cfi_startproc simple",
        ".cfi_signal_frame",
        ".cfi_def_cfa rsp, 40",
        ".cfi_offset rip, -40",
        ".cfi_offset rsp, -16",
        "test byte ptr [rsp + 8], 3",
        "jz kprobe_breakpoint",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "or dword ptr [rsp], {tf}",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "jmp kprobe_breakpoint",
        ".cfi_endproc",
        tf = const TF,
    )
}
