//! The glue of probes and tracer, which stands for `glue` where the kernel has the feature
//! `tracer`. It is what `examples/glue.rs` of the agent shows, for a kernel without a timer.

use core::{fmt, ops::Range};

use bootloader_api::BootInfo;
use hit_path::{Rules, Symbols};
use probes::{PerCpu, Platform, SelfTest, TaskLock, platform::SlotMemory};
use trace_agent::{Agent, Local, Serial, remote};
use x86_64::registers::control::{Cr0, Cr0Flags};

use crate::{THE_TASK, exit, own_file, say, shop, traps};

/// This kernel, as the probes and the tracer see it.
pub struct Minimal;

trace_agent::kernel! {
    Minimal, PROBES, TRACING, cs = traps::CODE, ss = traps::DATA, gates = [1, 13, 14]
}

/// The data of the one CPU. Its GS base points there.
static LOCAL: Local = Local::new();

/// The number of the task that works while [`THE_TASK`] waits.
const SHOP: u64 = THE_TASK + 1;

/// Where displaced instructions run, and the code of compiled programs.
#[unsafe(link_section = ".text.slots")]
static SLOTS: SlotMemory<{ 256 * 1024 }> = SlotMemory::new();

/// Makes probes and tracer ready. Once; there is a heap, and the gates are the kernel's.
pub fn init(info: &'static BootInfo) {
    // SAFETY: this kernel uses GS for nothing else.
    unsafe { LOCAL.start(0) };
    // SAFETY: `traps` has loaded the one table, and nothing traps meanwhile.
    unsafe { Minimal::take_gates() };
    // As in `glue`, text and slots are written where they execute.
    // SAFETY: no Rust reference allows a write to a page that is not writable.
    unsafe { Cr0::update(|cr0| cr0.remove(Cr0Flags::WRITE_PROTECT)) };
    let symbols = Symbols::of_file(own_file(info), info.kernel_image_offset, &Rules::NONE);
    probes::start::<Minimal>(symbols.expect("the linker wrote a symbol table"));
}

/// Serves the tracers that come. The shop is open while this waits.
pub fn serve() -> ! {
    // SAFETY: this is a PC, and nothing else uses its timer.
    unsafe { TRACING.calibrate_by_pit() };
    // SAFETY: COM2 is at this address on every PC, and nothing else uses it.
    let mut line = unsafe { Serial::<Minimal>::at(0x2f8) };
    let facts = remote::Facts::of::<Minimal>("minimal kernel");
    say(format_args!("a tracer may come"));
    remote::serve::<Minimal>(&mut line, &facts)
}

// SAFETY: clause by clause of `Platform`:
// 1. `LOCAL` is the one CPU's, and `start` leads its GS base there. 2. The symbols are those of the
// running kernel, which stays where it is. 3. and 4. There is one CPU without interrupts, and a
// caller is in no handler and no hit. 5. Nothing is preempted. 6. Nothing else has `SLOTS`, which
// is executed where it is written. 7. There are no interrupts, and `pass_time` tells each switch.
unsafe impl Platform for Minimal {
    type RawMutex = TaskLock<Self>;

    // A quarter of the slots.
    const ACTION_PAGES: usize = 16;

    const MENDS_FAULTS: bool = false;

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        (cpu == 0).then_some(&LOCAL.probes)
    }

    #[inline(always)]
    fn slots() -> Range<u64> {
        SLOTS.range()
    }

    fn stack_of(sp: u64) -> Range<u64> {
        crate::stack_of(sp)
    }

    // There are no interrupts, so they are always off.
    fn can_sleep() -> bool {
        !LOCAL.probes.is_busy()
    }

    // A task that takes no time of its own. It has a number, because a tracer is not shown the hits
    // of the task that serves it.
    fn pass_time() {
        TRACING.task_switched(SHOP, "shop");
        shop::sell_something();
        TRACING.task_switched(THE_TASK, "main");
    }

    fn log(message: fmt::Arguments<'_>) {
        say(message);
    }

    fn fatal(message: fmt::Arguments<'_>) -> ! {
        say(message);
        exit(false)
    }
}

impl SelfTest for Minimal {}

// SAFETY: clause by clause of `Agent`:
// 1. See above. 2. Interrupts are off, and there is one CPU. 3. to 5. By `kernel!`. The boot loader
// maps physical memory, with registers of devices, in the lower half, where programs read nothing:
// it is neither user memory nor above `KERNEL_START`. 6. By `stack_of`. 7. There are none.
unsafe impl Agent for Minimal {
    const USER_END: u64 = 0;
}
