//! The maps of compiled actions: their files.

#[path = "../../../kernel/engine/maps/src/block.rs"]
#[allow(dead_code)]
pub(crate) mod block;
#[path = "../../../kernel/engine/maps/src/stacks.rs"]
#[allow(dead_code)]
pub(crate) mod stacks;
#[path = "../../../kernel/engine/maps/src/steps.rs"]
#[allow(dead_code)]
pub(crate) mod steps;
#[path = "../../../kernel/engine/maps/src/table/mod.rs"]
#[allow(dead_code, unused_imports)]
pub(crate) mod table;

/// The operations of the models on a table. Its own functions are seen from here alone.
pub(crate) mod hash {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::{
        steps::NoSteps,
        table::{Bytes, Copied, Lost, NotUpdated, Read, Shape, TURNED, Table, When, fold},
    };

    /// The first words of keys whose search begins at the first slot of a table for one entry.
    pub(crate) fn neighbours<const COUNT: usize>() -> [u64; COUNT] {
        let mut keys = (1..).filter(|key| fold(key ^ TURNED).is_multiple_of(2));
        [(); COUNT].map(|()| keys.next().expect("half of all keys"))
    }

    /// A table for `entries` keys of `key_words` words and values of `value_words` words.
    pub(crate) struct Hash {
        table: Table,
        key_words: usize,
        value_words: usize,
    }

    fn bytes(word: u64, words: usize) -> Vec<u8> {
        word.to_le_bytes().repeat(words)
    }

    impl Hash {
        pub(crate) fn new(entries: usize, key_words: usize, value_words: usize) -> Self {
            let shape = Shape {
                key_bytes: key_words * 8,
                value_bytes: value_words * 8,
                entries,
            };
            Self {
                table: Table::new(shape).expect("memory"),
                key_words,
                value_words,
            }
        }

        /// Once it is where it stays.
        pub(crate) fn touch(&self) {
            for word in self.table.words() {
                word.load(Ordering::Relaxed);
            }
        }

        pub(crate) fn add(&self, key: u64, delta: u64) -> Result<(), Lost> {
            if self.key_words == 1 {
                return self.table.add_word::<NoSteps>(key, delta);
            }
            let key = bytes(key, self.key_words);
            self.table
                .add::<NoSteps>(&self.table.key(Bytes::new(&key)), delta)
        }

        pub(crate) fn update(&self, key: u64, value: u64) -> Result<(), NotUpdated> {
            let key = bytes(key, self.key_words);
            let value = bytes(value, self.value_words);
            let (key, value) = (Bytes::new(&key), Bytes::new(&value));
            self.table
                .update::<NoSteps>(&self.table.key(key), value, When::Any)
        }

        pub(crate) fn delete(&self, key: u64) -> bool {
            let key = bytes(key, self.key_words);
            self.table
                .delete::<NoSteps>(&self.table.key(Bytes::new(&key)))
        }

        /// The words of the value.
        pub(crate) fn lookup(&self, key: u64) -> Option<Vec<u64>> {
            let key = bytes(key, self.key_words);
            let value = self
                .table
                .lookup::<NoSteps>(&self.table.key(Bytes::new(&key)));
            let value: *const AtomicU64 = value.cast_const().cast();
            let word = |n| {
                // SAFETY: of a table that lives, and a value has so many words.
                unsafe { &*value.add(n) }.load(Ordering::Relaxed)
            };
            (!value.is_null()).then(|| (0..self.value_words).map(word).collect())
        }

        /// The entry in the first slot: the first word of its key, and its value.
        pub(crate) fn first_entry(&self) -> Option<(u64, Vec<u64>)> {
            self.entry(0)
        }

        /// All entries.
        pub(crate) fn entries(&self) -> Vec<(u64, Vec<u64>)> {
            let all = 0..self.table.places();
            all.filter_map(|index| self.entry(index)).collect()
        }

        fn entry(&self, index: usize) -> Option<(u64, Vec<u64>)> {
            let mut copied = Copied::new();
            match self.table.read::<NoSteps>(index, &mut copied) {
                Read::Nothing => None,
                Read::Unsettled => panic!("unsettled"),
                Read::Entry => {
                    let key = &copied.key[..self.key_words];
                    assert!(key.iter().all(|word| *word == key[0]), "a torn key");
                    Some((key[0], copied.value[..self.value_words].to_vec()))
                }
            }
        }

        /// How many keys it thinks that it has, and how many operations it has lost.
        pub(crate) fn counts(&self) -> (u64, u64) {
            let (full, busy) = self.table.lost();
            (self.table.len(), full + busy)
        }
    }
}

/// Traces of up to `frames` frames.
pub(crate) fn stacks(frames: usize) -> stacks::Stacks {
    stacks::Stacks::new(frames, 1).expect("memory")
}

/// Once they are where they stay.
pub(crate) fn touch_stacks(stacks: &stacks::Stacks) {
    for word in stacks.words() {
        word.load(core::sync::atomic::Ordering::Relaxed);
    }
}
