//! Assignments to maps: counts, sums, histograms and plain values.
//!
//! What a map holds is noted first, so that the shape of its values is that of all assignments. A
//! value that is not there, or a key, assigns nothing.

use alloc::{format, string::String};

use bpf::{AluOp, Helper, MapDef, Reg};
use trace_interface::{
    shape::Shape,
    view::{Class, Scale},
};
use trace_language::{
    Diagnostic,
    tree::{Binary, Expression, ExpressionKind, Map as MapName, Span},
};

use super::{
    Program, blocks,
    keyed::{Use, use_key},
};
use crate::{
    Lowered, functions,
    number::{Counted, Kind, Number},
    values::{Val, pointer},
};

/// The most bytes of a value of a hash.
const MOST_VALUE: u32 = MapDef::MOST_HASH_VALUE_BYTES;

/// A map that would only get the number that another one has counted so far, and looks like one
/// that counts itself.
fn no_copy(map: &MapName, of: &MapName, span: Span) -> Diagnostic {
    let (map, of) = (&map.name.text, &of.name.text);
    Diagnostic::new(
        span,
        format!("`@{of}` counts or gathers, and `@{map}` would not go on with that"),
        format!(
            "for the number of now write `@{map} = (int64)@{of};`, and to count in both assign \
             the call to both"
        ),
    )
}

/// The most buckets of `lhist`.
const MOST_BUCKETS: u32 = 1000;

impl Program<'_, '_> {
    /// `@map[keys] = value`.
    pub(crate) fn assign_map(
        &mut self,
        map: &MapName,
        operation: Option<Binary>,
        value: &Expression,
        span: Span,
    ) -> Lowered<()> {
        if let (None, ExpressionKind::Call { name, arguments }) = (operation, &value.kind)
            && functions::is_aggregation(&name.text)
        {
            return self.aggregate(map, &name.text, arguments, value.span);
        }
        let number = self.values().tables.map(&map.name);
        if let Some(operation) = operation {
            // The entry that is read is the one that is changed.
            let map = &blocks::with_kept_keys(self, map)?;
            let old = Expression {
                kind: ExpressionKind::Map(map.clone()),
                span: map.span,
            };
            let with = self.code.count(value)?;
            let class = self.values().tables.maps[number as usize].class.clone();
            let is_sum = matches!(operation, Binary::Add | Binary::Subtract);
            let told = match (&class, &with.kind) {
                (Some(Class::Plain(of)), Kind::Integer { signed: true, .. })
                    if is_sum && *of == Shape::Unsigned(8) =>
                {
                    Some(Kind::SIGNED.shape())
                }
                // A number of the text says nothing of the sign of what is added to it.
                (Some(Class::Plain(of)), _) if *of != Shape::Literal => None,
                (_, kind) => Some(kind.shape()),
            };
            if let Some(shape) = told {
                let tables = &mut self.values().tables;
                tables.set_class(number, Class::Plain(shape), value.span)?;
            }
            let old = self.code.count(&old)?;
            let by_pointer = matches!(with.kind, Kind::Pointer { to: Some(_), .. });
            if matches!(operation, Binary::Add | Binary::Subtract) && !by_pointer {
                let key = self.code.key(number, map)?;
                let by = pointer::steps(self.values().types(), &old.kind, with.number);
                let delta = match operation {
                    Binary::Add => by,
                    _ => Number::alu(AluOp::Sub, Number::Constant(0), by),
                };
                self.code.add_shared(number, key, &delta, &with.present);
                return Ok(());
            }
            let new =
                self.values()
                    .arithmetic(operation, old, with, (map.span, value.span, span))?;
            return self.put(number, map, new, value.span);
        }
        if let ExpressionKind::Map(of) = &value.kind
            && self.values().tables.maps[number as usize].class.is_none()
        {
            let of_number = self.values().tables.map(&of.name);
            match self.values().tables.maps[of_number as usize].class {
                Some(Class::Plain(_)) => {}
                // What it holds is known the next time.
                None => {
                    self.code.key(of_number, of)?;
                    self.code.key(number, map)?;
                    return Ok(());
                }
                Some(_) => return Err(no_copy(map, of, value.span)),
            }
        }
        let new = self.code.value(value)?;
        let new = self.values().simplified(new, value.span);
        self.put(number, map, new, value.span)
    }

