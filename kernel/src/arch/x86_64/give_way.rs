//! Gives a waiting task its turn in front of a breakpoint, when the interrupt that is to do so came too late for it.
//!
//! A hit is served with interrupts off. An interrupt that comes meanwhile is taken behind it, at the first instruction of the slot, where
//! no task may be switched away from ([`probes::may_preempt`](crate::probes::may_preempt)). Where each instruction is probed, that is where nearly
//! every interrupt is taken, and a loop of such would keep its CPU. So the exit of an interrupt that may not switch tasks changes the table of
//! interrupts of its CPU for one in which the gate of #BP leads here:
//!
//! ```text
//!   interrupt, ip in a slot ─► at_next_breakpoint ─► the slot ─► #BP ─► give_way_breakpoint ─ the usual table ─ another task … ─► #BP again
//! ```
//!
//! A hit on a CPU for which no task waits, or which has no interrupt that came too late, costs nothing more.
//!
//! # Invariants
//! G1. From the entry on until the usual table is back nothing may be probed: `give_way_before_breakpoint` is a root of the
//!     blacklist.
//! G2. A task that gave way goes on in front of the breakpoint, and executes what is there then. To the probes it has not been there yet.
//!
//! # Contexts
//! [`at_next_breakpoint`]: interrupts off. The table may stay loaded while tasks change; a #BP of ring 3 leaves it as it is.

use super::{
    entry::entry_by_way_of,
    idt::{self, Idt, vector},
    percpu,
};
use crate::{probes::PtRegs, task::scheduler};
use x86_64::VirtAddr;

static TABLE: Idt = Idt::new();

/// Fills the table. Call once, on the CPU that boots, before interrupts come.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init() {
    // SAFETY: no CPU has loaded the table yet, and we are the only one that runs.
    unsafe {
        TABLE.fill(|number| {
            (number == vector::BREAKPOINT)
                .then(|| VirtAddr::from_ptr(give_way_breakpoint as *const ()))
        });
    }
}

/// Has the next breakpoint of this CPU in ring 0 give way first.
pub fn at_next_breakpoint() {
    // SAFETY: filled by `init` for good, with stubs of `entry` and an entry that expects its gate.
    unsafe { TABLE.load() };
}

/// In place of the -1 of an entry: the frame is that of a task to be resumed, not of a breakpoint to be served.
const EXECUTE_AGAIN: u64 = 0;

/// Gives way, if a task still waits and the breakpoint is in code that may be switched away from. The way out of the interrupt has
/// breakpoints, too, where it is probed; they must wait for a later one.
#[unsafe(no_mangle)]
extern "C" fn give_way_before_breakpoint(regs: &mut PtRegs) {
    let gives_way = scheduler::is_to_give_way_at(regs);
    if gives_way || !percpu::this().need_resched() {
        idt::load();
    }
    if gives_way {
        regs.ip = regs.ip.wrapping_sub(1);
        regs.orig_ax = EXECUTE_AGAIN;
        scheduler::preempt_before_breakpoint(regs);
    }
}

// The saved CS tells ring 3 by its lowest bits.
entry_by_way_of! {
    give_way_breakpoint,
    give_way_before_breakpoint,
    "test byte ptr [rsp + 8], 3; jnz kprobe_breakpoint",
    "je kprobe_breakpoint; iretq"
}
