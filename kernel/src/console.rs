//! The console: the way of the log, and of what the prompt says, to the serial port.
//!
//! What is to be printed waits in two queues: the records of [`crate::log`], and the terminal's text between them. Printing
//! goes in steps: own the console, copy the next line if the last one is sent, give the port what it takes, let go. A step never
//! waits, and whoever comes next goes on where the last one stopped, in the middle of a line if need be.
//!
//! ```text
//!   printk ─────────► RING ─┐
//!                           ├─► step: the line on its way ─► serial port
//!   show (the prompt) ► TEXT ┘
//! ```
//!
//! # Who prints
//! | who | how much |
//! |---|---|
//! | a task that logs and could sleep there | all up to its own message |
//! | a CPU that has nothing to do | all |
//! | the tick of a busy CPU | for a part of its time ([`TICK_SHARE_NS`]) |
//! | everybody while the kernel comes up | all up to the own message |
//!
//! Others (interrupts, NMIs, probe handlers, holders of a spinlock) leave their messages to these, so a flood of them takes
//! no more of a CPU than its ticks give, and what does not fit in the ring is dropped and said to be. A CPU is idle or ticks,
//! so nothing stays behind. Nobody waits for a port that takes nothing ([`PATIENCE_NS`]): a terminal may pause. Tasks then leave
//! their messages behind, too, and whoever wants to lose none waits asleep ([`wait_for_room`], [`show`]).
//!
//! # Printing that logs
//! A probe on what prints a message may log a message. Such a one is printed, too, but not what its printing logs in turn: that is
//! dropped, and counted ([`MAX_DEPTH`]). What the console says about dropped messages is not even counted, or it would
//! never come to an end. A task's `printing` tells what it logs now from the rest: for a task that prints from the first
//! step to the last, for an idle CPU until it has printed all and sleeps. An interrupt is no part of what it interrupts.
//!
//! # Ordering
//! Publishing a record, then failing to get the console, must not cross the owner's letting go, then finding nothing to
//! print: both sides have a `SeqCst` fence between their store and their load, so one of them sees the other.

use crate::{
    arch::percpu,
    errno::Errno,
    log::{Prefix, RING, SLOTS},
    serial::SerialPort,
    sync::SpinLock,
    task::{
        self, Task,
        sleep::{sleep_interruptible, sleep_ns},
    },
    time::{NSEC_PER_SEC, TICK_NS, ktime_get, read_tsc, ticks_to_ns},
};
use core::{
    cell::UnsafeCell,
    fmt::{self, Write},
    hint,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence},
};
use log_ring::{Record, TEXT_BYTES, Text};

/// How deep records may be: 1 is what is logged because a message is printed.
pub(crate) const MAX_DEPTH: u8 = 1;

/// The depth of what is logged while the console tells of dropped messages.
pub(crate) const SILENT: u8 = 15;

/// How long a task or an idle CPU waits for a port that takes nothing. A FIFO of 16 bytes is on the line after 1.4 ms.
const PATIENCE_NS: u64 = 5_000_000;
/// The same before the clock runs, in readings of the port.
const PATIENCE_POLLS: u32 = 200_000;

/// For how long a tick prints.
const TICK_SHARE_NS: u64 = TICK_NS / 8;

/// How long the end of the machine waits for a port that takes nothing.
const LAST_PATIENCE_NS: u64 = 2 * NSEC_PER_SEC;

/// Room for the terminal's text.
const TEXT_ROOM: usize = 16 * 1024;
/// The part of it that is left to what is typed, however much a command says.
pub(crate) const ECHO_ROOM: usize = 4 * 1024;
/// Places between records in which there may be text.
const TEXT_PLACES: usize = 256;

/// Owner of a console that nobody owns. Other values are the number of a CPU, or [`SEIZED`] plus that.
const NOBODY: u32 = u32::MAX;

/// Set in the owner for good when a dying CPU has taken the console by force.
const SEIZED: u32 = 1 << 31;

static CONSOLE: Console = Console {
    owner: AtomicU32::new(NOBODY),
    level: AtomicU8::new(crate::log::Level::Debug as u8),
    started: AtomicBool::new(false),
    unsent: AtomicBool::new(false),
    paused: AtomicBool::new(false),
    screen: UnsafeCell::new(Screen {
        // SAFETY: the kernel has no other `SerialPort`.
        port: unsafe { SerialPort::com1() },
        line: Line::new(),
        line_open: false,
    }),
};

