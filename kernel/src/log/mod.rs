//! The kernel log: `pr_info!` and its kin, `printk`, and the history of messages.
//!
//! A message goes into a ring of records ([`log_ring`]) without a lock. [`crate::console`] prints
//! the records in their order. If the caller could sleep, its message is printed when `printk`
//! returns.
//!
//! ```text
//!   pr_info! ─► printk ─► RING ─► console ─► serial port
//!                           └───► history (dmesg)
//! ```
//!
//! # Contexts
//! `printk` may be called from anywhere: task, interrupt, NMI, probe handler, the formatting of
//! another message, and from within the console itself. Interrupts are off only while a message is
//! put into its slots.
//!
//! # Limits
//! - A message that is logged because another one is printed is printed, too. A third one, logged
//!   because of that, is not: a message must not feed itself. See [`crate::console`].
//! - A message that does not fit in the ring is dropped. The console reports in its place how many
//!   were.

pub(crate) mod ring;

pub use ring::Level;

use crate::{
    console::{self, MAX_DEPTH, SILENT, Seized},
    time::ktime_get,
};
use core::fmt::{self, Write};
use log_ring::{Dropped, Record, Stamp};
use params::Value;
use ring::{Prefix, RING};
use x86_64::instructions::interrupts::without_interrupts;

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
/// Logs a formatted message at the level `debug`, for a person who looks for a fault. Not on the
/// console by default.
#[macro_export]
macro_rules! pr_debug { ($($arg:tt)+) => { $crate::__printk!(Debug, $($arg)+) }; }

#[doc(hidden)]
#[macro_export]
macro_rules! __printk {
    ($level:ident, $($arg:tt)+) => {
        { $crate::log::printk($crate::log::Level::$level, &::core::format_args!($($arg)+)); }
    };
}

/// Takes the value of `loglevel=N` on the command line: records of level N and less urgent ones
/// stay off the console. The default is 7, which keeps `pr_debug!` off.
pub fn set_console_level(given: Option<&str>) {
    let Some(value) = given else {
        return;
    };
    match u32::parse(Some(value)) {
        Ok(level) => console::set_level(level.min(8) as u8),
        Err(error) => crate::pr_warn!("loglevel={value} is ignored: {error}"),
    }
}

/// Logs `message`, each of its lines stamped with the time, and prints it if printing is allowed
/// here. Returns the length of the message in bytes, or 0 if it was dropped.
///
/// Any context. Use the macros: [`pr_info!`](crate::pr_info) and its kin.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn printk(level: Level, message: &fmt::Arguments<'_>) -> usize {
    match console::seized() {
        Seized::No => {}
        Seized::Here => return console::print_now(message),
        Seized::Elsewhere => return 0,
    }
    // Interrupts off: while these slots are unpublished, the records after them cannot be printed.
    let written = without_interrupts(|| {
        let depth = console::depth();
        if depth > MAX_DEPTH {
            if depth < SILENT {
                RING.count_dropped();
            }
            return Err(Dropped);
        }
        let stamp = Stamp {
            time_ns: ktime_get(),
            level: level as u8,
            depth,
        };
        RING.write(stamp, *message)
    });
    console::print_logged();
    written.unwrap_or(0)
}

/// The records that the ring still holds, oldest first, printed or not. Task context.
pub fn history() -> impl DoubleEndedIterator<Item = Record> {
    RING.history().filter_map(|seq| RING.read(seq).ok())
}

/// Prints what [`history`] has, line by line as the console does.
///
/// # Errors
/// The errors of `out`.
pub fn show_history(out: &mut dyn Write) -> fmt::Result {
    for record in history() {
        if record.dropped_before > 0 {
            writeln!(out, "** {} messages dropped **", record.dropped_before)?;
        }
        if !record.continues {
            write!(out, "{}", Prefix(record.stamp.time_ns))?;
        }
        for chunk in record.text().utf8_chunks() {
            out.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                out.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        if record.cut {
            out.write_str(" <cut>")?;
        }
        if !record.goes_on {
            out.write_char('\n')?;
        }
    }
    Ok(())
}
