//! Page tables: the kernel's half, which all address spaces share, and the user's half of each.
//!
//! ```text
//!   0000_0000_0000_0000  user: one AddressSpace each; page 0 stays unmapped
//!   ffff_8000_0000_0000  the loader's: physical map (writable, NX), boot information, boot stack
//!   ffff_ff80_0000_0000  HEAP
//!   ffff_ff90_0000_0000  kernel stacks, each above an unmapped page
//!   ffff_ffff_8000_0000  the kernel image: rodata r--, text r-x, init text r-x, data rw-
//!   ffff_ffff_a000_0000  TEXT_POOL: executable memory made at run time, near enough for a rel32
//!   ffff_ffff_f010_0000  device registers
//! ```
//!
//! # Invariants
//! PAGING-1. W^X: no page is mapped writable and executable. [`Protection`] has no such value, and
//!     the loader honours the segment flags. Text is written through the physical map
//!     ([`text_alias`]), which is never executable.
//! PAGING-2. The upper half of the root table never changes after [`init`], because all later
//!     mappings of the kernel lie below root entry 511. So every address space may hold a copy of
//!     it.
//! PAGING-3. An address space owns the tables of its lower half, but not the frames that they map.
//!     One task uses it, so it is loaded on at most one CPU at a time.
//! PAGING-4. Registers of devices are mapped in their region only, and the physical map has memory
//!     alone, after [`unmap_devices`]. So a read below that region touches no register. The loader
//!     may map the memory of a screen, which reading does not change.
//! PAGING-5. No page is global and PCIDs are off, so loading CR3 drops every translation of a CPU.
//!
//! # Contexts and locks
//! The kernel's half is changed under one spinlock, in any context but NMI and probe handlers. Some
//! CPU may have a kernel page in its TLB when that is unmapped. The caller then flushes all CPUs
//! before the frame is used again. [`translate_kernel`] and [`text_alias`] read without a lock.
//! Their answer holds as long as the caller keeps the page mapped.

use super::{
    frame::{Frame, OutOfMemory},
    phys_map::{self, phys_to_virt},
};
use crate::sync::SpinLock;
use bootloader_api::info::MemoryRegion;
use bpf_compiler::KERNEL_MEMORY_END;
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};
use x86_64::{
    PhysAddr, VirtAddr,
    registers::control::{Cr3, Cr3Flags},
    structures::paging::{
        FrameAllocator, Mapper, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame,
        Size4KiB, Translate,
        mapper::{MapToError, TranslateResult},
        page_table::{PageTableEntry, PageTableLevel},
    },
};

/// First address of the kernel heap.
pub const HEAP_START: u64 = 0xffff_ff80_0000_0000;
/// End of the region that the kernel heap may grow into.
pub const HEAP_END: u64 = HEAP_START + (64 << 30);
/// First address of the region for kernel stacks.
pub const STACKS_START: u64 = 0xffff_ff90_0000_0000;
/// End of the region for kernel stacks.
pub const STACKS_END: u64 = 0xffff_ffa0_0000_0000;
/// First address of the region for executable memory made at run time.
pub const TEXT_POOL_START: u64 = 0xffff_ffff_a000_0000;
/// End of the region for executable memory made at run time.
pub const TEXT_POOL_END: u64 = 0xffff_ffff_c000_0000;
/// First address of the region for device registers. It lies so far above what programs read that
/// no offset of a load leads here.
pub const DEVICES_START: u64 = KERNEL_MEMORY_END as i64 as u64 + (1 << 20);
/// End of the part of the user's half that may be mapped. The last page below the canonical hole
/// stays free, so `rip` after a `syscall` in ring 3 is always canonical.
pub const USER_END: u64 = 0x0000_7fff_ffff_f000;

/// The accesses that a mapping allows. No value allows both writing and executing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// r--
    Read,
    /// rw-
    ReadWrite,
    /// r-x
    ReadExecute,
}

impl Protection {
    fn flags(self) -> PageTableFlags {
        PageTableFlags::PRESENT
            | match self {
                Self::Read => PageTableFlags::NO_EXECUTE,
                Self::ReadWrite => PageTableFlags::WRITABLE | PageTableFlags::NO_EXECUTE,
                Self::ReadExecute => PageTableFlags::empty(),
            }
    }
}

