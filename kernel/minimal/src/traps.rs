//! The traps that concern the probes, on the stack of whoever is interrupted.

use core::arch::naked_asm;

use probes::gates::GateOwner;
use spin::Lazy;
use x86_64::{
    VirtAddr,
    instructions::segmentation::{CS, SS, Segment},
    structures::{
        gdt::{Descriptor, GlobalDescriptorTable},
        idt::InterruptDescriptorTable,
    },
};

use crate::{glue::Minimal, kprobe_breakpoint};

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

/// Where the traps go that are not the probes'.
pub static OWNER: GateOwner = GateOwner::of(stray_trap);

probes::trap_entry!(Minimal, debug, vector = 1, owner = OWNER, clear_ac = "");
probes::trap_entry!(
    Minimal,
    protection_fault,
    vector = 13,
    owner = OWNER,
    clear_ac = ""
);
probes::trap_entry!(
    Minimal,
    page_fault,
    vector = 14,
    owner = OWNER,
    clear_ac = ""
);

static IDT: Lazy<InterruptDescriptorTable> = Lazy::new(|| {
    let mut idt = InterruptDescriptorTable::new();
    let address = |stub: unsafe extern "C" fn()| VirtAddr::new(stub as *const () as u64);
    // SAFETY: each stub is made for its vector: it takes the frame that the processor pushes there,
    // restores all registers and leaves by `iretq`.
    unsafe {
        // Straight to the probes.
        idt.breakpoint.set_handler_addr(address(kprobe_breakpoint));
        idt.debug.set_handler_addr(address(debug));
        idt.general_protection_fault
            .set_handler_addr(address(protection_fault));
        idt.page_fault.set_handler_addr(address(page_fault));
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
/// Never called: the entries of the probes jump here, with what the processor has pushed.
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