/// The terminal's text, and whether there is any: lets printing look without the lock. Written under it.
static TEXT: SpinLock<Text<TEXT_ROOM, TEXT_PLACES>> = SpinLock::new(Text::new());
static TEXT_WAITS: AtomicBool = AtomicBool::new(false);

struct Console {
    owner: AtomicU32,
    /// Records of this level and of less urgent ones are kept in the ring only.
    level: AtomicU8,
    /// The kernel is up: there are ticks and idle CPUs.
    started: AtomicBool,
    /// The line on its way has not been sent to its end. Written by the owner.
    unsent: AtomicBool,
    /// The port has taken nothing for so long that nobody waits for it any more.
    paused: AtomicBool,
    screen: UnsafeCell<Screen>,
}

// SAFETY: `screen` is touched only by the owner, through `Owned`; `owner` goes from `NOBODY` to a CPU by
// compare-and-swap, so there is one at a time. The one exception, `seize`, says why it may.
unsafe impl Sync for Console {}

/// What the console's owner has.
struct Screen {
    port: SerialPort,
    line: Line,
    /// What was shown last has not ended its line.
    line_open: bool,
}

/// Room for a line: a line's end, the report on dropped messages, the prefix and the text of a record, and its end.
const LINE_BYTES: usize = TEXT_BYTES + 120;

/// Bytes on their way to the port.
struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
    sent: usize,
    /// How deep is what is logged while these are sent.
    depth: u8,
}

impl Line {
    const fn new() -> Self {
        Self {
            bytes: [0; LINE_BYTES],
            len: 0,
            sent: 0,
            depth: 0,
        }
    }

    fn clear(&mut self) {
        (self.len, self.sent) = (0, 0);
    }

    fn push(&mut self, bytes: &[u8]) {
        let rest = &mut self.bytes[self.len..];
        let len = bytes.len().min(rest.len());
        rest[..len].copy_from_slice(&bytes[..len]);
        self.len += len;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// The right to the screen.
struct Owned(());

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Something was sent, or found to be kept from the console.
    Forward,
    /// The port takes nothing now.
    Full,
    /// There is nothing to print.
    Nothing,
    /// Somebody else is at it.
    Taken,
}

impl Console {
    /// Keeps the caller on its CPU until `release`: an owner that waits for its turn to run would keep all from printing.
    fn try_own(&self) -> Option<Owned> {
        percpu::preempt_disable();
        // Acquire pairs with the Release in `release`: we see the screen as the last owner left it.
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
        self.owner.store(NOBODY, Ordering::Release);
        percpu::preempt_enable();
    }

    fn seized(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != NOBODY && owner & SEIZED != 0
    }
}

impl Owned {
    fn screen(&mut self) -> &mut Screen {
        // SAFETY: an `Owned` exists once, so this borrow of it is the only borrow of the screen.
        unsafe { &mut *CONSOLE.screen.get() }
    }
}

impl Screen {
    /// Puts what comes next into the line, which has been sent. False if there is nothing.
    fn fill(&mut self) -> bool {
        self.line.clear();
        if TEXT_WAITS.load(Ordering::Relaxed)
            && let Some(mut text) = TEXT.try_lock()
        {
            self.line.len = text.take(RING.tail(), &mut self.line.bytes);
            TEXT_WAITS.store(!text.is_empty(), Ordering::Relaxed);
            drop(text);
            if let Some(last) = self.line.bytes[..self.line.len].last() {
                self.line_open = *last != b'\n';
                self.line.depth = 1;
                return true;
            }
        }
        if let Some(depth) = RING.front_depth() {
            self.line.depth = depth + 1;
            set_printing(self.line.depth);
            if let Some(record) = RING.front() {
                self.print(&record);
                RING.advance();
                return true;
            }
        }
        let dropped = RING.take_dropped();
        if dropped > 0 {
            self.line.depth = SILENT;
            set_printing(SILENT);
            self.report(dropped);
        }
        dropped > 0
    }

