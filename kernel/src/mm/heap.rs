//! The kernel heap: fixed-size blocks and whole pages ([`block_heap`]) in a region of its own,
//! which is mapped as it is needed.
//!
//! Blocks of up to 2 KiB are taken and given back in constant time, however many are free. A probe
//! consists of such blocks only. So its cost on a path that allocates does not depend on the probes
//! that were registered before. Larger blocks take a step for each hole between larger ones.
//!
//! # Chunks
//! The region consists of chunks of [`CHUNK`] bytes. A chunk is in one of three states:
//!
//! ```text
//!   beyond the end ──grow──► present: has frames ──give_back──► absent: its frames are others'
//!                                  ▲                                   │
//!                                  └────────────── grow ───────────────┘
//! ```
//!
//! Present chunks are the memory of the block heap. An absent one was taken away from it while all
//! of it was free. The heap keeps free chunks until frames are short, because it would soon need
//! them again. [`give_back`] is for code that finds frames short.
//!
//! # Contexts
//! Blocks: any context but NMI and probe handlers; one spinlock with interrupts off. Lock order:
//! heap, page tables, frames. [`give_back`]: task context.

use super::{
    allocation_faults,
    frame::{self, FRAME_SIZE, Frame},
    paging::{self, HEAP_END, HEAP_START, Protection},
};
use crate::{
    arch::smp,
    probes::handler_rules::{self, Rule},
    sync::SpinLock,
};
use block_heap::{BlockHeap, missing};
use core::{
    alloc::{GlobalAlloc, Layout},
    array,
    ops::Range,
    ptr::{self, NonNull},
};
use x86_64::VirtAddr;

/// The heap grows and gives back by this many bytes.
pub const CHUNK: usize = 1 << 20;
const CHUNKS: usize = (HEAP_END - HEAP_START) as usize / CHUNK;

/// Bytes of frames that the heap leaves to others. Without a limit one greedy user of the heap
/// would leave no memory for stacks and page tables.
const LEFT_TO_OTHERS: usize = 4 << 20;

struct Heap {
    blocks: BlockHeap,
    /// The number of the first chunk beyond the end.
    end: usize,
    /// Bit n % 64 of word n / 64: chunk n is absent.
    absent: [u64; CHUNKS / 64],
    /// How many chunks are absent.
    absences: usize,
}

/// Where chunk `chunk` begins.
fn address(chunk: usize) -> u64 {
    HEAP_START + (chunk * CHUNK) as u64
}

/// The pages of some chunks.
fn pages(chunks: Range<usize>) -> impl Iterator<Item = VirtAddr> + Clone {
    (address(chunks.start)..address(chunks.end))
        .step_by(FRAME_SIZE)
        .map(VirtAddr::new)
}

const ONE_CHUNK: Layout = match Layout::from_size_align(CHUNK, CHUNK) {
    Ok(layout) => layout,
    Err(_) => panic!("a chunk is a layout"),
};

impl Heap {
    /// Whether chunk `chunk` is absent.
    fn is_absent(&self, chunk: usize) -> bool {
        self.absences != 0 && self.absent[chunk / 64] & (1 << (chunk % 64)) != 0
    }

    fn set_absent(&mut self, chunk: usize, absent: bool) {
        let (word, bit) = (&mut self.absent[chunk / 64], 1 << (chunk % 64));
        if absent {
            *word |= bit;
            self.absences += 1;
        } else {
            *word &= !bit;
            self.absences -= 1;
        }
    }

    /// The first `count` chunks without frames that touch: absent ones, or those after the end.
    fn room(&self, count: usize) -> Option<Range<usize>> {
        let mut room = 0;
        if self.absences == 0 {
            room = self.end;
        }
        // The chunks from `room` to `end` are absent.
        let mut end = room;
        while end < self.end && end - room < count {
            if !self.is_absent(end) {
                room = end + 1;
            }
            end += 1;
        }
        let found = room..room.checked_add(count)?;
        (found.end <= CHUNKS).then_some(found)
    }

    /// Adds whole chunks, in which `bytes` bytes that touch are free. False if memory is out.
    fn grow(&mut self, bytes: usize) -> bool {
        let count = bytes.div_ceil(CHUNK);
        let left = (frame::free_frames() * FRAME_SIZE).saturating_sub(LEFT_TO_OTHERS);
        if count > left / CHUNK {
            return false;
        }
        let Some(chunks) = self.room(count) else {
            return false;
        };
        for page in pages(chunks.clone()) {
            let mapped = Frame::alloc()
                .is_ok_and(|frame| paging::map_kernel(page, frame, Protection::ReadWrite).is_ok());
            if !mapped {
                pages(chunks)
                    .take_while(|&earlier| earlier < page)
                    // No CPU has touched the page since it was mapped, so none has it in its TLB.
                    .for_each(|page| drop(paging::unmap_kernel(page)));
                return false;
            }
        }
        for chunk in chunks {
            let Some(start) = NonNull::new(address(chunk) as *mut u8) else {
                continue;
            };
            if chunk < self.end {
                self.set_absent(chunk, false);
                // SAFETY: `give_back` has taken the chunk away, and its pages have frames again.
                unsafe { self.blocks.bring_back(start, ONE_CHUNK) };
            } else {
                self.end = chunk + 1;
                // SAFETY: just mapped, for the heap alone. The chunk is whole pages, right after
                // the heap's end if it has one. Its frames go only while it is taken away.
                unsafe { self.blocks.add(start, CHUNK) };
            }
        }
        true
    }

    fn usage(&self) -> (usize, usize) {
        (self.blocks.used(), (self.end - self.absences) * CHUNK)
    }
}

struct KernelHeap(SpinLock<Heap>);

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: KernelHeap = KernelHeap(SpinLock::new(Heap {
    blocks: BlockHeap::empty(),
    end: 0,
    absent: [0; CHUNKS / 64],
    absences: 0,
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
    HEAP.0.lock().usage()
}

/// The same; none if the lock is held.
pub(super) fn try_usage() -> Option<(usize, usize)> {
    Some(HEAP.0.try_lock()?.usage())
}

/// Gives the frames of one chunk back, if a whole chunk is free. False if none is. Task context,
/// interrupts on, no spinlock held.
pub fn give_back() -> bool {
    /// Frames that wait for one flush. They are on the stack.
    const BATCH: usize = 64;
    let Some(start) = HEAP.0.lock().blocks.take_away(ONE_CHUNK) else {
        return false;
    };
    // The chunk is neither the block heap's now nor absent, so nothing else uses it.
    let chunk = (start.addr().get() as u64 - HEAP_START) as usize / CHUNK;
    let mut pages = pages(chunk..chunk + 1);
    for _ in 0..CHUNK / FRAME_SIZE / BATCH {
        let frames: [Option<Frame>; BATCH] =
            array::from_fn(|_| pages.next().and_then(paging::unmap_kernel));
        // No CPU may write through a stale translation once the frames hold something else.
        smp::flush_tlb_everywhere();
        drop(frames);
    }
    HEAP.0.lock().set_absent(chunk, true);
    true
}
