//! A ring, and a log of all that was done with it. Each record says which one it is in all its
//! bytes.
//!
//! The judge compares what a reader got with the log: each record whole, in order, once, and each
//! gap with the right number.

use core::{
    cell::{Cell, RefCell},
    ptr::NonNull,
};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::BTreeMap,
    vec,
    vec::Vec,
};

use crate::{
    Cursor, Event, Mode, Record, Ring, Source, Stats,
    layout::{HEADER_BYTES, MAX_PAYLOAD},
    limits::PAGE_BYTES,
};

/// Memory for a ring.
pub(super) struct Memory(NonNull<u8>, Layout);

impl Memory {
    pub(super) fn new(pages: usize) -> Self {
        let bytes = Ring::bytes(pages).expect("a size");
        let layout = Layout::from_size_align(bytes, HEADER_BYTES).expect("a layout");
        // SAFETY: the layout is not empty.
        Self(
            NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory"),
            layout,
        )
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.0
    }

    /// A copy of some of its bytes. No code runs at the same time.
    pub(super) fn copy(&self, from: usize, bytes: usize) -> Vec<u8> {
        assert!(from + bytes <= self.1.size());
        // SAFETY: in the memory, and only this thread uses it.
        unsafe { core::slice::from_raw_parts(self.0.add(from).as_ptr(), bytes) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: from `alloc_zeroed` with this layout.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// How a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Commit,
    Discard,
}

/// See the file's text.
pub(super) struct World {
    pub(super) memory: Memory,
    pub(super) ring: Ring<'static>,
    pub(super) pages: usize,
    first_sequence: u64,
    next_id: Cell<u64>,
    /// The lengths of the committed records, by their numbers.
    pub(super) committed: RefCell<BTreeMap<u64, usize>>,
    pub(super) discarded: Cell<u64>,
    pub(super) dropped: Cell<u64>,
    /// The sequence numbers and the numbers of the records that were consumed.
    pub(super) read: RefCell<Vec<(u64, u64)>>,
    pub(super) lost: Cell<u64>,
}

/// The byte that record `id` consists of.
fn filling(id: u64) -> u8 {
    (id % 251) as u8 + 1
}

fn count(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

impl World {
    pub(super) fn new(pages: usize, mode: Mode, first_sequence: u64) -> Self {
        let memory = Memory::new(pages);
        // SAFETY: fresh memory of this size, all 0, that lives as long as the ring is used.
        let ring = unsafe { Ring::init_at(memory.start(), pages, mode, first_sequence) };
        Self {
            memory,
            ring: ring.expect("a ring"),
            pages,
            first_sequence,
            next_id: Cell::new(0),
            committed: RefCell::default(),
            discarded: Cell::new(0),
            dropped: Cell::new(0),
            read: RefCell::default(),
            lost: Cell::new(0),
        }
    }

    /// Begins a record. The caller ends it.
    pub(super) fn begin(&self, bytes: usize) -> Option<(u64, NonNull<u8>, usize)> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        // SAFETY: this thread is the ring's CPU, and all its callers end their records in order.
        let Some(payload) = (unsafe { self.ring.reserve(bytes, id) }) else {
            count(&self.dropped, 1);
            return None;
        };
        assert!(payload.addr().get().is_multiple_of(8));
        // SAFETY: reserved.
        unsafe { payload.write_bytes(filling(id), bytes) };
        Some((id, payload, bytes))
    }

    pub(super) fn end(&self, (id, payload, bytes): (u64, NonNull<u8>, usize), end: End) {
        match end {
            End::Commit => {
                self.committed.borrow_mut().insert(id, bytes);
                // SAFETY: begun, and not over.
                unsafe { self.ring.commit(payload) };
            }
            End::Discard => {
                count(&self.discarded, 1);
                // SAFETY: as above.
                unsafe { self.ring.discard(payload) };
            }
        }
    }

    /// Returns whether there was room.
    pub(super) fn write(&self, bytes: usize, end: End) -> bool {
        let record = self.begin(bytes);
        record.map(|record| self.end(record, end)).is_some()
    }

    /// Writes and commits as many of these records as there is room for.
    pub(super) fn write_many(&self, records: usize, bytes: usize) {
        for _ in 0..records {
            self.write(bytes, End::Commit);
        }
    }

    /// The number of a record, after a look at all of it.
    fn judge(&self, record: &Record, buffer: &[u8]) -> u64 {
        let id = record.tsc;
        assert_eq!(
            self.committed.borrow().get(&id),
            Some(&record.bytes),
            "record {id} was committed with another length, or not at all"
        );
        let whole = [filling(id); MAX_PAYLOAD];
        let payload = &buffer[..record.bytes];
        assert!(
            payload == &whole[..record.bytes],
            "{record:?} is torn: {payload:?}"
        );
        id
    }

    /// Takes the next event out.
    pub(super) fn consume(&self) -> Option<Event> {
        let mut buffer = vec![0; MAX_PAYLOAD];
        let event = self.ring.consumer().next(&mut buffer).expect("no damage")?;
        match &event {
            Event::Record(record) => {
                let id = self.judge(record, &buffer);
                let mut read = self.read.borrow_mut();
                if let Some(&(before, _)) = read.last() {
                    assert!(record.sequence > before, "{record:?} after {before}");
                }
                read.push((record.sequence, id));
            }
            Event::Lost(lost) => count(&self.lost, *lost),
        }
        Some(event)
    }

    /// The next event of `cursor`.
    pub(super) fn look(&self, cursor: &mut Cursor<'_>) -> Option<Event> {
        let mut buffer = vec![0; MAX_PAYLOAD];
        let event = cursor.next(&mut buffer).expect("no damage")?;
        if let Event::Record(record) = &event {
            self.judge(record, &buffer);
        }
        Some(event)
    }

    /// Shows all that is in the ring.
    pub(super) fn show(&self) -> Vec<Event> {
        let mut cursor = self.ring.cursor();
        let mut events = Vec::new();
        let mut last = None;
        while let Some(event) = self.look(&mut cursor) {
            if let Event::Record(record) = &event {
                assert!(Some(record.sequence) > last, "{record:?} after {last:?}");
                last = Some(record.sequence);
            }
            events.push(event);
        }
        events
    }

    pub(super) fn drain(&self) {
        while self.consume().is_some() {}
    }

    /// Wants the counts to agree with the log. Nothing is under way.
    pub(super) fn close_books(&self) -> Stats {
        let before = self.ring.stats();
        let is_record = |event: &&Event| matches!(event, Event::Record(_));
        let shown = self.show().iter().filter(is_record).count();
        assert_eq!(shown as u64, before.unread, "{before:?}");
        self.drain();
        let stats = self.ring.stats();
        let committed = self.committed.borrow().len() as u64;
        assert_eq!(stats.written, committed, "{stats:?}");
        assert_eq!(stats.discarded, self.discarded.get(), "{stats:?}");
        assert_eq!(stats.dropped(), self.dropped.get(), "{stats:?}");
        assert_eq!(stats.read, self.read.borrow().len() as u64, "{stats:?}");
        assert_eq!((stats.unread, stats.unread_bytes), (0, 0), "{stats:?}");
        assert_eq!(
            stats.written,
            stats.read + stats.overwritten + stats.cleared,
            "{stats:?}"
        );
        assert!(self.lost.get() <= stats.overwritten + stats.dropped());
        for &(sequence, _) in self.read.borrow().iter() {
            let reservations = stats.written + stats.discarded;
            assert!(sequence.wrapping_sub(self.first_sequence) < reservations);
        }
        stats
    }

    /// A copy of the memory, as `image` wants it, with `between` run between all steps.
    pub(super) fn copy_while(
        &self,
        piece: usize,
        mut between: impl FnMut(),
    ) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let before = self.memory.copy(0, HEADER_BYTES);
        let mut data = Vec::new();
        for from in (0..self.pages * PAGE_BYTES).step_by(piece) {
            between();
            let bytes = piece.min(self.pages * PAGE_BYTES - from);
            data.extend(self.memory.copy(HEADER_BYTES + from, bytes));
        }
        between();
        let after = self.memory.copy(0, HEADER_BYTES);
        (before, data, after)
    }

    /// Judges a record of an image.
    pub(super) fn judge_image(&self, tsc: u64, payload: &[u8]) -> u64 {
        let record = Record {
            tsc,
            sequence: 0,
            bytes: payload.len(),
        };
        self.judge(&record, payload)
    }
}