    #[inline(never)]
    fn print(&mut self, record: &Record) {
        if record.dropped_before > 0 {
            self.report(record.dropped_before.into());
        }
        if record.stamp.level >= CONSOLE.level.load(Ordering::Relaxed) {
            return;
        }
        if !record.continues {
            self.begin_line(record.stamp.time_ns);
        }
        self.line.push(record.text());
        if record.cut {
            self.line.push(b" <cut>");
        }
        if !record.goes_on {
            self.line.push(b"\n");
        }
    }

    fn report(&mut self, dropped: u64) {
        self.begin_line(ktime_get());
        // A `Line` takes everything.
        let _ = writeln!(self.line, "** {dropped} messages dropped **");
    }

    fn begin_line(&mut self, time_ns: u64) {
        if core::mem::take(&mut self.line_open) {
            self.line.push(b"\n");
        }
        let _ = write!(self.line, "{}", Prefix(time_ns));
    }

    /// Sends what the port takes of the line, and returns how many bytes that is.
    fn send(&mut self) -> usize {
        let line = &mut self.line;
        let sent = self.port.write(&line.bytes[line.sent..line.len]);
        line.sent += sent;
        sent
    }

    /// Sends the line to its end. For a CPU that is about to die: gives a port up that takes nothing for long.
    fn send_all(&mut self) {
        let mut polls = 0;
        while self.line.sent < self.line.len && polls < PATIENCE_POLLS {
            polls = if self.send() > 0 { 0 } else { polls + 1 };
        }
    }
}

/// The CPU that we run on.
fn this_cpu() -> u32 {
    percpu::cpu_id() as u32
}

/// The depth of what the running task logs now; `None` before there are tasks. Any context.
fn printing() -> Option<&'static AtomicU8> {
    // SAFETY: the running task is alive (T1), and runs as long as the caller uses what is returned.
    unsafe { task::current_raw().as_ref() }.map(Task::printing)
}

fn set_printing(depth: u8) {
    if let Some(printing) = printing() {
        printing.store(depth, Ordering::Relaxed);
    }
}

/// The depth of what is logged now. Any context.
pub(crate) fn depth() -> u8 {
    printing().map_or(0, |printing| printing.load(Ordering::Relaxed))
}

/// What an interrupt or NMI logs, as long as this value exists, has nothing to do with what it interrupted.
pub(crate) struct Interruption {
    before: u8,
}

impl Interruption {
    /// Begins with the handler. The value is dropped before tasks may be switched.
    pub(crate) fn new() -> Self {
        let before = printing().map_or(0, |printing| printing.swap(0, Ordering::Relaxed));
        Self { before }
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        set_printing(self.before);
    }
}

/// Marks what the running task logs as logged because of printing, as long as the value exists.
struct Printing(());

impl Printing {
    fn begin() -> Self {
        set_printing(1);
        Self(())
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        set_printing(0);
    }
}

/// Sets the console up. Call it first of all, once.
pub fn init() {
    if let Some(mut console) = CONSOLE.try_own() {
        console.screen().port.init();
        CONSOLE.release(console);
    }
}

/// The kernel is up, with ticks and idle CPUs: from now on not everybody prints.
pub fn start() {
    CONSOLE.started.store(true, Ordering::Relaxed);
}

/// Keeps records of `level` and of less urgent ones off the console.
pub(crate) fn set_level(level: u8) {
    CONSOLE.level.store(level, Ordering::Relaxed);
}

/// One step of printing; see the module's text.
fn step() -> Step {
    // Between the caller's store (a record, or its letting go) and the look at the owner; see the ordering rule above.
    fence(Ordering::SeqCst);
    let Some(mut console) = CONSOLE.try_own() else {
        return Step::Taken;
    };
    let screen = console.screen();
    let waits = screen.line.sent < screen.line.len || screen.fill();
    let step = if !waits {
        Step::Nothing
    } else {
        set_printing(screen.line.depth);
        let kept = screen.line.len == 0;
        if screen.send() > 0 || kept {
            CONSOLE.paused.store(false, Ordering::Relaxed);
            Step::Forward
        } else {
            Step::Full
        }
    };
    let unsent = screen.line.sent < screen.line.len;
    CONSOLE.unsent.store(unsent, Ordering::Relaxed);
    CONSOLE.release(console);
    step
}

