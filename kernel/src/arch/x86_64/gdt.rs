//! Descriptor tables of one CPU: the GDT, the task state segment and the stacks that it names.
//!
//! `syscall` and `sysret` fix the order of the segments (Intel SDM vol. 2B): kernel code, kernel
//! data, user data, user code.
//!
//! Two vectors have stacks of their own (IST). #DF comes when the stack of the task is no longer
//! usable. NMI comes at any instruction, even where rsp still is the user's. The NMI stub leaves
//! its stack within a few instructions (see [`super::entry`]). That stack is as large as the other
//! only because a fault in those instructions must be reported on it.

use core::{cell::UnsafeCell, mem::offset_of, ops::Range, ptr};
use x86_64::{
    VirtAddr,
    instructions::{
        segmentation::{CS, DS, ES, FS, SS, Segment},
        tables::load_tss,
    },
    registers::segmentation::SegmentSelector,
    structures::{
        gdt::{Descriptor, GlobalDescriptorTable},
        tss::TaskStateSegment,
    },
};

/// Selector of ring 0 code.
pub const KERNEL_CS: u16 = 0x08;
/// Selector of ring 0 data.
pub const KERNEL_DS: u16 = 0x10;
/// Selector of ring 3 data, with its privilege level.
pub const USER_DS: u16 = 0x18 | 3;
/// Selector of ring 3 code, with its privilege level.
pub const USER_CS: u16 = 0x20 | 3;
const TSS_SELECTOR: u16 = 0x28;

/// Interrupt stack table entry of the double fault, as an IDT gate names it (1 to 7).
pub const DOUBLE_FAULT_IST: u8 = 1;
/// Interrupt stack table entry of the NMI.
pub const NMI_IST: u8 = 2;

/// The task state segment of a CPU. The processor reads it; only its own CPU writes it.
#[repr(C, align(16))]
pub struct Tss(UnsafeCell<TaskStateSegment>);

// SAFETY: written only by its own CPU, in `init` and, for rsp0, in the switch (PERCPU-2 in
// `percpu`).
unsafe impl Sync for Tss {}

/// Offset of the ring 0 stack pointer in [`Tss`] (Intel SDM vol. 3A, 8.7).
pub const TSS_RSP0: usize = 4;
const _: () = assert!(offset_of!(TaskStateSegment, privilege_stack_table) == TSS_RSP0);

impl Tss {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(TaskStateSegment::new()))
    }
}

/// The global descriptor table of a CPU.
pub struct Gdt(UnsafeCell<GlobalDescriptorTable>);

// SAFETY: written only by its own CPU, in `init` (PERCPU-2 in `percpu`).
unsafe impl Sync for Gdt {}

impl Gdt {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(GlobalDescriptorTable::new()))
    }
}

/// Stacks for the interrupt stack table of one CPU. Both are mapped for ever, and no other code
/// uses them.
pub struct InterruptStacks {
    /// End (highest address, 16-aligned) of the double fault's.
    pub double_fault: VirtAddr,
    /// End (highest address, 16-aligned) of the NMI's. Its last 16 bytes hold the address of this
    /// CPU's data, which the stub needs before it may trust GS.
    pub nmi: VirtAddr,
}

/// Size of each of [`InterruptStacks`]: room for a report, which formats and unwinds.
const STACK_BYTES: usize = 32 * 1024;

/// Stacks of the CPU that boots, which has no allocator yet. Whole pages, so that each other static
/// can be watched as an object, wherever it is.
#[repr(C, align(4096))]
struct BootStacks(UnsafeCell<[[u8; STACK_BYTES]; 2]>);

// SAFETY: only the processor uses them, as stacks of the boot CPU.
unsafe impl Sync for BootStacks {}

static BOOT_STACKS: BootStacks = BootStacks(UnsafeCell::new([[0; STACK_BYTES]; 2]));

/// The memory of the stacks of the CPU that boots.
pub fn boot_stacks() -> Range<u64> {
    let start = ptr::from_ref(&BOOT_STACKS).addr() as u64;
    start..start + size_of::<BootStacks>() as u64
}

impl InterruptStacks {
    /// The addresses of the stacks of the CPU that boots.
    pub fn range_of_boot_cpu() -> core::ops::Range<u64> {
        let start = VirtAddr::from_ptr(BOOT_STACKS.0.get());
        start.as_u64()..(start + 2 * STACK_BYTES as u64).as_u64()
    }

    /// The stacks of the CPU that boots.
    pub fn of_boot_cpu() -> Self {
        let start = VirtAddr::from_ptr(BOOT_STACKS.0.get());
        Self {
            double_fault: start + STACK_BYTES as u64,
            nmi: start + 2 * STACK_BYTES as u64,
        }
    }
}

/// Builds and loads the GDT and TSS of the calling CPU, whose data are `percpu`. Interrupts are
/// off.
///
/// # Safety
/// 1. `stacks` are as [`InterruptStacks`] says.
/// 2. `gdt` and `tss` are the calling CPU's, and not loaded yet.
pub(super) unsafe fn init<P>(
    gdt: &'static Gdt,
    tss: &'static Tss,
    percpu: &'static P,
    stacks: &InterruptStacks,
) {
    let nmi_stack = stacks.nmi - 16;
    // SAFETY: mapped and unused by (1).
    unsafe { *nmi_stack.as_mut_ptr() = ptr::from_ref(percpu) };
    // SAFETY: only this CPU touches its TSS, which is not loaded yet.
    let segment = unsafe { &mut *tss.0.get() };
    segment.interrupt_stack_table[usize::from(DOUBLE_FAULT_IST) - 1] = stacks.double_fault;
    segment.interrupt_stack_table[usize::from(NMI_IST) - 1] = nmi_stack;
    // SAFETY: only this CPU touches its GDT, which is not loaded yet.
    let gdt = unsafe { &mut *gdt.0.get() };
    let selectors = [
        gdt.append(Descriptor::kernel_code_segment()),
        gdt.append(Descriptor::kernel_data_segment()),
        gdt.append(Descriptor::user_data_segment()),
        gdt.append(Descriptor::user_code_segment()),
        // SAFETY: the TSS lives as long as the kernel (PERCPU-2 in `percpu`).
        gdt.append(unsafe { Descriptor::tss_segment_unchecked(tss.0.get()) }),
    ];
    assert_eq!(
        selectors.map(|selector| selector.0),
        [KERNEL_CS, KERNEL_DS, USER_DS, USER_CS, TSS_SELECTOR],
        "the entry stubs and STAR rely on this order"
    );
    // SAFETY: the table lives for ever and holds flat segments of ring 0. In 64-bit mode the data
    // segments may be null, and a return to ring 3 makes them so (Intel SDM vol. 2A, IRET). GS was
    // nulled before its base was set.
    unsafe {
        gdt.load_unsafe();
        CS::set_reg(SegmentSelector(KERNEL_CS));
        SS::set_reg(SegmentSelector(KERNEL_DS));
        DS::set_reg(SegmentSelector::NULL);
        ES::set_reg(SegmentSelector::NULL);
        FS::set_reg(SegmentSelector::NULL);
        load_tss(SegmentSelector(TSS_SELECTOR));
    }
}
