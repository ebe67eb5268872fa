//! The record ring of the kernel log: many writers in any context, one console, any number of later
//! readers.
//!
//! A message is cut into slots: one for each line, and a further one for each [`TEXT_BYTES`] bytes
//! of a longer line. All its slots are reserved in one step, so the lines of a message stay
//! together even if other CPUs write at the same time.
//!
//! ```text
//!   free --write reserves--> being written --publish--> published --advance--> printed
//!          head moves on                                            tail moves on
//!
//!   printed --the next lap--> being written
//! ```
//!
//! # Invariants
//! LOG-1. Sequence numbers count slots since boot. The slot number is the sequence number modulo
//!     `SLOTS`. `tail <= head <= tail + SLOTS`.
//! LOG-2. Between its reservation and its publication a slot belongs to its writer alone.
//! LOG-3. `Slot::published` is one more than the sequence number of the complete record in the
//!     slot, or 0.
//! LOG-4. Only the console moves `tail`, and only over published slots (or, when the kernel dies,
//!     over any). So a record that is not printed is never overwritten.
//!
//! # Contexts and ordering
//! [`Ring::write`] neither locks nor waits. It works in tasks, interrupts, NMIs and probe handlers,
//! even when it has interrupted itself. It formats twice, the first time to count. If a writer
//! stops between the two, the console waits in front of its slots. So callers keep interrupts off
//! during a write.
//!
//! Every field is atomic. Text is stored relaxed. Two fields order it:
//! - `published`: Release by the writer, Acquire by readers. A reader looks at it again after it
//!   has copied the text (a sequence lock).
//! - `tail`: Release by the console, Acquire by the writer that reuses a slot.
//!
//! # No room
//! A message that does not fit before the console's position is dropped and counted. The next
//! record that is stored says how many are missing before it ([`Record::dropped_before`]). Until
//! then [`Ring::take_dropped`] does.
//!
//! Beside the ring stands [`Text`]: text for a terminal that belongs between the records.
#![no_std]
#![forbid(unsafe_code)]

mod text;

pub use text::Text;

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of text in one slot.
pub const TEXT_BYTES: usize = 232;

/// A ring of `SLOTS` slots.
pub struct Ring<const SLOTS: usize> {
    /// Sequence number that the next reservation starts at.
    head: AtomicU64,
    /// Sequence number of the first slot that the console has not done with.
    tail: AtomicU64,
    /// Messages dropped and not yet reported.
    dropped: AtomicU64,
    slots: [Slot; SLOTS],
}

#[repr(align(64))]
struct Slot {
    published: AtomicU64,
    time_ns: AtomicU64,
    /// [`Header`], packed.
    header: AtomicU32,
    dropped_before: AtomicU32,
    text: [AtomicU8; TEXT_BYTES],
}

/// The properties that a writer gives to a message beside its text. Each record of the message has
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds since boot.
    pub time_ns: u64,
    /// How urgent it is: the caller's numbers, 0 to 15.
    pub level: u8,
    /// How deep in the printing of other messages it was written: a number of the caller's, 0 to
    /// 15.
    pub depth: u8,
}

#[derive(Clone, Copy)]
struct Header {
    bytes: u8,
    level: u8,
    depth: u8,
    continues: bool,
    goes_on: bool,
    cut: bool,
}

impl Header {
    const fn pack(self) -> u32 {
        self.bytes as u32
            | (self.level as u32 & 15) << 8
            | (self.depth as u32 & 15) << 12
            | (self.continues as u32) << 16
            | (self.goes_on as u32) << 17
            | (self.cut as u32) << 18
    }

    const fn unpack(word: u32) -> Self {
        Self {
            bytes: word as u8,
            level: (word >> 8) as u8 & 15,
            depth: (word >> 12) as u8 & 15,
            continues: word & 1 << 16 != 0,
            goes_on: word & 1 << 17 != 0,
            cut: word & 1 << 18 != 0,
        }
    }
}

/// A copy of one slot: a line of a message, or a piece of a long line.
#[derive(Clone, Debug)]
pub struct Record {
    /// Sequence number.
    pub seq: u64,
    /// Time, level and depth of the message.
    pub stamp: Stamp,
    /// It continues the line of the record before it.
    pub continues: bool,
    /// Its line goes on in the record after it.
    pub goes_on: bool,
    /// The message was too long, and ends here.
    pub cut: bool,
    /// How many messages were dropped between the record before it and this one.
    pub dropped_before: u32,
    bytes: u8,
    text: [u8; TEXT_BYTES],
}

impl Record {
    /// The text, without a newline. A character may be split between a record and its continuation.
    pub fn text(&self) -> &[u8] {
        &self.text[..usize::from(self.bytes)]
    }
}

/// Why [`Ring::read`] has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Not written yet, or still being written.
    NotYet,
    /// Overwritten by a later lap, or never published.
    Gone,
}

/// The message did not fit in the ring. It is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped;

impl Slot {
    const fn new() -> Self {
        Self {
            published: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            header: AtomicU32::new(0),
            dropped_before: AtomicU32::new(0),
            text: [const { AtomicU8::new(0) }; TEXT_BYTES],
        }
    }
}

