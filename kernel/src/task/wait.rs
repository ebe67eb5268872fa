//! Waiting for a child to end.

use super::{
    Pid,
    process::{self, Which},
};
use crate::{errno::Errno, task};
use abi::WaitStatus;

/// Waits until a child of the running task that `which` names has ended, and takes its status. With
/// `no_hang`, returns `None` if none has ended yet. ECHILD if there is no such child, EINTR if the
/// running task is to end. Task context.
pub fn wait_for_child(which: Which, no_hang: bool) -> Result<Option<(Pid, WaitStatus)>, Errno> {
    let task = task::current();
    let mut outcome = process::reap(task.pid(), which);
    if no_hang {
        return outcome;
    }
    if outcome == Ok(None) {
        outcome = wait_for_child_unless(which, || false);
    }
    outcome
}

/// The same, without `no_hang`, but gives up with `None` once `is_to_stop` is true. The code that
/// makes it true has to wake the task.
pub fn wait_for_child_unless(
    which: Which,
    is_to_stop: impl Fn() -> bool,
) -> Result<Option<(Pid, WaitStatus)>, Errno> {
    let task = task::current();
    let mut outcome = Ok(None);
    task.process.child_ended.wait_interruptible(|| {
        outcome = process::reap(task.pid(), which);
        outcome != Ok(None) || is_to_stop()
    })?;
    outcome
}
