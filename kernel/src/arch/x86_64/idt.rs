//! The interrupt descriptor table: one for all CPUs, every vector present. A CPU may use another for a moment ([`super::follow`],
//! [`super::give_way`]).
//!
//! All gates are interrupt gates, so each handler starts with interrupts off. Ring 3 may raise #BP alone; any other
//! `int n` there is a #GP.

use super::{
    entry,
    gdt::{DOUBLE_FAULT_IST, KERNEL_CS, NMI_IST},
};
use core::{cell::UnsafeCell, mem::size_of};
use x86_64::{
    PrivilegeLevel, VirtAddr, instructions::tables::lidt, structures::DescriptorTablePointer,
};

/// Vectors: those of exceptions (Intel SDM vol. 3A, table 6-1), and from 32 on those that this kernel has chosen; the
/// higher, the more urgent.
pub mod vector {
    /// #DB, debug.
    pub const DEBUG: u8 = 1;
    /// Non-maskable interrupt.
    pub const NMI: u8 = 2;
    /// #BP, breakpoint.
    pub const BREAKPOINT: u8 = 3;
    /// #UD, invalid opcode.
    pub const INVALID_OPCODE: u8 = 6;
    /// #DF, double fault.
    pub const DOUBLE_FAULT: u8 = 8;
    /// #GP, general protection.
    pub const GENERAL_PROTECTION: u8 = 13;
    /// #PF, page fault.
    pub const PAGE_FAULT: u8 = 14;
    /// The first vector that is not an exception.
    pub const FIRST_INTERRUPT: u8 = 32;
    /// Something was typed at the serial line.
    pub const SERIAL: u8 = 0xe0;
    /// The tick of the scheduler.
    pub const TIMER: u8 = 0xec;
    /// Another CPU has something to run here.
    pub const RESCHEDULE: u8 = 0xf0;
    /// Another CPU wants all translations dropped.
    pub const FLUSH_TLB: u8 = 0xf1;
    /// The probes want to know that this CPU has got here.
    pub const PROBES_SYNC: u8 = 0xf2;
    /// The local APIC found an error.
    pub const APIC_ERROR: u8 = 0xfe;
    /// An interrupt went away before it was delivered.
    pub const SPURIOUS: u8 = 0xff;
}

/// A 64-bit interrupt gate (Intel SDM vol. 3A, figure 6-8).
#[repr(C)]
#[derive(Clone, Copy)]
struct Gate {
    offset_low: u16,
    selector: u16,
    ist: u8,
    attributes: u8,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

const PRESENT_INTERRUPT_GATE: u8 = 0x8e;

impl Gate {
    const MISSING: Self = Self {
        offset_low: 0,
        selector: 0,
        ist: 0,
        attributes: 0,
        offset_middle: 0,
        offset_high: 0,
        reserved: 0,
    };

    const fn new(handler: VirtAddr, ist: u8, from: PrivilegeLevel) -> Self {
        let offset = handler.as_u64();
        Self {
            offset_low: offset as u16,
            selector: KERNEL_CS,
            ist,
            attributes: PRESENT_INTERRUPT_GATE | (from as u8) << 5,
            offset_middle: (offset >> 16) as u16,
            offset_high: (offset >> 32) as u32,
            reserved: 0,
        }
    }
}

const GATES: usize = 256;

/// A table.
#[repr(C, align(16))]
pub(super) struct Idt(UnsafeCell<[Gate; GATES]>);

// SAFETY: written while no CPU uses it, as `fill` demands; else only the processors read it.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt::new();

impl Idt {
    /// A table without gates.
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new([Gate::MISSING; GATES]))
    }

    /// Has each vector lead to what `other` says, or else to its stub.
    ///
    /// # Safety
    /// 1. No CPU has the table loaded, and nobody else fills it.
    pub(super) unsafe fn fill(&self, other: impl Fn(u8) -> Option<VirtAddr>) {
        // SAFETY: nobody else reads or writes it, by (1).
        let gates = unsafe { &mut *self.0.get() };
        for (vector, gate) in (0..=u8::MAX).zip(gates) {
            let ist = match vector {
                vector::NMI => NMI_IST,
                vector::DOUBLE_FAULT => DOUBLE_FAULT_IST,
                _ => 0,
            };
            let from = match vector {
                vector::BREAKPOINT => PrivilegeLevel::Ring3,
                _ => PrivilegeLevel::Ring0,
            };
            let handler = other(vector).unwrap_or_else(|| entry::stub(vector));
            *gate = Gate::new(handler, ist, from);
        }
    }

    /// Loads the table on the calling CPU.
    ///
    /// # Safety
    /// 1. It was filled, each gate names an entry that expects it, and it stays as long as it is loaded.
    pub(super) unsafe fn load(&'static self) {
        let pointer = DescriptorTablePointer {
            limit: (GATES * size_of::<Gate>() - 1) as u16,
            // A pointer is canonical. What checks that could panic, and a hit may come here ([`super::give_way`]).
            base: VirtAddr::new_truncate(core::ptr::from_ref(self).addr() as u64),
        };
        // SAFETY: by (1).
        unsafe { lidt(&pointer) };
    }
}

/// Fills the table and loads it on the CPU that boots. Call once, with interrupts off, after [`super::gdt::init`].
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init() {
    // SAFETY: no CPU has loaded the table yet, and we are the only one that runs.
    unsafe { IDT.fill(|_| None) };
    load();
}

/// Loads the table on the calling CPU. [`init`] has filled it.
pub fn load() {
    // SAFETY: it was filled, with stubs of `entry` alone, for good.
    unsafe { IDT.load() };
}
