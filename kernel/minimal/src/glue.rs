//! The glue that the probes need in a kernel.

use core::{fmt, ops::Range, slice};

use bootloader_api::BootInfo;
use hit_path::{Rules, Symbols};
use probes::{
    Host, PerCpu, Platform, ProbeError, Probes, SelfTest,
    platform::{EntryPoints, SlotMemory, SlotPage, Symbol},
};
use spin::{Once, mutex::SpinMutex};
use x86_64::{
    VirtAddr,
    registers::{
        control::{Cr0, Cr0Flags},
        model_specific::GsBase,
    },
};

use crate::{PROBES, exit, probe_entry_points, say, with_breakpoint_entry};

/// This kernel, as the probes see it.
pub struct Minimal;

/// The data that the probes keep for the one CPU. Its GS base points there.
static CPU: PerCpu = PerCpu::new();

/// The facts from the boot loader.
struct Boot {
    symbols: Symbols<'static>,
    stack: Range<u64>,
}

static BOOT: Once<Boot> = Once::new();

/// Makes the glue ready. Once, before a probe is registered; there is a heap.
pub fn init(info: &'static BootInfo) {
    CPU.init(0);
    GsBase::write(VirtAddr::from_ptr(&CPU));
    // Text and slots are written where they execute. A kernel with several CPUs writes them through
    // a second mapping instead, and leaves the protection on.
    // SAFETY: no Rust reference allows a write to a page that is not writable.
    unsafe { Cr0::update(|cr0| cr0.remove(Cr0Flags::WRITE_PROTECT)) };
    let memory = info.physical_memory_offset.into_option();
    let file = (memory.expect("asked for in CONFIG") + info.kernel_addr) as *const u8;
    // SAFETY: the boot loader keeps the kernel's ELF file there, and nothing writes it.
    let file = unsafe { slice::from_raw_parts(file, info.kernel_len as usize) };
    BOOT.call_once(|| Boot {
        symbols: Symbols::of_file(file, info.kernel_image_offset, &Rules::NONE)
            .expect("the linker wrote a symbol table"),
        stack: info.kernel_stack_bottom..info.kernel_stack_bottom + info.kernel_stack_len,
    });
}

fn boot() -> &'static Boot {
    BOOT.get().expect("`init` comes first")
}

/// Where displaced instructions run: part of the text, so within 2 GiB of all of it.
const SLOT_BYTES: usize = 64 * 1024;
#[unsafe(link_section = ".text.slots")]
static SLOTS: SlotMemory<SLOT_BYTES> = SlotMemory::new();

// SAFETY: clause by clause of `Platform`:
// 1. `CPU` is the data of the one CPU, and nothing else writes it. 2. The symbols are those of the
// running kernel, which stays where it is. 3. and 4. The waits are those that the trait has for one
// CPU without interrupts: the caller itself is in no handler and no hit. 5. There is one task.
// 6. Each page of `SLOTS` is handed out once, and executed where it is written.
unsafe impl Platform for Minimal {
    type RawMutex = SpinMutex<()>;

    // The GS base points to the data itself, so the distance is the 0 that it is unless a kernel
    // says otherwise.
    #[inline(always)]
    fn this_cpu() -> &'static PerCpu {
        &CPU
    }

    fn per_cpu(cpu: usize) -> Option<&'static PerCpu> {
        (cpu == 0).then_some(&CPU)
    }

    #[inline(always)]
    fn slots() -> Range<u64> {
        SLOTS.range()
    }

    fn slot_page(index: usize) -> Option<SlotPage> {
        SLOTS.page(index, |exec| exec as *mut u8)
    }

    fn stack_of(sp: u64) -> Range<u64> {
        let stack = boot().stack.clone();
        if stack.contains(&sp) { stack } else { 0..0 }
    }

    fn can_sleep() -> bool {
        !CPU.is_busy()
    }

    fn entry_points() -> EntryPoints {
        with_breakpoint_entry(probe_entry_points())
    }

    fn lookup_symbol(name: &str) -> Result<u64, ProbeError> {
        boot().symbols.lookup(name)
    }

    fn symbol_at(addr: u64) -> Option<Symbol> {
        boot().symbols.symbol_at(addr)
    }

    fn blacklisted(addr: u64) -> Option<&'static str> {
        boot().symbols.refused(addr)
    }

    fn may_fault(_: Range<u64>) -> bool {
        false
    }

    unsafe fn write_text(addr: u64, byte: u8) {
        // SAFETY: live text by the contract, and writable since `init`.
        unsafe { (addr as *mut u8).write_volatile(byte) };
    }

    fn log(message: fmt::Arguments<'_>) {
        say(message);
    }

    fn fatal(message: fmt::Arguments<'_>) -> ! {
        say(message);
        exit(false)
    }
}

impl Host for Minimal {
    fn probes() -> &'static Probes<Self> {
        &PROBES
    }
}

// There is no second task, no NMI and no user code, so the checks that need one are skipped.
impl SelfTest for Minimal {}
