//! The parts that only x86_64 has: processor state, entry stubs, descriptor tables, per-CPU data.
//!
//! The rest of the kernel relies on these rules:
//!
//! 1. Every interrupt and exception enters through an interrupt gate, and **handlers of interrupts
//!    run with interrupts off from their first to their last instruction**. So device interrupts
//!    never nest. Only an exception can come on top of an interrupt, and an NMI on top of anything.
//! 2. Each entry saves a full [`PtRegs`] on the stack of the current task. Only #DF and NMI have
//!    stacks of their own, and NMI leaves its one at once (see [`entry`]).
//! 3. In ring 0, GS holds the CPU's [`percpu::PerCpu`], except in the few marked instructions
//!    around `swapgs`.
//! 4. No code keeps live data below its stack pointer: there is no red zone, and an NMI pushes
//!    there whatever the interrupt flag says.
//! 5. Kernel and user programs are soft-float: CR0.EM is set and CR4.OSFXSR, CR4.OSXSAVE are clear
//!    on every CPU. So x87 code gets #NM and SSE or AVX code #UD, in any ring. There is no vector
//!    state to switch.

pub mod apic;
pub mod cpu;
pub mod debug;
pub mod entry;
pub mod gdt;
pub mod idt;
pub mod ioapic;
pub mod percpu;
pub mod pit;
pub mod rtc;
pub mod smp;
pub mod start_up;
pub mod switch;
pub mod syscall;
pub mod traps;
mod user_breakpoint;

/// The registers of interrupted code, as the entry stubs save them: the trap frame of this machine.
pub use ::probes::PtRegs;
