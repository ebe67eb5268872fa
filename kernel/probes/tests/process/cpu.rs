//! Threads as CPUs.
//!
//! A thread becomes a CPU by taking a [`Cpu`] and pointing its GS base at it. Code that hits probes
//! runs on CPUs only.
//!
//! # The two synchronisations
//! Both send SIGUSR1 to every other online CPU and wait until it has answered. The signal is
//! blocked while a CPU handles a trap (and while a jprobe handler runs), so an answer proves that
//! the CPU has left every #BP handler that it had entered before. `synchronize_cores` adds a
//! membarrier, after which every core has executed a serialising instruction. `synchronize_hits`
//! waits until the code that the signal interrupted is outside every slot, with the guard not held:
//! where it is not, the CPU steps on, instruction by instruction, and says when it is. (To ask
//! again would not do: a CPU that is signalled faster than it returns from the signal gets
//! nowhere.) SIGUSR2's handler blocks SIGUSR1, so there is no second frame below to look at.
//!
//! # Going offline
//! A thread that ends takes [`ONLINE`], so it answers (signals interrupt the wait) until nothing
//! can send to it any more.

use std::{
    arch::asm,
    sync::atomic::{
        AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use probes::PerCpu;

use super::{HIT_SYNCS, Mutex, PROBES, task};

/// A CPU's own data; its GS base points here.
#[repr(C, align(64))]
pub struct Cpu {
    /// This structure, for `gs:[0]`.
    this: AtomicPtr<Cpu>,
    /// The thread that is this CPU, or 0.
    tid: AtomicI32,
    /// How many signal handlers the CPU is in.
    pub traps: AtomicU32,
    /// Whether interrupts were on when the jprobe handler that runs here was entered.
    pub on_before_jprobe: AtomicBool,
    /// Whether an NMI comes after each instruction of tasks; see [`super::traps`].
    pub storm: AtomicBool,
    /// Whether the task runs with a TF that is not its own, for the storm.
    pub forced_step: AtomicBool,
    /// The last request that the CPU has answered.
    answered: AtomicU32,
    /// The last request since which the CPU was outside every slot and handler.
    quiescent: AtomicU32,
    /// Whether it steps until it is.
    watched: AtomicBool,
    /// The current task.
    pub task: AtomicU64,
    /// The probes' part.
    pub probes: PerCpu,
}

/// The number of CPUs that there can be.
pub const POSSIBLE: usize = 8;

/// All CPUs.
pub static CPUS: [Cpu; POSSIBLE] = [const {
    Cpu {
        this: AtomicPtr::new(std::ptr::null_mut()),
        tid: AtomicI32::new(0),
        traps: AtomicU32::new(0),
        on_before_jprobe: AtomicBool::new(false),
        storm: AtomicBool::new(false),
        forced_step: AtomicBool::new(false),
        answered: AtomicU32::new(0),
        quiescent: AtomicU32::new(0),
        watched: AtomicBool::new(false),
        task: AtomicU64::new(0),
        probes: PerCpu::new(),
    }
}; POSSIBLE];

/// Held while the set of online CPUs changes or is signalled.
static ONLINE: Mutex<()> = Mutex::new(());
/// The number of the latest request.
static REQUEST: AtomicU32 = AtomicU32::new(0);

/// The CPU that calls. The thread must be one.
#[inline(always)]
pub fn this() -> &'static Cpu {
    let cpu: *const Cpu;
    // SAFETY: the GS base of a CPU points to its `Cpu`, which begins with its own address.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) cpu, options(nostack, preserves_flags, readonly));
        &*cpu
    }
}

/// Whether the calling thread is a CPU. Costs a system call.
pub fn is_cpu() -> bool {
    const ARCH_GET_GS: i32 = 0x1004;
    let mut base = 0u64;
    // SAFETY: writes one word, to `base`.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_GS, &raw mut base) };
    base != 0
}

impl Cpu {
    /// Whether the current context is a task with interrupts and preemption on.
    pub fn can_sleep(&self) -> bool {
        self.traps.load(Relaxed) == 0 && !self.probes.is_busy()
    }

    /// The CPU's number.
    pub fn number(&self) -> usize {
        (std::ptr::from_ref(self).addr() - CPUS.as_ptr().addr()) / size_of::<Cpu>()
    }

