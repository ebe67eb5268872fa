//! Arithmetic, comparisons and branches.
//!
//! Shifts by a register, divisions and the like name `rax`, `rcx` or `rdx`. What a later
//! instruction needs of these is kept in scratch registers meanwhile. Division by zero and the
//! overflow of a signed division, at which the machine traps, have the results of RFC 9669.

use bpf::{AluOp, Condition, Operand, Reg, Swap, Width};
use fallible::push;

use super::{After, Lower, Place, bytes_of};
use crate::{
    CompileError,
    asm::{self, Bytes, Cc, Gpr, GprSet, Op, Rm, Shift, Src},
    flow::Next,
};

const fn condition(condition: Condition) -> Cc {
    match condition {
        Condition::Equal => Cc::Equal,
        Condition::NotEqual | Condition::AnyBit => Cc::NotEqual,
        Condition::Above => Cc::Above,
        Condition::AboveOrEqual => Cc::AboveOrEqual,
        Condition::Below => Cc::Below,
        Condition::BelowOrEqual => Cc::BelowOrEqual,
        Condition::Greater => Cc::Greater,
        Condition::GreaterOrEqual => Cc::GreaterOrEqual,
        Condition::Less => Cc::Less,
        Condition::LessOrEqual => Cc::LessOrEqual,
    }
}

/// The operation of the machine that can also change memory, if there is one.
pub(super) const fn operation(op: AluOp) -> Option<Op> {
    match op {
        AluOp::Add => Some(Op::Add),
        AluOp::Sub => Some(Op::Sub),
        AluOp::And => Some(Op::And),
        AluOp::Or => Some(Op::Or),
        AluOp::Xor => Some(Op::Xor),
        _ => None,
    }
}

