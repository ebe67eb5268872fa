//! The memory of a map, read from outside: by another machine that shares it, while hits go on.
//!
//! ```text
//!   kernel: Map::parts ─► a part for each CPU: address, Layout ─► numbers ─┐
//!   reader: Layout::decode ◄──────────────────────────────────────────────┘
//!           Layout::for_each(load a word) ─► keys and values
//! ```
//!
//! # Invariants
//! IMAGE-1. Reading writes nothing, so a hit pays nothing for it.
//! IMAGE-2. An entry of a hash is as it was at one moment, as far as its state did not change
//!     meanwhile. A reader that does not find such a moment leaves the entry out, and counts it.
//!     A long key is written before its entry is live, so no key is half. Words of an array are
//!     not torn, but two words of a value may be from different moments.
//! IMAGE-3. A layout that was decoded has sizes that a map may have, whoever wrote its numbers.

use core::sync::atomic::Ordering::{self, Relaxed};

use bpf::MapDef;

use crate::{
    array::MAX_ARRAY_VALUE_BYTES,
    map::Map,
    stacks::{self, MAX_FRAMES, copy_frames},
    table::{Copied, MAX_KEY_BYTES, MAX_VALUE_BYTES, Read, VALUE, key_words, read_slot},
};

/// The form of a part of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Values, one after the other. The key is the index, in 4 bytes.
    Array { entries: u32, value_words: u32 },
    /// Slots of a table.
    Hash {
        slots: u32,
        key_bytes: u32,
        value_words: u32,
    },
    /// Slots of call stacks. The key is the number of the stack, in 8 bytes, and the value its
    /// frames.
    Stacks { slots: u32, frames: u32 },
}

/// The memory of a map that one CPU uses, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub cpu: usize,
    pub layout: Layout,
    /// Where it is: a multiple of 8.
    pub address: u64,
}

/// The most slots of any map.
const MAX_SLOTS: u32 = 8 * MapDef::MOST_ENTRIES;

impl Layout {
    /// The layout as numbers.
    pub const fn encode(self) -> [u32; 4] {
        match self {
            Self::Array {
                entries,
                value_words,
            } => [1, entries, value_words, 0],
            Self::Hash {
                slots,
                key_bytes,
                value_words,
            } => [2, slots, value_words, key_bytes],
            Self::Stacks { slots, frames } => [3, slots, frames, 0],
        }
    }

    /// The layout of those numbers. None: no map has it (IMAGE-3).
    pub fn decode(numbers: [u32; 4]) -> Option<Self> {
        let (layout, most_words, most_key) = match numbers {
            [1, entries, value_words, 0] => (
                Self::Array {
                    entries,
                    value_words,
                },
                MAX_ARRAY_VALUE_BYTES / 8,
                0,
            ),
            [2, slots, value_words, key_bytes] => (
                Self::Hash {
                    slots,
                    key_bytes,
                    value_words,
                },
                MAX_VALUE_BYTES / 8,
                MAX_KEY_BYTES,
            ),
            [3, slots, frames, 0] => (Self::Stacks { slots, frames }, MAX_FRAMES, 0),
            _ => return None,
        };
        let [_, count, words, key] = numbers;
        let fits = count <= MAX_SLOTS && words as usize <= most_words && key as usize <= most_key;
        fits.then_some(layout)
    }

    /// How many entries or slots there are, and the words of each.
    fn shape(self) -> (usize, usize) {
        match self {
            Self::Array {
                entries,
                value_words,
            } => (entries as usize, value_words as usize),
            Self::Hash {
                slots,
                key_bytes,
                value_words,
            } => {
                let key_words = key_words(key_bytes as usize);
                (slots as usize, VALUE + value_words as usize + key_words)
            }
            Self::Stacks { slots, frames } => (slots as usize, stacks::FIRST + frames as usize),
        }
    }

    /// Bytes of the part.
    pub fn bytes(self) -> usize {
        let (count, words) = self.shape();
        count.saturating_mul(words).saturating_mul(8)
    }

