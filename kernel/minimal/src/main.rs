//! The least kernel that has probes: one CPU, one task, no interrupts.
//!
//! ```text
//!   main     start-up, and two probes on a function
//!   glue     what the probes ask of a kernel: the trait `Platform`
//!   traps    what a kernel tells the probes: breakpoints, single steps, faults
//! ```
//!
//! With the feature `tracer` it serves tracers at its end. The glue is `traced` then, and there is
//! a `shop` to trace.
//!
//! The page "Probes in your kernel" of the crate `probes` explains it piece by piece.
#![no_std]
#![no_main]

extern crate alloc;

#[cfg_attr(feature = "tracer", path = "traced.rs")]
mod glue;
#[cfg(feature = "tracer")]
mod shop;
mod traps;

use core::{
    alloc::{GlobalAlloc, Layout},
    fmt::{self, Write},
    ops::Range,
    panic::PanicInfo,
    ptr::{NonNull, null_mut},
    slice,
};

use bootloader_api::{BootInfo, BootloaderConfig, config::Mapping};
use linked_list_allocator::Heap;
use probes::{Kprobe, Kretprobe, KretprobeInstance, PreVerdict, ProbeError, PtRegs, self_test};
use spin::{Once, mutex::SpinMutex};
use uart_16550::{Config, Uart16550Tty, backend::PioBackend};
use x86_64::instructions::port::Port;

use crate::glue::{Minimal, PROBES};

static CONFIG: BootloaderConfig = {
    let mut config = BootloaderConfig::new_default();
    config.mappings.physical_memory = Some(Mapping::Dynamic);
    config
};

bootloader_api::entry_point!(start, config = &CONFIG);

fn start(info: &'static mut BootInfo) -> ! {
    STACK.call_once(|| info.kernel_stack_bottom..info.kernel_stack_bottom + info.kernel_stack_len);
    traps::init();
    heap_init();
    glue::init(info);
    // Return probes keep their calls by task. A scheduler says this at each switch.
    PROBES.task_switched(THE_TASK);
    // Once, to see that all of the above is as the probes need it.
    let report = self_test::<Minimal>();
    say(format_args!("{report}"));
    let result = demonstrate();
    if let Err(error) = &result {
        say(format_args!("refused: {error}"));
    }
    #[cfg(feature = "tracer")]
    if report.is_ok() && result.is_ok() {
        glue::serve();
    }
    exit(report.is_ok() && result.is_ok())
}

/// The stack, from the boot loader.
static STACK: Once<Range<u64>> = Once::new();

/// The bounds of the stack that contains `sp`; an empty range if it is none.
fn stack_of(sp: u64) -> Range<u64> {
    let stack = STACK.get().filter(|stack| stack.contains(&sp));
    stack.cloned().unwrap_or_default()
}

/// The kernel's own ELF file.
fn own_file(info: &BootInfo) -> &'static [u8] {
    let memory = info.physical_memory_offset.into_option();
    let file = (memory.expect("asked for in CONFIG") + info.kernel_addr) as *const u8;
    // SAFETY: the boot loader keeps it there, and nothing writes it.
    unsafe { slice::from_raw_parts(file, info.kernel_len as usize) }
}

/// The number of the one task: any above 1.
const THE_TASK: u64 = 2;

/// A function to probe.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn add(a: u64, b: u64) -> u64 {
    // Read as if they could change, so that the compiler computes the sum here.
    let operands = [a, b];
    // SAFETY: a local array.
    unsafe { (&raw const operands[0]).read_volatile() + (&raw const operands[1]).read_volatile() }
}

static ENTRY: Kprobe = Kprobe::new().symbol("add").pre(on_entry);
static RETURN: Kretprobe<()> = Kretprobe::new().symbol("add").handler(on_return);

fn on_entry(probe: &Kprobe, regs: &mut PtRegs) -> PreVerdict {
    say(format_args!(
        "kprobe at {:#x}: add({}, {})",
        probe.addr(),
        regs.di,
        regs.si
    ));
    PreVerdict::Execute
}

fn on_return(_: &mut KretprobeInstance<()>, regs: &mut PtRegs) {
    say(format_args!("kretprobe: add returned {}", regs.ax));
}

fn demonstrate() -> Result<(), ProbeError> {
    say(format_args!("plain call: {}", add(1, 2)));
    PROBES.register(&ENTRY)?;
    PROBES.register(&RETURN)?;
    say(format_args!("probed call: {}", add(3, 4)));
    PROBES.unregister(&RETURN)?;
    PROBES.unregister(&ENTRY)?;
    say(format_args!("plain call: {}", add(5, 6)));
    say(format_args!(
        "hits: {} at the entry, {} at the return",
        ENTRY.hits(),
        RETURN.hits()
    ));
    Ok(())
}

/// The serial port, which the emulator writes to its standard output.
pub fn say(message: fmt::Arguments<'_>) {
    static PORT: SpinMutex<Option<Uart16550Tty<PioBackend>>> = SpinMutex::new(None);
    let mut port = PORT.lock();
    if port.is_none() {
        // SAFETY: COM1 is at this address on every PC, and only this function uses it.
        *port = unsafe { Uart16550Tty::new_port(0x3f8, Config::DEFAULT) }.ok();
    }
    if let Some(port) = &mut *port {
        // There is no way to tell that the port takes no text.
        let _ = writeln!(port, "{message}");
    }
}

/// Ends the emulator by the device isa-debug-exit.
pub fn exit(success: bool) -> ! {
    let value = if success { 0x10_u32 } else { 0x11 };
    // SAFETY: nothing but isa-debug-exit answers at this port.
    unsafe { Port::new(0xf4).write(value) };
    loop {
        core::hint::spin_loop();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say(format_args!("{info}"));
    exit(false)
}

/// The heap, which registering takes memory from.
struct LockedHeap(SpinMutex<Heap>);

#[global_allocator]
static HEAP: LockedHeap = LockedHeap(SpinMutex::new(Heap::empty()));

// SAFETY: the heap hands out each piece of memory once, under its lock.
unsafe impl GlobalAlloc for LockedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = self.0.lock().allocate_first_fit(layout);
        memory.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if let Some(memory) = NonNull::new(memory) {
            // SAFETY: by the contract of this function, from `alloc` with the same layout.
            unsafe { self.0.lock().deallocate(memory, layout) };
        }
    }
}

fn heap_init() {
    const BYTES: usize = 1 << 20;
    static mut MEMORY: [u8; BYTES] = [0; BYTES];
    // SAFETY: called once, and nothing else names the memory.
    unsafe { HEAP.0.lock().init((&raw mut MEMORY).cast(), BYTES) };
}
