//! Faults: accesses and instructions that the processor refuses.
//!
//! A page fault at a user address comes from ring 3, or from the one instruction by which the
//! kernel touches user memory. It is first offered to the task's
//! [`UserSpace`](super::user_space::UserSpace), which may bring the page in. If that fails and the
//! fault is ring 3's, it ends the task. In the kernel, control goes on at the fix-up of the
//! instruction ([`super::uaccess`]); without one the fault is a bug of the kernel. A task that is
//! to end does so on its way back to ring 3, not here.

use super::{
    paging::USER_END,
    uaccess,
    user_space::{Access, FaultError},
};
use crate::{
    arch::{PtRegs, idt::exception_name, percpu},
    pr_info,
    probes::WATCHPOINTS,
    task,
    uprobes::hit::original_position,
};
use abi::{WaitStatus, signal};
use x86_64::{
    instructions::interrupts,
    structures::idt::{ExceptionVector, PageFaultErrorCode},
};

/// Resumes a kernel access that is allowed to fail. True: `regs` goes on at its fix-up.
pub fn fix_up(regs: &mut PtRegs) -> bool {
    uaccess::fix_up(regs)
}

/// How a page fault ends.
pub enum PageFault {
    /// The code goes on.
    Resolved,
    /// The program may not do what it did: [`kill_for_page_fault`].
    Program(FaultError),
    /// It is a bug of the kernel.
    Kernel,
}

/// Handles a page fault. Interrupts are off at the call and at the return.
pub fn page_fault(regs: &mut PtRegs, error_code: u64, address: u64) -> PageFault {
    let outcome = if address < USER_END && (regs.user_mode() || uaccess::may_fault(regs.ip)) {
        resolve(regs, error_code, address)
    } else {
        Err(FaultError::Forbidden)
    };
    match outcome {
        Ok(()) => PageFault::Resolved,
        Err(error) if regs.user_mode() => PageFault::Program(error),
        Err(_) if uaccess::fix_up(regs) => PageFault::Resolved,
        Err(_) => PageFault::Kernel,
    }
}

fn access(error_code: u64) -> Access {
    let code = PageFaultErrorCode::from_bits_truncate(error_code);
    if code.contains(PageFaultErrorCode::INSTRUCTION_FETCH) {
        Access::Execute
    } else if code.contains(PageFaultErrorCode::CAUSED_BY_WRITE) {
        Access::Write
    } else {
        Access::Read
    }
}

/// Brings the page at `address` in, if the task may touch it and the faulting code may sleep.
fn resolve(regs: &PtRegs, error_code: u64, address: u64) -> Result<(), FaultError> {
    if !percpu::was_preemptible(regs) {
        return Err(FaultError::Forbidden);
    }
    let space = task::current().user_space().ok_or(FaultError::Unmapped)?;
    interrupts::enable();
    let outcome = space.fault(address, access(error_code));
    interrupts::disable();
    WATCHPOINTS.program_changed();
    outcome
}

/// Makes the running user task end, because of a page fault that ended with `error`. Interrupts on.
pub fn kill_for_page_fault(regs: &PtRegs, error_code: u64, address: u64, error: FaultError) {
    let task = task::current();
    let verb = match access(error_code) {
        Access::Read => "read",
        Access::Write => "write",
        Access::Execute => "execute",
    };
    let reason = match error {
        FaultError::Unmapped => "nothing is mapped there",
        FaultError::Forbidden => "it is not allowed to",
        FaultError::OutOfMemory => "no memory is left for user programs",
    };
    let (ip, sp) = original_position(regs.ip, regs.sp);
    pr_info!(
        "{}[{}]: cannot {verb} {address:#x} at ip {ip:#x}, sp {sp:#x}: {reason}",
        task.comm(),
        task.pid(),
    );
    let signal = match error {
        FaultError::OutOfMemory => signal::KILL,
        FaultError::Unmapped | FaultError::Forbidden => signal::SEGV,
    };
    task.request_exit(WaitStatus::killed(signal));
}

/// Makes the running user task end, because it raised the exception `vector`. Interrupts on.
pub fn user_exception(regs: &PtRegs, vector: u8) {
    let task = task::current();
    let (ip, sp) = original_position(regs.ip, regs.sp);
    pr_info!(
        "{}[{}]: {} at ip {ip:#x}, sp {sp:#x}, error code {:#x}",
        task.comm(),
        task.pid(),
        exception_name(vector),
        regs.orig_ax,
    );
    let signal = match ExceptionVector::try_from(vector) {
        Ok(
            ExceptionVector::Division
            | ExceptionVector::X87FloatingPoint
            | ExceptionVector::SimdFloatingPoint,
        ) => signal::FPE,
        Ok(ExceptionVector::Debug | ExceptionVector::Breakpoint) => signal::TRAP,
        // No vector unit is switched on for user programs: to them these instructions do not exist.
        Ok(ExceptionVector::InvalidOpcode | ExceptionVector::DeviceNotAvailable) => signal::ILL,
        Ok(ExceptionVector::AlignmentCheck) => signal::BUS,
        _ => signal::SEGV,
    };
    task.request_exit(WaitStatus::killed(signal));
}
