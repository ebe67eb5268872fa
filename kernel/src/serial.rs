//! The serial ports, 16550 UARTs: COM1, the kernel's console, and COM2, which the tracer on the
//! host listens to.
//!
//! Output is polled, so it works with interrupts off, in an NMI and while the kernel dies. The port
//! has no lock of its own: [`crate::console`] owns it, and a panic takes it by force. The port does
//! not wait either. A terminal may stop reading for hours, and only the caller knows what to do
//! meanwhile.
//!
//! The receiver interrupts if it is told to. Otherwise it keeps 16 bytes; QEMU holds back bytes
//! that a pipe brings faster. [`crate::terminal`] decides what to do with them.
//!
//! Lines end in a bare newline. QEMU's terminal adds the carriage return; on a real line the
//! receiver is set to do that.

use core::hint;
use uart_16550::{
    BaudRate, Config, Uart16550,
    backend::PioBackend,
    spec::registers::{FifoTriggerLevel, IER, LSR},
};
use x86_64::instructions::port::{PortReadOnly, PortWriteOnly};

/// I/O base of COM1 on every PC.
const COM1: u16 = 0x3f8;

/// I/O base of COM2.
const COM2: u16 = 0x2f8;

/// The line of the ISA bus that COM1 interrupts by.
pub const COM1_LINE: u8 = 4;

/// How often the line status is read before the last bytes count as sent. A full FIFO is sent in
/// 1.4 ms at 115,200 baud, and one read of the port takes about a microsecond.
const POLLS_PER_FIFO: u32 = 200_000;

/// The sending half of a port. One value exists for each: COM1's inside the console lock.
pub struct SerialPort {
    uart: Uart16550<PioBackend>,
    /// The port answered when it was set up.
    works: bool,
}

impl SerialPort {
    /// Names COM1 without touching it.
    ///
    /// # Safety
    /// 1. Nothing else drives COM1 while this value exists.
    pub const unsafe fn com1() -> Self {
        // SAFETY: the eight ports from 0x3f8 are COM1's on every PC, and the caller gives them up
        // (1).
        match unsafe { Uart16550::new_port(COM1) } {
            Ok(uart) => Self { uart, works: false },
            Err(_) => panic!("COM1's ports lie within the I/O space"),
        }
    }

    /// Names COM2 without touching it.
    ///
    /// # Safety
    /// 1. Nothing else drives COM2 while this value exists.
    pub const unsafe fn com2() -> Self {
        // SAFETY: the eight ports from 0x2f8 are COM2's on every PC that has one, and the caller
        // gives them up (1).
        match unsafe { Uart16550::new_port(COM2) } {
            Ok(uart) => Self { uart, works: false },
            Err(_) => panic!("COM2's ports lie within the I/O space"),
        }
    }

    /// Whether a UART has answered at [`SerialPort::init`].
    pub fn works(&self) -> bool {
        self.works
    }

    /// Sets the line to 115,200 baud, 8 data bits, no parity, one stop bit, FIFO on, interrupts
    /// off. If the receiver's interrupt is switched on later, it comes at each byte. If no UART
    /// answers, all output is dropped.
    pub fn init(&mut self) {
        let config = Config {
            baud_rate: BaudRate::Baud115200,
            fifo_trigger_level: Some(FifoTriggerLevel::One),
            ..Config::DEFAULT
        };
        self.works = self.uart.init(config).is_ok();
    }

    /// Sends as many of `bytes` as the UART takes now, and returns their number. That is 0 while
    /// the bytes that it took before are not sent. If there is no UART, all bytes count as sent.
    #[inline(never)]
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if !self.works {
            return bytes.len();
        }
        let mut sent = 0;
        while sent < bytes.len() {
            match self.uart.send_bytes(&bytes[sent..]) {
                0 => break,
                more => sent += more,
            }
        }
        sent
    }

    /// Waits until the last bit is on the line, so that a power-off cuts nothing.
    pub fn flush(&mut self) {
        for _ in 0..POLLS_PER_FIFO {
            if !self.works || self.uart.lsr().contains(LSR::TRANSMITTER_EMPTY) {
                return;
            }
            hint::spin_loop();
        }
    }
}

/// The receiving half of the port. It shares no register with [`SerialPort`] that a write or a read
/// changes, so both may be in use at once.
pub struct SerialInput {
    data: PortReadOnly<u8>,
    interrupt_enable: PortWriteOnly<u8>,
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
            interrupt_enable: PortWriteOnly::new(COM1 + 1),
            line_status: PortReadOnly::new(COM1 + 5),
        }
    }

    /// The same for COM2.
    ///
    /// # Safety
    /// 1. Nothing else reads what COM2 receives while this value exists.
    pub const unsafe fn com2() -> Self {
        Self {
            data: PortReadOnly::new(COM2),
            interrupt_enable: PortWriteOnly::new(COM2 + 1),
            line_status: PortReadOnly::new(COM2 + 5),
        }
    }

    /// Switches the interrupt for received bytes on or off. If a byte is there already, it comes at
    /// once.
    pub fn interrupt(&mut self, on: bool) {
        let interrupts = if on { IER::DATA_READY } else { IER::empty() };
        // SAFETY: no other code writes the register: `SerialPort` leaves it after its set-up.
        unsafe { self.interrupt_enable.write(interrupts.bits()) };
    }

    /// Takes a byte that has been received, if there is one. The port has been set up by
    /// [`SerialPort::init`].
    pub fn poll(&mut self) -> Option<u8> {
        /// The value that a read gives where no UART answers.
        const NOTHING: u8 = 0xff;
        // SAFETY: a read of the line status clears only error bits, which no code uses. No other
        // code reads the data register, as the caller of `com1` or `com2` has promised.
        unsafe {
            let status = self.line_status.read();
            let ready =
                status != NOTHING && LSR::from_bits_retain(status).contains(LSR::DATA_READY);
            ready.then(|| self.data.read())
        }
    }
}
