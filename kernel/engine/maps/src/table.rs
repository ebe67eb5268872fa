//! The hash table behind [`super::Hash`]: keys of fixed size, found by linear probing.
//!
//! ```text
//!   slot    word 0   the key itself (keys of up to 8 bytes), or its hash; 0 while the slot is free
//!           word 1   state: pins, flags, version
//!           word 2…  the value
//!           behind   the key, if it is longer than 8 bytes
//!
//!   free --a key claims word 0--> not live --first value--> live --delete--> not live …
//! ```
//!
//! A key is searched for in the [`Table::window`] slots that begin at its home. A slot keeps its
//! key after a delete, so a key that comes back finds its slot again. Another key takes such a slot
//! over when its own window has no free slot.
//!
//! # Invariants
//! TABLE-1. A free slot is claimed by an exchange of word 0, and never becomes free again. So two
//!     hits that insert the same key at the same time meet at the same slot: a key is in one slot
//!     at the most.
//! TABLE-2. A slot is taken over by another key only if it is not live, has no pins, and nobody
//!     owns it; the one who takes it over owns it meanwhile ([`OWNED`]). It holds the turn of its
//!     key ([`Table::turns`]), and the key's window has no free slot, so nobody else inserts that
//!     key.
//! TABLE-3. A pin that was taken on a live slot holds its key in place until the pin is given back.
//!     So an addition reaches the entry of its key or none, also if the key is deleted meanwhile:
//!     then it was added before the deletion.
//! TABLE-4. Each change of a slot's key, each deletion and each change of a value of several words
//!     raises the version. A reader that sees the same version before and after has read one entry.
//! TABLE-5. A live slot's value was written completely by its insertion before it became live. The
//!     exception needs no writing: an addition to a slot that was never used finds zeros there.
//!
//! # Contexts and ordering
//! All operations work in tasks, interrupts and NMIs on top of one another on one CPU, and on all
//! CPUs at once. None waits: loops go round again only if somebody else got further, and give up
//! after [`ATTEMPTS`] times.
//!
//! A hit that meets a slot of its own key, owned by a hit that it has interrupted, cannot wait for
//! it. It is refused as [`Lost::Busy`], and counted. That happens only in the middle of: an
//! insertion of the same key by `update`; the first insertion of a key of more than 8 bytes; an
//! `update` of a value of several words; the return of a key that was deleted. An addition to a key
//! of up to 8 bytes that was never deleted is never refused as busy while there are free slots.
//!
//! Word 0: a claim is Release for the long key's sake, loads are Acquire. State: every change that
//! hands over a value or a key is Release, and the loads that act on it are Acquire. A seqlock
//! reads entries (TABLE-4), so whoever owns a slot has a Release fence behind the exchange that
//! made it the owner.
//!
//! # No room
//! A key beyond [`Shape::entries`] is refused as [`Lost::Full`], and counted. Insertions that go on
//! at the same time may all take the last place. So is one whose window has only live slots. The
//! table has twice as many slots as entries, so that a full window is next to impossible (below one
//! in 10^9 for a full table of random keys).

use core::{
    marker::PhantomData,
    ptr::NonNull,
    sync::atomic::{
        AtomicU64, Ordering,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        fence,
    },
};

use super::{
    block::{Block, OutOfMemory},
    steps::{Steps, add, exchange, load, store},
};

/// The most bytes of a key.
pub const MAX_KEY_BYTES: usize = 64;
/// The most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 256;
/// The words of the longest key.
const MAX_KEY_WORDS: usize = MAX_KEY_BYTES / 8;
/// The words of the longest value.
pub(super) const MAX_VALUE_WORDS: usize = MAX_VALUE_BYTES / 8;

/// The longest search. With it the slots of a table of up to half as many entries cannot run out.
const MAX_WINDOW: usize = 128;
/// How often an operation begins again because others changed what it looked at.
const ATTEMPTS: u32 = 8;

