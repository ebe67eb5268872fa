//! The wire form of programs: 8 bytes an instruction, as in BPF objects (RFC 9669, section 3).
//!
//! ```text
//!   byte  0        1                  2 3       4 5 6 7
//!         opcode   src << 4 | dst     offset    imm           a slot, little-endian
//! ```
//!
//! A load of a 64-bit constant takes two slots; the second one holds the upper half. Jumps count
//! slots, from the one behind the jump. A map is loaded by its index: source 1, which stands for a
//! file descriptor elsewhere.
//!
//! W1. [`decode`] of what [`encode`] gives is what was encoded.
//! W2. [`decode`] takes no slot in which a field that means nothing is not zero. So a program of
//!     another dialect is refused and not misunderstood.
//!
//! Calls of the program's own functions, calls through a register, and the old loads of packets
//! are refused: there is nothing that they could mean here.

use alloc::vec::Vec;
use core::fmt;

use crate::{
    AluOp, AtomicOp, Condition, Helper, Insn, MOST_INSNS, MapIndex, Operand, Reg, Size, Swap,
    Target, Width,
};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 8;

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

// The class: the low three bits of the opcode.
const LDX: u8 = 1;
const ST: u8 = 2;
const STX: u8 = 3;
const ALU: u8 = 4;
const JMP: u8 = 5;
const JMP32: u8 = 6;
const ALU64: u8 = 7;

/// The second operand is a register. Of a swap: to big-endian.
const SOURCE: u8 = 8;

// The code of arithmetic and of jumps: the upper four bits.
const NEG: u8 = 8;
const MOV: u8 = 0xb;
const END: u8 = 0xd;
const JA: u8 = 0;
const CALL: u8 = 8;
const EXIT: u8 = 9;

// The mode of loads and stores: the upper three bits.
const MEM: u8 = 0x60;
const MEMSX: u8 = 0x80;
const ATOMIC: u8 = 0xc0;

/// A load of a constant of 64 bits, and the source that makes it one of a map.
const LDDW: u8 = 0x18;
const MAP: u8 = 1;

/// An atomic operation gives the old value.
const FETCH: i32 = 1;

