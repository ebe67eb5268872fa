//! The `syscall` instruction: where it leads and which flags it clears (Intel SDM vol. 3A, 5.8.8).

use super::{
    entry,
    gdt::{KERNEL_CS, KERNEL_DS},
};
use x86_64::registers::{
    model_specific::{LStar, SFMask, Star},
    rflags::RFlags,
};

/// Sets `syscall` and `sysret` up on the calling CPU. Once per CPU, after [`super::cpu::init`].
pub fn init() {
    // `sysretq` takes ss from the base + 8 and cs from the base + 16: user data and user code.
    // SAFETY: the selectors are those of the GDT.
    unsafe { Star::write_raw(KERNEL_DS, KERNEL_CS) };
    LStar::write(entry::syscall_stub());
    SFMask::write(
        RFlags::TRAP_FLAG
            | RFlags::INTERRUPT_FLAG
            | RFlags::DIRECTION_FLAG
            | RFlags::ALIGNMENT_CHECK
            | RFlags::NESTED_TASK,
    );
}
