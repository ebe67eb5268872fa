//! Names of tasks, also of those that have ended, for records of `trace` that are read later.
//!
//! A record has a task's number only. While the task lives, its name is asked for. When it ends,
//! the name is kept here, one for each remainder of the numbers. A later task with the same
//! remainder takes the place, so a name may be forgotten, but none is wrong.
//!
//! # Contexts
//! [`note`]: the scheduler, with no lock held but the run queue's. [`of`]: tasks.

use alloc::{format, string::String};

use super::{Comm, Pid, comm_of};
use crate::sync::SpinLock;

const PLACES: usize = 256;

/// The number and the name.
static KEPT: SpinLock<[(Pid, Comm); PLACES]> = SpinLock::new([(0, Comm::EMPTY); PLACES]);

/// The task `pid` ends.
pub fn note(pid: Pid, comm: Comm) {
    KEPT.lock()[pid as usize % PLACES] = (pid, comm);
}

/// The name of the task `pid`; `<...>` if nobody knows.
pub fn of(pid: Pid) -> String {
    if pid == 0 {
        return "<idle>".into();
    }
    if let Some(comm) = comm_of(pid) {
        return format!("{comm}");
    }
    let (kept, comm) = KEPT.lock()[pid as usize % PLACES];
    if kept == pid {
        format!("{comm}")
    } else {
        "<...>".into()
    }
}
