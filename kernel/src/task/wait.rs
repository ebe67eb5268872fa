//! Waiting for a child to end.

use super::{
    Pid,
    process::{self, Which},
};
use crate::{errno::Errno, task};
use abi::WaitStatus;

/// Waits until a child of the running task that `which` names has ended, and takes its status. With `no_hang`, `None`
/// if none has ended yet. ECHILD if there is no such child, EINTR if the running task is to end. Task context.
pub fn wait_for_child(which: Which, no_hang: bool) -> Result<Option<(Pid, WaitStatus)>, Errno> {
    let task = task::current();
    let mut outcome = process::reap(task.pid(), which);
    if no_hang {
        return outcome;
    }
    task.process.child_ended.wait_interruptible(|| {
        if outcome == Ok(None) {
            outcome = process::reap(task.pid(), which);
        }
        outcome != Ok(None)
    })?;
    outcome
}
