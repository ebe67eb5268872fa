//! The words of a slot, keys, and the bytes that keys and values come from.
//!
//! A slot's state has pins in its low bits, five flags, and the version in its upper half. A pin
//! holds the key of a live slot in place (TABLE-3). The flag [`OWNED`] gives the slot to one
//! operation (TABLE-2).

use core::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use super::{
    super::steps::{Steps, add, load},
    STATE, Table, VALUE,
};

/// One pin, in the lowest bits of a state: somebody is about to change the value.
pub(crate) const PIN: u64 = 1;
pub(crate) const PINS: u64 = 0xffff;
/// The entry is in the map.
pub(crate) const LIVE: u64 = 1 << 16;
/// Somebody has the slot for itself. Only the owner changes its key. Additions to a live entry and
/// deletions go on.
pub(crate) const OWNED: u64 = 1 << 17;
/// The slot's value may differ from zero although it is not live.
pub(crate) const USED: u64 = 1 << 18;
/// The entry outlives one round of the hand ([`super::forget`]). The flag stays when the entry
/// goes.
pub(super) const ONE_ROUND: u64 = 1 << 19;
/// And another one.
pub(super) const ANOTHER: u64 = 1 << 20;
/// Counts changes; see TABLE-4.
pub(crate) const VERSION: u64 = 1 << 32;

/// Bytes that are read as words; the last word is filled up with zeros.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'b> {
    from: *const u8,
    len: usize,
    lender: PhantomData<&'b [u8]>,
}

impl<'b> Bytes<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        // SAFETY: borrowed for as long.
        unsafe { Self::at(bytes.as_ptr(), bytes.len()) }
    }

    /// # Safety
    /// The `len` bytes from `from` on can be read during `'b`.
    #[inline(always)]
    pub(crate) unsafe fn at(from: *const u8, len: usize) -> Self {
        Self {
            from,
            len,
            lender: PhantomData,
        }
    }

    /// Word `index`; 0 past the end.
    #[inline(always)]
    pub(super) fn word(self, index: usize) -> u64 {
        let left = self.len.saturating_sub(index.wrapping_mul(8));
        if left >= 8 {
            // SAFETY: eight bytes are left.
            return unsafe {
                self.from
                    .add(index.wrapping_mul(8))
                    .cast::<u64>()
                    .read_unaligned()
            };
        }
        self.last_word(left)
    }

    /// The last `left` bytes, fewer than a word.
    #[inline]
    fn last_word(self, left: usize) -> u64 {
        let mut word = 0;
        for back in 0..left {
            // SAFETY: at most `len` bytes back from the end, and `back` is below that.
            let byte = unsafe { *self.from.add(self.len).sub(1).sub(back) };
            word = word << 8 | u64::from(byte);
        }
        word
    }
}

/// A key as the table compares it.
#[derive(Clone, Copy)]
pub(crate) struct Key<'k> {
    /// Word 0 of its slot.
    pub(super) tag: u64,
    /// Where the search begins; the lower bits count.
    pub(super) hash: u64,
    /// The key, if it is longer than 8 bytes.
    pub(super) bytes: Bytes<'k>,
}

/// A slot of a table.
#[derive(Clone, Copy)]
pub(super) struct Slot<'t> {
    words: NonNull<AtomicU64>,
    table: PhantomData<&'t Table>,
}

impl<'t> Slot<'t> {
    /// # Safety
    /// A slot of the table has this word.
    #[inline(always)]
    pub(super) unsafe fn word(self, index: usize) -> &'t AtomicU64 {
        // SAFETY: the contract; the memory lives as long as the table (`'t`).
        unsafe { self.words.add(index).as_ref() }
    }

    #[inline(always)]
    pub(super) fn tag(self) -> &'t AtomicU64 {
        // SAFETY: each slot has it.
        unsafe { self.word(0) }
    }

    #[inline(always)]
    pub(super) fn state(self) -> &'t AtomicU64 {
        // SAFETY: each slot has it.
        unsafe { self.word(STATE) }
    }

    /// The first word of the value.
    #[inline(always)]
    pub(super) fn value(self) -> &'t AtomicU64 {
        // SAFETY: values have a word at least.
        unsafe { self.word(VALUE) }
    }
}

