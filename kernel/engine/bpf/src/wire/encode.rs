//! Instructions to slots.
//!
//! The first pass counts slots, because jumps do and a constant of 64 bits takes two. The second
//! one encodes. An instruction with operands that no opcode has is refused.

use alloc::vec::Vec;

use super::{
    SLOT_BYTES,
    codes::{
        ALU, ALU64, ATOMIC, ATOMICS, CALL, CONDITIONS, EMPTY, END, EXIT, JA, JMP, JMP32, LDDW, LDX,
        MAP, MEM, MEMSX, MOV, NEG, OPERATIONS, SOURCE, ST, STX, Slot, size_code,
    },
    error::{WireError, WireReason},
};
use crate::{Insn, MOST_INSNS, Operand, Size, Swap, Target, Width};

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
                ..EMPTY
            };
            bytes.extend_from_slice(&second.bytes());
        }
    }
    Ok(bytes)
}

fn is_wide(insn: Insn) -> bool {
    matches!(insn, Insn::LoadImm { .. } | Insn::LoadMap { .. })
}

/// The slot of an instruction, or its first one. `distance` is that of a jump to an instruction.
fn first_slot(
    insn: Insn,
    distance: impl Fn(Target) -> Result<i16, WireReason>,
) -> Result<Slot, WireReason> {
    Ok(match insn {
        Insn::Alu { .. } | Insn::Negate { .. } | Insn::SignExtend { .. } | Insn::Swap { .. } => {
            return arithmetic(insn);
        }
        Insn::Load { .. } | Insn::Store { .. } | Insn::Atomic { .. } => return access(insn),
        Insn::LoadImm { dst, value } => Slot {
            opcode: LDDW,
            dst: dst.number(),
            imm: value as i32,
            ..EMPTY
        },
        Insn::LoadMap { dst, map } => Slot {
            opcode: LDDW,
            dst: dst.number(),
            src: MAP,
            imm: map.0.into(),
            ..EMPTY
        },
        Insn::Jump { target } => Slot {
            opcode: JA << 4 | JMP,
            offset: distance(target)?,
            ..EMPTY
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
                ..EMPTY
            };
            with_operand(slot, operand)
        }
        Insn::Call { helper } => Slot {
            opcode: CALL << 4 | JMP,
            imm: helper.number() as i32,
            ..EMPTY
        },
        Insn::Exit => Slot {
            opcode: EXIT << 4 | JMP,
            ..EMPTY
        },
    })
}

/// The slot of an instruction of arithmetic.
fn arithmetic(insn: Insn) -> Result<Slot, WireReason> {
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
                opcode: code << 4 | class_of(width),
                dst: dst.number(),
                offset,
                ..EMPTY
            };
            with_operand(slot, operand)
        }
        Insn::Negate { width, dst } => Slot {
            opcode: NEG << 4 | class_of(width),
            dst: dst.number(),
            ..EMPTY
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
                opcode: MOV << 4 | SOURCE | class_of(width),
                dst: dst.number(),
                src: src.number(),
                offset: bits.into(),
                ..EMPTY
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
                ..EMPTY
            }
        }
        _ => return Err(WireReason::Malformed),
    })
}

/// The slot of a load, a store or an atomic operation.
fn access(insn: Insn) -> Result<Slot, WireReason> {
    Ok(match insn {
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
                ..EMPTY
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
        _ => return Err(WireReason::Malformed),
    })
}

/// The slot with its second operand.
fn with_operand(slot: Slot, operand: Operand) -> Slot {
    match operand {
        Operand::Imm(imm) => Slot { imm, ..slot },
        Operand::Reg(reg) => Slot {
            opcode: slot.opcode | SOURCE,
            src: reg.number(),
            ..slot
        },
    }
}

const fn class_of(width: Width) -> u8 {
    match width {
        Width::W32 => ALU,
        Width::W64 => ALU64,
    }
}
