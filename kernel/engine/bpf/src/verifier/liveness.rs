//! Which registers a path from an instruction may still read.
//!
//! States are compared by these only, because two paths that differ only in what no instruction
//! reads are the same path.

use alloc::{collections::TryReserveError, vec::Vec};

use crate::{AluOp, AtomicOp, Insn, Operand, Reg};

/// A set of registers: bit N is register N.
const fn bit(reg: Reg) -> u16 {
    1 << reg.number()
}

fn operand(operand: Operand) -> u16 {
    match operand {
        Operand::Reg(reg) => bit(reg),
        Operand::Imm(_) => 0,
    }
}

/// The registers that an instruction reads, and those that it writes without reading them first.
fn reads_and_writes(insn: &Insn) -> (u16, u16) {
    match *insn {
        Insn::Alu {
            op: AluOp::Mov,
            dst,
            operand: from,
            ..
        } => (operand(from), bit(dst)),
        Insn::Alu {
            dst, operand: with, ..
        } => (bit(dst) | operand(with), 0),
        Insn::Negate { dst, .. } | Insn::Swap { dst, .. } => (bit(dst), 0),
        Insn::SignExtend { dst, src, .. } => (bit(src), bit(dst)),
        Insn::LoadImm { dst, .. } | Insn::LoadMap { dst, .. } => (0, bit(dst)),
        Insn::Load { dst, base, .. } => (bit(base), bit(dst)),
        Insn::Store { base, value, .. } => (bit(base) | operand(value), 0),
        Insn::Atomic { op, base, reg, .. } => {
            let compared = match op {
                AtomicOp::CompareExchange => bit(Reg::R0),
                _ => 0,
            };
            (bit(base) | bit(reg) | compared, 0)
        }
        Insn::Jump { .. } => (0, 0),
        Insn::Branch {
            dst, operand: with, ..
        } => (bit(dst) | operand(with), 0),
        Insn::Call { helper } => {
            let arguments = helper.reads().fold(0, |set, reg| set | bit(reg));
            (arguments, 0b11_1111)
        }
        Insn::Exit => (bit(Reg::R0), 0),
    }
}

/// The registers that each instruction or a later one may read. No jump leads out of `insns`.
pub(super) fn live(insns: &[Insn]) -> Result<Vec<u16>, TryReserveError> {
    let always = bit(Reg::R10);
    let mut live = Vec::new();
    live.try_reserve_exact(insns.len())?;
    live.resize(insns.len(), always);
    // Backwards, until no jump backwards brings anything new. Sets only grow.
    let mut changed = true;
    while changed {
        changed = false;
        for (at, insn) in insns.iter().enumerate().rev() {
            let next = || live.get(at + 1).copied().unwrap_or(0);
            let behind = match insn {
                Insn::Exit => 0,
                Insn::Jump { target } => live[usize::from(target.0)],
                Insn::Branch { target, .. } => next() | live[usize::from(target.0)],
                _ => next(),
            };
            let (reads, writes) = reads_and_writes(insn);
            let now = always | reads | (behind & !writes);
            debug_assert!(
                live[at] & !now == 0,
                "a set has shrunk, so there may be no end"
            );
            changed |= now != live[at];
            live[at] = now;
        }
    }
    Ok(live)
}
