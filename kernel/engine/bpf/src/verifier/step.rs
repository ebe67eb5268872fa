//! One instruction: what it needs, and what is known behind it.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{
    Cause, Expected, MOST_DISTANCE, Region, branch,
    number::Number,
    state::{NotWritten, State, Value},
};
use crate::{
    AluOp, Argument, AtomicOp, Condition, Fact, Helper, Insn, Kind, MOST_RECORD_BYTES, MapIndex,
    MapKind, Memory, Operand, Program, Reg, Returns, STACK_BYTES, Size, Width, context,
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

/// The findings of a branch.
pub(super) enum Change {
    Nothing,
    Numbers {
        dst: (Reg, Number),
        operand: Option<(Reg, Number)>,
    },
    /// The value in the register.
    Value {
        reg: Reg,
        is_null: bool,
    },
    Record {
        is_null: bool,
    },
}

impl Change {
    pub(super) fn apply(self, state: &mut State) {
        match self {
            Self::Nothing => {}
            Self::Numbers { dst, operand } => {
                state.set(dst.0, Value::Number(dst.1));
                if let Some((reg, number)) = operand {
                    state.set(reg, Value::Number(number));
                }
            }
            Self::Value { reg, is_null } => state.resolve_value(reg, is_null),
            Self::Record { is_null } => state.resolve_record(is_null),
        }
    }
}

/// Memory that a pointer reaches, checked.
enum Place {
    /// At a known distance from `r10`.
    Stack(i64),
    /// Somewhere from the one distance on, up to before the other.
    SomewhereInStack {
        from: i64,
        bytes: u32,
    },
    Elsewhere,
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

    /// The memory that `bytes` at `pointer + offset` are, if they are the program's own.
    fn place(&mut self, reg: Reg, pointer: Value, offset: i16, bytes: u32) -> Result<Place, Cause> {
        let maps = &self.program.maps;
        let (region, distance, from, behind) = match pointer {
            Value::Stack(distance) => (Region::Stack, distance, -(STACK_BYTES as i64), 0),
            Value::MapValue { map, offset } => {
                let size = maps[usize::from(map.0)].value_size;
                (Region::MapValue(map), offset, 0, size.into())
            }
            Value::Record { size, offset, .. } => (Region::Record, offset, 0, size.into()),
            Value::EntryData(distance) => {
                let size = self.program.kind.shared_bytes();
                (Region::EntryData, distance, 0, size.into())
            }
            found => {
                return Err(Cause::Register {
                    reg,
                    expected: Expected::Own,
                    found,
                });
            }
        };
        // Distances are at most MOST_DISTANCE, so no sum overflows.
        let first = distance.least_signed() + i64::from(offset);
        let last = distance.most_signed() + i64::from(offset) + i64::from(bytes) - 1;
        debug_assert!(first <= last, "{distance:?}");
        if first < from || last >= behind {
            return Err(Cause::Bounds {
                region,
                first,
                last,
                from,
                to: behind - 1,
            });
        }
        if region != Region::Stack {
            return Ok(Place::Elsewhere);
        }
        self.deepest = self.deepest.max(-first);
        Ok(match distance.known() {
            Some(_) => Place::Stack(first),
            None => Place::SomewhereInStack {
                from: first,
                bytes: (last + 1 - first) as u32,
            },
        })
    }

    /// Notes which memory the instruction reaches.
    fn note_memory(&mut self, at: usize, found: Memory) -> Result<(), Cause> {
        let memory = &mut self.findings[at].fact.memory;
        *memory = Some(match (*memory, found) {
            (None, found) => found,
            (Some(before), found) if before == found => found,
            // Stack at differing distances, or stack and other memory of its own.
            (Some(Memory::Stack { .. } | Memory::Own), Memory::Stack { .. } | Memory::Own) => {
                Memory::Own
            }
            _ => return Err(Cause::MixedMemory),
        });
        Ok(())
    }

    fn note_place(&mut self, at: usize, place: &Place) -> Result<(), Cause> {
        let memory = match *place {
            Place::Stack(offset) => Memory::Stack {
                offset: offset as i16,
            },
            Place::SomewhereInStack { .. } | Place::Elsewhere => Memory::Own,
        };
        self.note_memory(at, memory)
    }

    fn load(
        &mut self,
        at: usize,
        state: &State,
        base: Reg,
        offset: i16,
        size: Size,
        signed: bool,
    ) -> Result<Value, Cause> {
        let bytes = size.bytes();
        let extended = |number: Number| match signed {
            true => number.sign_extended(bytes * 8),
            false => number,
        };
        let any = Value::Number(match signed {
            true => Number::of_signed_bits(bytes * 8),
            false => Number::of_bits(bytes * 8),
        });
        match state.get(base) {
            Value::Number(_) => {
                self.note_memory(at, Memory::Kernel)?;
                Ok(any)
            }
            Value::Context => {
                let register = offset.div_euclid(8) * 8;
                let last = i64::from(offset) + i64::from(bytes) - 1;
                if offset < 0 || last >= i64::from(context::BYTES) {
                    return Err(Cause::Bounds {
                        region: Region::Context,
                        first: offset.into(),
                        last,
                        from: 0,
                        to: i64::from(context::BYTES) - 1,
                    });
                }
                if register != offset {
                    return Err(Cause::ContextField {
                        offset: offset.into(),
                        bytes,
                    });
                }
                self.note_memory(at, Memory::Context { offset })?;
                Ok(any)
            }
            found @ (Value::Unset
            | Value::Map(_)
            | Value::ValueOrNull { .. }
            | Value::RecordOrNull { .. }) => Err(Cause::Register {
                reg: base,
                expected: Expected::Loadable,
                found,
            }),
            pointer => {
                let place = self.place(base, pointer, offset, bytes)?;
                self.note_place(at, &place)?;
                match place {
                    Place::Stack(offset) => Ok(match state.load(offset, bytes)? {
                        Value::Number(number) => Value::Number(extended(number)),
                        pointer => pointer,
                    }),
                    Place::SomewhereInStack { from, bytes } => {
                        state.check_written(from, bytes)?;
                        Ok(any)
                    }
                    Place::Elsewhere => Ok(any),
                }
            }
        }
    }

    fn store(
        &mut self,
        at: usize,
        state: &mut State,
        base: Reg,
        offset: i16,
        size: Size,
        value: Operand,
    ) -> Result<(), Cause> {
        let bytes = size.bytes();
        let place = self.place(base, state.get(base), offset, bytes)?;
        self.note_place(at, &place)?;
        let stored = operand(state, value)?;
        match (stored, place) {
            (Value::Number(number), Place::Stack(offset)) => {
                state.store_number(offset, bytes, number)?;
            }
            (Value::Number(_), Place::SomewhereInStack { from, bytes }) => {
                state.store_somewhere(from, bytes);
            }
            (Value::Number(_), Place::Elsewhere) => {}
            (pointer, Place::Stack(offset)) if bytes == 8 => {
                if offset % 8 != 0 {
                    return Err(Cause::Unaligned { bytes });
                }
                state.store_pointer(offset, pointer)?;
            }
            (found, _) => {
                return Err(Cause::Register {
                    reg: register_of(value),
                    expected: Expected::Number,
                    found,
                });
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of the instruction")]
    fn atomic(
        &mut self,
        at: usize,
        state: &mut State,
        op: AtomicOp,
        base: Reg,
        offset: i16,
        size: Size,
        reg: Reg,
    ) -> Result<(), Cause> {
        let bytes = size.bytes();
        let pointer = state.get(base);
        let place = self.place(base, pointer, offset, bytes)?;
        if let Value::Stack(distance)
        | Value::MapValue {
            offset: distance, ..
        }
        | Value::Record {
            offset: distance, ..
        }
        | Value::EntryData(distance) = pointer
        {
            let distance = distance.add(Number::constant(offset as u64));
            if !distance.is_multiple_of(bytes.into()) {
                return Err(Cause::Unaligned { bytes });
            }
        }
        self.note_place(at, &place)?;
        number(state, reg)?;
        if op == AtomicOp::CompareExchange {
            number(state, Reg::R0)?;
        }
        let any = Number::of_bits(bytes * 8);
        let mut old = any;
        match place {
            Place::Stack(offset) => {
                state.check_written(offset, bytes)?;
                if let Value::Number(number) = state.load(offset, bytes)? {
                    old = number;
                }
                state.store_number(offset, bytes, any)?;
            }
            Place::SomewhereInStack { from, bytes } => {
                state.check_written(from, bytes)?;
                state.store_somewhere(from, bytes);
            }
            Place::Elsewhere => {}
        }
        match op {
            AtomicOp::CompareExchange => state.set(Reg::R0, Value::Number(old)),
            AtomicOp::Exchange
            | AtomicOp::Add { fetch: true }
            | AtomicOp::Or { fetch: true }
            | AtomicOp::And { fetch: true }
            | AtomicOp::Xor { fetch: true } => state.set(reg, Value::Number(old)),
            AtomicOp::Add { fetch: false }
            | AtomicOp::Or { fetch: false }
            | AtomicOp::And { fetch: false }
            | AtomicOp::Xor { fetch: false } => {}
        }
        Ok(())
    }

    /// A helper reads so many bytes of memory.
    fn read_by_helper(&mut self, state: &State, reg: Reg, bytes: u32) -> Result<(), Cause> {
        match self.place(reg, state.get(reg), 0, bytes)? {
            Place::Stack(from) => state.check_written(from, bytes)?,
            Place::SomewhereInStack { from, bytes } => state.check_written(from, bytes)?,
            Place::Elsewhere => {}
        }
        Ok(())
    }

    /// A helper writes so many bytes of memory, all of them.
    fn written_by_helper(&mut self, state: &mut State, reg: Reg, bytes: u32) -> Result<(), Cause> {
        match self.place(reg, state.get(reg), 0, bytes)? {
            Place::Stack(from) => state.store_unknown(from, bytes)?,
            Place::SomewhereInStack { from, bytes } => state.store_somewhere(from, bytes),
            Place::Elsewhere => {}
        }
        Ok(())
    }

    fn call(&mut self, at: usize, state: &mut State, helper: Helper) -> Result<(), Cause> {
        let kind = self.program.kind;
        let is_here = match helper {
            Helper::EntryData => kind.shared_bytes() > 0,
            Helper::ReturnAddress => matches!(kind, Kind::Return { .. }),
            _ => true,
        };
        if !is_here {
            return Err(Cause::NotHere { helper });
        }
        let mut map = None;
        let mut record_bytes = 0;
        let mut memory = None;
        let mut releases = false;
        for (reg, argument) in helper.reads().zip(helper.arguments()) {
            let value = state.get(reg);
            let wrong = |expected| Cause::Register {
                reg,
                expected,
                found: value,
            };
            match *argument {
                Argument::Context => {
                    if value != Value::Context {
                        return Err(wrong(Expected::Context));
                    }
                }
                Argument::Map(kinds) => {
                    let Value::Map(index) = value else {
                        return Err(wrong(Expected::Map(kinds)));
                    };
                    let def = &self.program.maps[usize::from(index.0)];
                    if !kinds.contains(&def.kind) {
                        return Err(wrong(Expected::Map(kinds)));
                    }
                    if helper == Helper::Add && def.value_size < 8 {
                        return Err(wrong(Expected::Counters));
                    }
                    self.note_map(at, index)?;
                    map = Some((index, def));
                }
                // The map is the first argument of each helper that takes keys or values.
                Argument::Key => {
                    let bytes = map.map_or(0, |(_, def)| def.key_size);
                    self.read_by_helper(state, reg, bytes)?;
                }
                Argument::Value => {
                    let bytes = map.map_or(0, |(_, def)| def.value_size);
                    self.read_by_helper(state, reg, bytes)?;
                }
                Argument::Readable => memory = Some((reg, false)),
                Argument::Writable => memory = Some((reg, true)),
                Argument::SizeOfIt => {
                    let bytes = known(value)
                        .and_then(|bytes| u32::try_from(bytes).ok())
                        .filter(|bytes| *bytes > 0)
                        .ok_or_else(|| wrong(Expected::Bytes))?;
                    match memory {
                        Some((reg, true)) => self.written_by_helper(state, reg, bytes)?,
                        Some((reg, false)) => self.read_by_helper(state, reg, bytes)?,
                        None => {}
                    }
                }
                Argument::RecordSize => {
                    let least = match helper {
                        Helper::EventReserve => 8,
                        _ => 1,
                    };
                    record_bytes = known(value)
                        .and_then(|bytes| u32::try_from(bytes).ok())
                        .filter(|bytes| (least..=MOST_RECORD_BYTES).contains(bytes))
                        .ok_or_else(|| wrong(Expected::RecordBytes { least }))?;
                }
                // The flags of a record.
                Argument::Constant if helper == Helper::RingReserve => {
                    if known(value) != Some(0) {
                        return Err(wrong(Expected::Zero));
                    }
                }
                Argument::Constant => {
                    known(value).ok_or_else(|| wrong(Expected::Constant))?;
                }
                Argument::Scalar => {
                    number(state, reg)?;
                }
                Argument::ReleasedRecord | Argument::Record => {
                    releases = *argument == Argument::ReleasedRecord;
                    let expected = match releases {
                        true => Expected::Record,
                        false => Expected::EventRecord,
                    };
                    match value {
                        Value::Record { event, offset, .. }
                            if offset.known() == Some(0) && (releases || event) => {}
                        _ => return Err(wrong(expected)),
                    }
                }
            }
        }
        let index = self.index(at, state, helper, map);
        if releases {
            state.release_record();
        }
        let result = match helper.returns() {
            Returns::Scalar => Value::ANY_NUMBER,
            Returns::AtMost(most) => Value::Number(Number::between(0, most)),
            Returns::EntryData => Value::EntryData(Number::constant(0)),
            Returns::RecordOrNull => {
                if let Some(reserved_at) = state.record {
                    return Err(Cause::RecordHeld { reserved_at });
                }
                state.record = Some(at as u16);
                Value::RecordOrNull {
                    size: record_bytes,
                    event: helper == Helper::EventReserve,
                }
            }
            Returns::ValueOrNull => {
                let (map, entries) = map.map_or((MapIndex(0), 0), |(map, def)| (map, def.entries));
                state.forget_site(at as u16);
                match index {
                    Some(most) if most < entries.into() => Value::MapValue {
                        map,
                        offset: Number::constant(0),
                    },
                    _ => Value::ValueOrNull {
                        map,
                        site: Some(at as u16),
                    },
                }
            }
        };
        for lost in [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
            state.set(lost, Value::Unset);
        }
        state.set(Reg::R0, result);
        Ok(())
    }

    fn note_map(&mut self, at: usize, map: MapIndex) -> Result<(), Cause> {
        let known = &mut self.findings[at].fact.map;
        match *known {
            Some(first) if first != map => Err(Cause::MixedMaps { first, second: map }),
            _ => {
                *known = Some(map);
                Ok(())
            }
        }
    }

    /// The greatest index that the call can mean, if there is one, and notes it.
    fn index(
        &mut self,
        at: usize,
        state: &State,
        helper: Helper,
        map: Option<(MapIndex, &crate::MapDef)>,
    ) -> Option<u64> {
        let of_array =
            map.is_some_and(|(_, def)| matches!(def.kind, MapKind::Array | MapKind::PerCpuArray));
        let index = match (helper, state.get(Reg::R2)) {
            (Helper::Add, Value::Number(index)) => Some(index.most()),
            (Helper::MapLookup, Value::Stack(key)) if of_array => {
                let key = key.known().and_then(|at| state.load(at as i64, 4).ok());
                match key {
                    Some(Value::Number(key)) if key.most() < u32::MAX.into() => Some(key.most()),
                    _ => None,
                }
            }
            _ => None,
        };
        let finding = &mut self.findings[at];
        match index {
            Some(index) => {
                let before = finding.fact.most_index.unwrap_or(0);
                finding.fact.most_index = Some(before.max(index));
            }
            None => finding.any_index = true,
        }
        index
    }
}

fn known(value: Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.known(),
        _ => None,
    }
}

/// The register of an operand. A constant has none and is never refused.
const fn register_of(operand: Operand) -> Reg {
    match operand {
        Operand::Reg(reg) => reg,
        Operand::Imm(_) => Reg::R0,
    }
}

/// The content of an operand.
fn operand(state: &State, operand: Operand) -> Result<Value, Cause> {
    match operand {
        Operand::Imm(imm) => Ok(Value::constant(imm as u64)),
        Operand::Reg(reg) => match state.get(reg) {
            Value::Unset => Err(Cause::Register {
                reg,
                expected: Expected::Any,
                found: Value::Unset,
            }),
            value => Ok(value),
        },
    }
}

/// The number in a register.
fn number(state: &State, reg: Reg) -> Result<Number, Cause> {
    match state.get(reg) {
        Value::Number(number) => Ok(number),
        found => Err(Cause::Register {
            reg,
            expected: Expected::Number,
            found,
        }),
    }
}

/// The number in a register that is calculated with.
fn arithmetic(state: &State, reg: Reg) -> Result<Number, Cause> {
    match state.get(reg) {
        Value::Number(number) => Ok(number),
        Value::Unset => number(state, reg),
        found => Err(Cause::Arithmetic { reg, found }),
    }
}

/// The result of an operation.
fn alu(state: &State, width: Width, op: AluOp, dst: Reg, with: Operand) -> Result<Value, Cause> {
    let second = operand(state, with)?;
    if op == AluOp::Mov {
        return match (width, second) {
            (Width::W64, value) => Ok(value),
            (Width::W32, Value::Number(number)) => Ok(Value::Number(number.low(32))),
            (Width::W32, found) => Err(Cause::Arithmetic {
                reg: register_of(with),
                found,
            }),
        };
    }
    let first = operand(state, Operand::Reg(dst))?;
    match (width, op, first, second) {
        (_, _, Value::Number(a), Value::Number(b)) => Ok(Value::Number(a.alu(width, op, b))),
        (Width::W64, AluOp::Add | AluOp::Sub, pointer, Value::Number(distance)) => {
            moved(op, (dst, pointer), (register_of(with), distance))
        }
        (Width::W64, AluOp::Add, Value::Number(distance), pointer) => {
            moved(op, (register_of(with), pointer), (dst, distance))
        }
        (_, _, Value::Number(_), found) => Err(Cause::Arithmetic {
            reg: register_of(with),
            found,
        }),
        (_, _, found, _) => Err(Cause::Arithmetic { reg: dst, found }),
    }
}

/// A pointer, moved by a number.
fn moved(
    op: AluOp,
    (reg, pointer): (Reg, Value),
    (distance_reg, distance): (Reg, Number),
) -> Result<Value, Cause> {
    let mut moved = pointer;
    let (Value::Stack(offset)
    | Value::MapValue { offset, .. }
    | Value::Record { offset, .. }
    | Value::EntryData(offset)) = &mut moved
    else {
        return Err(Cause::Arithmetic {
            reg,
            found: pointer,
        });
    };
    let is_near = |number: Number| {
        -MOST_DISTANCE <= number.least_signed() && number.most_signed() <= MOST_DISTANCE
    };
    if !is_near(distance) {
        return Err(Cause::Register {
            reg: distance_reg,
            expected: Expected::Distance,
            found: Value::Number(distance),
        });
    }
    *offset = offset.alu(Width::W64, op, distance);
    match is_near(*offset) {
        true => Ok(moved),
        false => Err(Cause::Far { reg, found: moved }),
    }
}

/// The facts where a branch is taken, and where it is not.
fn branch_on(
    state: &State,
    width: Width,
    condition: Condition,
    dst: Reg,
    with: Operand,
) -> Result<(Option<Change>, Option<Change>), Cause> {
    let second = operand(state, with)?;
    let first = operand(state, Operand::Reg(dst))?;
    if let (Value::Number(a), Value::Number(b)) = (first, second) {
        let change = |known: branch::Known| {
            known.map(|(a, b)| Change::Numbers {
                dst: (dst, a),
                operand: match with {
                    Operand::Reg(reg) => Some((reg, b)),
                    Operand::Imm(_) => None,
                },
            })
        };
        return Ok((
            change(branch::taken(width, condition, a, b)),
            change(branch::not_taken(width, condition, a, b)),
        ));
    }
    // One of them is a pointer: only a comparison with null is meant.
    let (reg, pointer, number) = match (first, second) {
        (Value::Number(_), pointer) => (register_of(with), pointer, first),
        (pointer, number) => (dst, pointer, number),
    };
    let is_equal = match condition {
        Condition::Equal => true,
        Condition::NotEqual => false,
        _ => {
            return Err(Cause::Comparison {
                reg,
                found: pointer,
            });
        }
    };
    if width != Width::W64 || known(number) != Some(0) {
        return Err(Cause::Comparison {
            reg,
            found: pointer,
        });
    }
    let resolved = |is_null| match pointer {
        Value::ValueOrNull { .. } => Some(Change::Value { reg, is_null }),
        Value::RecordOrNull { .. } => Some(Change::Record { is_null }),
        // Every other pointer is not null.
        _ => (!is_null).then_some(Change::Nothing),
    };
    Ok((resolved(is_equal), resolved(!is_equal)))
}
