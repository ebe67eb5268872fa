//! The kernel heap: a two-level segregated fit (TLSF) over a region of its own that is mapped as it is needed.
//!
//! It takes and gives back in bounded time however many blocks are free, so that what a probe costs on a path that allocates
//! does not depend on what was registered before.
//!
//! Any context but NMI and probe handlers: one spinlock with interrupts off. Lock order: heap, page tables, frames.
//! Memory that the heap has taken stays the heap's.

use super::{
    frame::{FRAME_SIZE, Frame},
    paging::{self, HEAP_END, HEAP_START, Protection},
    shortage,
};
use crate::{
    probes::handler_rules::{self, Rule},
    sync::SpinLock,
};
use core::{
    alloc::{GlobalAlloc, Layout},
    ptr::{self, NonNull},
};
use rlsf::{GRANULARITY, Tlsf};
use x86_64::VirtAddr;

/// The heap grows by at least this many bytes.
const GROWTH: usize = 1 << 20;

/// What a block costs beyond its contents, before it is rounded up to [`GRANULARITY`].
const HEADER: usize = 2 * size_of::<usize>();

struct Heap {
    /// As many first levels as addresses allow: only then are pools that touch one pool.
    blocks: Tlsf<'static, u64, u16, { (u64::BITS - GRANULARITY.ilog2()) as usize }, 16>,
    /// Bytes of the blocks that are taken.
    used: usize,
    /// Bytes mapped, from [`HEAP_START`] on.
    mapped: usize,
}

impl Heap {
    /// Takes a block. None: no free one is large enough.
    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let block = self.blocks.allocate(layout)?;
        self.used += size(layout);
        Some(block)
    }

    /// Maps frames at the end of the heap, `bytes` more. False if memory is out.
    fn grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes.next_multiple_of(GROWTH);
        let start = HEAP_START + self.mapped as u64;
        // A size that no machine has may lead past the end of all addresses.
        let end = start.checked_add(bytes as u64);
        let Some(end) = end.filter(|end| *end <= HEAP_END) else {
            return false;
        };
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
        let memory = ptr::slice_from_raw_parts_mut(start as *mut u8, bytes);
        if let Some(memory) = NonNull::new(memory) {
            // SAFETY: mapped just now, for the heap alone, for ever; right behind its end, if it has one: whole pages are used up.
            unsafe {
                if self.mapped == 0 {
                    self.blocks.insert_free_block_ptr(memory);
                } else {
                    self.blocks.append_free_block_ptr(memory);
                }
            }
        }
        self.mapped += bytes;
        true
    }
}

/// Bytes of the block that holds `layout`.
fn size(layout: Layout) -> usize {
    (layout.size() + HEADER).next_multiple_of(GRANULARITY)
}

/// Bytes of free memory in which a block for `layout` is found: free blocks are searched from the class of sizes on that holds it for
/// certain, and the classes of this heap are a sixteenth apart.
fn enough_for(layout: Layout) -> usize {
    let block = size(layout) + layout.align() + GRANULARITY;
    block + block / 8
}

struct KernelHeap(SpinLock<Heap>);

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: KernelHeap = KernelHeap(SpinLock::new(Heap {
    blocks: Tlsf::new(),
    used: 0,
    mapped: 0,
}));

// SAFETY: `Tlsf` hands out disjoint blocks that fit their layouts, and the lock serialises it.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        handler_rules::check(Rule::Allocation);
        if shortage::refuses() {
            return ptr::null_mut();
        }
        let mut heap = self.0.lock();
        let mut block = heap.take(layout);
        if block.is_none() && heap.grow(enough_for(layout)) {
            block = heap.take(layout);
        }
        match block {
            Some(block) => {
                shortage::taken(layout.size());
                block.as_ptr()
            }
            None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        handler_rules::check(Rule::Allocation);
        if let Some(block) = NonNull::new(block) {
            shortage::given_back(layout.size());
            let mut heap = self.0.lock();
            heap.used -= size(layout);
            // SAFETY: the caller got `block` from `alloc` with this layout.
            unsafe { heap.blocks.deallocate(block, layout.align()) };
        }
    }
}

/// Bytes in use, those that blocks cost beyond their contents among them, and bytes mapped.
pub fn usage() -> (usize, usize) {
    let heap = HEAP.0.lock();
    (heap.used, heap.mapped)
}
