//! Faults: what becomes of an access or instruction that the processor refuses.

use crate::{arch::traps::exception_name, probes::PtRegs};

/// Resumes a kernel access that is allowed to fail. True: `regs` resumes at its fix-up.
pub fn fix_up(_regs: &mut PtRegs) -> bool {
    false
}

/// Handles a page fault. Interrupts off. False: a bug of the kernel.
pub fn page_fault(_regs: &mut PtRegs, _error_code: u64, _address: u64) -> bool {
    false
}

/// Ends the running user task, which raised exception `vector`. Interrupts on.
pub fn user_exception(regs: &mut PtRegs, vector: u8) {
    panic!("{} in ring 3 at {:#x}", exception_name(vector), regs.ip);
}
