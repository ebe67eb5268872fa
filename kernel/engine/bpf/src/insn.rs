//! One instruction, decoded.
//!
//! Most operands that the instruction set does not have cannot be written down. The others, for
//! example a sign extension of 7 bits, are refused by the verifier and by the wire form. A jump
//! names the instruction that it leads to, by its number.

/// A register: `r0` to `r9`, and `r10`, the frame pointer, which is read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl Reg {
    /// All of them, by number.
    pub const ALL: [Self; 11] = [
        Self::R0,
        Self::R1,
        Self::R2,
        Self::R3,
        Self::R4,
        Self::R5,
        Self::R6,
        Self::R7,
        Self::R8,
        Self::R9,
        Self::R10,
    ];

    /// The register with that number, 0 to 10.
    pub const fn numbered(number: u8) -> Option<Self> {
        if number < 11 {
            Some(Self::ALL[number as usize])
        } else {
            None
        }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The width of an operation. One of 32 bits clears the upper half of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    W32,
    W64,
}

/// The size of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    B1,
    B2,
    B4,
    B8,
}

impl Size {
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }
}

/// The second operand. A constant is sign-extended to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    Reg(Reg),
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Self {
        Self::Imm(imm)
    }
}

/// An operation on a register. Division by zero gives zero; the remainder of it gives the dividend.
/// The signed forms of `MIN / -1` give `MIN` and remainder 0. Shifts take their count modulo the
/// width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AluOp {
    Mov,
    Add,
    Sub,
    Mul,
    Div,
    SignedDiv,
    Mod,
    SignedMod,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
}

impl AluOp {
    /// All operations.
    pub const ALL: [Self; 14] = [
        Self::Mov,
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::SignedDiv,
        Self::Mod,
        Self::SignedMod,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::ShiftLeft,
        Self::ShiftRight,
        Self::ShiftRightSigned,
    ];
}

/// How the bytes of a register are put in order: the low `bits` are kept, the others are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swap {
    /// Kept as they are: the machine is little-endian.
    ToLittle,
    /// Reversed.
    ToBig,
    /// Reversed.
    Always,
}

/// The condition of a branch: `dst CONDITION operand`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    Equal,
    NotEqual,
    /// `dst & operand` is not zero.
    AnyBit,
    Above,
    AboveOrEqual,
    Below,
    BelowOrEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Condition {
    /// All conditions.
    pub const ALL: [Self; 11] = [
        Self::Equal,
        Self::NotEqual,
        Self::AnyBit,
        Self::Above,
        Self::AboveOrEqual,
        Self::Below,
        Self::BelowOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
        Self::Less,
        Self::LessOrEqual,
    ];
}

/// An atomic operation on memory. With `fetch`, the register gets the old value. `Exchange` always
/// fetches. `CompareExchange` compares with `r0`, stores the register if they are equal, and puts
/// the old value into `r0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    Add { fetch: bool },
    Or { fetch: bool },
    And { fetch: bool },
    Xor { fetch: bool },
    Exchange,
    CompareExchange,
}

/// Which map of [`Program::maps`](crate::Program::maps).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapIndex(pub u16);

/// Which instruction of [`Program::insns`](crate::Program::insns) a jump leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target(pub u16);

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Insn {
    /// `dst = dst OP operand`; for `Mov` `dst = operand`.
    Alu {
        width: Width,
        op: AluOp,
        dst: Reg,
        operand: Operand,
    },
    /// `dst = -dst`.
    Negate { width: Width, dst: Reg },
    /// `dst = ` the low `bits` (8, 16 or 32) of `src`, sign-extended to `width`.
    SignExtend {
        width: Width,
        bits: u8,
        dst: Reg,
        src: Reg,
    },
    /// Reorders the low `bits` (16, 32 or 64) of `dst`.
    Swap { swap: Swap, bits: u8, dst: Reg },
    /// `dst = value`.
    LoadImm { dst: Reg, value: u64 },
    /// `dst = ` the map, for a helper.
    LoadMap { dst: Reg, map: MapIndex },
    /// `dst = *(base + offset)`, zero-extended or sign-extended to 64 bits.
    Load {
        dst: Reg,
        base: Reg,
        offset: i16,
        size: Size,
        signed: bool,
    },
    /// `*(base + offset) = value`.
    Store {
        base: Reg,
        offset: i16,
        size: Size,
        value: Operand,
    },
    /// An atomic operation on `*(base + offset)`; `size` is 4 or 8 bytes.
    Atomic {
        op: AtomicOp,
        base: Reg,
        offset: i16,
        size: Size,
        reg: Reg,
    },
    /// Goes to `target`.
    Jump { target: Target },
    /// Goes to `target` if the condition holds.
    Branch {
        width: Width,
        condition: Condition,
        dst: Reg,
        operand: Operand,
        target: Target,
    },
    /// `r0 = helper(r1, …)`. `r1` to `r5` are lost.
    Call { helper: crate::Helper },
    /// Ends the program. `r0` is its result.
    Exit,
}