    /// Stores a value under a key.
    fn put(&mut self, number: u32, map: &MapName, value: Val, span: Span) -> Lowered<()> {
        let shape = self.values().shape(&value, false);
        if shape.bytes() > MOST_VALUE {
            return Err(Diagnostic::new(
                span,
                format!(
                    "this value has {} bytes; a map holds at most {MOST_VALUE}",
                    shape.bytes()
                ),
                "store a field of it, or print it",
            ));
        }
        self.values()
            .tables
            .set_class(number, Class::Plain(shape), span)?;
        if let Val::Number(counted) = &value {
            let kind = match &counted.kind {
                Kind::Literal => None,
                Kind::Integer { signed, .. } => Some(Kind::Integer {
                    bytes: 8,
                    signed: *signed,
                }),
                kind => Some(kind.clone()),
            };
            self.values().tables.set_kind(number, kind);
        }
        let key = self.code.key(number, map)?;
        let present = self.values().keys_present(key).and(value.present());
        let skip = self.code.asm.label();
        self.code.branch_on(&present, false, skip);
        let Some(Class::Plain(shape)) = self.values().tables.maps[number as usize].class.clone()
        else {
            return Ok(());
        };
        let bytes = shape.bytes().max(1).next_multiple_of(8);
        let stored = self.values().memory.take(bytes);
        let filled = shape.bytes() / 8 * 8;
        if filled < bytes {
            self.code.asm.store_constant(stored.at(filled), 8, 0);
        }
        self.code.store(&value, stored, &shape, span)?;
        let (_, values, key_span) = self.values().keys[key].clone();
        let place = self.code.key_in_stack(number, &values, 0, key_span)?;
        use_key(&mut self.code, number, place, Use::Change);
        self.code.asm.map(Reg::R1, number);
        self.code.asm.address(Reg::R2, place);
        self.code.asm.address(Reg::R3, stored);
        self.code.asm.mov(Reg::R4, 0);
        self.code.asm.call(Helper::MapUpdate);
        use_key(&mut self.code, number, place, Use::Changed);
        self.code.asm.place(skip);
        Ok(())
    }

    /// `@map[keys] = sum(value)` and the like.
    fn aggregate(
        &mut self,
        map: &MapName,
        function: &str,
        arguments: &[Expression],
        span: Span,
    ) -> Lowered<()> {
        let wanted = match function {
            "count" => 0,
            "lhist" => 4,
            "tseries" => 3,
            _ => 1,
        };
        let may_have_more = matches!(function, "hist" | "tseries");
        if arguments.len() != wanted && !(may_have_more && arguments.len() == wanted + 1) {
            return Err(Diagnostic::new(
                span,
                format!(
                    "`{function}` takes {}, and there are {}",
                    plural(wanted),
                    arguments.len()
                ),
                match function {
                    "count" => "write count()",
                    "lhist" => "write lhist(value, from, to, step)",
                    "tseries" => "write tseries(value, interval, intervals)",
                    _ => "give it the value",
                },
            ));
        }
        if function == "tseries" && self.values().tables.options.refuses_series {
            return Err(Diagnostic::new(
                span,
                "the program refuses tseries itself, by unstable_tseries=error",
                "set unstable_tseries=enable, or take the setting out",
            ));
        }
        let number = self.values().tables.map(&map.name);
        let value = match arguments.first() {
            Some(argument) => Some(self.quantity(argument)?),
            None => None,
        };
        let is_open = self.values().tables.open_kind() == Kind::Literal;
        // A number of the text that is not negative is of the others' kind, and so is what may
        // become one.
        let signed = value.as_ref().is_some_and(|value| {
            let constant = value.number.constant();
            let is_natural = constant.map_or(is_open, |of| of.cast_signed() >= 0);
            value.kind.is_signed() && !(value.kind == Kind::Literal && is_natural)
        });
        let class = match function {
            "count" => Class::Count,
            "sum" => Class::Sum { signed },
            "avg" => Class::Average { signed },
            "stats" => Class::Statistics { signed },
            "min" => Class::Least { signed },
            "max" => Class::Most { signed },
            "hist" => {
                let bits = arguments.get(1);
                let bits = bits.map(|of| self.code.constant(of, 0..=Scale::MOST_BITS.into()));
                Class::Histogram(match bits.transpose()? {
                    None | Some(0) => Scale::Log2,
                    Some(bits) => Scale::Split { bits: bits as u8 },
                })
            }
            "tseries" => Class::Series(self.series(arguments, signed)?),
            _ => Class::Histogram(self.scale(arguments, span)?),
        };
        self.values().tables.set_class(number, class, span)?;
        let class = self.values().tables.maps[number as usize]
            .class
            .clone()
            .unwrap_or(Class::Count);
        let key = self.code.key(number, map)?;
        let mut present = self.values().keys_present(key);
        if let Some(value) = &value {
            present = present.and(value.present.clone());
        }
        let skip = self.code.asm.label();
        self.code.branch_on(&present, false, skip);
        let (_, keys, key_span) = self.values().keys[key].clone();
        match (&class, value) {
            (Class::Histogram(scale), Some(value)) => {
                self.code
                    .count_in_bucket(number, *scale, &keys, value, key_span)?;
            }
            (Class::Series(series), Some(value)) => {
                self.code
                    .gather_in_time(number, series, &keys, &value.number, skip, key_span)?;
            }
            (Class::Count, _) | (_, None) => {
                if keys.is_empty() {
                    self.code.asm.map(Reg::R1, number);
                    self.code.asm.mov(Reg::R2, 0);
                    self.code.asm.mov(Reg::R3, 1);
                    self.code.asm.call(Helper::Add);
                } else {
                    let place = self.code.key_in_stack(number, &keys, 0, key_span)?;
                    self.code.asm.map(Reg::R1, number);
                    self.code.asm.address(Reg::R2, place);
                    self.code.asm.mov(Reg::R3, 1);
                    self.code.asm.call(Helper::AddByKey);
                }
            }
            (class, Some(value)) => {
                self.code
                    .gather(number, class, &keys, &value.number, skip, key_span)?;
            }
        }
        self.code.asm.place(skip);
        Ok(())
    }

