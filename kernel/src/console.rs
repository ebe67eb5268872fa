//! The console: it sends the log, and the prompt's text, to the serial port.
//!
//! Two queues hold the text that is to be printed: the records of [`crate::log`], and the
//! terminal's text, which has its places between them. Printing goes in steps. A step owns the
//! console, copies the next line if the last one is sent, gives the port as much as it takes, and
//! lets the console go. A step never waits. The next step, on any CPU, goes on where the last one
//! stopped, also in the middle of a line.
//!
//! ```text
//!   printk ─────────► RING ─┐
//!                           ├─► step: the line on its way ─► serial port
//!   show (the prompt) ► TEXT ┘
//! ```
//!
//! # The code that prints
//! | who | how much |
//! |---|---|
//! | a task that logs and could sleep there | all up to its own message |
//! | a CPU that has nothing to do | all |
//! | the tick of a busy CPU | for a part of its time ([`TICK_SHARE_NS`]) |
//! | any code while the kernel comes up | all up to its own message |
//!
//! Other code (interrupts, NMIs, probe handlers, holders of a spinlock) leaves its messages to
//! these. So a flood of such messages takes no more of a CPU than the share of its ticks. A message
//! that does not fit in the ring is dropped, and the console reports how many were. No message
//! stays behind, because each CPU is idle or has ticks.
//!
//! A terminal may pause, and then the port takes nothing. Printing does not wait for it longer than
//! [`PATIENCE_NS`]. Tasks then leave their messages behind, too. A task that must lose none sleeps
//! until there is room ([`wait_for_room`], [`show`]).
//!
//! # Printing that logs
//! The code that prints a message can carry a probe, and its handler may log a message. This second
//! message is printed, too. A third message, logged because the second one is printed, is dropped
//! and counted ([`MAX_DEPTH`]). Messages that are logged while the console reports dropped ones are
//! not even counted, because each count would cause another report. The `printing` of a task says
//! how deep its messages are now: for a task that prints, from the first step to the last; for an
//! idle CPU, until it has printed all and sleeps. An interrupt is not part of the printing that it
//! interrupts.
//!
//! # Ordering
//! A writer publishes a record, then fails to get the console. At the same time the owner lets the
//! console go, then finds nothing to print. If both could miss each other, the record would wait.
//! So both sides have a `SeqCst` fence between their store and their load, and one of them sees the
//! other.

use crate::{
    arch::percpu,
    errno::Errno,
    log::ring::{Level, Prefix, RING, SLOTS},
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

/// The greatest depth of a record that is kept. A message that is logged because another one is
/// printed has depth 1.
pub(crate) const MAX_DEPTH: u8 = 1;

/// The depth of messages that are logged while the console reports dropped ones.
pub(crate) const SILENT: u8 = 15;

/// How long a task or an idle CPU waits for a port that takes nothing. For comparison: a FIFO of 16
/// bytes is sent in 1.4 ms.
const PATIENCE_NS: u64 = 5_000_000;
/// The same before the clock runs, in readings of the port.
const PATIENCE_POLLS: u32 = 200_000;

/// For how long a tick prints.
const TICK_SHARE_NS: u64 = TICK_NS / 8;

/// How long the end of the machine waits for a port that takes nothing.
const LAST_PATIENCE_NS: u64 = 2 * NSEC_PER_SEC;

/// Room for the terminal's text.
const TEXT_ROOM: usize = 16 * 1024;
/// The part of it that is kept for the echo of typed text, however much a command says.
pub(crate) const ECHO_ROOM: usize = 4 * 1024;
/// Places between records in which there may be text.
const TEXT_PLACES: usize = 256;

/// The owner while the console is free. Other values are the number of a CPU, or [`SEIZED`] plus
/// that.
const NOBODY: u32 = u32::MAX;

/// Set in the owner for good when a dying CPU has taken the console by force.
const SEIZED: u32 = 1 << 31;

static CONSOLE: Console = Console {
    owner: AtomicU32::new(NOBODY),
    level: AtomicU8::new(Level::Debug as u8),
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

/// The terminal's text, and a flag that says whether there is any. Printing reads the flag without
/// the lock; it is written under the lock.
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
    /// The port has taken nothing for so long that no CPU waits for it any more.
    paused: AtomicBool,
    screen: UnsafeCell<Screen>,
}

// SAFETY: only the owner touches `screen`, through `Owned`. There is one owner at a time, because
// `owner` goes from `NOBODY` to a CPU by compare-and-swap. The one exception, `seize`, gives its
// reason.
unsafe impl Sync for Console {}

/// The part of the console that belongs to its owner.
struct Screen {
    port: SerialPort,
    line: Line,
    /// The text that was shown last has not ended its line.
    line_open: bool,
}

/// Room for one line: a line end, the report of dropped messages, the prefix and the text of a
/// record, and its line end.
const LINE_BYTES: usize = TEXT_BYTES + 120;

/// Bytes on their way to the port.
struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
    sent: usize,
    /// The depth of messages that are logged while these are sent.
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

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Something was sent, or a record was found that stays off the console.
    Forward,
    /// The port takes nothing now.
    Full,
    /// There is nothing to print.
    Nothing,
    /// Another CPU owns the console.
    Taken,
}

