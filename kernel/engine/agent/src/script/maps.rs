//! Maps as entries of a frame.
//!
//! # Contexts
//! Task context, while hits go on.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fallible::try_vec;
use trace_interface::frame::MapEntry;
use trace_maps::{Array, Hash, Map, OutOfMemory, When};

use crate::Agent;

/// What becomes of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// All keys go away.
    Cleared,
    /// All values are zero.
    Zeroed,
}

/// The entries of a map. Of an array they are the values that are not zero; the key is the index.
/// If the map is to be `emptied`, each entry is as soon as it has been read: what hits add between
/// the two is in no list, and to read all of a map takes long.
///
/// # Errors
/// Memory is short.
pub fn entries<A: Agent>(
    map: &Map,
    emptied: Option<Emptied>,
) -> Result<Vec<MapEntry>, OutOfMemory> {
    let mut entries = Vec::new();
    match map {
        Map::Array(array) => {
            let words = array.value_words();
            let taken = emptied.map(|_| taken::<A>(array)).transpose()?;
            let mut taken = taken.as_ref().map(|words| words.iter());
            let mut value = try_vec(words).map_err(|_| OutOfMemory { bytes: 0 })?;
            value.resize(words, 0);
            for cpu in 0..array.cpus() {
                for index in 0..array.entries() {
                    match &mut taken {
                        None => _ = array.read_per_cpu(index, cpu, &mut value),
                        Some(taken) => {
                            value.fill_with(|| taken.next().map_or(0, |word| word.load(Relaxed)));
                        }
                    }
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
                match emptied {
                    None => {}
                    Some(Emptied::Cleared) => _ = hash.delete(cpu, key),
                    Some(Emptied::Zeroed) => set_zero(hash, cpu, key, value.len() * 8),
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

/// Takes all values of an array away. Those of the first CPU come first, by index.
fn taken<A: Agent>(array: &Array) -> Result<Vec<AtomicU64>, OutOfMemory> {
    let words = array.entries() * array.value_words();
    let mut all = try_vec(words * array.cpus()).map_err(|_| OutOfMemory { bytes: 0 })?;
    all.resize_with(words * array.cpus(), || AtomicU64::new(0));
    take::<A>(array, &|cpu, place, word| {
        if let Some(to) = all.get(cpu * words + place) {
            to.store(word, Relaxed);
        }
    });
    Ok(all)
}

/// The same, and `note` gets each word that is not 0, with its CPU and its place. Each CPU takes
/// its own: only so an addition does not bring back what was taken.
fn take<A: Agent>(array: &Array, note: &(dyn Fn(usize, usize, u64) + Sync)) {
    let take = |cpu| array.take_cpu(cpu, |place, word| note(cpu, place, word));
    match array.cpus() {
        1 => take(0),
        _ => A::on_every_cpu(&|| take(A::this_cpu_tracing().number())),
    }
}

/// Sets a value to zero. A key that was deleted meanwhile stays away.
fn set_zero(hash: &Hash, cpu: usize, key: &[u8], bytes: usize) {
    let zeros = [0; trace_maps::MAX_VALUE_BYTES];
    let _ = hash.update(cpu, key, &zeros[..bytes.min(zeros.len())], When::Present);
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

/// Takes all keys away; of an array, sets all values to zero. Task context, while hits go on.
pub fn clear<A: Agent>(map: &Map) {
    match map {
        Map::Array(array) => take::<A>(array, &|_, _, _| {}),
        Map::Hash(hash) => hash.clear(),
        Map::Stacks(stacks) => stacks.clear(),
    }
}

/// Sets all values to zero and keeps the keys.
pub fn zero<A: Agent>(map: &Map) {
    match map {
        Map::Hash(hash) => {
            hash.for_each(|cpu, key, value| set_zero(hash, cpu, key, value.len() * 8));
        }
        _ => clear::<A>(map),
    }
}
