//! The search for a key in its window.
//!
//! A key of up to 8 bytes is word 0 of its slot, turned round. Of a longer one that word is the
//! hash, and the key itself is compared. The hash says where the window begins.

use core::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};

use super::{
    super::steps::{Steps, load},
    Table,
    slots::{Bytes, Key, LIVE, OWNED, Slot, USED, VERSION},
};

/// An odd number with many ones. The hash of a key is the product with it, folded.
pub(crate) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keys of one word are stored with these bits turned round, so that the key whose word would be 0
/// is not one that programs use.
pub(crate) const TURNED: u64 = 0xd1b5_4a32_d192_ed03;

/// The result of a search.
pub(super) enum Place<'t> {
    /// The key has this slot. It is live or not.
    Taken(Slot<'t>),
    /// The key is in no slot, and this one is the first that is free.
    Free(Slot<'t>),
    /// The key is in no slot, and its window has no free one.
    None,
    /// A slot may be the key's, but its owner is not done with it.
    Unsure,
}

/// The product of two words, folded to one word in which each bit depends on many bits of both.
#[inline(always)]
pub(crate) const fn fold(word: u64) -> u64 {
    let product = word as u128 * MULTIPLIER as u128;
    product as u64 ^ (product >> 64) as u64
}

impl Table {
    #[inline(always)]
    pub(super) fn home(&self, hash: u64) -> Slot<'_> {
        // SAFETY: the mask is below the number of slots.
        unsafe { self.slot((hash & self.mask) as usize) }
    }

    /// The slot of the key whose word 0 is that of a free slot.
    fn special(&self) -> Slot<'_> {
        // SAFETY: this is the index of the last slot; each table has some.
        unsafe { self.slot(self.slots().wrapping_sub(1)) }
    }

    /// The key in the first bytes of `bytes`, of which there are as many as a key has.
    #[inline(always)]
    pub(crate) fn key<'k>(&self, bytes: Bytes<'k>) -> Key<'k> {
        if self.key_words == 0 {
            return Self::word_key(bytes.word(0));
        }
        let mut hash = 0;
        for index in 0..self.key_words {
            hash = fold(hash ^ bytes.word(index) ^ TURNED);
        }
        let tag = if hash == 0 { 1 } else { hash };
        Key { tag, hash, bytes }
    }

    #[inline(always)]
    pub(crate) fn word_key<'k>(word: u64) -> Key<'k> {
        let tag = word ^ TURNED;
        Key {
            tag,
            hash: fold(tag),
            // SAFETY: no bytes.
            bytes: unsafe { Bytes::at(core::ptr::null(), 0) },
        }
    }

    /// Finds the slot of `key`. The slot may be another key's as soon as this returns, unless the
    /// caller sees later that it is pinned or owned.
    pub(super) fn search<'t, S: Steps>(&'t self, key: &Key<'_>) -> Place<'t> {
        if key.tag == 0 {
            return Place::Taken(self.special());
        }
        let mut slot = self.home(key.hash);
        let mut unsure = false;
        for _ in 0..self.window {
            let tag = load::<S>(slot.tag(), Acquire);
            if tag == key.tag {
                match self.compare::<S>(slot, key) {
                    Some(true) => return Place::Taken(slot),
                    Some(false) => {}
                    None => unsure = true,
                }
            }
            if tag == 0 {
                return if unsure {
                    Place::Unsure
                } else {
                    Place::Free(slot)
                };
            }
            // SAFETY: a window begins at a home, which is a slot up to `mask`, and as many slots as
            // a window has come after that one.
            slot = unsafe { self.next(slot) };
        }
        if unsure { Place::Unsure } else { Place::None }
    }

    /// Whether `slot`, whose tag is that of `key`, holds it; `None` while its owner changes it.
    #[inline(always)]
    fn compare<S: Steps>(&self, slot: Slot<'_>, key: &Key<'_>) -> Option<bool> {
        if self.key_words == 0 {
            return Some(true);
        }
        loop {
            let state = load::<S>(slot.state(), Acquire);
            // A slot that was claimed and never filled, or that has an owner who inserts.
            if state & (LIVE | USED) == 0 || state & (LIVE | OWNED) == OWNED {
                return None;
            }
            let same = self.holds::<S>(slot, key);
            // Pairs with the fence of an owner: if a load above saw a word of its key, the load
            // below sees that there was an owner.
            fence(Acquire);
            let after = load::<S>(slot.state(), Relaxed);
            if after & (LIVE | OWNED) == OWNED {
                return None;
            }
            if after / VERSION == state / VERSION {
                return Some(same);
            }
        }
    }
}
