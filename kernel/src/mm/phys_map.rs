//! The physical map: all physical memory, mapped by the loader, writable and not executable.

use bootloader_api::BootInfo;
use core::sync::atomic::{AtomicU64, Ordering};
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
