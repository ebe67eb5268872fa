//! Waiting for a child to end.

use super::{
    Pid,
    process::{self, Which},
};
use crate::{errno::Errno, task};
use abi::WaitStatus;

/// The child whose status was taken, if one has ended.
type Taken = Result<Option<(Pid, WaitStatus)>, Errno>;

/// Waits until a child of the running task that `which` names has ended, and takes its status.
/// Nothing else is left of the child then (PROCESS-3). With `no_hang`, returns `None` if none has
/// ended yet. ECHILD if there is no such child, EINTR if the running task is to end. Task context.
pub fn wait_for_child(which: Which, no_hang: bool) -> Taken {
    match process::reap(task::current().pid(), which) {
        Ok(None) if !no_hang => wait_for_child_unless(which, || false),
        taken => when_released(taken),
    }
}

/// The same, without `no_hang`, but gives up with `None` once `is_to_stop` is true. The code that
/// makes it true has to wake the task.
pub fn wait_for_child_unless(which: Which, is_to_stop: impl Fn() -> bool) -> Taken {
    let task = task::current();
    let mut outcome = Ok(None);
    task.process.child_ended.wait_interruptible(|| {
        outcome = process::reap(task.pid(), which);
        outcome != Ok(None) || is_to_stop()
    })?;
    when_released(outcome)
}

/// Waits for the last switch of the child that was taken: it may have been on its way there when it
/// woke its parent.
fn when_released(taken: Taken) -> Taken {
    if let Ok(Some((pid, _))) = taken {
        task::wait_released(pid);
    }
    taken
}