/// One pin, in the lowest bits of a state: somebody is about to change the value.
pub(super) const PIN: u64 = 1;
const PINS: u64 = 0xffff;
/// The entry is in the map.
pub(super) const LIVE: u64 = 1 << 16;
/// Somebody has the slot for itself. Only the owner changes its key. Additions to a live entry and
/// deletions go on.
const OWNED: u64 = 1 << 17;
/// The slot's value may differ from zero although it is not live.
const USED: u64 = 1 << 18;
/// Counts changes; see TABLE-4.
const VERSION: u64 = 1 << 32;

/// An odd number with many ones. The hash of a key is the product with it, folded.
pub(super) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keys of one word are stored with these bits turned round, so that the key whose word would be 0
/// is not one that programs use.
pub(super) const TURNED: u64 = 0xd1b5_4a32_d192_ed03;

/// Why a hit could not be recorded. The table counts each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// There is no room for another key.
    Full,
    /// An operation that this one interrupted, or one on another CPU, has not finished with the
    /// key.
    Busy,
}

/// When an update is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In any case.
    Any,
    /// Only if the key is not in the map.
    Absent,
    /// Only if the key is in the map.
    Present,
}

/// Why an update did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotUpdated {
    /// The key is in the map, and [`When::Absent`] was asked for.
    Present,
    /// The key is not in the map, and [`When::Present`] was asked for.
    Absent,
    /// It is lost, and counted.
    Lost(Lost),
}

/// The sizes of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// 1 to [`MAX_KEY_BYTES`].
    pub(super) key_bytes: usize,
    /// 1 to [`MAX_VALUE_BYTES`].
    pub(super) value_bytes: usize,
    /// How many keys it takes; below 2^32.
    pub(super) entries: usize,
}

/// A table.
#[repr(C, align(256))]
pub struct Table {
    /// The first slot. A field of its own, because a hit reads it.
    pub(super) first: NonNull<AtomicU64>,
    /// The number of homes less 1.
    pub(super) mask: u64,
    /// Bytes of a slot.
    pub(super) stride: usize,
    /// How many slots a key may be in, from its home on.
    window: usize,
    /// Words of the key behind the value; 0 if word 0 is the key.
    key_words: usize,
    value_words: usize,
    shape: Shape,
    /// Entries that are live, as a signed number: each is counted after it has changed.
    live: AtomicU64,
    full: AtomicU64,
    busy: AtomicU64,
    /// An operation that takes a slot over for a key holds the turn that the key's hash selects.
    turns: [AtomicU64; TURNS],
    memory: Block,
}

/// How many insertions may take slots over at the same time.
const TURNS: usize = 8;

// SAFETY: `first` points into `memory`, whose words are atomic.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Bytes that are read as words; the last word is filled up with zeros.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'b> {
    from: *const u8,
    len: usize,
    lender: PhantomData<&'b [u8]>,
}

impl<'b> Bytes<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        // SAFETY: borrowed for as long.
        unsafe { Self::at(bytes.as_ptr(), bytes.len()) }
    }

    /// # Safety
    /// The `len` bytes from `from` on can be read during `'b`.
    #[inline(always)]
    pub(super) unsafe fn at(from: *const u8, len: usize) -> Self {
        Self {
            from,
            len,
            lender: PhantomData,
        }
    }

    /// Word `index`; 0 behind the end.
    #[inline(always)]
    fn word(self, index: usize) -> u64 {
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
pub(super) struct Key<'k> {
    /// Word 0 of its slot.
    tag: u64,
    /// Where the search begins; the lower bits count.
    hash: u64,
    /// The key, if it is longer than 8 bytes.
    bytes: Bytes<'k>,
}

/// A slot of a table.
#[derive(Clone, Copy)]
struct Slot<'t> {
    words: NonNull<AtomicU64>,
    table: PhantomData<&'t Table>,
}

