//! The two facts that the kernel needs from the ACPI tables: the number of CPUs, and the place
//! where the line of a device arrives.

use crate::mm::phys_map::phys_to_virt;
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

/// The table that tells of interrupt controllers; `None` if the firmware has no such table.
fn madt() -> Option<PhysicalMapping<PhysMap, Madt>> {
    let root = ROOT_POINTER.load(Ordering::Relaxed) as usize;
    if root == 0 {
        return None;
    }
    // SAFETY: the loader found the root pointer there, and `PhysMap` maps all memory.
    let tables = unsafe { AcpiTables::from_rsdp(PhysMap, root) }.ok()?;
    tables.find_table::<Madt>().ok()
}

/// How many CPUs are enabled, or `None` if the firmware has no such table.
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn cpu_count() -> Option<usize> {
    const ENABLED: u32 = 1;
    let madt = madt()?;
    let enabled = madt.get().entries().filter(|entry| match entry {
        MadtEntry::LocalApic(apic) => apic.flags & ENABLED != 0,
        MadtEntry::LocalX2Apic(apic) => apic.flags & ENABLED != 0,
        _ => false,
    });
    Some(enabled.count())
}

/// The place where a device's line arrives, and the kind of its signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLine {
    /// The registers of the I/O APIC.
    pub controller: PhysAddr,
    /// Which of its inputs.
    pub pin: u32,
    /// The line is low when the device wants something; else high.
    pub active_low: bool,
    /// The line stays so as long as the device wants something; else its change is the signal.
    pub level: bool,
}

/// The place where line `line` of the ISA bus arrives (ACPI 6.5, 5.2.12.3 and 5.2.12.5); `None` if
/// the firmware tells of no I/O APIC.
pub fn device_line(line: u8) -> Option<DeviceLine> {
    const POLARITY: u16 = 0b11;
    const LOW: u16 = 0b11;
    const TRIGGER: u16 = 0b1100;
    const LEVEL: u16 = 0b1100;
    let madt = madt()?;
    // Unless the firmware says otherwise, a line has the same number there. It is active high and
    // edge-triggered, as on the ISA bus.
    let (interrupt, flags) = madt
        .get()
        .entries()
        .find_map(|entry| match entry {
            MadtEntry::InterruptSourceOverride(other) if other.irq == line => {
                Some((other.global_system_interrupt, other.flags))
            }
            _ => None,
        })
        .unwrap_or((line.into(), 0));
    // Each controller has the interrupts from its first one to that of the next controller.
    let (controller, first) = madt
        .get()
        .entries()
        .filter_map(|entry| match entry {
            MadtEntry::IoApic(io) => Some((io.io_apic_address, io.global_system_interrupt_base)),
            _ => None,
        })
        .filter(|(_, first)| *first <= interrupt)
        .max_by_key(|(_, first)| *first)?;
    Some(DeviceLine {
        controller: PhysAddr::new(controller.into()),
        pin: interrupt - first,
        active_low: flags & POLARITY == LOW,
        level: flags & TRIGGER == LEVEL,
    })
}
