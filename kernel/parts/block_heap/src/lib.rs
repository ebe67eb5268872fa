//! A heap of fixed-size blocks, and of whole pages for larger blocks.
//!
//! The size of a block of at most 2 KiB is a power of two, and its address is a multiple of its
//! size. Each size is a class with a list of its free blocks. An empty class gets a page and hands
//! out its blocks one after the other. Larger blocks are whole pages. Pages come from
//! `linked_list_allocator`: a list of holes, sorted by address, of which the first one that fits is
//! taken.
//!
//! # Bounds
//! - A block of a class is taken and given back in constant time, however many are free or taken.
//!   This also holds for the page of an empty class: the list of holes contains only whole pages,
//!   so its first hole always has one.
//! - A larger block takes a step for each hole. There is at most one hole more than there are
//!   larger blocks.
//!
//! # Memory
//! A page of a class stays in that class. So a class holds as many pages as its blocks ever needed
//! at the same time. Users that take and give back in rounds need no more pages after the first
//! round. Pages of larger blocks that touch are one hole again. The owner may take whole free pages
//! away ([`BlockHeap::take_away`]) and bring them back later, for example to lend their memory to
//! others.
//!
//! # Contexts
//! Plain data without locks: the owner serialises it. It calls nothing that allocates.
#![no_std]

use core::{
    alloc::Layout,
    ptr::{self, NonNull},
};

/// Bytes of a page. A class grows by one page, and larger blocks are multiples of it.
pub const PAGE: usize = 4096;

/// The smallest class. A free block holds the address of the next one.
const SMALLEST: usize = 16;
/// The largest class: two blocks in a page.
const LARGEST: usize = 2048;
const CLASSES: usize = (LARGEST.ilog2() - SMALLEST.ilog2() + 1) as usize;

/// The contents of a free block.
#[repr(C)]
struct Free {
    next: *mut Free,
}

/// The blocks of one size.
#[derive(Clone, Copy)]
struct Class {
    /// The blocks that have been given back.
    free: *mut Free,
    /// The unused rest of the page that came last, and its length in bytes.
    fresh: *mut u8,
    fresh_bytes: usize,
}

impl Class {
    const EMPTY: Self = Self {
        free: ptr::null_mut(),
        fresh: ptr::null_mut(),
        fresh_bytes: 0,
    };

    /// Takes a block of `size` bytes, unless all are taken.
    fn take(&mut self, size: usize) -> Option<NonNull<u8>> {
        if let Some(block) = NonNull::new(self.free) {
            // SAFETY: each block in the list is a free block of this class; `give_back` has written
            // it.
            self.free = unsafe { block.read() }.next;
            return Some(block.cast());
        }
        self.fresh_bytes = self.fresh_bytes.checked_sub(size)?;
        let block = self.fresh;
        // SAFETY: `size` bytes of the page were left, so this is in it or right after it.
        self.fresh = unsafe { self.fresh.add(size) };
        NonNull::new(block)
    }

    /// # Safety
    /// `block` is one of this class that [`take`](Self::take) has returned, and it is not used any
    /// more.
    unsafe fn give_back(&mut self, block: NonNull<u8>) {
        let block = block.cast::<Free>().as_ptr();
        // SAFETY: the block is free, large enough, and aligned to its size.
        unsafe { block.write(Free { next: self.free }) };
        self.free = block;
    }
}

/// Where a layout's block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The class of that index.
    Class(usize),
    /// Whole pages, as this layout says.
    Pages(Layout),
}

impl Source {
    /// None if no memory has that size.
    fn of(layout: Layout) -> Option<Self> {
        let least = layout.size().max(layout.align()).max(SMALLEST);
        if least <= LARGEST {
            let index = least.next_power_of_two().ilog2() - SMALLEST.ilog2();
            return Some(Self::Class(index as usize));
        }
        let size = layout.size().max(1).checked_next_multiple_of(PAGE)?;
        let pages = Layout::from_size_align(size, layout.align().max(PAGE)).ok()?;
        Some(Self::Pages(pages))
    }