impl<'t> Slot<'t> {
    /// # Safety
    /// A slot of the table has this word.
    #[inline(always)]
    unsafe fn word(self, index: usize) -> &'t AtomicU64 {
        // SAFETY: the contract; the memory lives as long as the table (`'t`).
        unsafe { self.words.add(index).as_ref() }
    }

    #[inline(always)]
    fn tag(self) -> &'t AtomicU64 {
        // SAFETY: each slot has it.
        unsafe { self.word(0) }
    }

    #[inline(always)]
    fn state(self) -> &'t AtomicU64 {
        // SAFETY: each slot has it.
        unsafe { self.word(STATE) }
    }

    /// The first word of the value.
    #[inline(always)]
    fn value(self) -> &'t AtomicU64 {
        // SAFETY: values have a word at least.
        unsafe { self.word(VALUE) }
    }
}

/// The index of the state, and of the first word of a value.
const STATE: usize = 1;
pub(super) const VALUE: usize = 2;

/// The result of a search.
enum Place<'t> {
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
pub(super) const fn fold(word: u64) -> u64 {
    let product = word as u128 * MULTIPLIER as u128;
    product as u64 ^ (product >> 64) as u64
}

/// An insertion: what it does to an entry that is there, and what it makes of one that is not.
trait Put {
    /// It adds to the first word, and a new entry is as if it had been there with zeros.
    const FROM_ZERO: bool;
    /// If it may not insert, why.
    fn insert(&self) -> Result<(), NotUpdated>;
    /// If it may not change what is there, why.
    fn replace(&self) -> Result<(), NotUpdated>;
    /// Word `index` of a new value.
    fn word(&self, index: usize) -> u64;
}

/// Adds to the first word of a value, which is 0 at first.
struct Add(u64);

impl Put for Add {
    const FROM_ZERO: bool = true;

    #[inline(always)]
    fn insert(&self) -> Result<(), NotUpdated> {
        Ok(())
    }

    #[inline(always)]
    fn replace(&self) -> Result<(), NotUpdated> {
        Ok(())
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        if index == 0 { self.0 } else { 0 }
    }
}

/// Replaces a value.
struct Update<'v> {
    bytes: Bytes<'v>,
    when: When,
}

impl Put for Update<'_> {
    const FROM_ZERO: bool = false;

    #[inline(always)]
    fn insert(&self) -> Result<(), NotUpdated> {
        match self.when {
            When::Present => Err(NotUpdated::Absent),
            When::Any | When::Absent => Ok(()),
        }
    }

    #[inline(always)]
    fn replace(&self) -> Result<(), NotUpdated> {
        match self.when {
            When::Absent => Err(NotUpdated::Present),
            When::Any | When::Present => Ok(()),
        }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self.bytes.word(index)
    }
}

/// The outcome of an attempt.
enum Step {
    Done,
    /// Something changed under it.
    Again,
    Refused(NotUpdated),
}

const BUSY: Step = Step::Refused(NotUpdated::Lost(Lost::Busy));

/// The finding of a reader in a slot.
pub(super) enum Read {
    Entry,
    Nothing,
    /// An update did not finish while it was looked at.
    Unsettled,
}

/// The words of a key, as long as the longest one.
pub(super) type KeyWords = [u64; MAX_KEY_WORDS];

/// An entry, copied.
pub(super) struct Copied {
    pub(super) key: KeyWords,
    pub(super) value: [u64; MAX_VALUE_WORDS],
}

impl Copied {
    pub(super) const fn new() -> Self {
        Self {
            key: [0; MAX_KEY_WORDS],
            value: [0; MAX_VALUE_WORDS],
        }
    }

    /// The bytes of the longest key; those behind the table's own keys have no meaning.
    pub(super) fn key_bytes(&self) -> [u8; MAX_KEY_BYTES] {
        let mut key = [0; MAX_KEY_BYTES];
        for (bytes, word) in key.chunks_exact_mut(8).zip(&self.key) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        key
    }
}

