//! Where the value of an argument or a variable is at a place of the code: in registers and memory,
//! piece by piece.
//!
//! An argument has three descriptions, and none of them is always right:
//! - what the debug information says for the address;
//! - for an argument that is put into the frame, the register that it came in, until the
//!   instruction that stores it ([`stored`]);
//! - at the entry, what is said for one of the first instructions after it, brought back over the
//!   instructions between ([`DebugInfo::moved`]).
//!
//! The one that leaves the fewest bytes without a place is taken. If there is none, the message
//! says at which lines the value is there.

use std::ops::Range;

use trace_interface::symbols::{
    Expression, Moment, Piece, ProbePlace, Source, TypeId, Unavailable, Variable,
};

use crate::{
    DebugInfo, Known,
    epilogue::GivenBack,
    index::FunctionRow,
    lines, names,
    scope::{Local, Location, Scope, ScopeKind},
    types, value,
};

impl DebugInfo {
    pub(crate) fn pieces(
        &self,
        known: &Known,
        row: FunctionRow,
        place: ProbePlace,
        local: &Local,
        scope: &Scope,
    ) -> Result<Variable, Unavailable> {
        let address = match place.moment {
            Moment::At => place.address,
            Moment::Return => row.address,
        };
        let moment = match place.moment {
            Moment::Return => value::Moment::Return,
            Moment::At if address == row.address => value::Moment::Entry,
            Moment::At => value::Moment::Inside,
        };
        let session = self.session();
        let type_id = local.type_entry.map_or(types::UNIT, TypeId);
        let unknown = |why: &str| self.no_place(local, scope, address, why);
        let bytes = types::size(&session, type_id)
            .ok_or_else(|| unknown("the size of its type is not known"))?;
        let found = |pieces| Ok(Variable { type_id, pieces });
        if bytes == 0 {
            return found(Vec::new());
        }
        let encoding = self
            .index
            .unit_of(scope.entry)
            .and_then(|unit| session.unit(unit))
            .map(|unit| unit.encoding())
            .ok_or_else(|| unknown("its debug information is damaged"))?;
        if let Location::Constant(content) = &local.location {
            let mut pieces = Vec::new();
            value::constant(content, bytes, &mut pieces).map_err(|why| unknown(&why))?;
            return found(pieces);
        }
        let frame_base = || {
            known
                .frames
                .base(known.frame_base.as_deref(), address, moment)
                .ok_or_else(|| "where its frame is here is not known".to_string())
        };
        let table = self
            .index
            .unit_of(known.scope.entry)
            .map(|unit| self.lines(unit))
            .unwrap_or_default();
        let context = value::Context {
            encoding,
            slide: self.slide,
            moment,
            frame_base: &frame_base,
            frame_pointer: known.frames.frame_pointer(address, moment),
            epilogue: lines::at(&table, address).is_some_and(|row| row.epilogue),
            given_back: GivenBack::before(&self.image, row.address, row.bytes, address),
        };
        let own = local.argument && scope.kind == ScopeKind::Function;
        let moved = || {
            own.then(|| self.moved(known, local, address, bytes, &context))
                .flatten()
        };
        let Some(expression) = local.location.at(address) else {
            return moved().ok_or_else(|| unknown(value::GONE)).and_then(found);
        };
        let fixed = matches!(local.location, Location::Fixed(_));
        let slot = value::frame_slot(expression, encoding);
        let base = known.frame_base.as_deref();
        if let Some(slot) = slot.filter(|slot| {
            let is_put_there = own && fixed;
            is_put_there && known.frames.is_own(base, slot.offset)
        }) {
            let pieces = match slot.is_address {
                true => stored(known, address, slot.offset, 8, &context)
                    .and_then(|address| behind(&address, bytes).ok_or(UNKNOWN_STORE.into())),
                false => stored(known, address, slot.offset, bytes, &context),
            };
            return pieces.map_err(|why| unknown(&why)).and_then(found);
        }
        let mut pieces = value::pieces(expression, bytes, &context).map_err(|why| unknown(&why))?;
        if let Some(slot) = slot.filter(|slot| !slot.is_address) {
            let stacked = self.stacked((row, known), slot.offset, bytes, pieces);
            pieces = stacked.map_err(unknown)?;
        }
        match moved() {
            Some(moved) if missing(&moved) < missing(&pieces) => found(moved),
            _ => found(pieces),
        }
    }

    /// An argument at the entry, of which the debug information says where it is from a later one
    /// of the first instructions on.
    fn moved(
        &self,
        known: &Known,
        local: &Local,
        address: u64,
        bytes: u64,
        context: &value::Context,
    ) -> Option<Vec<Piece>> {
        let Location::List(list) = &local.location else {
            return None;
        };
        if context.moment == value::Moment::Inside {
            return None;
        }
        let inside = value::Context {
            encoding: context.encoding,
            slide: context.slide,
            moment: value::Moment::Inside,
            frame_base: context.frame_base,
            frame_pointer: None,
            epilogue: false,
            given_back: GivenBack::default(),
        };
        let (range, expression) = list
            .iter()
            .filter(|(range, _)| address < range.start && range.start <= known.prologue.end)
            .min_by_key(|(range, _)| range.start)?;
        let mut pieces = value::pieces(expression, bytes, &inside).ok()?;
        for piece in &mut pieces {
            let moved = |expression: &Expression| {
                let expression = known.prologue.at_entry(expression, range.start)?;
                Some(at_moment(expression, context.moment))
            };
            piece.source = match &piece.source {
                Source::Memory(place) => Source::Memory(moved(place)?),
                Source::Value(value) => Source::Value(moved(value)?),
                Source::Missing => Source::Missing,
            };
        }
        Some(pieces)
    }

