//! Tasks: what a kretprobe follows from call to return.
//!
//! Every thread is a task. A [`Coroutine`] is another one, with its own stack, which runs on
//! whatever CPU resumes it, until it yields: a task that is preempted, migrates, and may never come
//! back.

use std::{
    arch::naked_asm,
    ops::Range,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use super::{Mutex, PROBES, cpu};

/// Something whose address no other task has.
#[derive(Default)]
#[repr(align(16))]
pub struct Identity(
    #[allow(dead_code, reason = "gives the type a size, so that addresses differ")] u64,
);

impl Identity {
    /// The number of the task.
    pub fn key(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }
}

/// The stacks there are: start and end of each, 0 where a place is free.
static STACKS: [(AtomicU64, AtomicU64); 64] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 64];

/// The bounds of the stack around `sp`. Any context.
pub fn stack_of(sp: u64) -> Range<u64> {
    STACKS
        .iter()
        .map(|(start, end)| start.load(Acquire)..end.load(Relaxed))
        .find(|stack| stack.contains(&sp))
        .unwrap_or(0..0)
}

/// The key of the current task.
pub fn current() -> u64 {
    cpu::this().task.load(Relaxed)
}

/// A stack that [`stack_of`] knows.
pub struct Known {
    place: usize,
}

impl Known {
    /// Makes a stack known.
    pub fn new(range: Range<u64>) -> Self {
        static TAKEN: Mutex<()> = Mutex::new(());
        let _taken = TAKEN.lock();
        let place = STACKS
            .iter()
            .position(|(start, _)| start.load(Relaxed) == 0)
            .expect("a test uses at most 64 stacks");
        STACKS[place].1.store(range.end, Relaxed);
        STACKS[place].0.store(range.start, Release);
        Self { place }
    }

    /// That of the calling thread.
    pub fn of_this_thread() -> Self {
        let (mut start, mut size) = (std::ptr::null_mut(), 0);
        // SAFETY: the attributes are initialised by the first call, read by the second and
        // destroyed by the third.
        unsafe {
            let mut attributes = std::mem::zeroed();
            assert_eq!(
                libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes),
                0
            );
            libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
        let start = start.addr() as u64;
        Self::new(start..start + size as u64)
    }

    /// Makes it unknown again.
    pub fn forget(&self) {
        STACKS[self.place].0.store(0, Release);
    }
}

/// A stack of its own, for code that is run on it.
pub struct Stack {
    memory: Box<[u64]>,
    known: Known,
}

impl Stack {
    /// One of 256 KiB.
    pub fn new() -> Self {
        let memory = vec![0u64; 32 * 1024].into_boxed_slice();
        let bounds = memory.as_ptr_range();
        Self {
            known: Known::new(bounds.start.addr() as u64..bounds.end.addr() as u64),
            memory,
        }
    }

    /// Where it is.
    pub fn range(&self) -> Range<u64> {
        let bounds = self.memory.as_ptr_range();
        bounds.start.addr() as u64..bounds.end.addr() as u64
    }

    /// The `count` words at its top. No task runs on it.
    pub fn last_words(&mut self, count: usize) -> &mut [u64] {
        let words = self.memory.len();
        &mut self.memory[words - count..]
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.known.forget();
    }
}

/// A task with a stack of its own. Its body must not use thread-local data across a yield, and must
/// not panic.
pub struct Coroutine {
    identity: Box<Identity>,
    _stack: Stack,
    body: fn(&Coroutine),
    /// Where it was switched away from.
    sp: AtomicU64,
    /// Where the one that has resumed it was.
    resumer: AtomicU64,
    finished: AtomicBool,
}

impl Coroutine {
    /// A task that will run `body`.
    pub fn new(body: fn(&Coroutine)) -> Box<Self> {
        let mut stack = Stack::new();
        // `switch_stacks` pops these at the first resumption: registers of no interest, the
        // argument of `start`, its address.
        let [first, _, _, _, _, argument, entry, _] = stack.last_words(8) else {
            unreachable!("eight words were asked for");
        };
        let sp = std::ptr::from_mut(first).addr() as u64;
        *entry = (start as *const ()).addr() as u64;
        let mut this = Box::<Self>::new_uninit();
        *argument = this.as_mut_ptr().expose_provenance() as u64;
        Box::write(
            this,
            Self {
                identity: Box::default(),
                _stack: stack,
                body,
                sp: AtomicU64::new(sp),
                resumer: AtomicU64::new(0),
                finished: AtomicBool::new(false),
            },
        )
    }

    /// The number of the task.
    pub fn key(&self) -> u64 {
        self.identity.key()
    }

    /// Runs it on this CPU until it yields or ends. Returns whether it can be resumed. By one CPU
    /// at a time.
    pub fn resume(&self) -> bool {
        self.resume_as(self.key())
    }

    /// Does what [`Coroutine::resume`] does, with `task` for the current task: its stack is then
    /// just another stack of that task.
    pub fn resume_as(&self, task: u64) -> bool {
        assert!(!self.finished.load(Relaxed));
        let cpu = cpu::this();
        let outer = cpu.task.load(Relaxed);
        cpu.task.store(task, Relaxed);
        PROBES.task_switched(task);
        // SAFETY: `sp` is where the task was switched away from, or what `new` has laid out, and
        // nothing else runs it.
        unsafe { switch_stacks(self.resumer.as_ptr(), self.sp.load(Relaxed)) };
        cpu.task.store(outer, Relaxed);
        PROBES.task_switched(outer);
        !self.finished.load(Relaxed)
    }

    /// Switches back to the resumer. Inside the body, or anything that it calls.
    pub fn suspend(&self) {
        // SAFETY: the resumer is in `resume` and waits to be switched to.
        unsafe { switch_stacks(self.sp.as_ptr(), self.resumer.load(Relaxed)) };
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        PROBES.flush_task(self.key());
    }
}

extern "C" fn run(coroutine: *const Coroutine) -> ! {
    // SAFETY: `new` has passed it through the stack, and it outlives its run.
    let coroutine = unsafe { &*coroutine };
    (coroutine.body)(coroutine);
    coroutine.finished.store(true, Relaxed);
    coroutine.suspend();
    unreachable!("a task that has ended is not resumed");
}

/// The first instructions of a coroutine.
#[unsafe(naked)]
unsafe extern "C" fn start() {
    naked_asm!("mov rdi, rbx", "and rsp, -16", "call {run}", "ud2", run = sym run)
}

/// Saves the stack pointer at `old` and goes on at `new`.
///
/// ```text
///   new+0x30  return address
///   new+0x28  rbx, then rbp, r12, r13, r14 down to
///   new       r15
/// ```
///
/// # Safety
/// `new` is what this function has saved, or a stack laid out so.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn switch_stacks(old: *mut u64, new: u64) {
    naked_asm!(
        "push rbx; push rbp; push r12; push r13; push r14; push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
        "ret",
    )
}