    /// Calls `visit` with the key and the value of each entry; for an array, of those that are not
    /// zero. `load` loads a word of the part by its index, with this order or a stronger one.
    /// Returns how many entries were left out (IMAGE-2).
    pub fn for_each(
        self,
        mut load: impl FnMut(usize, Ordering) -> u64,
        mut visit: impl FnMut(&[u8], &[u64]),
    ) -> usize {
        let (count, words) = self.shape();
        let mut left_out = 0;
        let mut copied = Copied::new();
        let mut value = [0; MAX_ARRAY_VALUE_BYTES / 8];
        let mut frames = [0; MAX_FRAMES];
        for index in 0..count {
            let first = index * words;
            let mut load = |word: usize, order| load(first + word, order);
            match self {
                Self::Array { .. } => {
                    let value = value.get_mut(..words).unwrap_or_default();
                    for (at, word) in value.iter_mut().enumerate() {
                        *word = load(at, Relaxed);
                    }
                    if value.iter().any(|word| *word != 0) {
                        visit(&(index as u32).to_le_bytes(), value);
                    }
                }
                Self::Hash {
                    key_bytes,
                    value_words,
                    ..
                } => {
                    let (key_bytes, value_words) = (key_bytes as usize, value_words as usize);
                    match read_slot(key_words(key_bytes), value_words, load, &mut copied) {
                        Read::Nothing => {}
                        Read::Unsettled => left_out += 1,
                        Read::Entry => visit(
                            copied.key_bytes().get(..key_bytes).unwrap_or_default(),
                            copied.value.get(..value_words).unwrap_or_default(),
                        ),
                    }
                }
                Self::Stacks {
                    frames: max_frames, ..
                } => {
                    let copied = copy_frames(max_frames as usize, load, &mut frames);
                    if let Some((state, count)) = copied
                        && let Some(frames) = frames.get(..count)
                    {
                        visit(&stacks::number(index, state).to_le_bytes(), frames);
                    }
                }
            }
        }
        left_out
    }
}