    /// Sends a device interrupt: the hook of [`super::traps`] runs there.
    pub fn interrupt(&self) {
        let _online = ONLINE.lock();
        self.signal(libc::SIGUSR2);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: sends a signal, to a thread that cannot go while `ONLINE` is held.
        let failed = unsafe { libc::tgkill(libc::getpid(), self.tid.load(Relaxed), signal) };
        assert_eq!(failed, 0, "an online CPU can be signalled");
    }

    /// Answers the latest request. In SIGUSR1's handler, which has interrupted the code at `ip`.
    pub fn answer(&self, ip: u64) {
        let request = REQUEST.load(Acquire);
        // SAFETY: `on_every_cpu` keeps it alive until all have answered.
        if let Some(work) = unsafe { WORK.load(Acquire).as_ref() } {
            work();
        }
        self.watched.store(true, Relaxed);
        self.look(ip);
        self.answered.store(request, Release);
        futex(&self.answered, libc::FUTEX_WAKE, 1);
        // There may be more CPUs than processors: let the one that waits go on at once.
        std::thread::yield_now();
    }

    /// Tells those who wait for it if the CPU is outside every slot and handler. In a handler that
    /// has interrupted the code at `ip` and nothing else.
    pub fn look(&self, ip: u64) {
        let request = REQUEST.load(Acquire);
        if self.watched.load(Relaxed) && PROBES.may_preempt(ip) {
            self.watched.store(false, Relaxed);
            self.quiescent.store(request, Release);
            futex(&self.quiescent, libc::FUTEX_WAKE, 1);
        }
    }

    /// Whether the code below a handler is to be stepped through.
    pub fn steps(&self) -> bool {
        self.storm.load(Relaxed) || self.watched.load(Relaxed)
    }
}

/// Waits until `word` has reached `request`.
fn wait_for(word: &AtomicU32, request: u32) {
    loop {
        let now = word.load(Acquire);
        if now.wrapping_sub(request) as i32 >= 0 {
            return;
        }
        futex(word, libc::FUTEX_WAIT, now);
    }
}

