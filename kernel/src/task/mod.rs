//! Tasks: their data, which task runs, and how long a task lives.
//!
//! A [`Task`] is a thread of execution with a kernel stack. With a [`UserSpace`] it is a process of
//! ring 3, without one a kernel thread. It is created ready ([`Task::new`]), runs from
//! [`scheduler::start`] on, and ends in [`scheduler::exit`].
//!
//! # Invariants
//! TASK-1. From `start` on a task holds a reference to itself, which its successor drops after the
//!     task's last switch. So a task that can run, waits, or is on its way out is alive, even if no
//!     other code holds a reference.
//! TASK-2. A task's kernel stack is given back at the same moment, not when the last reference
//!     goes, because nothing runs on it any more.
//! TASK-3. `root` is the root table of `user_space`, or 0, and `own_space` its address, or null.
//!     Only the task itself changes the three, in [`Task::set_user_space`].
//! TASK-4. The topmost [`PtRegs`] of the kernel stack is the frame with which the task has entered
//!     from ring 3 or will go there. A kernel thread has it too, unused.

pub mod comms;
pub mod exec;
pub mod exit;
pub mod fork;
pub mod idle;
pub mod kthread;
pub mod process;
pub mod scheduler;
pub mod sleep;
pub(crate) mod sleepers;
mod tick;
pub mod wait;
pub mod wait_queue;

pub use kthread::spawn_kthread;
pub use scheduler::schedule;
pub use sleep::sleep_until;
pub use wait_queue::WaitQueue;

use crate::{
    arch::{PtRegs, percpu, switch},
    mm::{frame::OutOfMemory, kernel_stack::KernelStack, paging, user_space::UserSpace},
    probes::{PROBES, WATCHPOINTS},
    sync::SpinLock,
};
use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    fmt,
    mem::offset_of,
    ops::Range,
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
};
use intrusive_queue::{Link, Linked};
use process::Process;
use x86_64::{PhysAddr, instructions::interrupts};

/// A reference that keeps a task in memory. The task may end all the same.
pub type TaskRef = Arc<Task>;

/// The number of a task. 0 for the idle tasks, 1 for the first real one, then rising.
pub type Pid = i32;

/// The number of all idle tasks.
const IDLE: Pid = 0;

/// A task's short name, for people: at most 15 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Comm([u8; Comm::BYTES]);

impl Comm {
    const BYTES: usize = 16;
    /// No name.
    pub const EMPTY: Self = Self([0; Self::BYTES]);

    /// The first 15 bytes of `name`, up to a NUL.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        let mut bytes = [0; Self::BYTES];
        for (to, from) in bytes[..Self::BYTES - 1].iter_mut().zip(name.as_ref()) {
            *to = *from;
        }
        Self(bytes)
    }
}