/// Why a page was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No frame is left for a page table.
    OutOfMemory,
    /// The page is mapped already.
    Occupied,
    /// The address lies outside the region that may be mapped here, or is not a multiple of the
    /// page size.
    BadAddress,
}

impl From<OutOfMemory> for MapError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// Physical address of the kernel's own root table, whose lower half is empty.
static KERNEL_ROOT: AtomicU64 = AtomicU64::new(0);

/// Serialises changes of the kernel's half.
static KERNEL_TABLES: SpinLock<()> = SpinLock::new(());

struct TableFrames;

// SAFETY: a `Frame` is unused memory, and its owner is the table from now on.
unsafe impl FrameAllocator<Size4KiB> for TableFrames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let frame = Frame::alloc().ok()?;
        Some(PhysFrame::containing_address(frame.into_phys()))
    }
}

/// The tables below `root`.
///
/// # Safety
/// 1. `root` is a root table whose tables all lie in the physical map.
/// 2. While the result is in use, no other code changes the part of it that the caller reads or
///    changes.
unsafe fn tables(root: PhysAddr) -> OffsetPageTable<'static> {
    let map = phys_to_virt(PhysAddr::zero());
    // SAFETY: (1) and (2) are the requirements of `new`.
    unsafe { OffsetPageTable::new(&mut *phys_to_virt(root).as_mut_ptr::<PageTable>(), map) }
}

/// Moves from the loader's root table to the kernel's own, which has the same upper half and an
/// empty lower half. Call once, on the CPU that boots, when its GDT, IDT and TSS are the kernel's.
///
/// # Panics
/// Without memory for the tables.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init() {
    let (loader_root, _) = Cr3::read();
    // The other CPUs load it before they are in long mode, as 32 bits.
    let mut root = Frame::alloc_below_4_gib().expect("memory below 4 GiB for the root table");
    root.bytes_mut()[..2048].fill(0);
    // SAFETY: the loader's table is live, and only the processor writes it (accessed bits).
    let loader: &[u8; 4096] = unsafe { &*phys_to_virt(loader_root.start_address()).as_ptr() };
    root.bytes_mut()[2048..].copy_from_slice(&loader[2048..]);
    KERNEL_ROOT.store(root.into_phys().as_u64(), Ordering::Relaxed);
    activate_kernel();
}

/// Takes what is no memory out of the physical map, which the loader has made of pages of 2 MiB.
/// Call once, after [`init`] and before other CPUs start.
///
/// # Panics
/// Without memory for a table.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn unmap_devices(regions: &[MemoryRegion]) {
    const HUGE: u64 = 2 << 20;
    const GIB: u64 = 1 << 30;
    let map = phys_to_virt(PhysAddr::zero());
    assert!(map.is_aligned(GIB), "the loader begins a table with memory");
    let end = regions.iter().map(|region| region.end).max().unwrap_or(0);
    // A firmware may reserve what lies at 1 TiB, and the loader then maps all below it.
    for gib in (0..end.max(4 * GIB)).step_by(GIB as usize) {
        if !phys_map::has_memory(regions, gib..gib + GIB) {
            if let Some(entry) = loader_entry(map + gib, PageTableLevel::Three) {
                entry.set_unused();
            }
            continue;
        }
        for start in (gib..gib + GIB).step_by(HUGE as usize) {
            if !phys_map::has_memory(regions, start..start + HUGE)
                && let Some(entry) = loader_entry(map + start, PageTableLevel::Two)
            {
                entry.set_unused();
            }
        }
    }
    unmap_screen(map);
    // Drops what the CPU has of them (PAGING-5).
    activate_kernel();
}

