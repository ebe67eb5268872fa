//! The definition of a map, and its limits.

use core::fmt;

/// A kind of map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Values by index, shared by all CPUs.
    Array,
    /// Values by index, one of each for each CPU.
    PerCpuArray,
    /// Values by key, shared by all CPUs.
    Hash,
    /// Values by key; each CPU has a table of its own.
    PerCpuHash,
    /// Stack traces by number.
    Stacks,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Array => "array",
            Self::PerCpuArray => "per-CPU array",
            Self::Hash => "hash",
            Self::PerCpuHash => "per-CPU hash",
            Self::Stacks => "stacks",
        })
    }
}

/// The definition of a map. Its name is kept by the code that looks maps up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Its kind.
    pub kind: Kind,
    /// Bytes of a key: 4 for arrays (the index) and stacks (the number), 1 to 64 for hashes.
    pub key_size: usize,
    /// Bytes of a value: 1 to 4096 for arrays, 8 to 256 for hashes. For stacks 8 bytes for each
    /// frame, up to 127 frames.
    pub value_size: usize,
    /// How many values there are, or may be.
    pub entries: usize,
}

/// The most entries of a map.
pub(crate) const MAX_ENTRIES: usize = 1 << 22;
/// The most CPUs.
pub(crate) const MAX_CPUS: usize = 1 << 12;
