//! The read side: a consumer takes records out, a cursor only looks at them.
//!
//! A reader copies a record first and then looks whether it was overwritten meanwhile. If so it
//! tells how many records it has lost, and goes on with the oldest one that is there. Nothing that
//! it finds in memory is trusted: a ring that contradicts itself is [`Damaged`], and no access
//! leaves it.

use core::sync::atomic::{
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use super::{
    error::Damaged,
    layout::{
        MAX_PAYLOAD, PAGE_HEADER_BYTES, Position, RECORD_HEADER_BYTES, next_page, record_bytes,
        state,
    },
    limits::PAGE_BYTES,
    ring::Ring,
};

/// A record that was read. Its payload is in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time stamp counter at its reservation.
    pub tsc: u64,
    /// Its number among all reservations of the ring, from 0.
    pub sequence: u64,
    /// Bytes of its payload. If the buffer is shorter, only the first bytes are in it.
    pub bytes: usize,
}

/// The next thing that a reader meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A record.
    Record(Record),
    /// This many records were lost before the next one: overwritten, or dropped when they were
    /// written.
    Lost(u64),
}

/// Something that gives events in the order of their reservation.
pub trait Source {
    /// The time stamp of the next record. None if there is none yet.
    fn peek(&mut self) -> Result<Option<u64>, Damaged>;

    /// The next event. A record's payload goes to `buffer`; [`MAX_PAYLOAD`] bytes are enough for
    /// any. None if there is nothing yet.
    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Event>, Damaged>;
}

/// Counts of a ring since its start. At any time
/// `written = read + overwritten + cleared + unread`.
///
/// The counts are exact if no record is being written and no consuming reader runs. Otherwise they
/// lack what is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records that were committed.
    pub written: u64,
    /// Records that the consuming reader has read.
    pub read: u64,
    /// Records that were overwritten before they were read.
    pub overwritten: u64,
    /// Records that [`Ring::reset`] removed.
    pub cleared: u64,
    /// Records in the ring, not read yet.
    pub unread: u64,
    /// Records that were given up by their writers. They are not written ones.
    pub discarded: u64,
    /// Records that were dropped because the ring was full ([`Mode::Stop`](super::Mode::Stop)).
    pub full: u64,
    /// Records that were dropped because the ring was full of records that the writer had
    /// interrupted, or that were written since.
    pub nested: u64,
    /// Records that were dropped because they were longer than [`MAX_PAYLOAD`].
    pub too_long: u64,
    /// Bytes between the oldest unread record and the newest one, with all headers.
    pub unread_bytes: u64,
}

impl Stats {
    /// Records that were dropped when they were to be written, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.full + self.nested + self.too_long
    }

    /// The counts since `earlier`, for example since a [`Ring::reset`].
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            written: self.written.wrapping_sub(earlier.written),
            read: self.read.wrapping_sub(earlier.read),
            overwritten: self.overwritten.wrapping_sub(earlier.overwritten),
            cleared: self.cleared.wrapping_sub(earlier.cleared),
            discarded: self.discarded.wrapping_sub(earlier.discarded),
            full: self.full.wrapping_sub(earlier.full),
            nested: self.nested.wrapping_sub(earlier.nested),
            too_long: self.too_long.wrapping_sub(earlier.too_long),
            ..*self
        }
    }
}

/// A record as it was found. All of it may be wrong until it is certain that the writer has not
/// overwritten it.
struct Found {
    /// The position of its header.
    at: Position,
    /// The payload's length.
    bytes: usize,
    tsc: u64,
    discarded: bool,
    /// The position after it.
    after: Position,
}

