//! The options `event-fork` and `function-fork`: children of the tasks in a set are in it, too.
//!
//! ```text
//!   fork ─► the parent is in the set? ─► the child is, before it runs
//!   exit ─► the task is in the set? ───► it is not any more
//! ```
//!
//! That holds for the sets of the tasks that are recorded, and for those of tasks that are not.
//! The last number of a set stays, because a set without tasks means another thing: all of them.
//!
//! # Contexts
//! Tasks, with no lock held.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{
    events::EVENTS,
    tasks::{TaskList, TaskSet, TaskUser},
    tracers::TRACERS,
};
use crate::{errno::Errno, pr_warn, task::Pid};

/// Whether it is so, by [`TaskUser`].
static FOLLOWS: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Whether children are in the sets of their parents.
pub fn is_on(user: TaskUser) -> bool {
    FOLLOWS[user as usize].load(Relaxed)
}

/// Sets that. What is in the sets stays.
pub fn set(user: TaskUser, on: bool) {
    FOLLOWS[user as usize].store(on, Relaxed);
}

/// The task `parent` has a child, which has not run.
pub fn forked(parent: Pid, child: Pid) {
    change_all(child, |set| set.inherit(parent, child));
}

/// The running task ends.
pub fn ends(task: Pid) {
    change_all(task, |set| Ok(set.leave(task)));
}

/// Changes all sets that follow, by a function that tells whether it has changed one.
fn change_all(task: Pid, change: impl Fn(&mut TaskSet) -> Result<bool, Errno>) {
    for user in [TaskUser::Tracers, TaskUser::Events] {
        if !is_on(user) {
            continue;
        }
        for list in [TaskList::Only, TaskList::Without] {
            if let Err(errno) = change_one(user, list, &change) {
                pr_warn!("trace: a set of tasks does not follow the task {task}: {errno}");
            }
        }
    }
}

fn change_one(
    user: TaskUser,
    list: TaskList,
    change: impl Fn(&mut TaskSet) -> Result<bool, Errno>,
) -> Result<(), Errno> {
    match user {
        TaskUser::Tracers => {
            let mut tracers = TRACERS.lock();
            let mut set = tracers.tasks(list).copy()?;
            match change(&mut set)? {
                true => tracers.replace_tasks(list, set),
                false => Ok(()),
            }
        }
        TaskUser::Events => {
            let mut events = EVENTS.lock();
            let mut set = events.tasks(list).copy()?;
            match change(&mut set)? {
                true => events.replace_tasks(list, set),
                false => Ok(()),
            }
        }
    }
}
