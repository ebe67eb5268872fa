//! Maps as entries of a frame.
//!
//! # Contexts
//! Task context, while hits go on.

use alloc::vec::Vec;

use fallible::try_vec;
use trace_interface::frame::MapEntry;
use trace_maps::{Map, OutOfMemory};

/// The entries of a map. Of an array they are the values that are not zero; the key is the index.
///
/// # Errors
/// Memory is short.
pub fn entries(map: &Map) -> Result<Vec<MapEntry>, OutOfMemory> {
    let mut entries = Vec::new();
    match map {
        Map::Array(array) => {
            let mut value = try_vec(array.value_words()).map_err(|_| OutOfMemory { bytes: 0 })?;
            value.resize(array.value_words(), 0);
            for cpu in 0..array.cpus() {
                for index in 0..array.entries() {
                    array.read_per_cpu(index, cpu, &mut value);
                    if value.iter().any(|word| *word != 0) {
                        push(&mut entries, cpu, &(index as u32).to_le_bytes(), &value)?;
                    }
                }
            }
        }
        Map::Hash(hash) => {
            let mut failed = None;
            hash.for_each(|cpu, key, value| {
                if failed.is_none() {
                    failed = push(&mut entries, cpu, key, value).err();
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Map::Stacks(_) => {}
    }
    Ok(entries)
}

fn push(
    entries: &mut Vec<MapEntry>,
    cpu: usize,
    key: &[u8],
    words: &[u64],
) -> Result<(), OutOfMemory> {
    let error = OutOfMemory {
        bytes: key.len() + words.len() * 8,
    };
    let mut own_key = try_vec(key.len()).map_err(|_| error)?;
    own_key.extend_from_slice(key);
    let mut value = try_vec(words.len() * 8).map_err(|_| error)?;
    value.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    entries.try_reserve(1).map_err(|_| error)?;
    entries.push(MapEntry {
        cpu: cpu as u32,
        key: own_key,
        value,
    });
    Ok(())
}

/// Takes all keys away; of an array, sets all values to zero.
pub fn clear(map: &Map) {
    match map {
        Map::Array(array) => array.clear(),
        Map::Hash(hash) => hash.clear(),
        Map::Stacks(stacks) => stacks.clear(),
    }
}

/// Sets all values to zero and keeps the keys.
pub fn zero(map: &Map) {
    let Map::Hash(hash) = map else {
        return clear(map);
    };
    let Ok(entries) = entries(map) else {
        return;
    };
    for entry in entries {
        let mut zeros = [0; trace_maps::MAX_VALUE_BYTES];
        let zeros = &mut zeros[..entry.value.len().min(trace_maps::MAX_VALUE_BYTES)];
        let cpu = entry.cpu as usize;
        // A key that was deleted meanwhile stays away.
        let _ = hash.update(cpu, &entry.key, zeros, trace_maps::When::Present);
    }
}
