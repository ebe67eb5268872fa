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

use spin::mutex::SpinMutex;

pub use crate::glue::current_task as current;
use crate::glue::{KernelStack, Thread, WaitQueue, cpu_id, exit_task};

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
    thread: SpinMutex<Option<Thread>>,
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
        let mut this = Box::new(Self {
            thread: SpinMutex::new(None),
            body,
            runs: AtomicBool::new(false),
            turns: WaitQueue::new(),
            finished: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
        });
        let place = ptr::from_ref(&*this).expose_provenance();
        let work = move || {
            // SAFETY: the box is dropped only when the thread has ended.
            let this = unsafe { &*ptr::with_exposed_provenance::<Self>(place) };
            this.wait_for_turn();
            (this.body)(this);
            this.finished.store(true, Relaxed);
            this.end_turn();
        };
        *this.thread.get_mut() = Some(Thread::spawn_on(cpu_id(), Box::new(work)));
        this
    }

    fn wait_for_turn(&self) {
        self.turns.wait_until(|| self.runs.load(Acquire));
        if self.doomed.load(Relaxed) {
            exit_task();
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
        let thread = self.thread.lock();
        thread
            .as_ref()
            .expect("`new` has started it")
            .stay_on(cpu_id());
        drop(thread);
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
        if let Some(thread) = self.thread.get_mut().take() {
            thread.join();
        }
    }
}
