//! The terminal at the other end of the serial line: its input, and the commands that Ctrl-C stops.
//!
//! The port interrupts for each byte. The interrupt keeps the byte for the reader and looks out for
//! Ctrl-C, so a command need not read to be stopped. If the port can have no interrupt, each tick
//! looks instead.
//!
//! ```text
//!   port ─► interrupt ─► bytes ─► read
//!               └─ Ctrl-C, while a command runs ─► is_interrupted, and the task's waits are woken
//! ```
//!
//! Bytes that do not fit stay in the port, which holds the sender back.
//!
//! # Contexts
//! Task context, one task: the prompt's.

use crate::{
    arch::ioapic,
    console::{self, ECHO_ROOM},
    pr_info,
    serial::{COM1_LINE, SerialInput},
    sync::SpinLock,
    task::{TaskRef, WaitQueue, current, scheduler},
};
use core::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are typed ahead.
const ROOM: usize = 1024;

const CTRL_C: u8 = 3;

struct Input {
    port: SerialInput,
    bytes: [u8; ROOM],
    /// Where the oldest byte is, and how many there are.
    start: usize,
    len: usize,
    /// The task that carries out a command.
    busy: Option<TaskRef>,
}

static INPUT: SpinLock<Input> = SpinLock::new(Input {
    // SAFETY: the one reader of the line.
    port: unsafe { SerialInput::com1() },
    bytes: [0; ROOM],
    start: 0,
    len: 0,
    busy: None,
});

/// The tasks that wait for a byte.
static ARRIVED: WaitQueue = WaitQueue::new();

/// Ctrl-C was typed since the command began.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// There is no interrupt, and a task reads.
static POLLED: AtomicBool = AtomicBool::new(false);

impl Input {
    /// Takes all that the port has, as far as there is room.
    fn receive(&mut self) {
        loop {
            if self.len == ROOM {
                // Otherwise the interrupt would come again and again.
                self.port.interrupt(false);
                return;
            }
            match self.port.poll() {
                None => return,
                Some(CTRL_C) if self.busy.is_some() => self.stop_command(),
                Some(byte) => {
                    self.bytes[(self.start + self.len) % ROOM] = byte;
                    self.len += 1;
                }
            }
        }
    }

    fn stop_command(&mut self) {
        if let Some(task) = &self.busy {
            // The bytes that were typed ahead were meant for a time that does not come now.
            self.len = 0;
            INTERRUPTED.store(true, Ordering::SeqCst);
            scheduler::wake(task);
        }
    }

    fn take(&mut self) -> Option<u8> {
        if self.len == 0 {
            return None;
        }
        let byte = self.bytes[self.start];
        self.start = (self.start + 1) % ROOM;
        self.len -= 1;
        if self.len + 1 == ROOM {
            self.port.interrupt(!is_polled());
            self.receive();
        }
        Some(byte)
    }
}

/// Begins to listen. Once.
pub fn init() {
    match ioapic::route(COM1_LINE) {
        Ok(()) => INPUT.lock().port.interrupt(true),
        Err(reason) => {
            pr_info!("serial: {reason}, so each tick asks the port for input");
            POLLED.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether ticks are needed for input.
pub(crate) fn is_polled() -> bool {
    POLLED.load(Ordering::Relaxed)
}

/// Called by the port's interrupt.
pub(crate) fn on_interrupt() {
    INPUT.lock().receive();
    ARRIVED.wake_all();
}

/// Called by each tick.
pub(crate) fn tick() {
    if is_polled() {
        on_interrupt();
    }
}

/// Waits for the next byte that is typed.
pub fn read() -> u8 {
    let mut byte = None;
    ARRIVED.wait_until(|| {
        byte = INPUT.lock().take();
        byte.is_some()
    });
    byte.expect("it has been waited for")
}

/// Shows text of the prompt and the editor.
pub fn echo(text: &[u8]) {
    console::show(text, 0, || false);
}

/// The running task carries out a command as long as this value exists: Ctrl-C is for the command.
pub struct Command(());

impl Command {
    /// The command begins.
    pub fn begin() -> Self {
        INTERRUPTED.store(false, Ordering::Relaxed);
        INPUT.lock().busy = Some(current());
        Self(())
    }

    /// Whether the command is to stop. A wait of the task ends when that becomes true, if its
    /// condition asks.
    pub fn is_interrupted() -> bool {
        INTERRUPTED.load(Ordering::SeqCst)
    }

    /// Stops the command, if there is one, as Ctrl-C does. Any context but NMI and probe handlers.
    pub fn stop() {
        INPUT.lock().stop_command();
    }

    /// Whether the running task carries out a command that is to stop. Where that is so, a wait of
    /// the task ends as with [`Self::is_interrupted`], and other tasks wait on.
    pub fn stops_here() -> bool {
        if !Self::is_interrupted() {
            return false;
        }
        let pid = current().pid();
        INPUT
            .lock()
            .busy
            .as_ref()
            .is_some_and(|busy| busy.pid() == pid)
    }

    /// The command has stopped what Ctrl-C was meant for, and goes on to its end, with output.
    /// Another Ctrl-C stops that.
    pub fn go_on() {
        INTERRUPTED.store(false, Ordering::SeqCst);
    }

    /// Shows output of the command. False if it is to stop.
    pub fn say(text: &str) -> bool {
        !Self::is_interrupted() && console::show(text.as_bytes(), ECHO_ROOM, Self::is_interrupted)
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let task = INPUT.lock().busy.take();
        // A task is not dropped under a lock.
        drop(task);
    }
}
