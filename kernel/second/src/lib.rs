//! A small kernel that shares nothing with ours but the probes.
//!
//! ```text
//!   lib       start-up
//!   memory    heap, frames, pages                    smp       local APIC, other CPUs
//!   cpu       per-CPU data, descriptors              tasks     tasks, preempted by a tick
//!   frame     what a trap leaves on the stack        traps     gates, and who is asked
//!   user      ring 3, with breakpoints of its own    debugger  another owner of breakpoints
//!   fixups    loads that may fault                   symbols   names, from the booted file
//!   fw_cfg    what the emulator tells                probes    the glue: what the probes ask
//!   tracing   the agent of the tracer, and its line  self_test what the probes' own checks ask for
//!   death     the end by a panic                     fuse      where it dies, for a test
//! ```
//!
//! What it runs is not here: a kernel is this library and a first task. `main.rs` has that of the
//! kernel itself, and `tests/second_guest` links the library with the probes' suite.
//!
//! It differs from ours wherever the probes could have assumed something:
//!
//! | | ours | here |
//! |---|---|---|
//! | addresses | fixed, in the top 2 GiB | position-independent, anywhere above |
//! | per-CPU data | one structure, offsets of Rust | a section, offsets of the linker |
//! | frames of traps | the probes' own | another order, converted |
//! | gate of #BP | the probes and the kernel | the probes, a debugger, user programs |
//! | NMI | a stack of its own | the interrupted stack |
//! | symbols | a table of its own | those of the booted file |
//! | slots | a region mapped on demand | data of the kernel, made executable |
//! | heap | blocks | a list |
//! | tasks | in queues, with waiting | a table, each waits by letting others run |
//! | ring 3 | an address space each | one for all |
#![no_std]

extern crate alloc;

pub mod cpu;
mod death;
pub mod debugger;
pub mod fixups;
pub mod frame;
pub mod fuse;
pub mod fw_cfg;
pub mod memory;
pub mod probes;
pub mod self_test;
pub mod smp;
pub mod symbols;
pub mod tasks;
pub mod tracing;
pub mod traps;
pub mod user;

use core::{
    fmt::{self, Write},
    panic::PanicInfo,
};

use ::probes::Probes;
use bootloader_api::{BootInfo, BootloaderConfig, config::Mapping};
use spin::{Once, mutex::SpinMutex};
use uart_16550::{Config, Uart16550Tty, backend::PioBackend};
use x86_64::instructions::{interrupts, port::Port};

use crate::probes::Second;

/// The probes of this kernel.
pub static PROBES: Probes<Second> = Probes::new();

unsafe extern "C" {
    /// How far that is from the GS base: `build.rs` has the linker define it.
    static probes_gs_offset: u8;
}

// The assembly of the probes: stubs, trampoline, and `kprobe_breakpoint`, where the gate of #BP
// leads. Without SMAP nothing has to be cleared there.
::probes::entry_points!(
    Second,
    cs = cpu::KERNEL_CODE,
    ss = cpu::KERNEL_DATA,
    per_cpu = sym probes_gs_offset
);
::probes::breakpoint_entry!(
    Second,
    PROBES,
    owner = traps::BREAKPOINT_OWNER,
    clear_ac = "",
    per_cpu = sym probes_gs_offset
);
// And `kprobe_debug`, where the gate of #DB leads, so that hits of watchpoints are cheap.
::probes::debug_entry!(
    Second,
    PROBES,
    owner = traps::DEBUG_OWNER,
    clear_ac = "",
    per_cpu = sym probes_gs_offset
);

/// What the boot loader is asked for.
pub static CONFIG: BootloaderConfig = {
    let mut config = BootloaderConfig::new_default();
    config.mappings.physical_memory = Some(Mapping::Dynamic);
    // Somewhere in the upper half: the tracer takes the lower one for that of user programs.
    config.mappings.dynamic_range_start = Some(0xffff_8000_0000_0000);
    config.mappings.dynamic_range_end = Some(0xffff_ff00_0000_0000);
    config
};

/// Starts the kernel, whose first task is `main`.
pub fn start(info: &'static mut BootInfo, main: fn()) -> ! {
    // The table first: from here on a breakpoint may be looked up.
    PROBES.init_table();
    memory::init(info);
    cpu::make_copies();
    tracing::init();
    init_cpu(0);
    symbols::init(info);
    probes::init();
    user::init();
    // It waits for nothing, so it is over when the machine is.
    let _main = tasks::spawn_call("main", main);
    tasks::idle()
}

/// Makes the calling CPU number `number`. Interrupts off.
fn init_cpu(number: usize) {
    traps::init_cpu(number);
    probes::init_cpu(number);
    smp::init_cpu();
    tasks::init_cpu(number);
}

/// The first Rust code of another CPU, on the stack of its own task, interrupts off.
pub extern "C" fn start_other(number: usize) -> ! {
    init_cpu(number);
    smp::is_up();
    tasks::idle()
}

/// Hears what the kernel says, if there is somebody. Any context.
pub static LISTENER: Once<fn(fmt::Arguments<'_>)> = Once::new();

/// The serial port, which the emulator writes to its standard output.
pub fn say(message: fmt::Arguments<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(message);
    }
    static PORT: SpinMutex<Option<Uart16550Tty<PioBackend>>> = SpinMutex::new(None);
    interrupts::without_interrupts(|| {
        let mut port = PORT.lock();
        if port.is_none() {
            // SAFETY: COM1 is at this address on every PC, and only this function uses it.
            *port = unsafe { Uart16550Tty::new_port(0x3f8, Config::DEFAULT) }.ok();
        }
        if let Some(port) = &mut *port {
            // There is no way to tell that the port takes no text.
            let _ = writeln!(port, "{message}");
        }
    });
}

/// Says the last words there, whoever has the port.
pub fn shout(message: fmt::Arguments<'_>) {
    // SAFETY: as in `say`. Nothing else runs any more, by the only caller.
    if let Ok(mut port) = unsafe { Uart16550Tty::new_port(0x3f8, Config::DEFAULT) } {
        // As in `say`.
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
    death::die(info)
}
