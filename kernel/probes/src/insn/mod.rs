//! The probes' knowledge of x86-64 instructions: where one starts, whether it may be probed, and
//! which code to execute in its place.
//!
//! A breakpoint destroys the first byte of the instruction that it sits on, so a hit needs another
//! way to execute it. Everything here works on bytes and addresses alone, at registration, in this
//! order:
//!
//! ```text
//!   BoundaryWalk ─► classify ─┬─► translate   out-of-line code with explicit exits (the default)
//!   (decode)                  └─► step_copy   copy to be single-stepped, and its correction
//! ```
//!
//! [`translate()`] states where the processor may stand inside its code, and where the probed code
//! is then ([`Position`]). So a fault can be rewound, and a backtrace is right. [`flags`] has the
//! semantics of the few instructions that look at or change the interrupt flag.
//!
//! Every decision depends on the decoded operation (map, opcode, ModRM, prefixes), never on an
//! opcode byte alone: a `vpor` has the opcode byte of a `jmp`.
//!
//! # Contexts
//! Pure functions: callable anywhere, no lock, no global state of ours. The decoder crate builds
//! its tables on the heap at its first use. [`init`] does that at a chosen moment, and later calls
//! allocate nothing. The functions that a hit needs ([`Translation::position`],
//! [`StepCopy::finish`], [`FlagsOp::apply`]) do not decode.

#![forbid(unsafe_code)]

mod boundary;
mod classify;
mod decode;
mod encoding;
mod entry;
pub mod flags;
mod rebase;
mod refusal;
mod region;
mod sequence;
mod step;
mod translate;

pub use boundary::{BoundaryError, BoundaryWalk, Instructions, landing_pad_len};
pub use classify::{Class, classify};
pub use decode::{DecodeError, IndirectBranch, Insn, MAX_INSN_BYTES, decode};
pub use encoding::JUMP_BYTES;
pub(crate) use encoding::{INT3, JUMP, jump};
pub use entry::EntryFacts;
pub(crate) use entry::{MAX_DISPLACED, is_plain, pushed_register};
pub use flags::{FlagsOp, OperandSize};
pub use refusal::Refusal;
pub use region::{FunctionCode, Obstacle, Region};
pub use sequence::{Position, ResumeIp};
pub use step::{StepCopy, StepProgress, step_copy};
pub use translate::{Block, Ending, SLOT_BYTES, SavedFlagsOperand, Translation, translate};

/// Builds the decoder's tables (about 330 KiB of heap), so that no later call into this module
/// allocates. Call it once, when the heap is up and before the first registration.
pub fn init() {
    let nop = decode(&[0x90], 0);
    debug_assert!(nop.is_ok());
}

/// Numbers for tests that try many cases: the same ones for the same `seed`, which is not 0.
/// Marsaglia's xorshift generator with a state of 64 bits.
#[cfg(test)]
pub(crate) fn xorshift(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
