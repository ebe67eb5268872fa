//! The scopes of watchpoints: a process, or all that run one program.
//!
//! # Contexts
//! Making one: any. The probes ask whether a task is in it with interrupts off, on the CPU that
//! runs the task or is about to.

use core::ptr;

use ::probes::WatchScope;

use crate::{
    fs::NodeRef,
    task::{Pid, Task},
};

/// The process `pid`, whatever program it runs.
pub fn process(pid: Pid) -> WatchScope {
    /// # Safety
    /// 1. `task` is the key of a task that lives.
    unsafe fn includes(task: u64, pid: u64) -> bool {
        // SAFETY: the key is the address, and (1).
        let task = unsafe { &*ptr::with_exposed_provenance::<Task>(task as usize) };
        task.pid() as u64 == pid
    }
    // SAFETY: it asks for a task that lives.
    unsafe { WatchScope::new(includes, pid as u64) }
}

/// All processes that run the program in the file `node`, also those that start later.
pub fn programs_of(node: &NodeRef) -> WatchScope {
    /// # Safety
    /// 1. `task` is the key of a task that lives.
    /// 2. It runs here, or is about to, so its memory does not change meanwhile.
    unsafe fn includes(task: u64, file: u64) -> bool {
        // SAFETY: as above.
        let task = unsafe { &*ptr::with_exposed_provenance::<Task>(task as usize) };
        // SAFETY: (2).
        let space = unsafe { task.own_space() };
        space.is_some_and(|space| space.program() == file)
    }
    // SAFETY: it asks for a task that lives, and is called as (2) says.
    unsafe { WatchScope::new(includes, node.number()) }
}
