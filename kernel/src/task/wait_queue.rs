//! Wait queues: sleeping until another task or an interrupt handler has made a condition true.
//!
//! A waiter first queues itself and sets its state to `Sleeping`, then checks the condition, and
//! only then gives the CPU away. A waker first makes the condition true, then takes waiters off the
//! queue and wakes them. So no wake-up is lost:
//!
//! - If the waker looks at the queue before the waiter is in it, the queue's lock orders the
//!   waker's store before the waiter's check.
//! - Otherwise the waker finds the waiter and turns its state back to `Runnable`. Then `schedule`
//!   does not take the waiter off the run queue.
//!
//! A waiter that is woken queues itself again before it checks again. It may leave with its
//! condition true, or because its time is over, and find that it was taken off the queue meanwhile.
//! Then it has got a wake-up that it does not need, and passes it on.
//!
//! # Contexts
//! Waiting: task context, no spinlock held, preemption on. The condition runs as part of the wait
//! and must not sleep. Waking: any context but NMI and probe handlers. Lock order: the queue's, the
//! sleepers', the run queue's.

use super::{
    TaskRef, TaskState, current,
    scheduler::{schedule, wake},
    sleepers::Sleeper,
};
use crate::{
    errno::Errno,
    probes::handler_rules::{self, Rule},
    sync::SpinLock,
    time::ktime_get,
};
use core::fmt;
use intrusive_queue::{Link, Linked, Queue};

/// Tasks that wait for something.
pub struct WaitQueue {
    waiters: SpinLock<Queue<Waiter>>,
}

/// A task in a wait queue. It lives in the stack frame of the wait.
struct Waiter {
    task: TaskRef,
    link: Link<Waiter>,
}

// SAFETY: one field, used by the wait queue alone.
unsafe impl Linked for Waiter {
    fn link(&self) -> &Link<Self> {
        &self.link
    }
}

/// The other reasons that end a wait.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// When to give up, in nanoseconds since boot.
    pub deadline_ns: Option<u64>,
    /// Give up when the task is to end.
    pub interruptible: bool,
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            waiters: SpinLock::new(Queue::new()),
        }
    }

    /// Sleeps until `condition` is true.
    pub fn wait_until(&self, condition: impl FnMut() -> bool) {
        let limits = Limits {
            deadline_ns: None,
            interruptible: false,
        };
        let done = wait(Some(self), limits, condition);
        debug_assert!(done.is_ok(), "a wait without limits ended early");
    }

    /// Sleeps until `condition` is true; EINTR if the task is to end.
    pub fn wait_interruptible(&self, condition: impl FnMut() -> bool) -> Result<(), Errno> {
        wait(
            Some(self),
            Limits {
                deadline_ns: None,
                interruptible: true,
            },
            condition,
        )
    }

    /// Sleeps until `condition` is true; ETIMEDOUT when `deadline_ns`, in nanoseconds since boot,
    /// has passed.
    pub fn wait_until_deadline(
        &self,
        deadline_ns: u64,
        condition: impl FnMut() -> bool,
    ) -> Result<(), Errno> {
        wait(
            Some(self),
            Limits {
                deadline_ns: Some(deadline_ns),
                interruptible: false,
            },
            condition,
        )
    }

    /// The same; EINTR if the task is to end.
    pub fn wait_interruptible_until_deadline(
        &self,
        deadline_ns: u64,
        condition: impl FnMut() -> bool,
    ) -> Result<(), Errno> {
        wait(
            Some(self),
            Limits {
                deadline_ns: Some(deadline_ns),
                interruptible: true,
            },
            condition,
        )
    }

    /// Wakes the task that has waited longest. True if there was one.
    pub fn wake_one(&self) -> bool {
        let mut waiters = self.waiters.lock();
        let first = waiters.pop_front();
        if let Some(waiter) = first {
            // SAFETY: the waiter cannot leave its wait, and so its frame, without this lock.
            wake(&unsafe { waiter.as_ref() }.task);
        }
        first.is_some()
    }

    /// Wakes all tasks that wait.
    pub fn wake_all(&self) {
        let mut waiters = self.waiters.lock();
        while let Some(waiter) = waiters.pop_front() {
            // SAFETY: as in `wake_one`.
            wake(&unsafe { waiter.as_ref() }.task);
        }
    }

    fn add(&self, waiter: &Waiter) {
        let mut waiters = self.waiters.lock();
        if !waiter.link.is_linked() {
            // SAFETY: in no queue, and `wait` removes it before its frame ends.
            unsafe { waiters.push_back(waiter) };
        }
    }

    /// True if a waker has taken it off already.
    fn remove(&self, waiter: &Waiter) -> bool {
        !self.waiters.lock().remove_element(waiter)
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitQueue")
    }
}

/// Sleeps until `condition` is true, or a limit is met.
// A place that ready programs of the tracer name.
#[inline(never)]
pub(super) fn wait(
    queue: Option<&WaitQueue>,
    limits: Limits,
    mut condition: impl FnMut() -> bool,
) -> Result<(), Errno> {
    // Checked also if the condition is true already, because it may not be the next time.
    handler_rules::check(Rule::Sleep);
    if condition() {
        return Ok(());
    }
    let task = current();
    let waiter = Waiter {
        task: task.clone(),
        link: Link::new(),
    };
    let sleeper = limits
        .deadline_ns
        .map(|deadline_ns| Sleeper::new(task.clone(), deadline_ns));
    let result = loop {
        // The store is SeqCst: a full barrier before the checks. On the other side, a waker's locks
        // are one between its store and its look at the state.
        task.set_state(TaskState::Sleeping);
        if let Some(queue) = queue {
            queue.add(&waiter);
        }
        if let Some(sleeper) = &sleeper {
            sleeper.add();
        }
        if condition() {
            break Ok(());
        }
        if limits.interruptible && task.is_interrupted() {
            break Err(Errno::EINTR);
        }
        if limits
            .deadline_ns
            .is_some_and(|deadline_ns| ktime_get() >= deadline_ns)
        {
            break Err(Errno::ETIMEDOUT);
        }
        schedule();
    };
    task.set_state(TaskState::Runnable);
    if let Some(sleeper) = &sleeper {
        sleeper.remove();
    }
    if let Some(queue) = queue
        && queue.remove(&waiter)
    {
        queue.wake_one();
    }
    result
}
