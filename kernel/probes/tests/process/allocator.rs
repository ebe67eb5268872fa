//! A heap that can be told to be empty.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Limited;

#[global_allocator]
static HEAP: Limited = Limited;

thread_local! {
    /// How many allocations of this thread still succeed.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    /// How many this thread has made.
    static MADE: Cell<u64> = const { Cell::new(0) };
    /// How many bytes this thread has taken and not given back; what other threads gave back for it
    /// counts as held.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// Runs `work` with room for `count` allocations. Returns its result, and whether it has asked for
/// more.
pub fn with_room_for<T>(count: u64, work: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(count);
    MADE.set(0);
    let plenty = Plenty;
    let result = work();
    drop(plenty);
    (result, MADE.get() > count)
}

/// Makes allocations succeed again when it is dropped, by a panic as well.
struct Plenty;

impl Drop for Plenty {
    fn drop(&mut self) {
        LEFT.set(u64::MAX);
    }
}

/// Does what [`with_room_for`] does, and tells how many bytes this thread has taken meanwhile and
/// not given back.
pub fn kept_with_room_for<T>(count: u64, work: impl FnOnce() -> T) -> (T, bool, i64) {
    let before = HELD.get();
    let (result, short) = with_room_for(count, work);
    (result, short, HELD.get() - before)
}

/// Counts the allocations of `work`.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = MADE.get();
    work();
    MADE.get() - before
}

// SAFETY: `System` with some requests refused, as every allocator may.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MADE.set(MADE.get() + 1);
        let left = LEFT.get();
        // A panic needs memory to say what is wrong. Without it, the test would hang.
        if left == 0 && !std::thread::panicking() {
            return std::ptr::null_mut();
        }
        if left != u64::MAX {
            LEFT.set(left.saturating_sub(1));
        }
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}
