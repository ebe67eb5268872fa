//! CPUs, and kernel threads that are bound to them.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    marker::PhantomData,
    mem,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use probes::{PerCpu, Platform};

use super::{Kernel, Mutex, traps};
use crate::glue::{Thread, cpu_id, cpus};
pub use crate::glue::{cpus as possible, go_anywhere, stay_on, waits_for_hits, yield_now};

/// Whether this is a task that may sleep, and no handler.
pub fn can_sleep() -> bool {
    Kernel::can_sleep()
}

/// The probes' counters of this CPU, where the caller stays.
pub fn counts() -> &'static PerCpu {
    Kernel::this_cpu()
}

/// Sends an interrupt to this CPU: the hook of [`traps`] has run on return, if interrupts are on.
pub fn interrupt() {
    traps::interrupt(cpu_id());
}

/// Sends one to all other CPUs, one caller at a time, and waits until they have handled it.
pub fn interrupt_others() {
    let this = cpu_id();
    traps::send((0..cpus()).filter(|cpu| *cpu != this));
}

/// The threads of a [`scope`].
struct Crew {
    threads: Mutex<Vec<Thread>>,
    /// Where the next one goes.
    next: AtomicUsize,
}

/// Where other CPUs can be put to work.
#[derive(Clone, Copy)]
pub struct Scope<'scope, 'env: 'scope> {
    crew: &'scope Crew,
    // As with the threads of a process: neither lifetime may be shortened.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// Runs `work` on another CPU than the first: on each in turn.
    pub fn spawn(self, work: impl FnOnce() + Send + 'scope) -> Worker<'scope> {
        let others = cpus() - 1;
        let cpu = 1 + self.crew.next.fetch_add(1, Relaxed) % others;
        let work: Box<dyn FnOnce() + Send + 'scope> = Box::new(work);
        // SAFETY: `scope` returns only when the thread has ended, so what `work` borrows outlives
        // it.
        let work: Box<dyn FnOnce() + Send> = unsafe { mem::transmute(work) };
        let is_done = Arc::new(AtomicBool::new(false));
        let done = is_done.clone();
        let body = move || {
            work();
            done.store(true, Release);
        };
        let thread = Thread::spawn_on(cpu, Box::new(body));
        self.crew.threads.lock().push(thread);
        Worker {
            is_done,
            scope: PhantomData,
        }
    }
}

/// Work on another CPU.
pub struct Worker<'scope> {
    is_done: Arc<AtomicBool>,
    scope: PhantomData<&'scope ()>,
}

impl Worker<'_> {
    /// Whether it is done.
    pub fn is_finished(&self) -> bool {
        self.is_done.load(Acquire)
    }

    /// Waits until it is done.
    pub fn join(self) {
        while !self.is_finished() {
            yield_now();
        }
    }
}

/// Runs `work`, and waits for what it has put other CPUs to.
pub fn scope<'env, T>(work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T) -> T {
    let crew = Crew {
        threads: Mutex::new(Vec::new()),
        next: AtomicUsize::new(0),
    };
    let result = work(Scope {
        crew: &crew,
        scope: PhantomData,
        env: PhantomData,
    });
    loop {
        let thread = crew.threads.lock().pop();
        let Some(thread) = thread else {
            return result;
        };
        thread.join();
    }
}

/// Runs `work` in `count` threads on other CPUs at once, each with its number from 0, and waits for
/// them all.
pub fn on_cpus(count: usize, work: impl Fn(usize) + Sync) {
    let ready = AtomicUsize::new(0);
    scope(|scope| {
        for number in 0..count {
            let (ready, work) = (&ready, &work);
            scope.spawn(move || {
                ready.fetch_add(1, Release);
                while ready.load(Acquire) < count {
                    yield_now();
                }
                work(number);
            });
        }
    });
}
