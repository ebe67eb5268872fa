//! A map of any kind, made from its definition.

use bpf::{MapDef, MapKind};

use crate::{
    array::Array,
    error::MapError,
    hash::{Hash, LostCounts},
    stacks::{MAX_FRAMES, Stacks},
    table::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Shape},
};

// The tables have room for whatever a definition may ask for.
const _: () = assert!(
    MAX_KEY_BYTES == MapDef::MOST_KEY_BYTES as usize
        && MAX_VALUE_BYTES == MapDef::MOST_HASH_VALUE_BYTES as usize
        && MAX_FRAMES == MapDef::MOST_FRAMES as usize
);

/// The most CPUs.
const MAX_CPUS: usize = 1 << 12;

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
    ///
    /// # Errors
    /// [`MapError`]: [`MapDef::check`] does not pass the definition, or there is no memory.
    pub fn new(def: &MapDef, cpus: usize) -> Result<Self, MapError> {
        def.check()?;
        if !(1..=MAX_CPUS).contains(&cpus) {
            return Err(MapError::Cpus {
                found: cpus,
                most: MAX_CPUS,
            });
        }
        let value_bytes = def.value_size as usize;
        let entries = def.entries as usize;
        let shape = Shape {
            key_bytes: def.key_size as usize,
            value_bytes,
            entries,
        };
        Ok(match def.kind {
            MapKind::Array => Self::Array(Array::new(value_bytes, entries, cpus, true)?),
            MapKind::PerCpuArray => Self::Array(Array::new(value_bytes, entries, cpus, false)?),
            MapKind::Hash => Self::Hash(Hash::new(shape, 1, true)?),
            MapKind::PerCpuHash => Self::Hash(Hash::new(shape, cpus, false)?),
            MapKind::Stacks => Self::Stacks(Stacks::new(value_bytes / 8, entries)?),
            MapKind::Ring => return Err(MapError::Ring),
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
