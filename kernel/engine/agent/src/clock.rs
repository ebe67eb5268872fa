//! How fast the time stamp counter runs, measured.
//!
//! # Contexts
//! Boots, and tasks. [`Clock::hz`]: any.

use core::{
    arch::{asm, x86_64::_rdtsc},
    hint,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use probes::platform::without_interrupts;

/// Counts of the time stamp counter in a second; 0 before it was measured.
pub(crate) struct Clock(AtomicU64);

fn time_stamp() -> u64 {
    // SAFETY: every processor has the counter.
    unsafe { _rdtsc() }
}

impl Clock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn hz(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Measures it for a tenth of a second, by a clock that counts `hz` times a second.
    pub(crate) fn measure(&self, hz: u64, clock: impl Fn() -> u64) {
        self.0.store(rate(hz, clock, time_stamp), Relaxed);
    }

    /// Measures it for 10 ms, by channel 2 of a PC's interval timer (Intel 8254), which counts down
    /// from 11,932 then and raises its output.
    ///
    /// # Safety
    /// This is a PC, and nothing else uses the channel meanwhile.
    pub(crate) unsafe fn measure_by_pit(&self) {
        const GATE: u16 = 0x61;
        const MODE: u16 = 0x43;
        const CHANNEL_2: u16 = 0x42;
        without_interrupts(|_| {
            // SAFETY: by the contract.
            let is_over = || unsafe { inb(GATE) } & 0x20 != 0;
            // SAFETY: by the contract: the gate off, mode 0, the count, the gate on.
            let start = unsafe {
                let others = inb(GATE) & !3;
                outb(GATE, others);
                outb(MODE, 0xb0);
                outb(CHANNEL_2, 0x9c);
                outb(CHANNEL_2, 0x2e);
                outb(GATE, others | 1);
                time_stamp()
            };
            while !is_over() {
                hint::spin_loop();
            }
            self.0.store((time_stamp() - start) * 100, Relaxed);
        });
    }
}

/// Counts of `stamp` in a second, by `clock`, which counts `hz` times a second, in a tenth of one.
fn rate(hz: u64, clock: impl Fn() -> u64, stamp: impl Fn() -> u64) -> u64 {
    let at = |count: u64| {
        while clock() < count {
            hint::spin_loop();
        }
        stamp()
    };
    let counts = (hz / 10).max(1);
    // From one change of the count to another.
    let first = clock() + 1;
    let start = at(first);
    let stamps = u128::from(at(first + counts) - start);
    (stamps * u128::from(hz) / u128::from(counts)) as u64
}

/// # Safety
/// A write to the port has no effect on memory.
pub(crate) unsafe fn outb(port: u16, value: u8) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags));
    }
}

/// # Safety
/// A read of the port has no effect on memory.
pub(crate) unsafe fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags));
    }
    value
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::cell::Cell;

    /// Time goes on by a millionth of a second with each look at the clock.
    #[test]
    fn the_rate_is_that_of_the_clock() {
        for (hz, stamps_in_a_second) in [(1, 1_000_000), (100, 2_000_000), (1000, 3_000_000_000)] {
            let micros = Cell::new(12_345_u64);
            let clock = || {
                micros.set(micros.get() + 1);
                micros.get() * hz / 1_000_000
            };
            let stamp = || micros.get() * (stamps_in_a_second / 1_000_000);
            assert_eq!(rate(hz, clock, stamp), stamps_in_a_second, "{hz}");
        }
    }

    #[test]
    fn what_was_measured_is_known() {
        let clock = Clock::new();
        assert_eq!(clock.hz(), 0);
        let count = Cell::new(0);
        clock.measure(1000, || {
            count.set(count.get() + 1);
            count.get()
        });
        assert_ne!(clock.hz(), 0);
        assert!(count.get() > 100, "a tenth of a second");
    }
}
