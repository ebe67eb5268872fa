//! The scheduler: which task runs on which CPU, and the switch from one to the next.
//!
//! One run queue serves all CPUs, first in, first out. A task runs for at most one tick while other
//! tasks wait. This kernel runs on few CPUs, so one short queue under one lock costs less than
//! several queues that must be kept balanced. No CPU is idle while a task waits that may run there.
//!
//! ```text
//!             start, wake                    next in the queue
//!   Sleeping ─────────────► Runnable, queued ──────────────────► Runnable, on a CPU
//!       ▲                          ▲                                  │   │   │
//!       │                          └──────── yield, preemption ───────┘   │   │
//!       └────────────── schedule() with state Sleeping ───────────────────┘   │
//!                                Dead ◄──── schedule() with state Dead ───────┘
//! ```
//!
//! # Invariants
//! SCHED-1. The run queue's lock is held across the switch: the old task takes it, the new one
//!     releases it. So under the lock each task is either on a CPU, or its registers are saved.
//! SCHED-2. Under the lock, a task is queued at most once, and never while it is on a CPU. An idle
//!     task is never queued.
//! SCHED-3. A CPU whose bit is set in `idle_cpus` runs its idle task and has not been told to look.
//!     The code that queues a task clears the bit, sets `need_resched` of that CPU and sends it an
//!     interrupt.
//! SCHED-4. A preempted task stays runnable, whatever its state says. For example, it may be on its
//!     way into a wait, with its state set and its condition not yet checked. Only its own call of
//!     [`schedule`] takes it off.
//! SCHED-5. A dead task is released by the task that comes after it on that CPU. From then on its
//!     stack is not needed any more. The order is: its return-probe instances, its stack, its
//!     reference to itself (TASK-1).
//!
//! # Preemption
//! A running task is preempted in two places, both only when `need_resched` is set:
//!
//! 1. On the way out of an interrupt that it took with interrupts on and with `preempt_count` 0.
//!    The probes must allow it (`PROBES.may_preempt`): they forbid it
//!    inside a slot or detour. If they forbid it, the task is preempted in front of its next
//!    breakpoint ([`crate::probes::preempt_at_breakpoint`]).
//! 2. Where [`percpu::preempt_enable`] or the release of a spinlock ends the last reason against
//!    it.
//!
//! An interrupt never preempts an idle task. Its loop looks at `need_resched` itself, so it gives
//! way a few instructions later. A preempted idle task would be in the way of the operations that
//! wait until no task is to resume at some ip ([`is_preempted_in`]): it runs again only when its
//! CPU has nothing else to do, and on that CPU the waiting task is what is to be done.
//!
//! Interrupt handlers run with interrupts off throughout. So an interrupt whose exit switches tasks
//! is always the outermost one of its task.
//!
//! # Contexts
//! [`schedule`] and functions that sleep: task context, no spinlock held, preemption on. [`wake`]:
//! any context but NMI and probe handlers. Lock order: a wait queue's or the sleepers' lock, then
//! the run queue's.

use super::{IDLE, TASKS, Task, TaskState, current_raw, tick};
use crate::{
    arch::{PtRegs, idt::vector, percpu, smp, switch::__switch_to},
    mm::paging,
    probes::{
        PROBES,
        handler_rules::{self, Rule},
    },
    sync::SpinLock,
    trace::sleep,
};
use alloc::sync::Arc;
use core::{
    ops::Range,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};
use intrusive_queue::Queue;
use percpu::MAX_CPUS;
use x86_64::{PhysAddr, instructions::interrupts, registers::rflags::RFlags};

