//! Mends a load of kernel memory that faulted.

use crate::asm::Gpr;

/// How to go on after a load that faulted: `register` gets zero, and `length` bytes are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mended {
    pub length: u8,
    /// The number of the register, 0 (`rax`) to 15, as instructions count.
    pub register: u8,
}

/// Decodes the load at the address of a fault, which must be in the code of a program. The code has
/// no other instruction that may fault, so None is a defect.
///
/// All such loads have one shape: a REX prefix, an opcode, a register and a base with 4 bytes of
/// displacement. Any context.
#[must_use]
pub fn mend(code: &[u8; 8]) -> Option<Mended> {
    let [rex, code @ ..] = code;
    let (length, operands) = match code {
        [0x8b | 0x63, operands, ..] => (7, operands),
        [0x0f, 0xb6 | 0xb7 | 0xbe | 0xbf, operands, ..] => (8, operands),
        _ => return None,
    };
    let (mode, register, base) = (operands >> 6, operands >> 3 & 7, operands & 7);
    let is_ours = rex & 0xf0 == 0x40 && mode == 2 && base != 4;
    is_ours.then_some(Mended {
        length,
        register: Gpr(register | (rex & 4) << 1).0,
    })
}
