//! The kernel heap: fixed-size blocks and whole pages ([`block_heap`]) in a region of its own,
//! which is mapped as it is needed.
//!
//! Blocks of up to 2 KiB are taken and given back in constant time, however many are free. A probe
//! consists of such blocks only. So its cost on a path that allocates does not depend on the probes
//! that were registered before. Larger blocks take a step for each hole between larger ones.
//!
//! Any context but NMI and probe handlers: one spinlock with interrupts off. Lock order: heap, page
//! tables, frames. Memory that the heap has taken stays the heap's.

use super::{
    allocation_faults,
    frame::{self, FRAME_SIZE, Frame},
    paging::{self, HEAP_END, HEAP_START, Protection},
};
use crate::{
    probes::handler_rules::{self, Rule},
    sync::SpinLock,
};
use block_heap::{BlockHeap, missing};
use core::{
    alloc::{GlobalAlloc, Layout},
    ptr::{self, NonNull},
};
use x86_64::VirtAddr;

/// The heap grows by at least this many bytes.
const GROWTH: usize = 1 << 20;

/// Bytes of frames that the heap leaves to others. It gives no frame back, so without a limit one
/// greedy user of the heap would leave no memory for stacks, page tables and programs.
const LEFT_TO_OTHERS: usize = 4 << 20;

struct Heap {
    blocks: BlockHeap,
    /// Bytes mapped, from [`HEAP_START`] on.
    mapped: usize,
}

impl Heap {
    /// Maps frames at the end of the heap, `bytes` more. False if memory is out.
    fn grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes.next_multiple_of(GROWTH);
        let start = HEAP_START + self.mapped as u64;
        if bytes as u64 > HEAP_END - start
            || frame::free_frames() * FRAME_SIZE < bytes + LEFT_TO_OTHERS
        {
            return false;
        }
        let end = start + bytes as u64;
        for page in (start..end).step_by(FRAME_SIZE) {
            let mapped = Frame::alloc().is_ok_and(|frame| {
                paging::map_kernel(VirtAddr::new(page), frame, Protection::ReadWrite).is_ok()
            });
            if !mapped {
                for page in (start..page).step_by(FRAME_SIZE) {
                    // No CPU has touched the page, so none has it in its TLB.
                    drop(paging::unmap_kernel(VirtAddr::new(page)));
                }
                return false;
            }
        }
        if let Some(start) = NonNull::new(start as *mut u8) {
            // SAFETY: just mapped, for the heap alone, for ever. It is whole pages, right behind
            // the heap's end if it has one.
            unsafe { self.blocks.add(start, bytes) };
        }
        self.mapped += bytes;
        true
    }
}

struct KernelHeap(SpinLock<Heap>);

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: KernelHeap = KernelHeap(SpinLock::new(Heap {
    blocks: BlockHeap::empty(),
    mapped: 0,
}));

// SAFETY: `BlockHeap` hands out disjoint blocks that fit their layouts, and the lock serialises it.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        handler_rules::check(Rule::Allocation);
        if allocation_faults::refuses() {
            return ptr::null_mut();
        }
        let mut heap = self.0.lock();
        let mut block = heap.blocks.allocate(layout);
        if block.is_none() && missing(layout).is_some_and(|bytes| heap.grow(bytes)) {
            block = heap.blocks.allocate(layout);
        }
        match block {
            Some(block) => {
                allocation_faults::taken(layout.size());
                block.as_ptr()
            }
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        handler_rules::check(Rule::Allocation);
        if let Some(block) = NonNull::new(block) {
            allocation_faults::given_back(layout.size());
            let mut heap = self.0.lock();
            // SAFETY: the caller got `block` from `alloc` with this layout.
            unsafe { heap.blocks.deallocate(block, layout) };
        }
    }
}

/// Bytes of the blocks in use, and bytes mapped.
pub fn usage() -> (usize, usize) {
    let heap = HEAP.0.lock();
    (heap.blocks.used(), heap.mapped)
}
