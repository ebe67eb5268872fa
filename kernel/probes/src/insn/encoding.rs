//! The two instructions that probes write into text: a breakpoint, and a jump to a detour.

/// `int3`, the breakpoint.
pub(crate) const INT3: u8 = 0xcc;

/// The first byte of `jmp rel32`.
pub(crate) const JUMP: u8 = 0xe9;

/// Length of a jump with a 32-bit displacement.
pub const JUMP_BYTES: usize = 5;

/// The jump at `from` to `to`, which is in reach.
pub(crate) fn jump(from: u64, to: u64) -> [u8; JUMP_BYTES] {
    let distance = to.wrapping_sub(from + JUMP_BYTES as u64) as u32;
    let [a, b, c, d] = distance.to_le_bytes();
    [JUMP, a, b, c, d]
}