impl Table {
    /// An empty table. The sizes were checked.
    pub(super) fn new(shape: Shape) -> Result<Self, OutOfMemory> {
        let homes = shape.entries.saturating_mul(2).next_power_of_two();
        let window = homes.min(MAX_WINDOW);
        let key_words = key_words(shape.key_bytes);
        let value_words = shape.value_bytes.div_ceil(8);
        let slot_words = VALUE + value_words + key_words;
        // Searches do not run around the end: behind the last home there is the rest of a window.
        // The slot behind that one belongs to the key whose word 0 is 0.
        let slots = homes.saturating_add(window);
        let memory = Block::zeroed(slots.saturating_mul(slot_words))?;
        Ok(Self {
            first: memory.start(),
            mask: homes as u64 - 1,
            stride: slot_words * 8,
            window,
            key_words,
            value_words,
            shape,
            live: AtomicU64::new(0),
            full: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            turns: [const { AtomicU64::new(0) }; TURNS],
            memory,
        })
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// How many keys are in the table. It is exact when no hit is under way.
    pub(super) fn len(&self) -> u64 {
        (self.live.load(Relaxed) as i64).max(0) as u64
    }

    /// How many operations were lost because the table was full, and because a key was busy.
    pub(super) fn lost(&self) -> (u64, u64) {
        (self.full.load(Relaxed), self.busy.load(Relaxed))
    }

    /// All words of the table's memory.
    #[allow(dead_code)]
    pub(super) fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let counters = [&self.live, &self.full, &self.busy];
        self.memory
            .words()
            .iter()
            .chain(counters)
            .chain(&self.turns)
    }

    fn slots(&self) -> usize {
        self.mask as usize + 1 + self.window
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> Slot<'_> {
        // SAFETY: callers give an index of a slot, and each slot has `stride` bytes of the memory.
        let words = unsafe { self.first.byte_add(index.wrapping_mul(self.stride)) };
        Slot {
            words,
            table: PhantomData,
        }
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> Slot<'_> {
        self.slot((hash & self.mask) as usize)
    }

    /// The slot behind `slot`, which is not the last one.
    #[inline(always)]
    fn next<'t>(&'t self, slot: Slot<'t>) -> Slot<'t> {
        Slot {
            // SAFETY: the next slot is one of the memory, too.
            words: unsafe { slot.words.byte_add(self.stride) },
            ..slot
        }
    }

