//! The line to a tracer over a serial port of a PC (National Semiconductor 16550).
//!
//! # Contexts
//! One task.

use core::marker::PhantomData;

use crate::{
    Agent,
    clock::{inb, outb},
    facts::NSEC_PER_SEC,
    remote::Line,
};

/// How long the port may take no byte, until it is dead.
const PATIENCE_NS: u64 = 5 * NSEC_PER_SEC;

const INTERRUPTS: u16 = 1;
const FIFO: u16 = 2;
const FORMAT: u16 = 3;
const MODEM: u16 = 4;
const STATUS: u16 = 5;
/// Bits of the status.
const HAS_BYTE: u8 = 1;
const TAKES_BYTE: u8 = 0x20;

/// A serial port. While it waits, others run by
/// [`Platform::pass_time`](probes::Platform::pass_time).
pub struct Serial<A> {
    port: u16,
    is_dead: bool,
    agent: PhantomData<fn(A)>,
}

impl<A: Agent> Serial<A> {
    /// The port whose registers begin at `port`, such as 0x2f8 for COM2: 115,200 baud, 8 bits, no
    /// parity, no interrupts.
    ///
    /// # Safety
    /// It is such a port, and nothing else uses it.
    pub unsafe fn at(port: u16) -> Self {
        const DIVISOR_FOLLOWS: u8 = 0x80;
        const EIGHT_BITS: u8 = 3;
        let this = Self {
            port,
            is_dead: false,
            agent: PhantomData,
        };
        this.set(INTERRUPTS, 0);
        this.set(FORMAT, DIVISOR_FOLLOWS);
        this.set(0, 1);
        this.set(INTERRUPTS, 0);
        this.set(FORMAT, EIGHT_BITS);
        // Both queues are emptied and used.
        this.set(FIFO, 7);
        // Ready, to whoever looks at the lines.
        this.set(MODEM, 3);
        this
    }

    fn set(&self, register: u16, value: u8) {
        // SAFETY: by the contract of `at` this is the port's own register.
        unsafe { outb(self.port + register, value) };
    }

    fn has(&self, bit: u8) -> bool {
        // SAFETY: as above.
        unsafe { inb(self.port + STATUS) & bit != 0 }
    }

    /// Waits until the condition holds; false: not for so many nanoseconds.
    fn wait_for(&self, nanoseconds: u64, condition: impl Fn(&Self) -> bool) -> bool {
        let end = A::now().saturating_add(nanoseconds);
        while !condition(self) {
            if A::now() >= end {
                return false;
            }
            A::pass_time();
        }
        true
    }
}

impl<A: Agent> Line for Serial<A> {
    fn read(&mut self) -> Option<u8> {
        // SAFETY: as above.
        self.has(HAS_BYTE).then(|| unsafe { inb(self.port) })
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.is_dead || !self.wait_for(PATIENCE_NS, |this| this.has(TAKES_BYTE)) {
                self.is_dead = true;
                return;
            }
            self.set(0, *byte);
        }
    }

    fn is_dead(&self) -> bool {
        self.is_dead
    }

    fn revive(&mut self) {
        self.is_dead = false;
    }

    fn wait(&mut self, nanoseconds: u64) {
        self.wait_for(nanoseconds, |this| this.has(HAS_BYTE));
    }
}