/// Takes the memory of the screen out of the physical map, which begins at `map`: its first huge
/// page becomes small ones.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn unmap_screen(map: VirtAddr) {
    const SCREEN: Range<usize> = 0xa0..0xc0;
    let entry = loader_entry(map, PageTableLevel::Two).expect("the loader maps the first page");
    if !entry.flags().contains(PageTableFlags::HUGE_PAGE) {
        return;
    }
    let flags = entry.flags() - PageTableFlags::HUGE_PAGE;
    let frame = Frame::alloc().expect("memory for a table").into_phys();
    // SAFETY: the frame is ours.
    let small = unsafe { &mut *phys_to_virt(frame).as_mut_ptr::<PageTable>() };
    small.zero();
    for (number, page) in small.iter_mut().enumerate() {
        if !SCREEN.contains(&number) {
            page.set_addr(PhysAddr::new(number as u64 * 4096), flags);
        }
    }
    entry.set_addr(frame, PageTableFlags::PRESENT | PageTableFlags::WRITABLE);
}

/// The entry of `page` in its table of that level. None: it has no such table. While one CPU runs
/// alone only, and one result at a time.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
fn loader_entry(page: VirtAddr, level: PageTableLevel) -> Option<&'static mut PageTableEntry> {
    let mut table = kernel_root();
    let mut at = PageTableLevel::Four;
    loop {
        // SAFETY: the kernel's tables are never freed. No other CPU runs, and the callers hold no
        // other reference into the tables.
        let table_at = unsafe { &mut *phys_to_virt(table).as_mut_ptr::<PageTable>() };
        let entry = &mut table_at[page.page_table_index(at)];
        if at == level {
            return Some(entry);
        }
        let is_table = entry.flags().contains(PageTableFlags::PRESENT)
            && !entry.flags().contains(PageTableFlags::HUGE_PAGE);
        table = is_table.then(|| entry.addr())?;
        at = at.next_lower_level()?;
    }
}

/// Physical address of the kernel's own root table.
pub fn kernel_root() -> PhysAddr {
    PhysAddr::new(KERNEL_ROOT.load(Ordering::Relaxed))
}

/// Makes a root table with the kernel's half, and with the frame at `page` mapped at its own
/// physical address, executable. It is for a CPU that switches paging on while it runs in that
/// frame. The table lies below 4 GiB and is never freed.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn kernel_root_with_identity_page(page: PhysAddr) -> Result<PhysAddr, OutOfMemory> {
    let mut root = Frame::alloc_below_4_gib()?;
    // SAFETY: the kernel's root is live, and only the processor writes it (PAGING-2, accessed
    // bits).
    let kernel: &[u8; 4096] = unsafe { &*phys_to_virt(kernel_root()).as_ptr() };
    root.bytes_mut().copy_from_slice(kernel);
    let root = root.into_phys();
    // SAFETY: the new root is (1), and no other code knows it (2).
    let mut tables = unsafe { tables(root) };
    // SAFETY: no reference into the lower half exists, and the page is not writable there.
    let mapped = unsafe {
        tables.map_to_with_table_flags(
            Page::<Size4KiB>::containing_address(VirtAddr::new(page.as_u64())),
            PhysFrame::containing_address(page),
            Protection::ReadExecute.flags(),
            PageTableFlags::PRESENT | PageTableFlags::WRITABLE,
            &mut TableFrames,
        )
    };
    mapped.map_err(|_| OutOfMemory)?.ignore();
    Ok(root)
}

/// Loads a root table on this CPU.
///
/// # Safety
/// 1. `root` has the kernel's upper half (PAGING-2), and stays alive until another is loaded here.
pub(crate) unsafe fn load_root(root: PhysAddr) {
    // SAFETY: by (1) all that runs stays mapped.
    unsafe { Cr3::write(PhysFrame::containing_address(root), Cr3Flags::empty()) };
}

/// Leaves any user address space on this CPU.
pub fn activate_kernel() {
    // SAFETY: the kernel's root lives for ever.
    unsafe { load_root(kernel_root()) };
}

/// Whether a page is inside the regions of root entry 511 (PAGING-2) and aligned.
fn is_kernel_page(page: VirtAddr) -> bool {
    page.as_u64() >= HEAP_START && page.is_aligned(4096u64)
}

