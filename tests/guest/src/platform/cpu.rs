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

use kernel::{
    arch::{percpu, smp},
    probes::text_poke,
    task::{self, TaskRef, kthread::spawn_kthread_on},
};
use probes::{PerCpu, Platform};

use super::{Kernel, Mutex, traps};

/// Has the running task stay on CPU `cpu`, and takes it there.
pub fn stay_on(cpu: usize) {
    task::current().set_allowed_cpus(1 << cpu);
    while percpu::cpu_id() != cpu {
        task::schedule();
    }
}

/// Lets it run anywhere again.
pub fn go_anywhere() {
    task::current().set_allowed_cpus(u64::MAX);
}

/// The number of CPUs.
pub fn possible() -> usize {
    smp::online_cpus()
}

/// Whether this is a task that may sleep, and no handler.
pub fn can_sleep() -> bool {
    Kernel::can_sleep()
}

/// The probes' counters of this CPU, where the caller stays.
pub fn counts() -> &'static PerCpu {
    &percpu::this().probes
}

/// How many times hits that were under way have been waited for.
pub fn waits_for_hits() -> u64 {
    text_poke::hit_waits()
}

/// Lets others run who wait for this CPU.
pub fn yield_now() {
    task::schedule();
}

/// Sends an interrupt to this CPU: the hook of [`traps`] has run on return, if interrupts are on.
pub fn interrupt() {
    traps::interrupt(percpu::cpu_id());
}

/// Sends one to all other CPUs, one caller at a time, and waits until they have handled it.
pub fn interrupt_others() {
    let this = percpu::cpu_id();
    traps::send((0..smp::online_cpus()).filter(|cpu| *cpu != this));
}

/// The threads of a [`scope`].
struct Crew {
    threads: Mutex<Vec<TaskRef>>,
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
        let others = smp::online_cpus() - 1;
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
        let thread = spawn_kthread_on(1 << cpu, "suite", body).expect("memory for a thread");
        self.crew.threads.lock().push(thread.clone());
        Worker {
            thread,
            is_done,
            scope: PhantomData,
        }
    }
}

/// Work on another CPU.
pub struct Worker<'scope> {
    thread: TaskRef,
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
        self.thread.wait_released();
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
        thread.wait_released();
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
                    task::schedule();
                }
                work(number);
            });
        }
    });
}
