//! One instruction: what it needs, and what is known after it.
//!
//! A [`Stepper`] takes the state in front of an instruction to the one after it, or refuses. What
//! holds on all paths through an instruction becomes its fact. The state belongs to the path, the
//! facts to the program.

mod call;
mod memory;
mod values;

use alloc::{collections::TryReserveError, vec::Vec};

use values::{Change, alu, arithmetic, branch_on, number};

use crate::{
    Fact, Insn, Memory, Program, Reg, Width,
    verifier::{
        Cause,
        state::{NotWritten, State, Value},
    },
};

impl From<TryReserveError> for Cause {
    fn from(_: TryReserveError) -> Self {
        Self::OutOfMemory
    }
}

impl From<NotWritten> for Cause {
    fn from(NotWritten(byte): NotWritten) -> Self {
        Self::StackNotWritten { byte }
    }
}

/// Where a path goes from an instruction.
#[allow(
    clippy::large_enum_variant,
    reason = "it is looked at once and never stored; a box could find no memory"
)]
pub(super) enum Next {
    On,
    To(usize),
    /// To the target or on, with what is then known; nothing for a way that is never gone.
    Either {
        target: usize,
        taken: Option<Change>,
        not_taken: Option<Change>,
    },
    End,
}

/// The findings of the paths so far about an instruction.
#[derive(Clone, Copy, Debug, Default)]
struct Finding {
    fact: Fact,
    /// On some path the index of an array is not known.
    any_index: bool,
}

/// Goes through instructions and collects the facts about them.
pub(super) struct Stepper<'a> {
    program: &'a Program,
    findings: Vec<Finding>,
    /// How far below `r10` the stack is used.
    deepest: i64,
}

impl<'a> Stepper<'a> {
    pub(super) fn new(program: &'a Program) -> Result<Self, TryReserveError> {
        let mut findings = Vec::new();
        findings.try_reserve_exact(program.insns.len())?;
        findings.resize(program.insns.len(), Finding::default());
        Ok(Self {
            program,
            findings,
            deepest: 0,
        })
    }

    /// The facts, and the bytes of stack that are used.
    pub(super) fn finish(self) -> Result<(Vec<Fact>, u16), TryReserveError> {
        let mut facts = Vec::new();
        facts.try_reserve_exact(self.findings.len())?;
        facts.extend(self.findings.iter().map(|finding| Fact {
            most_index: finding.fact.most_index.filter(|_| !finding.any_index),
            ..finding.fact
        }));
        let stack_bytes = (self.deepest as u16).next_multiple_of(8);
        Ok((facts, stack_bytes))
    }

    /// Whether the instruction loads kernel memory, on the paths so far.
    pub(super) fn loads_kernel(&self, at: usize) -> bool {
        self.findings[at].fact.memory == Some(Memory::Kernel)
    }

    /// Goes through an instruction.
    pub(super) fn step(&mut self, at: usize, state: &mut State) -> Result<Next, Cause> {
        self.findings[at].fact.reached = true;
        match self.program.insns[at] {
            Insn::Alu {
                width,
                op,
                dst,
                operand,
            } => {
                let value = alu(state, width, op, dst, operand)?;
                state.set(dst, value);
            }
            Insn::Negate { width, dst } => {
                let number = arithmetic(state, dst)?.negated(width);
                state.set(dst, Value::Number(number));
            }
            Insn::SignExtend {
                width,
                bits,
                dst,
                src,
            } => {
                let extended = arithmetic(state, src)?.sign_extended(bits.into());
                let number = match width {
                    Width::W32 => extended.low(32),
                    Width::W64 => extended,
                };
                state.set(dst, Value::Number(number));
            }
            Insn::Swap { swap, bits, dst } => {
                let number = arithmetic(state, dst)?.swapped(swap, bits.into());
                state.set(dst, Value::Number(number));
            }
            Insn::LoadImm { dst, value } => state.set(dst, Value::constant(value)),
            Insn::LoadMap { dst, map } => state.set(dst, Value::Map(map)),
            Insn::Load {
                dst,
                base,
                offset,
                size,
                signed,
            } => {
                let value = self.load(at, state, base, offset, size, signed)?;
                state.set(dst, value);
            }
            Insn::Store {
                base,
                offset,
                size,
                value,
            } => self.store(at, state, base, offset, size, value)?,
            Insn::Atomic {
                op,
                base,
                offset,
                size,
                reg,
            } => self.atomic(at, state, op, base, offset, size, reg)?,
            Insn::Jump { target } => return Ok(Next::To(target.0.into())),
            Insn::Branch {
                width,
                condition,
                dst,
                operand,
                target,
            } => {
                let (taken, not_taken) = branch_on(state, width, condition, dst, operand)?;
                return Ok(Next::Either {
                    target: target.0.into(),
                    taken,
                    not_taken,
                });
            }
            Insn::Call { helper } => self.call(at, state, helper)?,
            Insn::Exit => {
                number(state, Reg::R0)?;
                return match state.record {
                    Some(reserved_at) => Err(Cause::RecordHeld { reserved_at }),
                    None => Ok(Next::End),
                };
            }
        }
        Ok(Next::On)
    }
}
