//! The kernel log: `pr_info!` and its kin, `printk`, and the console.
//!
//! A message goes into a ring of records ([`log_ring`]) without a lock; then its writer tries to become the owner of the
//! console and prints what is there. Whoever finds the console owned leaves: the owner looks again after it has let go,
//! so each record is printed by its writer or by somebody who comes later, and nobody waits.
//!
//! ```text
//!   pr_info! ─► printk ─► RING ─► drain (owner of CONSOLE) ─► serial port
//!                           └───► history (dmesg)
//! ```
//!
//! # Contexts
//! `printk` may be called from anywhere: task, interrupt, NMI, probe handler, the formatting of another message, and from
//! within the console itself. Interrupts are off only while a message is put into its slots; tasks are not switched
//! while it is printed.
//!
//! # Limits
//! - A record printed because a record is printed (a probe on the serial driver whose handler logs) is one level deeper
//!   than that one; [`MAX_DEPTH`] levels down it is dropped and counted, so the chain ends.
//! - What does not fit in the ring is dropped; the console reports how many messages, in their place.
//!
//! # Ordering
//! Publishing a record, then failing to get the console, must not cross the owner's letting go, then finding nothing to
//! print: both sides have a `SeqCst` fence between their store and their load, so one of them sees the other.

use crate::{
    arch::percpu,
    serial::SerialPort,
    time::{NSEC_PER_SEC, ktime_get},
};
use core::{
    cell::UnsafeCell,
    fmt::{self, Write},
    hint,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence},
};
use log_ring::{Dropped, Record, Ring, Stamp};
use params::Value;
use x86_64::instructions::interrupts::without_interrupts;

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
    /// For the one who looks for a fault. Not on the console by default.
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
/// Logs a formatted message at the level `debug`: for the one who looks for a fault. Not on the console by default.
#[macro_export]
macro_rules! pr_debug { ($($arg:tt)+) => { $crate::__printk!(Debug, $($arg)+) }; }

#[doc(hidden)]
#[macro_export]
macro_rules! __printk {
    ($level:ident, $($arg:tt)+) => {
        { $crate::log::printk($crate::log::Level::$level, &::core::format_args!($($arg)+)); }
    };
}

/// Slots of the ring: 512 KiB in `.bss`.
const SLOTS: usize = 2048;

/// How deep records may be that are written while another one is printed on the same CPU.
const MAX_DEPTH: u8 = 3;

/// The depth of the console's own report on dropped messages. What is written while that is printed is dropped without
/// a count, or the report would never end.
const REPORT_DEPTH: u8 = 15;

/// Owner of a console that nobody owns. Other values are the number of a CPU, or [`SEIZED`] plus that.
const NOBODY: u32 = u32::MAX;

/// Set in the owner for good when a dying CPU has taken the console by force.
const SEIZED: u32 = 1 << 31;

static RING: Ring<SLOTS> = Ring::new();

static CONSOLE: Console = Console {
    owner: AtomicU32::new(NOBODY),
    depth: AtomicU8::new(0),
    level: AtomicU8::new(Level::Debug as u8),
    line_open: AtomicBool::new(false),
    // SAFETY: the kernel has no other `SerialPort`.
    port: UnsafeCell::new(unsafe { SerialPort::com1() }),
};

struct Console {
    owner: AtomicU32,
    /// Depth of the record that the owner is printing; 0 while it prints none.
    depth: AtomicU8,
    /// Records of this level and of less urgent ones are kept in the ring only.
    level: AtomicU8,
    /// What [`write_console`] wrote last has not ended its line. Touched by the owner only.
    line_open: AtomicBool,
    port: UnsafeCell<SerialPort>,
}

// SAFETY: `port` is touched only by the owner, through `Owned`; `owner` goes from `NOBODY` to a CPU by
// compare-and-swap, so there is one at a time. The one exception, `seize`, says why it may.
unsafe impl Sync for Console {}

/// The right to the console's port.
struct Owned(());