/// Does what [`Cpu::interrupt`] does, for all online CPUs but the calling one.
pub fn interrupt_others() {
    let _online = ONLINE.lock();
    let own = this();
    for cpu in CPUS.iter().filter(|cpu| !std::ptr::eq(*cpu, own)) {
        if cpu.tid.load(Relaxed) != 0 {
            cpu.signal(libc::SIGUSR2);
        }
    }
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    // SAFETY: the word is static; a wait without a time limit has no further arguments.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

fn membarrier(command: i32) {
    // SAFETY: takes numbers only.
    let failed = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    assert_eq!(
        failed, 0,
        "these tests need membarrier with SYNC_CORE (Linux 4.16)"
    );
}

/// Prepares the process. Once, before the first CPU.
pub fn set_up() {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
    for (number, cpu) in CPUS.iter().enumerate() {
        cpu.this.store(std::ptr::from_ref(cpu).cast_mut(), Relaxed);
        cpu.probes.init(number);
    }
}

/// What the other CPUs are to do when they answer; null: nothing.
static WORK: AtomicPtr<&(dyn Fn() + Sync)> = AtomicPtr::new(std::ptr::null_mut());

/// Calls `work` here, and on the other online CPUs if they are `asked`.
pub fn on_every_cpu(work: &(dyn Fn() + Sync), asked: bool) {
    work();
    if asked {
        let _online = ONLINE.lock();
        let work = std::ptr::from_ref(&work).cast_mut();
        // SAFETY: only the lifetime is another. The pointer is taken back before `work` ends.
        let work = unsafe {
            std::mem::transmute::<*mut &(dyn Fn() + Sync), *mut &'static (dyn Fn() + Sync)>(work)
        };
        WORK.store(work, Release);
        request_online(|cpu| &cpu.answered);
        WORK.store(std::ptr::null_mut(), Release);
    }
}

/// How many CPUs there are now.
#[allow(dead_code, reason = "one of the test binaries asks")]
pub fn online() -> usize {
    let is_online = |cpu: &&Cpu| cpu.tid.load(Relaxed) != 0;
    CPUS.iter().filter(is_online).count()
}

/// Sends a request to the other CPUs and waits until `word` of each has reached it.
fn request(word: fn(&Cpu) -> &AtomicU32) {
    let _online = ONLINE.lock();
    request_online(word);
}

/// The same, with [`ONLINE`] held.
fn request_online(word: fn(&Cpu) -> &AtomicU32) {
    let request = REQUEST.fetch_add(1, Release).wrapping_add(1);
    let own = this();
    let asked = || {
        CPUS.iter()
            .filter(|cpu| cpu.tid.load(Relaxed) != 0 && !std::ptr::eq(*cpu, own))
    };
    for cpu in asked() {
        cpu.signal(libc::SIGUSR1);
    }
    for cpu in asked() {
        wait_for(word(cpu), request);
    }
}

/// See the module's text. Task context.
pub fn synchronize_cores() {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
    request(|cpu| &cpu.answered);
}

/// See the module's text. Task context.
pub fn synchronize_hits() {
    request(|cpu| &cpu.quiescent);
}

/// The calling thread as a CPU, and as a task on it, until this is dropped.
pub struct Online {
    cpu: &'static Cpu,
    task: Box<task::Identity>,
    stack: task::Known,
}

impl Online {
    /// Takes a CPU for the calling thread.
    pub fn new() -> Self {
        let task = Box::<task::Identity>::default();
        let stack = task::Known::of_this_thread();
        let online = ONLINE.lock();
        let cpu = CPUS
            .iter()
            .find(|cpu| cpu.tid.load(Relaxed) == 0)
            .expect("a test uses at most 8 CPUs");
        assert!(cpu.can_sleep(), "CPU {} was left in a trap", cpu.number());
        set_gs_base(cpu);
        let this = Self { cpu, task, stack };
        this.run_task(this.task.key());
        // From here on there may be interrupts.
        // SAFETY: no preconditions.
        cpu.tid.store(unsafe { libc::gettid() }, Relaxed);
        drop(online);
        this
    }

    /// Makes `task` the current one.
    pub fn run_task(&self, task: u64) {
        self.cpu.task.store(task, Relaxed);
        PROBES.task_switched(task);
    }

    /// Makes the thread's own task the current one.
    pub fn run_own_task(&self) {
        self.run_task(self.task.key());
    }
}

impl Drop for Online {
    fn drop(&mut self) {
        // The thread ends: another task, which never calls anything, takes the CPU over and buries
        // the one that was here.
        self.run_task(std::ptr::from_ref(self.cpu).addr() as u64);
        PROBES.flush_task(self.task.key());
        let _online = ONLINE.lock();
        self.cpu.tid.store(0, Relaxed);
        set_gs_base(std::ptr::null());
        self.stack.forget();
    }
}

fn set_gs_base(base: *const Cpu) {
    const ARCH_SET_GS: i32 = 0x1001;
    // SAFETY: nothing else in the process uses the GS base.
    let failed = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(failed, 0, "a thread can set its GS base");
}

/// The number of CPUs that there can be.
pub const fn possible() -> usize {
    POSSIBLE
}

/// Whether this CPU runs a task with interrupts and preemption on.
pub fn can_sleep() -> bool {
    this().can_sleep()
}

/// The probes' counters of this CPU.
pub fn counts() -> &'static PerCpu {
    &this().probes
}

/// Sends a device interrupt to this CPU: the hook of [`super::traps`] has run on return, if
/// interrupts are on.
pub fn interrupt() {
    this().interrupt();
}

/// Lets others run who wait for this processor.
pub fn yield_now() {
    std::thread::yield_now();
}

/// How many times hits that were under way have been waited for since the boot.
pub fn waits_for_hits() -> Option<u32> {
    Some(HIT_SYNCS.load(Relaxed))
}

/// Where further CPUs can be put to work.
#[derive(Clone, Copy)]
pub struct Scope<'scope, 'env>(&'scope std::thread::Scope<'scope, 'env>);

impl<'scope> Scope<'scope, '_> {
    /// Runs `work` on a further CPU.
    pub fn spawn(self, work: impl FnOnce() + Send + 'scope) -> Worker<'scope> {
        Worker(self.0.spawn(|| {
            let _online = Online::new();
            work();
        }))
    }
}

/// Work on a further CPU.
pub struct Worker<'scope>(std::thread::ScopedJoinHandle<'scope, ()>);

impl Worker<'_> {
    /// Whether it is done.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until it is done.
    pub fn join(self) {
        self.0.join().expect("it has told why");
    }
}

/// Runs `work`, and waits for what it has put further CPUs to.
pub fn scope<'env, T>(work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|scope| work(Scope(scope)))
}

/// Runs `work` on `count` further CPUs at once, each with its number from 0, and waits for them
/// all.
pub fn on_cpus(count: usize, work: impl Fn(usize) + Sync) {
    let start = std::sync::Barrier::new(count);
    scope(|scope| {
        for number in 0..count {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(number);
            });
        }
    });
}
