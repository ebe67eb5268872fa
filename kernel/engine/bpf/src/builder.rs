//! A small assembler: instructions one after the other, with labels for jumps.
//!
//! ```
//! use bpf::{Builder, Condition, Helper, ProgramKind, MapDef, Reg::*, context::Register};
//!
//! // Counts the calls whose first argument is not zero.
//! let mut b = Builder::new(ProgramKind::Probe);
//! let calls = b.map(MapDef::counters("calls", 1));
//! let end = b.label();
//! b.load_register(R2, Register::Di);
//! b.branch(Condition::Equal, R2, 0, end);
//! b.add(calls, 0, 1);
//! b.place(end);
//! b.exit(0);
//! assert_eq!(b.finish().unwrap().maps.len(), 1);
//! ```

use alloc::vec::Vec;
use core::fmt;

use crate::{
    AluOp, Condition, Helper, Insn, MOST_INSNS, MOST_MAPS, MapDef, MapIndex, Operand, Program,
    ProgramKind, Reg, Size, Target, Width, context::Register,
};

/// The bit of the interrupt flag among the processor's flags.
const INTERRUPT_FLAG: i32 = 9;

/// A place in the program that jumps name before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(u16);

/// A program that cannot be finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// A jump leads to a label that was never placed, or to the end of the program.
    LabelNotPlaced,
    /// There are more than [`MOST_INSNS`] instructions.
    TooLong,
    /// There are more than [`MOST_MAPS`] maps.
    TooManyMaps,
    /// There is no memory for it.
    OutOfMemory,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LabelNotPlaced => f.write_str("a jump leads nowhere; place its label"),
            Self::TooLong => write!(f, "more than {MOST_INSNS} instructions; make it shorter"),
            Self::TooManyMaps => write!(f, "more than {MOST_MAPS} maps; use fewer"),
            Self::OutOfMemory => f.write_str("there is no memory for the program"),
        }
    }
}

impl core::error::Error for BuildError {}

/// See the module's text. [`Builder::finish`] reports a mistake.
pub struct Builder {
    program: Program,
    /// Where each label is placed.
    labels: Vec<Option<u16>>,
    error: Option<BuildError>,
}

impl Builder {
    pub fn new(kind: ProgramKind) -> Self {
        Self {
            program: Program {
                kind,
                insns: Vec::new(),
                maps: Vec::new(),
            },
            labels: Vec::new(),
            error: None,
        }
    }

    /// Notes the first mistake.
    fn fail(&mut self, error: BuildError) {
        self.error.get_or_insert(error);
    }

    /// Appends an instruction. The target of a jump is a label's number, as [`Builder::jump`]
    /// writes it.
    pub fn push(&mut self, insn: Insn) -> &mut Self {
        if self.program.insns.len() == MOST_INSNS {
            self.fail(BuildError::TooLong);
        } else if self.program.insns.try_reserve(1).is_err() {
            self.fail(BuildError::OutOfMemory);
        } else {
            self.program.insns.push(insn);
        }
        self
    }

    /// Adds a map.
    pub fn map(&mut self, def: MapDef) -> MapIndex {
        if self.program.maps.len() == MOST_MAPS {
            self.fail(BuildError::TooManyMaps);
        } else if self.program.maps.try_reserve(1).is_err() {
            self.fail(BuildError::OutOfMemory);
        } else {
            self.program.maps.push(def);
        }
        MapIndex(self.program.maps.len().saturating_sub(1) as u16)
    }

    /// A label that is not placed yet.
    pub fn label(&mut self) -> Label {
        if self.labels.len() >= MOST_INSNS * 2 {
            self.fail(BuildError::TooLong);
        } else if self.labels.try_reserve(1).is_err() {
            self.fail(BuildError::OutOfMemory);
        } else {
            self.labels.push(None);
        }
        Label(self.labels.len().saturating_sub(1) as u16)
    }

    /// Places `label` in front of the next instruction.
    pub fn place(&mut self, label: Label) -> &mut Self {
        let next = self.program.insns.len() as u16;
        if let Some(place) = self.labels.get_mut(usize::from(label.0)) {
            *place = Some(next);
        }
        self
    }

    /// `dst = value`.
    pub fn set(&mut self, dst: Reg, value: i64) -> &mut Self {
        match i32::try_from(value) {
            Ok(imm) => self.mov(dst, imm),
            Err(_) => self.push(Insn::LoadImm {
                dst,
                value: value as u64,
            }),
        }
    }

    /// `dst = operand`.
    pub fn mov(&mut self, dst: Reg, operand: impl Into<Operand>) -> &mut Self {
        self.alu(AluOp::Mov, dst, operand)
    }

    /// `dst = dst OP operand`, 64 bits.
    pub fn alu(&mut self, op: AluOp, dst: Reg, operand: impl Into<Operand>) -> &mut Self {
        self.push(Insn::Alu {
            width: Width::W64,
            op,
            dst,
            operand: operand.into(),
        })
    }

    /// `dst = ` a register of the probed code. `r1` must still be the context.
    pub fn load_register(&mut self, dst: Reg, register: Register) -> &mut Self {
        self.load(dst, Reg::R1, register.offset(), Size::B8)
    }

    /// `dst = *(base + offset)`, zero-extended.
    pub fn load(&mut self, dst: Reg, base: Reg, offset: i16, size: Size) -> &mut Self {
        self.push(Insn::Load {
            dst,
            base,
            offset,
            size,
            signed: false,
        })
    }

    /// `*(base + offset) = value`.
    pub fn store(
        &mut self,
        base: Reg,
        offset: i16,
        size: Size,
        value: impl Into<Operand>,
    ) -> &mut Self {
        self.push(Insn::Store {
            base,
            offset,
            size,
            value: value.into(),
        })
    }

