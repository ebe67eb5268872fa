//! The physical map: all physical memory, mapped by the loader, writable and not executable.
//!
//! The loader maps the first 4 GiB, with registers of devices among them.
//! [`super::paging::unmap_devices`] takes those out.

use bootloader_api::{
    BootInfo,
    info::{MemoryRegion, MemoryRegionKind},
};
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};
use x86_64::{PhysAddr, VirtAddr};

/// Where the physical map starts. Set once, by [`init`].
static PHYS_MAP: AtomicU64 = AtomicU64::new(0);

/// Learns where the loader mapped physical memory.
///
/// # Panics
/// If it did not.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init(info: &BootInfo) {
    let offset = info.physical_memory_offset.into_option();
    PHYS_MAP.store(
        offset.expect("the loader maps physical memory"),
        Ordering::Relaxed,
    );
}

/// Whether some of a range of physical addresses is memory. What the firmware only calls reserved
/// is taken for memory, where its tables are, if it begins at the end of memory.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn has_memory(regions: &[MemoryRegion], range: Range<u64>) -> bool {
    const MOST_TABLES: u64 = 16 << 20;
    let is_memory = |region: &MemoryRegion| match region.kind {
        MemoryRegionKind::Usable | MemoryRegionKind::Bootloader => true,
        // Tables of ACPI, and what the firmware keeps when it sleeps.
        MemoryRegionKind::UnknownBios(kind) => matches!(kind, 3 | 4),
        // Reserved, not usable, registers, ports.
        MemoryRegionKind::UnknownUefi(kind) => !matches!(kind, 0 | 8 | 11 | 12),
        _ => false,
    };
    let follows_memory = |region: &MemoryRegion| {
        let mut others = regions.iter().filter(|other| is_memory(other));
        let is_short = region.end - region.start <= MOST_TABLES;
        is_short && others.any(|other| other.end == region.start)
    };
    let overlaps = |region: &&MemoryRegion| region.start < range.end && range.start < region.end;
    let mut there = regions.iter().filter(overlaps);
    there.any(|region| is_memory(region) || follows_memory(region))
}

/// The kernel's ELF file.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn kernel_file(info: &BootInfo) -> &'static [u8] {
    let at = phys_to_virt(PhysAddr::new(info.kernel_addr));
    // SAFETY: the loader has left the file there, in memory that is never handed out as usable.
    unsafe { core::slice::from_raw_parts(at.as_ptr(), info.kernel_len as usize) }
}

/// The address in the physical map of `phys`: writable, not executable.
pub fn phys_to_virt(phys: PhysAddr) -> VirtAddr {
    VirtAddr::new(PHYS_MAP.load(Ordering::Relaxed) + phys.as_u64())
}