impl<'m> Ring<'m> {
    /// The record that comes next at `position`. None if there is no record.
    fn find(self, position: Position) -> Option<Found> {
        let data_bytes = self.data_bytes();
        let mut offset = position.offset();
        if !on_a_page(offset) {
            offset = first_record(next_page(offset, data_bytes));
        }
        // SAFETY: positions are multiples of 8, and within a page, so a word is there.
        let mut word = unsafe { self.word(offset) }.load(Relaxed);
        if word & 0xff == state::PADDING {
            offset = first_record(next_page(offset, data_bytes));
            // SAFETY: as above.
            word = unsafe { self.word(offset) }.load(Relaxed);
        }
        let at = Position::new(position.sequence(), offset);
        let bytes = (word >> 8) as usize & 0xff_ffff;
        let discarded = match word & 0xff {
            state::COMMITTED => false,
            state::DISCARDED => true,
            _ => return None,
        };
        let room = PAGE_BYTES as u32 - offset % PAGE_BYTES as u32;
        if (word >> 32) as u32 != at.sequence() || bytes > MAX_PAYLOAD || record_bytes(bytes) > room
        {
            return None;
        }
        // SAFETY: a record is in the room that is left in the page, so its header is, too.
        let tsc = unsafe { self.record(offset) }.tsc.load(Relaxed);
        Some(Found {
            at,
            bytes,
            tsc,
            discarded,
            after: at.after(record_bytes(bytes)),
        })
    }

    /// Copies the payload of a record to `buffer`, as far as there is room.
    fn copy(self, found: &Found, buffer: &mut [u8]) {
        let mut offset = found.at.offset() + RECORD_HEADER_BYTES as u32;
        let bytes = found.bytes.min(buffer.len());
        for chunk in buffer[..bytes].chunks_mut(8) {
            // SAFETY: `find` has checked that the payload lies in its page.
            let word = unsafe { self.word(offset) }.load(Relaxed);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
            offset += 8;
        }
    }

    fn oldest(self) -> Position {
        // Acquire: the header of its page is seen.
        Position(self.header().shared.oldest.load(Acquire))
    }

    fn committed(self) -> Position {
        // Acquire pairs with the Release of the writer: all records before it are seen.
        Position(self.header().writing.committed.load(Acquire))
    }

    /// Whether `oldest` is still where it was, so that all that was read after it is right.
    fn is_oldest(self, position: Position) -> bool {
        // Pairs with the writer's fence before it overwrites a page.
        fence(Acquire);
        self.header().shared.oldest.load(Relaxed) == position.0
    }

    /// Moves the oldest position on, unless the writer has done it. Only for the consuming reader.
    fn advance(self, from: Position, to: Position) -> bool {
        // Release: the writer overwrites the page only after the loads from it. Acquire, and a
        // fence before it: as in `is_oldest`.
        fence(Acquire);
        self.header()
            .shared
            .oldest
            .compare_exchange(from.0, to.0, AcqRel)
            .is_ok()
    }

    /// Records that were overwritten before the record `sequence`, which was the oldest one lately.
    fn overwritten_before(self, sequence: u64) -> u64 {
        let header = self.header();
        let reading = &header.reading;
        let others = [
            &header.description.first_sequence,
            &reading.read,
            &reading.cleared,
            &reading.discarded_passed,
            &header.writing.discarded_overwritten,
        ];
        let known = others
            .iter()
            .fold(0u64, |sum, word| sum.wrapping_add(word.load(Relaxed)));
        // Less than 0 if a consuming reader has gone on.
        (sequence.wrapping_sub(known) as i64).max(0) as u64
    }

    /// How many records had been dropped when the page of `position` was opened.
    fn dropped_before(self, position: Position) -> u64 {
        // SAFETY: positions belong to pages of the ring.
        let page = unsafe { self.page_header(position.page()) };
        page.dropped.load(Relaxed)
    }

