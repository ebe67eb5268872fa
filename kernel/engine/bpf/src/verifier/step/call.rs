//! Calls of helpers: what their arguments must be, and what is known of their results.
//!
//! Arguments are checked in order, because the size of memory follows its pointer, and a key
//! follows its map. Afterwards `r1` to `r5` are not set.

use super::{
    Stepper,
    values::{known, number},
};
use crate::{
    Argument, Helper, MOST_RECORD_BYTES, MapDef, MapIndex, MapKind, ProgramKind, Reg, Returns,
    verifier::{
        Cause, Expected,
        number::Number,
        state::{State, Value},
    },
};

/// The arguments of a call, as far as its result and its effects depend on them.
#[derive(Default)]
struct Given<'a> {
    map: Option<(MapIndex, &'a MapDef)>,
    record_bytes: u32,
    /// It gives the record back.
    releases: bool,
}

impl<'a> Stepper<'a> {
    pub(super) fn call(
        &mut self,
        at: usize,
        state: &mut State,
        helper: Helper,
    ) -> Result<(), Cause> {
        let kind = self.program.kind;
        let is_here = match helper {
            Helper::EntryData => kind.shared_bytes() > 0,
            Helper::ReturnAddress => matches!(kind, ProgramKind::Return { .. }),
            _ => true,
        };
        if !is_here {
            return Err(Cause::NotHere { helper });
        }
        let given = self.arguments(at, state, helper)?;
        let index = self.index(at, state, helper, given.map);
        if given.releases {
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
                    size: given.record_bytes,
                    event: helper == Helper::EventReserve,
                }
            }
            Returns::ValueOrNull => {
                let (map, entries) = given
                    .map
                    .map_or((MapIndex(0), 0), |(map, def)| (map, def.entries));
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

    /// Checks the arguments of a call, and carries out what it does to memory of the program.
    fn arguments(
        &mut self,
        at: usize,
        state: &mut State,
        helper: Helper,
    ) -> Result<Given<'a>, Cause> {
        let program = self.program;
        let mut given = Given::default();
        // A pointer to memory whose size is the next argument, and whether it is written.
        let mut memory = None;
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
                    let def = &program.maps[usize::from(index.0)];
                    if !kinds.contains(&def.kind) {
                        return Err(wrong(Expected::Map(kinds)));
                    }
                    if helper == Helper::Add && def.value_size < 8 {
                        return Err(wrong(Expected::Counters));
                    }
                    self.note_map(at, index)?;
                    given.map = Some((index, def));
                }
                // The map is the first argument of each helper that takes keys or values.
                Argument::Key => {
                    let bytes = given.map.map_or(0, |(_, def)| def.key_size);
                    self.read_by_helper(state, reg, bytes)?;
                }
                Argument::Value => {
                    let bytes = given.map.map_or(0, |(_, def)| def.value_size);
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
                    given.record_bytes = known(value)
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
                    given.releases = *argument == Argument::ReleasedRecord;
                    let expected = match given.releases {
                        true => Expected::Record,
                        false => Expected::EventRecord,
                    };
                    match value {
                        Value::Record { event, offset, .. }
                            if offset.known() == Some(0) && (given.releases || event) => {}
                        _ => return Err(wrong(expected)),
                    }
                }
            }
        }
        Ok(given)
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
        map: Option<(MapIndex, &MapDef)>,
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
