//! The records of the log, which `printk` writes and the console prints.

use core::fmt;
use log_ring::Ring;

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
    /// Something happened.
    Info = 6,
    /// For a person who looks for a fault. Not on the console by default.
    Debug = 7,
}

/// Slots of the ring: 512 KiB in `.bss`.
pub(crate) const SLOTS: usize = 2048;

pub(crate) static RING: Ring<SLOTS> = Ring::new();

/// The beginning of a line: the time in nanoseconds since boot, printed in seconds.
pub(crate) struct Prefix(pub u64);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1000;
        write!(f, "[{:5}.{:06}] ", micros / 1_000_000, micros % 1_000_000)
    }
}
