//! The serial port COM1, a 16550 UART: the kernel's console.
//!
//! Output is polled, so it works with interrupts off, in an NMI and while the kernel dies. The port has no lock of its
//! own: [`crate::log`] owns it through its console lock, and a panic takes it by force.
//!
//! Input is polled as well: the one who waits for it asks once a tick. The UART keeps 16 bytes meanwhile, more than anybody
//! types; QEMU holds back what a pipe brings faster.
//!
//! Lines end in a bare newline. QEMU's terminal adds the carriage return; on a real line the receiver is set to.

use core::{fmt, hint};
use uart_16550::{BaudRate, Config, Uart16550, backend::PioBackend, spec::registers::LSR};
use x86_64::instructions::port::PortReadOnly;

/// I/O base of COM1 on every PC.
const COM1: u16 = 0x3f8;

/// How often the line status is read before a port that takes no byte is given up. A full FIFO leaves in 1.4 ms at
/// 115,200 baud, and one read of the port takes about a microsecond.
const POLLS_PER_CHUNK: u32 = 200_000;

/// The port. One value exists, inside the console lock.
pub struct SerialPort {
    uart: Uart16550<PioBackend>,
    /// The port answered when it was set up and has taken every byte since.
    works: bool,
}

impl SerialPort {
    /// Names COM1 without touching it.
    ///
    /// # Safety
    /// 1. Nothing else drives COM1 while this value exists.
    pub const unsafe fn com1() -> Self {
        // SAFETY: the eight ports from 0x3f8 are COM1's on every PC, and the caller gives them to us (1).
        match unsafe { Uart16550::new_port(COM1) } {
            Ok(uart) => Self { uart, works: false },
            Err(_) => panic!("COM1's ports lie within the I/O space"),
        }
    }

    /// Sets the line to 115,200 baud, 8 data bits, no parity, one stop bit, FIFO on, interrupts off. Where no UART
    /// answers, all output is dropped.
    pub fn init(&mut self) {
        let config = Config {
            baud_rate: BaudRate::Baud115200,
            ..Config::DEFAULT
        };
        self.works = self.uart.init(config).is_ok();
    }

    /// Sends `bytes` and returns when the UART has taken them. A port that stops taking bytes is given up for good:
    /// losing the log is better than hanging the kernel.
    #[inline(never)]
    pub fn write(&mut self, mut bytes: &[u8]) {
        let mut polls = 0;
        while self.works && !bytes.is_empty() {
            let sent = self.uart.send_bytes(bytes);
            bytes = &bytes[sent..];
            if sent > 0 {
                polls = 0;
            } else {
                polls += 1;
                self.works = polls < POLLS_PER_CHUNK;
                hint::spin_loop();
            }
        }
    }

    /// Waits until the last bit is on the line, so that a power-off cuts nothing.
    pub fn flush(&mut self) {
        for _ in 0..POLLS_PER_CHUNK {
            if !self.works || self.uart.lsr().contains(LSR::TRANSMITTER_EMPTY) {
                return;
            }
            hint::spin_loop();
        }
    }
}

/// The receiving half of the port. It shares no register that a write or a read changes with [`SerialPort`], so both may
/// be in use at once.
pub struct SerialInput {
    data: PortReadOnly<u8>,
    line_status: PortReadOnly<u8>,
}

impl SerialInput {
    /// Names COM1's receiver without touching it.
    ///
    /// # Safety
    /// 1. Nothing else reads what COM1 receives while this value exists.
    pub const unsafe fn com1() -> Self {
        Self {
            data: PortReadOnly::new(COM1),
            line_status: PortReadOnly::new(COM1 + 5),
        }
    }

    /// Takes a byte that has been received, if there is one. The port has been set up by [`SerialPort::init`].
    pub fn poll(&mut self) -> Option<u8> {
        /// What is read where no UART answers.
        const NOTHING: u8 = 0xff;
        // SAFETY: a look at the line status clears error bits only, which nobody uses; the data register is read by nobody
        // else, as the caller of `com1` has promised.
        unsafe {
            let status = self.line_status.read();
            let ready =
                status != NOTHING && LSR::from_bits_retain(status).contains(LSR::DATA_READY);
            ready.then(|| self.data.read())
        }
    }
}

impl fmt::Write for SerialPort {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}
