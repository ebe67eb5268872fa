//! The traps of this kernel, on the stack of whoever is interrupted.

use core::arch::naked_asm;

use spin::Lazy;
use x86_64::{
    VirtAddr,
    instructions::segmentation::{CS, SS, Segment},
    structures::{
        gdt::{Descriptor, GlobalDescriptorTable},
        idt::InterruptDescriptorTable,
    },
};

/// The selector of the code segment.
pub const CODE: u16 = 8;
/// The selector of the data segment.
pub const DATA: u16 = 16;

static GDT: Lazy<GlobalDescriptorTable> = Lazy::new(|| {
    let mut gdt = GlobalDescriptorTable::new();
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    assert_eq!((code.0, data.0), (CODE, DATA));
    gdt
});

static IDT: Lazy<InterruptDescriptorTable> = Lazy::new(|| {
    let mut idt = InterruptDescriptorTable::new();
    let stray = VirtAddr::new(stray_trap as *const () as u64);
    // SAFETY: it does not return, so it may find any frame.
    unsafe {
        idt.breakpoint.set_handler_addr(stray);
        idt.debug.set_handler_addr(stray);
        idt.general_protection_fault.set_handler_addr(stray);
        idt.page_fault.set_handler_addr(stray);
    }
    idt
});

/// Loads the tables. Before the first breakpoint.
pub fn init() {
    GDT.load();
    // SAFETY: the selectors are those of the table that was just loaded.
    unsafe {
        CS::set_reg(x86_64::structures::gdt::SegmentSelector(CODE));
        SS::set_reg(x86_64::structures::gdt::SegmentSelector(DATA));
    }
    IDT.load();
}

/// What this kernel does with a trap of its own: it ends.
///
/// # Safety
/// Never called: gates lead here, and so does what the probes do not want of their traps, with what
/// the processor has pushed.
#[unsafe(naked)]
unsafe extern "C" fn stray_trap() {
    naked_asm!(
        "mov rdi, rsp",
        "and rsp, -16",
        "call {end}",
        end = sym end,
    )
}

extern "C" fn end(pushed: &[u64; 4]) -> ! {
    panic!("a trap that is not the probes'; the processor has pushed {pushed:#x?}")
}
