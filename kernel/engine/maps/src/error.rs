//! Why a map cannot be made.

use core::{error::Error, fmt};

use crate::{
    block::OutOfMemory,
    definition::{Kind, MAX_CPUS, MAX_ENTRIES},
};

/// Why a map cannot be made. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Keys have another size.
    KeySize {
        /// The kind of the map.
        kind: Kind,
        /// The size in the definition.
        found: usize,
        /// The least that the kind takes.
        least: usize,
        /// The most that the kind takes.
        most: usize,
    },
    /// Values have another size.
    ValueSize {
        /// The kind of the map.
        kind: Kind,
        /// The size in the definition.
        found: usize,
        /// The least that the kind takes.
        least: usize,
        /// The most that the kind takes.
        most: usize,
    },
    /// There are too many entries, or none.
    Entries {
        /// The number in the definition.
        found: usize,
    },
    /// There are too many CPUs, or none.
    Cpus {
        /// The number that the caller gave.
        found: usize,
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
        let size = |f: &mut fmt::Formatter<'_>, part, kind: Kind, found, least, most| {
            write!(
                f,
                "a {part} of {found} bytes was found where the map ({kind}) expects {least} to \
                 {most}; change the size of the {part}, or choose another kind of map"
            )
        };
        match *self {
            Self::KeySize {
                kind,
                found,
                least,
                most,
            } => size(f, "key", kind, found, least, most),
            Self::ValueSize {
                kind,
                found,
                least,
                most,
            } => size(f, "value", kind, found, least, most),
            Self::Entries { found } => write!(
                f,
                "{found} entries were found where a map expects 1 to {MAX_ENTRIES}; change their \
                 number"
            ),
            Self::Cpus { found } => write!(
                f,
                "{found} CPUs were found where a map expects 1 to {MAX_CPUS}; make maps after the \
                 CPUs are counted"
            ),
            Self::OutOfMemory(error) => error.fmt(f),
        }
    }
}

impl Error for MapError {}

impl From<OutOfMemory> for MapError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}