impl Console {
    /// Keeps the caller on its CPU until `release`: no CPU could print while the owner waits for
    /// its turn.
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
    /// Puts the next text into the line, which has been sent. False if there is none.
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

    /// Sends as much of the line as the port takes, and returns how many bytes that is.
    fn send(&mut self) -> usize {
        let line = &mut self.line;
        let sent = self.port.write(&line.bytes[line.sent..line.len]);
        line.sent += sent;
        sent
    }

    /// Sends the line to its end. For a CPU that is about to die: it gives up if the port takes
    /// nothing for long.
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

/// The depth of the running task's messages now; `None` before there are tasks. Any context.
fn printing() -> Option<&'static AtomicU8> {
    // SAFETY: the running task is alive (TASK-1), and runs as long as the caller uses what is
    // returned.
    unsafe { task::current_raw().as_ref() }.map(Task::printing)
}

fn set_printing(depth: u8) {
    if let Some(printing) = printing() {
        printing.store(depth, Ordering::Relaxed);
    }
}

/// The depth of a message that is logged now. Any context.
pub(crate) fn depth() -> u8 {
    printing().map_or(0, |printing| printing.load(Ordering::Relaxed))
}

/// While this value exists, messages of an interrupt or NMI do not count as part of the interrupted
/// printing.
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

/// While this value exists, messages of the running task count as logged because of printing.
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

/// The kernel is up, with ticks and idle CPUs. From now on only some contexts print.
pub fn start() {
    CONSOLE.started.store(true, Ordering::Relaxed);
}

/// Keeps records of `level` and of less urgent ones off the console.
pub(crate) fn set_level(level: u8) {
    CONSOLE.level.store(level, Ordering::Relaxed);
}

/// One step of printing; see the module's text.
fn step() -> Step {
    // The fence is between the caller's store (of a record, or of the free console) and the look at
    // the owner; see the ordering rule above.
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

/// Whether there is something to print that no CPU is printing now. Any context.
pub(crate) fn is_pending() -> bool {
    fence(Ordering::SeqCst);
    CONSOLE.unsent.load(Ordering::Relaxed) || TEXT_WAITS.load(Ordering::Relaxed) || RING.has_front()
}

/// How long a CPU waits for the port, or for another CPU that prints.
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

    /// Called after each step that could do nothing. Once it returns true, it returns true
    /// everywhere until the port takes something.
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
    // A later record comes into the line only when the line has been sent.
    let tail = RING.tail();
    tail > end || (tail == end && !CONSOLE.unsent.load(Ordering::Relaxed))
}

/// Called after a message was logged. Prints up to that message if printing is allowed here.
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

/// Called by a CPU that has nothing to do. Prints until there is a task to run or nothing to print.
/// False if the port takes nothing, or another CPU prints. [`idle_ends`] follows it. Not inlined,
/// because its jumps by table would keep jumps of probes out of the idle task's function.
#[inline(never)]
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

/// Called by an idle CPU before it sleeps, with interrupts off. Messages that it logs from now on
/// do not count as logged because of printing. Not inlined, so that a probe tells when a CPU rests.
#[inline(never)]
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

/// Shows `text` as it is, between two lines of the log. If it leaves a line open, the console ends
/// that line before the next line of the log.
///
/// `spare` is the room that this text leaves to other text. The call returns true when all of the
/// text is on its way. It sleeps while there is no room, unless `give_up` says that the rest need
/// not be shown. Task context.
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

/// Sleeps until half of the ring, as it is now, is printed. Then the caller's next message is not
/// dropped, unless other tasks fill the other half meanwhile. EINTR if the task is to end. Task
/// context.
pub(crate) fn wait_for_room() -> Result<(), Errno> {
    let goal = RING.history().end.saturating_sub(SLOTS as u64 / 2);
    while RING.tail() < goal {
        sleep_interruptible(ktime_get().saturating_add(TICK_NS))?;
    }
    Ok(())
}

/// Waits until all that was logged and shown so far is sent, before the machine goes off. Gives up
/// if the port takes nothing for long.
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

/// Takes the console by force for a CPU that is about to die. From now on the messages of this CPU
/// are printed at once, without ring and locks, and those of other CPUs are lost. Prints the
/// records that waited, except those that were never published.
pub fn seize() {
    if CONSOLE.seized() {
        return;
    }
    CONSOLE.owner.store(SEIZED | this_cpu(), Ordering::SeqCst);
    // No other code borrows the screen: the other CPUs have been stopped, and interrupted code on
    // this CPU does not run again. The last owner may have been stopped at any point, so its line
    // is checked before it is used.
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

/// Which CPU has seized the console.
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
        // Not by `try_own`: the last owner never comes back, so no other code borrows the screen.
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