/// Arithmetic with its code and its offset.
const OPERATIONS: [(AluOp, u8, i16); 14] = [
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

const CONDITIONS: [(Condition, u8); 11] = [
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

const SIZES: [(Size, u8); 4] = [
    (Size::B4, 0x00),
    (Size::B2, 0x08),
    (Size::B1, 0x10),
    (Size::B8, 0x18),
];

const ATOMICS: [(AtomicOp, i32); 10] = [
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
struct Slot {
    opcode: u8,
    dst: u8,
    src: u8,
    offset: i16,
    imm: i32,
}

impl Slot {
    fn of(bytes: [u8; SLOT_BYTES]) -> Self {
        let [opcode, registers, offset @ .., i0, i1, i2, i3] = bytes;
        Self {
            opcode,
            dst: registers & 0xf,
            src: registers >> 4,
            offset: i16::from_le_bytes(offset),
            imm: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    fn bytes(self) -> [u8; SLOT_BYTES] {
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

    fn dst(self) -> Result<Reg, WireReason> {
        Reg::numbered(self.dst).ok_or(WireReason::Register(self.dst))
    }

    fn src(self) -> Result<Reg, WireReason> {
        Reg::numbered(self.src).ok_or(WireReason::Register(self.src))
    }

    fn no_dst(self) -> Result<(), WireReason> {
        zero("dst", self.dst.into())
    }

    fn no_src(self) -> Result<(), WireReason> {
        zero("src", self.src.into())
    }

    fn no_offset(self) -> Result<(), WireReason> {
        zero("offset", self.offset.into())
    }

    fn no_imm(self) -> Result<(), WireReason> {
        zero("imm", self.imm)
    }

    /// The second operand of arithmetic and branches.
    fn operand(self) -> Result<Operand, WireReason> {
        if self.opcode & SOURCE == 0 {
            self.no_src()?;
            Ok(Operand::Imm(self.imm))
        } else {
            self.no_imm()?;
            self.src().map(Operand::Reg)
        }
    }

    fn size(self) -> Size {
        let bits = self.opcode & 0x18;
        let found = SIZES.into_iter().find(|(_, code)| *code == bits);
        found.map_or(Size::B8, |(size, _)| size)
    }

    const fn is_constant(self) -> bool {
        self.opcode == LDDW
    }
}

fn zero(name: &'static str, found: i32) -> Result<(), WireReason> {
    if found == 0 {
        Ok(())
    } else {
        Err(WireReason::Field { name, found })
    }
}

/// Decodes a program.
///
/// # Errors
/// [`WireError`], with the number of the slot.
pub fn decode(bytes: &[u8]) -> Result<Vec<Insn>, WireError> {
    let (slots, rest) = bytes.as_chunks::<SLOT_BYTES>();
    if !rest.is_empty() {
        return Err(WireError {
            at: slots.len(),
            reason: WireReason::HalfASlot { bytes: rest.len() },
        });
    }
    if slots.len() > MOST_INSNS * 2 {
        return Err(WireError {
            at: MOST_INSNS * 2,
            reason: WireReason::TooLong,
        });
    }
    let out_of_memory = |_| WireError {
        at: 0,
        reason: WireReason::OutOfMemory,
    };
    // Which instruction begins at each slot.
    let mut numbers = Vec::new();
    numbers
        .try_reserve_exact(slots.len())
        .map_err(out_of_memory)?;
    let mut count = 0_u16;
    let mut is_second = false;
    for slot in slots {
        numbers.push((!is_second).then_some(Target(count)));
        count += u16::from(!is_second);
        is_second = !is_second && Slot::of(*slot).is_constant();
    }
    if usize::from(count) > MOST_INSNS {
        let first_too_many = Some(Target(MOST_INSNS as u16));
        let at = numbers.iter().position(|number| *number == first_too_many);
        return Err(WireError {
            at: at.unwrap_or(MOST_INSNS),
            reason: WireReason::TooLong,
        });
    }

    let mut insns = Vec::new();
    insns
        .try_reserve_exact(usize::from(count))
        .map_err(out_of_memory)?;
    let mut at = 0;
    while let Some(bytes) = slots.get(at) {
        let slot = Slot::of(*bytes);
        let fail = |reason| WireError { at, reason };
        if slot.is_constant() {
            let second = slots.get(at + 1).map(|bytes| Slot::of(*bytes));
            insns.push(constant(slot, second).map_err(fail)?);
            at += 2;
        } else {
            let target = |distance: i32| {
                let to = at as i64 + 1 + i64::from(distance);
                let number = usize::try_from(to).ok().and_then(|to| numbers.get(to));
                number.copied().flatten().ok_or(WireReason::Jump { to })
            };
            insns.push(single(slot, target).map_err(fail)?);
            at += 1;
        }
    }
    Ok(insns)
}

fn constant(slot: Slot, second: Option<Slot>) -> Result<Insn, WireReason> {
    slot.no_offset()?;
    let second = second.ok_or(WireReason::HalfAConstant)?;
    if (second.opcode, second.dst, second.src, second.offset) != (0, 0, 0, 0) {
        return Err(WireReason::HalfAConstant);
    }
    let dst = slot.dst()?;
    match slot.src {
        0 => Ok(Insn::LoadImm {
            dst,
            value: u64::from(second.imm as u32) << 32 | u64::from(slot.imm as u32),
        }),
        MAP => {
            second.no_imm()?;
            let map = u16::try_from(slot.imm).map_err(|_| WireReason::Field {
                name: "imm",
                found: slot.imm,
            })?;
            Ok(Insn::LoadMap {
                dst,
                map: MapIndex(map),
            })
        }
        found => Err(WireReason::Field {
            name: "src",
            found: found.into(),
        }),
    }
}

fn single(
    slot: Slot,
    target: impl Fn(i32) -> Result<Target, WireReason>,
) -> Result<Insn, WireReason> {
    match slot.opcode & 7 {
        ALU => arithmetic(slot, Width::W32),
        ALU64 => arithmetic(slot, Width::W64),
        JMP => jump(slot, Width::W64, target),
        JMP32 => jump(slot, Width::W32, target),
        LDX => {
            slot.no_imm()?;
            let size = slot.size();
            let signed = match (slot.opcode & 0xe0, size) {
                (MEM, _) => false,
                (MEMSX, Size::B1 | Size::B2 | Size::B4) => true,
                _ => return Err(WireReason::Opcode(slot.opcode)),
            };
            Ok(Insn::Load {
                dst: slot.dst()?,
                base: slot.src()?,
                offset: slot.offset,
                size,
                signed,
            })
        }
        ST if slot.opcode & 0xe0 == MEM => {
            slot.no_src()?;
            Ok(Insn::Store {
                base: slot.dst()?,
                offset: slot.offset,
                size: slot.size(),
                value: Operand::Imm(slot.imm),
            })
        }
        STX if slot.opcode & 0xe0 == MEM => {
            slot.no_imm()?;
            Ok(Insn::Store {
                base: slot.dst()?,
                offset: slot.offset,
                size: slot.size(),
                value: Operand::Reg(slot.src()?),
            })
        }
        STX if slot.opcode & 0xe0 == ATOMIC && matches!(slot.size(), Size::B4 | Size::B8) => {
            let found = ATOMICS.into_iter().find(|(_, code)| *code == slot.imm);
            let (op, _) = found.ok_or(WireReason::Field {
                name: "imm",
                found: slot.imm,
            })?;
            Ok(Insn::Atomic {
                op,
                base: slot.dst()?,
                offset: slot.offset,
                size: slot.size(),
                reg: slot.src()?,
            })
        }
        _ => Err(WireReason::Opcode(slot.opcode)),
    }
}

fn arithmetic(slot: Slot, width: Width) -> Result<Insn, WireReason> {
    let dst = slot.dst()?;
    let has_source = slot.opcode & SOURCE != 0;
    match (slot.opcode >> 4, width) {
        (NEG, _) if !has_source => {
            slot.no_src()?;
            slot.no_offset()?;
            slot.no_imm()?;
            Ok(Insn::Negate { width, dst })
        }
        (END, _) => {
            slot.no_src()?;
            slot.no_offset()?;
            let swap = match (width, has_source) {
                (Width::W32, false) => Swap::ToLittle,
                (Width::W32, true) => Swap::ToBig,
                (Width::W64, false) => Swap::Always,
                (Width::W64, true) => return Err(WireReason::Opcode(slot.opcode)),
            };
            let bits = match slot.imm {
                16 => 16,
                32 => 32,
                64 => 64,
                found => return Err(WireReason::Field { name: "imm", found }),
            };
            Ok(Insn::Swap { swap, bits, dst })
        }
        (MOV, _) if has_source && slot.offset != 0 => {
            slot.no_imm()?;
            let bits = match (slot.offset, width) {
                (8, _) => 8,
                (16, _) => 16,
                (32, Width::W64) => 32,
                _ => {
                    return Err(WireReason::Field {
                        name: "offset",
                        found: slot.offset.into(),
                    });
                }
            };
            Ok(Insn::SignExtend {
                width,
                bits,
                dst,
                src: slot.src()?,
            })
        }
        (code, _) => {
            let mut of_code = OPERATIONS.into_iter().filter(|(_, of, _)| *of == code);
            if of_code.clone().next().is_none() {
                return Err(WireReason::Opcode(slot.opcode));
            }
            let found = of_code.find(|(_, _, offset)| *offset == slot.offset);
            let (op, ..) = found.ok_or(WireReason::Field {
                name: "offset",
                found: slot.offset.into(),
            })?;
            Ok(Insn::Alu {
                width,
                op,
                dst,
                operand: slot.operand()?,
            })
        }
    }
}

fn jump(
    slot: Slot,
    width: Width,
    target: impl Fn(i32) -> Result<Target, WireReason>,
) -> Result<Insn, WireReason> {
    let has_source = slot.opcode & SOURCE != 0;
    match (slot.opcode >> 4, width) {
        (JA, _) if !has_source => {
            slot.no_dst()?;
            slot.no_src()?;
            let distance = match width {
                Width::W64 => {
                    slot.no_imm()?;
                    slot.offset.into()
                }
                Width::W32 => {
                    slot.no_offset()?;
                    slot.imm
                }
            };
            Ok(Insn::Jump {
                target: target(distance)?,
            })
        }
        (CALL, Width::W64) if !has_source => {
            slot.no_dst()?;
            slot.no_offset()?;
            match slot.src {
                0 => {}
                1 => return Err(WireReason::LocalCall),
                _ => slot.no_src()?,
            }
            let number = u32::try_from(slot.imm).ok();
            let helper = number.and_then(Helper::numbered);
            Ok(Insn::Call {
                helper: helper.ok_or(WireReason::Helper(slot.imm))?,
            })
        }
        (EXIT, Width::W64) if !has_source => {
            slot.no_dst()?;
            slot.no_src()?;
            slot.no_offset()?;
            slot.no_imm()?;
            Ok(Insn::Exit)
        }
        (code, _) => {
            let found = CONDITIONS.into_iter().find(|(_, of)| *of == code);
            let (condition, _) = found.ok_or(WireReason::Opcode(slot.opcode))?;
            Ok(Insn::Branch {
                width,
                condition,
                dst: slot.dst()?,
                operand: slot.operand()?,
                target: target(slot.offset.into())?,
            })
        }
    }
}

/// Encodes a program. No jump needs more than 16 bits, because [`MOST_INSNS`] is far less.
///
/// # Errors
/// [`WireError`], with the number of the instruction.
pub fn encode(insns: &[Insn]) -> Result<Vec<u8>, WireError> {
    let fail = |at| move |reason| WireError { at, reason };
    let out_of_memory = |_| fail(0)(WireReason::OutOfMemory);
    if insns.len() > MOST_INSNS {
        return Err(fail(MOST_INSNS)(WireReason::TooLong));
    }
    // The slot at which each instruction begins.
    let mut starts = Vec::new();
    starts
        .try_reserve_exact(insns.len())
        .map_err(out_of_memory)?;
    let mut slots = 0_i32;
    for insn in insns {
        starts.push(slots);
        slots += 1 + i32::from(is_wide(*insn));
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(slots as usize * SLOT_BYTES)
        .map_err(out_of_memory)?;
    for (at, insn) in insns.iter().enumerate() {
        let distance = |target: Target| {
            let to = starts.get(usize::from(target.0));
            let distance = to.and_then(|to| i16::try_from(to - starts[at] - 1).ok());
            distance.ok_or(WireReason::Target(target))
        };
        let slot = first_slot(*insn, distance).map_err(fail(at))?;
        bytes.extend_from_slice(&slot.bytes());
        if is_wide(*insn) {
            let upper = match insn {
                Insn::LoadImm { value, .. } => (value >> 32) as i32,
                _ => 0,
            };
            let second = Slot {
                imm: upper,
                ..Slot::of([0; SLOT_BYTES])
            };
            bytes.extend_from_slice(&second.bytes());
        }
    }
    Ok(bytes)
}

fn is_wide(insn: Insn) -> bool {
    matches!(insn, Insn::LoadImm { .. } | Insn::LoadMap { .. })
}

fn first_slot(
    insn: Insn,
    distance: impl Fn(Target) -> Result<i16, WireReason>,
) -> Result<Slot, WireReason> {
    let empty = Slot::of([0; SLOT_BYTES]);
    let alu_class = |width| match width {
        Width::W32 => ALU,
        Width::W64 => ALU64,
    };
    let with_operand = |slot: Slot, operand| match operand {
        Operand::Imm(imm) => Slot { imm, ..slot },
        Operand::Reg(reg) => Slot {
            opcode: slot.opcode | SOURCE,
            src: reg.number(),
            ..slot
        },
    };
    Ok(match insn {
        Insn::Alu {
            width,
            op,
            dst,
            operand,
        } => {
            let found = OPERATIONS.into_iter().find(|(of, ..)| *of == op);
            let (_, code, offset) = found.ok_or(WireReason::Malformed)?;
            let slot = Slot {
                opcode: code << 4 | alu_class(width),
                dst: dst.number(),
                offset,
                ..empty
            };
            with_operand(slot, operand)
        }
        Insn::Negate { width, dst } => Slot {
            opcode: NEG << 4 | alu_class(width),
            dst: dst.number(),
            ..empty
        },
        Insn::SignExtend {
            width,
            bits,
            dst,
            src,
        } => {
            if !matches!((bits, width), (8 | 16, _) | (32, Width::W64)) {
                return Err(WireReason::Malformed);
            }
            Slot {
                opcode: MOV << 4 | SOURCE | alu_class(width),
                dst: dst.number(),
                src: src.number(),
                offset: bits.into(),
                ..empty
            }
        }
        Insn::Swap { swap, bits, dst } => {
            if !matches!(bits, 16 | 32 | 64) {
                return Err(WireReason::Malformed);
            }
            let low = match swap {
                Swap::ToLittle => ALU,
                Swap::ToBig => ALU | SOURCE,
                Swap::Always => ALU64,
            };
            Slot {
                opcode: END << 4 | low,
                dst: dst.number(),
                imm: bits.into(),
                ..empty
            }
        }
        Insn::LoadImm { dst, value } => Slot {
            opcode: LDDW,
            dst: dst.number(),
            imm: value as i32,
            ..empty
        },
        Insn::LoadMap { dst, map } => Slot {
            opcode: LDDW,
            dst: dst.number(),
            src: MAP,
            imm: map.0.into(),
            ..empty
        },
        Insn::Load {
            dst,
            base,
            offset,
            size,
            signed,
        } => {
            let mode = match (signed, size) {
                (false, _) => MEM,
                (true, Size::B8) => return Err(WireReason::Malformed),
                (true, _) => MEMSX,
            };
            Slot {
                opcode: mode | size_code(size) | LDX,
                dst: dst.number(),
                src: base.number(),
                offset,
                ..empty
            }
        }
        Insn::Store {
            base,
            offset,
            size,
            value,
        } => {
            let (class, src, imm) = match value {
                Operand::Imm(imm) => (ST, 0, imm),
                Operand::Reg(reg) => (STX, reg.number(), 0),
            };
            Slot {
                opcode: MEM | size_code(size) | class,
                dst: base.number(),
                src,
                offset,
                imm,
            }
        }
        Insn::Atomic {
            op,
            base,
            offset,
            size,
            reg,
        } => {
            if !matches!(size, Size::B4 | Size::B8) {
                return Err(WireReason::Malformed);
            }
            let found = ATOMICS.into_iter().find(|(of, _)| *of == op);
            let (_, imm) = found.ok_or(WireReason::Malformed)?;
            Slot {
                opcode: ATOMIC | size_code(size) | STX,
                dst: base.number(),
                src: reg.number(),
                offset,
                imm,
            }
        }
        Insn::Jump { target } => Slot {
            opcode: JA << 4 | JMP,
            offset: distance(target)?,
            ..empty
        },
        Insn::Branch {
            width,
            condition,
            dst,
            operand,
            target,
        } => {
            let found = CONDITIONS.into_iter().find(|(of, _)| *of == condition);
            let (_, code) = found.ok_or(WireReason::Malformed)?;
            let class = match width {
                Width::W32 => JMP32,
                Width::W64 => JMP,
            };
            let slot = Slot {
                opcode: code << 4 | class,
                dst: dst.number(),
                offset: distance(target)?,
                ..empty
            };
            with_operand(slot, operand)
        }
        Insn::Call { helper } => Slot {
            opcode: CALL << 4 | JMP,
            imm: helper.number() as i32,
            ..empty
        },
        Insn::Exit => Slot {
            opcode: EXIT << 4 | JMP,
            ..empty
        },
    })
}

fn size_code(size: Size) -> u8 {
    let found = SIZES.into_iter().find(|(of, _)| *of == size);
    found.map_or(0, |(_, code)| code)
}
