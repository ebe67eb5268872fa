//! System calls on tasks and time.

use super::{paths::Path, result};
use crate::{
    arch::PtRegs,
    errno::Errno,
    mm::uaccess::{copy_to_user, get_user, put_user},
    task::{
        self,
        exec::do_execve,
        exit::{do_exit, do_group_exit},
        fork::do_fork,
        process::{self, Which},
        schedule,
        sleep::sleep_interruptible,
        wait::wait_for_child,
    },
    time::ktime_get,
};
use abi::{Timespec, WaitStatus, signal, wait as options};

/// Bytes of a `struct rusage`, of which this kernel keeps nothing.
const RUSAGE_BYTES: usize = 144;

/// `fork()`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_fork(regs: &mut PtRegs) -> i64 {
    do_fork(signal::CHLD.into(), regs.sp, regs, 0, 0, 0)
}

/// `clone(flags, stack, parent_tid, child_tid, tls)`. A `stack` of 0 means the caller's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_clone(
    flags: u64,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    regs: &mut PtRegs,
) -> i64 {
    let stack = if stack == 0 { regs.sp } else { stack };
    do_fork(flags, stack, regs, 0, parent_tid, child_tid)
}

/// `execve(path, argv, envp)`; returns only on failure.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_execve(path: u64, argv: u64, envp: u64, regs: &mut PtRegs) -> i64 {
    match Path::from_user(path) {
        // SAFETY: the path is NUL-terminated and outlives the call.
        Ok(path) => unsafe { do_execve(path.as_c_str().as_ptr(), argv, envp, regs) },
        Err(errno) => errno.negated(),
    }
}

/// `exit(code)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_exit(code: i32) -> ! {
    do_exit(WaitStatus::exited(code).0.into())
}

/// `exit_group(code)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_exit_group(code: i32) -> ! {
    do_group_exit(WaitStatus::exited(code).0.into())
}

/// `wait4(pid, status, options, rusage)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_wait4(pid: i32, status: u64, options: u32, rusage: u64) -> i64 {
    result(wait4(pid, status, options, rusage))
}

fn wait4(pid: i32, status: u64, options: u32, rusage: u64) -> Result<u64, Errno> {
    if options & !options::KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let which = match pid {
        1.. => Which::Pid(pid),
        // There is one process group.
        -1 | 0 => Which::Any,
        _ => return Err(Errno::ECHILD),
    };
    let Some((pid, how)) = wait_for_child(which, options & options::NOHANG != 0)? else {
        return Ok(0);
    };
    if status != 0 {
        put_user(status, &how.0)?;
    }
    if rusage != 0 {
        copy_to_user(rusage, &[0; RUSAGE_BYTES])?;
    }
    Ok(pid as u64)
}

/// `kill(pid, signal)`. The signals are SIGKILL and 0; the latter only asks whether there is such a
/// process.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_kill(pid: i32, signal: u32) -> i64 {
    let outcome = match (pid, signal) {
        (1.., signal::KILL) => process::kill(pid),
        (1.., 0) => process::exists(pid).then_some(()).ok_or(Errno::ESRCH),
        (1.., _) => Err(Errno::EINVAL),
        // There is one process group, and no process may kill all of it.
        _ => Err(Errno::EPERM),
    };
    result(outcome.map(|()| 0))
}

/// `getpid()`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_getpid() -> i64 {
    task::current().pid().into()
}

/// `getppid()`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_getppid() -> i64 {
    task::current().process.parent().into()
}

/// `sched_yield()`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_sched_yield() -> i64 {
    schedule();
    0
}

/// `nanosleep(time, remaining)`. EINTR if the task is to end; `remaining` then tells how much was
/// left.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sys_nanosleep(time: u64, remaining: u64) -> i64 {
    result(nanosleep(time, remaining))
}

fn nanosleep(time: u64, remaining: u64) -> Result<u64, Errno> {
    const SECOND_NS: u64 = 1_000_000_000;
    let time: Timespec = get_user(time)?;
    let seconds = u64::try_from(time.seconds).map_err(|_| Errno::EINVAL)?;
    let nanoseconds = u64::try_from(time.nanoseconds).map_err(|_| Errno::EINVAL)?;
    if nanoseconds >= SECOND_NS {
        return Err(Errno::EINVAL);
    }
    let length = seconds
        .saturating_mul(SECOND_NS)
        .saturating_add(nanoseconds);
    let until = ktime_get().saturating_add(length);
    let slept = sleep_interruptible(until);
    if slept.is_err() && remaining != 0 {
        let left = until.saturating_sub(ktime_get());
        let left = Timespec {
            seconds: (left / SECOND_NS) as i64,
            nanoseconds: (left % SECOND_NS) as i64,
        };
        put_user(remaining, &left)?;
    }
    slept.map(|()| 0)
}
