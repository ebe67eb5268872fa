//! The list of sleepers: tasks that want to be woken at a time. Every CPU's tick looks through it.
//!
//! Sleepers are sorted by the time at which they want to be woken. One word holds the earliest
//! time, so a tick with nothing to do takes no lock. Any CPU may wake any sleeper. A sleeper is
//! woken at the first tick after its time, so up to 4 ms late. The CPU on which it fell asleep
//! provides that tick, also while it is idle ([`super::idle`]).

use super::{TaskRef, scheduler::wake};
use crate::{arch::percpu, sync::SpinLock, time::ktime_get};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use intrusive_queue::{Link, Linked, Queue};

/// A task that wants to be woken at a time. It lives in the stack frame of the wait.
pub(super) struct Sleeper {
    task: TaskRef,
    deadline_ns: u64,
    /// The CPU on which it was queued. Written under the lock.
    cpu: AtomicUsize,
    link: Link<Sleeper>,
}

// SAFETY: one field, used by `SLEEPERS` alone.
unsafe impl Linked for Sleeper {
    fn link(&self) -> &Link<Self> {
        &self.link
    }
}

static SLEEPERS: SpinLock<Queue<Sleeper>> = SpinLock::new(Queue::new());

/// The time of the first sleeper. Written under the lock. If a tick sees a change too late, the
/// next one sees it.
static EARLIEST_NS: AtomicU64 = AtomicU64::new(u64::MAX);

fn note_earliest(sleepers: &Queue<Sleeper>) {
    let earliest = sleepers
        .front()
        .map_or(u64::MAX, |sleeper| sleeper.deadline_ns);
    EARLIEST_NS.store(earliest, Ordering::Relaxed);
}

impl Sleeper {
    pub(super) fn new(task: TaskRef, deadline_ns: u64) -> Self {
        Self {
            task,
            deadline_ns,
            cpu: AtomicUsize::new(0),
            link: Link::new(),
        }
    }

    /// Queues it unless it is queued.
    pub(super) fn add(&self) {
        let mut sleepers = SLEEPERS.lock();
        if !self.link.is_linked() {
            self.cpu.store(percpu::cpu_id(), Ordering::Relaxed);
            // SAFETY: in no queue, and `wait` removes it before its frame ends.
            unsafe { sleepers.insert_before(self, |other| other.deadline_ns > self.deadline_ns) };
            note_earliest(&sleepers);
        }
    }

    /// Takes it off if it is queued.
    pub(super) fn remove(&self) {
        let mut sleepers = SLEEPERS.lock();
        sleepers.remove_element(self);
        note_earliest(&sleepers);
    }
}

/// The time at which the first of the tasks that fell asleep on CPU `cpu` wants to be woken. No
/// task falls asleep there while that CPU is idle.
pub(super) fn earliest_of(cpu: usize) -> Option<u64> {
    let sleepers = SLEEPERS.lock();
    let first = sleepers.find(|sleeper| sleeper.cpu.load(Ordering::Relaxed) == cpu);
    first.map(|sleeper| sleeper.deadline_ns)
}

/// Wakes the sleepers whose time has come. Called by the tick, interrupts off.
pub(crate) fn tick() {
    let now_ns = ktime_get();
    if now_ns < EARLIEST_NS.load(Ordering::Relaxed) {
        return;
    }
    let mut sleepers = SLEEPERS.lock();
    while let Some(sleeper) = sleepers.front()
        && sleeper.deadline_ns <= now_ns
    {
        wake(&sleeper.task);
        sleepers.pop_front();
    }
    note_earliest(&sleepers);
}
