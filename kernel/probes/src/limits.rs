//! Sizes of tables that do not grow. Apart from what has the tables, as the models of the lock-free parts have smaller ones.

/// The number of bits of an index of the address table, which may be half full. Less where Miri interprets the tests.
pub const TABLE_BITS: u32 = if cfg!(miri) { 9 } else { 20 };
