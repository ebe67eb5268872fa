//! Tasks: at most one on each CPU, preempted by the tick.
//!
//! ```text
//!             spawn          pick                      the body returns          join
//!   Free ─► New ─► Ready ◄──────────► Running(a CPU) ─────────────────────► Done ─► Free
//!                        yield, tick
//! ```
//!
//! # Invariants
//! THREAD-1. A task that is not `Running` is on no CPU: its state changes when its registers are
//!     saved and its stack is left, in [`switch`].
//! THREAD-2. Tasks switch with interrupts off. An interrupt switches as the last thing that it
//!     does, and only where the probes allow it.
//!
//! # Contexts
//! Tasks with interrupts on, except those that say otherwise.

use core::{
    arch::naked_asm,
    cell::UnsafeCell,
    mem,
    ops::Range,
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use x86_64::instructions::interrupts;

use crate::{
    PROBES,
    cpu::{self, MAX_CPUS, NUMBER, per_cpu},
};

const STACK_BYTES: usize = 32 * 1024;
const MAX_TASKS: usize = 48;

const FREE: u32 = 0;
const NEW: u32 = 1;
const READY: u32 = 2;
const RUNNING: u32 = 3;
const DONE: u32 = 4;
/// That of a CPU's own task while another one runs.
const IDLE: u32 = 5;

/// A task and its stack.
#[repr(C, align(16))]
pub struct Task {
    stack: UnsafeCell<[u8; STACK_BYTES]>,
    state: AtomicU32,
    /// The CPU that it stays on, counted from 1; 0: any.
    stays_on: AtomicU32,
    /// Its stack pointer while it does not run.
    sp: AtomicU64,
    /// Its name, the first letter lowest, and zeros.
    name: [AtomicU64; 2],
}

// SAFETY: only the task itself uses its stack, and what makes the task before it runs.
unsafe impl Sync for Task {}

impl Task {
    const fn new() -> Self {
        Self {
            stack: UnsafeCell::new([0; STACK_BYTES]),
            state: AtomicU32::new(FREE),
            stays_on: AtomicU32::new(0),
            sp: AtomicU64::new(0),
            name: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Where its stack is.
    pub fn stack(&self) -> Range<u64> {
        let start = self.stack.get().expose_provenance() as u64;
        start..start + STACK_BYTES as u64
    }

    /// The number by which the probes know it.
    pub fn key(&self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }

    /// Its number, from 1.
    fn number(&self) -> u32 {
        let offset = ptr::from_ref(self).addr() - TASKS.as_ptr().addr();
        (offset / size_of::<Self>()) as u32 + 1
    }

    /// Its name: 16 bytes, the first one lowest; zeros after it.
    pub fn name(&self) -> [u64; 2] {
        self.name.each_ref().map(|word| word.load(Relaxed))
    }

    fn set_name(&self, name: &str) {
        let mut bytes = [0; 15];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        for (word, bytes) in self.name.iter().zip(bytes.chunks(8)) {
            let value = bytes
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte));
            word.store(value, Relaxed);
        }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, AcqRel, Relaxed)
            .is_ok()
    }
}

/// First the tasks of the CPUs, which run while there is nothing else to do.
static TASKS: [Task; MAX_CPUS + MAX_TASKS] = [const { Task::new() }; MAX_CPUS + MAX_TASKS];

per_cpu! {
    /// The task that runs on the CPU.
    static CURRENT: AtomicPtr<Task> = AtomicPtr::new(ptr::null_mut());
}

/// How many times a task was preempted.
pub static PREEMPTIONS: AtomicUsize = AtomicUsize::new(0);

/// The task with that number.
pub fn numbered(number: u32) -> Option<&'static Task> {
    TASKS.get(number.checked_sub(1)? as usize)
}

/// The bounds of the stack that `sp` is in. Any context.
pub fn stack_of(sp: u64) -> Range<u64> {
    let of_a_task = sp.checked_sub(TASKS[0].stack().start);
    let number = of_a_task.map(|offset| offset as usize / size_of::<Task>());
    let stack = number.and_then(|number| Some(TASKS.get(number)?.stack()));
    stack.filter(|stack| stack.contains(&sp)).unwrap_or(0..0)
}

/// Where the stack ends on which CPU number `cpu` starts.
pub fn idle_stack(cpu: usize) -> u64 {
    TASKS[cpu].stack().end
}

/// Makes the calling code the idle task of CPU number `cpu`. Interrupts off.
pub fn init_cpu(cpu: usize) {
    let task = &TASKS[cpu];
    task.state.store(RUNNING, Relaxed);
    task.set_name("idle");
    CURRENT
        .here()
        .store(ptr::from_ref(task).cast_mut(), Relaxed);
    tell(task);
}

/// Tells the probes and the tracer that this CPU runs `task`. Interrupts off.
#[inline(always)]
fn tell(task: &Task) {
    PROBES.task_switched(task.key());
    cpu::tracing_here().task_switched(task.number(), task.number());
}

/// Runs other tasks for ever.
pub fn idle() -> ! {
    loop {
        yield_now();
        interrupts::enable_and_hlt();
    }
}

/// The task that runs on this CPU. Any context that keeps its CPU.
pub fn current() -> &'static Task {
    // SAFETY: `init_cpu` and `reschedule` store tasks, which are static.
    unsafe { &*CURRENT.here().load(Relaxed) }
}