struct RunQueue {
    tasks: Queue<Task>,
    /// See SCHED-3.
    idle_cpus: u64,
    /// The idle task of each CPU.
    idle_tasks: [Option<&'static Task>; MAX_CPUS],
}

static RUN_QUEUE: SpinLock<RunQueue> = SpinLock::new(RunQueue {
    tasks: Queue::new(),
    idle_cpus: 0,
    idle_tasks: [None; MAX_CPUS],
});

/// Whether the run queue holds a task: lets the tick look without the lock. Written under it.
static TASKS_WAIT: AtomicBool = AtomicBool::new(false);

impl RunQueue {
    /// Queues a runnable task that is on no CPU, and tells an idle CPU.
    fn push(&mut self, task: &Task) {
        // SAFETY: callers pass a task that is not queued (SCHED-2). It is alive as long as it is
        // not dead (TASK-1), and a queued task cannot die.
        unsafe { self.tasks.push_back(task) };
        TASKS_WAIT.store(true, Ordering::Relaxed);
        let candidates = self.idle_cpus & task.allowed_cpus.load(Ordering::Relaxed);
        let last = task.last_cpu.load(Ordering::Relaxed);
        let cpu = match candidates {
            0 => return,
            _ if candidates & (1 << last) != 0 => last as usize,
            _ => candidates.trailing_zeros() as usize,
        };
        self.idle_cpus &= !(1 << cpu);
        percpu::of(cpu).set_need_resched();
        if cpu != percpu::cpu_id() {
            smp::send_ipi(cpu, vector::RESCHEDULE);
        }
    }

    /// Notes whether CPU `cpu` runs its idle task (SCHED-3).
    fn set_idle(&mut self, cpu: usize, idle: bool) {
        self.idle_cpus = self.idle_cpus & !(1 << cpu) | u64::from(idle) << cpu;
    }

    /// Takes the first task that may run on CPU `cpu`.
    fn pop(&mut self, cpu: usize) -> Option<&'static Task> {
        let next = self.tasks.remove(|task| task.may_run_on(cpu));
        TASKS_WAIT.store(self.tasks.front().is_some(), Ordering::Relaxed);
        // SAFETY: a task that was queued is alive until its last switch (TASK-1), which needs the
        // lock.
        next.map(|task| unsafe { task.as_ref() })
    }
}

/// Makes the calling code the idle task of its CPU, on the stack at `stack`. Once per CPU,
/// interrupts off.
pub fn init_cpu(stack: Range<u64>) {
    let percpu = percpu::this();
    let cpu = percpu.cpu_id();
    let idle = Arc::into_raw(Arc::new(Task::new_idle(cpu, stack)));
    // SAFETY: the reference is never given back.
    let idle: &'static Task = unsafe { &*idle };
    RUN_QUEUE.lock().idle_tasks[cpu] = Some(idle);
    percpu
        .kernel_stack_top
        .store(idle.stack_top, Ordering::Relaxed);
    percpu
        .current
        .store(ptr::from_ref(idle).cast_mut().cast(), Ordering::Relaxed);
    // Return probes need to know the task, too, before its first switch.
    PROBES.task_switched(idle.key());
}

/// Lets a new task run.
pub fn start(task: Arc<Task>) {
    TASKS.lock().insert(task.pid, Arc::downgrade(&task));
    // The task's reference to itself (TASK-1), taken back in `finish_switch`.
    let task = Arc::into_raw(task);
    // SAFETY: alive by that reference.
    RUN_QUEUE.lock().push(unsafe { &*task });
}

/// Makes a sleeping task runnable. True if it was asleep, or about to be.
pub fn wake(task: &Task) -> bool {
    let mut queue = RUN_QUEUE.lock();
    // Not a plain store, because the task itself may leave its wait meanwhile, and even end.
    let was_asleep = task.change_state(TaskState::Sleeping, TaskState::Runnable);
    // A task on a CPU finds itself runnable when it calls `schedule`. A queued one was preempted
    // before it called that (SCHED-4).
    if was_asleep {
        ttwu_do_wakeup(task, &mut queue);
    }
    was_asleep
}

/// A sleeping task has become runnable: queues it, if it is not on its way to sleep. A function of
/// its own, because a tracer looks for it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn ttwu_do_wakeup(task: &Task, queue: &mut RunQueue) {
    if !task.on_cpu.load(Ordering::Relaxed) && !task.run_link.is_linked() {
        queue.push(task);
    }
}

