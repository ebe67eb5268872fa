//! The opcodes of RFC 9669 and the fields of a slot.
//!
//! An opcode has a class in its low three bits. The other bits are the code of an operation or of a
//! condition, or the mode and the size of an access. Each table is read in both directions.

use super::{SLOT_BYTES, error::WireReason};
use crate::{AluOp, AtomicOp, Condition, Operand, Reg, Size};

// The class: the low three bits of the opcode.
pub(super) const LDX: u8 = 1;
pub(super) const ST: u8 = 2;
pub(super) const STX: u8 = 3;
pub(super) const ALU: u8 = 4;
pub(super) const JMP: u8 = 5;
pub(super) const JMP32: u8 = 6;
pub(super) const ALU64: u8 = 7;

/// The second operand is a register. Of a swap: to big-endian.
pub(super) const SOURCE: u8 = 8;

// The code of arithmetic and of jumps: the upper four bits.
pub(super) const NEG: u8 = 8;
pub(super) const MOV: u8 = 0xb;
pub(super) const END: u8 = 0xd;
pub(super) const JA: u8 = 0;
pub(super) const CALL: u8 = 8;
pub(super) const EXIT: u8 = 9;

// The mode of loads and stores: the upper three bits.
pub(super) const MEM: u8 = 0x60;
pub(super) const MEMSX: u8 = 0x80;
pub(super) const ATOMIC: u8 = 0xc0;

/// A load of a constant of 64 bits, and the source that makes it one of a map.
pub(super) const LDDW: u8 = 0x18;
pub(super) const MAP: u8 = 1;

/// An atomic operation gives the old value.
pub(super) const FETCH: i32 = 1;

/// Arithmetic with its code and its offset.
pub(super) const OPERATIONS: [(AluOp, u8, i16); 14] = [
    (AluOp::Add, 0, 0),
    (AluOp::Sub, 1, 0),
    (AluOp::Mul, 2, 0),
    (AluOp::Div, 3, 0),
    (AluOp::SignedDiv, 3, 1),
    (AluOp::Or, 4, 0),
    (AluOp::And, 5, 0),
    (AluOp::ShiftLeft, 6, 0),
    (AluOp::ShiftRight, 7, 0),
    (AluOp::Mod, 9, 0),
    (AluOp::SignedMod, 9, 1),
    (AluOp::Xor, 0xa, 0),
    (AluOp::Mov, MOV, 0),
    (AluOp::ShiftRightSigned, 0xc, 0),
];

pub(super) const CONDITIONS: [(Condition, u8); 11] = [
    (Condition::Equal, 1),
    (Condition::Above, 2),
    (Condition::AboveOrEqual, 3),
    (Condition::AnyBit, 4),
    (Condition::NotEqual, 5),
    (Condition::Greater, 6),
    (Condition::GreaterOrEqual, 7),
    (Condition::Below, 0xa),
    (Condition::BelowOrEqual, 0xb),
    (Condition::Less, 0xc),
    (Condition::LessOrEqual, 0xd),
];

pub(super) const SIZES: [(Size, u8); 4] = [
    (Size::B4, 0x00),
    (Size::B2, 0x08),
    (Size::B1, 0x10),
    (Size::B8, 0x18),
];

pub(super) const ATOMICS: [(AtomicOp, i32); 10] = [
    (AtomicOp::Add { fetch: false }, 0x00),
    (AtomicOp::Add { fetch: true }, FETCH),
    (AtomicOp::Or { fetch: false }, 0x40),
    (AtomicOp::Or { fetch: true }, 0x40 | FETCH),
    (AtomicOp::And { fetch: false }, 0x50),
    (AtomicOp::And { fetch: true }, 0x50 | FETCH),
    (AtomicOp::Xor { fetch: false }, 0xa0),
    (AtomicOp::Xor { fetch: true }, 0xa0 | FETCH),
    (AtomicOp::Exchange, 0xe0 | FETCH),
    (AtomicOp::CompareExchange, 0xf0 | FETCH),
];

/// A slot with its fields apart.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) opcode: u8,
    pub(super) dst: u8,
    pub(super) src: u8,
    pub(super) offset: i16,
    pub(super) imm: i32,
}

/// A slot in which all fields are zero.
pub(super) const EMPTY: Slot = Slot {
    opcode: 0,
    dst: 0,
    src: 0,
    offset: 0,
    imm: 0,
};

impl Slot {
    pub(super) fn of(bytes: [u8; SLOT_BYTES]) -> Self {
        let [opcode, registers, offset @ .., i0, i1, i2, i3] = bytes;
        Self {
            opcode,
            dst: registers & 0xf,
            src: registers >> 4,
            offset: i16::from_le_bytes(offset),
            imm: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    pub(super) fn bytes(self) -> [u8; SLOT_BYTES] {
        let [o0, o1] = self.offset.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [
            self.opcode,
            self.src << 4 | self.dst,
            o0,
            o1,
            i0,
            i1,
            i2,
            i3,
        ]
    }

    pub(super) fn dst(self) -> Result<Reg, WireReason> {
        Reg::numbered(self.dst).ok_or(WireReason::Register(self.dst))
    }

    pub(super) fn src(self) -> Result<Reg, WireReason> {
        Reg::numbered(self.src).ok_or(WireReason::Register(self.src))
    }

    pub(super) fn no_dst(self) -> Result<(), WireReason> {
        zero("dst", self.dst.into())
    }

    pub(super) fn no_src(self) -> Result<(), WireReason> {
        zero("src", self.src.into())
    }

    pub(super) fn no_offset(self) -> Result<(), WireReason> {
        zero("offset", self.offset.into())
    }

    pub(super) fn no_imm(self) -> Result<(), WireReason> {
        zero("imm", self.imm)
    }

    /// The second operand of arithmetic and branches.
    pub(super) fn operand(self) -> Result<Operand, WireReason> {
        if self.opcode & SOURCE == 0 {
            self.no_src()?;
            Ok(Operand::Imm(self.imm))
        } else {
            self.no_imm()?;
            self.src().map(Operand::Reg)
        }
    }

    pub(super) fn size(self) -> Size {
        let bits = self.opcode & 0x18;
        let found = SIZES.into_iter().find(|(_, code)| *code == bits);
        found.map_or(Size::B8, |(size, _)| size)
    }

    pub(super) const fn is_constant(self) -> bool {
        self.opcode == LDDW
    }
}

pub(super) fn zero(name: &'static str, found: i32) -> Result<(), WireReason> {
    if found == 0 {
        Ok(())
    } else {
        Err(WireReason::Field { name, found })
    }
}

pub(super) fn size_code(size: Size) -> u8 {
    let found = SIZES.into_iter().find(|(of, _)| *of == size);
    found.map_or(0, |(_, code)| code)
}
