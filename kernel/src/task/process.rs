//! Processes: the part of a task that belongs to its program, and the table of parents and
//! children.
//!
//! A process is a task with user memory. Its life:
//!
//! ```text
//!   do_fork, run_program --> running --do_exit--> zombie --wait_for_child--> gone
//!                               |                   ^ only its WaitStatus is left
//!                               +--do_exit, parent gone--> gone
//! ```
//!
//! A parent is any task, also a kernel thread. When it ends, its children become children of
//! `init`, which never waits: such an orphan leaves no zombie.
//!
//! A task can only be ended by itself. [`kill`] and the fault handlers leave a request with the
//! task. On its way back to ring 3 it ends on its own stack, through
//! [`do_exit`](super::exit::do_exit). A wait that may be interrupted returns EINTR, so that the
//! task gets there.
//!
//! # Invariants
//! PROCESS-1. `PROCESSES` has an entry for each process. The entry is made before the process
//!     executes its first instruction. It goes when the parent has taken the status; for an orphan,
//!     when it ends.
//! PROCESS-2. The scheduler releases a zombie's task after its last switch, like any task. The
//!     entry keeps the status only.
//! PROCESS-3. Who has taken the status of a child finds nothing else left of it: its last switch is
//!     over, its stack and the instances of its calls are given back.
//!
//! # Contexts and locks
//! Task context. `PROCESSES` is a spinlock. Values that sleep when they are dropped (a task, a
//! file) are not dropped under it.

use super::{Pid, Task, scheduler};
use crate::{
    errno::Errno,
    fs::{FileTable, NodeRef},
    sync::{Mutex, SpinLock},
    task::wait_queue::WaitQueue,
};
use abi::{WaitStatus, signal};
use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Most processes that there may be at once, zombies included.
pub const MAX_PROCESSES: usize = 512;

/// The pid of the task to which orphans go.
pub const INIT: Pid = 1;

/// The part of a task that belongs to its program. A kernel thread has an empty one.
pub struct Process {
    pub files: FileTable,
    cwd: Mutex<Option<NodeRef>>,
    /// The process that was started from the outside, and from which this one comes by `fork`.
    /// Ctrl-C ends the whole group.
    group: Group,
    /// The number of the parent; 0 for a kernel thread. Written under the lock of `PROCESSES`, so
    /// that it agrees with the entry there. Anyone may read it, probes included.
    parent: AtomicI32,
    /// How the task is to end, as a [`WaitStatus`]; [`NO_REQUEST`] while it may go on.
    exit_request: AtomicU32,
    /// Woken when a child of this task ends.
    pub(super) child_ended: WaitQueue,
}

const NO_REQUEST: u32 = u32::MAX;

/// The processes that come from one process. They all have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(u32);

impl Group {
    /// A group without members.
    pub fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// That of kernel threads.
    const NONE: Self = Self(0);
}

impl Process {
    /// Makes the process of a program with these open files and this working directory.
    pub fn new(files: FileTable, cwd: Option<NodeRef>, group: Group) -> Self {
        Self {
            files,
            cwd: Mutex::new(cwd),
            group,
            parent: AtomicI32::new(0),
            exit_request: AtomicU32::new(NO_REQUEST),
            child_ended: WaitQueue::new(),
        }
    }

    /// Makes the part of a child by `fork`: the same open files, working directory and group.
    pub fn duplicate(&self) -> Self {
        Self::new(self.files.duplicate(), Some(self.cwd()), self.group)
    }

    /// The number of the parent: [`INIT`] for an orphan, 0 for a kernel thread. Any context.
    pub fn parent(&self) -> Pid {
        self.parent.load(Ordering::Relaxed)
    }

    /// Returns the working directory.
    pub fn cwd(&self) -> NodeRef {
        self.cwd.lock().clone().unwrap_or_else(NodeRef::root)
    }

    /// Changes the working directory.
    pub fn set_cwd(&self, directory: NodeRef) {
        let old = self.cwd.lock().replace(directory);
        drop(old);
    }

    /// Gives up files and working directory, because the task ends.
    pub(super) fn release(&self) {
        self.files.close_all();
        let cwd = self.cwd.lock().take();
        drop(cwd);
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new(FileTable::default(), None, Group::NONE)
    }
}

