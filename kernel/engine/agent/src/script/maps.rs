//! Maps as entries of a frame.
//!
//! # Contexts
//! Task context, while hits go on.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use fallible::try_vec;
use trace_interface::frame::MapEntry;
use trace_maps::{Array, Hash, Map, OutOfMemory, When};

use crate::{Agent, facts::MAX_CPUS};

/// What becomes of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptied {
    /// All keys go away.
    Cleared,
    /// All values are zero.
    Zeroed,
}

/// The entries of a map. Of an array they are the values that are not zero; the key is the index.
///
/// Each hit is in the entries or comes later, as a whole: the sum and the count of an average are
/// from the same moment. If the map is to be `emptied`, what is not in the entries stays for the
/// next time. For that each CPU looks at its own part, in no hit. A value that all CPUs share, such
/// as one that was assigned, is emptied as soon as it has been read.
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
            let value_words = array.value_words();
            let words = words_of::<A>(array, emptied)?;
            let mut value = try_vec(value_words).map_err(|_| OutOfMemory { bytes: 0 })?;
            for (place, words) in words.chunks_exact(value_words).enumerate() {
                value.clear();
                value.extend(words.iter().map(|word| word.load(Relaxed)));
                if value.iter().any(|word| *word != 0) {
                    let (cpu, index) = (place / array.entries(), place % array.entries());
                    push(&mut entries, cpu, &(index as u32).to_le_bytes(), &value)?;
                }
            }
        }
        Map::Hash(hash) if hash.is_shared() => {
            let mut failed = None;
            hash.for_each(|cpu, key, value| {
                if failed.is_none() {
                    failed = push(&mut entries, cpu, key, value).err();
                }
                empty(hash, cpu, key, value, emptied);
            });
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Map::Hash(hash) => {
            for (cpu, rows) in rows_of::<A>(hash, emptied)?.iter().enumerate() {
                rows.for_each(|key, value| push(&mut entries, cpu, key, value))?;
            }
        }
        Map::Stacks(_) => {}
    }
    Ok(entries)
}

/// The entries of a map while hits go on. Task context.
///
/// # Errors
/// Memory is short.
pub fn read<A: Agent>(map: &Map) -> Result<Vec<MapEntry>, crate::OutOfMemory> {
    entries::<A>(map, None).map_err(|_| crate::OutOfMemory)
}

/// All words of an array, those of the first CPU first. They are zero from now on if it is emptied.
fn words_of<A: Agent>(
    array: &Array,
    emptied: Option<Emptied>,
) -> Result<Vec<AtomicU64>, OutOfMemory> {
    let words = array.entries() * array.value_words();
    let all: Vec<AtomicU64> = zeros(words * array.cpus())?;
    on_each_part::<A>(array.cpus(), &|cpu| {
        let note = |place: usize, word| {
            if let Some(to) = all.get(cpu * words + place) {
                to.store(word, Relaxed);
            }
        };
        match emptied {
            None => array.for_each_of_cpu(cpu, note),
            Some(_) => array.take_cpu(cpu, note),
        }
    });
    Ok(all)
}

/// What is in the table of a CPU: rows of a key and a value, each in words of its own.
struct Rows {
    key_bytes: usize,
    value_words: usize,
    words: Vec<AtomicU64>,
    /// How many rows there are.
    count: AtomicUsize,
}

/// How many keys may come to a table between the question how many it has and the look at it. Those
/// beyond are of a later time, with all that was counted for them.
const NEW_KEYS: usize = 64;

impl Rows {
    /// For what `hash` has of a CPU.
    fn of(hash: &Hash, cpu: usize) -> Result<Self, OutOfMemory> {
        let (key_bytes, value_words) = (hash.key_size(), hash.value_words());
        let rows = hash.len_of_cpu(cpu) as usize + NEW_KEYS;
        Ok(Self {
            key_bytes,
            value_words,
            words: zeros(rows * (key_bytes.div_ceil(8) + value_words))?,
            count: AtomicUsize::new(0),
        })
    }

