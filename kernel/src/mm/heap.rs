//! The kernel heap: a first-fit allocator over a region of its own that is mapped as it is needed.
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
use linked_list_allocator::Heap;
use x86_64::VirtAddr;

/// The heap grows by at least this many bytes.
const GROWTH: usize = 1 << 20;

struct KernelHeap(SpinLock<Heap>);

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: KernelHeap = KernelHeap(SpinLock::new(Heap::empty()));

/// Maps frames at the end of the heap, `bytes` more. False if memory is out.
fn grow(heap: &mut Heap, bytes: usize) -> bool {
    let bytes = bytes.next_multiple_of(GROWTH);
    let start = if heap.size() == 0 {
        HEAP_START
    } else {
        heap.top() as u64
    };
    if start + bytes as u64 > HEAP_END {
        return false;
    }
    for page in (start..start + bytes as u64).step_by(FRAME_SIZE) {
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
    if heap.size() == 0 {
        // SAFETY: mapped just now, for the heap alone, for ever.
        unsafe { heap.init(start as *mut u8, bytes) };
    } else {
        // SAFETY: mapped just now, right behind the heap's end, for ever.
        unsafe { heap.extend(bytes) };
    }
    true
}

// SAFETY: `Heap` hands out disjoint blocks that fit their layouts, and the lock serialises it.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        handler_rules::check(Rule::Allocation);
        if shortage::refuses() {
            return ptr::null_mut();
        }
        let mut heap = self.0.lock();
        let enough = layout.size() + layout.align() + 4 * size_of::<usize>();
        let mut block = heap.allocate_first_fit(layout);
        if block.is_err() && grow(&mut heap, enough) {
            block = heap.allocate_first_fit(layout);
        }
        match block {
            Ok(block) => {
                shortage::taken(layout.size());
                block.as_ptr()
            }
            Err(()) => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        handler_rules::check(Rule::Allocation);
        if let Some(block) = NonNull::new(block) {
            shortage::given_back(layout.size());
            // SAFETY: the caller got `block` from `alloc` with this layout.
            unsafe { self.0.lock().deallocate(block, layout) };
        }
    }
}

/// Bytes in use and bytes mapped.
pub fn usage() -> (usize, usize) {
    let heap = HEAP.0.lock();
    (heap.used(), heap.size())
}
