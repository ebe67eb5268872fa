//! The knob for jumps, and the byte that shows one.

use kernel::probes::PROBES;

/// The byte at `address` as it is now.
pub fn byte_at(address: u64) -> u8 {
    // SAFETY: kernel text is mapped and readable for ever.
    unsafe { (address as *const u8).read_volatile() }
}

/// Turns the knob for as long as it lives.
pub struct Optimization(bool);

impl Optimization {
    pub fn set(on: bool) -> Self {
        let before = PROBES.optimization();
        PROBES.set_optimization(on).unwrap();
        Self(before)
    }
}

impl Drop for Optimization {
    fn drop(&mut self) {
        PROBES.set_optimization(self.0).unwrap();
    }
}