    /// The reason and the help for a local that has no place at an address.
    fn no_place(&self, local: &Local, scope: &Scope, address: u64, why: &str) -> Unavailable {
        let ranges: Vec<Range<u64>> = match &local.location {
            Location::List(list) => list.iter().map(|(range, _)| range.clone()).collect(),
            Location::Fixed(_) | Location::Constant(_) => scope.ranges.clone(),
            Location::Nowhere => Vec::new(),
        };
        let what = if local.argument {
            "argument"
        } else {
            "variable"
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) = ranges
            .into_iter()
            .partition(|range| range.contains(&address));
        let help = if !elsewhere.is_empty() {
            self.where_it_is(&elsewhere, address)
        } else if !here.is_empty() {
            crate::REGISTERS_INSTEAD.into()
        } else {
            match (local.argument, scope.kind) {
                (true, ScopeKind::Function) => {
                    "the function has no use for it, so nothing keeps it; \
                                           at the entry argN gives the raw registers"
                        .to_string()
                }
                _ => "it is nowhere in the compiled code: probe where its parts are computed"
                    .to_string(),
            }
        };
        Unavailable {
            reason: format!("the {what} {} is not there: {why}", local.name),
            help,
        }
    }

    /// The lines of some ranges of addresses, and where the first one begins.
    pub(crate) fn where_it_is(&self, ranges: &[Range<u64>], near: u64) -> String {
        let mut lines: Vec<u32> = Vec::new();
        let row = self.index.function_at(near);
        if let Some(row) = row
            && let Some(unit) = row.entry.and_then(|entry| self.index.unit_of(entry))
        {
            let whole = row.address..row.address + row.bytes;
            let table = self.lines(unit);
            let file = lines::at(&table, row.address).map(|row| row.file);
            lines = table
                .iter()
                .filter(|row| whole.contains(&row.address))
                .filter(|row| {
                    Some(row.file) == file
                        && row.line > 0
                        && ranges.iter().any(|range| range.contains(&row.address))
                })
                .map(|row| row.line)
                .collect();
            lines.sort_unstable();
            lines.dedup();
        }
        let at = ranges.iter().map(|range| range.start).min();
        let at = at.zip(row).map_or_else(String::new, |(at, row)| {
            let name = self.index.name(row.path);
            let name = names::segments(name).pop().unwrap_or_default().to_string();
            format!("{name}+{:#x}", at.wrapping_sub(row.address))
        });
        match runs(&lines) {
            lines if lines.is_empty() => format!("it is there at {at}"),
            lines => format!("it is there at lines {lines} (from {at} on)"),
        }
    }
}

/// An expression of the registers at the entry, read at a moment.
fn at_moment(expression: Expression, moment: value::Moment) -> Expression {
    match expression {
        Expression::Register(register) => moment.register(register),
        Expression::Load { address, bytes } => Expression::Load {
            address: Box::new(at_moment(*address, moment)),
            bytes,
        },
        Expression::Binary(operation, a, b) => Expression::Binary(
            operation,
            Box::new(at_moment(*a, moment)),
            Box::new(at_moment(*b, moment)),
        ),
        constant => constant,
    }
}

/// How many bytes are nowhere.
fn missing(pieces: &[Piece]) -> u64 {
    let missing = pieces
        .iter()
        .filter(|piece| piece.source == Source::Missing);
    missing.map(|piece| u64::from(piece.bytes)).sum()
}

/// Why [`stored`] does not know a place.
const UNKNOWN_STORE: &str = "when it is put into its place is not known";

/// The pieces of an argument that the first instructions of the function put into its frame: in the
/// register that it came in, as long as it has not been stored.
fn stored(
    known: &Known,
    address: u64,
    offset: i64,
    bytes: u64,
    context: &value::Context,
) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < bytes {
        let at = offset.saturating_add_unsigned(done);
        let mut stores = known.prologue.stores.iter();
        let store = stores.find(|store| {
            let base = known.frame_base.as_deref();
            store.offset == at && known.frames.is_base(base, store.base, store.address)
        });
        let store = store.ok_or(UNKNOWN_STORE)?;
        let part = store.bytes.min(bytes - done);
        let source = if address <= store.address {
            Source::Value(context.moment.register(store.register))
        } else {
            Source::Memory(value::in_frame(context, at, context.frame_base)?)
        };
        pieces.push(Piece {
            bytes: u32::try_from(part).map_err(|_| "it is too large")?,
            source,
        });
        done += part;
    }
    Ok(pieces)
}

/// The pieces of an argument whose address is known.
fn behind(address: &[Piece], bytes: u64) -> Option<Vec<Piece>> {
    let [only] = address else { return None };
    let address = match &only.source {
        Source::Value(address) => address.clone(),
        Source::Memory(place) => Expression::Load {
            address: Box::new(place.clone()),
            bytes: 8,
        },
        Source::Missing => return None,
    };
    let whole = Piece {
        bytes: u32::try_from(bytes).ok()?,
        source: Source::Memory(address),
    };
    Some(vec![whole])
}

/// Numbers as ranges: `3-5, 9`.
fn runs(numbers: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some(first) = rest.first() {
        let length = rest
            .iter()
            .zip(*first..)
            .take_while(|(number, expected)| *number == expected)
            .count();
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&first.to_string());
        if length > 1 {
            text.push_str(&format!("-{}", rest[length - 1]));
        }
        rest = &rest[length..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_each_other_are_a_range() {
        assert_eq!(runs(&[3, 4, 5, 9, 11, 12]), "3-5, 9, 11-12");
        assert_eq!(runs(&[7]), "7");
        assert_eq!(runs(&[]), "");
    }
}