    /// Adds a row. False: there is no room.
    fn add(&self, key: &[u8], value: &[u64]) -> bool {
        let key_words = self.key_bytes.div_ceil(8);
        let mut rows = self.words.chunks_exact(key_words + self.value_words);
        let Some(row) = rows.nth(self.count.load(Relaxed)) else {
            return false;
        };
        let (key_row, value_row) = row.split_at(key_words);
        for (to, bytes) in key_row.iter().zip(key.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            to.store(u64::from_le_bytes(word), Relaxed);
        }
        for (to, word) in value_row.iter().zip(value) {
            to.store(*word, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        true
    }

    fn for_each(
        &self,
        mut visit: impl FnMut(&[u8], &[u64]) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let key_words = self.key_bytes.div_ceil(8);
        let mut key = [0; trace_maps::MAX_KEY_BYTES];
        let mut value = [0; trace_maps::MAX_VALUE_BYTES / 8];
        let rows = self.words.chunks_exact(key_words + self.value_words);
        for row in rows.take(self.count.load(Relaxed)) {
            let (key_row, value_row) = row.split_at(key_words);
            for (to, word) in key.chunks_exact_mut(8).zip(key_row) {
                to.copy_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            for (to, word) in value.iter_mut().zip(value_row) {
                *to = word.load(Relaxed);
            }
            visit(&key[..self.key_bytes], &value[..self.value_words])?;
        }
        Ok(())
    }
}

/// What the table of each CPU has. It is emptied of that if that is wanted.
fn rows_of<A: Agent>(hash: &Hash, emptied: Option<Emptied>) -> Result<Vec<Rows>, OutOfMemory> {
    let mut parts = try_vec(hash.cpus()).map_err(|_| OutOfMemory { bytes: 0 })?;
    for cpu in 0..hash.cpus() {
        parts.push(Rows::of(hash, cpu)?);
    }
    on_each_part::<A>(hash.cpus(), &|cpu| {
        let Some(rows) = parts.get(cpu) else {
            return;
        };
        hash.for_each_of_cpu(cpu, |key, value| {
            if rows.add(key, value) {
                empty(hash, cpu, key, value, emptied);
            }
        });
    });
    Ok(parts)
}

/// Calls `work` for the part of each CPU, on that CPU, with interrupts off and in no hit. So what a
/// hit has done to its part is seen as a whole, and no addition brings back what is taken. Hits of
/// NMIs come at any time.
fn on_each_part<A: Agent>(parts: usize, work: &(dyn Fn(usize) + Sync)) {
    if parts == 1 {
        // A task is in no hit.
        return A::keep_cpu(&mut || work(0));
    }
    let done = [const { AtomicBool::new(false) }; MAX_CPUS];
    for round in 0u32.. {
        let was_in_hit = AtomicBool::new(false);
        A::on_every_cpu(&|| {
            let cpu = A::this_cpu_tracing().number();
            match done.get(cpu) {
                Some(done) if !done.load(Relaxed) => {
                    if !A::probes().is_outside() {
                        was_in_hit.store(true, Relaxed);
                        return;
                    }
                    work(cpu);
                    done.store(true, Relaxed);
                }
                _ => {}
            }
        });
        if !was_in_hit.load(Relaxed) {
            return;
        }
        // As in `Platform::synchronize_hits`: code that is interrupted again at once goes nowhere.
        (0..64u32 << (round % 8)).for_each(|_| core::hint::spin_loop());
    }
}

fn zeros(count: usize) -> Result<Vec<AtomicU64>, OutOfMemory> {
    let mut words = try_vec(count).map_err(|_| OutOfMemory { bytes: count * 8 })?;
    words.resize_with(count, || AtomicU64::new(0));
    Ok(words)
}

/// Empties an entry, if that is wanted.
fn empty(hash: &Hash, cpu: usize, key: &[u8], value: &[u64], emptied: Option<Emptied>) {
    match emptied {
        None => {}
        Some(Emptied::Cleared) => _ = hash.delete(cpu, key),
        Some(Emptied::Zeroed) => set_zero(hash, cpu, key, value.len() * 8),
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
        Map::Array(array) => on_each_part::<A>(array.cpus(), &|cpu| array.clear_cpu(cpu)),
        Map::Hash(hash) => hash.clear(),
        Map::Stacks(stacks) => stacks.clear(),
    }
}

/// Sets all values to zero and keeps the keys.
pub fn zero<A: Agent>(map: &Map) {
    match map {
        Map::Hash(hash) if hash.is_shared() => {
            hash.for_each(|cpu, key, value| set_zero(hash, cpu, key, value.len() * 8));
        }
        Map::Hash(hash) => on_each_part::<A>(hash.cpus(), &|cpu| {
            hash.for_each_of_cpu(cpu, |key, value| set_zero(hash, cpu, key, value.len() * 8));
        }),
        _ => clear::<A>(map),
    }
}
