//! The kernel log: `pr_info!` and its kin.

use crate::serial::SerialPort;
use core::{
    cell::UnsafeCell,
    fmt::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

/// How urgent a message is. Numbers are those of Linux.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The system is unusable.
    Emerg = 0,
    /// Something failed.
    Err = 3,
    /// Something is odd, and goes on.
    Warn = 4,
    /// What happened.
    Info = 6,
    /// For the one who looks for a fault.
    Debug = 7,
}

/// Logs a formatted message at the level `emerg`: the system is unusable.
#[macro_export]
macro_rules! pr_emerg { ($($arg:tt)+) => { $crate::__printk!(Emerg, $($arg)+) }; }
/// Logs a formatted message at the level `err`: something failed.
#[macro_export]
macro_rules! pr_err { ($($arg:tt)+) => { $crate::__printk!(Err, $($arg)+) }; }
/// Logs a formatted message at the level `warn`: something is odd, and goes on.
#[macro_export]
macro_rules! pr_warn { ($($arg:tt)+) => { $crate::__printk!(Warn, $($arg)+) }; }
/// Logs a formatted message at the level `info`: what happened.
#[macro_export]
macro_rules! pr_info { ($($arg:tt)+) => { $crate::__printk!(Info, $($arg)+) }; }
/// Logs a formatted message at the level `debug`: for the one who looks for a fault.
#[macro_export]
macro_rules! pr_debug { ($($arg:tt)+) => { $crate::__printk!(Debug, $($arg)+) }; }

#[doc(hidden)]
#[macro_export]
macro_rules! __printk {
    ($level:ident, $($arg:tt)+) => {
        { $crate::log::printk($crate::log::Level::$level, &::core::format_args!($($arg)+)); }
    };
}

struct Console {
    busy: AtomicBool,
    port: UnsafeCell<SerialPort>,
}

// SAFETY: `port` is touched only by whoever set `busy`.
unsafe impl Sync for Console {}

static CONSOLE: Console = Console {
    busy: AtomicBool::new(false),
    // SAFETY: the only `SerialPort` of the kernel.
    port: UnsafeCell::new(unsafe { SerialPort::com1() }),
};

struct PortWriter<'a>(&'a mut SerialPort);

impl Write for PortWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn with_port(f: impl FnOnce(&mut SerialPort)) {
    x86_64::instructions::interrupts::without_interrupts(|| {
        while CONSOLE.busy.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: `busy` was clear, so the port is ours until we clear it.
        f(unsafe { &mut *CONSOLE.port.get() });
        CONSOLE.busy.store(false, Ordering::Release);
    });
}

/// Sets the console up. Call it first of all, once.
pub fn init() {
    with_port(SerialPort::init);
}

/// Logs `message`. Any context. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn printk(level: Level, message: &fmt::Arguments<'_>) -> usize {
    if level < Level::Debug {
        with_port(|port| {
            let _ = writeln!(PortWriter(port), "[    0.000000] {message}");
        });
    }
    0
}
