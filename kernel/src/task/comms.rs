//! Names of tasks, also of those that have ended, for records of `trace` that are read later.
//!
//! A record has a task's number only. While the task lives, its name is asked for. When it ends,
//! the name is kept here, one for each remainder of the numbers. A later task with the same
//! remainder takes the place, so a name may be forgotten, but none is wrong.
//!
//! # Contexts
//! [`note`]: the scheduler, with no lock held but the run queue's. [`of`]: tasks.

use super::{Comm, IDLE, Pid, comm_of};
use crate::sync::SpinLock;

const PLACES: usize = 256;

/// The number and the name.
static KEPT: SpinLock<[(Pid, Comm); PLACES]> = SpinLock::new([(0, Comm::EMPTY); PLACES]);

/// The task `pid` ends.
pub fn note(pid: Pid, comm: Comm) {
    KEPT.lock()[pid as usize % PLACES] = (pid, comm);
}

/// The name of the task `pid`; `<...>` if it is not known.
pub fn of(pid: Pid) -> Comm {
    if pid == IDLE {
        return Comm::new("<idle>");
    }
    comm_of(pid).unwrap_or_else(|| {
        let (kept, comm) = KEPT.lock()[pid as usize % PLACES];
        match kept == pid {
            true => comm,
            false => Comm::new("<...>"),
        }
    })
}
