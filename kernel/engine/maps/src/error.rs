//! Why a map cannot be made.

use core::{error::Error, fmt};

use crate::block::OutOfMemory;

/// Why a map cannot be made. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The definition is out of range.
    Definition(bpf::MapError),
    /// A ring has no memory of its own: the trace buffer is the ring.
    Ring,
    /// There are too many CPUs, or none.
    Cpus {
        /// The number that the caller gave.
        found: usize,
        /// The most that a map takes.
        most: usize,
    },
    /// There is no memory.
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no memory for {} bytes; give the map fewer entries or smaller values",
            self.bytes
        )
    }
}

impl Error for OutOfMemory {}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Definition(error) => error.fmt(f),
            Self::Ring => f.write_str("a ring has no memory of its own; use the trace buffer"),
            Self::Cpus { found, most } => write!(
                f,
                "{found} CPUs were found where a map expects 1 to {most}; make maps after the CPUs \
                 are counted"
            ),
            Self::OutOfMemory(error) => error.fmt(f),
        }
    }
}

impl Error for MapError {}

impl From<bpf::MapError> for MapError {
    fn from(error: bpf::MapError) -> Self {
        Self::Definition(error)
    }
}

impl From<OutOfMemory> for MapError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}
