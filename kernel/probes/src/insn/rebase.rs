//! Copies of instructions that refer to the same memory from another place.

use super::{
    decode::{Insn, MAX_INSN_BYTES},
    refusal::Refusal,
};

/// Bytes of `insn` for execution at `to`, equal in length to the original.
///
/// Only a displacement relative to the instruction pointer changes: new = old + (original − copy).
/// Both have the same length, so an immediate after the displacement does not matter.
pub(super) fn rebased(insn: &Insn, to: u64) -> Result<([u8; MAX_INSN_BYTES], usize), Refusal> {
    let len = insn.len();
    let mut bytes = [0; MAX_INSN_BYTES];
    bytes[..len].copy_from_slice(insn.bytes());
    if let Some(offset) = insn.ip_relative_offset() {
        let displacement = displacement(insn, to.wrapping_add(len as u64))?;
        bytes[offset..offset + 4].copy_from_slice(&displacement.to_le_bytes());
    }
    Ok((bytes, len))
}

/// The displacement by which an instruction that ends at `next_ip` reaches the RIP-relative operand
/// of `insn`.
pub(super) fn displacement(insn: &Insn, next_ip: u64) -> Result<i32, Refusal> {
    let operand = insn.instruction().ip_rel_memory_address();
    let distance = operand.wrapping_sub(next_ip);
    if insn.is_eip_relative() {
        // The address wraps at 4 GiB, so every operand is in reach.
        return Ok(distance as i32);
    }
    i32::try_from(distance as i64).map_err(|_| Refusal::DisplacementRange)
}
