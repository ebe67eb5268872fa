//! The interrupt descriptor table: one for all CPUs, every vector present. A CPU may use another
//! table for a moment ([`crate::probes::single_step_trace`],
//! [`crate::probes::preempt_at_breakpoint`]).
//!
//! All gates are interrupt gates, so each handler starts with interrupts off. Ring 3 may raise #BP
//! alone; any other `int n` there is a #GP. Double faults and NMIs have stacks of their own,
//! because they may come when the stack in use is not usable. #BP has none, because hits nest.

use super::gdt::{DOUBLE_FAULT_IST, KERNEL_CS, NMI_IST};
use core::{cell::UnsafeCell, mem::size_of};
use x86_64::{
    PrivilegeLevel, VirtAddr, instructions::tables::lidt, structures::DescriptorTablePointer,
};

/// Vectors. The first 32 are those of exceptions (Intel SDM vol. 3A, table 6-1). This kernel has
/// chosen the others; a higher one is more urgent.
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

/// Short names of the exceptions (Intel SDM vol. 3A, table 6-1).
const NAMES: [&str; 32] = [
    "divide error",
    "debug exception",
    "NMI",
    "breakpoint",
    "overflow",
    "bound range exceeded",
    "invalid opcode",
    "device not available",
    "double fault",
    "coprocessor segment overrun",
    "invalid TSS",
    "segment not present",
    "stack segment fault",
    "general protection fault",
    "page fault",
    "reserved exception 15",
    "x87 error",
    "alignment check",
    "machine check",
    "SIMD error",
    "virtualization exception",
    "control protection exception",
    "reserved exception 22",
    "reserved exception 23",
    "reserved exception 24",
    "reserved exception 25",
    "reserved exception 26",
    "reserved exception 27",
    "hypervisor injection",
    "VMM communication",
    "security exception",
    "reserved exception 31",
];

/// The name of an exception.
///
/// # Panics
/// If `vector` is not below 32.
pub fn exception_name(vector: u8) -> &'static str {
    NAMES[usize::from(vector)]
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
pub(crate) struct Idt(UnsafeCell<[Gate; GATES]>);

// SAFETY: written while no CPU uses it, as `fill` demands; else only the processors read it.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt::new();

impl Idt {
    /// A table without gates.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([Gate::MISSING; GATES]))
    }

    /// Lets each vector lead to the entry that `entry_of` gives.
    ///
    /// # Safety
    /// 1. No CPU has the table loaded, and no other code fills it.
    pub(crate) unsafe fn fill(&self, entry_of: impl Fn(u8) -> VirtAddr) {
        // SAFETY: no other code reads or writes it, by (1).
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
            *gate = Gate::new(entry_of(vector), ist, from);
        }
    }

    /// Loads the table on the calling CPU.
    ///
    /// # Safety
    /// 1. It was filled, each gate names an entry that expects it, and it stays as long as it is
    ///    loaded.
    pub(crate) unsafe fn load(&'static self) {
        let pointer = DescriptorTablePointer {
            limit: (GATES * size_of::<Gate>() - 1) as u16,
            // A pointer is canonical. The constructor that checks it could panic, and a hit may
            // come here (`probes::preempt_at_breakpoint`).
            base: VirtAddr::new_truncate(core::ptr::from_ref(self).addr() as u64),
        };
        // SAFETY: by (1).
        unsafe { lidt(&pointer) };
    }
}

/// Fills the table and loads it on the CPU that boots; `stub` gives the entry of a vector. Call
/// once, with interrupts off, after [`super::percpu::load_descriptor_tables`].
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub fn init(stub: fn(u8) -> VirtAddr) {
    // SAFETY: no CPU has loaded the table yet, and no other CPU runs.
    unsafe { IDT.fill(stub) };
    load();
}

/// Loads the table on the calling CPU. [`init`] has filled it.
pub fn load() {
    // SAFETY: `init` has filled it for good, with the stubs of `entry`.
    unsafe { IDT.load() };
}