impl Console {
    /// Keeps the caller on its CPU until `release`: an owner that waits for its turn to run would keep all from printing.
    fn try_own(&self) -> Option<Owned> {
        percpu::preempt_disable();
        // Acquire pairs with the Release in `release`: we see the port as the last owner left it.
        let owned =
            self.owner
                .compare_exchange(NOBODY, this_cpu(), Ordering::Acquire, Ordering::Relaxed);
        if owned.is_err() {
            percpu::preempt_enable();
            return None;
        }
        Some(Owned(()))
    }

    fn release(&self, _owned: Owned) {
        self.depth.store(0, Ordering::Relaxed);
        self.owner.store(NOBODY, Ordering::Release);
        percpu::preempt_enable();
    }

    /// Whether the current context interrupted the owner, on its own CPU.
    fn printing_here(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_cpu()
    }
}

impl Owned {
    fn port(&mut self) -> &mut SerialPort {
        // SAFETY: an `Owned` exists once, so this borrow of it is the only borrow of the port.
        unsafe { &mut *CONSOLE.port.get() }
    }

    fn print(&mut self, record: &Record) {
        if record.stamp.level >= CONSOLE.level.load(Ordering::Relaxed) {
            return;
        }
        CONSOLE.depth.store(record.stamp.depth, Ordering::Relaxed);
        if !record.continues {
            self.prefix(record.stamp.time_ns);
        }
        self.port().write(record.text());
        if record.cut {
            self.port().write(b" <cut>");
        }
        if !record.goes_on {
            self.port().write(b"\n");
        }
    }

    fn report_dropped(&mut self) {
        let dropped = RING.take_dropped();
        if dropped > 0 {
            CONSOLE.depth.store(REPORT_DEPTH, Ordering::Relaxed);
            self.prefix(ktime_get());
            let _ = writeln!(self.port(), "** {dropped} messages dropped **");
        }
    }

    fn prefix(&mut self, time_ns: u64) {
        if CONSOLE.line_open.swap(false, Ordering::Relaxed) {
            self.port().write(b"\n");
        }
        let _ = write!(self.port(), "{}", Prefix(time_ns));
    }
}

/// What a line begins with: the time in nanoseconds since boot, printed in seconds.
struct Prefix(u64);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1000;
        write!(f, "[{:5}.{:06}] ", micros / 1_000_000, micros % 1_000_000)
    }
}

/// The CPU that we run on.
fn this_cpu() -> u32 {
    percpu::cpu_id() as u32
}

/// Sets the console up. Call it first of all, once.
pub fn init() {
    if let Some(mut console) = CONSOLE.try_own() {
        console.port().init();
        CONSOLE.release(console);
    }
    drain();
}

/// Takes `loglevel=N` from the command line: records of level N and of less urgent ones stay off the console. 7, the
/// default, keeps `pr_debug!` off.
pub fn read_cmdline() {
    let Some(value) = crate::cmdline::get("loglevel") else {
        return;
    };
    match u32::parse(Some(value)) {
        Ok(level) => CONSOLE.level.store(level.min(8) as u8, Ordering::Relaxed),
        Err(error) => crate::pr_warn!("loglevel={value} is ignored: {error}"),
    }
}