impl AsRef<[u8]> for Comm {
    fn as_ref(&self) -> &[u8] {
        self.0.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().utf8_chunks().try_for_each(|chunk| {
            f.write_str(chunk.valid())?;
            f.write_str(if chunk.invalid().is_empty() { "" } else { "?" })
        })
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The state of a task, as the scheduler sees it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Runs or wants to.
    Runnable = 0,
    /// Waits to be woken, or is about to.
    Sleeping = 1,
    /// Will not run again after its next switch.
    Dead = 2,
}

/// A thread of execution.
#[repr(C)]
pub struct Task {
    /// rsp while the task is switched out.
    pub(crate) saved_sp: AtomicU64,
    /// End of the kernel stack, where entries from ring 3 start.
    pub(crate) stack_top: u64,
    pub(crate) stack_start: u64,
    /// The stack itself, until the task's last switch (TASK-2). Idle tasks never give theirs back.
    stack: SpinLock<Option<KernelStack>>,
    pid: Pid,
    /// The bytes of a [`Comm`], readable without a lock from any context.
    comm: [AtomicU64; 2],
    state: AtomicU8,
    /// Some CPU runs it, or has not finished switching away from it. Written under the run queue's
    /// lock.
    on_cpu: AtomicBool,
    /// The ip that an interrupt found, if the task was preempted on that interrupt's exit; else 0.
    preempted_at: AtomicU64,
    /// The CPU that it last ran on.
    last_cpu: AtomicU32,
    /// When it was switched out, in nanoseconds since the boot; 0: not wanted (`trace/sleep.rs`).
    left_ns: AtomicU64,
    /// Bit n: may run on CPU n.
    allowed_cpus: AtomicU64,
    /// Its place in the run queue, under that queue's lock.
    run_link: Link<Task>,
    root: AtomicU64,
    user_space: SpinLock<Option<Arc<UserSpace>>>,
    /// The same for the task itself, which needs no lock; null for none.
    own_space: AtomicPtr<UserSpace>,
    /// The task is to end: its waits give up if they may be interrupted, and it ends on its way to
    /// ring 3. Never taken back.
    interrupted: AtomicBool,
    /// How deep in the printing its messages are; see [`crate::console`].
    printing: AtomicU8,
    /// The part that belongs to its program.
    pub process: Process,
    /// Its last switch is over.
    released: AtomicBool,
    /// The tasks that wait for that.
    released_wait: WaitQueue,
}

// SAFETY: one field, and only the run queue uses it.
unsafe impl Linked for Task {
    fn link(&self) -> &Link<Self> {
        &self.run_link
    }
}

/// Offset of [`Task::saved_sp`], for the switch.
pub(crate) const SAVED_SP: usize = core::mem::offset_of!(Task, saved_sp);
/// Offsets of fields that events of the scheduler show.
pub(crate) const COMM: usize = core::mem::offset_of!(Task, comm);
pub(crate) const PID: usize = core::mem::offset_of!(Task, pid);
pub(crate) const STATE: usize = core::mem::offset_of!(Task, state);

/// Offset of [`Task::stack_top`], for the switch.
pub(crate) const STACK_TOP: usize = core::mem::offset_of!(Task, stack_top);

/// Not inlined, so that a watch of its counter names it.
#[inline(never)]
fn next_pid() -> Pid {
    static NEXT: AtomicI32 = AtomicI32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Task {
    /// Makes a task that will call `function(argument)` on a stack of its own once it is started.
    /// When the call returns, the task goes to ring 3 as its frame says ([`Task::user_regs`]). Task
    /// context.
    pub fn new(
        name: impl AsRef<[u8]>,
        function: extern "C" fn(usize),
        argument: usize,
    ) -> Result<Self, OutOfMemory> {
        Self::with_regs(name, function, argument, &PtRegs::default())
    }

    /// Makes a task that goes to ring 3, in `space`, with the registers `regs`, once it is started.
    /// Task context. Not inlined, so that the stack of a new number shows it in every build.
    #[inline(never)]
    pub fn new_user(
        name: impl AsRef<[u8]>,
        regs: &PtRegs,
        space: Arc<UserSpace>,
        process: Process,
    ) -> Result<Arc<Self>, OutOfMemory> {
        extern "C" fn straight_to_ring_3(_: usize) {}
        let mut task = Self::with_regs(name, straight_to_ring_3, 0, regs)?;
        task.root = AtomicU64::new(space.root().as_u64());
        task.own_space = AtomicPtr::new(Arc::as_ptr(&space).cast_mut());
        task.user_space = SpinLock::new(Some(space));
        task.process = process;
        Ok(Arc::new(task))
    }

    #[inline(always)]
    fn with_regs(
        name: impl AsRef<[u8]>,
        function: extern "C" fn(usize),
        argument: usize,
        regs: &PtRegs,
    ) -> Result<Self, OutOfMemory> {
        let stack = KernelStack::new()?;
        let range = stack.range();
        // SAFETY: the stack is new and ours.
        let sp = unsafe { switch::prepare_stack(range.end, function, argument, regs) };
        let mut task = Self::with_stack(name, range, next_pid());
        task.saved_sp = AtomicU64::new(sp);
        task.stack = SpinLock::new(Some(stack));
        Ok(task)
    }

    /// The idle task of CPU `cpu`: the code that the CPU is running now, on the stack at `stack`.
    pub(crate) fn new_idle(cpu: usize, stack: Range<u64>) -> Self {
        let mut task = Self::with_stack("swapper", stack, IDLE);
        task.on_cpu = AtomicBool::new(true);
        task.last_cpu = AtomicU32::new(cpu as u32);
        task.allowed_cpus = AtomicU64::new(1 << cpu);
        task
    }

    fn with_stack(name: impl AsRef<[u8]>, stack: Range<u64>, pid: Pid) -> Self {
        let task = Self {
            saved_sp: AtomicU64::new(0),
            stack_top: stack.end,
            stack_start: stack.start,
            stack: SpinLock::new(None),
            pid,
            comm: [const { AtomicU64::new(0) }; 2],
            state: AtomicU8::new(TaskState::Runnable as u8),
            on_cpu: AtomicBool::new(false),
            preempted_at: AtomicU64::new(0),
            last_cpu: AtomicU32::new(0),
            left_ns: AtomicU64::new(0),
            allowed_cpus: AtomicU64::new(u64::MAX),
            run_link: Link::new(),
            root: AtomicU64::new(0),
            user_space: SpinLock::new(None),
            own_space: AtomicPtr::new(ptr::null_mut()),
            interrupted: AtomicBool::new(false),
            printing: AtomicU8::new(0),
            process: Process::default(),
            released: AtomicBool::new(false),
            released_wait: WaitQueue::new(),
        };
        task.set_comm(name);
        task
    }

    /// The task's number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether a CPU runs it or is just switching away from it. Any context; it may have changed
    /// since.
    pub fn is_running(&self) -> bool {
        self.on_cpu.load(Ordering::Acquire)
    }

    /// The task's name. Any context.
    pub fn comm(&self) -> Comm {
        let mut bytes = [0; 16];
        for (half, word) in bytes.chunks_exact_mut(8).zip(&self.comm) {
            half.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Comm(bytes)
    }

    /// The bytes of its name in two words, the first byte lowest. On the hit path.
    #[inline(always)]
    pub(crate) fn comm_words(&self) -> [u64; 2] {
        [
            self.comm[0].load(Ordering::Relaxed),
            self.comm[1].load(Ordering::Relaxed),
        ]
    }

    /// Renames the task.
    pub fn set_comm(&self, name: impl AsRef<[u8]>) {
        for (half, word) in Comm::new(name).0.chunks_exact(8).zip(&self.comm) {
            let half = half.try_into().expect("chunks of eight bytes");
            word.store(u64::from_le_bytes(half), Ordering::Relaxed);
        }
    }

    /// The key by which the probes know the task: unique while it is alive.
    pub fn key(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }

    /// Its state.
    pub fn state(&self) -> TaskState {
        match self.state.load(Ordering::Relaxed) {
            0 => TaskState::Runnable,
            1 => TaskState::Sleeping,
            _ => TaskState::Dead,
        }
    }

    /// `SeqCst`, as in [`wait_queue`].
    fn set_state(&self, state: TaskState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// The addresses of its kernel stack. It may be another task's by now if the task is dead.
    pub fn stack_range(&self) -> Range<u64> {
        self.stack_start..self.stack_top
    }

    /// Whether the task never runs in ring 3, at least so far. Any context.
    pub fn is_kernel_thread(&self) -> bool {
        self.root.load(Ordering::Relaxed) == 0
    }

    /// The task's user memory; `None` for a kernel thread.
    pub fn user_space(&self) -> Option<Arc<UserSpace>> {
        self.user_space.lock().clone()
    }

    /// Replaces the user memory of the running task, loads the new one and returns the old one.
    /// `None` makes it a kernel thread.
    ///
    /// Not inlined, because code that loads a root cannot be probed.
    ///
    /// # Panics
    /// If this is not the running task.
    #[inline(never)]
    pub fn set_user_space(&self, space: Option<Arc<UserSpace>>) -> Option<Arc<UserSpace>> {
        assert!(
            core::ptr::eq(self, current_raw()),
            "only a task itself changes its user memory (TASK-3)"
        );
        let mut current = self.user_space.lock();
        let root = space.as_ref().map(|space| space.root());
        self.root
            .store(root.map_or(0, PhysAddr::as_u64), Ordering::Relaxed);
        let own = space.as_ref().map_or(ptr::null(), Arc::as_ptr);
        self.own_space.store(own.cast_mut(), Ordering::Relaxed);
        // SAFETY: the root is the kernel's, or that of `space`, which the task keeps alive from
        // here on. The lock keeps this task on this CPU meanwhile.
        unsafe { paging::load_root(root.unwrap_or(paging::kernel_root())) };
        interrupts::without_interrupts(|| WATCHPOINTS.program_changed());
        core::mem::replace(&mut *current, space)
    }

    /// Its user memory.
    ///
    /// # Safety
    /// 1. The task runs on this CPU or is about to, and does not change its memory before the
    ///    result was used last.
    pub(crate) unsafe fn own_space(&self) -> Option<&UserSpace> {
        // SAFETY: `user_space` keeps it, and only the task itself changes that (TASK-3), by (1).
        unsafe { self.own_space.load(Ordering::Relaxed).as_ref() }
    }

    /// Changes the state if it is `from`.
    fn change_state(&self, from: TaskState, to: TaskState) -> bool {
        let exchange =
            self.state
                .compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst);
        exchange.is_ok()
    }

    /// Whether the task may run on CPU `cpu`.
    fn may_run_on(&self, cpu: usize) -> bool {
        self.allowed_cpus.load(Ordering::Relaxed) & (1 << cpu) != 0
    }

    /// Restricts the task to the CPUs whose bits are set in `cpus`, from its next switch on.
    pub fn set_allowed_cpus(&self, cpus: u64) {
        self.allowed_cpus.store(cpus, Ordering::Relaxed);
    }

    /// The frame that takes a task to ring 3 (TASK-4).
    ///
    /// # Safety
    /// 1. The task has not been started, or it is the caller and the result is not in use twice.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn user_regs(&self) -> &mut PtRegs {
        // SAFETY: the frame is part of the stack, and ours alone by (1).
        unsafe { &mut *switch::user_regs(self.stack_top) }
    }

    /// The field in which [`crate::console`] notes how deep in the printing its messages are.
    pub(crate) fn printing(&self) -> &AtomicU8 {
        &self.printing
    }

    /// Where the address of the task's memory is, for the assembly of a hit.
    pub(crate) const OWN_SPACE_OFFSET: usize = offset_of!(Self, own_space);
    /// Where it says whether the task is to end.
    pub(crate) const INTERRUPTED_OFFSET: usize = offset_of!(Self, interrupted);

    /// Whether the task is to end.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// Waits until the task has ended and its stack has been given back. Task context.
    pub fn wait_released(&self) {
        // Acquire pairs with the Release in `release`.
        self.released_wait
            .wait_until(|| self.released.load(Ordering::Acquire));
    }

    /// The CPU that runs it, or ran it last.
    pub fn last_cpu(&self) -> u32 {
        self.last_cpu.load(Ordering::Relaxed)
    }

    /// The last act on a dead task, by its successor.
    fn release(&self) {
        comms::note(self.pid, self.comm());
        PROBES.flush_task(self.key());
        drop(self.stack.lock().take());
        // Who does not find it here finds nothing left of it.
        TASKS.lock().remove(&self.pid);
        self.released.store(true, Ordering::Release);
        self.released_wait.wake_all();
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.comm(), self.pid)
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({self}, {:?})", self.state())
    }
}

/// All tasks from their start to their last switch, by number; without the idle tasks.
static TASKS: SpinLock<BTreeMap<Pid, Weak<Task>>> = SpinLock::new(BTreeMap::new());

/// The tasks that have been started and not been released, by number, without the idle tasks. Task
/// context.
pub fn all() -> Vec<TaskRef> {
    TASKS.lock().values().filter_map(Weak::upgrade).collect()
}

/// Waits until the task with that number has ended and has given back what it had. Task context.
fn wait_released(pid: Pid) {
    let task = TASKS.lock().get(&pid).and_then(Weak::upgrade);
    if let Some(task) = task {
        task.wait_released();
    }
}

/// The name of the task with that number, if it lives. Task context.
pub fn comm_of(pid: Pid) -> Option<Comm> {
    TASKS
        .lock()
        .get(&pid)
        .and_then(Weak::upgrade)
        .map(|task| task.comm())
}

/// The running task, null before the scheduler is up. Any context.
#[inline]
pub fn current_raw() -> *const Task {
    percpu::current_raw().cast()
}

/// The running task, for code that keeps its CPU as long as it looks at it. None before the
/// scheduler is up. Any context, on the hit path, too.
#[inline(always)]
pub(crate) fn running() -> Option<&'static Task> {
    // SAFETY: the running task is alive (TASK-1), and the CPU is kept.
    unsafe { current_raw().as_ref() }
}

