//! Branches and loops.

use bpf::{AluOp, Condition, Insn, Target};

use super::{Holds, SAVED, Writer, bit};
use crate::mistakes::width;

impl Writer<'_> {
    /// A branch, with one or two blocks.
    pub(super) fn either(&mut self) {
        if self.depth > 3 {
            return;
        }
        let dst = self.number();
        let operand = self.operand();
        if self.holds(dst) != Holds::Number {
            return;
        }
        let width = width(self.random);
        let condition = self.random.of(&Condition::ALL);
        let jump = self.branch_of(width, condition, dst, operand);
        let before = self.state.clone();
        self.block();
        let first = core::mem::replace(&mut self.state, before);
        if self.random.one_in(2) {
            let over = self.jump();
            self.land(jump);
            self.block();
            self.land(over);
        } else {
            self.land(jump);
        }
        let second = self.state.clone();
        self.state = first.join(second);
    }

    /// A loop with a counter.
    pub(super) fn repeat(&mut self) {
        if self.depth > 2 {
            return;
        }
        let Some(counter) = self.saved() else { return };
        let turns = 1 + self.random.below(6) as i32;
        let counts_up = self.random.one_in(2);
        let is_checked_first = !counts_up && self.random.one_in(2);
        if is_checked_first && self.random.one_in(2) {
            let number = self.number();
            self.mov(counter, number);
            self.alu(AluOp::And, counter, 7);
        } else {
            self.mov(counter, if counts_up { 0 } else { turns });
        }
        self.set(counter, Holds::Number);

        let (kept, only_numbers, in_loop) = (self.kept, self.only_numbers, self.in_loop);
        self.in_loop = true;
        self.kept |= bit(counter);
        self.state.registers[..6].fill(Holds::Nothing);
        for reg in SAVED {
            match self.holds(reg) {
                Holds::Number => self.only_numbers |= bit(reg),
                Holds::Nothing => {}
                _ => self.kept |= bit(reg),
            }
        }
        let head = self.here();
        let leave = is_checked_first.then(|| self.branch(Condition::Equal, counter, 0.into()));
        let before = self.state.clone();
        self.block();
        if self.state.is_dead {
            // The end of the turn is not reached, but is written all the same.
            self.state = before.clone();
        }
        if counts_up {
            self.alu(AluOp::Add, counter, 1);
            let back = self.branch(Condition::Below, counter, turns.into());
            self.lead(back, head);
        } else {
            self.alu(AluOp::Sub, counter, 1);
            let back = if is_checked_first {
                self.jump()
            } else {
                self.branch(Condition::NotEqual, counter, 0.into())
            };
            self.lead(back, head);
        }
        if let Some(leave) = leave {
            self.land(leave);
        }
        let after = self.state.clone();
        self.state = after.join(before);
        (self.kept, self.only_numbers, self.in_loop) = (kept, only_numbers, in_loop);
    }

    fn lead(&mut self, jump: usize, to: Target) {
        if let Insn::Jump { target } | Insn::Branch { target, .. } = &mut self.insns[jump] {
            *target = to;
        }
    }
}
