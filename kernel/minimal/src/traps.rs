//! The traps that concern the probes, on the stack of whoever is interrupted.

use core::{arch::naked_asm, mem::offset_of};

use probes::PtRegs;
use spin::Lazy;
use x86_64::{
    VirtAddr,
    instructions::segmentation::{CS, SS, Segment},
    registers::debug::{Dr6, Dr6Flags},
    structures::{
        gdt::{Descriptor, GlobalDescriptorTable},
        idt::InterruptDescriptorTable,
    },
};

use crate::{PROBES, kprobe_breakpoint};

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

/// Defines the stub of a vector: it completes the frame to a [`PtRegs`] and calls [`trap`].
///
/// `begin` pushes the word `orig_ax`, where the processor has not pushed an error code, and the
/// registers from `rdi` to `rax`.
///
/// ```text
///   +0xa0  ss sp flags cs ip   pushed by the processor, from an address aligned to 16
///   +0x78  orig_ax             the error code, or -1
///   +0x70  rdi ... down to
///   +0x00  r15                 <- the `PtRegs`
///   -0x08  a free word         <- rsp at the call, aligned to 16
/// ```
macro_rules! stub {
    ($(#[$about:meta])* $name:ident, vector = $vector:literal, begin = $begin:literal) => {
        $(#[$about])*
        ///
        /// # Safety
        /// Never called: a gate leads here.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                $begin,
                "push r8; push r9; push r10; push r11; push rbx",
                "push rbp; push r12; push r13; push r14; push r15",
                "cld",
                "mov rdi, rsp",
                "mov esi, {vector}",
                "sub rsp, 8",
                "call {trap}",
                "add rsp, 8",
                "pop r15; pop r14; pop r13; pop r12; pop rbp",
                "pop rbx; pop r11; pop r10; pop r9; pop r8",
                "pop rax; pop rcx; pop rdx; pop rsi; pop rdi",
                "add rsp, 8",
                "iretq",
                vector = const $vector,
                trap = sym trap,
            )
        }
    };
}

stub! {
    /// Where a breakpoint goes that `kprobe_breakpoint` did not find in the table. It has pushed
    /// the registers down to `rax`.
    other_breakpoint, vector = 3, begin = ""
}
stub! {
    /// Single steps.
    debug, vector = 1, begin = "push -1; push rdi; push rsi; push rdx; push rcx; push rax"
}
stub! {
    /// General protection faults, which come with an error code.
    protection_fault, vector = 13, begin = "push rdi; push rsi; push rdx; push rcx; push rax"
}
stub! {
    /// Page faults, likewise.
    page_fault, vector = 14, begin = "push rdi; push rsi; push rdx; push rcx; push rax"
}

const _: () = assert!(offset_of!(PtRegs, di) == 0x70 && offset_of!(PtRegs, orig_ax) == 0x78);

/// Offers a trap to the probes. Any other trap ends this kernel.
extern "C" fn trap(regs: &mut PtRegs, vector: u8) {
    let is_the_probes = match vector {
        1 => {
            let status = Dr6::read_raw();
            let is_ours = PROBES.on_debug(regs, status);
            // The processor sets bits of the status and never clears one.
            // SAFETY: a write to the status has no other effect.
            unsafe {
                let rest = status & !Dr6Flags::STEP.bits();
                core::arch::asm!("mov dr6, {}", in(reg) rest, options(nomem, nostack));
            }
            is_ours
        }
        3 => PROBES.on_breakpoint(regs),
        _ => PROBES.on_fault(regs, vector),
    };
    assert!(is_the_probes, "trap {vector}: {regs:#x?}");
}
