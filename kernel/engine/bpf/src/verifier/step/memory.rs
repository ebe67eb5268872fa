//! Loads, stores and atomic operations: which memory a pointer reaches, and what is in it then.
//!
//! A pointer is a region and the range of its distance from the region's beginning. All of the
//! range must lie in the region. Stack at a known distance has known content. A write to stack
//! somewhere in a range may have changed all of it.

use super::{
    Stepper,
    values::{number, operand, register_of},
};
use crate::{
    AtomicOp, Memory, Operand, Reg, STACK_BYTES, Size, context,
    verifier::{
        Cause, Expected, Region,
        number::Number,
        state::{State, Value},
    },
};

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

impl Stepper<'_> {
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

    pub(super) fn load(
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

    pub(super) fn store(
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
    pub(super) fn atomic(
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
    pub(super) fn read_by_helper(
        &mut self,
        state: &State,
        reg: Reg,
        bytes: u32,
    ) -> Result<(), Cause> {
        match self.place(reg, state.get(reg), 0, bytes)? {
            Place::Stack(from) => state.check_written(from, bytes)?,
            Place::SomewhereInStack { from, bytes } => state.check_written(from, bytes)?,
            Place::Elsewhere => {}
        }
        Ok(())
    }

    /// A helper writes so many bytes of memory, all of them.
    pub(super) fn written_by_helper(
        &mut self,
        state: &mut State,
        reg: Reg,
        bytes: u32,
    ) -> Result<(), Cause> {
        match self.place(reg, state.get(reg), 0, bytes)? {
            Place::Stack(from) => state.store_unknown(from, bytes)?,
            Place::SomewhereInStack { from, bytes } => state.store_somewhere(from, bytes),
            Place::Elsewhere => {}
        }
        Ok(())
    }
}
