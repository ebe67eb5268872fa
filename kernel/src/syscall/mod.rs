//! System calls.

use crate::probes::PtRegs;

/// Carries out the system call of `regs`: its number is in `orig_ax`, its arguments are in di, si, dx, r10, r8 and r9, its
/// result goes to ax. Interrupts on.
#[unsafe(no_mangle)]
pub extern "C" fn do_syscall(regs: &mut PtRegs) {
    regs.ax = crate::errno::Errno::ENOSYS.negated() as u64;
}
