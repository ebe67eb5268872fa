//! The debug status register, DR6.

use core::arch::asm;
use x86_64::registers::debug::Dr6Flags;

/// Clears the single-step bit (BS) of DR6, whose value is `status`. The handler of a single step
/// does this because the processor only ever sets the bit (Intel SDM vol. 3B, 17.2.3): left
/// there, it would mislead the next reader.
#[inline(always)]
pub fn clear_single_step(status: u64) {
    let rest = status & !Dr6Flags::STEP.bits();
    // SAFETY: clearing a status bit has no other effect.
    unsafe { asm!("mov dr6, {}", in(reg) rest, options(nomem, nostack, preserves_flags)) };
}