    /// The counts. Any CPU, any context. They agree with each other if the caller keeps consuming
    /// readers out.
    pub fn stats(self) -> Stats {
        let oldest = self.oldest();
        let committed = self.committed();
        let header = self.header();
        let (reading, writing) = (&header.reading, &header.writing);
        let discarded = writing.discarded.load(Relaxed);
        let passed = reading.discarded_passed.load(Relaxed);
        let overwritten = self.overwritten_before(self.whole_sequence(oldest));
        let inside = u64::from(committed.records_since(oldest));
        let first = header.description.first_sequence.load(Relaxed);
        let past = passed.wrapping_add(writing.discarded_overwritten.load(Relaxed));
        let data_bytes = u64::from(self.data_bytes());
        let distance = u64::from(committed.offset()) + data_bytes - u64::from(oldest.offset());
        let unread_bytes = match distance {
            _ if inside == 0 => 0,
            // A full ring, or less than one.
            distance if distance > data_bytes => distance - data_bytes,
            distance => distance,
        };
        Stats {
            written: self
                .whole_sequence(committed)
                .wrapping_sub(first)
                .wrapping_sub(discarded),
            read: reading.read.load(Relaxed),
            overwritten,
            cleared: reading.cleared.load(Relaxed),
            unread: inside.saturating_sub(discarded.wrapping_sub(past)),
            discarded,
            full: writing.full.load(Relaxed),
            nested: writing.nested.load(Relaxed),
            too_long: writing.too_long.load(Relaxed),
            unread_bytes,
        }
    }

    /// Removes the records that are in the ring now. Writers may run. Returns the counts with an
    /// empty ring, for [`Stats::since`].
    ///
    /// It is a consuming reader: one at a time.
    pub fn reset(self) -> Stats {
        let header = self.header();
        let reading = &header.reading;
        let target = self.committed();
        loop {
            let oldest = self.oldest();
            // The writer may have gone past it.
            if target.records_since(oldest) as i32 <= 0 {
                break;
            }
            // A page's worth, so that a writer that overwrites pages meanwhile does not keep us
            // from getting on.
            let mut to = oldest;
            let (mut cleared, mut discarded) = (0, 0);
            for _ in 0..PAGE_BYTES / RECORD_HEADER_BYTES {
                if to.sequence() == target.sequence() {
                    break;
                }
                let Some(found) = self.find(to) else {
                    if self.is_oldest(oldest) {
                        // Damaged: all of it goes.
                        cleared += u64::from(target.records_since(to));
                        to = target;
                    }
                    break;
                };
                let count = if found.discarded {
                    &mut discarded
                } else {
                    &mut cleared
                };
                *count += 1;
                to = found.after;
            }
            if self.advance(oldest, to) {
                add(&reading.cleared, cleared);
                add(&reading.discarded_passed, discarded);
            }
        }
        // No loss before the next record is worth a report.
        let oldest = self.oldest();
        let overwritten = self.overwritten_before(self.whole_sequence(oldest));
        reading.overwritten_reported.store(overwritten, Relaxed);
        reading.dropped_reported.store(self.dropped(), Relaxed);
        let stats = self.stats();
        Stats {
            written: stats.read + stats.overwritten + stats.cleared,
            unread: 0,
            unread_bytes: 0,
            ..stats
        }
    }

    /// Removes all records, as [`Self::reset`] does, in a number of steps that does not depend on
    /// theirs. Any context, also on top of cursors.
    ///
    /// # Safety
    /// No code writes to the ring or consumes from it meanwhile.
    pub unsafe fn restart(self) -> Stats {
        let header = self.header();
        let (reading, writing) = (&header.reading, &header.writing);
        let (oldest, committed) = (self.oldest(), self.committed());
        let passed = &reading.discarded_passed;
        let discarded = writing.discarded.load(Relaxed);
        // Those that are neither overwritten nor passed are in the ring.
        let discarded_here = discarded
            .wrapping_sub(writing.discarded_overwritten.load(Relaxed))
            .wrapping_sub(passed.load(Relaxed));
        let here = u64::from(committed.records_since(oldest));
        // A cursor at an earlier position notices, as if it had been overtaken.
        header.shared.oldest.store(committed.0, Release);
        add(&reading.cleared, here.wrapping_sub(discarded_here));
        add(passed, discarded_here);
        let overwritten = self.overwritten_before(self.whole_sequence(committed));
        reading.overwritten_reported.store(overwritten, Relaxed);
        reading.dropped_reported.store(self.dropped(), Relaxed);
        let (read, cleared) = (reading.read.load(Relaxed), reading.cleared.load(Relaxed));
        Stats {
            written: read.wrapping_add(overwritten).wrapping_add(cleared),
            read,
            overwritten,
            cleared,
            unread: 0,
            discarded,
            full: writing.full.load(Relaxed),
            nested: writing.nested.load(Relaxed),
            too_long: writing.too_long.load(Relaxed),
            unread_bytes: 0,
        }
    }

