//! The instructions that observe or change the interrupt flag, as functions on an RFLAGS image.
//!
//! Code that completes a hit with interrupts off must not let such an instruction run on the
//! processor's own flags: `pushf` would store IF=0, and `popf` and `sti` would let interrupts in
//! too early. These functions say how the flags of the probed code change (Intel SDM vol. 2,
//! "PUSHF", "POPF", "CLI", "STI" at CPL 0).

/// Bits of RFLAGS (Intel SDM vol. 1, 3.4.3).
pub mod bits {
    pub const CF: u64 = 1 << 0;
    /// Bit 1 always reads as one.
    pub const FIXED: u64 = 1 << 1;
    pub const PF: u64 = 1 << 2;
    pub const AF: u64 = 1 << 4;
    pub const ZF: u64 = 1 << 6;
    pub const SF: u64 = 1 << 7;
    pub const TF: u64 = 1 << 8;
    pub const IF: u64 = 1 << 9;
    pub const DF: u64 = 1 << 10;
    pub const OF: u64 = 1 << 11;
    pub const IOPL: u64 = 3 << 12;
    pub const NT: u64 = 1 << 14;
    pub const RF: u64 = 1 << 16;
    pub const VM: u64 = 1 << 17;
    pub const AC: u64 = 1 << 18;
    pub const VIF: u64 = 1 << 19;
    pub const VIP: u64 = 1 << 20;
    pub const ID: u64 = 1 << 21;
    /// The six arithmetic flags.
    pub const ARITHMETIC: u64 = CF | PF | AF | ZF | SF | OF;
}

use bits::{AC, ARITHMETIC, DF, FIXED, ID, IF, IOPL, NT, RF, TF, VM};

/// Operand size of `pushf` and `popf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandSize {
    /// 2 bytes (prefix 0x66).
    Word,
    /// 8 bytes.
    Quad,
}

impl OperandSize {
    /// Size in bytes on the stack.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Word => 2,
            Self::Quad => 8,
        }
    }

    const fn mask(self) -> u64 {
        match self {
            Self::Word => 0xffff,
            Self::Quad => u64::MAX,
        }
    }
}

/// An instruction that observes or changes the interrupt flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlagsOp {
    /// `pushf`.
    Push(OperandSize),
    /// `popf`.
    Pop(OperandSize),
    /// `cli`.
    Clear,
    /// `sti`.
    Set,
}

impl FlagsOp {
    /// RFLAGS after the instruction.
    ///
    /// `flags` is RFLAGS of the probed code before it. `popped` is the word (or quad word) at the
    /// top of its stack. Only `popf` looks at it. RF comes out clear, as after any completed
    /// instruction.
    pub const fn apply(self, flags: u64, popped: u64) -> u64 {
        let after = match self {
            Self::Push(_) => flags,
            Self::Pop(size) => {
                let changed = (ARITHMETIC | TF | IF | DF | IOPL | NT | AC | ID) & size.mask();
                (flags & !changed) | (popped & changed)
            }
            Self::Clear => flags & !IF,
            Self::Set => flags | IF,
        };
        (after & !RF) | FIXED
    }

    /// The number that the instruction adds to RSP.
    pub const fn rsp_delta(self) -> i64 {
        match self {
            Self::Push(size) => -(size.bytes() as i64),
            Self::Pop(size) => size.bytes() as i64,
            Self::Clear | Self::Set => 0,
        }
    }
}

/// The image that `pushf` stores for `flags`; a 2-byte `pushf` stores its low half-word.
pub const fn pushed_image(flags: u64) -> u64 {
    (flags & !(RF | VM)) | FIXED
}