impl Table {
    pub(super) fn slots(&self) -> usize {
        self.mask as usize + 1 + self.window
    }

    /// # Safety
    /// `index` is below [`Table::slots`].
    #[inline(always)]
    pub(super) unsafe fn slot(&self, index: usize) -> Slot<'_> {
        // SAFETY: by the contract; each slot has `stride` bytes of the memory.
        let words = unsafe { self.first.byte_add(index.wrapping_mul(self.stride)) };
        Slot {
            words,
            table: PhantomData,
        }
    }

    /// The slot after `slot`.
    ///
    /// # Safety
    /// `slot` is one of this table, and not the last one.
    #[inline(always)]
    pub(super) unsafe fn next<'t>(&'t self, slot: Slot<'t>) -> Slot<'t> {
        Slot {
            // SAFETY: by the contract, the next slot is one of the memory, too.
            words: unsafe { slot.words.byte_add(self.stride) },
            ..slot
        }
    }

    /// A long key's word, which lies after the value.
    ///
    /// # Safety
    /// `slot` is one of this table, and `index` is below its `key_words`.
    #[inline(always)]
    pub(super) unsafe fn key_word<'t>(&self, slot: Slot<'t>, index: usize) -> &'t AtomicU64 {
        // SAFETY: by the contract; a slot has the words of state, value and key.
        unsafe { slot.word(VALUE + self.value_words + index) }
    }

    /// # Safety
    /// `slot` is one of this table, and `index` is below its `value_words`.
    #[inline(always)]
    pub(super) unsafe fn value_word<'t>(&self, slot: Slot<'t>, index: usize) -> &'t AtomicU64 {
        // SAFETY: as above.
        unsafe { slot.word(VALUE + index) }
    }

    /// Whether the slot's key is `key`. It is sure only of a slot whose key cannot change
    /// meanwhile.
    #[inline(always)]
    pub(super) fn holds<S: Steps>(&self, slot: Slot<'_>, key: &Key<'_>) -> bool {
        if load::<S>(slot.tag(), Acquire) != key.tag {
            return false;
        }
        for index in 0..self.key_words {
            // SAFETY: callers have the slot from this table; the index is below `key_words`.
            let word = unsafe { self.key_word(slot, index) };
            if load::<S>(word, Relaxed) != key.bytes.word(index) {
                return false;
            }
        }
        true
    }

    /// Pins `slot` if it is live and holds `key`.
    #[inline(always)]
    pub(super) fn pin<S: Steps>(&self, slot: Slot<'_>, key: &Key<'_>) -> bool {
        // Looked at first, so that slots that are not live are hardly ever pinned.
        if load::<S>(slot.state(), Relaxed) & LIVE == 0 {
            return false;
        }
        // Acquire pairs with the Release of whoever made it live. If it is live here, its key stays
        // until the pin goes (TABLE-3).
        if add::<S>(slot.state(), PIN, Acquire) & LIVE != 0 && self.holds::<S>(slot, key) {
            return true;
        }
        self.unpin::<S>(slot);
        false
    }

    /// Gives a pin back. Release: whoever takes the slot over sees what was done under the pin.
    #[inline(always)]
    pub(super) fn unpin<S: Steps>(&self, slot: Slot<'_>) {
        add::<S>(slot.state(), PIN.wrapping_neg(), Release);
    }

    /// Does what [`Table::pin`] does, for a key of one word.
    #[inline(always)]
    pub(super) fn pin_word<S: Steps>(&self, slot: Slot<'_>, tag: u64) -> bool {
        if load::<S>(slot.state(), Relaxed) & LIVE == 0 {
            return false;
        }
        if add::<S>(slot.state(), PIN, Acquire) & LIVE != 0 && load::<S>(slot.tag(), Acquire) == tag
        {
            return true;
        }
        self.unpin::<S>(slot);
        false
    }
}
