//! What changes entries: additions, updates, deletions.
//!
//! An insertion finds the key's own slot, claims a free one (TABLE-1), or takes over one of a key
//! that was deleted, in turn (TABLE-2). What changed under it makes it begin again, up to
//! [`ATTEMPTS`] times.

use core::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use super::{
    super::steps::{Steps, add, exchange, load, store},
    ATTEMPTS, Lost, NotUpdated, TURNS, Table, When,
    slots::{Bytes, Key, LIVE, OWNED, PIN, PINS, Slot, USED, VERSION},
    window::Place,
};

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

impl Table {
    /// Adds `delta` to the first word of the value of the key `word`, which is inserted with zeros
    /// if it is not there. For tables whose keys have up to 8 bytes.
    #[inline(always)]
    pub(crate) fn add_word<S: Steps>(&self, word: u64, delta: u64) -> Result<(), Lost> {
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
                // SAFETY: the window is not at its end, and no window leaves the table.
                slot = unsafe { self.next(slot) };
            }
        }
        self.add_word_slowly::<S>(word, delta)
    }

    #[cold]
    #[inline(never)]
    fn add_word_slowly<S: Steps>(&self, word: u64, delta: u64) -> Result<(), Lost> {
        self.add::<S>(&Self::word_key(word), delta)
    }

    /// Adds `delta` to the first word of the value of `key`, which is inserted with zeros if it is
    /// not there.
    pub(crate) fn add<S: Steps>(&self, key: &Key<'_>, delta: u64) -> Result<(), Lost> {
        match self.put::<S, _>(key, &Add(delta)) {
            Err(NotUpdated::Lost(lost)) => Err(lost),
            // An addition accepts both.
            Ok(()) | Err(NotUpdated::Present | NotUpdated::Absent) => Ok(()),
        }
    }

    /// Sets the value of `key` to `value`, of which there are as many bytes as a value has.
    pub(crate) fn update<S: Steps>(
        &self,
        key: &Key<'_>,
        value: Bytes<'_>,
        when: When,
    ) -> Result<(), NotUpdated> {
        self.put::<S, _>(key, &Update { bytes: value, when })
    }

    /// Deletes `key`. Returns whether it was there.
    pub(crate) fn delete<S: Steps>(&self, key: &Key<'_>) -> bool {
        let Place::Taken(slot) = self.search::<S>(key) else {
            return false;
        };
        // If the slot is not live, or another key's by now, then the key was absent meanwhile.
        self.pin::<S>(slot, key) && self.delete_pinned::<S>(slot)
    }

    /// Deletes the entry in `slot`, which this operation has pinned, and gives the pin back.
    /// Returns whether no other hit has deleted it meanwhile.
    fn delete_pinned<S: Steps>(&self, slot: Slot<'_>) -> bool {
        S::step();
        // Before the entry goes, because its value must not be taken for zeros then.
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
    pub(crate) fn clear<S: Steps>(&self) {
        for index in 0..self.slots() {
            // SAFETY: below the number of slots.
            let slot = unsafe { self.slot(index) };
            if load::<S>(slot.state(), Relaxed) & LIVE == 0 {
                continue;
            }
            self.delete_live::<S>(slot);
        }
    }

    /// Deletes the entry of a slot, whichever key it is of. Returns whether there was one.
    pub(super) fn delete_live<S: Steps>(&self, slot: Slot<'_>) -> bool {
        if add::<S>(slot.state(), PIN, Acquire) & LIVE != 0 {
            return self.delete_pinned::<S>(slot);
        }
        self.unpin::<S>(slot);
        false
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
        self.has_fewer::<S>(self.shape.entries as i64)
    }

    /// Whether there are fewer entries.
    #[inline(always)]
    pub(super) fn has_fewer<S: Steps>(&self, entries: i64) -> bool {
        // Less than 0 when a deletion is counted before the insertion.
        // Acquire pairs with the Release in `count`: whoever sees that an entry is counted sees it.
        (load::<S>(&self.live, Acquire) as i64) < entries
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
        // Nothing else touches it: it is neither live nor used, and its key is not there yet.
        for index in 0..self.key_words {
            // SAFETY: a slot of this table; the index is below `key_words`.
            let word = unsafe { self.key_word(slot, index) };
            store::<S>(word, key.bytes.word(index), Relaxed);
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

    /// The same, with the turn.
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
                        // SAFETY: a slot of this table; the index is below `key_words`.
                        let word = unsafe { self.key_word(slot, index) };
                        store::<S>(word, key.bytes.word(index), Relaxed);
                    }
                    self.fill::<S, P>(slot, put);
                    self.publish::<S>(slot, state);
                    return Step::Done;
                }
                lost = Lost::Busy;
            }
            // SAFETY: as in `search`.
            slot = unsafe { self.next(slot) };
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
            // SAFETY: a slot of this table; the index is below `value_words`.
            let word = unsafe { self.value_word(slot, index) };
            store::<S>(word, put.word(index), Relaxed);
        }
    }

    /// Makes the slot live, which had `state` when the caller became its owner.
    fn publish<S: Steps>(&self, slot: Slot<'_>, state: u64) {
        let used = USED & !state;
        let done = (LIVE | used).wrapping_add(VERSION).wrapping_sub(OWNED);
        add::<S>(slot.state(), done, Release);
        self.count::<S>();
    }
}