impl Map {
    /// Its parts.
    pub fn for_each_part(&self, mut visit: impl FnMut(Part)) {
        match self {
            Self::Array(array) => {
                let layout = Layout::Array {
                    entries: array.entries() as u32,
                    value_words: array.value_words() as u32,
                };
                for cpu in 0..array.cpus() {
                    visit(Part {
                        cpu,
                        layout,
                        address: array.address(cpu),
                    });
                }
            }
            Self::Hash(hash) => {
                for (cpu, (address, slots)) in hash.places().enumerate() {
                    let layout = Layout::Hash {
                        slots: slots as u32,
                        key_bytes: hash.key_size() as u32,
                        value_words: hash.value_words() as u32,
                    };
                    visit(Part {
                        cpu,
                        layout,
                        address,
                    });
                }
            }
            Self::Stacks(stacks) => visit(Part {
                cpu: 0,
                layout: Layout::Stacks {
                    slots: stacks.slots() as u32,
                    frames: stacks.max_frames() as u32,
                },
                address: stacks.address(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;
    use std::{collections::BTreeMap, vec::Vec};

    use bpf::MapKind;

    use super::*;
    use crate::When;

    /// All entries of a map, read by address as another process does.
    fn read(map: &Map) -> BTreeMap<(usize, Vec<u8>), Vec<u64>> {
        let mut found = BTreeMap::new();
        map.for_each_part(|part| {
            let layout = Layout::decode(part.layout.encode()).expect("a layout of a map");
            assert_eq!(layout, part.layout);
            let words = core::ptr::with_exposed_provenance::<AtomicU64>(part.address as usize);
            let load = |index, order| {
                assert!(index * 8 < layout.bytes(), "{index} is outside");
                // SAFETY: a word of the part; the map lives.
                unsafe { &*words.add(index) }.load(order)
            };
            let left_out = layout.for_each(load, |key, value| {
                let before = found.insert((part.cpu, key.to_vec()), value.to_vec());
                assert_eq!(before, None, "{key:?} came twice");
            });
            assert_eq!(left_out, 0);
        });
        found
    }

    fn map(kind: MapKind, key_size: u32, value_size: u32, entries: u32) -> Map {
        let def = MapDef {
            name: "map".into(),
            kind,
            key_size,
            value_size,
            entries,
        };
        Map::new(&def, 3).unwrap()
    }

    #[test]
    fn arrays_and_hashes_are_read_as_they_are() {
        for (kind, cpus) in [(MapKind::Array, 1), (MapKind::PerCpuArray, 3)] {
            let map = map(kind, 4, 16, 5);
            let Map::Array(array) = &map else { panic!() };
            let mut expected = BTreeMap::new();
            for cpu in 0..cpus {
                array.write(4, cpu, &[0, 7 + cpu as u64]);
                let key = 4_u32.to_le_bytes().to_vec();
                expected.insert((cpu, key), [0, 7 + cpu as u64].to_vec());
            }
            assert_eq!(read(&map), expected);
        }
        // Keys of one word and of several, the one whose word is that of a free slot among them.
        for (kind, cpus) in [(MapKind::Hash, 1), (MapKind::PerCpuHash, 3)] {
            for key_size in [1, 8, 21] {
                let map = map(kind, key_size as u32, 24, 40);
                let Map::Hash(hash) = &map else { panic!() };
                let mut expected = BTreeMap::new();
                for cpu in 0..cpus {
                    for number in 0..30 {
                        let mut key = crate::table::TURNED.to_le_bytes().to_vec();
                        key.resize(key_size, 9);
                        key[0] ^= number;
                        let value: Vec<u64> = (1..4).map(|word| word * number as u64).collect();
                        let bytes: Vec<u8> =
                            value.iter().flat_map(|word| word.to_le_bytes()).collect();
                        hash.update(cpu, &key, &bytes, When::Any).unwrap().unwrap();
                        expected.insert((cpu, key), value);
                    }
                    let gone = expected.keys().find(|(of, _)| *of == cpu).cloned().unwrap();
                    assert!(hash.delete(cpu, &gone.1));
                    expected.remove(&gone);
                }
                assert_eq!(read(&map), expected, "{kind:?}, {key_size}");
            }
        }
    }

    #[test]
    fn stacks_are_read_with_their_numbers() {
        let map = map(MapKind::Stacks, 4, 8 * 4, 10);
        let Map::Stacks(stacks) = &map else { panic!() };
        stacks.insert(&[9]).unwrap();
        stacks.clear();
        let mut expected = BTreeMap::new();
        for frames in [&[1_u64, 2, 3][..], &[4]] {
            let number = stacks.insert(frames).unwrap();
            expected.insert((0, number.to_le_bytes().to_vec()), frames.to_vec());
        }
        assert_eq!(read(&map), expected);
    }

    /// An owner who does not finish, and one who changes the entry at each look.
    #[test]
    fn an_entry_that_does_not_settle_is_left_out_and_counted() {
        const LIVE: u64 = 1 << 16;
        const OWNED: u64 = 1 << 17;
        const VERSION: u64 = 1 << 32;
        let layout = Layout::Hash {
            slots: 1,
            key_bytes: 8,
            value_words: 1,
        };
        let mut version = 0;
        let changed = layout.for_each(
            |word, _| match word {
                1 => {
                    version += VERSION;
                    LIVE | version
                }
                _ => 1,
            },
            |_, _| panic!("it is torn"),
        );
        let owned = |word, _| if word == 1 { LIVE | OWNED } else { 1 };
        let owned = layout.for_each(owned, |_, _| panic!("it is torn"));
        assert_eq!((changed, owned), (1, 1));
    }

    #[test]
    fn layouts_of_no_map_are_refused() {
        for numbers in [
            [0, 1, 1, 0],
            [4, 1, 1, 0],
            [1, 1, 513, 0],
            [1, 1, 1, 1],
            [1, u32::MAX, 1, 0],
            [2, 1, 65, 8],
            [2, 1, 1, 513],
            [3, 1, 128, 0],
        ] {
            assert_eq!(Layout::decode(numbers), None, "{numbers:?}");
        }
    }
}