fn map_in_kernel(page: VirtAddr, phys: PhysAddr, flags: PageTableFlags) -> Result<(), MapError> {
    if !is_kernel_page(page) {
        return Err(MapError::BadAddress);
    }
    let _lock = KERNEL_TABLES.lock();
    // SAFETY: the kernel's root is (1), and the lock gives us the kernel's half (2).
    let mut tables = unsafe { tables(kernel_root()) };
    // SAFETY: the page was not mapped, so no reference into it exists. The callers own the memory
    // at `phys`.
    let mapped = unsafe {
        tables.map_to_with_table_flags(
            Page::<Size4KiB>::containing_address(page),
            PhysFrame::containing_address(phys),
            flags,
            PageTableFlags::PRESENT | PageTableFlags::WRITABLE,
            &mut TableFrames,
        )
    };
    // A page that was not present is in no TLB.
    mapped.map(|flush| flush.ignore()).map_err(map_error)
}

fn map_error(error: MapToError<Size4KiB>) -> MapError {
    match error {
        MapToError::FrameAllocationFailed => MapError::OutOfMemory,
        MapToError::ParentEntryHugePage | MapToError::PageAlreadyMapped(_) => MapError::Occupied,
    }
}

/// Maps `frame` at `page`, an address in one of the kernel's regions. The mapping owns the frame.
pub fn map_kernel(page: VirtAddr, frame: Frame, protection: Protection) -> Result<(), MapError> {
    map_in_kernel(page, frame.phys(), protection.flags())?;
    let _owned_by_the_mapping = frame.into_phys();
    Ok(())
}

/// Maps `frame` read-only and executable at `page`, an address in the text pool. Its contents are
/// written through [`text_alias`].
pub fn map_kernel_rx(page: VirtAddr, frame: Frame) -> Result<(), MapError> {
    if !(TEXT_POOL_START..TEXT_POOL_END).contains(&page.as_u64()) {
        return Err(MapError::BadAddress);
    }
    map_kernel(page, frame, Protection::ReadExecute)
}

/// Maps the page of device registers at `phys`, uncached.
pub fn map_device(phys: PhysAddr) -> Result<VirtAddr, MapError> {
    static NEXT: AtomicU64 = AtomicU64::new(DEVICES_START);
    let page = VirtAddr::new(NEXT.fetch_add(4096, Ordering::Relaxed));
    let flags =
        Protection::ReadWrite.flags() | PageTableFlags::NO_CACHE | PageTableFlags::WRITE_THROUGH;
    map_in_kernel(page, phys.align_down(4096u64), flags)?;
    Ok(page + (phys.as_u64() & 0xfff))
}

/// Unmaps `page` of a kernel region and returns its frame. Drops the translation on this CPU only;
/// see the module's note.
pub fn unmap_kernel(page: VirtAddr) -> Option<Frame> {
    let _lock = KERNEL_TABLES.lock();
    // SAFETY: as in `map_in_kernel`.
    let mut tables = unsafe { tables(kernel_root()) };
    let (frame, flush) = tables
        .unmap(Page::<Size4KiB>::containing_address(page))
        .ok()?;
    flush.flush();
    // SAFETY: the mapping owned the frame, and it is gone.
    Some(unsafe { Frame::from_phys(frame.start_address()) })
}

/// Lets the kernel write `page`, which it may read, or not. Nothing changes where no page of 4 KiB
/// is mapped. The caller then flushes all CPUs.
pub fn set_kernel_writable(page: VirtAddr, is_writable: bool) {
    let Some((_, mut flags)) = translate_kernel(page) else {
        return;
    };
    flags.set(PageTableFlags::WRITABLE, is_writable);
    let _lock = KERNEL_TABLES.lock();
    // SAFETY: as in `map_in_kernel`.
    let mut tables = unsafe { tables(kernel_root()) };
    let page = Page::<Size4KiB>::containing_address(page);
    // SAFETY: the same frame stays there, and who may not write it any more is told by a fault.
    if let Ok(flush) = unsafe { tables.update_flags(page, flags) } {
        flush.ignore();
    }
}

/// Where the kernel address `address` lies in physical memory, and how it is mapped.
pub fn translate_kernel(address: VirtAddr) -> Option<(PhysAddr, PageTableFlags)> {
    // SAFETY: the root is the kernel's (1). Tables of the kernel's half are never freed, and each
    // entry is written by one store, so a reader sees the old or the new entry (2).
    translate(&unsafe { tables(kernel_root()) }, address)
}

