//! The memory of a program: its stack, and the data that the entry of a call keeps for its return.
//!
//! A place is taken before anything is stored there. Room of a statement is given back after it;
//! that of variables is kept to the end.
//!
//! MEMORY-1. What is taken is aligned to 8 bytes, and no two owners have it at once.
//! MEMORY-3. What is zero from the beginning on has never had another owner, because nothing makes
//!     it zero again.

use alloc::vec::Vec;

use bpf::{Reg, STACK_BYTES};

/// A place in memory of the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) base: Reg,
    pub(crate) offset: i16,
}

impl Place {
    pub(crate) const fn stack(offset: i16) -> Self {
        Self {
            base: Reg::R10,
            offset,
        }
    }

    /// So many bytes further.
    pub(crate) const fn at(self, bytes: u32) -> Self {
        Self {
            base: self.base,
            offset: self.offset.wrapping_add(bytes as i16),
        }
    }
}

/// Who has which bytes.
#[derive(Default)]
pub(crate) struct Memory {
    /// Bytes of the stack in use, and the most that were.
    used: u32,
    deepest: u32,
    /// Bytes of the stack that are never given back.
    kept: u32,
    /// What is zero when the program begins.
    zeroed: Vec<(Place, u32)>,
    /// Whether the data of the entry are used.
    pub(crate) shares: bool,
}

impl Memory {
    /// Takes stack: a multiple of 8 bytes.
    pub(crate) fn take(&mut self, bytes: u32) -> Place {
        self.used = self.used.saturating_add(bytes.next_multiple_of(8));
        self.deepest = self.deepest.max(self.used);
        // `fits` finds out if it does not fit.
        Place {
            base: Reg::R10,
            offset: -(self.used.min(16_384) as i16),
        }
    }

    /// Takes stack that is never given back.
    pub(crate) fn take_for_good(&mut self, bytes: u32) -> Place {
        let place = self.take(bytes);
        self.kept = self.used;
        place
    }

    /// The same of stack that nobody has had: it is zero from the beginning of the program on.
    pub(crate) fn take_zero(&mut self, bytes: u32) -> Place {
        self.used = self.deepest;
        let place = self.take_for_good(bytes);
        self.zeroed.push((place, bytes));
        place
    }

    /// To give back what is taken from now on.
    pub(crate) fn mark(&self) -> u32 {
        self.used
    }

    pub(crate) fn release(&mut self, mark: u32) {
        self.used = mark.max(self.kept);
    }

    /// What is to be zero when the program begins.
    pub(crate) fn zeroed(&self) -> &[(Place, u32)] {
        &self.zeroed
    }

    /// The most bytes of the stack that are in use at once.
    pub(crate) fn deepest(&self) -> u32 {
        self.deepest
    }

    /// Whether the stack has so many bytes.
    pub(crate) fn fits(&self) -> bool {
        self.deepest as usize <= STACK_BYTES
    }
}

/// The largest step of a copy.
pub(crate) fn step(left: impl Into<u64>) -> u8 {
    match left.into() {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}
