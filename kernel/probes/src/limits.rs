//! Sizes of what does not grow. In a file of its own, so that the models of the lock-free parts can
//! replace it with smaller ones.

/// The number of bits of an index of the address table, which may be half full. Less where Miri
/// interprets the tests.
pub const TABLE_BITS: u32 = if cfg!(miri) { 9 } else { 21 };

/// The bytes of one CPU's part of a block of hit counters.
pub(crate) const PART_BYTES: usize = 4096;
