//! The second serial port: bytes from and to a tracer on the host.
//!
//! # Contexts
//! Task context; one task has it.

use core::hint;

use crate::{
    serial::{SerialInput, SerialPort},
    task::sleep::sleep_ns,
    time::{NSEC_PER_MSEC, NSEC_PER_SEC, ktime_get},
};

/// How often the port is asked before the task gives its CPU away.
const POLLS: u32 = 10_000;
/// A port that takes nothing for so long is taken for dead.
pub const PATIENCE_NS: u64 = 10 * NSEC_PER_SEC;

/// See the module's text.
pub struct Com2 {
    port: SerialPort,
    input: SerialInput,
    dead: bool,
}

impl Com2 {
    /// Sets the port up.
    ///
    /// # Safety
    /// Nothing else uses COM2 while the value exists.
    pub unsafe fn new() -> Self {
        // SAFETY: by the contract.
        let (mut port, input) = unsafe { (SerialPort::com2(), SerialInput::com2()) };
        port.init();
        Self {
            port,
            input,
            dead: false,
        }
    }

    /// Whether the machine has such a port.
    pub fn works(&self) -> bool {
        self.port.works()
    }

    /// Whether it has taken nothing for too long. What is written then is lost.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Writes to it again, because somebody has been heard.
    pub fn revive(&mut self) {
        self.dead = false;
    }

    /// Takes a byte that has come, if there is one.
    pub fn read(&mut self) -> Option<u8> {
        self.input.poll()
    }

    /// Writes all bytes, as long as the port lives.
    pub fn write(&mut self, mut bytes: &[u8]) {
        let mut polls = 0;
        let mut since = None;
        while !bytes.is_empty() && !self.dead {
            match self.port.write(bytes) {
                0 if polls < POLLS => {
                    polls += 1;
                    hint::spin_loop();
                }
                0 => {
                    let since = *since.get_or_insert_with(|| ktime_get());
                    self.dead = ktime_get() - since > PATIENCE_NS;
                    sleep_ns(NSEC_PER_MSEC);
                }
                sent => {
                    bytes = &bytes[sent..];
                    (polls, since) = (0, None);
                }
            }
        }
    }

    /// Waits until the last bit is on the line.
    pub fn flush(&mut self) {
        self.port.flush();
    }
}
