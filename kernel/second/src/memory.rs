//! Memory: the heap, frames, and the few pages that are mapped otherwise than the boot loader did.
//!
//! The boot loader maps all physical memory at one place, writable and not executable. So text is
//! written there, through the alias of its page, and no page is both writable and executable. That
//! map has no registers of devices, because programs of the tracer read whatever is mapped.
//!
//! # Contexts
//! All but the heap: tasks and the boot. The locks are held with interrupts off, so no task is
//! preempted with one, and interrupt handlers may allocate.

use core::{
    alloc::{GlobalAlloc, Layout},
    ops::Range,
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bootloader_api::{BootInfo, info::MemoryRegionKind};
use linked_list_allocator::Heap;
use spin::mutex::SpinMutex;
use trace_agent::KERNEL_MEMORY_END;
use x86_64::{
    PhysAddr, VirtAddr,
    instructions::interrupts::without_interrupts,
    registers::control::Cr3,
    structures::paging::{
        FrameAllocator, Mapper, OffsetPageTable, Page, PageTableFlags as Flags, PhysFrame,
        Size2MiB, Size4KiB, Translate,
    },
};

pub const PAGE_BYTES: u64 = 4096;
const HUGE_BYTES: u64 = 2 << 20;

/// Where the registers of the local APIC are mapped: above all that the tracer's programs read.
pub const APIC: u64 = KERNEL_MEMORY_END as i64 as u64 + (1 << 20);

/// Where physical memory is mapped.
static OFFSET: AtomicU64 = AtomicU64::new(0);

/// The frames that are free: the end of the largest region.
static FRAMES: SpinMutex<Frames> = SpinMutex::new(Frames(0..0));

struct Frames(Range<u64>);

// SAFETY: each frame of a region that the boot loader calls usable is handed out once.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let frame = self.0.start;
        self.0.start += PAGE_BYTES;
        (self.0.start <= self.0.end).then(|| PhysFrame::containing_address(PhysAddr::new(frame)))
    }
}

/// Makes the heap and the frames ready. Once, first.
pub fn init(info: &BootInfo) {
    const HEAP_BYTES: usize = 4 << 20;
    static mut MEMORY: [u8; HEAP_BYTES] = [0; HEAP_BYTES];
    // SAFETY: called once, and nothing else names the memory.
    unsafe { HEAP.lock().init((&raw mut MEMORY).cast(), HEAP_BYTES) };
    let offset = info.physical_memory_offset.into_option();
    OFFSET.store(offset.expect("asked for in CONFIG"), Relaxed);
    let usable = info.memory_regions.iter();
    let usable = usable.filter(|region| region.kind == MemoryRegionKind::Usable);
    let largest = usable.max_by_key(|region| region.end - region.start);
    let largest = largest.expect("there is memory");
    FRAMES.lock().0 = largest.start..largest.end;
    map(APIC, Some(0xfee0_0000), Flags::WRITABLE | Flags::NO_EXECUTE);
    unmap_devices(info);
}

/// Takes the registers of devices out of the map of physical memory: all below 4 GiB but memory,
/// and the first MiB, whose registers are the latches of a screen that is not used.
fn unmap_devices(info: &BootInfo) {
    let is_memory = |start: u64| {
        let mut regions = info.memory_regions.iter();
        regions.any(|region| {
            let known = matches!(
                region.kind,
                MemoryRegionKind::Usable | MemoryRegionKind::Bootloader
            );
            known && region.start < start + HUGE_BYTES && start < region.end
        })
    };
    let huge = (0..4 << 30).step_by(HUGE_BYTES as usize);
    for start in huge.filter(|start| !is_memory(*start)) {
        let at = VirtAddr::from_ptr(physical(start));
        let page = Page::<Size2MiB>::containing_address(at);
        if let Ok((_, flush)) = with_tables(|tables, _| tables.unmap(page)) {
            flush.flush();
        }
    }
}

/// Where physical memory at `address` can be read and written.
pub fn physical(address: u64) -> *mut u8 {
    (OFFSET.load(Relaxed) + address) as *mut u8
}

/// The root of the page tables: a physical address.
pub fn root() -> u64 {
    Cr3::read().0.start_address().as_u64()
}

/// Works on the page tables, with frames for new ones.
fn with_tables<T>(work: impl FnOnce(&mut OffsetPageTable<'_>, &mut Frames) -> T) -> T {
    without_interrupts(|| {
        let mut frames = FRAMES.lock();
        // SAFETY: the lock is held, so there is one such reference.
        let mut tables = unsafe {
            let root = &mut *physical(root()).cast();
            OffsetPageTable::new(root, VirtAddr::new(OFFSET.load(Relaxed)))
        };
        work(&mut tables, &mut frames)
    })
}

/// Where the byte at `address`, which is mapped, can be written.
pub fn alias(address: u64) -> *mut u8 {
    let found = with_tables(|tables, _| tables.translate_addr(VirtAddr::new(address)));
    physical(found.expect("mapped, by the contract").as_u64())
}

/// Makes pages of this kernel's data executable and not writable, in place of the contrary. Before
/// anything has used them, because no CPU is told.
pub fn make_executable(pages: Range<u64>) {
    for start in pages.step_by(PAGE_BYTES as usize) {
        let page = Page::<Size4KiB>::containing_address(VirtAddr::new(start));
        // SAFETY: by the contract no reference leads there.
        let changed = with_tables(|tables, _| unsafe { tables.update_flags(page, Flags::PRESENT) });
        changed.expect("the boot loader has mapped it").flush();
    }
}

/// Maps the frame at `frame`, or a new one, at `address`, where nothing is mapped.
pub fn map(address: u64, frame: Option<u64>, flags: Flags) {
    let page = Page::<Size4KiB>::containing_address(VirtAddr::new(address));
    let parents = Flags::PRESENT | Flags::WRITABLE | flags & Flags::USER_ACCESSIBLE;
    with_tables(|tables, frames| {
        let frame = frame.map(|frame| PhysFrame::containing_address(PhysAddr::new(frame)));
        let frame = frame.or_else(|| frames.allocate_frame());
        let frame = frame.expect("there is memory for a page");
        // SAFETY: nothing is mapped there, so no reference leads there.
        unsafe {
            tables
                .map_to_with_table_flags(page, frame, Flags::PRESENT | flags, parents, frames)
                .expect("nothing is mapped there")
                .flush();
        }
    });
}

static HEAP: SpinMutex<Heap> = SpinMutex::new(Heap::empty());

/// The heap. A lock around an allocator, no more.
pub struct KernelHeap;

// SAFETY: the heap hands out each piece of memory once, under its lock.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = without_interrupts(|| HEAP.lock().allocate_first_fit(layout));
        memory.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if let Some(memory) = NonNull::new(memory) {
            // SAFETY: by the contract of this function, from `alloc` with the same layout.
            without_interrupts(|| unsafe { HEAP.lock().deallocate(memory, layout) });
        }
    }
}

/// Does something while the heap's lock is held, and interrupts are off.
pub fn with_heap_locked<T>(work: impl FnOnce() -> T) -> T {
    without_interrupts(|| {
        let _heap = HEAP.lock();
        work()
    })
}

unsafe extern "C" {
    static __start_watchable: u8;
    static __stop_watchable: u8;
}

/// Whether all of `range` are statics of the section `watchable`.
pub fn is_watchable(range: &Range<u64>) -> bool {
    let start = (&raw const __start_watchable).addr() as u64;
    let end = (&raw const __stop_watchable).addr() as u64;
    start <= range.start && range.end <= end
}
