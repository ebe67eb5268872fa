//! The stacks of a kernel whose stacks are aligned to their size, for hits to look up.
//!
//! # Contexts
//! [`Stacks::of`]: any, without locks. All else: tasks, and boots.

use core::{
    ops::Range,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// A set of at most `MOST` stacks, each aligned to its size: a static of this type. It answers
/// [`Platform::stack_of`](crate::Platform::stack_of).
///
/// ```
/// use probes::Stacks;
///
/// static STACKS: Stacks<64> = Stacks::new(0x1_0000);
///
/// // Where a task is made:
/// assert!(STACKS.add(0x7000_0000));
/// // The body of `Platform::stack_of`:
/// assert_eq!(STACKS.of(0x7000_8888), 0x7000_0000..0x7001_0000);
/// assert!(STACKS.of(0x7001_0000).is_empty());
/// // Where its stack is given back:
/// STACKS.remove(0x7000_0000);
/// assert!(STACKS.of(0x7000_8888).is_empty());
/// ```
pub struct Stacks<const MOST: usize> {
    bytes: u64,
    /// Where each begins; 0: there is none.
    starts: [AtomicU64; MOST],
}

impl<const MOST: usize> Stacks<MOST> {
    /// None yet. Each will have so many bytes, a power of two.
    pub const fn new(bytes: u64) -> Self {
        assert!(
            bytes.is_power_of_two(),
            "stacks that are found by their alignment have a power of two for their size"
        );
        Self {
            bytes,
            starts: [const { AtomicU64::new(0) }; MOST],
        }
    }

    /// There is a stack from `start` on, a multiple of its size. Before the first probed call on
    /// it. False: there are as many as there can be, and hits on this one do not know it.
    pub fn add(&self, start: u64) -> bool {
        let take = |place: &AtomicU64| place.compare_exchange(0, start, Release, Relaxed).is_ok();
        self.starts.iter().any(take)
    }

    /// The stack from `start` on is given back. After its last call.
    pub fn remove(&self, start: u64) {
        for place in &self.starts {
            // It is another one's.
            let _ = place.compare_exchange(start, 0, Release, Relaxed);
        }
    }

    /// The bounds of the stack that contains `sp`; an empty range where it is none.
    #[inline(always)]
    pub fn of(&self, sp: u64) -> Range<u64> {
        let start = sp & !(self.bytes - 1);
        let is_one = start != 0 && self.starts.iter().any(|one| one.load(Acquire) == start);
        if is_one {
            start..start.wrapping_add(self.bytes)
        } else {
            0..0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stack_is_added_when_all_places_are_taken() {
        let stacks = Stacks::<2>::new(4096);
        assert_eq!(
            [0x1000, 0x2000, 0x3000].map(|start| stacks.add(start)),
            [true, true, false]
        );
        assert!(stacks.of(0x3000).is_empty());
        stacks.remove(0x1000);
        assert!(stacks.add(0x3000));
        assert_eq!(stacks.of(0x3fff), 0x3000..0x4000);
        assert_eq!(stacks.of(0x2000), 0x2000..0x3000);
    }

    /// A place that is free holds 0.
    #[test]
    fn the_lowest_addresses_are_no_stack() {
        assert!(Stacks::<1>::new(4096).of(8).is_empty());
    }
}
