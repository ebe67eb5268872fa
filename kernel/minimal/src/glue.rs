//! The glue that the probes need in a kernel.

use core::{fmt, ops::Range};

use bootloader_api::BootInfo;
use hit_path::{Rules, Symbols};
use probes::{PerCpu, Platform, SelfTest, TaskLock, platform::SlotMemory};
use x86_64::{
    VirtAddr,
    registers::{
        control::{Cr0, Cr0Flags},
        model_specific::GsBase,
    },
};

use crate::{exit, own_file, say, traps};

/// This kernel, as the probes see it.
pub struct Minimal;

// The probes: the static that holds them, their assembly, and the entries of traps.
probes::kernel! {
    Minimal, PROBES, cs = traps::CODE, ss = traps::DATA, gates = [1, 13, 14]
}

/// The data that the probes keep for the one CPU. Its GS base points there.
static CPU: PerCpu = PerCpu::new();

/// Makes the probes ready. Once; there is a heap, and the gates are the kernel's.
pub fn init(info: &'static BootInfo) {
    CPU.init(0);
    GsBase::write(VirtAddr::from_ptr(&CPU));
    // SAFETY: `traps` has loaded the one table, and nothing traps meanwhile.
    unsafe { Minimal::take_gates() };
    // Text and slots are written where they execute. A kernel with several CPUs writes them through
    // a second mapping instead, and leaves the protection on.
    // SAFETY: no Rust reference allows a write to a page that is not writable.
    unsafe { Cr0::update(|cr0| cr0.remove(Cr0Flags::WRITE_PROTECT)) };
    let symbols = Symbols::of_file(own_file(info), info.kernel_image_offset, &Rules::NONE);
    probes::start::<Minimal>(symbols.expect("the linker wrote a symbol table"));
}

/// Where displaced instructions run: part of the text, so within 2 GiB of all of it.
#[unsafe(link_section = ".text.slots")]
static SLOTS: SlotMemory<{ 64 * 1024 }> = SlotMemory::new();

// SAFETY: clause by clause of `Platform`:
// 1. `CPU` is the data of the one CPU, its GS base leads there, and nothing else writes it. 2. The
// symbols are those of the running kernel, which stays where it is. 3. and 4. The waits are those
// that the trait has for one CPU without interrupts: the caller itself is in no handler and no hit.
// 5. There is one task. 6. Nothing else has `SLOTS`, which is executed where it is written.
unsafe impl Platform for Minimal {
    type RawMutex = TaskLock<Self>;

    // There is no exception table.
    const MENDS_FAULTS: bool = false;

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        (cpu == 0).then_some(&CPU)
    }

    #[inline(always)]
    fn slots() -> Range<u64> {
        SLOTS.range()
    }

    fn stack_of(sp: u64) -> Range<u64> {
        crate::stack_of(sp)
    }

    fn can_sleep() -> bool {
        !CPU.is_busy()
    }

    fn log(message: fmt::Arguments<'_>) {
        say(message);
    }

    fn fatal(message: fmt::Arguments<'_>) -> ! {
        say(message);
        exit(false)
    }
}

// There is no second task, no NMI and no user code, so the checks that need one are skipped.
impl SelfTest for Minimal {}
