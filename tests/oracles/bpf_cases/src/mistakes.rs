//! Mistakes in programs, and instructions that are nothing but random.
//!
//! The writer's programs are mostly right. A verifier is shown by those that are nearly right: some
//! get one or two changes, a few are replaced by random instructions, and the others stay as they
//! are.

use bpf::{
    AluOp, AtomicOp, Condition, Helper, Insn, MapIndex, Operand, Program, Reg, Size, Swap, Target,
    Width,
};
use instruction_cases::Random;

use crate::world;

pub(crate) const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];

pub(crate) fn width(random: &mut Random) -> Width {
    if random.one_in(3) {
        Width::W32
    } else {
        Width::W64
    }
}

pub(crate) fn imm(random: &mut Random) -> i32 {
    match random.below(6) {
        0 => world::extreme(random) as i32,
        1 => random.next() as i32,
        2 => -(random.below(64) as i32),
        _ => random.below(64) as i32,
    }
}

pub(crate) fn atomic(random: &mut Random) -> AtomicOp {
    let fetch = random.one_in(2);
    random.of(&[
        AtomicOp::Add { fetch },
        AtomicOp::Or { fetch },
        AtomicOp::And { fetch },
        AtomicOp::Xor { fetch },
        AtomicOp::Exchange,
        AtomicOp::CompareExchange,
    ])
}

/// Leaves some programs as they are, makes a mistake or two in others, and replaces a few.
pub(crate) fn make(random: &mut Random, program: &mut Program) {
    match random.below(20) {
        0 => {
            let count = 1 + random.below(12) as u16;
            program.insns = (0..count).map(|_| insn(random, count)).collect();
            program.insns.push(Insn::Exit);
        }
        1..=9 => {
            for _ in 0..=random.below(2) {
                change(random, program);
            }
        }
        _ => {}
    }
}

fn reg(random: &mut Random) -> Reg {
    random.of(&Reg::ALL)
}

fn operand(random: &mut Random) -> Operand {
    if random.one_in(2) {
        reg(random).into()
    } else {
        imm(random).into()
    }
}

fn offset(random: &mut Random) -> i16 {
    match random.below(8) {
        0 => random.next() as i16,
        1..=4 => -8 * random.below(66) as i16,
        _ => random.below(24) as i16 * 8,
    }
}

/// Any instruction, of a program of `count`.
fn insn(random: &mut Random, count: u16) -> Insn {
    let target = Target(random.below(u64::from(count) + 1) as u16);
    let (width, dst, size) = (width(random), reg(random), random.of(&SIZES));
    match random.below(14) {
        0..=2 => Insn::Alu {
            width,
            op: random.of(&AluOp::ALL),
            dst,
            operand: operand(random),
        },
        3 => Insn::Negate { width, dst },
        4 => Insn::SignExtend {
            width,
            bits: match width {
                Width::W32 => random.of(&[8, 16]),
                Width::W64 => random.of(&[8, 16, 32]),
            },
            dst,
            src: reg(random),
        },
        5 => Insn::Swap {
            swap: random.of(&[Swap::ToLittle, Swap::ToBig, Swap::Always]),
            bits: random.of(&[16, 32, 64]),
            dst,
        },
        6 => Insn::LoadImm {
            dst,
            value: world::number(random),
        },
        7 => Insn::LoadMap {
            dst,
            map: MapIndex(random.below(4) as u16),
        },
        8 => Insn::Load {
            dst,
            base: reg(random),
            offset: offset(random),
            size,
            signed: size != Size::B8 && random.one_in(4),
        },
        9 => Insn::Store {
            base: reg(random),
            offset: offset(random),
            size,
            value: operand(random),
        },
        10 => Insn::Atomic {
            op: atomic(random),
            base: reg(random),
            offset: offset(random),
            size,
            reg: dst,
        },
        11 => Insn::Branch {
            width,
            condition: random.of(&Condition::ALL),
            dst,
            operand: operand(random),
            target,
        },
        12 => Insn::Call {
            helper: random.of(&Helper::ALL),
        },
        _ if random.one_in(2) => Insn::Jump { target },
        _ => Insn::Exit,
    }
}

/// Changes one instruction.
fn change(random: &mut Random, program: &mut Program) {
    let count = program.insns.len() as u16;
    let at = random.below(count.into()) as usize;
    match random.below(6) {
        0 => program.insns[at] = insn(random, count),
        1 => {
            program.insns[at] = Insn::Jump {
                target: Target(at as u16 + 1),
            }
        }
        2 => program.insns.swap(at, (at + 1) % usize::from(count)),
        _ => alter(random, &mut program.insns[at], count),
    }
}

/// Changes an operand.
fn alter(random: &mut Random, insn: &mut Insn, count: u16) {
    let other = reg(random);
    let by = random.of(&[-8, -4, -1, 1, 4, 8]);
    match insn {
        Insn::Alu {
            operand: Operand::Imm(imm),
            ..
        } if random.one_in(2) => {
            *imm = imm.wrapping_add(by.into());
        }
        Insn::Alu { width, .. } if random.one_in(4) => *width = self::width(random),
        Insn::Alu { operand, .. } if random.one_in(2) => *operand = other.into(),
        Insn::Alu { dst, .. }
        | Insn::Negate { dst, .. }
        | Insn::SignExtend { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::LoadImm { dst, .. } => *dst = other,
        Insn::LoadMap { map, .. } => map.0 = random.below(4) as u16,
        Insn::Load {
            offset, size, base, ..
        }
        | Insn::Store {
            offset, size, base, ..
        } => match random.below(4) {
            0 => *base = other,
            1 => *size = random.of(&SIZES),
            _ => *offset = offset.wrapping_add(by),
        },
        Insn::Atomic {
            offset, reg, base, ..
        } => match random.below(3) {
            0 => *base = other,
            1 => *reg = other,
            _ => *offset = offset.wrapping_add(by),
        },
        Insn::Branch {
            condition, target, ..
        } => {
            if random.one_in(2) {
                *condition = random.of(&Condition::ALL);
            } else {
                *target = Target(random.below(count.into()) as u16);
            }
        }
        Insn::Jump { target } => *target = Target(random.below(count.into()) as u16),
        Insn::Call { helper } => *helper = random.of(&Helper::ALL),
        Insn::Exit => *insn = self::insn(random, count),
    }
    if let Insn::Load {
        size: Size::B8,
        signed,
        ..
    } = insn
    {
        // There is no such instruction in the wire form.
        *signed = false;
    }
}
