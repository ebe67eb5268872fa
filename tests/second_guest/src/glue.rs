//! What the platform of the probes' suite asks of the second kernel.
//!
//! `tests/guest/src/glue.rs` has the same names for ours. This kernel has nothing that waits: who
//! waits lets others run. It has no memory that can be made short and no log that can be read, so
//! those are here: an allocator in front of its own, and a listener.

use alloc::{borrow::ToOwned, boxed::Box, string::String, vec::Vec};
use core::{
    alloc::{GlobalAlloc, Layout},
    fmt::{self, Write},
    ops::Range,
    ptr,
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

use probes::{Platform, PtRegs, pt_regs::Frame as _};
use second_kernel::{
    LISTENER,
    cpu::{KERNEL_CODE, KERNEL_DATA, NUMBER},
    frame::{Frame, SPARE},
    fw_cfg,
    memory::{self, KernelHeap},
    smp, symbols,
    tasks::{self, Handle, Task},
    traps::LAST_OWNER,
};
pub use second_kernel::{
    PROBES, probes::Second as Kernel, say, smp::online as cpus, tasks::yield_now,
};
use spin::Once;
pub use spin::mutex::SpinMutex as Mutex;
use x86_64::instructions::interrupts::without_interrupts;

/// The selectors of the kernel's code and its stacks.
pub const CS: u64 = KERNEL_CODE as u64;
pub const SS: u64 = KERNEL_DATA as u64;

/// The vectors of exceptions.
pub const DEBUG: u8 = 1;
pub const BREAKPOINT: u8 = 3;
pub const PROTECTION: u8 = 13;
pub const PAGE_FAULT: u8 = 14;

/// A function that may not be probed, and the reason.
pub const BLACKLISTED: (&str, &str) = ("kprobe_breakpoint", "a hit may run through it");

/// The kernel's last words about an unexpected breakpoint.
pub const UNEXPECTED_BREAKPOINT: &str = "trap 3, cr2";

/// Whether a breakpoint clears RFLAGS.AC: it means nothing in ring 0 without SMAP.
pub const CLEARS_AC: bool = false;

/// The section of code that may be probed.
macro_rules! code_section {
    () => {
        "probeable"
    };
}
pub(crate) use code_section;

/// Has the kernel ask and tell this module.
pub fn init() {
    LAST_OWNER.call_once(|| on_trap);
    LISTENER.call_once(|| hear);
}

/// The value of `name=value` on the command line.
pub fn argument(name: &str) -> Option<&'static str> {
    static LINE: Once<String> = Once::new();
    let mut words = LINE.call_once(fw_cfg::command_line).split_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// What the kernel has said since the test began. Nothing is allocated for it.
struct Log {
    bytes: [u8; 16 << 10],
    length: usize,
}

static LOG: Mutex<Log> = Mutex::new(Log {
    bytes: [0; 16 << 10],
    length: 0,
});

impl Write for Log {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let room = room.get_mut(..text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

fn hear(message: fmt::Arguments<'_>) {
    without_interrupts(|| {
        // What finds no room is on the serial line all the same.
        let _ = writeln!(LOG.lock(), "{message}");
    });
}

/// Has the log of a test begin.
pub fn begin_log() {
    without_interrupts(|| LOG.lock().length = 0);
}

/// The messages since then.
pub fn log() -> Vec<String> {
    let bytes = without_interrupts(|| {
        let log = LOG.lock();
        log.bytes[..log.length].to_vec()
    });
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map(str::to_owned).collect()
}

/// The number of this CPU, where the caller stays.
pub fn cpu_id() -> usize {
    NUMBER.here().load(Relaxed)
}

/// The task of the tests stays on CPU 0 for ever.
pub fn stay_on(cpu: usize) {
    assert_eq!(cpu, cpu_id(), "a test begins on CPU 0");
}

/// See [`stay_on`].
pub fn go_anywhere() {}

/// Has each CPU execute a serialising instruction.
pub fn synchronize_cores() {
    Kernel::synchronize_cores();
}

/// The crate waits here, and does not say how often.
pub fn waits_for_hits() -> Option<u64> {
    None
}

/// The key of the running task. Any context.
pub fn current_task() -> u64 {
    tasks::current().key()
}

/// Ends the running task.
pub fn exit_task() -> ! {
    tasks::exit()
}

/// A task that was started.
pub struct Thread(Handle);

type Work = Box<dyn FnOnce() + Send>;

impl Thread {
    /// Starts one on CPU `cpu`.
    pub fn spawn_on(cpu: usize, work: Work) -> Self {
        extern "C" fn body(work: u64) {
            let work = ptr::with_exposed_provenance_mut::<Work>(work as usize);
            // SAFETY: the box that was given up below, for this one call.
            let work = unsafe { Box::from_raw(work) };
            work();
        }
        let work = Box::into_raw(Box::new(work)).expose_provenance();
        Self(tasks::spawn("suite", Some(cpu), body, work as u64))
    }

    /// Has it stay on CPU `cpu` from now on.
    pub fn stay_on(&self, cpu: usize) {
        self.0.stay_on(cpu);
    }

    /// Waits until nothing is left of it.
    pub fn join(self) {
        self.0.join();
    }
}

/// Where tasks wait for each other.
pub struct WaitQueue;

impl WaitQueue {
    pub fn new() -> Self {
        Self
    }

    /// Waits until `is_over`.
    pub fn wait_until(&self, is_over: impl Fn() -> bool) {
        while !is_over() {
            yield_now();
        }
    }

    /// Those who wait look themselves.
    pub fn wake_all(&self) {}
}

/// The stack of a task that does not run.
pub struct KernelStack(&'static Task);

impl KernelStack {
    /// Takes one.
    pub fn new() -> Option<Self> {
        Some(Self(tasks::reserve()))
    }

    /// Where it is.
    pub fn range(&self) -> Range<u64> {
        self.0.stack()
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        tasks::release(self.0);
    }
}

/// An exception of ring 0 that is nobody's.
pub struct Exception {
    pub vector: u8,
}

type ExceptionHandler = fn(&mut PtRegs, &Exception) -> bool;
type InterruptHandler = fn(&mut PtRegs);

static ON_EXCEPTION: Mutex<Option<ExceptionHandler>> = Mutex::new(None);
static ON_INTERRUPT: Mutex<Option<InterruptHandler>> = Mutex::new(None);

/// Sets a handler for such exceptions.
pub fn set_exception_handler(handler: Option<ExceptionHandler>) {
    without_interrupts(|| *ON_EXCEPTION.lock() = handler);
}

/// Sets a handler for the interrupts of [`send_interrupt`].
pub fn set_interrupt_handler(handler: Option<InterruptHandler>) {
    without_interrupts(|| *ON_INTERRUPT.lock() = handler);
}

fn on_trap(frame: &mut Frame) -> bool {
    let vector = frame.vector as u8;
    if vector == SPARE {
        let handler = *ON_INTERRUPT.lock();
        return handler.map(|handler| frame.with_regs(handler)).is_some();
    }
    let handler = *ON_EXCEPTION.lock();
    handler.is_some_and(|handler| frame.with_regs(|regs| handler(regs, &Exception { vector })))
}

/// Sends an interrupt to CPU `cpu`.
pub fn send_interrupt(cpu: usize) {
    smp::send(cpu, SPARE);
}

/// The addresses of the kernel's text.
pub fn text() -> Range<u64> {
    let text = symbols::text().as_ptr_range();
    text.start.addr() as u64..text.end.addr() as u64
}

/// Where the byte of text at `addr` can be written, and the rest of its page.
pub fn text_alias(addr: u64) -> *mut u8 {
    memory::alias(addr)
}

/// The address of a function. Any context.
pub fn lookup(name: &str) -> Option<u64> {
    symbols::lookup(name).map(|function| function.start)
}

/// The name and the start of the function that covers `addr`.
pub fn covering(addr: u64) -> Option<(&'static str, u64)> {
    let function = symbols::covering(addr)?;
    Some((function.name, function.start))
}

/// The heap, which refuses what [`with_room_for`] says.
struct Short;

#[global_allocator]
static HEAP: Short = Short;

/// The task whose allocations are counted and refused; 0: none. Only this task uses the others.
static TASK: AtomicU64 = AtomicU64::new(0);
/// How many allocations it has left.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// How many it was refused.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// How many bytes it has taken and not given back.
static KEPT: AtomicI64 = AtomicI64::new(0);

/// Whether the task that runs is the one in [`with_room_for`].
fn is_short() -> bool {
    let task = TASK.load(Relaxed);
    task != 0 && without_interrupts(current_task) == task
}

// SAFETY: the memory is that of the kernel's heap.
unsafe impl GlobalAlloc for Short {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_short() {
            let left = LEFT.load(Relaxed);
            if left == 0 {
                REFUSED.fetch_add(1, Relaxed);
                return ptr::null_mut();
            }
            LEFT.store(left - 1, Relaxed);
        }
        // SAFETY: the contract of this function.
        let memory = unsafe { KernelHeap.alloc(layout) };
        if is_short() && !memory.is_null() {
            KEPT.fetch_add(layout.size() as i64, Relaxed);
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_short() {
            KEPT.fetch_sub(layout.size() as i64, Relaxed);
        }
        // SAFETY: the contract of this function.
        unsafe { KernelHeap.dealloc(memory, layout) }
    }
}

/// The result of some work with refused allocations.
pub struct Outcome<T> {
    pub result: T,
    /// How many allocations were refused.
    pub refused: u64,
    /// How many bytes it has taken and not given back.
    pub kept: i64,
}

/// Runs `work` with room for `count` allocations of this task: later ones fail.
pub fn with_room_for<T>(count: u64, work: impl FnOnce() -> T) -> Outcome<T> {
    LEFT.store(count, Relaxed);
    REFUSED.store(0, Relaxed);
    KEPT.store(0, Relaxed);
    let before = TASK.swap(current_task(), Relaxed);
    assert_eq!(before, 0, "one task at a time is short of memory");
    let result = work();
    TASK.store(0, Relaxed);
    Outcome {
        result,
        refused: REFUSED.load(Relaxed),
        kept: KEPT.load(Relaxed),
    }
}
