//! Making a process out of another.

use super::{Task, process, scheduler};
use crate::{arch::PtRegs, errno::Errno, mm::uaccess, task, trace::follow, uprobes::registry};
use abi::{clone, signal};
use alloc::sync::Arc;
use core::hint::black_box;

/// Flags that a program may pass. The others ask for tasks that share what processes here never
/// share.
const KNOWN_FLAGS: u64 =
    clone::SIGNAL_MASK | clone::PARENT_SETTID | clone::CHILD_SETTID | clone::CHILD_CLEARTID;

/// Makes a child of the running process, which made a system call with the registers `regs`, and
/// returns its pid, or a negated errno. The child's call returns 0, on the stack at `stack_start`.
/// `stack_size` is not used.
///
/// `clone_flags` are those of [`abi::clone`], with SIGCHLD as the signal. `PARENT_SETTID` stores
/// the pid at `parent_tidptr` in the parent, `CHILD_SETTID` at `child_tidptr` in the child.
/// `CHILD_CLEARTID` does nothing; on Linux it does nothing either for a process that does not share
/// its memory.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_fork(
    clone_flags: u64,
    stack_start: u64,
    regs: &PtRegs,
    stack_size: u64,
    parent_tidptr: u64,
    child_tidptr: u64,
) -> i64 {
    // Otherwise callers would leave anything in its register, and probes look at it.
    black_box(stack_size);
    match fork(clone_flags, stack_start, regs, parent_tidptr, child_tidptr) {
        Ok(pid) => pid.into(),
        Err(errno) => errno.negated(),
    }
}

fn fork(
    flags: u64,
    stack: u64,
    regs: &PtRegs,
    parent_tid: u64,
    child_tid: u64,
) -> Result<task::Pid, Errno> {
    if flags & !KNOWN_FLAGS != 0 || flags & clone::SIGNAL_MASK != signal::CHLD.into() {
        return Err(Errno::EINVAL);
    }
    let parent = task::current();
    let space = registry::fork(&*parent.user_space().ok_or(Errno::EINVAL)?)?;
    let child_regs = PtRegs {
        ax: 0,
        sp: stack,
        ..*regs
    };
    let child = Task::new_user(
        parent.comm(),
        &child_regs,
        space.clone(),
        parent.process.duplicate(),
    )?;
    let pid = child.pid();
    registry::child_is(&space, pid);
    drop(space);
    if flags & clone::CHILD_SETTID != 0
        && let Some(space) = child.user_space()
    {
        space.write(child_tid, &pid.to_ne_bytes())?;
    }
    if flags & clone::PARENT_SETTID != 0 {
        uaccess::put_user(parent_tid, &pid)?;
    }
    process::add(child.clone(), parent.clone())?;
    follow::forked(parent.pid(), pid);
    // SAFETY: (1) by `into_raw`.
    unsafe { wake_up_new_task(Arc::into_raw(child)) };
    Ok(pid)
}

/// Lets the new process run. A function of its own, because a tracer looks for it.
///
/// # Safety
/// 1. `child` comes from [`Arc::into_raw`], and the caller gives this reference away.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn wake_up_new_task(child: *const Task) {
    // SAFETY: by (1).
    scheduler::start(unsafe { Arc::from_raw(child) });
}
