//! The address that a trap reports.

/// The instruction pointer that the processor reports after the breakpoint at a probed address:
/// that address + 1. It is the key of the address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct TrapIp(pub u64);

impl TrapIp {
    /// That of a breakpoint at `address`.
    #[inline(always)]
    pub const fn of(address: u64) -> Self {
        Self(address.wrapping_add(1))
    }

    /// Where the breakpoint is.
    #[inline(always)]
    pub const fn address(self) -> u64 {
        self.0.wrapping_sub(1)
    }
}
