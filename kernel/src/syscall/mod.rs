//! System calls: from the registers of a program that executed `syscall` to the function that
//! serves it.
//!
//! Numbers, arguments and results are those of Linux on x86_64 ([`abi`]). Each call has its own
//! function, `sys_NAME`, with a symbol of that name, so that a probe can be put on it. It gets its
//! arguments as the program passed them, and returns the result or a negated errno. The copy itself
//! checks the memory to which an argument points ([`crate::mm::uaccess`]): a bad pointer gives
//! EFAULT.
//!
//! All of it runs in task context, with interrupts on, on the task's kernel stack.

mod files;
mod memory;
pub(crate) mod paths;
pub(crate) mod tasks;

use crate::{arch::PtRegs, errno::Errno};
use abi::nr;

/// Carries out the system call of `regs`. Its number is in `orig_ax`, its arguments are in di, si,
/// dx, r10, r8 and r9, its result goes to ax. Interrupts are on.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_syscall(regs: &mut PtRegs) {
    // The low 32 bits are all there is to an `int` or `unsigned int` (System V psABI, 3.2.3).
    let (di, si, dx) = (regs.di, regs.si, regs.dx);
    let result = match regs.orig_ax {
        nr::READ => files::sys_read(di as u32, si, dx),
        nr::WRITE => files::sys_write(di as u32, si, dx),
        nr::OPEN => files::sys_open(di, si as u32, dx as u32),
        nr::CLOSE => files::sys_close(di as u32),
        nr::STAT => paths::sys_stat(di, si),
        nr::FSTAT => files::sys_fstat(di as u32, si),
        nr::LSEEK => files::sys_lseek(di as u32, si as i64, dx as u32),
        nr::BRK => memory::sys_brk(di),
        nr::SCHED_YIELD => tasks::sys_sched_yield(),
        nr::NANOSLEEP => tasks::sys_nanosleep(di, si),
        nr::GETPID => tasks::sys_getpid(),
        nr::CLONE => tasks::sys_clone(di, si, dx, regs.r10, regs),
        nr::FORK => tasks::sys_fork(regs),
        nr::EXECVE => tasks::sys_execve(di, si, dx, regs),
        nr::EXIT => tasks::sys_exit(di as i32),
        nr::WAIT4 => tasks::sys_wait4(di as i32, si, dx as u32, regs.r10),
        nr::KILL => tasks::sys_kill(di as i32, si as u32),
        nr::GETCWD => paths::sys_getcwd(di, si as usize),
        nr::CHDIR => paths::sys_chdir(di),
        nr::MKDIR => paths::sys_mkdir(di, si as u32),
        nr::RMDIR => paths::sys_rmdir(di),
        nr::UNLINK => paths::sys_unlink(di),
        nr::GETPPID => tasks::sys_getppid(),
        nr::GETDENTS64 => files::sys_getdents64(di as u32, si, dx as u32),
        nr::EXIT_GROUP => tasks::sys_exit_group(di as i32),
        _ => Errno::ENOSYS.negated(),
    };
    regs.ax = result as u64;
}

/// The result of a call as it goes to ax.
fn result(outcome: Result<u64, Errno>) -> i64 {
    match outcome {
        Ok(value) => value as i64,
        Err(errno) => errno.negated(),
    }
}