/// Takes a place for a task, whose stack is the caller's until [`release`].
pub fn reserve() -> &'static Task {
    let task = TASKS[MAX_CPUS..].iter().find(|task| task.change(FREE, NEW));
    task.expect("a place for a task")
}

/// Gives the place of a task back that is over, or was never started.
pub fn release(task: &'static Task) {
    PROBES.flush_task(task.key());
    task.state.store(FREE, Release);
}

/// A task that was started. It has to be waited for.
#[must_use]
pub struct Handle(&'static Task);

/// Starts a task, on CPU number `stays_on` or on any.
pub fn spawn(
    name: &str,
    stays_on: Option<usize>,
    body: extern "C" fn(u64),
    argument: u64,
) -> Handle {
    let task = reserve();
    let stays_on = stays_on.map_or(0, |cpu| cpu as u32 + 1);
    task.stays_on.store(stays_on, Relaxed);
    task.set_name(name);
    // What `switch` takes from there. After it the stack is aligned, as before a call.
    let (first, body) = (first as *const () as u64, body as usize as u64);
    let words = [0, 0, 0, argument, body, 0, first];
    let sp = task.stack().end - size_of_val(&words) as u64;
    // SAFETY: the end of the stack of a task that does not run.
    unsafe { (sp as *mut [u64; 7]).write(words) };
    task.sp.store(sp, Relaxed);
    task.state.store(READY, Release);
    Handle(task)
}

/// Starts a task that calls `work`, on any CPU.
pub fn spawn_call(name: &str, work: fn()) -> Handle {
    extern "C" fn call(work: u64) {
        // SAFETY: it is given such a function below.
        let work: fn() = unsafe { mem::transmute(work as *const ()) };
        work();
    }
    spawn(name, None, call, work as usize as u64)
}

impl Handle {
    /// Has the task stay on CPU number `cpu`, from its next turn on.
    pub fn stay_on(&self, cpu: usize) {
        self.0.stays_on.store(cpu as u32 + 1, Relaxed);
    }

    /// Waits until the task is over.
    pub fn join(self) {
        while self.0.state.load(Acquire) != DONE {
            yield_now();
        }
        release(self.0);
    }
}

/// Lets another task run.
pub fn yield_now() {
    interrupts::without_interrupts(|| reschedule(READY));
}

/// A lock that a task may hold while it is preempted: whoever waits lets others run.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
pub type RawMutex = spin::mutex::SpinMutex<(), Yield>;

/// How a task waits for a lock.
pub struct Yield;

impl spin::RelaxStrategy for Yield {
    fn relax() {
        yield_now();
    }
}

/// Ends the calling task. Interrupts on or off.
pub extern "C" fn exit() -> ! {
    interrupts::disable();
    reschedule(DONE);
    unreachable!("a task that is done was run")
}

/// Another task's turn, as the last thing that an interrupt does.
pub fn preempt() {
    PREEMPTIONS.fetch_add(1, Relaxed);
    reschedule(READY);
}

/// Switches to the next task that is ready. The calling one is `then` afterwards. Interrupts off.
fn reschedule(then: u32) {
    let cpu = NUMBER.here().load(Relaxed);
    let (task, own) = (current(), &TASKS[cpu]);
    let is_own = ptr::eq(task, own);
    let next = match next_of(task, cpu) {
        Some(next) => next,
        None if is_own || then == READY => return,
        None => {
            own.state.store(RUNNING, Relaxed);
            own
        }
    };
    let then = if is_own { IDLE } else { then };
    CURRENT
        .here()
        .store(ptr::from_ref(next).cast_mut(), Relaxed);
    cpu::set_trap_stack(next.stack().end);
    tell(next);
    // SAFETY: interrupts are off; the next task is `Running` and on no CPU.
    unsafe {
        switch(
            task.sp.as_ptr(),
            next.sp.load(Relaxed),
            task.state.as_ptr(),
            then,
        )
    };
}

/// Takes the first task after `task` that is ready and may run on CPU number `cpu`.
fn next_of(task: &Task, cpu: usize) -> Option<&'static Task> {
    let (own, others) = TASKS.split_at(MAX_CPUS);
    let after = (ptr::from_ref(task).addr() - own.as_ptr().addr()) / size_of::<Task>();
    let after = (after + 1).saturating_sub(MAX_CPUS).min(others.len());
    let (before, after) = others.split_at(after);
    after.iter().chain(before).find(|task| {
        let stays_on = task.stays_on.load(Relaxed);
        (stays_on == 0 || stays_on == cpu as u32 + 1) && task.change(READY, RUNNING)
    })
}

/// Saves the registers that a call preserves, stores `then` to `state` on the next stack, and goes
/// on there.
///
/// # Safety
/// Interrupts are off, and `next` is what this function has saved to a task's `sp` that is on no
/// CPU, or what `spawn` has laid out.
#[unsafe(naked)]
unsafe extern "C" fn switch(sp: *mut u64, next: u64, state: *mut u32, then: u32) {
    naked_asm!(
        "push rbp; push rbx; push r12; push r13; push r14; push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "mov [rdx], ecx",
        "pop r15; pop r14; pop r13; pop r12; pop rbx; pop rbp",
        "ret",
    )
}

/// The first code of a task, with its body in rbx and the body's argument in r12.
#[unsafe(naked)]
unsafe extern "C" fn first() {
    naked_asm!(
        "sti",
        "mov rdi, r12",
        "call rbx",
        "call {exit}",
        "ud2",
        exit = sym exit,
    )
}