fn translate(
    tables: &OffsetPageTable<'_>,
    address: VirtAddr,
) -> Option<(PhysAddr, PageTableFlags)> {
    match tables.translate(address) {
        TranslateResult::Mapped {
            frame,
            offset,
            flags,
        } => Some((frame.start_address() + offset, flags)),
        TranslateResult::NotMapped | TranslateResult::InvalidFrameAddress(_) => None,
    }
}

/// A writable, not executable alias of the byte of kernel text at `address`, or null if nothing is
/// mapped there. The alias is valid to the end of the page.
pub fn text_alias(address: VirtAddr) -> *mut u8 {
    translate_kernel(address).map_or(core::ptr::null_mut(), |(phys, _)| {
        phys_to_virt(phys).as_mut_ptr()
    })
}

/// The user's half of an address space. See PAGING-3.
pub struct AddressSpace {
    root: Frame,
}

impl AddressSpace {
    /// An address space with nothing in its lower half.
    pub fn new() -> Result<Self, OutOfMemory> {
        let mut root = Frame::alloc()?;
        // SAFETY: the kernel's root is live, and only the processor writes it (PAGING-2, accessed
        // bits).
        let kernel: &[u8; 4096] = unsafe { &*phys_to_virt(kernel_root()).as_ptr() };
        root.bytes_mut().copy_from_slice(kernel);
        Ok(Self { root })
    }

    fn tables(&self) -> OffsetPageTable<'_> {
        // SAFETY: our root is (1). A shared borrow only reads (2).
        unsafe { tables(self.root.phys()) }
    }

    fn tables_mut(&mut self) -> OffsetPageTable<'_> {
        // SAFETY: our root is (1), and the exclusive borrow gives us the lower half (2).
        unsafe { tables(self.root.phys()) }
    }

    /// Maps the frame at `frame` at `page` for ring 3. It replaces the mapping that was there.
    ///
    /// # Safety
    /// 1. Until it is unmapped here, the frame holds user memory: no reference into it exists while
    ///    ring 3 runs in this address space, and it is not freed.
    pub unsafe fn map(
        &mut self,
        page: VirtAddr,
        frame: PhysAddr,
        protection: Protection,
    ) -> Result<(), MapError> {
        if !(4096..USER_END).contains(&page.as_u64()) || !page.is_aligned(4096u64) {
            return Err(MapError::BadAddress);
        }
        self.unmap(page);
        let user = PageTableFlags::USER_ACCESSIBLE;
        // SAFETY: ring 3 alone reaches the page, and the frame is for it (1).
        let mapped = unsafe {
            self.tables_mut().map_to_with_table_flags(
                Page::<Size4KiB>::containing_address(page),
                PhysFrame::containing_address(frame),
                protection.flags() | user,
                PageTableFlags::PRESENT | PageTableFlags::WRITABLE | user,
                &mut TableFrames,
            )
        };
        mapped.map_err(map_error)?.ignore();
        Ok(())
    }

    /// Unmaps `page`. True if it was mapped.
    // Not inlined, so that all that it does is found under its name.
    #[inline(never)]
    pub fn unmap(&mut self, page: VirtAddr) -> bool {
        if page.as_u64() >= USER_END {
            return false;
        }
        match self
            .tables_mut()
            .unmap(Page::<Size4KiB>::containing_address(page))
        {
            // By PAGING-3 only this CPU can have it in its TLB.
            Ok((_, flush)) => flush.flush(),
            Err(_) => return false,
        }
        true
    }

    /// Makes `page` read-only if it is mapped writable.
    pub fn write_protect(&mut self, page: VirtAddr) {
        let Some((_, flags)) = self.translate(page) else {
            return;
        };
        let page = Page::<Size4KiB>::containing_address(page);
        // SAFETY: taking a right away from ring 3.
        let changed = unsafe {
            self.tables_mut()
                .update_flags(page, flags & !PageTableFlags::WRITABLE)
        };
        if let Ok(flush) = changed {
            flush.flush();
        }
    }

    /// Where the user address `address` lies in physical memory, and how it is mapped.
    pub fn translate(&self, address: VirtAddr) -> Option<(PhysAddr, PageTableFlags)> {
        (address.as_u64() < USER_END).then(|| translate(&self.tables(), address))?
    }

    /// Physical address of the root table, for CR3.
    pub fn root(&self) -> PhysAddr {
        self.root.phys()
    }

    /// Calls `f` for each mapped page.
    pub fn for_each_mapping(&self, mut f: impl FnMut(Mapping)) {
        walk(&Table::root(self.root()), 0..256, &mut |entry| {
            if let Entry::Page(mapping) = entry {
                f(mapping);
            }
        });
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        let (current, _) = Cr3::read();
        assert!(
            current.start_address() != self.root(),
            "an address space was dropped while it was loaded (PAGING-3)"
        );
        walk(&Table::root(self.root()), 0..256, &mut |entry| {
            if let Entry::Table(phys) = entry {
                // SAFETY: this value owns the tables of the lower half (PAGING-3), and the walk
                // does not use a table again after it has reported it.
                drop(unsafe { Frame::from_phys(phys) });
            }
        });
    }
}

