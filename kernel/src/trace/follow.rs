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
    change_all(child, |set| set.with_child(parent, child));
}

/// The running task ends.
pub fn ends(task: Pid) {
    change_all(task, |set| set.without(task));
}

/// What takes a set's place. None: it stays.
type Change<'c> = dyn Fn(&TaskSet) -> Result<Option<TaskSet>, Errno> + 'c;

/// Changes all sets that follow.
fn change_all(task: Pid, change: impl Fn(&TaskSet) -> Result<Option<TaskSet>, Errno>) {
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

fn change_one(user: TaskUser, list: TaskList, change: &Change<'_>) -> Result<(), Errno> {
    match user {
        TaskUser::Tracers => {
            let mut tracers = TRACERS.lock();
            let set = change(tracers.tasks(list))?;
            set.map_or(Ok(()), |set| tracers.replace_tasks(list, set))
        }
        TaskUser::Events => {
            let mut events = EVENTS.lock();
            let set = change(events.tasks(list))?;
            set.map_or(Ok(()), |set| events.replace_tasks(list, set))
        }
    }
}
