//! Programs that cannot be decoded or encoded.

use core::fmt;

use super::SLOT_BYTES;
use crate::{MOST_INSNS, Target};

/// A program that cannot be decoded or encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireError {
    /// Which slot; when encoding, which instruction.
    pub at: usize,
    pub reason: WireReason,
}

/// See [`WireError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireReason {
    /// The last slot has only so many bytes.
    HalfASlot { bytes: usize },
    /// There are more than [`MOST_INSNS`] instructions.
    TooLong,
    /// There is no such instruction, or none that a program may use.
    Opcode(u8),
    /// There is no such register.
    Register(u8),
    /// A field that means nothing here, or means something else, has this value.
    Field { name: &'static str, found: i32 },
    /// The second slot of a load of a constant is not there, or is not one.
    HalfAConstant,
    /// A jump leads to this slot, which does not begin an instruction of the program.
    Jump { to: i64 },
    /// There is no helper of that number.
    Helper(i32),
    /// It calls a function of the program; only helpers can be called.
    LocalCall,
    /// The program to encode has no instruction that a jump leads to.
    Target(Target),
    /// The instruction has operands that no opcode has, for example a sign extension of 7 bits.
    Malformed,
    /// There is no memory for it.
    OutOfMemory,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}: {}", self.at, self.reason)
    }
}

impl core::error::Error for WireError {}

impl fmt::Display for WireReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HalfASlot { bytes } => {
                write!(
                    f,
                    "only {bytes} bytes; a program is a multiple of {SLOT_BYTES}"
                )
            }
            Self::TooLong => write!(f, "more than {MOST_INSNS} instructions; make it shorter"),
            Self::Opcode(opcode) => write!(
                f,
                "opcode {opcode:#04x} is no instruction of RFC 9669, or one that reads packets or \
                 calls through a register, which programs here cannot"
            ),
            Self::Register(register) => {
                write!(f, "there is no r{register}; registers are r0 to r10")
            }
            Self::Field { name, found } => write!(
                f,
                "{found} in the field {name} has no meaning in this instruction; \
                 compile for a processor up to v4"
            ),
            Self::HalfAConstant => {
                f.write_str("a constant of 64 bits takes two slots, and the second one is not here")
            }
            Self::Jump { to } => write!(
                f,
                "the jump leads to slot {to}, which does not begin an instruction"
            ),
            Self::Helper(number) => write!(f, "there is no helper {number}"),
            Self::LocalCall => f.write_str("a call of the program's own function; have it inlined"),
            Self::Target(target) => write!(
                f,
                "the jump leads to instruction {}, which the program does not have",
                target.0
            ),
            Self::Malformed => f.write_str("the operands are not those of any opcode"),
            Self::OutOfMemory => f.write_str("there is no memory for the program"),
        }
    }
}
