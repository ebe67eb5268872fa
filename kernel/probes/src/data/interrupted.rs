//! What a CPU has interrupted, and the tasks that were preempted on it: the ready table from which
//! the waits of [`Platform`](crate::Platform) are answered.
//!
//! Two questions are asked. Is this CPU outside every hit, in all code that is interrupted on it?
//! And is a preempted task about to resume at certain addresses? A kernel with tables of its own
//! answers them itself and leaves these empty.
//!
//! # Invariants
//! INTERRUPTED-1. The depth is raised before the address is stored, and lowered after it. So an NMI
//!     in between uses the place above and leaves this one as it was.
//! INTERRUPTED-2. A preempted task is noted before it is asked whether it may be preempted. Whoever
//!     waits has marked its addresses before it looks. So it sees the note, or the task sees the
//!     mark and is not preempted.
//! INTERRUPTED-3. Tasks beyond the table's places are counted. The count has two halves: a wait
//!     turns to the other half, and then it needs every task of the first half to resume once.
//!
//! # Contexts
//! The stack of addresses: its own CPU, interrupts off. A note is made with interrupts off and
//! taken back on any CPU. Waits: tasks, one at a time.

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

/// How deep interrupts nest before a CPU counts as being in a hit.
const DEPTH: usize = 8;
/// How many preempted tasks of a CPU are known by their addresses.
const PLACES: usize = 32;

/// The part of [`PerCpu`](super::per_cpu::PerCpu) that this module is about.
pub struct Interrupted {
    depth: AtomicUsize,
    ips: [AtomicU64; DEPTH],
    /// Where preempted tasks resume; 0: free.
    preempted: [AtomicU64; PLACES],
    /// How many more there are, in each half.
    more: [AtomicUsize; 2],
    /// The half that tasks are counted in now.
    half: AtomicUsize,
    /// The last wait that the CPU has answered.
    pub(crate) seen: AtomicU64,
    /// The last wait that it has answered from outside all hits.
    pub(crate) outside: AtomicU64,
}

/// A note about a preempted task.
pub(crate) enum Note {
    Place(usize),
    Half(usize),
}

impl Interrupted {
    pub(crate) const fn new() -> Self {
        Self {
            depth: AtomicUsize::new(0),
            ips: [const { AtomicU64::new(0) }; DEPTH],
            preempted: [const { AtomicU64::new(0) }; PLACES],
            more: [const { AtomicUsize::new(0) }; 2],
            half: AtomicUsize::new(0),
            seen: AtomicU64::new(0),
            outside: AtomicU64::new(0),
        }
    }

    /// The CPU has interrupted the code at `ip`.
    pub(crate) fn enter(&self, ip: u64) {
        let depth = self.depth.load(Relaxed);
        self.depth.store(depth + 1, Relaxed);
        if let Some(place) = self.ips.get(depth) {
            place.store(ip, Relaxed);
        }
    }

    /// It goes back there.
    pub(crate) fn exit(&self) {
        let depth = self.depth.load(Relaxed);
        self.depth.store(depth.saturating_sub(1), Relaxed);
    }

    /// Whether it is in no interrupt.
    pub(crate) fn is_in_task(&self) -> bool {
        self.depth.load(Relaxed) == 0
    }

    /// Whether `holds` is true of all code that is interrupted. False where that is not known.
    pub(crate) fn all(&self, holds: impl Fn(u64) -> bool) -> bool {
        let ips = self.ips.get(..self.depth.load(Relaxed));
        ips.is_some_and(|ips| ips.iter().all(|ip| holds(ip.load(Relaxed))))
    }

    /// Notes that a task is preempted which will resume at `ip`.
    pub(crate) fn note(&self, ip: u64) -> Note {
        let free = |place: &AtomicU64| place.compare_exchange(0, ip, SeqCst, Relaxed).is_ok();
        self.preempted.iter().position(free).map_or_else(
            || {
                let half = self.half.load(SeqCst) % 2;
                self.more[half].fetch_add(1, SeqCst);
                Note::Half(half)
            },
            Note::Place,
        )
    }

    /// Takes a note back: the task resumes, on any CPU.
    pub(crate) fn forget(&self, note: Note) {
        match note {
            Note::Place(place) => self.preempted[place].store(0, Release),
            Note::Half(half) => {
                self.more[half].fetch_sub(1, Release);
            }
        }
    }

    /// Turns to the other half of the count. Returns the one to wait for.
    pub(crate) fn turn(&self) -> usize {
        self.half.fetch_add(1, SeqCst) % 2
    }

    /// Whether a task that was preempted here is to resume where `inside` is true. That is taken to
    /// be so of tasks that are only counted.
    pub(crate) fn is_preempted_in(&self, half: usize, inside: &dyn Fn(u64) -> bool) -> bool {
        let is_in = |place: &AtomicU64| match place.load(SeqCst) {
            0 => false,
            ip => inside(ip),
        };
        self.more[half].load(Acquire) != 0 || self.preempted.iter().any(is_in)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn all_frames_are_asked_and_a_depth_that_is_not_known_is_none() {
        let cpu = Interrupted::new();
        assert!(cpu.is_in_task() && cpu.all(|_| false));
        cpu.enter(10);
        cpu.enter(20);
        assert!(!cpu.is_in_task());
        assert!(cpu.all(|ip| ip >= 10));
        assert!(!cpu.all(|ip| ip > 10));
        for ip in 0..DEPTH as u64 {
            cpu.enter(ip);
        }
        assert!(!cpu.all(|_| true), "two frames are not in the table");
        cpu.exit();
        cpu.exit();
        assert!(cpu.all(|_| true));
        for _ in 0..DEPTH {
            cpu.exit();
        }
        assert!(cpu.is_in_task());
    }

    #[test]
    fn a_preempted_task_is_found_until_it_resumes() {
        let cpu = Interrupted::new();
        let half = cpu.turn();
        let note = cpu.note(7);
        assert!(cpu.is_preempted_in(half, &|ip| ip == 7));
        assert!(!cpu.is_preempted_in(half, &|ip| ip == 8));
        cpu.forget(note);
        assert!(!cpu.is_preempted_in(half, &|_| true));
    }

    #[test]
    fn tasks_beyond_the_table_are_waited_for_and_later_ones_are_not() {
        let cpu = Interrupted::new();
        let listed: Vec<_> = (0..PLACES).map(|_| cpu.note(1)).collect();
        let before = cpu.note(1);
        let half = cpu.turn();
        let after = cpu.note(1);
        assert!(cpu.is_preempted_in(half, &|_| false));
        cpu.forget(before);
        assert!(!cpu.is_preempted_in(half, &|_| false));
        cpu.forget(after);
        listed.into_iter().for_each(|note| cpu.forget(note));
        assert!(!cpu.is_preempted_in(cpu.turn(), &|_| true));
    }
}
