//! All that a kernel of one CPU writes for probes and the tracer. The page "Probes in your kernel"
//! of the crate `probes` goes through it. What `kernel` stands for, such a kernel has already.
//!
//! It is compiled to show that it can be. A process cannot run it, because it is no kernel.

use std::{fmt, ops::Range, sync::atomic::Ordering::Relaxed};

use hit_path::{Rules, Symbols};
use probes::{PerCpu, Platform, SelfTest, TaskLock, platform::SlotMemory};
use trace_agent::{Agent, Local, Serial, remote};

/// This kernel, as the probes and the tracer see it.
pub struct Kernel;

trace_agent::kernel! {
    Kernel, PROBES, TRACING, cs = kernel::CODE, ss = kernel::DATA, gates = [1, 13, 14]
}

pub static LOCAL: Local = Local::new();

#[unsafe(link_section = ".text.slots")]
static SLOTS: SlotMemory<{ 256 * 1024 }> = SlotMemory::new();

/// Before interrupts are on.
pub fn init_cpu() {
    // SAFETY: this kernel uses GS for nothing else.
    unsafe { LOCAL.start(0) };
}

/// With a heap and the interrupt table.
pub fn init(file: &'static [u8], slide: u64) {
    // SAFETY: the table is loaded, and nothing traps meanwhile.
    unsafe { Kernel::take_gates() };
    let rules = Rules::of_stack_switchers(&[("kernel::switch", "it switches tasks")]);
    let symbols = Symbols::of_file(file, slide, &rules).expect("the linker wrote symbols");
    probes::start::<Kernel>(symbols);
    TRACING.task_switched(kernel::current_task(), "main");
}

/// The body of a task.
pub fn serve() -> ! {
    TRACING.calibrate(kernel::HZ, || kernel::TICKS.load(Relaxed));
    // SAFETY: it is a PC, and nothing else uses COM2.
    let mut line = unsafe { Serial::<Kernel>::at(0x2f8) };
    let facts = remote::Facts::of::<Kernel>("my kernel");
    remote::serve::<Kernel>(&mut line, &facts)
}

// SAFETY: clause by clause of `Platform`:
// 1. `LOCAL` is the one CPU's, and GS leads there. 2. The symbols are those of this kernel. 3. and
// 4. There is one CPU. 5. Interrupts switch no tasks. 6. Nothing else has `SLOTS`. 7. The timer's
// handler calls `irq_enter` and `irq_exit`, and each switch of tasks `task_switched`.
unsafe impl Platform for Kernel {
    type RawMutex = TaskLock<Self>;

    // A quarter of the slots.
    const ACTION_PAGES: usize = 16;

    const MENDS_FAULTS: bool = false;

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        (cpu == 0).then_some(&LOCAL.probes)
    }

    fn slots() -> Range<u64> {
        SLOTS.range()
    }

    fn alias(addr: u64) -> *mut u8 {
        kernel::writable(addr)
    }

    fn stack_of(sp: u64) -> Range<u64> {
        kernel::STACKS.of(sp)
    }

    fn pass_time() {
        kernel::yield_now();
    }

    fn log(message: fmt::Arguments<'_>) {
        kernel::log(message);
    }
}

impl SelfTest for Kernel {}

// SAFETY: clause by clause of `Agent`:
// 1. See above. 2. Interrupts are off then, and there is one CPU. 3. to 5. By `kernel!`; devices
// are not mapped below `KERNEL_MEMORY_END`. 6. By `stack_of`. 7. There are none.
unsafe impl Agent for Kernel {
    const USER_END: u64 = 0;
}

/// What a kernel has without probes.
mod kernel {
    use std::{fmt, sync::atomic::AtomicU64};

    use probes::Stacks;

    pub const CODE: u16 = 0x08;
    pub const DATA: u16 = 0x10;

    /// Ticks of the timer, and how many come in a second.
    pub static TICKS: AtomicU64 = AtomicU64::new(0);
    pub const HZ: u64 = 100;

    /// The stacks of tasks, 64 KiB each.
    pub static STACKS: Stacks<64> = Stacks::new(64 * 1024);

    pub fn current_task() -> u64 {
        2
    }

    pub fn yield_now() {}

    /// Where the page at an address of text is mapped writable.
    pub fn writable(addr: u64) -> *mut u8 {
        addr as *mut u8
    }

    pub fn log(message: fmt::Arguments<'_>) {
        println!("{message}");
    }
}

fn main() {
    kernel::log(format_args!(
        "{} stubs and routines of a kernel are in here",
        size_of_val(&<Kernel as probes::platform::Entries>::entry_points()) / 8
    ));
    // What a kernel calls in its boot, and in a task of its own.
    let _ = (init_cpu as fn(), init as fn(_, _), serve as fn() -> !);
}