/// Logs `message`, each of its lines stamped with the time, and prints it unless another context is printing, which then
/// prints this one too. Returns the length of the message in bytes, or 0 if it was dropped.
///
/// Any context. Use the macros: [`pr_info!`](crate::pr_info) and its kin.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn printk(level: Level, message: &fmt::Arguments<'_>) -> usize {
    let owner = CONSOLE.owner.load(Ordering::Relaxed);
    if owner != NOBODY && owner & SEIZED != 0 {
        return if owner == SEIZED | this_cpu() {
            print_now(message)
        } else {
            0
        };
    }
    // Interrupts off: we stay on this CPU; and while our slots are unpublished, nobody can print what is behind them.
    let written = without_interrupts(|| {
        let depth = if CONSOLE.printing_here() {
            CONSOLE.depth.load(Ordering::Relaxed) + 1
        } else {
            0
        };
        if depth > MAX_DEPTH {
            if depth <= REPORT_DEPTH {
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
    drain();
    written.unwrap_or(0)
}

/// Prints all that the ring holds, unless another context is at it: that one looks again after it has let go.
fn drain() {
    loop {
        // Between our publishing and our look at the owner; see the ordering rule above.
        fence(Ordering::SeqCst);
        let Some(mut console) = CONSOLE.try_own() else {
            return;
        };
        while let Some(record) = RING.front() {
            console.print(&record);
            RING.advance();
        }
        console.report_dropped();
        CONSOLE.release(console);
        // Between our letting go and our look at the ring. A record that is being written is printed by its writer.
        fence(Ordering::SeqCst);
        if !RING.has_front() {
            return;
        }
    }
}

/// The records that the ring still holds, oldest first, printed or not. Task context.
pub fn history() -> impl DoubleEndedIterator<Item = Record> {
    RING.history().filter_map(|seq| RING.read(seq).ok())
}

/// Prints what [`history`] has, line by line as the console does.
///
/// # Errors
/// Those of `out`.
pub fn show_history(out: &mut dyn Write) -> fmt::Result {
    for record in history() {
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

/// Writes `bytes` to the console as they are, past the ring, between two lines of the log. A line that they leave open is
/// ended before the next line of the log. Task context: waits while somebody else prints.
pub fn write_console(bytes: &[u8]) {
    let Some(last) = bytes.last() else {
        return;
    };
    let mut console = loop {
        match CONSOLE.try_own() {
            Some(console) => break console,
            // The owner is on another CPU, at work: others may use this one meanwhile.
            None => crate::task::schedule(),
        }
    };
    console.port().write(bytes);
    CONSOLE.line_open.store(*last != b'\n', Ordering::Relaxed);
    CONSOLE.release(console);
    // What was logged meanwhile.
    drain();
}

/// Waits until all that was logged so far is printed and on the line, but not for long: before the machine goes off.
pub fn flush() {
    let end = RING.history().end;
    let deadline = ktime_get() + 2 * NSEC_PER_SEC;
    while ktime_get() < deadline && !CONSOLE.printing_here() {
        drain();
        if RING.tail() >= end
            && let Some(mut console) = CONSOLE.try_own()
        {
            console.port().flush();
            CONSOLE.release(console);
            return;
        }
        hint::spin_loop();
    }
}

/// Takes the console by force for a CPU that is about to die. From now on what this CPU logs is printed at once, past
/// ring and locks, and what others log is lost. Prints what the ring held, without records that never were published.
pub fn seize() {
    let before = CONSOLE.owner.swap(SEIZED | this_cpu(), Ordering::Acquire);
    if before != NOBODY && before & SEIZED != 0 {
        return;
    }
    let mut console = Owned(());
    if before != NOBODY {
        // The owner was stopped somewhere in a line.
        console.port().write(b"\n");
    }
    let (tail, end) = (RING.tail(), RING.history().end);
    for record in (tail..end).filter_map(|seq| RING.read(seq).ok()) {
        console.print(&record);
    }
    console.report_dropped();
}

/// Prints a message past the ring. For the CPU that has seized the console.
fn print_now(message: &fmt::Arguments<'_>) -> usize {
    let mut writer = Immediate {
        // Not by `try_own`: the last owner never comes back, so nobody else borrows the port.
        console: Owned(()),
        line_open: false,
        total: 0,
    };
    let _ = writer.write_fmt(*message);
    if writer.line_open {
        writer.console.port().write(b"\n");
    }
    writer.console.port().flush();
    writer.total
}

/// Prefixes each line and prints it.
struct Immediate {
    console: Owned,
    line_open: bool,
    total: usize,
}

impl Write for Immediate {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.total += text.len();
        for piece in text.split_inclusive('\n') {
            if !self.line_open {
                self.console.prefix(ktime_get());
            }
            self.console.port().write(piece.as_bytes());
            self.line_open = !piece.ends_with('\n');
        }
        Ok(())
    }
}
