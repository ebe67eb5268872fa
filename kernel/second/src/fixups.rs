//! A load that may fault, and where the kernel goes on then.
//!
//! # Contexts
//! [`load_or`] anywhere in ring 0. [`on_fault`]: a fault of ring 0, interrupts off.

use core::{arch::global_asm, ops::Range};

use crate::frame::Frame;

global_asm!(
    r#"
    .pushsection probeable, "ax", @progbits
    .globl load_or
    .type load_or, @function
load_or:
    mov rax, [rdi]
    ret
    .globl load_or_default
load_or_default:
    mov rax, rsi
    ret
    .size load_or, . - load_or
    .popsection
    "#
);

unsafe extern "C" {
    /// The word at `address`, or `default` where none can be read.
    pub safe fn load_or(address: u64, default: u64) -> u64;
    safe static load_or_default: u8;
}

/// The one instruction that may fault.
fn place() -> u64 {
    load_or as *const () as u64
}

/// Whether an instruction in `range` may fault.
pub fn is_in(range: Range<u64>) -> bool {
    range.contains(&place())
}

/// Has the kernel go on after the fault of such an instruction.
pub fn on_fault(frame: &mut Frame) -> bool {
    let is_mine = frame.ip == place();
    if is_mine {
        frame.ip = (&raw const load_or_default).addr() as u64;
    }
    is_mine
}