impl Task {
    /// Asks the task to end with `status` before it next runs in ring 3, and interrupts its wait.
    /// The first request counts. Any context but NMI and probe handlers.
    pub fn request_exit(&self, status: WaitStatus) {
        // Relaxed is enough: the task is marked as interrupted after this, with SeqCst. Code that
        // sees the mark also sees the request.
        let request = &self.process.exit_request;
        let _ = request.compare_exchange(
            NO_REQUEST,
            status.0 as u32,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        scheduler::interrupt(self);
    }

    /// How the task was asked to end, if it was. Any context.
    pub fn exit_request(&self) -> Option<WaitStatus> {
        match self.process.exit_request.load(Ordering::Relaxed) {
            NO_REQUEST => None,
            status => Some(WaitStatus(status as i32)),
        }
    }
}

struct Entry {
    /// `None`: an orphan, child of `init`.
    parent: Option<Arc<Task>>,
    state: State,
}

enum State {
    Running(Arc<Task>),
    Zombie(WaitStatus),
}

static PROCESSES: SpinLock<BTreeMap<Pid, Entry>> = SpinLock::new(BTreeMap::new());

/// Enters `task`, which has not run yet, as a child of `parent`; EAGAIN if there are too many
/// processes.
pub(super) fn add(task: Arc<Task>, parent: Arc<Task>) -> Result<(), Errno> {
    let mut processes = PROCESSES.lock();
    if processes.len() >= MAX_PROCESSES {
        drop(processes);
        return Err(Errno::EAGAIN);
    }
    let pid = task.pid();
    task.process.parent.store(parent.pid(), Ordering::Relaxed);
    let entry = Entry {
        parent: Some(parent),
        state: State::Running(task),
    };
    let before = processes.insert(pid, entry);
    drop(processes);
    assert!(before.is_none(), "pid {pid} was given twice");
    Ok(())
}

/// Makes the ending process `pid` a zombie. If it is an orphan, removes it instead. Its children
/// become orphans. Wakes the parent. Does nothing for a kernel thread without children.
pub(super) fn end(pid: Pid, status: WaitStatus) {
    // Tasks whose last reference may go with their entries: dropped when the lock is released.
    let mut released = Vec::new();
    let mut parent = None;
    {
        let mut processes = PROCESSES.lock();
        for entry in processes.values_mut() {
            if entry
                .parent
                .as_ref()
                .is_some_and(|parent| parent.pid() == pid)
            {
                released.push(entry.parent.take());
                if let State::Running(child) = &entry.state {
                    child.process.parent.store(INIT, Ordering::Relaxed);
                }
            }
        }
        // `init` never waits.
        processes
            .retain(|_, entry| entry.parent.is_some() || matches!(entry.state, State::Running(_)));
        if let Some(entry) = processes.get_mut(&pid) {
            parent.clone_from(&entry.parent);
            if let State::Running(task) =
                core::mem::replace(&mut entry.state, State::Zombie(status))
            {
                released.push(Some(task));
            }
            if parent.is_none() {
                processes.remove(&pid);
            }
        }
    }
    drop(released);
    if let Some(parent) = parent {
        parent.process.child_ended.wake_all();
    }
}

/// Which children [`super::wait::wait_for_child`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Any,
    Pid(Pid),
}

/// Takes the status of one ended child of `parent` out of the table; `None` if none has ended yet,
/// ECHILD if there is no such child.
pub(super) fn reap(parent: Pid, which: Which) -> Result<Option<(Pid, WaitStatus)>, Errno> {
    let mut processes = PROCESSES.lock();
    let mut found = Err(Errno::ECHILD);
    for (&pid, entry) in processes.iter() {
        let is_child = entry
            .parent
            .as_ref()
            .is_some_and(|task| task.pid() == parent);
        if !is_child || !matches!(which, Which::Any) && which != Which::Pid(pid) {
            continue;
        }
        match entry.state {
            State::Running(_) => found = Ok(None),
            State::Zombie(status) => {
                found = Ok(Some((pid, status)));
                break;
            }
        }
    }
    let reaped = match found {
        Ok(Some((pid, _))) => processes.remove(&pid),
        _ => None,
    };
    drop(processes);
    // The dropped value held the parent, which is the caller. So it was not the last reference, but
    // no lock is needed either.
    drop(reaped);
    found
}

/// Returns the running process `pid`.
pub fn find(pid: Pid) -> Option<Arc<Task>> {
    match &PROCESSES.lock().get(&pid)?.state {
        State::Running(task) => Some(task.clone()),
        State::Zombie(_) => None,
    }
}

/// Whether there is a process `pid`, a zombie included.
pub fn exists(pid: Pid) -> bool {
    PROCESSES.lock().contains_key(&pid)
}

/// How many processes there are, zombies included.
pub fn count() -> usize {
    PROCESSES.lock().len()
}

/// The pids of all processes, zombies included.
pub fn pids() -> Vec<Pid> {
    PROCESSES.lock().keys().copied().collect()
}

/// Asks the process `pid` to end, as SIGKILL does; ESRCH if there is none. A zombie stays as it is.
pub fn kill(pid: Pid) -> Result<(), Errno> {
    match find(pid) {
        Some(task) => task.request_exit(WaitStatus::killed(signal::KILL)),
        None if exists(pid) => {}
        None => return Err(Errno::ESRCH),
    }
    Ok(())
}

/// Asks all running processes of `group` to end by `signal`. False if there are none.
pub fn kill_group(group: Group, signal: u32) -> bool {
    let mut members = Vec::new();
    for entry in PROCESSES.lock().values() {
        if let State::Running(task) = &entry.state
            && task.process.group == group
        {
            members.push(task.clone());
        }
    }
    for member in &members {
        member.request_exit(WaitStatus::killed(signal));
    }
    !members.is_empty()
}