impl<const SLOTS: usize> Default for Ring<SLOTS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const SLOTS: usize> Ring<SLOTS> {
    /// Slots that one message may take. A longer message is cut.
    pub const MESSAGE_SLOTS: u64 = SLOTS as u64 / 4;

    /// An empty ring, all zero bytes.
    pub const fn new() -> Self {
        assert!(
            SLOTS.is_power_of_two() && SLOTS >= 8,
            "SLOTS: a power of two, 8 or more"
        );
        Self {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            slots: [const { Slot::new() }; SLOTS],
        }
    }

    fn slot(&self, seq: u64) -> &Slot {
        &self.slots[seq as usize % SLOTS]
    }

    /// Stores `message`. Returns the number of its bytes, newlines included, or [`Dropped`] if it
    /// does not fit.
    ///
    /// Any context; see the module's text on interrupts.
    pub fn write(&self, stamp: Stamp, message: fmt::Arguments<'_>) -> Result<usize, Dropped> {
        let mut count = Splitter::new(Count { slots: 1 });
        // Our sinks never fail. If a `Display` gives up, the message is the text before that.
        let _ = count.write_fmt(message);
        let slots = count.sink.slots.min(Self::MESSAGE_SLOTS);

        let Some(first) = self.reserve(slots) else {
            self.count_dropped();
            return Err(Dropped);
        };
        let mut fill = Splitter::new(Fill {
            ring: self,
            stamp,
            seq: first,
            end: first + slots,
            bytes: 0,
            continues: false,
            cut: false,
            dropped_before: u32::try_from(self.take_dropped()).unwrap_or(u32::MAX),
        });
        fill.sink.open();
        let _ = fill.write_fmt(message);
        fill.sink.finish();
        Ok(fill.total)
    }

    /// Takes `slots` consecutive slots out of the free ones.
    fn reserve(&self, slots: u64) -> Option<u64> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Acquire pairs with the Release in `advance`: the console has read these slots before.
            let tail = self.tail.load(Ordering::Acquire);
            if head + slots > tail + SLOTS as u64 {
                return None;
            }
            // Relaxed: only the number is handed over. `tail` only grows, so the check still holds.
            match self.head.compare_exchange_weak(
                head,
                head + slots,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(first) => return Some(first),
                Err(seen) => head = seen,
            }
        }
    }

    /// Copies the record `seq`. Any context.
    pub fn read(&self, seq: u64) -> Result<Record, Missing> {
        let slot = self.slot(seq);
        // Acquire pairs with the Release in `Fill::publish`.
        let published = slot.published.load(Ordering::Acquire);
        if published != seq + 1 {
            let lapped = self.head.load(Ordering::Relaxed) > seq + SLOTS as u64;
            return Err(if lapped || published > seq + 1 {
                Missing::Gone
            } else {
                Missing::NotYet
            });
        }
        let header = Header::unpack(slot.header.load(Ordering::Relaxed));
        let mut record = Record {
            seq,
            stamp: Stamp {
                time_ns: slot.time_ns.load(Ordering::Relaxed),
                level: header.level,
                depth: header.depth,
            },
            continues: header.continues,
            goes_on: header.goes_on,
            cut: header.cut,
            dropped_before: slot.dropped_before.load(Ordering::Relaxed),
            bytes: header.bytes,
            text: [0; TEXT_BYTES],
        };
        for (to, from) in record
            .text
            .iter_mut()
            .zip(&slot.text[..usize::from(header.bytes)])
        {
            *to = from.load(Ordering::Relaxed);
        }
        // Pairs with the fence in `Fill::open`: if a load above saw the next lap, the load below
        // sees its 0.
        fence(Ordering::Acquire);
        if slot.published.load(Ordering::Relaxed) == seq + 1 {
            Ok(record)
        } else {
            Err(Missing::Gone)
        }
    }

    /// The next record for the console. `None` if all are printed or the next one is still being
    /// written. Only the owner of the console may call this.
    pub fn front(&self) -> Option<Record> {
        self.read(self.tail.load(Ordering::Relaxed)).ok()
    }

    /// [`Stamp::depth`] of [`Self::front`], without a copy of the record. Only for the owner of the
    /// console.
    pub fn front_depth(&self) -> Option<u8> {
        let tail = self.tail.load(Ordering::Relaxed);
        let slot = self.slot(tail);
        // Acquire as in `read`. A record that is not printed is not overwritten (LOG-4).
        (slot.published.load(Ordering::Acquire) == tail + 1)
            .then(|| Header::unpack(slot.header.load(Ordering::Relaxed)).depth)
    }

    /// Frees the slot of [`Self::front`]. Only for the owner of the console, after it has printed
    /// it.
    pub fn advance(&self) {
        let tail = self.tail.load(Ordering::Relaxed);
        debug_assert!(
            tail < self.head.load(Ordering::Relaxed),
            "nothing to advance over"
        );
        self.tail.store(tail + 1, Ordering::Release);
    }

    /// Whether the console has anything to print now. Any context.
    pub fn has_front(&self) -> bool {
        let tail = self.tail.load(Ordering::Acquire);
        self.slot(tail).published.load(Ordering::Acquire) == tail + 1
            || self.dropped.load(Ordering::Relaxed) > 0
    }

    /// The sequence numbers that may still be read: from the oldest one that no later lap has
    /// taken.
    pub fn history(&self) -> core::ops::Range<u64> {
        let head = self.head.load(Ordering::Acquire);
        head.saturating_sub(SLOTS as u64)..head
    }

    /// Sequence number of the first record that the console has not printed.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Counts a message that the caller drops by its own rule.
    pub fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of dropped messages that no record mentions. Only for the owner of the console,
    /// if there is no record.
    pub fn take_dropped(&self) -> u64 {
        // The plain load keeps the cache line shared in the usual case.
        if self.dropped.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

/// Takes the pieces of a message.
trait Sink {
    /// Takes bytes that belong at `offset` of the current slot, and fit there.
    fn put(&mut self, offset: usize, bytes: &[u8]);
    /// Goes on to the next slot, which `continues` the line or starts one.
    fn next(&mut self, continues: bool);
}

/// Cuts a message into slots: at newlines (one at the end adds no empty line) and where a slot is
/// full.
struct Splitter<S> {
    sink: S,
    /// Bytes in the current slot.
    used: usize,
    newline_pending: bool,
    total: usize,
}

impl<S: Sink> Splitter<S> {
    const fn new(sink: S) -> Self {
        Self {
            sink,
            used: 0,
            newline_pending: false,
            total: 0,
        }
    }

    fn next(&mut self, continues: bool) {
        self.sink.next(continues);
        self.used = 0;
    }

    fn take_pending_newline(&mut self) {
        if core::mem::take(&mut self.newline_pending) {
            self.next(false);
        }
    }
}

impl<S: Sink> Write for Splitter<S> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.total += text.len();
        for (index, line) in text.as_bytes().split(|&byte| byte == b'\n').enumerate() {
            if index > 0 {
                self.take_pending_newline();
                self.newline_pending = true;
            }
            let mut rest = line;
            while !rest.is_empty() {
                self.take_pending_newline();
                if self.used == TEXT_BYTES {
                    self.next(true);
                }
                let (piece, after) = rest.split_at(rest.len().min(TEXT_BYTES - self.used));
                self.sink.put(self.used, piece);
                self.used += piece.len();
                rest = after;
            }
        }
        Ok(())
    }
}

