//! The facts about the program's registers before each instruction, and which of them must be
//! in a machine register.
//!
//! A register whose content is *known* (a constant, a register of the probed code, an address on
//! the program's stack) needs no machine register: each use takes the content from where it is.
//! For example `r2 = 1` before a call of `Add` becomes the constant of one machine instruction.
//! So a definition is emitted only if some use on some path does not know the content.

use alloc::vec::Vec;
use core::ops::Range;

use bpf::{
    AluOp, Argument, Condition, Helper, Insn, MapIndex, Memory, Operand, ProgramKind, Reg, Size,
    Verified, Width, context::Register,
};
use fallible::try_vec;

use crate::{Array, CompileError, Form, MapRuntime};

/// The content of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Unknown,
    Const(u64),
    /// The pointer to the context.
    Context,
    /// A register of the probed code that the machine code finds where it runs.
    Probed(Register),
    /// `r10` plus this.
    Stack(i32),
    Map(MapIndex),
}

/// The content of each of the program's registers, `r10` included.
pub type Contents = [Value; 11];

/// A set of the program's registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegSet(pub u16);

impl RegSet {
    pub const fn has(self, reg: Reg) -> bool {
        self.0 >> reg.number() & 1 != 0
    }

    pub const fn with(self, reg: Reg) -> Self {
        Self(self.0 | 1 << reg.number())
    }

    pub const fn without(self, reg: Reg) -> Self {
        Self(self.0 & !(1 << reg.number()))
    }

    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Reg> {
        Reg::ALL.into_iter().filter(move |&reg| self.has(reg))
    }
}

/// How a call is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `Add` or `MapLookup` in an array.
    Array(Array),
    /// Code in place, without a call.
    Inline,
    Out,
}

/// The program that is compiled, and its target.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    pub verified: &'a Verified,
    pub form: Form,
    pub maps: &'a [MapRuntime],
    pub has_pid_tgid: bool,
    pub has_not_recording: bool,
}

pub enum Next {
    Fall,
    Goto(usize),
    Either(usize),
    End,
}