/// Makes `task` end: its wait ends early if it may be interrupted, and it is asked to end before it
/// next runs in ring 3. Any context but NMI and probe handlers.
pub fn interrupt(task: &Task) {
    // SeqCst: before the look at the task's state, as in `wait_queue`.
    task.interrupted.store(true, Ordering::SeqCst);
    wake(task);
}

/// Ends the running task for good. The caller has already dropped its user memory, and everything
/// else that may sleep when it is dropped.
pub fn exit() -> ! {
    // SAFETY: the running task is alive (TASK-1).
    unsafe { &*current_raw() }.set_state(TaskState::Dead);
    schedule();
    unreachable!("a dead task was run");
}

/// Gives the CPU to the next task. Returns at once if there is none and the caller is runnable. A
/// caller whose state is `Sleeping` comes back when it is woken; one whose state is `Dead` does not
/// come back.
///
/// # Panics
/// With preemption off, because a spinlock is held. In a probe handler.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn schedule() {
    handler_rules::check(Rule::Sleep);
    reschedule(false);
}

/// Switches tasks because another one is to run (SCHED-4). The caller has checked that it may.
/// Called by its symbol where the last reason against a switch ends: [`percpu::preempt_enable`].
#[unsafe(no_mangle)]
pub extern "C" fn preempt_schedule() {
    reschedule(true);
}

/// The exit of an interrupt, with the frame of the interrupted code: lets another task run if one
/// is to. Returns whether that has to wait, because the probes forbid it there.
pub fn preempt_on_interrupt_exit(regs: &PtRegs) -> bool {
    if !is_preemption_due(regs) {
        return false;
    }
    if PROBES.may_preempt(regs.ip) {
        preempt_at(regs.ip);
        return false;
    }
    true
}

/// Whether a task is to be preempted, and may be, that has executed a breakpoint which has not been
/// served yet. Code that has user memory open may not.
pub fn is_to_preempt_before_hit(regs: &PtRegs) -> bool {
    const USER_ACCESS: u64 = RFlags::ALIGNMENT_CHECK.bits();
    is_preemption_due(regs)
        && regs.flags & USER_ACCESS == 0
        && PROBES.may_preempt(regs.ip.wrapping_sub(1))
}

/// Lets another task run; this one is to go on where `regs` say: in front of the breakpoint. The
/// caller has asked [`is_to_preempt_before_hit`].
#[inline(never)]
pub fn preempt_before_breakpoint(regs: &PtRegs) {
    preempt_at(regs.ip);
}

/// Whether another task is to run on this CPU in place of one that does not give way by itself, and
/// the flags and locks of the interrupted code allow it.
fn is_preemption_due(regs: &PtRegs) -> bool {
    const INTERRUPTS: u64 = RFlags::INTERRUPT_FLAG.bits();
    regs.flags & INTERRUPTS != 0
        && percpu::preempt_count() == 0
        && percpu::this().need_resched()
        && !is_idle()
}

/// Lets another task run; this one is to go on at `ip`.
fn preempt_at(ip: u64) {
    // SAFETY: the running task is alive (TASK-1).
    let task = unsafe { &*current_raw() };
    task.preempted_at.store(ip, Ordering::Relaxed);
    preempt_schedule();
    task.preempted_at.store(0, Ordering::Relaxed);
}

/// Whether a preempted task that waits to run again is to resume at an ip for which `inside` is
/// true. A task that gives way meanwhile lets it run.
pub fn is_preempted_in(inside: &dyn Fn(u64) -> bool) -> bool {
    // A preempted task waits in the queue (SCHED-4). Under the lock it is there or on a CPU
    // (SCHED-1).
    let queue = RUN_QUEUE.lock();
    queue
        .tasks
        .any(|task| inside(task.preempted_at.load(Ordering::Relaxed)))
}

/// Whether the running task is an idle one. Any context.
pub(crate) fn is_idle() -> bool {
    // SAFETY: the running task is alive (TASK-1).
    unsafe { current_raw().as_ref() }.is_none_or(|task| task.pid() == IDLE)
}

/// The tick: asks for a preemption of the running task if another one waits.
pub fn tick() {
    if TASKS_WAIT.load(Ordering::Relaxed) {
        percpu::this().set_need_resched();
    }
}