    /// Bytes of the block.
    fn bytes(self) -> usize {
        match self {
            Self::Class(index) => SMALLEST << index,
            Self::Pages(layout) => layout.size(),
        }
    }
}

/// See the module's text.
pub struct BlockHeap {
    classes: [Class; CLASSES],
    pages: linked_list_allocator::Heap,
    used: usize,
}

// SAFETY: its pointers lead to memory that is the heap's alone.
unsafe impl Send for BlockHeap {}

impl BlockHeap {
    /// A heap without memory.
    pub const fn empty() -> Self {
        Self {
            classes: [Class::EMPTY; CLASSES],
            pages: linked_list_allocator::Heap::empty(),
            used: 0,
        }
    }

    /// Adds `bytes` bytes of memory from `start` on.
    ///
    /// # Safety
    /// The memory is valid, belongs to the heap alone, and stays so as long as the heap or a block
    /// of it is used. It consists of whole pages, at least one. Unless it is the first, it begins
    /// where the one before has ended.
    pub unsafe fn add(&mut self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.pages.bottom().is_null() {
                self.pages.init(start.as_ptr(), bytes);
            } else {
                self.pages.extend(bytes);
            }
        }
    }

    /// Takes free pages away from the heap, as many as `layout` says. None if no hole has room for
    /// them. The heap does not touch them again until they are back.
    pub fn take_away(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        match Source::of(layout)? {
            Source::Class(_) => None,
            Source::Pages(layout) => self.pages.allocate_first_fit(layout).ok(),
        }
    }

    /// Brings pages back to the heap.
    ///
    /// # Safety
    /// [`take_away`](Self::take_away) has returned each of these pages, alone or with others, and
    /// it has not been brought back since. Their number is that of `layout`. They are valid memory
    /// again and belong to the heap alone.
    pub unsafe fn bring_back(&mut self, start: NonNull<u8>, layout: Layout) {
        if let Some(Source::Pages(layout)) = Source::of(layout) {
            // SAFETY: the caller's promise. The list of holes knows no blocks, only their bounds.
            unsafe { self.pages.deallocate(start, layout) };
        }
    }

    /// Takes a block for `layout`. Returns none if there is no memory for it; [`missing`] says how
    /// much is needed.
    // A place that ready programs of the tracer name.
    #[inline(never)]
    pub fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let source = Source::of(layout)?;
        let block = match source {
            Source::Class(index) => {
                let class = &mut self.classes[index];
                match class.take(source.bytes()) {
                    Some(block) => block,
                    None => {
                        let page = self.pages.allocate_first_fit(ONE_PAGE).ok()?;
                        class.fresh = page.as_ptr();
                        class.fresh_bytes = PAGE;
                        class.take(source.bytes())?
                    }
                }
            }
            Source::Pages(layout) => self.pages.allocate_first_fit(layout).ok()?,
        };
        self.used += source.bytes();
        Some(block)
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `block` came from [`allocate`](Self::allocate) of this heap with the same layout, and it is
    /// not used any more.
    // A place that ready programs of the tracer name.
    #[inline(never)]
    pub unsafe fn deallocate(&mut self, block: NonNull<u8>, layout: Layout) {
        let Some(source) = Source::of(layout) else {
            return;
        };
        self.used -= source.bytes();
        // SAFETY: the caller's promise; the same layout has the same source.
        unsafe {
            match source {
                Source::Class(index) => self.classes[index].give_back(block),
                Source::Pages(layout) => self.pages.deallocate(block, layout),
            }
        }
    }

    /// Bytes of the blocks that are taken.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes of the pages that are neither a larger block nor any class's.
    pub fn free_pages(&self) -> usize {
        self.pages.free()
    }
}

const ONE_PAGE: Layout = match Layout::from_size_align(PAGE, PAGE) {
    Ok(layout) => layout,
    Err(_) => panic!("a page is a layout"),
};

/// How many bytes to add so that a block for `layout` is found. None if no memory has that many.
pub fn missing(layout: Layout) -> Option<usize> {
    match Source::of(layout)? {
        Source::Class(_) => Some(PAGE),
        Source::Pages(layout) => layout.size().checked_add(layout.align() - PAGE),
    }
}
