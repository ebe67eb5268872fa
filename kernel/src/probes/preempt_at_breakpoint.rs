//! Preempts a task in front of its next breakpoint, because the last interrupt could not.
//!
//! A hit is served with interrupts off. An interrupt that comes meanwhile is taken at the first
//! instruction of the slot, and there no task may be switched away from
//! (`PROBES.may_preempt`). Where each instruction is probed,
//! nearly every interrupt is taken in a slot. A loop of such instructions would keep its CPU.
//!
//! So the exit of such an interrupt loads another interrupt table on its CPU. The gate of #BP
//! in that table leads here:
//!
//! ```text
//!   interrupt, ip in a slot ─► on_interrupt_exit ─► the slot ─► #BP
//!       ─► preemptible_breakpoint ─► the usual table ─► another task … ─► #BP again
//! ```
//!
//! Other hits cost nothing more, because the usual table does not know of this.
//!
//! # Invariants
//! PREEMPT-1. From the entry on until the usual table is loaded, nothing may be probed: a hit there
//!     would come here again. So `preempt_before_hit` is a root of the blacklist.
//! PREEMPT-2. A task that was preempted here resumes in front of the breakpoint and executes what
//!     is there then. The breakpoint has not been counted as a hit yet.
//!
//! # Contexts
//! [`on_interrupt_exit`]: interrupts off. The table may stay loaded while tasks change. A #BP of
//! ring 3 goes to the usual entry and leaves the table loaded.

use super::gate_entry::gate_entry;
use crate::{
    arch::{
        PtRegs,
        idt::{self, Idt, vector},
        percpu,
    },
    task::scheduler,
};
use x86_64::VirtAddr;

static TABLE: Idt = Idt::new();

/// Fills the table; `stub` gives the usual entry of a vector. Call once, on the CPU that boots,
/// before interrupts come.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init(stub: fn(u8) -> VirtAddr) {
    // SAFETY: no CPU has loaded the table yet, and no other CPU runs.
    unsafe {
        TABLE.fill(|number| match number {
            vector::BREAKPOINT => VirtAddr::from_ptr(preemptible_breakpoint as *const ()),
            _ => stub(number),
        });
    }
}

/// Called last in an interrupt handler, with the frame of the interrupted code: lets another task
/// run if one is to, now or in front of this CPU's next breakpoint in ring 0.
pub fn on_interrupt_exit(regs: &PtRegs) {
    if scheduler::preempt_on_interrupt_exit(regs) {
        request();
    }
}

/// Asks for a preemption in front of this CPU's next breakpoint in ring 0.
fn request() {
    // SAFETY: `init` has filled it for good, with the usual entries and one that expects its gate.
    unsafe { TABLE.load() };
}

/// Stored to `orig_ax` in place of the -1 of an entry. It says that the frame is that of a task
/// to be resumed, not of a breakpoint to be served.
const EXECUTE_AGAIN: u64 = 0;

/// Preempts the task if another one still waits and the code at the breakpoint allows it.
///
/// It may not, for example, on the way out of an interrupt, where that is probed. Then the table
/// stays loaded, and a later breakpoint is tried.
#[unsafe(no_mangle)]
extern "C" fn preempt_before_hit(regs: &mut PtRegs) {
    let preempts = scheduler::is_to_preempt_before_hit(regs);
    if preempts || !percpu::this().need_resched() {
        idt::load();
    }
    if preempts {
        regs.ip = regs.ip.wrapping_sub(1);
        regs.orig_ax = EXECUTE_AGAIN;
        scheduler::preempt_before_breakpoint(regs);
    }
}

// The lowest bits of the saved CS tell whether the breakpoint was in ring 3.
gate_entry! {
    preemptible_breakpoint,
    preempt_before_hit,
    "test byte ptr [rsp + 8], 3; jnz kprobe_breakpoint",
    "je kprobe_breakpoint; iretq"
}
