//! The end of a task.

use super::{process, scheduler};
use crate::task;
use abi::WaitStatus;

/// Ends the running task; its parent gets `code`, encoded as a [`WaitStatus`]. Interrupts on, no lock held.
///
/// What the task owns is given back here, on its own stack. The stack and the task itself go when the next task has
/// taken over the CPU, as does what a probe keeps for calls that never return now.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn do_exit(code: i64) -> ! {
    let task = task::current();
    task.process.release();
    // The space is not loaded any more when its last reference goes.
    drop(task.set_user_space(None));
    process::end(task.pid(), WaitStatus(code as i32));
    drop(task);
    scheduler::exit()
}

/// Ends the running task if it was asked to. The last thing before ring 3 runs: interrupts on.
pub fn exit_if_requested() {
    let request = task::current().exit_request();
    if let Some(status) = request {
        do_exit(status.0.into());
    }
}
