//! The legacy devices that every PC starts with: the interval timer, because it is the one clock of
//! known rate; and the interrupt controllers, to silence them.

use x86_64::instructions::port::Port;

/// Rate of the interval timer (8254) in Hz.
pub const PIT_HZ: u64 = 1_193_182;

/// Masks every line of both 8259 interrupt controllers, because their power-on vectors collide with
/// exceptions and firmware leaves the timer's line open.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn mask_legacy_interrupts() {
    // SAFETY: the mask registers of the two controllers; nothing here uses their interrupts.
    unsafe {
        Port::<u8>::new(0x21).write(0xff);
        Port::<u8>::new(0xa1).write(0xff);
    }
}

/// Channel 2 of the interval timer, counting down once from its largest value.
pub struct PitCounter(());

impl PitCounter {
    /// Starts the countdown. It covers 54 ms.
    pub fn start() -> Self {
        // SAFETY: channel 2 drives the speaker, which stays off. No other code uses it (8254 data
        // sheet, mode 0).
        unsafe {
            let mut gate = Port::<u8>::new(0x61);
            let bits = gate.read() & !0b11;
            gate.write(bits | 1);
            Port::<u8>::new(0x43).write(0b1011_0000);
            Port::<u8>::new(0x42).write(0xff);
            Port::<u8>::new(0x42).write(0xff);
        }
        Self(())
    }

    /// Ticks since the start, modulo 65,536.
    pub fn elapsed(&self) -> u16 {
        // SAFETY: as in `start`; the latch command leaves the counting alone.
        unsafe {
            Port::<u8>::new(0x43).write(0b1000_0000);
            let low = Port::<u8>::new(0x42).read();
            let high = Port::<u8>::new(0x42).read();
            0xffff - u16::from_le_bytes([low, high])
        }
    }
}
