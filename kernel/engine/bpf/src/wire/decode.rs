//! Slots to instructions.
//!
//! The first pass gives each slot that begins an instruction its number, because jumps count slots.
//! The second one decodes. Whatever has no meaning is refused (ENCODING-2).

use alloc::vec::Vec;

use super::{
    SLOT_BYTES,
    codes::{
        ALU, ALU64, ATOMIC, ATOMICS, CALL, CONDITIONS, END, EXIT, JA, JMP, JMP32, LDX, MAP, MEM,
        MEMSX, MOV, NEG, OPERATIONS, SOURCE, ST, STX, Slot,
    },
    error::{WireError, WireReason},
};
use crate::{Helper, Insn, MOST_INSNS, MapIndex, Operand, Size, Swap, Target, Width};

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