    /// Goes to `label`.
    pub fn jump(&mut self, label: Label) -> &mut Self {
        self.push(Insn::Jump {
            target: Target(label.0),
        })
    }

    /// Goes to `label` if `dst CONDITION operand`, 64 bits.
    pub fn branch(
        &mut self,
        condition: Condition,
        dst: Reg,
        operand: impl Into<Operand>,
        label: Label,
    ) -> &mut Self {
        self.push(Insn::Branch {
            width: Width::W64,
            condition,
            dst,
            operand: operand.into(),
            target: Target(label.0),
        })
    }

    /// Goes to `label` if `dst CONDITION operand` holds of their low 32 bits.
    pub fn branch32(
        &mut self,
        condition: Condition,
        dst: Reg,
        operand: impl Into<Operand>,
        label: Label,
    ) -> &mut Self {
        self.push(Insn::Branch {
            width: Width::W32,
            condition,
            dst,
            operand: operand.into(),
            target: Target(label.0),
        })
    }

    /// `dst = ` the map, for a helper.
    pub fn load_map(&mut self, dst: Reg, map: MapIndex) -> &mut Self {
        self.push(Insn::LoadMap { dst, map })
    }

    /// `r0 = helper(…)`. `r1` to `r5` are lost.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(Insn::Call { helper })
    }

    /// Adds `delta` to a counter of an array: `index` and `delta` are constants. `r0` to `r5` are
    /// lost.
    pub fn add(&mut self, map: MapIndex, index: i32, delta: i32) -> &mut Self {
        self.load_map(Reg::R1, map)
            .mov(Reg::R2, index)
            .mov(Reg::R3, delta)
            .call(Helper::Add)
    }

    /// Adds `delta`, a constant, to the counter of the key in the stack at `r10 + key`. Then `r0`
    /// is 0, unless the map has no room for the key. `r1` to `r5` are lost.
    pub fn add_by_key(&mut self, map: MapIndex, key: i32, delta: i32) -> &mut Self {
        self.load_map(Reg::R1, map)
            .mov(Reg::R2, Reg::R10)
            .alu(AluOp::Add, Reg::R2, key)
            .mov(Reg::R3, delta)
            .call(Helper::AddByKey)
    }

    /// `r0 = ` a record of `size` bytes in a ring. Goes to `full` if there is no room. `r1` to `r5`
    /// are lost.
    pub fn reserve(&mut self, ring: MapIndex, size: i32, full: Label) -> &mut Self {
        self.load_map(Reg::R1, ring)
            .mov(Reg::R2, size)
            .mov(Reg::R3, 0)
            .call(Helper::RingReserve)
            .branch(Condition::Equal, Reg::R0, 0, full)
    }

    /// Hands the reserved record, which the register `record` has, to the readers. `r0` to `r5` are
    /// lost.
    pub fn submit(&mut self, record: Reg) -> &mut Self {
        self.mov(Reg::R1, record)
            .mov(Reg::R2, 0)
            .call(Helper::RingSubmit)
    }

    /// `dst = ` 1, the flag of the common header, if interrupts were off at the probe whose context
    /// the register `context` has, or else 0. [`Helper::EventReserve`] cannot know, because a
    /// breakpoint turns them off.
    fn interrupts_off(&mut self, dst: Reg, context: Reg) -> &mut Self {
        self.load(dst, context, Register::Flags.offset(), Size::B8)
            .alu(AluOp::ShiftRight, dst, INTERRUPT_FLAG)
            .alu(AluOp::And, dst, 1)
            .alu(AluOp::Xor, dst, 1)
    }

    /// Adds to the flags of a record of [`Helper::EventReserve`] whether interrupts were off at the
    /// probe. The registers `record` and `context` have the two. `r0` is lost.
    pub fn note_interrupts_off(&mut self, record: Reg, context: Reg) -> &mut Self {
        /// Where the common header has its flags.
        const FLAGS: i16 = 2;
        let on = self.label();
        // A branch, because they are seldom off.
        self.load(Reg::R0, context, Register::Flags.offset(), Size::B8)
            .branch(Condition::AnyBit, Reg::R0, 1 << INTERRUPT_FLAG, on)
            .load(Reg::R0, record, FLAGS, Size::B1)
            .alu(AluOp::Or, Reg::R0, 1)
            .store(record, FLAGS, Size::B1, Reg::R0)
            .place(on)
    }

    /// Records the call stack of the probe whose context the register `context` has. `r0` to `r5`
    /// are lost.
    pub fn record_stack(&mut self, ring: MapIndex, context: Reg) -> &mut Self {
        self.interrupts_off(Reg::R3, context)
            .mov(Reg::R1, context)
            .load_map(Reg::R2, ring)
            .call(Helper::RecordStack)
    }

    /// Ends the program with `result`.
    pub fn exit(&mut self, result: i32) -> &mut Self {
        self.mov(Reg::R0, result).push(Insn::Exit)
    }

    /// The program, with its jumps resolved.
    ///
    /// # Errors
    /// [`BuildError`], the first mistake that was made.
    pub fn finish(mut self) -> Result<Program, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let end = self.program.insns.len();
        for insn in &mut self.program.insns {
            if let Insn::Jump { target } | Insn::Branch { target, .. } = insn {
                let place = self.labels.get(usize::from(target.0)).copied().flatten();
                *target = place
                    .filter(|place| usize::from(*place) < end)
                    .map(Target)
                    .ok_or(BuildError::LabelNotPlaced)?;
            }
        }
        Ok(self.program)
    }
}
