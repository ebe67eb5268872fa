#![no_std]
pub mod insn;
pub mod pt_regs;
pub use pt_regs::PtRegs;