    /// The reader that takes records out. One at a time, or counts go wrong: the caller has a lock.
    pub fn consumer(self) -> Consumer<'m> {
        Consumer { ring: self }
    }

    /// A reader that leaves the records in the ring. It begins with the oldest one.
    pub fn cursor(self) -> Cursor<'m> {
        let at = self.oldest();
        let sequence = self.whole_sequence(at);
        Cursor {
            ring: self,
            at,
            sequence,
            overwritten: self.overwritten_before(sequence),
            dropped: None,
            lost: 0,
        }
    }
}

/// Whether a position with this offset has more of its page after it.
fn on_a_page(offset: u32) -> bool {
    !offset.is_multiple_of(PAGE_BYTES as u32)
}

/// The offset of the first record of a page.
fn first_record(page: u32) -> u32 {
    page + PAGE_HEADER_BYTES as u32
}

/// Adds to a word that only the consuming reader changes.
fn add(word: &super::word::Word, count: u64) {
    word.store(word.load(Relaxed).wrapping_add(count), Relaxed);
}

/// The reader that takes records out.
///
/// The counts that it has been told are part of the ring. So a later consumer goes on where it
/// stopped.
pub struct Consumer<'m> {
    ring: Ring<'m>,
}

impl Consumer<'_> {
    /// The oldest record that is not discarded, and its whole number.
    fn front(&mut self) -> Result<Option<(Position, Found, u64)>, Damaged> {
        let ring = self.ring;
        loop {
            let oldest = ring.oldest();
            // Loaded after `oldest`, so it is not an earlier position.
            if ring.committed().sequence() == oldest.sequence() {
                return Ok(None);
            }
            let sequence = ring.whole_sequence(oldest);
            let Some(found) = ring.find(oldest) else {
                if ring.is_oldest(oldest) {
                    return Err(Damaged {
                        offset: oldest.offset(),
                        sequence,
                    });
                }
                continue;
            };
            if !found.discarded {
                return Ok(Some((oldest, found, sequence)));
            }
            if ring.advance(oldest, found.after) {
                add(&ring.header().reading.discarded_passed, 1);
            }
        }
    }
}

impl Source for Consumer<'_> {
    fn peek(&mut self) -> Result<Option<u64>, Damaged> {
        loop {
            match self.front()? {
                None => return Ok(None),
                Some((oldest, found, _)) if self.ring.is_oldest(oldest) => {
                    return Ok(Some(found.tsc));
                }
                Some(_) => {}
            }
        }
    }

    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Event>, Damaged> {
        let ring = self.ring;
        let reading = &ring.header().reading;
        loop {
            let Some((oldest, found, sequence)) = self.front()? else {
                return Ok(None);
            };
            let overwritten = ring.overwritten_before(sequence);
            let dropped = ring.dropped_before(found.at);
            if !ring.is_oldest(oldest) {
                continue;
            }
            let unreported = |now: u64, reported: &super::word::Word| {
                let lost = now.saturating_sub(reported.load(Relaxed));
                add(reported, lost);
                lost
            };
            let lost = unreported(overwritten, &reading.overwritten_reported)
                + unreported(dropped, &reading.dropped_reported);
            if lost != 0 {
                return Ok(Some(Event::Lost(lost)));
            }
            ring.copy(&found, buffer);
            if ring.advance(oldest, found.after) {
                add(&reading.read, 1);
                return Ok(Some(Event::Record(Record {
                    tsc: found.tsc,
                    sequence,
                    bytes: found.bytes,
                })));
            }
        }
    }
}

