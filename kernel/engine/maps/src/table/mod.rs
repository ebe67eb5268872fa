//! The hash table behind [`super::Hash`]: keys of fixed size, found by linear probing.
//!
//! ```text
//!   slot    word 0   the key itself (keys of up to 8 bytes), or its hash; 0 while the slot is free
//!           word 1   state: pins, flags, version
//!           word 2…  the value
//!           after    the key, if it is longer than 8 bytes
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
//! TABLE-2. A slot is taken over by another key only if it is not live, has no pins, and no hit
//!     owns it; the one who takes it over owns it meanwhile ([`OWNED`]). It holds
//!     the turn of its key ([`Table::turns`]), and the key's window has no free slot, so no
//!     other hit inserts that key.
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
//! reads entries (TABLE-4), so whoever owns a slot has a Release fence after the exchange that
//! made it the owner.
//!
//! # No room
//! A key beyond [`Shape::entries`] is refused as [`Lost::Full`], and counted. Insertions that go on
//! at the same time may all take the last place. So is one whose window has only live slots. The
//! table has twice as many slots as entries, so that a full window is next to impossible (below one
//! in 10^9 for a full table of random keys). A program may have the table make room before
//! (`forget.rs`).
//!
//! # Files
//! `slots.rs` has the words of a slot and pins, `window.rs` the search for a key, `read.rs` what
//! readers copy, `write.rs` what changes entries: claims, turns and deletions, and `forget.rs`
//! which key goes for another one.

mod forget;
mod read;
mod slots;
mod window;
mod write;

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::block::{Block, OutOfMemory};

pub use forget::Use;
pub(super) use read::{Copied, KeyWords, Read, read_slot};
pub(super) use slots::{Bytes, LIVE, OWNED, PIN, PINS, USED, VERSION};
pub(super) use window::{MULTIPLIER, TURNED, fold};

/// The most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;
/// The most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 512;
/// The words of the longest key.
pub(crate) const MAX_KEY_WORDS: usize = MAX_KEY_BYTES / 8;
/// The words of the longest value.
pub(super) const MAX_VALUE_WORDS: usize = MAX_VALUE_BYTES / 8;

/// The longest search. With it the slots of a table of up to half as many entries cannot run out.
const MAX_WINDOW: usize = 128;

/// How often an operation begins again because others changed what it looked at.
const ATTEMPTS: u32 = 8;

/// The index of the state, and of the first word of a value.
const STATE: usize = 1;
pub(super) const VALUE: usize = 2;

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
    /// Words of the key after the value; 0 if word 0 is the key.
    key_words: usize,
    value_words: usize,
    pub(super) shape: Shape,
    /// Entries that are live, as a signed number: each is counted after it has changed.
    pub(super) live: AtomicU64,
    full: AtomicU64,
    busy: AtomicU64,
    /// An operation that takes a slot over for a key holds the turn that the key's hash selects.
    turns: [AtomicU64; TURNS],
    /// Where the search for a key to forget goes on, modulo the number of slots.
    hand: AtomicU64,
    memory: Block,
}

/// How many insertions may take slots over at the same time.
const TURNS: usize = 8;

// SAFETY: `first` points into `memory`, whose words are atomic.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// An empty table. The sizes were checked.
    pub(super) fn new(shape: Shape) -> Result<Self, OutOfMemory> {
        let homes = shape.entries.saturating_mul(2).next_power_of_two();
        let window = homes.min(MAX_WINDOW);
        let key_words = key_words(shape.key_bytes);
        let value_words = shape.value_bytes.div_ceil(8);
        let slot_words = VALUE + value_words + key_words;
        // Searches do not run around the end: after the last home there is the rest of a window.
        // The slot after that one belongs to the key whose word 0 is 0.
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
            hand: AtomicU64::new(0),
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
        let counters = [&self.live, &self.full, &self.busy, &self.hand];
        self.memory
            .words()
            .iter()
            .chain(counters)
            .chain(&self.turns)
    }

    /// How many bytes keys have.
    pub fn key_bytes(&self) -> usize {
        self.shape.key_bytes
    }

    /// How many bytes values have.
    pub fn value_bytes(&self) -> usize {
        self.shape.value_bytes
    }

    /// The address of the first slot.
    pub(super) fn address(&self) -> u64 {
        self.first.as_ptr().expose_provenance() as u64
    }
}

/// How many words a long key has after the value; 0 if word 0 is the key.
pub(super) const fn key_words(key_bytes: usize) -> usize {
    if key_bytes <= 8 {
        0
    } else {
        key_bytes.div_ceil(8)
    }
}
