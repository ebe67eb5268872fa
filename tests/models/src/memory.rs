//! Memory that remembers that it was freed, and places that stand for plain fields.

use std::{
    alloc::{self as heap, Layout},
    cell::RefCell,
    ops::Range,
};

thread_local! {
    static FREED: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
    /// The memory that goes back to the heap after the execution.
    static OVER: RefCell<Vec<(*mut u8, Layout)>> = const { RefCell::new(Vec::new()) };
}

/// Does what `alloc::alloc::alloc` does.
///
/// # Safety
/// The layout is not empty.
pub(crate) unsafe fn alloc(layout: Layout) -> *mut u8 {
    // SAFETY: by the contract.
    unsafe { heap::alloc(layout) }
}

/// Does what `alloc::alloc::alloc_zeroed` does.
///
/// # Safety
/// The layout is not empty.
pub(crate) unsafe fn alloc_zeroed(layout: Layout) -> *mut u8 {
    // SAFETY: by the contract.
    unsafe { heap::alloc_zeroed(layout) }
}

/// Does what `alloc::alloc::dealloc` does, but the memory is never used again in this execution,
/// and no atomic in it may be touched.
///
/// # Safety
/// Same as for `alloc::alloc::dealloc`.
pub(crate) unsafe fn dealloc(memory: *mut u8, layout: Layout) {
    let range = memory.addr()..memory.addr() + layout.size();
    FREED.with_borrow_mut(|freed| freed.push(range));
    OVER.with_borrow_mut(|over| over.push((memory, layout)));
}

/// Frees `memory` when the execution is over.
pub(crate) fn free_later(memory: *mut u8, layout: Layout) {
    OVER.with_borrow_mut(|over| over.push((memory, layout)));
}

/// Keeps `value` until the execution is over. It is not dropped, because a drop would touch its
/// atomics outside of the execution.
pub(crate) fn keep<T>(value: T) -> &'static T {
    let layout = Layout::new::<T>();
    let kept = Box::leak(Box::new(value));
    OVER.with_borrow_mut(|over| over.push((core::ptr::from_mut(kept).cast(), layout)));
    kept
}

/// Does what [`keep`] does, for a value that is too large for a thread's stack.
///
/// # Safety
/// All bits zero are a value of it.
pub(crate) unsafe fn keep_zeroed<T>() -> &'static T {
    let layout = Layout::new::<T>();
    // SAFETY: no type here is empty.
    let kept = unsafe { heap::alloc_zeroed(layout) };
    OVER.with_borrow_mut(|over| over.push((kept, layout)));
    // SAFETY: fresh memory of this layout, kept for the execution, and a value by the contract.
    unsafe { kept.cast::<T>().as_ref() }.expect("memory")
}

/// Whether the memory at `addr` was freed in this execution.
pub(crate) fn is_freed(addr: usize) -> bool {
    FREED.with_borrow(|freed| freed.iter().any(|range| range.contains(&addr)))
}

/// Another execution begins.
pub(crate) fn forget() {
    FREED.with_borrow_mut(Vec::clear);
    for (memory, layout) in OVER.take() {
        // SAFETY: from the heap with this layout, and all threads that knew it are gone.
        unsafe { heap::dealloc(memory, layout) };
    }
}

/// Stands for the plain fields of an object. An access that is not ordered against a change of them
/// fails the model.
pub(crate) struct Content(loom::cell::UnsafeCell<u64>);

impl Content {
    /// For an execution.
    pub(crate) fn new() -> Self {
        Self(loom::cell::UnsafeCell::new(0))
    }

    pub(crate) fn read(&self) -> u64 {
        // SAFETY: the checker fails where another access is not ordered against this one.
        self.0.with(|content| unsafe { *content })
    }

    pub(crate) fn write(&self, value: u64) {
        // SAFETY: as in `read`.
        self.0.with_mut(|content| unsafe { *content = value });
    }
}

// SAFETY: the checker judges each access.
unsafe impl Sync for Content {}
// SAFETY: as above.
unsafe impl Send for Content {}