/// Whether there is something to print that nobody is printing now. Any context.
pub(crate) fn is_pending() -> bool {
    fence(Ordering::SeqCst);
    CONSOLE.unsent.load(Ordering::Relaxed) || TEXT_WAITS.load(Ordering::Relaxed) || RING.has_front()
}

/// How long one waits for the port, or for another one who prints.
struct Patience {
    since: u64,
    polls: u32,
}

impl Patience {
    fn new() -> Self {
        Self {
            since: read_tsc(),
            polls: 0,
        }
    }

    /// Asked after each step in vain. Once it is over, nobody has any until the port takes something.
    fn is_over(&mut self) -> bool {
        hint::spin_loop();
        self.polls += 1;
        let over = self.polls >= PATIENCE_POLLS
            || ticks_to_ns(read_tsc().wrapping_sub(self.since)) >= PATIENCE_NS
            || CONSOLE.paused.load(Ordering::Relaxed);
        if over {
            CONSOLE.paused.store(true, Ordering::Relaxed);
        }
        over
    }
}

/// Whether all records before number `end` are on the line.
fn is_printed(end: u64) -> bool {
    // Later ones come into the line when it has been sent.
    let tail = RING.tail();
    tail > end || (tail == end && !CONSOLE.unsent.load(Ordering::Relaxed))
}

/// Called by the one who has logged a message: prints, if this is the place for that, up to that message.
pub(crate) fn print_logged() {
    if CONSOLE.started.load(Ordering::Relaxed) && !percpu::preemptible() {
        return;
    }
    let end = RING.history().end;
    print_until(|| is_printed(end));
}

/// Prints until `done` says so, or until the port has taken nothing for too long.
fn print_until(done: impl Fn() -> bool) {
    let _printing = Printing::begin();
    let mut patience = Patience::new();
    while !done() {
        match step() {
            Step::Forward => patience = Patience::new(),
            Step::Nothing | Step::Full | Step::Taken if patience.is_over() => return,
            Step::Nothing | Step::Full | Step::Taken => {}
        }
    }
}

/// Called by a CPU that has nothing to do: prints until there is a task to run or nothing to print. False if the port takes
/// nothing, or somebody else prints. Followed by [`idle_ends`].
pub(crate) fn print_when_idle() -> bool {
    if depth() == 0 {
        set_printing(1);
    }
    let mut patience = Patience::new();
    while !percpu::this().need_resched() {
        match step() {
            Step::Forward => patience = Patience::new(),
            Step::Nothing => return !CONSOLE.unsent.load(Ordering::Relaxed),
            Step::Taken => return false,
            Step::Full if patience.is_over() => return false,
            Step::Full => {}
        }
    }
    true
}

/// Called by an idle CPU, with interrupts off, before it sleeps: what it logs from now on is not logged because of
/// printing.
pub(crate) fn idle_ends() {
    set_printing(0);
}

/// Called by the tick of a CPU that is not idle.
pub(crate) fn tick() {
    if !is_pending() {
        return;
    }
    let _printing = Printing::begin();
    let start = read_tsc();
    while ticks_to_ns(read_tsc().wrapping_sub(start)) < TICK_SHARE_NS && step() == Step::Forward {}
}

/// Shows `text` as it is, between two lines of the log. A line that it leaves open is ended before the next line of the log.
/// `spare`: the room that it leaves to others. Returns when all of it is on its way; sleeps as long as there is no room for
/// it, unless `give_up` says that the rest need not be shown. Task context.
pub(crate) fn show(mut text: &[u8], spare: usize, give_up: impl Fn() -> bool) -> bool {
    loop {
        let mut queue = TEXT.lock();
        let taken = queue.push(RING.history().end, text, spare);
        TEXT_WAITS.store(!queue.is_empty(), Ordering::Relaxed);
        drop(queue);
        text = &text[taken..];
        print_for(TICK_NS);
        if text.is_empty() {
            return true;
        }
        if give_up() {
            return false;
        }
        if taken == 0 {
            sleep_ns(TICK_NS);
        }
    }
}

/// Prints for a while, or until no text waits.
fn print_for(ns: u64) {
    let start = read_tsc();
    let is_over = || ticks_to_ns(read_tsc().wrapping_sub(start)) >= ns;
    print_until(|| !TEXT_WAITS.load(Ordering::Relaxed) || is_over());
}

