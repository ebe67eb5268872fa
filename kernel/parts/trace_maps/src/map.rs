//! A map of any kind, made from its definition.

use core::fmt;

use crate::{
    array::{Array, MAX_ARRAY_VALUE_BYTES},
    block::OutOfMemory,
    error::{MAX_CPUS, MAX_ENTRIES, MapError},
    hash::Hash,
    stacks::{MAX_FRAMES, Stacks},
    table::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Shape},
};

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

/// The definition of a map. Its name is the business of those who look maps up.
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

/// A map.
pub enum Map {
    /// An array of either kind.
    Array(Array),
    /// A hash of either kind.
    Hash(Hash),
    /// Stack traces.
    Stacks(Stacks),
}

/// How many operations of hits were lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostCounts {
    /// There was no room.
    pub full: u64,
    /// The key was in the hands of another operation.
    pub busy: u64,
}

impl LostCounts {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.full.wrapping_add(self.busy)
    }
}

/// The product, unless it is too large for a size of memory.
pub(crate) fn checked_product(a: usize, b: usize) -> Result<usize, OutOfMemory> {
    let error = OutOfMemory {
        bytes: a.saturating_mul(b),
    };
    let product = a.checked_mul(b).ok_or(error)?;
    if product > isize::MAX as usize / 16 {
        return Err(error);
    }
    Ok(product)
}

impl Map {
    /// Makes a map for `cpus` CPUs and takes all its memory.
    pub fn new(definition: &Definition, cpus: usize) -> Result<Self, MapError> {
        let &Definition {
            kind,
            key_size,
            value_size,
            entries,
        } = definition;
        let (key_limits, value_limits) = match kind {
            Kind::Array | Kind::PerCpuArray => ((4, 4), (1, MAX_ARRAY_VALUE_BYTES)),
            Kind::Hash | Kind::PerCpuHash => ((1, MAX_KEY_BYTES), (8, MAX_VALUE_BYTES)),
            Kind::Stacks => ((4, 4), (8, MAX_FRAMES * 8)),
        };
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(MapError::Cpus { found: cpus });
        }
        if !(1..=MAX_ENTRIES).contains(&entries) {
            return Err(MapError::Entries { found: entries });
        }
        let (least, most) = key_limits;
        if !(least..=most).contains(&key_size) {
            return Err(MapError::KeySize {
                kind,
                found: key_size,
                least,
                most,
            });
        }
        let (least, most) = value_limits;
        if !(least..=most).contains(&value_size) {
            return Err(MapError::ValueSize {
                kind,
                found: value_size,
                least,
                most,
            });
        }
        let shape = Shape {
            key_bytes: key_size,
            value_bytes: value_size,
            entries,
        };
        Ok(match kind {
            Kind::Array => Self::Array(Array::new(value_size, entries, cpus, true)?),
            Kind::PerCpuArray => Self::Array(Array::new(value_size, entries, cpus, false)?),
            Kind::Hash => Self::Hash(Hash::new(shape, 1, true)?),
            Kind::PerCpuHash => Self::Hash(Hash::new(shape, cpus, false)?),
            Kind::Stacks => Self::Stacks(Stacks::new(value_size / 8, entries)?),
        })
    }

    /// The counts of lost operations since the map was made, exact when no hit is under way.
    pub fn lost(&self) -> LostCounts {
        match self {
            Self::Array(_) => LostCounts::default(),
            Self::Hash(hash) => hash.lost(),
            Self::Stacks(stacks) => LostCounts {
                full: stacks.full(),
                busy: 0,
            },
        }
    }
}