    /// A number that can be added up and compared by size.
    fn quantity(&mut self, argument: &Expression) -> Lowered<Counted> {
        let counted = self.code.count(argument)?;
        match counted.kind {
            Kind::Pointer { to: Some(_), .. } => Err(Diagnostic::new(
                argument.span,
                "this is a pointer, and no quantity",
                "take what it leads to (*pointer), or make it a number: (uint64)pointer",
            )),
            ref kind if !kind.is_number() => Err(Diagnostic::new(
                argument.span,
                "this value is no quantity",
                "count by it: @[value] = count()",
            )),
            _ => Ok(counted),
        }
    }

    /// `delete(@map[key])`.
    pub(crate) fn delete(&mut self, map: &MapName) -> Lowered<()> {
        let number = self.values().tables.map(&map.name);
        let key = self.code.key(number, map)?;
        let skip = self.code.asm.label();
        let present = self.values().keys_present(key);
        self.code.branch_on(&present, false, skip);
        let class = self.values().tables.maps[number as usize].class.clone();
        match class.as_ref().and_then(Class::parts) {
            Some(parts) => self.code.delete_parts(number, parts, key, map.span)?,
            None => {
                let place = self.code.store_key(key);
                self.code.asm.map(Reg::R1, number);
                self.code.asm.address(Reg::R2, place);
                self.code.asm.call(match class {
                    Some(Class::Plain(_)) | None => Helper::MapDelete,
                    Some(_) => Helper::DeleteOfCpus,
                });
            }
        }
        self.code.asm.place(skip);
        Ok(())
    }

    /// `zero(@map[key])`.
    pub(crate) fn zero_key(&mut self, map: &MapName) -> Lowered<()> {
        let number = self.values().tables.map(&map.name);
        let Some(Class::Plain(shape)) = self.values().tables.maps[number as usize].class.clone()
        else {
            // A count that is zero is one that nothing was counted in.
            return self.delete(map);
        };
        let key = self.code.key(number, map)?;
        let skip = self.code.asm.label();
        let present = self.values().keys_present(key);
        self.code.branch_on(&present, false, skip);
        let bytes = shape.bytes().max(1).next_multiple_of(8);
        let zeros = self.values().memory.take(bytes);
        self.code.asm.zero(zeros, bytes);
        let place = self.code.store_key(key);
        self.code.asm.map(Reg::R1, number);
        self.code.asm.address(Reg::R2, place);
        self.code.asm.address(Reg::R3, zeros);
        // Only if the key is there.
        self.code.asm.mov(Reg::R4, 2);
        self.code.asm.call(Helper::MapUpdate);
        self.code.asm.place(skip);
        Ok(())
    }

    /// The scale of `lhist(value, from, to, step)`.
    pub(crate) fn scale(&mut self, arguments: &[Expression], span: Span) -> Lowered<Scale> {
        let mut bound = |index: usize| {
            let argument = &arguments[index];
            let counted = self.code.count(argument)?;
            let number = counted.number.constant().map(u64::cast_signed);
            number.ok_or_else(|| {
                Diagnostic::new(
                    argument.span,
                    "this must be a number of the text",
                    "for example lhist(value, 0, 100, 10)",
                )
            })
        };
        let (from, to, step) = (bound(1)?, bound(2)?, bound(3)?);
        if step <= 0 || to <= from {
            return Err(Diagnostic::new(
                span,
                "the ranges of lhist begin below their end, and have a width above 0",
                "for example lhist(value, 0, 100, 10)",
            ));
        }
        let scale = Scale::Linear { from, to, step };
        match scale.steps() <= MOST_BUCKETS {
            true => Ok(scale),
            false => Err(Diagnostic::new(
                span,
                format!("these are more than {MOST_BUCKETS} ranges, which do not fit"),
                "use a larger step",
            )),
        }
    }
}

/// "1 argument".
fn plural(count: usize) -> String {
    match count {
        0 => "no arguments".into(),
        1 => "1 argument".into(),
        count => format!("{count} arguments"),
    }
}