/// Sleeps until half the ring is printed, as it is now: then a message of the caller is not dropped unless others fill the
/// other half meanwhile. EINTR if the task is to end. Task context.
pub(crate) fn wait_for_room() -> Result<(), Errno> {
    let goal = RING.history().end.saturating_sub(SLOTS as u64 / 2);
    while RING.tail() < goal {
        sleep_interruptible(ktime_get().saturating_add(TICK_NS))?;
    }
    Ok(())
}

/// Waits until all that was logged and said so far is printed and on the line, but not for a port that takes nothing for long:
/// before the machine goes off.
pub fn flush() {
    let owner = CONSOLE.owner.load(Ordering::Relaxed);
    if owner == this_cpu() || CONSOLE.seized() {
        return;
    }
    let _printing = Printing::begin();
    let end = RING.history().end;
    let mut deadline = ktime_get() + LAST_PATIENCE_NS;
    while !is_printed(end) || TEXT_WAITS.load(Ordering::Relaxed) {
        if step() == Step::Forward {
            deadline = ktime_get() + LAST_PATIENCE_NS;
        } else if ktime_get() >= deadline {
            return;
        }
        hint::spin_loop();
    }
    if let Some(mut console) = CONSOLE.try_own() {
        console.screen().port.flush();
        CONSOLE.release(console);
    }
}

/// Takes the console by force for a CPU that is about to die. From now on what this CPU logs is printed at once, past
/// ring and locks, and what others log is lost. Prints what waited, without records that never were published.
pub fn seize() {
    if CONSOLE.seized() {
        return;
    }
    CONSOLE.owner.store(SEIZED | this_cpu(), Ordering::SeqCst);
    // Nobody else borrows the screen: the other CPUs have been stopped, and on this one nothing runs any more that was
    // interrupted. An owner may have been stopped at any point, so what it left is taken for what it is worth.
    let mut console = Owned(());
    let screen = console.screen();
    screen.line.len = screen.line.len.min(LINE_BYTES);
    screen.line.sent = screen.line.sent.min(screen.line.len);
    screen.send_all();
    while screen.fill() {
        screen.send_all();
    }
    let (tail, end) = (RING.tail(), RING.history().end);
    for record in (tail..end).filter_map(|seq| RING.read(seq).ok()) {
        screen.line.clear();
        screen.print(&record);
        screen.send_all();
    }
}

/// Who has seized the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seized {
    No,
    Here,
    Elsewhere,
}

/// Whether a dying CPU has the console. Any context.
pub(crate) fn seized() -> Seized {
    match CONSOLE.owner.load(Ordering::Relaxed) {
        NOBODY => Seized::No,
        owner if owner & SEIZED == 0 => Seized::No,
        owner if owner == SEIZED | this_cpu() => Seized::Here,
        _ => Seized::Elsewhere,
    }
}

/// Prints a message past the ring, and returns its length. For the CPU that has seized the console.
pub(crate) fn print_now(message: &fmt::Arguments<'_>) -> usize {
    let mut writer = Immediate {
        // Not by `try_own`: the last owner never comes back, so nobody else borrows the screen.
        console: Owned(()),
        line_open: false,
        total: 0,
    };
    let _ = writer.write_fmt(*message);
    if writer.line_open {
        writer.send(b"\n");
    }
    writer.console.screen().port.flush();
    writer.total
}

/// Prefixes each line and prints it.
struct Immediate {
    console: Owned,
    line_open: bool,
    total: usize,
}

impl Immediate {
    fn send(&mut self, bytes: &[u8]) {
        let screen = self.console.screen();
        for chunk in bytes.chunks(LINE_BYTES) {
            screen.line.clear();
            screen.line.push(chunk);
            screen.send_all();
        }
    }
}

impl Write for Immediate {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.total += text.len();
        for piece in text.split_inclusive('\n') {
            if !self.line_open {
                let screen = self.console.screen();
                screen.line.clear();
                screen.begin_line(ktime_get());
                screen.send_all();
            }
            self.send(piece.as_bytes());
            self.line_open = !piece.ends_with('\n');
        }
        Ok(())
    }
}
