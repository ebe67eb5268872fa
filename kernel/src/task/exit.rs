//! The end of a task.

use super::{process, scheduler};
use crate::{task, trace::follow, uprobes::registry};
use abi::WaitStatus;

/// Ends the running task; its parent gets `code`, encoded as a [`WaitStatus`]. Interrupts on, no
/// lock held.
///
/// The task gives its possessions back here, on its own stack. The stack, the task itself, and the
/// instances of calls that never return now, are released when the next task has taken over the
/// CPU.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_exit(code: i64) -> ! {
    let task = task::current();
    follow::ends(task.pid());
    task.process.release();
    // The space is not loaded any more when its last reference goes.
    drop(task.set_user_space(None));
    registry::program_ends();
    process::end(task.pid(), WaitStatus(code as i32));
    drop(task);
    scheduler::exit()
}

/// Ends all threads of the running process: there is one. Linux's name for what `exit_group` does,
/// so probes find it, and tell that call from `exit`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_group_exit(code: i64) -> ! {
    do_exit(code)
}

/// Ends the running task if it was asked to. The last thing before ring 3 runs: interrupts on.
pub fn exit_if_requested() {
    let request = task::current().exit_request();
    if let Some(status) = request {
        do_exit(status.0.into());
    }
}
