//! How memory is used at a moment, in words for the log.

use super::{FRAME_SIZE, frame, heap, kernel_stack};
use core::fmt;

/// The use of memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The bytes of frames that nothing uses.
    pub free: usize,
    /// Those of the heap's blocks that are taken.
    pub heap_used: usize,
    /// Those of the frames that the heap has.
    pub heap_mapped: usize,
    /// Those of kernel stacks, the ones that wait for reuse among them.
    pub stacks: usize,
}

impl Usage {
    /// The use of memory now. Any context but NMI and probe handlers.
    pub fn now() -> Self {
        let (heap_used, heap_mapped) = heap::usage();
        Self {
            free: frame::free_frames() * FRAME_SIZE,
            heap_used,
            heap_mapped,
            stacks: kernel_stack::mapped_frames() * FRAME_SIZE,
        }
    }

    /// The same for code that must not wait, as in a panic: none if a lock is held.
    pub fn try_now() -> Option<Self> {
        let (heap_used, heap_mapped) = heap::try_usage()?;
        Some(Self {
            free: frame::try_free_frames()? * FRAME_SIZE,
            heap_used,
            heap_mapped,
            stacks: kernel_stack::try_mapped_frames()? * FRAME_SIZE,
        })
    }

    /// How many bytes more are held now than at `before`. Memory that the heap and the stacks keep
    /// for their next users is not held.
    pub fn held_since(&self, before: &Self) -> isize {
        let held = |usage: &Self| {
            usage.heap_used as isize - (usage.free + usage.heap_mapped + usage.stacks) as isize
        };
        held(self) - held(before)
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: usize| bytes / 1024;
        write!(
            f,
            "{} KiB free; the heap has {} KiB, {} of them used; stacks have {} KiB",
            kib(self.free),
            kib(self.heap_mapped),
            kib(self.heap_used),
            kib(self.stacks)
        )
    }
}
