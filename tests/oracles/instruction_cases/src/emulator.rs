//! Instructions that QEMU 7.2 executes differently from the manual.
//!
//! The result of such an instruction depends on more than its operands, or its length is not that
//! of the bytes. So its executions cannot be compared. Real kernels do not contain such
//! instructions, because they would not run on this emulator. They are left out where the cases run
//! in the emulator.

use iced_x86::{Code as C, Instruction};

/// Whether the emulator gets `instruction`, whose bytes are `code`, wrong.
pub(crate) fn errs(instruction: &Instruction, code: &[u8]) -> bool {
    match instruction.code() {
        // The upper halves of the registers are added into the carry.
        C::Adcx_r32_rm32 | C::Adox_r32_rm32 => true,
        // A RIP-relative operand is off by the immediate's byte.
        C::Shld_rm16_r16_imm8
        | C::Shld_rm32_r32_imm8
        | C::Shld_rm64_r64_imm8
        | C::Shrd_rm16_r16_imm8
        | C::Shrd_rm32_r32_imm8
        | C::Shrd_rm64_r64_imm8
            if instruction.is_ip_rel_memory_operand() =>
        {
            true
        }
        _ => has_rex_before_prefix(code),
    }
}

/// A REX prefix with another prefix after it, which makes it void (Intel SDM vol. 2A, 2.2.1). The
/// emulator heeds it.
fn has_rex_before_prefix(code: &[u8]) -> bool {
    let is_rex = |byte: u8| byte & 0xf0 == 0x40;
    let is_legacy = |byte: u8| {
        matches!(
            byte,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
        )
    };
    code.iter()
        .take_while(|&&byte| is_rex(byte) || is_legacy(byte))
        .zip(code.iter().skip(1))
        .any(|(&byte, &next)| is_rex(byte) && (is_rex(next) || is_legacy(next)))
}
