//! What the kernel wants to know from the ACPI tables: how many CPUs there are.

use crate::mm::paging::phys_to_virt;
use acpi::{
    AcpiHandler, AcpiTables, PhysicalMapping,
    madt::{Madt, MadtEntry},
};
use bootloader_api::BootInfo;
use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};
use x86_64::PhysAddr;

/// Physical address of the root pointer (RSDP); 0 if there is none.
static ROOT_POINTER: AtomicU64 = AtomicU64::new(0);

/// Learns where the loader found the tables.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init(info: &BootInfo) {
    let root = info.rsdp_addr.into_option().unwrap_or(0);
    ROOT_POINTER.store(root, Ordering::Relaxed);
}

/// Maps the tables by way of the physical map.
#[derive(Clone)]
struct PhysMap;

impl AcpiHandler for PhysMap {
    unsafe fn map_physical_region<T>(
        &self,
        address: usize,
        size: usize,
    ) -> PhysicalMapping<Self, T> {
        let start = phys_to_virt(PhysAddr::new(address as u64)).as_mut_ptr();
        let start = NonNull::new(start).expect("the physical map is in the upper half");
        // SAFETY: all physical memory is mapped there, for ever.
        unsafe { PhysicalMapping::new(address, start, size, size, Self) }
    }

    fn unmap_physical_region<T>(_region: &PhysicalMapping<Self, T>) {}
}

/// How many CPUs are enabled, or `None` if the firmware has no such table.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn cpu_count() -> Option<usize> {
    const ENABLED: u32 = 1;
    let root = ROOT_POINTER.load(Ordering::Relaxed) as usize;
    if root == 0 {
        return None;
    }
    // SAFETY: the loader found the root pointer there, and `PhysMap` maps all memory.
    let tables = unsafe { AcpiTables::from_rsdp(PhysMap, root) }.ok()?;
    let madt = tables.find_table::<Madt>().ok()?;
    let enabled = madt.get().entries().filter(|entry| match entry {
        MadtEntry::LocalApic(apic) => apic.flags & ENABLED != 0,
        MadtEntry::LocalX2Apic(apic) => apic.flags & ENABLED != 0,
        _ => false,
    });
    Some(enabled.count())
}
