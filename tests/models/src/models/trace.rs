//! The trace ring: a CPU writes, and a task on another one reads.

use core::{ptr::NonNull, sync::atomic::Ordering::Relaxed};
use std::alloc::Layout;

use super::start;
use crate::{
    memory::alloc_zeroed,
    trace_ring::{
        Event, Mode, Ring, Source, Stats,
        layout::{HEADER_BYTES, Header},
        limits::PAGE_BYTES,
        word::Word,
    },
};

const PAGES: usize = 2;
/// The memory of a ring.
pub(super) const BYTES: usize = HEADER_BYTES + PAGES * PAGE_BYTES;

/// A ring that has `before` records.
pub(super) fn world(mode: Mode, before: u64) -> Ring<'static> {
    let bytes = Ring::bytes(PAGES).expect("a size");
    let layout = Layout::from_size_align(bytes, HEADER_BYTES).expect("a layout");
    // SAFETY: the layout is not empty.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    crate::memory::free_later(memory.as_ptr(), layout);
    // SAFETY: fresh memory of this size that lives to the end of the execution.
    let ring = unsafe { Ring::init(memory, PAGES, mode) }.expect("a ring");
    for id in 0..before {
        write(ring, id);
    }
    let data = HEADER_BYTES..HEADER_BYTES + PAGES * PAGE_BYTES;
    for offset in (0..size_of::<Header>()).chain(data).step_by(8) {
        word(memory, offset).load(Relaxed);
    }
    ring
}

pub(super) fn word(memory: NonNull<u8>, offset: usize) -> &'static Word {
    // SAFETY: in the ring or in a payload, which are all words.
    unsafe { memory.add(offset).cast().as_ref() }
}

/// Writes a record with a word of payload. The word and the time stamp say which one it is.
fn write(ring: Ring<'_>, id: u64) -> bool {
    // SAFETY: one thread writes.
    let Some(payload) = (unsafe { ring.reserve(8, id) }) else {
        return false;
    };
    word(payload, 0).store(!id, Relaxed);
    // SAFETY: just reserved.
    unsafe { ring.commit(payload) };
    true
}

/// Wants the next event to be whole. Returns the number of a record, and counts losses.
fn take(source: &mut impl Source, lost: &mut u64) -> Option<u64> {
    let mut buffer = [0; 8];
    match source.next(&mut buffer).expect("no damage")? {
        Event::Record(record) => {
            assert_eq!(record.sequence, record.tsc, "another record");
            assert_eq!(u64::from_le_bytes(buffer), !record.tsc, "a torn record");
            Some(record.tsc)
        }
        Event::Lost(more) => {
            *lost += more;
            take(source, lost)
        }
    }
}

/// Wants the books to close. Returns the counts when all has been read.
fn close(ring: Ring<'_>) -> Stats {
    let stats = ring.stats();
    assert_eq!(stats.written, stats.read + stats.overwritten + stats.unread);
    let mut lost = 0;
    while take(&mut ring.consumer(), &mut lost).is_some() {}
    let closed = ring.stats();
    assert_eq!(closed.read, stats.read + stats.unread);
    closed
}

/// Four records fill the ring. The next one overwrites the first page while a task takes two
/// records out.
pub(super) fn consumed() {
    let ring = world(Mode::Overwrite, 4);
    let reads = start(move || {
        let mut lost = 0;
        let mut last = None;
        let mut count = 0;
        for _ in 0..2 {
            if let Some(id) = take(&mut ring.consumer(), &mut lost) {
                // The lost records are between those.
                assert_eq!(id, count + lost, "after {last:?}");
                last = Some(id);
                count += 1;
            }
        }
        (count, lost)
    });
    assert!(write(ring, 4));
    let (count, lost) = reads.join().expect("no panic");
    assert_eq!(count, 2);
    let stats = close(ring);
    assert_eq!((stats.written, stats.read), (5, 5 - stats.overwritten));
    assert!(lost <= stats.overwritten);
}

/// The same, with a reader that leaves the records where they are.
pub(super) fn shown() {
    let ring = world(Mode::Overwrite, 4);
    let shows = start(move || {
        let mut lost = 0;
        let id = take(&mut ring.cursor(), &mut lost).expect("a record");
        assert!(id == lost || lost == 0);
    });
    assert!(write(ring, 4));
    shows.join().expect("no panic");
    let stats = close(ring);
    assert_eq!((stats.written, stats.overwritten), (5, 2));
}

/// A full ring in stop mode. A task makes room while the CPU writes.
pub(super) fn stopped() {
    let ring = world(Mode::Stop, 4);
    let writes = start(move || write(ring, 4));
    for id in 0..2 {
        assert_eq!(take(&mut ring.consumer(), &mut 0), Some(id));
    }
    let stored = writes.join().expect("no panic");
    let stats = close(ring);
    assert_eq!((stats.overwritten, stats.full), (0, u64::from(!stored)));
    assert_eq!(stats.written, 4 + u64::from(stored));
}

/// An empty ring: a task sees a record when it is complete.
pub(super) fn published() {
    let ring = world(Mode::Overwrite, 2);
    let reads = start(move || {
        let mut lost = 0;
        let ids: [_; 4] = std::array::from_fn(|_| take(&mut ring.consumer(), &mut lost));
        for (index, id) in (0..).zip(ids) {
            assert!(id.is_none_or(|id| id <= index));
        }
        assert_eq!(lost, 0);
    });
    // The second one begins a page.
    // SAFETY: one thread writes, the inner record first.
    unsafe {
        let outer = ring.reserve(8, 2).expect("room");
        assert!(write(ring, 3));
        word(outer, 0).store(!2, Relaxed);
        ring.commit(outer);
    }
    reads.join().expect("no panic");
    assert_eq!(close(ring).read, 4);
}

/// A reset meets a writer that overwrites.
pub(super) fn cleared() {
    let ring = world(Mode::Overwrite, 4);
    let resets = start(move || ring.reset());
    assert!(write(ring, 4));
    let base = resets.join().expect("no panic");
    assert_eq!(base.written, base.cleared + base.overwritten);
    let stats = ring.stats();
    let gone = stats.cleared + stats.overwritten;
    assert_eq!((stats.written, stats.unread), (5, 5 - gone));
    assert!(gone >= 4);
}