impl Env<'_> {
    pub fn insns(&self) -> &[Insn] {
        &self.verified.program().insns
    }

    pub fn kind(&self) -> ProgramKind {
        self.verified.program().kind
    }

    fn is_reached(&self, i: usize) -> bool {
        let fact = self.verified.facts().get(i);
        fact.is_some_and(|fact| fact.reached)
    }

    pub fn memory(&self, i: usize) -> Result<Memory, CompileError> {
        let fact = self.verified.facts().get(i);
        fact.and_then(|fact| fact.memory)
            .ok_or(CompileError::NoFact { insn: i })
    }

    pub fn most_index(&self, i: usize) -> Option<u64> {
        self.verified.facts().get(i)?.most_index
    }

    /// Whether a jump or branch leads to one of the instructions in `range`.
    pub fn is_entered(&self, range: Range<usize>) -> bool {
        self.insns().iter().any(|insn| match insn {
            Insn::Jump { target } | Insn::Branch { target, .. } => {
                range.contains(&usize::from(target.0))
            }
            _ => false,
        })
    }

    /// Whether an index that is not known must be compared with the number of entries.
    pub fn is_index_checked(&self, at: usize, entries: u32) -> bool {
        let most = self.most_index(at);
        most.is_none_or(|most| most >= u64::from(entries))
    }

    pub fn map(&self, index: MapIndex) -> Option<&MapRuntime> {
        self.maps.get(usize::from(index.0))
    }

    /// The word that helpers get for a map.
    pub fn handle(&self, map: MapIndex) -> u64 {
        match self.map(map) {
            Some(MapRuntime::Array(array)) => array.handle,
            Some(MapRuntime::Handle(handle)) => *handle,
            None => 0,
        }
    }

    pub fn call(&self, i: usize, helper: Helper) -> Call {
        let map = self.verified.facts().get(i).and_then(|fact| fact.map);
        match helper {
            Helper::Add | Helper::MapLookup => match map.and_then(|map| self.map(map)) {
                Some(MapRuntime::Array(array)) => Call::Array(*array),
                _ => Call::Out,
            },
            Helper::CpuId
            | Helper::FuncIp
            | Helper::Tsc
            | Helper::Log2
            | Helper::EntryData
            | Helper::ReturnAddress => Call::Inline,
            Helper::PidTgid if self.has_pid_tgid => Call::Inline,
            Helper::NotRecording if self.has_not_recording => Call::Inline,
            _ => Call::Out,
        }
    }

    /// Whether a call leaves the code.
    pub fn is_call_out(&self, i: usize) -> bool {
        matches!(self.insns()[i], Insn::Call { helper } if self.call(i, helper) == Call::Out)
    }

    /// The value of a register of the context that has all 8 bytes in one place.
    fn probed(&self, register: Register) -> Value {
        match (self.form, register) {
            (_, Register::Ip) => Value::Unknown,
            (Form::Jump { .. } | Form::Call, Register::Cs | Register::Ss) => Value::Unknown,
            (Form::Jump { .. } | Form::Call, Register::OrigAx) => Value::Const(u64::MAX),
            _ => Value::Probed(register),
        }
    }

    /// Where the program goes on, if `state` is what is known.
    ///
    /// The facts here and those of the verifier are different. If they contradict each other, no
    /// run comes here, and the path ends.
    pub fn next(&self, i: usize, state: &Contents) -> Next {
        match self.next_by_state(i, state) {
            Next::Fall if i + 1 < self.insns().len() && !self.is_reached(i + 1) => Next::End,
            Next::Goto(target) if !self.is_reached(target) => Next::End,
            next => next,
        }
    }

    fn next_by_state(&self, i: usize, state: &Contents) -> Next {
        match self.insns()[i] {
            Insn::Jump { target } => Next::Goto(usize::from(target.0)),
            Insn::Branch {
                width,
                condition,
                dst,
                operand,
                target,
            } => {
                let target = usize::from(target.0);
                match (of(state, dst), operand_of(state, operand)) {
                    (Value::Const(a), Value::Const(b)) => {
                        if condition.holds(width, a, b) {
                            Next::Goto(target)
                        } else {
                            Next::Fall
                        }
                    }
                    // The verifier knows ranges, and so more of the conditions.
                    _ if !self.is_reached(target) => Next::Fall,
                    _ if !self.is_reached(i + 1) => Next::Goto(target),
                    _ => Next::Either(target),
                }
            }
            Insn::Exit => Next::End,
            _ => Next::Fall,
        }
    }

    /// The register that an instruction defines, and its content.
    pub fn defines(&self, i: usize, state: &Contents) -> Option<(Reg, Value)> {
        let defined = match self.insns()[i] {
            Insn::Alu {
                width,
                op,
                dst,
                operand,
            } => {
                let (a, b) = (of(state, dst), operand_of(state, operand));
                let value = match (width, op, a, b) {
                    (Width::W64, AluOp::Mov, _, value) => value,
                    (_, AluOp::Mov, _, Value::Const(b)) => Value::Const(op.apply(width, 0, b)),
                    (_, _, Value::Const(a), Value::Const(b)) => Value::Const(op.apply(width, a, b)),
                    (Width::W64, AluOp::Add, Value::Stack(a), Value::Const(b))
                    | (Width::W64, AluOp::Add, Value::Const(b), Value::Stack(a)) => {
                        stack(a, b as i64)
                    }
                    (Width::W64, AluOp::Sub, Value::Stack(a), Value::Const(b)) => {
                        stack(a, (b as i64).wrapping_neg())
                    }
                    _ => Value::Unknown,
                };
                (dst, value)
            }
            Insn::Negate { width, dst } => {
                let value = match of(state, dst) {
                    Value::Const(a) => Value::Const(AluOp::Sub.apply(width, 0, a)),
                    _ => Value::Unknown,
                };
                (dst, value)
            }
            Insn::SignExtend {
                width,
                bits,
                dst,
                src,
            } => {
                let value = match of(state, src) {
                    Value::Const(a) => constant(bpf::sign_extend(width, bits, a)),
                    _ => Value::Unknown,
                };
                (dst, value)
            }
            Insn::Swap { swap, bits, dst } => {
                let value = match of(state, dst) {
                    Value::Const(a) => constant(swap.apply(bits, a)),
                    _ => Value::Unknown,
                };
                (dst, value)
            }
            Insn::LoadImm { dst, value } => (dst, Value::Const(value)),
            Insn::LoadMap { dst, map } => (dst, Value::Map(map)),
            Insn::Load {
                dst, size, signed, ..
            } => {
                let memory = self.verified.facts().get(i).and_then(|fact| fact.memory);
                let probed = match memory {
                    Some(Memory::Context { offset }) => {
                        Register::at(offset).map(|register| self.probed(register))
                    }
                    _ => None,
                };
                let value = match (probed, size) {
                    (Some(Value::Const(value)), _) => Value::Const(narrow(value, size, signed)),
                    (Some(value), Size::B8) => value,
                    _ => Value::Unknown,
                };
                (dst, value)
            }
            Insn::Atomic { op, reg, .. } => match op {
                bpf::AtomicOp::CompareExchange => (Reg::R0, Value::Unknown),
                bpf::AtomicOp::Add { fetch: false }
                | bpf::AtomicOp::Or { fetch: false }
                | bpf::AtomicOp::And { fetch: false }
                | bpf::AtomicOp::Xor { fetch: false } => return None,
                _ => (reg, Value::Unknown),
            },
            Insn::Call { helper } => {
                let value = match (helper, self.call(i, helper)) {
                    (Helper::Add, Call::Array(_)) => Value::Const(0),
                    _ => Value::Unknown,
                };
                (Reg::R0, value)
            }
            Insn::Store { .. } | Insn::Jump { .. } | Insn::Branch { .. } | Insn::Exit => {
                return None;
            }
        };
        Some(defined)
    }

    fn after(&self, i: usize, mut state: Contents) -> Contents {
        let defined = self.defines(i, &state);
        if matches!(self.insns()[i], Insn::Call { .. }) {
            state[1..6].fill(Value::Unknown);
        }
        if let Some((reg, value)) = defined {
            state[usize::from(reg.number())] = value;
        }
        state
    }

    /// Whether an instruction does nothing but define its register.
    pub fn is_pure(&self, i: usize) -> bool {
        match self.insns()[i] {
            Insn::Alu { .. }
            | Insn::Negate { .. }
            | Insn::SignExtend { .. }
            | Insn::Swap { .. }
            | Insn::LoadImm { .. }
            | Insn::LoadMap { .. } => true,
            // A load of kernel memory may count a fault.
            Insn::Load { .. } => self.memory(i) != Ok(Memory::Kernel),
            Insn::Call { helper } => helper != Helper::Add && self.call(i, helper) != Call::Out,
            _ => false,
        }
    }

    /// The registers that the machine code of an instruction reads, before what is known is taken
    /// off.
    fn reads(&self, i: usize) -> RegSet {
        let none = RegSet::default();
        let operand = |operand| match operand {
            Operand::Reg(reg) => none.with(reg),
            Operand::Imm(_) => none,
        };
        // The base is not read if the place is constant.
        let base = |base| match self.memory(i) {
            Ok(Memory::Own | Memory::Kernel) => none.with(base),
            _ => none,
        };
        match self.insns()[i] {
            Insn::Alu {
                op,
                dst,
                operand: b,
                ..
            } => match op {
                AluOp::Mov => operand(b),
                _ => operand(b).with(dst),
            },
            Insn::Negate { dst, .. } | Insn::Swap { dst, .. } => none.with(dst),
            Insn::SignExtend { src, .. } => none.with(src),
            Insn::LoadImm { .. } | Insn::LoadMap { .. } | Insn::Jump { .. } => none,
            Insn::Load { base: b, .. } => base(b),
            Insn::Store { base: b, value, .. } => base(b).or(operand(value)),
            Insn::Atomic {
                op, base: b, reg, ..
            } => match op {
                bpf::AtomicOp::CompareExchange => base(b).with(reg).with(Reg::R0),
                _ => base(b).with(reg),
            },
            Insn::Branch {
                dst, operand: b, ..
            } => operand(b).with(dst),
            Insn::Call { helper } => match (helper, self.call(i, helper)) {
                (Helper::Add, Call::Array(_)) => none.with(Reg::R2).with(Reg::R3),
                (Helper::MapLookup, Call::Array(_)) => none.with(Reg::R2),
                (Helper::Log2, _) => none.with(Reg::R1),
                (_, Call::Inline) => none,
                _ => arguments(helper).fold(none, |set, (reg, argument)| match argument {
                    Argument::Context => set,
                    _ => set.with(reg),
                }),
            },
            Insn::Exit => match (self.form, self.kind()) {
                (Form::Handler | Form::Call, ProgramKind::Entry { .. }) => none.with(Reg::R0),
                _ => none,
            },
        }
    }
}