// A place that ready programs of the tracer name.
#[inline(never)]
fn reschedule(preempted: bool) {
    let interrupts_were_on = interrupts::are_enabled();
    interrupts::disable();
    // SAFETY: the running task is alive (TASK-1).
    let task = unsafe { &*current_raw() };
    assert!(
        percpu::preempt_count() == 0,
        "{task} gives way while preemption is off: a spinlock is held"
    );
    let mut queue = RUN_QUEUE.lock();
    let percpu = percpu::this();
    let cpu = percpu.cpu_id();
    percpu.clear_need_resched();
    let idle = queue.idle_tasks[cpu].expect("each CPU that switches has an idle task");
    let is_idle = ptr::eq(task, idle);
    let wants_to_run = !is_idle && (preempted || task.state() == TaskState::Runnable);
    let next = match queue.pop(cpu) {
        Some(next) => Some(next),
        None if wants_to_run && task.may_run_on(cpu) => None,
        None => Some(idle),
    };
    if let Some(next) = next.filter(|&next| !ptr::eq(task, next)) {
        queue.set_idle(cpu, ptr::eq(next, idle));
        if is_idle {
            tick::resume();
        }
        if wants_to_run {
            queue.push(task);
        }
        let last = context_switch(task, next);
        // Back again, on some CPU. The task before took the lock for us (SCHED-1).
        let dead = finish_switch(last);
        drop(queue);
        release(dead);
    } else {
        queue.set_idle(cpu, is_idle);
        // Before interrupts come on: the tick takes the lock, too, and would wait for this task.
        drop(queue);
    }
    if interrupts_were_on {
        interrupts::enable();
    }
}

/// Runs `next` in place of `task`. Returns when `task` runs again, with the task that ran just
/// before. A function of its own, because a tracer looks for it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn context_switch(task: &Task, next: &'static Task) -> *const Task {
    next.on_cpu.store(true, Ordering::Relaxed);
    next.last_cpu
        .store(percpu::cpu_id() as u32, Ordering::Relaxed);
    let root = next.root.load(Ordering::Relaxed);
    if root != task.root.load(Ordering::Relaxed) {
        let root = if root == 0 {
            paging::kernel_root()
        } else {
            PhysAddr::new(root)
        };
        // SAFETY: the root is the kernel's, or that of the address space of `next`, which `next`
        // keeps alive (TASK-3).
        unsafe { paging::load_root(root) };
    }
    let absent = sleep::leave_and_come(&task.left_ns, &next.left_ns);
    // Nothing that may be probed runs between this and the switch itself.
    PROBES.task_switched(next.key());
    if absent != 0 {
        // SAFETY: interrupts are off.
        unsafe { sleep::move_entries(absent) };
    }
    // SAFETY: `task` is current; `next` is ready to run and on no CPU (SCHED-1, SCHED-2);
    // interrupts are off.
    unsafe { __switch_to(task, next) }
}

/// After a switch, with the queue's lock held: `last` is off this CPU now. Returns it if it is
/// dead.
fn finish_switch(last: *const Task) -> Option<*const Task> {
    // SAFETY: alive until its last switch is over (TASK-1), which is now at the earliest.
    let task = unsafe { &*last };
    task.on_cpu.store(false, Ordering::Relaxed);
    (task.state() == TaskState::Dead && !task.run_link.is_linked()).then_some(last)
}

/// Releases what [`finish_switch`] has returned (SCHED-5). The queue's lock is free again.
fn release(dead: Option<*const Task>) {
    if let Some(task) = dead {
        // SAFETY: it is the reference that `start` gave to the task (TASK-1). Its last switch is
        // over, so no other code takes the reference back.
        let task = unsafe { Arc::from_raw(task) };
        task.release();
    }
}

/// Called by the first stack frame of a new task: ends the switch that led to the task.
pub(crate) extern "C" fn begin_task(last: *const Task) {
    let dead = finish_switch(last);
    // SAFETY: the task before took the lock and left its release to us (SCHED-1).
    unsafe { RUN_QUEUE.force_unlock() };
    release(dead);
    interrupts::enable();
}
