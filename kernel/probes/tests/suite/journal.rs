//! The events of a test in their order: handlers note them, tests compare them.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const ROOM: usize = 4096;
static NEXT: AtomicUsize = AtomicUsize::new(0);
static NOTES: [AtomicU64; ROOM] = [const { AtomicU64::new(0) }; ROOM];

/// Notes an event. Any context.
pub fn note(event: u64) {
    if let Some(place) = NOTES.get(NEXT.fetch_add(1, Relaxed)) {
        place.store(event, Relaxed);
    }
}

/// All events since the last call.
pub fn take() -> Vec<u64> {
    let count = NEXT.swap(0, Relaxed);
    assert!(count <= ROOM, "{count} events");
    NOTES[..count]
        .iter()
        .map(|note| note.load(Relaxed))
        .collect()
}

/// Forgets all events.
pub fn clear() {
    NEXT.store(0, Relaxed);
}
