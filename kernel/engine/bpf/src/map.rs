//! Maps: the memory that a program's hits share with each other and with the reader.
//!
//! Kinds and limits of maps are said here only: programs and scripts define maps so, and
//! `trace_maps` makes what [`MapDef::check`] has passed.

use alloc::borrow::Cow;
use core::fmt;

/// The kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MapKind {
    /// Values by index, one array for all CPUs.
    Array,
    /// Values by index, an array for each CPU.
    PerCpuArray,
    /// Values by key, one table for all CPUs.
    Hash,
    /// Values by key, a table for each CPU.
    PerCpuHash,
    /// Call stacks by number. The value is the stack: 8 bytes for each frame.
    Stacks,
    /// Records, a ring for each CPU. It has neither keys nor values; `entries` is ignored, because
    /// the kernel's trace buffer is the ring.
    Ring,
}

/// A map that a program wants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MapDef {
    /// A name that is known beforehand takes no memory.
    pub name: Cow<'static, str>,
    pub kind: MapKind,
    /// Bytes of a key: 4 for arrays (an index) and stacks, 1 to [`MapDef::MOST_KEY_BYTES`] for
    /// hashes, 0 for a ring.
    pub key_size: u32,
    /// Bytes of a value: 1 to [`MapDef::MOST_ARRAY_VALUE_BYTES`] for arrays, a multiple of 8 up to
    /// [`MapDef::MOST_HASH_VALUE_BYTES`] for hashes, 8 times the frames (1 to
    /// [`MapDef::MOST_FRAMES`]) for stacks, 0 for a ring.
    pub value_size: u32,
    /// Most values: 1 to [`MapDef::MOST_ENTRIES`].
    pub entries: u32,
}

/// A definition of a map that cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    KeySize { found: u32, from: u32, to: u32 },
    ValueSize { found: u32, from: u32, to: u32 },
    Entries { found: u32 },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeySize { found, from, to } => {
                write!(
                    f,
                    "a key of {found} bytes; this kind of map takes {from} to {to}"
                )
            }
            Self::ValueSize { found, from, to } => write!(
                f,
                "a value of {found} bytes; this kind of map takes {from} to {to}, and hashes and \
                 stacks take multiples of 8"
            ),
            Self::Entries { found } => {
                write!(
                    f,
                    "{found} entries; a map takes 1 to {}",
                    MapDef::MOST_ENTRIES
                )
            }
        }
    }
}

impl core::error::Error for MapError {}

impl MapDef {
    /// The most values of a map.
    pub const MOST_ENTRIES: u32 = 1 << 20;
    /// The most bytes of a key.
    pub const MOST_KEY_BYTES: u32 = 512;
    /// The most bytes of an array's value.
    pub const MOST_ARRAY_VALUE_BYTES: u32 = 4096;
    /// The most bytes of a hash's value.
    pub const MOST_HASH_VALUE_BYTES: u32 = 512;
    /// The most frames of a call stack.
    pub const MOST_FRAMES: u32 = 127;

    /// An array of `entries` counters for each CPU.
    pub fn counters(name: impl Into<Cow<'static, str>>, entries: u32) -> Self {
        Self {
            name: name.into(),
            kind: MapKind::PerCpuArray,
            key_size: 4,
            value_size: 8,
            entries,
        }
    }

    /// Counters by a key of `key_size` bytes, a table for each CPU.
    pub fn counters_by_key(
        name: impl Into<Cow<'static, str>>,
        key_size: u32,
        entries: u32,
    ) -> Self {
        Self {
            name: name.into(),
            kind: MapKind::PerCpuHash,
            key_size,
            value_size: 8,
            entries,
        }
    }

    /// A histogram by powers of two: 65 counters for each CPU (see [`crate::Helper::Log2`]).
    pub fn histogram(name: impl Into<Cow<'static, str>>) -> Self {
        Self::counters(name, 65)
    }

    /// The trace buffer.
    pub fn ring(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: name.into(),
            kind: MapKind::Ring,
            key_size: 0,
            value_size: 0,
            entries: 0,
        }
    }

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn check(&self) -> Result<(), MapError> {
        let (keys, values, step) = match self.kind {
            MapKind::Array | MapKind::PerCpuArray => (4..=4, 1..=Self::MOST_ARRAY_VALUE_BYTES, 1),
            MapKind::Hash | MapKind::PerCpuHash => {
                (1..=Self::MOST_KEY_BYTES, 8..=Self::MOST_HASH_VALUE_BYTES, 8)
            }
            MapKind::Stacks => (4..=4, 8..=Self::MOST_FRAMES * 8, 8),
            MapKind::Ring => (0..=0, 0..=0, 1),
        };
        if !keys.contains(&self.key_size) {
            return Err(MapError::KeySize {
                found: self.key_size,
                from: *keys.start(),
                to: *keys.end(),
            });
        }
        if !values.contains(&self.value_size) || !self.value_size.is_multiple_of(step) {
            return Err(MapError::ValueSize {
                found: self.value_size,
                from: *values.start(),
                to: *values.end(),
            });
        }
        if self.kind != MapKind::Ring && !(1..=Self::MOST_ENTRIES).contains(&self.entries) {
            return Err(MapError::Entries {
                found: self.entries,
            });
        }
        Ok(())
    }
}
