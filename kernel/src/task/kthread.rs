//! Kernel threads: tasks that run a function in ring 0.

use super::{Task, TaskRef, current, exit::do_exit, scheduler};
use crate::mm::frame::OutOfMemory;
use alloc::{boxed::Box, sync::Arc};

type Body = Box<dyn FnOnce() + Send>;

/// Starts a kernel thread that calls `body` and ends when it returns. If `body` gives the task a
/// user address space, the task goes to ring 3 instead, as its frame says. Task context.
pub fn spawn_kthread(
    name: impl AsRef<[u8]>,
    body: impl FnOnce() + Send + 'static,
) -> Result<TaskRef, OutOfMemory> {
    spawn_kthread_on(u64::MAX, name, body)
}

/// The same for a thread that runs only on the CPUs whose bits are set in `cpus`.
pub fn spawn_kthread_on(
    cpus: u64,
    name: impl AsRef<[u8]>,
    body: impl FnOnce() + Send + 'static,
) -> Result<TaskRef, OutOfMemory> {
    let body: Body = Box::new(body);
    let argument = Box::into_raw(Box::new(body));
    let task = Task::new(name, run_body, argument.expose_provenance());
    // SAFETY: without a task no other code has the argument.
    let task = task.inspect_err(|_| drop(unsafe { Box::from_raw(argument) }))?;
    task.set_allowed_cpus(cpus);
    let task = Arc::new(task);
    scheduler::start(task.clone());
    Ok(task)
}

/// The first function of a kernel thread.
extern "C" fn run_body(argument: usize) {
    // SAFETY: `spawn_kthread_on` leaked the box for this one call.
    let body = unsafe { Box::from_raw(core::ptr::with_exposed_provenance_mut::<Body>(argument)) };
    body();
    if current().is_kernel_thread() {
        do_exit(0);
    }
}
