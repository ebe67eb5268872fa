//! A map of any kind, made from its definition.

use crate::{
    array::{Array, MAX_ARRAY_VALUE_BYTES},
    definition::{Definition, Kind, MAX_CPUS, MAX_ENTRIES},
    error::MapError,
    hash::{Hash, LostCounts},
    stacks::{MAX_FRAMES, Stacks},
    table::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Shape},
};

/// A map.
pub enum Map {
    /// An array of either kind.
    Array(Array),
    /// A hash of either kind.
    Hash(Hash),
    /// Stack traces.
    Stacks(Stacks),
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