    /// The slot of the key whose word 0 is that of a free slot.
    fn special(&self) -> Slot<'_> {
        self.slot(self.slots().wrapping_sub(1))
    }

    /// The key in the first bytes of `bytes`, of which there are as many as a key has.
    #[inline(always)]
    pub(super) fn key<'k>(&self, bytes: Bytes<'k>) -> Key<'k> {
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
    fn word_key<'k>(word: u64) -> Key<'k> {
        let tag = word ^ TURNED;
        Key {
            tag,
            hash: fold(tag),
            // SAFETY: no bytes.
            bytes: unsafe { Bytes::at(core::ptr::null(), 0) },
        }
    }

    /// A long key's word, which lies behind the value.
    #[inline(always)]
    fn key_word<'t>(&self, slot: Slot<'t>, index: usize) -> &'t AtomicU64 {
        // SAFETY: a slot has the words of state, value and key; `index` is below `key_words`.
        unsafe { slot.word(VALUE + self.value_words + index) }
    }

    #[inline(always)]
    fn value_word<'t>(&self, slot: Slot<'t>, index: usize) -> &'t AtomicU64 {
        // SAFETY: as above; `index` is below `value_words`.
        unsafe { slot.word(VALUE + index) }
    }

    /// Whether the slot's key is `key`. It is sure only of a slot whose key cannot change
    /// meanwhile.
    #[inline(always)]
    fn holds<S: Steps>(&self, slot: Slot<'_>, key: &Key<'_>) -> bool {
        if load::<S>(slot.tag(), Acquire) != key.tag {
            return false;
        }
        for index in 0..self.key_words {
            if load::<S>(self.key_word(slot, index), Relaxed) != key.bytes.word(index) {
                return false;
            }
        }
        true
    }

    /// Finds the slot of `key`. The slot may be another key's as soon as this returns, unless the
    /// caller sees later that it is pinned or owned.
    fn search<'t, S: Steps>(&'t self, key: &Key<'_>) -> Place<'t> {
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
            slot = self.next(slot);
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

    /// Pins `slot` if it is live and holds `key`.
    #[inline(always)]
    fn pin<S: Steps>(&self, slot: Slot<'_>, key: &Key<'_>) -> bool {
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
    fn unpin<S: Steps>(&self, slot: Slot<'_>) {
        add::<S>(slot.state(), PIN.wrapping_neg(), Release);
    }

    /// The value of `key`, null if it has none. The address stays that of this value until the key
    /// is deleted. After that it is still memory of the map, but of another key perhaps.
    #[inline(always)]
    pub(super) fn lookup<S: Steps>(&self, key: &Key<'_>) -> *mut u64 {
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
    pub(super) fn word<S: Steps>(&self, key: &Key<'_>, index: usize) -> u64 {
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
            let word = load::<S>(self.value_word(slot, index), Relaxed);
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
    pub(super) fn copy_key<S: Steps>(&self, index: usize, to: &mut KeyWords) -> bool {
        let slot = self.slot(index);
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
                *word = load::<S>(self.key_word(slot, index), Relaxed);
            }
            fence(Acquire);
            let after = load::<S>(slot.state(), Relaxed);
            if before & OWNED == 0 && (before ^ after) & !PINS & !USED == 0 {
                return true;
            }
        }
        false
    }

    /// Adds `delta` to the first word of the value of the key `word`, which is inserted with zeros
    /// if it is not there. For tables whose keys have up to 8 bytes.
    #[inline(always)]
    pub(super) fn add_word<S: Steps>(&self, word: u64, delta: u64) -> Result<(), Lost> {
        let key = Self::word_key(word);
        if key.tag != 0 {
            let mut slot = self.home(key.hash);
            let mut left = self.window;
            loop {
                let tag = load::<S>(slot.tag(), Acquire);
                if tag == key.tag {
                    if !self.pin_word::<S>(slot, key.tag) {
                        break;
                    }
                    add::<S>(slot.value(), delta, Relaxed);
                    self.unpin::<S>(slot);
                    return Ok(());
                }
                // The window is at least one slot long.
                left = left.wrapping_sub(1);
                if tag == 0 || left == 0 {
                    break;
                }
                slot = self.next(slot);
            }
        }
        self.add_word_slowly::<S>(word, delta)
    }

    /// As [`Table::pin`] for a key of one word.
    #[inline(always)]
    fn pin_word<S: Steps>(&self, slot: Slot<'_>, tag: u64) -> bool {
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

    /// How many bytes keys have.
    pub fn key_bytes(&self) -> usize {
        self.shape.key_bytes
    }

    #[cold]
    #[inline(never)]
    fn add_word_slowly<S: Steps>(&self, word: u64, delta: u64) -> Result<(), Lost> {
        self.add::<S>(&Self::word_key(word), delta)
    }

    /// Adds `delta` to the first word of the value of `key`, which is inserted with zeros if it is
    /// not there.
    pub(super) fn add<S: Steps>(&self, key: &Key<'_>, delta: u64) -> Result<(), Lost> {
        match self.put::<S, _>(key, &Add(delta)) {
            Err(NotUpdated::Lost(lost)) => Err(lost),
            // An addition accepts both.
            Ok(()) | Err(NotUpdated::Present | NotUpdated::Absent) => Ok(()),
        }
    }

    /// Sets the value of `key` to `value`, of which there are as many bytes as a value has.
    pub(super) fn update<S: Steps>(
        &self,
        key: &Key<'_>,
        value: Bytes<'_>,
        when: When,
    ) -> Result<(), NotUpdated> {
        self.put::<S, _>(key, &Update { bytes: value, when })
    }

    /// Deletes `key`. Returns whether it was there.
    pub(super) fn delete<S: Steps>(&self, key: &Key<'_>) -> bool {
        let Place::Taken(slot) = self.search::<S>(key) else {
            return false;
        };
        // If the slot is not live, or another key's by now, then the key was absent meanwhile.
        self.pin::<S>(slot, key) && self.delete_pinned::<S>(slot)
    }

    /// Deletes the entry in `slot`, which this operation has pinned, and gives the pin back.
    /// Returns whether nobody else has deleted it meanwhile.
    fn delete_pinned<S: Steps>(&self, slot: Slot<'_>) -> bool {
        S::step();
        // Before the entry goes, because nobody may take its value for zeros then.
        slot.state().fetch_or(USED, Relaxed);
        S::step();
        let mine = slot.state().fetch_and(!LIVE, AcqRel) & LIVE != 0;
        if mine {
            add::<S>(&self.live, 1u64.wrapping_neg(), Relaxed);
        }
        add::<S>(slot.state(), VERSION.wrapping_sub(PIN), Release);
        mine
    }

    /// Deletes all entries that are there.
    pub(super) fn clear<S: Steps>(&self) {
        for index in 0..self.slots() {
            let slot = self.slot(index);
            if load::<S>(slot.state(), Relaxed) & LIVE == 0 {
                continue;
            }
            if add::<S>(slot.state(), PIN, Acquire) & LIVE != 0 {
                self.delete_pinned::<S>(slot);
            } else {
                self.unpin::<S>(slot);
            }
        }
    }

    /// Inserts or changes an entry.
    fn put<S: Steps, P: Put>(&self, key: &Key<'_>, put: &P) -> Result<(), NotUpdated> {
        let mut result = BUSY;
        for _ in 0..ATTEMPTS {
            let step = match self.search::<S>(key) {
                Place::Taken(slot) => self.put_in_its_slot::<S, P>(slot, key, put),
                Place::Unsure => BUSY,
                Place::Free(slot) => self.put_in_free_slot::<S, P>(slot, key, put),
                Place::None => self.put_in_place_of_another::<S, P>(key, put),
            };
            if !matches!(step, Step::Again) {
                result = step;
                break;
            }
        }
        let refused = match result {
            Step::Done => return Ok(()),
            Step::Again => NotUpdated::Lost(Lost::Busy),
            Step::Refused(refused) => refused,
        };
        match refused {
            NotUpdated::Lost(Lost::Full) => add::<S>(&self.full, 1, Relaxed),
            NotUpdated::Lost(Lost::Busy) => add::<S>(&self.busy, 1, Relaxed),
            NotUpdated::Present | NotUpdated::Absent => 0,
        };
        Err(refused)
    }

    /// Whether there is room for an entry. Hits that insert at the same time may all find the last
    /// one; the table has slots for them.
    fn has_room<S: Steps>(&self) -> bool {
        // Less than 0 when a deletion is counted before the insertion.
        // Acquire pairs with the Release in `count`: whoever sees that an entry is counted sees it.
        (load::<S>(&self.live, Acquire) as i64) < self.shape.entries as i64
    }

    /// Counts an entry that is live now.
    fn count<S: Steps>(&self) {
        add::<S>(&self.live, 1, Release);
    }

    fn put_in_its_slot<S: Steps, P: Put>(&self, slot: Slot<'_>, key: &Key<'_>, put: &P) -> Step {
        let state = load::<S>(slot.state(), Acquire);
        if state & LIVE != 0 {
            return self.change::<S, P>(slot, key, put);
        }
        if state & (OWNED | PINS) != 0 {
            return BUSY;
        }
        if let Err(refused) = put.insert() {
            return Step::Refused(refused);
        }
        if !self.has_room::<S>() {
            // The last place may have gone to this very key.
            return if load::<S>(slot.state(), Relaxed) == state {
                Step::Refused(NotUpdated::Lost(Lost::Full))
            } else {
                Step::Again
            };
        }
        if P::FROM_ZERO && state & USED == 0 {
            // The zeros of a slot that was never used are its value (TABLE-5), so it becomes live
            // in one step, pinned. Its key is the one that was found, because a slot that was taken
            // over is used.
            if !exchange::<S>(slot.state(), state, state | LIVE | PIN, AcqRel) {
                return Step::Again;
            }
            self.count::<S>();
            add::<S>(slot.value(), put.word(0), Relaxed);
            self.unpin::<S>(slot);
            return Step::Done;
        }
        if !exchange::<S>(slot.state(), state, state | OWNED, AcqRel) {
            return Step::Again;
        }
        // Another key may have come and gone since the search. If so its version differs from the
        // one that was seen, or it was seen after the change; the key tells.
        if !self.holds::<S>(slot, key) {
            add::<S>(slot.state(), OWNED.wrapping_neg(), Release);
            return Step::Again;
        }
        fence(Release);
        self.fill::<S, P>(slot, put);
        self.publish::<S>(slot, state);
        Step::Done
    }

    fn put_in_free_slot<S: Steps, P: Put>(&self, slot: Slot<'_>, key: &Key<'_>, put: &P) -> Step {
        if let Err(refused) = put.insert() {
            return Step::Refused(refused);
        }
        // Before the claim, because a claimed slot is never free again.
        if !self.has_room::<S>() {
            // As above.
            return if load::<S>(slot.tag(), Relaxed) == 0 {
                Step::Refused(NotUpdated::Lost(Lost::Full))
            } else {
                Step::Again
            };
        }
        let claimed = exchange::<S>(slot.tag(), 0, key.tag, AcqRel);
        if self.key_words == 0 || !claimed {
            // A key of one word is complete now, and so the next attempt finds it.
            return Step::Again;
        }
        // Nobody else touches it: it is neither live nor used, and its key is not there yet.
        for index in 0..self.key_words {
            store::<S>(self.key_word(slot, index), key.bytes.word(index), Relaxed);
        }
        self.fill::<S, P>(slot, put);
        add::<S>(slot.state(), LIVE | USED, Release);
        self.count::<S>();
        Step::Done
    }

    /// Takes over a slot of a key that was deleted.
    #[inline(never)]
    fn put_in_place_of_another<S: Steps, P: Put>(&self, key: &Key<'_>, put: &P) -> Step {
        if let Err(refused) = put.insert() {
            return Step::Refused(refused);
        }
        let turn = (key.hash >> (u64::BITS - TURNS.ilog2())) as usize;
        let Some(turn) = self.turns.get(turn) else {
            return BUSY;
        };
        // Acquire and Release: whoever has the turn next sees the key that this one brings.
        if !exchange::<S>(turn, 0, 1, Acquire) {
            return BUSY;
        }
        let step = match self.search::<S>(key) {
            Place::Unsure => BUSY,
            Place::Taken(_) | Place::Free(_) => Step::Again,
            Place::None => self.take_over::<S, P>(key, put),
        };
        store::<S>(turn, 0, Release);
        step
    }

    /// As above, with the turn.
    fn take_over<S: Steps, P: Put>(&self, key: &Key<'_>, put: &P) -> Step {
        if !self.has_room::<S>() {
            return Step::Refused(NotUpdated::Lost(Lost::Full));
        }
        let mut slot = self.home(key.hash);
        let mut lost = Lost::Full;
        for _ in 0..self.window {
            let state = load::<S>(slot.state(), Relaxed);
            if state & LIVE == 0 {
                // A long key that is not written yet has neither flag, and its slot is not for us.
                let settled = self.key_words == 0 || state & USED != 0;
                if settled
                    && state & (OWNED | PINS) == 0
                    && exchange::<S>(slot.state(), state, state | OWNED, AcqRel)
                {
                    fence(Release);
                    store::<S>(slot.tag(), key.tag, Release);
                    for index in 0..self.key_words {
                        store::<S>(self.key_word(slot, index), key.bytes.word(index), Relaxed);
                    }
                    self.fill::<S, P>(slot, put);
                    self.publish::<S>(slot, state);
                    return Step::Done;
                }
                lost = Lost::Busy;
            }
            slot = self.next(slot);
        }
        Step::Refused(NotUpdated::Lost(lost))
    }

    /// Changes the value of a live entry.
    #[inline(always)]
    fn change<S: Steps, P: Put>(&self, slot: Slot<'_>, key: &Key<'_>, put: &P) -> Step {
        if !self.pin::<S>(slot, key) {
            return Step::Again;
        }
        if let Err(refused) = put.replace() {
            self.unpin::<S>(slot);
            return Step::Refused(refused);
        }
        if P::FROM_ZERO {
            add::<S>(slot.value(), put.word(0), Relaxed);
        } else if self.value_words == 1 {
            store::<S>(slot.value(), put.word(0), Relaxed);
        } else {
            S::step();
            if slot.state().fetch_or(OWNED, AcqRel) & OWNED != 0 {
                self.unpin::<S>(slot);
                return BUSY;
            }
            fence(Release);
            self.fill::<S, P>(slot, put);
            let done = VERSION.wrapping_sub(OWNED).wrapping_sub(PIN);
            add::<S>(slot.state(), done, Release);
            return Step::Done;
        }
        self.unpin::<S>(slot);
        Step::Done
    }

    /// Writes a new value. The caller owns the slot.
    fn fill<S: Steps, P: Put>(&self, slot: Slot<'_>, put: &P) {
        for index in 0..self.value_words {
            store::<S>(self.value_word(slot, index), put.word(index), Relaxed);
        }
    }

    /// Makes the slot live, which had `state` when the caller became its owner.
    fn publish<S: Steps>(&self, slot: Slot<'_>, state: u64) {
        let used = USED & !state;
        let done = (LIVE | used).wrapping_add(VERSION).wrapping_sub(OWNED);
        add::<S>(slot.state(), done, Release);
        self.count::<S>();
    }

    /// Copies the entry of slot `index`.
    pub(super) fn read<S: Steps>(&self, index: usize, to: &mut Copied) -> Read {
        if index >= self.slots() {
            return Read::Nothing;
        }
        let slot = self.slot(index);
        // SAFETY: a slot has the words of state, value and key, and no others are asked for.
        let word = |index| unsafe { slot.word(index) };
        let load = |index, order| load::<S>(word(index), order);
        read_slot(self.key_words, self.value_words, load, to)
    }

    /// How many slots [`Table::read`] can be asked for.
    pub(super) fn places(&self) -> usize {
        self.slots()
    }

    /// The address of the first slot.
    pub(super) fn address(&self) -> u64 {
        self.first.as_ptr().expose_provenance() as u64
    }
}

/// How often a reader looks at an entry that others change.
const READ_ATTEMPTS: u32 = 1000;

/// How many words a long key has behind the value; 0 if word 0 is the key.
pub(super) const fn key_words(key_bytes: usize) -> usize {
    if key_bytes <= 8 {
        0
    } else {
        key_bytes.div_ceil(8)
    }
}

/// Copies the entry of a slot, of which `load` loads a word (TABLE-4).
pub(super) fn read_slot(
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