/// An item that [`walk`] reports.
enum Entry {
    /// A mapped page.
    Page(Mapping),
    /// A table all of whose entries have been reported.
    Table(PhysAddr),
}

/// A mapped page, of 4 KiB, 2 MiB or 1 GiB, and what the tables on the way to it allow together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first address.
    pub page: VirtAddr,
    /// How many bytes it covers.
    pub size: u64,
    /// Where it lies in physical memory.
    pub phys: PhysAddr,
    /// Stores are allowed.
    pub writable: bool,
    /// Instructions may be fetched.
    pub executable: bool,
    /// Ring 3 may use it.
    pub user: bool,
}

/// Calls `f` for each page that is mapped in the kernel's half. Other code may change the half
/// meanwhile, so a reported page may be gone.
pub fn for_each_kernel_mapping(mut f: impl FnMut(Mapping)) {
    walk(&Table::root(kernel_root()), 256..512, &mut |entry| {
        if let Entry::Page(mapping) = entry {
            f(mapping);
        }
    });
}

/// A page table that [`walk`] has come to.
struct Table {
    phys: PhysAddr,
    /// 4 for the root, 1 for one whose entries are pages.
    level: u32,
    /// The first address that it maps.
    base: u64,
    /// The accesses that the tables above it allow: PRESENT, WRITABLE, USER_ACCESSIBLE if all of
    /// them do; NO_EXECUTE if one forbids it.
    flags: PageTableFlags,
}

impl Table {
    fn root(phys: PhysAddr) -> Self {
        let flags = PageTableFlags::WRITABLE | PageTableFlags::USER_ACCESSIBLE;
        Self {
            phys,
            level: 4,
            base: 0,
            flags,
        }
    }
}

/// Reports the pages and tables below entries `range` of `table`, deepest first, without the table
/// itself.
fn walk(table: &Table, range: Range<usize>, f: &mut impl FnMut(Entry)) {
    const ALL: PageTableFlags = PageTableFlags::WRITABLE.union(PageTableFlags::USER_ACCESSIBLE);
    let size = 1u64 << (12 + 9 * (table.level - 1));
    for n in range {
        // SAFETY: `table` is a live table. The entry is copied, so `f` may free what it names.
        let entry = unsafe { (&*phys_to_virt(table.phys).as_ptr::<PageTable>())[n].clone() };
        let flags = entry.flags();
        if !flags.contains(PageTableFlags::PRESENT) {
            continue;
        }
        let forbidden = (table.flags | flags) & PageTableFlags::NO_EXECUTE;
        let flags = table.flags & flags & ALL | forbidden | flags & PageTableFlags::HUGE_PAGE;
        let base = table.base + n as u64 * size;
        if table.level == 1 || flags.contains(PageTableFlags::HUGE_PAGE) {
            f(Entry::Page(Mapping {
                page: VirtAddr::new_truncate(base),
                size,
                phys: entry.addr(),
                writable: flags.contains(PageTableFlags::WRITABLE),
                executable: !flags.contains(PageTableFlags::NO_EXECUTE),
                user: flags.contains(PageTableFlags::USER_ACCESSIBLE),
            }));
        } else {
            let below = Table {
                phys: entry.addr(),
                level: table.level - 1,
                base,
                flags,
            };
            walk(&below, 0..512, f);
            f(Entry::Table(entry.addr()));
        }
    }
}