impl Lower<'_> {
    pub(super) fn alu(&mut self, width: Width, op: AluOp, dst: Reg, operand: Operand) {
        let size = bytes_of(width);
        let to = self.phys(dst);
        let place = self.operand(operand);
        match op {
            AluOp::Mov => match (width, place) {
                (Width::W64, place) => self.load(to, place),
                (Width::W32, place) => {
                    let src = self.in_rm(place);
                    self.asm.mov(Bytes::B4, to, src);
                }
            },
            AluOp::Add | AluOp::Sub | AluOp::And | AluOp::Or | AluOp::Xor => {
                if let Some(operation) = operation(op) {
                    let to = self.own(dst);
                    let src = self.source(width, place);
                    self.asm.op(operation, size, Rm::Reg(to), src);
                }
            }
            AluOp::Mul => {
                let to = self.own(dst);
                match self.source(width, place) {
                    Src::Imm(imm) => self.asm.imul_imm(size, to, Rm::Reg(to), imm),
                    Src::Rm(src) => self.asm.imul(size, to, src),
                }
            }
            AluOp::ShiftLeft => self.shift(Shift::Left, width, dst, place),
            AluOp::ShiftRight => self.shift(Shift::Right, width, dst, place),
            AluOp::ShiftRightSigned => self.shift(Shift::RightSigned, width, dst, place),
            AluOp::Div | AluOp::SignedDiv | AluOp::Mod | AluOp::SignedMod => {
                self.divide(width, op, dst, place);
            }
        }
    }

    pub(super) fn shift(&mut self, shift: Shift, width: Width, dst: Reg, count: Place) {
        let size = bytes_of(width);
        if let Place::Imm(count) = count {
            let to = self.own(dst);
            let mask = if width == Width::W64 { 63 } else { 31 };
            match (count & mask) as u8 {
                0 if width == Width::W32 => self.asm.mov(Bytes::B4, to, Rm::Reg(to)),
                count => self.asm.shift(shift, size, to, count),
            }
            return;
        }
        let to = self.phys(dst);
        self.taken.add(asm::RCX);
        if to == asm::RCX {
            let value = self.scratch();
            let place = self.place(dst);
            self.load(value, place);
            self.load(asm::RCX, count);
            self.shift_cl(shift, size, value);
            self.asm.mov(Bytes::B8, to, Rm::Reg(value));
            return;
        }
        let saved = self.is_needed(asm::RCX, Some(dst)).then(|| self.scratch());
        if let Some(saved) = saved {
            self.asm.mov(Bytes::B8, saved, Rm::Reg(asm::RCX));
        }
        // Both before `rcx` changes, because it may hold either.
        let to = self.own(dst);
        self.load(asm::RCX, count);
        self.shift_cl(shift, size, to);
        if let Some(saved) = saved {
            self.asm.mov(Bytes::B8, asm::RCX, Rm::Reg(saved));
        }
    }

    /// By a count of 0, a shift of 32 bits leaves the upper half as it is.
    fn shift_cl(&mut self, shift: Shift, size: Bytes, to: Gpr) {
        if size == Bytes::B4 {
            self.asm.mov(Bytes::B4, to, Rm::Reg(to));
        }
        self.asm.shift_by_cl(shift, size, to);
    }

    fn divide(&mut self, width: Width, op: AluOp, dst: Reg, divisor: Place) {
        let size = bytes_of(width);
        let to = self.phys(dst);
        let signed = matches!(op, AluOp::SignedDiv | AluOp::SignedMod);
        let remainder = matches!(op, AluOp::Mod | AluOp::SignedMod);
        let constant = match divisor {
            Place::Imm(value) if width == Width::W32 => Some(value & 0xffff_ffff),
            Place::Imm(value) => Some(value),
            _ => None,
        };
        if let Some(power) = constant.filter(|value| !signed && value.is_power_of_two()) {
            let to = self.own(dst);
            if !remainder {
                match power.trailing_zeros() as u8 {
                    0 if width == Width::W32 => self.asm.mov(Bytes::B4, to, Rm::Reg(to)),
                    count => self.asm.shift(Shift::Right, size, to, count),
                }
            } else {
                let mask = self.source(width, Place::Imm(power - 1));
                self.asm.op(Op::And, size, Rm::Reg(to), mask);
            }
            return;
        }
        self.taken = self.taken.or(GprSet::of(&[asm::RAX, asm::RDX]));
        let by = self.scratch();
        self.load(by, divisor);
        let saved = [asm::RAX, asm::RDX].map(|gpr| {
            let saved = self.is_needed(gpr, Some(dst)).then(|| self.scratch())?;
            self.asm.mov(Bytes::B8, saved, Rm::Reg(gpr));
            Some((saved, gpr))
        });
        let dividend = self.place(dst);
        self.load(asm::RAX, dividend);
        let mut ends = [None, None];
        if constant.is_none_or(|value| value == 0) {
            let by = Rm::Reg(by);
            self.asm.test(size, by, Src::Rm(by));
            let divides = self.asm.jcc(Cc::NotEqual);
            if remainder {
                self.asm.mov(size, asm::RDX, Rm::Reg(asm::RAX));
            } else {
                self.asm.mov_imm(asm::RAX, 0);
            }
            ends[0] = Some(self.asm.jmp());
            self.asm.fill_here(divides);
        }
        if signed {
            // The machine traps on MIN / -1.
            let is_minus_one = match (width, constant) {
                (_, None) => true,
                (Width::W64, Some(value)) => value == u64::MAX,
                (Width::W32, Some(value)) => value == 0xffff_ffff,
            };
            if is_minus_one {
                self.asm.op(Op::Cmp, size, Rm::Reg(by), Src::Imm(-1));
                let divides = self.asm.jcc(Cc::NotEqual);
                if remainder {
                    self.asm.mov_imm(asm::RDX, 0);
                } else {
                    self.asm.neg(size, asm::RAX);
                }
                ends[1] = Some(self.asm.jmp());
                self.asm.fill_here(divides);
            }
        } else {
            self.asm.mov_imm(asm::RDX, 0);
        }
        self.asm.divide(size, by, signed);
        for end in ends.into_iter().flatten() {
            self.asm.fill_here(end);
        }
        let from = if remainder { asm::RDX } else { asm::RAX };
        self.load(to, Place::Rm(Rm::Reg(from)));
        for (saved, gpr) in saved.into_iter().flatten() {
            self.asm.mov(Bytes::B8, gpr, Rm::Reg(saved));
        }
    }

    pub(super) fn sign_extend(&mut self, width: Width, bits: u8, dst: Reg, src: Reg) {
        let to = self.phys(dst);
        let place = self.place(src);
        let from = self.in_rm(place);
        let size = match bits {
            8 => Bytes::B1,
            16 => Bytes::B2,
            _ => Bytes::B4,
        };
        match (width, size) {
            (Width::W64, size) => self.asm.mov_extended(to, from, size, true),
            (Width::W32, Bytes::B4 | Bytes::B8) => self.asm.mov(Bytes::B4, to, from),
            (Width::W32, size) => self.asm.mov_signed_to_32(to, from, size),
        }
    }

    pub(super) fn swap(&mut self, swap: Swap, bits: u8, dst: Reg) {
        let to = self.own(dst);
        let reverses = swap != Swap::ToLittle;
        match bits {
            16 => {
                if reverses {
                    self.asm.rotate_16_by_8(to);
                }
                self.asm.mov_extended(to, Rm::Reg(to), Bytes::B2, false);
            }
            32 if reverses => self.asm.bswap(Bytes::B4, to),
            32 => self.asm.mov(Bytes::B4, to, Rm::Reg(to)),
            _ if reverses => self.asm.bswap(Bytes::B8, to),
            _ => {}
        }
    }

    pub(super) fn branch(
        &mut self,
        width: Width,
        of: Condition,
        dst: Reg,
        operand: Operand,
    ) -> Result<After, CompileError> {
        let target = match self.env.next(self.at, &self.before) {
            Next::Goto(target) => return Ok(After::Goto(target)),
            Next::Either(target) => target,
            Next::Fall => return Ok(After::Next),
            Next::End => return Ok(self.end()),
        };
        if core::mem::take(&mut self.compared) {
            let hole = self.asm.jcc(condition(of));
            push(&mut self.holes, (hole, target, self.level))?;
            push(&mut self.queue, (target, self.level))?;
            return Ok(After::Next);
        }
        let size = bytes_of(width);
        let (a, b) = (self.place(dst), self.operand(operand));
        let b = self.source(width, b);
        let a = match (a, b) {
            (Place::Rm(a @ Rm::Mem(_)), Src::Imm(_) | Src::Rm(Rm::Reg(_))) => a,
            (a, _) => Rm::Reg(self.in_register(a)),
        };
        match (of, b, a) {
            (Condition::AnyBit, b, a) => self.asm.test(size, a, b),
            (_, Src::Imm(0), Rm::Reg(_)) => self.asm.test(size, a, Src::Rm(a)),
            _ => self.asm.op(Op::Cmp, size, a, b),
        }
        let hole = self.asm.jcc(condition(of));
        push(&mut self.holes, (hole, target, self.level))?;
        push(&mut self.queue, (target, self.level))?;
        Ok(After::Next)
    }
}