/// The arguments of a helper, with their registers.
pub fn arguments(helper: Helper) -> impl Iterator<Item = (Reg, Argument)> {
    helper.reads().zip(helper.arguments().iter().copied())
}

pub fn of(state: &Contents, reg: Reg) -> Value {
    state[usize::from(reg.number())]
}

pub fn operand_of(state: &Contents, operand: Operand) -> Value {
    match operand {
        Operand::Reg(reg) => of(state, reg),
        Operand::Imm(imm) => Value::Const(i64::from(imm) as u64),
    }
}

fn constant(value: Option<u64>) -> Value {
    value.map_or(Value::Unknown, Value::Const)
}

/// An address on the stack, if it is near it.
fn stack(offset: i32, delta: i64) -> Value {
    match i64::from(offset).checked_add(delta) {
        Some(sum @ -0x10_0000..=0x10_0000) => Value::Stack(sum as i32),
        _ => Value::Unknown,
    }
}

/// The low bytes of `value`, extended.
pub fn narrow(value: u64, size: Size, signed: bool) -> u64 {
    match (size, signed) {
        (Size::B1, false) => u64::from(value as u8),
        (Size::B1, true) => value as i8 as u64,
        (Size::B2, false) => u64::from(value as u16),
        (Size::B2, true) => value as i16 as u64,
        (Size::B4, false) => u64::from(value as u32),
        (Size::B4, true) => value as i32 as u64,
        (Size::B8, _) => value,
    }
}