/// A reader that leaves the records in the ring.
///
/// It shows no record that a consuming reader takes out before it comes there. If one runs, the
/// number of lost records may be too low.
pub struct Cursor<'m> {
    ring: Ring<'m>,
    /// Where it is: the position, and the whole number of the record that comes next.
    at: Position,
    sequence: u64,
    /// Overwritten records that it has been told of, or that it has seen before.
    overwritten: u64,
    /// Dropped records that it has been told of.
    dropped: Option<u64>,
    /// Lost records that its user has not been told of.
    lost: u64,
}

impl Cursor<'_> {
    /// The next record that is not discarded, and the oldest position before it was found. Counts
    /// what was lost before it.
    fn front(&mut self) -> Result<Option<(Position, Found)>, Damaged> {
        let ring = self.ring;
        loop {
            let oldest = ring.oldest();
            let first = ring.whole_sequence(oldest);
            let gap = first.wrapping_sub(self.sequence) as i64;
            if gap >= 0 {
                let overwritten = ring.overwritten_before(first);
                if !ring.is_oldest(oldest) {
                    continue;
                }
                // At 0 too: the record may have another position than the one before its page was
                // overwritten.
                (self.at, self.sequence) = (oldest, first);
                self.lost += overwritten.saturating_sub(self.overwritten).min(gap as u64);
                self.overwritten = overwritten;
            }
            if ring.committed().records_since(self.at) as i32 <= 0 {
                return Ok(None);
            }
            let Some(found) = ring.find(self.at) else {
                if self.is_intact(oldest) {
                    return Err(Damaged {
                        offset: self.at.offset(),
                        sequence: self.sequence,
                    });
                }
                continue;
            };
            let dropped = ring.dropped_before(found.at);
            if !self.is_intact(oldest) {
                continue;
            }
            if found.discarded {
                self.pass(&found);
                continue;
            }
            let reported = self.dropped.replace(dropped).unwrap_or(dropped);
            self.lost += dropped.saturating_sub(reported);
            return Ok(Some((oldest, found)));
        }
    }

    /// Whether the record that was found is still there. The oldest position was `oldest` before.
    fn is_intact(&self, oldest: Position) -> bool {
        fence(Acquire);
        let now = Position(self.ring.header().shared.oldest.load(Relaxed));
        // If it is at our record now, but was not before, the record may have another position.
        now == oldest || (now.sequence().wrapping_sub(self.at.sequence()) as i32) < 0
    }

    fn pass(&mut self, found: &Found) {
        self.at = found.after;
        self.sequence = self.sequence.wrapping_add(1);
    }
}

impl Source for Cursor<'_> {
    fn peek(&mut self) -> Result<Option<u64>, Damaged> {
        Ok(self.front()?.map(|(_, found)| found.tsc))
    }

    fn next(&mut self, buffer: &mut [u8]) -> Result<Option<Event>, Damaged> {
        loop {
            let front = self.front()?;
            if self.lost != 0 {
                return Ok(Some(Event::Lost(core::mem::take(&mut self.lost))));
            }
            let Some((oldest, found)) = front else {
                return Ok(None);
            };
            self.ring.copy(&found, buffer);
            if self.is_intact(oldest) {
                let sequence = self.sequence;
                self.pass(&found);
                return Ok(Some(Event::Record(Record {
                    tsc: found.tsc,
                    sequence,
                    bytes: found.bytes,
                })));
            }
        }
    }
}
