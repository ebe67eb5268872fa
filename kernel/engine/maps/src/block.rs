//! The memory of a map: words that are zero at first and belong to the map until it is dropped.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::{alloc::Layout, ptr::NonNull, sync::atomic::AtomicU64};

/// There is no memory for a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The size of the piece that was asked for in vain.
    pub bytes: usize,
}

/// The product, unless it is too large for a size of memory.
pub(super) fn checked_product(a: usize, b: usize) -> Result<usize, OutOfMemory> {
    let error = OutOfMemory {
        bytes: a.saturating_mul(b),
    };
    let product = a.checked_mul(b).ok_or(error)?;
    if product > isize::MAX as usize / 16 {
        return Err(error);
    }
    Ok(product)
}

/// Some words of the heap.
pub(super) struct Block {
    start: NonNull<AtomicU64>,
    layout: Layout,
}

// SAFETY: the words are atomic, and the memory is the program's, not a thread's.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Takes `words` words, all zero, at a multiple of 64.
    pub(super) fn zeroed(words: usize) -> Result<Self, OutOfMemory> {
        let bytes = words.saturating_mul(8);
        let layout = Layout::from_size_align(bytes.max(64), 64);
        let layout = layout.map_err(|_| OutOfMemory { bytes })?;
        // SAFETY: the layout has at least 64 bytes.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory { bytes })?;
        Ok(Self {
            start: start.cast(),
            layout,
        })
    }

    /// The first word.
    pub(super) fn start(&self) -> NonNull<AtomicU64> {
        self.start
    }

    /// All words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: zeroed memory of this size, which lives as long as `self`; zero is a value.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.layout.size() / 8) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: taken in `zeroed` with this layout.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}