/// The findings.
pub struct Flow {
    /// None where no path leads.
    pub before: Vec<Option<Contents>>,
    /// The registers that must be in machine registers before and after each instruction.
    pub live_in: Vec<RegSet>,
    pub live_out: Vec<RegSet>,
}

impl Flow {
    /// Whether all that becomes of the result of the call at `at` is that the next instruction,
    /// which is reached from here alone, compares it with 0.
    pub fn is_only_compared(&self, env: &Env, at: usize) -> bool {
        let next = at + 1;
        let compares = matches!(
            env.insns().get(next),
            Some(Insn::Branch {
                condition: Condition::Equal | Condition::NotEqual,
                dst: Reg::R0,
                operand: Operand::Imm(0),
                ..
            })
        );
        let is_both_ways = self.before[next]
            .as_ref()
            .is_some_and(|before| matches!(env.next(next, before), Next::Either(_)));
        compares
            && is_both_ways
            && !self.live_out[next].has(Reg::R0)
            && !env.is_entered(next..next + 1)
    }
}

/// A vector of `len` times `value`.
pub fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, CompileError> {
    let mut vec = try_vec(len)?;
    vec.resize(len, value);
    Ok(vec)
}

/// Analyses the program.
pub fn analyse(env: &Env) -> Result<Flow, CompileError> {
    let len = env.insns().len();
    let mut flow = Flow {
        before: filled(len, None)?,
        live_in: filled(len, RegSet::default())?,
        live_out: filled(len, RegSet::default())?,
    };
    forward(env, &mut flow)?;
    backward(env, &mut flow);
    Ok(flow)
}

fn forward(env: &Env, flow: &mut Flow) -> Result<(), CompileError> {
    let mut first = [Value::Unknown; 11];
    first[1] = Value::Context;
    first[10] = Value::Stack(0);
    join(flow, 0, first)?;
    // Each round takes the instructions in order. Contents become unknown and stay it, so there are
    // few rounds.
    let mut changed = true;
    while changed {
        changed = false;
        for i in 0..env.insns().len() {
            let Some(before) = flow.before[i] else {
                continue;
            };
            let after = env.after(i, before);
            changed |= match env.next(i, &before) {
                Next::Fall => {
                    join(flow, i + 1, after)?;
                    false
                }
                Next::Goto(target) => join(flow, target, after)? && target <= i,
                Next::Either(target) => {
                    join(flow, i + 1, after)?;
                    join(flow, target, after)? && target <= i
                }
                Next::End => false,
            };
        }
    }
    Ok(())
}

/// Takes `state` into what is known before `i`. True if that changed.
fn join(flow: &mut Flow, i: usize, state: Contents) -> Result<bool, CompileError> {
    let before = flow
        .before
        .get_mut(i)
        .ok_or(CompileError::NoEnd { insn: i })?;
    let joined = match before {
        None => state,
        Some(before) => core::array::from_fn(|reg| match before[reg] == state[reg] {
            true => state[reg],
            false => Value::Unknown,
        }),
    };
    let changed = *before != Some(joined);
    *before = Some(joined);
    Ok(changed)
}

fn backward(env: &Env, flow: &mut Flow) {
    let mut changed = true;
    while changed {
        changed = false;
        for i in (0..env.insns().len()).rev() {
            let Some(before) = flow.before[i] else {
                continue;
            };
            let out = match env.next(i, &before) {
                Next::Fall => flow.live_in[i + 1],
                Next::Goto(target) => flow.live_in[target],
                Next::Either(target) => flow.live_in[target].or(flow.live_in[i + 1]),
                Next::End => RegSet::default(),
            };
            let live = live_before(env, i, &before, out);
            changed |= live != flow.live_in[i] || out != flow.live_out[i];
            flow.live_in[i] = live;
            flow.live_out[i] = out;
        }
    }
}

/// The registers that `i` needs in machine registers.
pub fn reads(env: &Env, i: usize, before: &Contents, out: RegSet) -> RegSet {
    let defined = env.defines(i, before);
    if let Some((reg, value)) = defined
        && env.is_pure(i)
        && (!out.has(reg) || value != Value::Unknown)
    {
        return RegSet::default();
    }
    if matches!(env.next(i, before), Next::Goto(_)) {
        return RegSet::default();
    }
    let unknown = |reg: &Reg| of(before, *reg) == Value::Unknown;
    let reads = env.reads(i).iter().filter(unknown);
    reads.fold(RegSet::default(), RegSet::with)
}

fn live_before(env: &Env, i: usize, before: &Contents, out: RegSet) -> RegSet {
    let kept = env
        .defines(i, before)
        .map_or(out, |(reg, _)| out.without(reg));
    kept.or(reads(env, i, before, out))
}
