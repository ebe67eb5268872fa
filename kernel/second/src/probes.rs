//! The glue: what the probes ask of this kernel.

use core::{fmt, ops::Range};

use crate::{
    PROBES,
    cpu::{MAX_CPUS, VARIABLES, per_cpu},
    fixups, memory, probe_entry_points, say, smp, symbols, tasks, with_breakpoint_entry,
};
use probes::{
    Code, Host, PerCpu, Platform, Probes, ReturnMethod, StepMethod,
    platform::{Entries, EntryPoints, SlotMemory},
};

/// This kernel, as the probes see it.
pub struct Second;

per_cpu! {
    /// What the probes keep for the CPU.
    #[unsafe(no_mangle)]
    static probes_per_cpu: PerCpu = PerCpu::new();
}

/// Tells the probes' data of CPU number `cpu` which CPU it is. Before the CPU's first hit.
pub fn init_cpu(cpu: usize) {
    probes_per_cpu.of(cpu).init(cpu);
}

/// Where displaced instructions run: among the kernel's data, so within 2 GiB of its text.
const SLOT_BYTES: usize = 1 << 20;
static SLOTS: SlotMemory<SLOT_BYTES> = SlotMemory::new();

/// Makes the probes ready. There are heap and symbols, and one CPU.
pub fn init() {
    memory::make_executable(Second::slots());
    PROBES.init(StepMethod::Translate, ReturnMethod::Asm, true);
}

// SAFETY: clause by clause of `Platform`:
// 1. `probes_per_cpu` is the data of each CPU. 2. The symbols are those of the running kernel,
// which stays where it is. 3. and 4. An interrupt on each CPU is the answer, and those that are
// there come before. Handlers run with interrupts off, so no interrupt is on top of another. 5.
// `tasks` asks. 6. Each page of `SLOTS` is handed out once.
unsafe impl Platform for Second {
    type RawMutex = tasks::RawMutex;

    // The code of the tracer's programs: a quarter.
    const ACTION_PAGES: usize = SLOT_BYTES / 4 / memory::PAGE_BYTES as usize;

    // The rest of the distance is the linker's.
    const PER_CPU_GS_OFFSET: u32 = VARIABLES as u32;

    #[inline(always)]
    fn this_cpu() -> &'static PerCpu {
        probes_per_cpu.here()
    }

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        (cpu < MAX_CPUS).then(|| probes_per_cpu.of(cpu))
    }

    #[inline(always)]
    fn slots() -> Range<u64> {
        SLOTS.range()
    }

    fn stack_of(sp: u64) -> Range<u64> {
        tasks::stack_of(sp)
    }

    fn code() -> Option<&'static dyn Code> {
        symbols::code()
    }

    fn not_watchable(range: Range<u64>) -> Option<&'static str> {
        (!memory::is_watchable(&range)).then_some("it is not in the section `watchable`")
    }

    fn may_fault(range: Range<u64>) -> bool {
        fixups::is_in(range)
    }

    fn alias(addr: u64) -> *mut u8 {
        memory::alias(addr)
    }

    fn on_every_cpu(work: &(dyn Fn() + Sync)) {
        smp::on_each_cpu(work);
    }

    fn pass_time() {
        tasks::yield_now();
    }

    fn log(message: fmt::Arguments<'_>) {
        say(message);
    }
}

impl Entries for Second {
    fn entry_points() -> EntryPoints {
        crate::with_debug_entry(with_breakpoint_entry(probe_entry_points()))
    }
}

impl Host for Second {
    fn probes() -> &'static Probes<Self> {
        &PROBES
    }
}
