//! The gates of an interrupt table that lead to the probes first and then to their owner.
//!
//! A kernel has handlers for breakpoints, single steps and faults already. It need not change them.
//! The entries that [`trap_entry!`](crate::trap_entry!) and
//! [`breakpoint_entry!`](crate::breakpoint_entry!) define offer a trap to the probes, and go on to
//! its [`GateOwner`] if it is not theirs, with registers and stack as the processor left them:
//!
//! ```text
//!   gate ─► from user code? ─ yes ──────────────────────────────► the owner
//!             │ no                                                    ▲
//!             ▼                                                       │
//!           the probes ─ it is theirs: resume     it is not: ─────────┘
//! ```
//!
//! So user code may use `int3` and TF, and the owner alone deals with `swapgs`. The probes rely on
//! GS being the kernel's wherever kernel code can be interrupted by one of these traps.

use core::{
    arch::asm,
    ptr::null_mut,
    sync::atomic::{
        AtomicPtr,
        Ordering::{Acquire, Release},
    },
};

use crate::{hit::debug_trap::BS, pt_regs::PtRegs, registry::Host};

/// The handler that a gate led to before, or would lead to without probes: a stub that finds the
/// stack as the processor leaves it.
#[repr(transparent)]
pub struct GateOwner(AtomicPtr<()>);

impl GateOwner {
    /// The owner is this stub. For kernels that fill in their interrupt tables with the probes'
    /// entries.
    pub const fn of(stub: unsafe extern "C" fn()) -> Self {
        Self(AtomicPtr::new(stub as *mut ()))
    }

    /// The owner is to be found by [`GateOwner::take`].
    pub const fn to_be_found() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// The address of the owner; 0 if it has not been found yet.
    pub fn address(&self) -> u64 {
        self.0.load(Acquire) as u64
    }

    /// Has the gate of `vector` in this CPU's interrupt table lead to `entry`, and notes where it
    /// led to as the owner. Once for each table: CPUs that share one share the change. A table that
    /// leads to `entry` already stays as it is.
    ///
    /// The gate becomes an interrupt gate. That of #BP loses its stack (IST), because hits nest.
    ///
    /// # Safety
    /// 1. `entry` has been defined for this vector and this owner.
    /// 2. The table is writable at its address, and no CPU takes the trap meanwhile.
    /// 3. All tables have the same owner for the vector.
    pub unsafe fn take(&self, vector: u8, entry: unsafe extern "C" fn()) {
        const BREAKPOINT: u8 = 3;
        let mut table = [0u16; 5];
        // SAFETY: stores ten bytes, of which the last eight are the address of the table.
        unsafe { asm!("sidt [{}]", in(reg) &raw mut table, options(nostack, preserves_flags)) };
        let [_, parts @ ..] = table;
        let base = parts
            .iter()
            .rev()
            .fold(0, |base, part| base << 16 | u64::from(*part));
        let gate = (base as *mut [u64; 2]).wrapping_add(vector.into());
        // SAFETY: the table has a gate for each vector that leads to something (1, 2).
        let mut gate_now = Gate(unsafe { gate.read_volatile() });
        let entry = entry as *const () as u64;
        if gate_now.target() == entry {
            return;
        }
        self.0.store(gate_now.target() as *mut (), Release);
        gate_now.lead_to(entry);
        if vector == BREAKPOINT {
            gate_now.drop_stack();
        }
        // SAFETY: by the contract (2).
        unsafe { gate.write_volatile(gate_now.0) };
    }
}

/// Offers a trap of kernel code to the probes, in a kernel that asks them in its own handlers: a
/// single step or a match of a watchpoint, a breakpoint, or a fault, by its vector. Faults are
/// offered to [`Host::mend`] before. True: it was theirs, resume from `regs`. Interrupts off, and
/// DR6 as the trap has left it.
///
/// The debug status loses what it said of the probes, because the processor never clears it.
pub fn offer<P: Host>(regs: &mut PtRegs, vector: u8) -> bool {
    const DEBUG: u8 = 1;
    const BREAKPOINT: u8 = 3;
    match vector {
        DEBUG => {
            let status: u64;
            // SAFETY: reads a register.
            unsafe { asm!("mov {}, dr6", out(reg) status, options(nomem, nostack)) };
            let is_ours = P::probes().on_debug(regs, status);
            if is_ours {
                P::clear_debug_status(BS);
            }
            is_ours
        }
        BREAKPOINT => P::probes().on_breakpoint(regs),
        fault => P::mend(regs) || P::probes().on_fault(regs, fault),
    }
}

/// A gate as the processor reads it (Intel SDM vol. 3A, figure 6-8).
struct Gate([u64; 2]);

impl Gate {
    const TYPE: u64 = 0xf << 40;
    const INTERRUPT_GATE: u64 = 0xe << 40;
    const STACK: u64 = 7 << 32;

    const fn target(&self) -> u64 {
        let [low, high] = self.0;
        low & 0xffff | low >> 32 & 0xffff_0000 | high << 32
    }

    /// Changes the target and the type, and nothing else.
    const fn lead_to(&mut self, entry: u64) {
        let [low, high] = &mut self.0;
        *low = *low & !(0xffff | 0xffff << 48 | Self::TYPE)
            | entry & 0xffff
            | (entry & 0xffff_0000) << 32
            | Self::INTERRUPT_GATE;
        *high = *high & !0xffff_ffff | entry >> 32;
    }

    const fn drop_stack(&mut self) {
        self.0[0] &= !Self::STACK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A present interrupt gate of DPL 3 with stack 5 and selector 8.
    const BEFORE: [u64; 2] = [0x8123_ee05_0008_4567, 0xffff_ffff];

    #[test]
    fn a_gate_leads_elsewhere_and_keeps_the_rest() {
        let mut gate = Gate(BEFORE);
        assert_eq!(gate.target(), 0xffff_ffff_8123_4567);
        gate.lead_to(0x1234_5678_9abc_def0);
        assert_eq!(gate.target(), 0x1234_5678_9abc_def0);
        assert_eq!(gate.0, [0x9abc_ee05_0008_def0, 0x1234_5678]);
        gate.drop_stack();
        assert_eq!(gate.0, [0x9abc_ee00_0008_def0, 0x1234_5678]);
    }

    #[test]
    fn a_trap_gate_becomes_an_interrupt_gate() {
        let mut gate = Gate([BEFORE[0] | 1 << 40, BEFORE[1]]);
        gate.lead_to(0xffff_ffff_8123_4567);
        assert_eq!(gate.0, BEFORE);
    }
}