/// Counts the slots that a message needs.
struct Count {
    slots: u64,
}

impl Sink for Count {
    fn put(&mut self, _offset: usize, _bytes: &[u8]) {}

    fn next(&mut self, _continues: bool) {
        self.slots += 1;
    }
}

/// Fills the slots of a message, and publishes each as it leaves it.
struct Fill<'a, const SLOTS: usize> {
    ring: &'a Ring<SLOTS>,
    stamp: Stamp,
    /// The slot being filled, and the first one after the message's slots.
    seq: u64,
    end: u64,
    bytes: usize,
    continues: bool,
    /// There was more text than slots.
    cut: bool,
    /// The number of dropped messages that the first record tells.
    dropped_before: u32,
}

impl<const SLOTS: usize> Fill<'_, SLOTS> {
    /// Takes the old record out of the current slot.
    fn open(&self) {
        self.ring
            .slot(self.seq)
            .published
            .store(0, Ordering::Relaxed);
        // Pairs with the fence in `Ring::read`: a reader that sees a store to the slot's text sees
        // this 0 too.
        fence(Ordering::Release);
    }

    fn publish(&mut self, goes_on: bool) {
        let slot = self.ring.slot(self.seq);
        let header = Header {
            bytes: self.bytes as u8,
            level: self.stamp.level,
            depth: self.stamp.depth,
            continues: self.continues,
            goes_on,
            cut: self.cut,
        };
        slot.time_ns.store(self.stamp.time_ns, Ordering::Relaxed);
        slot.header.store(header.pack(), Ordering::Relaxed);
        let dropped_before = core::mem::take(&mut self.dropped_before);
        slot.dropped_before.store(dropped_before, Ordering::Relaxed);
        // Release pairs with the Acquire in `Ring::read`: a reader of the number sees the record.
        slot.published.store(self.seq + 1, Ordering::Release);
    }

    /// Publishes the remaining slots of the message, even if the second formatting gave less text.
    fn finish(mut self) {
        while self.seq + 1 < self.end {
            self.next(true);
        }
        self.publish(false);
    }
}

impl<const SLOTS: usize> Sink for Fill<'_, SLOTS> {
    fn put(&mut self, offset: usize, bytes: &[u8]) {
        if self.cut {
            return;
        }
        let text = &self.ring.slot(self.seq).text[offset..];
        for (to, from) in text.iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
        self.bytes = offset + bytes.len();
    }

    fn next(&mut self, continues: bool) {
        if self.seq + 1 == self.end {
            self.cut = true;
        } else {
            self.publish(continues);
            self.seq += 1;
            self.bytes = 0;
            self.continues = continues;
            self.open();
        }
    }
}
