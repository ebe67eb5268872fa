//! What the platform of the probes' suite asks of this kernel.
//!
//! [`crate::platform`] is compiled for another kernel, too: there `tests/second_guest/src/glue.rs`
//! has the same names.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

pub use kernel::{
    arch::{
        idt::vector::{BREAKPOINT, DEBUG, GENERAL_PROTECTION as PROTECTION, PAGE_FAULT},
        percpu::cpu_id,
        smp::online_cpus as cpus,
        traps::{Exception, set_exception_handler, set_interrupt_handler},
    },
    cmdline::get as argument,
    mm::{allocation_faults::with_room_for, kernel_stack::KernelStack},
    probes::{Kernel, PROBES, text_poke::synchronize_cores},
    sync::SpinLock as Mutex,
    task::{WaitQueue, schedule as yield_now},
};

use kernel::{
    arch::{gdt, percpu, smp, traps},
    mm::paging,
    probes::text_poke,
    symbols,
    task::{self, TaskRef, exit::do_exit, kthread::spawn_kthread_on},
    time,
};
use x86_64::VirtAddr;

/// The selectors of the kernel's code and its stacks.
pub const CS: u64 = gdt::KERNEL_CS as u64;
pub const SS: u64 = gdt::KERNEL_DS as u64;

/// A function that may not be probed, and the reason.
pub const BLACKLISTED: (&str, &str) = ("kprobe_breakpoint", "a hit begins in it");

/// The kernel's last words about an unexpected breakpoint.
pub const UNEXPECTED_BREAKPOINT: &str = "breakpoint, in task";

/// Whether a breakpoint clears RFLAGS.AC.
pub const CLEARS_AC: bool = true;

/// The section of code that may be probed.
macro_rules! code_section {
    () => {
        ".text.suite"
    };
}
pub(crate) use code_section;

/// Says something in the log.
pub fn say(message: fmt::Arguments<'_>) {
    kernel::pr_info!("{message}");
}

/// When the log of a test begins, in nanoseconds since the kernel's boot.
static BEGAN: AtomicU64 = AtomicU64::new(0);

/// Has the log of a test begin.
pub fn begin_log() {
    BEGAN.store(time::ktime_get(), Relaxed);
}

/// The messages since then.
pub fn log() -> Vec<String> {
    kernel::log::history()
        .filter(|record| record.stamp.time_ns >= BEGAN.load(Relaxed))
        .map(|record| String::from_utf8_lossy(record.text()).into_owned())
        .collect()
}

/// How many times hits that were under way have been waited for.
pub fn waits_for_hits() -> Option<u64> {
    Some(text_poke::hit_waits())
}

/// The key of the running task. Any context.
pub fn current_task() -> u64 {
    percpu::current_raw().addr() as u64
}

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

/// Ends the running task.
pub fn exit_task() -> ! {
    do_exit(0)
}

/// A task that was started.
pub struct Thread(TaskRef);

impl Thread {
    /// Starts one on CPU `cpu`.
    pub fn spawn_on(cpu: usize, work: Box<dyn FnOnce() + Send>) -> Self {
        Self(spawn_kthread_on(1 << cpu, "suite", work).expect("memory for a thread"))
    }

    /// Has it stay on CPU `cpu` from now on.
    pub fn stay_on(&self, cpu: usize) {
        self.0.set_allowed_cpus(1 << cpu);
    }

    /// Waits until nothing is left of it.
    pub fn join(self) {
        self.0.wait_released();
    }
}

/// Sends the interrupt of [`set_interrupt_handler`] to CPU `cpu`.
pub fn send_interrupt(cpu: usize) {
    smp::send_ipi(cpu, traps::SPARE_INTERRUPT);
}

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
}

/// The addresses of the kernel's text.
pub fn text() -> Range<u64> {
    (&raw const __text_start).addr() as u64..(&raw const __text_end).addr() as u64
}

/// Where the byte of text at `addr` can be written, and the rest of its page.
pub fn text_alias(addr: u64) -> *mut u8 {
    paging::text_alias(VirtAddr::new(addr))
}

/// The address of a symbol. Any context: handlers ask, too, so nothing is allocated.
pub fn lookup(name: &str) -> Option<u64> {
    let mut all = symbols::all();
    let found = all.find(|symbol| symbol.name == name);
    found.map(|symbol| symbol.start)
}

/// The name and the start of the symbol that covers `addr`.
pub fn covering(addr: u64) -> Option<(impl fmt::Display, u64)> {
    let symbol = symbols::lookup_addr(addr)?;
    Some((symbol.name, symbol.start))
}