/// The running task and its user memory, which stays as long as the task does not change it. None
/// for a kernel thread. Otherwise as [`running`].
#[inline(always)]
pub(crate) fn running_in_space() -> Option<(&'static Task, &'static UserSpace)> {
    let task = running()?;
    // SAFETY: it is the running task, and the caller is it.
    Some((task, unsafe { task.own_space() }?))
}

/// The task that runs. Any context once the scheduler is set up.
///
/// # Panics
/// Before that.
pub fn current() -> TaskRef {
    try_current().expect("the scheduler is set up")
}

/// The task that runs, or `None` early in boot. Any context.
pub fn try_current() -> Option<TaskRef> {
    let task = current_raw();
    if task.is_null() {
        return None;
    }
    // SAFETY: the running task is in an `Arc`, and alive (TASK-1).
    unsafe {
        Arc::increment_strong_count(task);
        Some(Arc::from_raw(task))
    }
}

/// Whether the running task has user memory. Any context.
pub fn current_has_mm() -> bool {
    // SAFETY: the running task is alive (TASK-1).
    let task = unsafe { current_raw().as_ref() };
    task.is_some_and(|task| !task.is_kernel_thread())
}

/// Whether the caller may sleep: a task, with preemption and interrupts on. Any context.
pub fn may_sleep() -> bool {
    !percpu::current_raw().is_null() && percpu::preemptible()
}
