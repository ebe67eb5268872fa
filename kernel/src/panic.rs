//! The end of the kernel: says why, then tells the host that the run failed.

use crate::{backtrace, log::Level};
use core::{
    panic::PanicInfo,
    sync::atomic::{AtomicBool, Ordering},
};
use x86_64::instructions::{hlt, interrupts, port::Port};

/// The verdict that the host reads from QEMU's exit status.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCode {
    /// All went well.
    Success = 0x10,
    /// Something failed.
    Failure = 0x11,
}

/// Powers the machine off with a verdict for the host.
pub fn exit(code: ExitCode) -> ! {
    crate::log::flush();
    // SAFETY: isa-debug-exit sits at this port in QEMU; elsewhere nothing answers there.
    unsafe { Port::<u32>::new(0xf4).write(code as u32) };
    loop {
        interrupts::disable();
        hlt();
    }
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    crate::arch::smp::stop_others();
    crate::log::seize();
    static PANICKING: AtomicBool = AtomicBool::new(false);
    if PANICKING.swap(true, Ordering::Relaxed) {
        // The report itself failed: say so, and no more.
        crate::pr_emerg!("Kernel panic while panicking: {}", info.message());
        exit(ExitCode::Failure)
    }
    crate::pr_emerg!("Kernel panic: {info}");
    backtrace::print_current(Level::Emerg);
    exit(ExitCode::Failure)
}
