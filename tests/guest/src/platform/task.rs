//! Tasks, and stacks to run code on.

use alloc::boxed::Box;
use core::{
    ops::Range,
    ptr, slice,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use kernel::{
    arch::percpu,
    mm::kernel_stack::KernelStack,
    task::{TaskRef, WaitQueue, exit::do_exit, kthread::spawn_kthread},
};
use spin::Once;

/// The key of the current task. Any context.
pub fn current() -> u64 {
    percpu::current_raw().addr() as u64
}

/// A kernel stack of its own, for code that is run on it.
pub struct Stack(KernelStack);

impl Stack {
    /// One that the kernel knows as such.
    pub fn new() -> Self {
        Self(KernelStack::new().expect("memory for a stack"))
    }

    /// Where it is.
    pub fn range(&self) -> Range<u64> {
        self.0.range()
    }

    /// The `count` words at its top. No task runs on it.
    pub fn last_words(&mut self, count: usize) -> &mut [u64] {
        let start = self.range().end - 8 * count as u64;
        // SAFETY: part of the stack, which is mapped, and ours alone.
        unsafe { slice::from_raw_parts_mut(start as *mut u64, count) }
    }
}

/// A task that runs when it is resumed, on the CPU that resumes it, until it yields: a kernel
/// thread that takes turns with its resumer.
pub struct Coroutine {
    thread: Once<TaskRef>,
    body: fn(&Coroutine),
    /// Whether it is the thread's turn, not the resumer's.
    runs: AtomicBool,
    turns: WaitQueue,
    finished: AtomicBool,
    /// It is to end where it is.
    doomed: AtomicBool,
}

impl Coroutine {
    /// A task that will run `body`.
    pub fn new(body: fn(&Coroutine)) -> Box<Self> {
        let this = Box::new(Self {
            thread: Once::new(),
            body,
            runs: AtomicBool::new(false),
            turns: WaitQueue::new(),
            finished: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
        });
        let place = ptr::from_ref(&*this).expose_provenance();
        let thread = spawn_kthread("coroutine", move || {
            // SAFETY: the box is dropped only when the thread has ended.
            let this = unsafe { &*ptr::with_exposed_provenance::<Self>(place) };
            this.wait_for_turn();
            (this.body)(this);
            this.finished.store(true, Relaxed);
            this.end_turn();
        });
        this.thread
            .call_once(|| thread.expect("memory for a thread"));
        this
    }

    fn thread(&self) -> &TaskRef {
        self.thread.get().expect("`new` has started it")
    }

    fn wait_for_turn(&self) {
        self.turns.wait_until(|| self.runs.load(Acquire));
        if self.doomed.load(Relaxed) {
            do_exit(0);
        }
    }

    fn end_turn(&self) {
        self.runs.store(false, Release);
        self.turns.wake_all();
    }

    /// Runs it on this CPU until it yields or ends. Returns whether it can be resumed. By one task
    /// at a time.
    pub fn resume(&self) -> bool {
        assert!(!self.finished.load(Relaxed));
        self.thread().set_allowed_cpus(1 << percpu::cpu_id());
        self.runs.store(true, Release);
        self.turns.wake_all();
        self.turns.wait_until(|| !self.runs.load(Acquire));
        !self.finished.load(Relaxed)
    }

    /// Lets the resumer go on. Inside the body, or anything that it calls.
    pub fn suspend(&self) {
        self.end_turn();
        self.wait_for_turn();
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        if !self.finished.load(Relaxed) {
            self.doomed.store(true, Relaxed);
            self.runs.store(true, Release);
            self.turns.wake_all();
        }
        self.thread().wait_released();
    }
}
