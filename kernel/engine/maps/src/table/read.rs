//! Lookups, and the seqlock by which entries are copied (TABLE-4).
//!
//! A reader copies, and then looks whether the slot's version, flags and owner are those from
//! before. If not, it begins again, up to a limit. Pins and the flag `USED` do not count, because
//! neither changes a key or a value of several words.

use core::sync::atomic::{
    Ordering::{self, Acquire, Relaxed},
    fence,
};

use super::{
    super::steps::{Steps, load},
    ATTEMPTS, MAX_KEY_BYTES, MAX_KEY_WORDS, MAX_VALUE_WORDS, STATE, Table, VALUE,
    slots::{Key, LIVE, OWNED, PINS, USED},
    window::{Place, TURNED},
};

/// The finding of a reader in a slot.
pub(crate) enum Read {
    Entry,
    Nothing,
    /// An update did not finish while it was looked at.
    Unsettled,
}

/// The words of a key, as long as the longest one.
pub(crate) type KeyWords = [u64; MAX_KEY_WORDS];

/// An entry, copied.
pub(crate) struct Copied {
    pub(crate) key: KeyWords,
    pub(crate) value: [u64; MAX_VALUE_WORDS],
}

impl Copied {
    pub(crate) const fn new() -> Self {
        Self {
            key: [0; MAX_KEY_WORDS],
            value: [0; MAX_VALUE_WORDS],
        }
    }

    /// The bytes of the longest key; those past the table's own keys have no meaning.
    pub(crate) fn key_bytes(&self) -> [u8; MAX_KEY_BYTES] {
        let mut key = [0; MAX_KEY_BYTES];
        for (bytes, word) in key.chunks_exact_mut(8).zip(&self.key) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        key
    }
}

impl Table {
    /// The value of `key`, null if it has none. The address stays that of this value until the key
    /// is deleted. After that it is still memory of the map, but of another key perhaps.
    #[inline(always)]
    pub(crate) fn lookup<S: Steps>(&self, key: &Key<'_>) -> *mut u64 {
        let Place::Taken(slot) = self.search::<S>(key) else {
            return core::ptr::null_mut();
        };
        let state = load::<S>(slot.state(), Acquire);
        // The key again, because the state that was seen may be that of a key that came meanwhile.
        if state & LIVE != 0 && self.holds::<S>(slot, key) {
            core::ptr::from_ref(slot.value()).cast_mut().cast()
        } else {
            core::ptr::null_mut()
        }
    }

    /// Word `index` of the value of `key`; 0 if the key or the word is not there. Any CPU.
    pub(crate) fn word<S: Steps>(&self, key: &Key<'_>, index: usize) -> u64 {
        let Place::Taken(slot) = self.search::<S>(key) else {
            return 0;
        };
        if index >= self.value_words {
            return 0;
        }
        for _ in 0..ATTEMPTS {
            let before = load::<S>(slot.state(), Acquire);
            if before & LIVE == 0 || !self.holds::<S>(slot, key) {
                return 0;
            }
            // SAFETY: a slot of this table; the index was compared above.
            let word = unsafe { self.value_word(slot, index) };
            let word = load::<S>(word, Relaxed);
            // As in `read`: if another key took the slot over, the version tells.
            fence(Acquire);
            let after = load::<S>(slot.state(), Relaxed);
            if (before ^ after) & !PINS & !USED == 0 {
                return word;
            }
        }
        0
    }

    /// Copies the key of the entry in slot `index`. False if there is none, or if it does not keep
    /// still.
    pub(crate) fn copy_key<S: Steps>(&self, index: usize, to: &mut KeyWords) -> bool {
        if index >= self.slots() {
            return false;
        }
        // SAFETY: compared above.
        let slot = unsafe { self.slot(index) };
        for _ in 0..ATTEMPTS {
            let before = load::<S>(slot.state(), Acquire);
            if before & LIVE == 0 {
                return false;
            }
            if self.key_words == 0
                && let Some(word) = to.first_mut()
            {
                *word = load::<S>(slot.tag(), Relaxed) ^ TURNED;
            }
            for (index, word) in to.iter_mut().enumerate().take(self.key_words) {
                // SAFETY: a slot of this table; the index is below `key_words`.
                *word = load::<S>(unsafe { self.key_word(slot, index) }, Relaxed);
            }
            fence(Acquire);
            let after = load::<S>(slot.state(), Relaxed);
            if before & OWNED == 0 && (before ^ after) & !PINS & !USED == 0 {
                return true;
            }
        }
        false
    }

    /// Copies the entry of slot `index`.
    pub(crate) fn read<S: Steps>(&self, index: usize, to: &mut Copied) -> Read {
        if index >= self.slots() {
            return Read::Nothing;
        }
        // SAFETY: compared above.
        let slot = unsafe { self.slot(index) };
        // SAFETY: a slot has the words of state, value and key, and no others are asked for.
        let word = |index| unsafe { slot.word(index) };
        let load = |index, order| load::<S>(word(index), order);
        read_slot(self.key_words, self.value_words, load, to)
    }

    /// How many slots [`Table::read`] can be asked for.
    pub(crate) fn places(&self) -> usize {
        self.slots()
    }
}

/// How often a reader looks at an entry that others change.
const READ_ATTEMPTS: u32 = 1000;

/// Copies the entry of a slot, of which `load` loads a word (TABLE-4).
pub(crate) fn read_slot(
    key_words: usize,
    value_words: usize,
    mut load: impl FnMut(usize, Ordering) -> u64,
    to: &mut Copied,
) -> Read {
    for _ in 0..READ_ATTEMPTS {
        let before = load(STATE, Acquire);
        if before & LIVE == 0 {
            return Read::Nothing;
        }
        if before & OWNED != 0 {
            core::hint::spin_loop();
            continue;
        }
        if key_words == 0
            && let Some(word) = to.key.first_mut()
        {
            *word = load(0, Relaxed) ^ TURNED;
        }
        for (index, word) in to.key.iter_mut().enumerate().take(key_words) {
            *word = load(VALUE + value_words + index, Relaxed);
        }
        for (index, word) in to.value.iter_mut().enumerate().take(value_words) {
            *word = load(VALUE + index, Relaxed);
        }
        // Pairs with the fence of the owner: if a load above saw a word of the owner's, the load
        // below sees that there was one.
        fence(Acquire);
        let after = load(STATE, Relaxed);
        if (before ^ after) & !PINS & !USED == 0 {
            return Read::Entry;
        }
    }
    Read::Unsettled
}
