//! Work that every CPU does once, in an interrupt: the body of
//! [`Platform::on_every_cpu`](crate::Platform::on_every_cpu) for kernels that have no such call.
//!
//! # Invariants
//! ASKED-1. `work` names something alive from before the interrupts are sent until all have
//!     answered, because the caller waits for them.
//!
//! # Contexts
//! [`Calls::call`]: tasks with interrupts on. [`Calls::answer`]: the handler of the interrupt.

use core::{
    hint,
    ptr::{self, null_mut},
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

type Work<'a> = &'a (dyn Fn() + Sync);

/// The calls of a kernel: a static.
pub struct Calls {
    is_taken: AtomicBool,
    /// The place of a [`Work`].
    work: AtomicPtr<()>,
    answers: AtomicUsize,
}

impl Default for Calls {
    fn default() -> Self {
        Self::new()
    }
}

impl Calls {
    /// No call is under way.
    pub const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            work: AtomicPtr::new(null_mut()),
            answers: AtomicUsize::new(0),
        }
    }

    /// Has each CPU do `work`. `send` sends an interrupt to each CPU that runs, also to its own,
    /// and returns how many these are. Their handlers call [`Calls::answer`], between
    /// [`Hits::irq_enter`](crate::hit::Hits::irq_enter) and
    /// [`Hits::irq_exit`](crate::hit::Hits::irq_exit). Returns when all have.
    pub fn call(&self, work: Work<'_>, send: impl FnOnce() -> usize) {
        while self.is_taken.swap(true, Acquire) {
            hint::spin_loop();
        }
        self.answers.store(0, Relaxed);
        let place = ptr::from_ref(&work).cast_mut().cast();
        // Pairs with the load in `answer`: what the work reads was written before.
        self.work.store(place, Release);
        let asked = send();
        // Pairs with the addition in `answer`: what the work has written is seen from here on.
        while self.answers.load(Acquire) < asked {
            hint::spin_loop();
        }
        self.is_taken.store(false, Release);
    }

    /// The interrupt of a call has come.
    pub fn answer(&self) {
        // SAFETY: ASKED-1.
        let work = unsafe { *self.work.load(Acquire).cast::<Work<'_>>() };
        work();
        self.answers.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::{sync::mpsc::channel, thread, vec::Vec};

    /// Threads are CPUs, and messages are interrupts.
    #[test]
    fn each_call_returns_when_every_cpu_has_done_its_work() {
        const CPUS: usize = 3;
        const CALLS: usize = 100;
        static SHARED: Calls = Calls::new();
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            let cpus: Vec<_> = (0..CPUS)
                .map(|_| {
                    let (interrupt, interrupts) = channel();
                    scope.spawn(move || interrupts.iter().for_each(|()| SHARED.answer()));
                    interrupt
                })
                .collect();
            // Two tasks ask at the same time.
            for _ in 0..2 {
                let (cpus, done) = (cpus.clone(), &done);
                scope.spawn(move || {
                    for _ in 0..CALLS {
                        let own = AtomicUsize::new(0);
                        let work = || {
                            own.fetch_add(1, Relaxed);
                            done.fetch_add(1, Relaxed);
                        };
                        SHARED.call(&work, || {
                            cpus.iter().for_each(|cpu| cpu.send(()).unwrap());
                            cpus.len()
                        });
                        assert_eq!(own.load(Relaxed), CPUS);
                    }
                });
            }
            drop(cpus);
        });
        assert_eq!(done.load(Relaxed), 2 * CALLS * CPUS);
    }
}
