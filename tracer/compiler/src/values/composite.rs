//! Tuples, records and arrays of the program, and the letters of texts: their parts.
//!
//! A composite value is calculated when it is stored ([`Val::Tuple`], [`Val::Record`]), or is
//! stored already. One in a map is copied into the stack first. Two of them are equal if all their
//! parts are.

use alloc::{boxed::Box, format, rc::Rc, vec::Vec};

use bpf::Condition;
use trace_interface::{shape::Shape, symbols::Type};
use trace_language::{
    Diagnostic,
    tree::{Binary, Expression, Name, Span, TypeKind, TypeName},
};

use super::{Copied, Either, Val, Values};
use crate::{
    Lowered,
    memory::Place,
    names,
    number::{Counted, Kind, Number, Test},
    types::integer,
};

/// `(name=value, name=value)`.
pub(crate) fn record(values: &mut Values<'_, '_>, fields: &[(Name, Expression)]) -> Lowered<Val> {
    let mut record = Vec::new();
    for (name, value) in fields {
        record.push((Rc::from(&*name.text), item(values, value)?));
    }
    Ok(Val::Record(record))
}

/// A part of a tuple or record: an integer of the source is a number there as elsewhere.
pub(crate) fn item(values: &mut Values<'_, '_>, expression: &Expression) -> Lowered<Val> {
    let value = values.value(expression)?;
    Ok(values.simplified(value, expression.span))
}

pub(crate) fn is_composite(values: &Values<'_, '_>, value: &Val) -> bool {
    match value {
        Val::Tuple(_) | Val::Record(_) => true,
        Val::Stored { shape, .. } | Val::Element { shape, .. } => has_parts(shape),
        Val::Bytes { .. } => true,
        Val::Object(object) => {
            matches!(
                &*values.types().describe(object.type_id),
                Type::Array { .. }
            )
        }
        _ => false,
    }
}

/// A composite value whose parts can be asked for.
pub(crate) fn at_hand(values: &mut Values<'_, '_>, value: Val, span: Span) -> Val {
    match &value {
        Val::Element { .. } | Val::Object(_) if is_composite(values, &value) => {
            let shape = values.shape(&value, false);
            values.copied(Copied::Value(value), shape, span)
        }
        _ => value,
    }
}

/// The parts of a composite value that is at hand.
pub(crate) fn parts(value: &Val) -> Option<Vec<Val>> {
    Some(match value {
        Val::Tuple(items) => items.clone(),
        Val::Record(fields) => fields.iter().map(|(_, value)| value.clone()).collect(),
        Val::Stored { place, shape } => {
            let mut place = *place;
            let stored = |shape: &Shape| {
                let part = stored(place, shape);
                place = place.at(shape.bytes());
                part
            };
            match shape {
                Shape::Tuple(items) | Shape::Items { items, .. } => {
                    items.iter().map(stored).collect()
                }
                Shape::Record(fields) => fields.iter().map(|(_, of)| of).map(stored).collect(),
                Shape::Array {
                    of, stored: many, ..
                } => (0..*many).map(|_| &**of).map(stored).collect(),
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// The names of the parts of a record.
pub(crate) fn names_of(value: &Val) -> Vec<Rc<str>> {
    match value {
        Val::Record(fields) => fields.iter().map(|(name, _)| name.clone()).collect(),
        Val::Stored {
            shape: Shape::Record(fields),
            ..
        } => fields.iter().map(|(name, _)| name.clone()).collect(),
        _ => Vec::new(),
    }
}

/// `.0` of a tuple, `.name` of a record. None: it is neither.
pub(crate) fn part(values: &mut Values<'_, '_>, value: &Val, name: &Name) -> Lowered<Option<Val>> {
    let Some(mut parts) = parts(value) else {
        return Ok(None);
    };
    let names = names_of(value);
    let found = match names.is_empty() {
        true => name
            .text
            .parse()
            .ok()
            .filter(|number| *number < parts.len()),
        false => names.iter().position(|known| **known == *name.text),
    };
    match found {
        Some(number) => Ok(Some(with_sign(values, parts.swap_remove(number)))),
        None if names.is_empty() => Err(Diagnostic::new(
            name.span,
            format!("the tuple has no field `{}`", name.text),
            match parts.len() {
                0 => "it has none".into(),
                many => format!("it has .0 to .{}", many - 1),
            },
        )),
        None => Err(Diagnostic::new(
            name.span,
            format!("the record has no field `{}`", name.text),
            format!("it has .{}", names.join(", .")),
        )),
    }
}

/// A number that may be calculated several times: one that may be another each time is calculated
/// before.
pub(crate) fn once(values: &mut Values<'_, '_>, counted: Counted, span: Span) -> Counted {
    if counted.number.is_steady() {
        return counted;
    }
    let kind = counted.kind.clone();
    let value = Val::Number(counted);
    let present = value.present();
    let number = match values.copied(Copied::Value(value), Shape::Unsigned(8), span) {
        Val::Stored { place, .. } => Number::Own(place),
        _ => Number::Constant(0),
    };
    Counted {
        number,
        kind,
        present,
    }
}

/// An address that may be read from several times: see [`once`].
pub(crate) fn steady_address(values: &mut Values<'_, '_>, address: Number, span: Span) -> Number {
    match address.is_fickle() {
        true => {
            let kind = Kind::UNSIGNED;
            let present = Test::Constant(true);
            let number = address;
            let counted = Counted {
                number,
                kind,
                present,
            };
            once(values, counted, span).number
        }
        false => address,
    }
}

/// A key that is looked up several times.
pub(crate) fn steady(values: &mut Values<'_, '_>, value: Val, span: Span) -> Val {
    match value {
        Val::Number(counted) if counted.number.is_fickle() => {
            Val::Number(once(values, counted, span))
        }
        Val::Tuple(items) => {
            let items = items.into_iter();
            Val::Tuple(items.map(|item| steady(values, item, span)).collect())
        }
        Val::Record(fields) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name, steady(values, value, span)));
            Val::Record(fields.collect())
        }
        value => value,
    }
}

/// A condition that is asked for several times.
pub(crate) fn steady_test(values: &mut Values<'_, '_>, test: Test, span: Span) -> Test {
    let number = Number::test(test);
    let counted = Counted {
        number,
        kind: Kind::Boolean,
        present: Test::Constant(true),
    };
    Test::not_zero(once(values, counted, span).number)
}

/// `value[index]` of a value that is at hand. None: it is not composite, and no text.
pub(crate) fn part_at(
    values: &mut Values<'_, '_>,
    value: &Val,
    index: &Counted,
    span: Span,
) -> Lowered<Option<Val>> {
    let (place, of, count) = if values.is_text(value) {
        let place = text_place(values, value, span);
        (place, Shape::Signed(1), values.text_bytes(value))
    } else if let Some(mut parts) = parts(value) {
        match (value, index.number.constant()) {
            (_, Some(number)) if number < parts.len() as u64 => {
                return Ok(Some(with_sign(values, parts.swap_remove(number as usize))));
            }
            (
                Val::Stored {
                    place,
                    shape: Shape::Array { of, stored, .. },
                },
                None,
            ) if of.is_number() => (*place, (**of).clone(), *stored),
            (_, Some(_)) => {
                return Err(Diagnostic::new(
                    span,
                    format!("this has {} parts", parts.len()),
                    "the first one is [0]",
                ));
            }
            _ => {
                return Err(Diagnostic::new(
                    span,
                    "the parts of this value have types of their own",
                    "use an index that is a number of the text",
                ));
            }
        }
    } else {
        return Ok(None);
    };
    let number = match (index.number.constant(), Kind::stored(&of)) {
        (Some(number), _) if number >= u64::from(count) => {
            return Err(Diagnostic::new(
                span,
                format!("this has at most {count} bytes"),
                "the first one is [0]",
            ));
        }
        (Some(number), _) => return Ok(Some(stored(place.at(number as u32), &of))),
        (None, Some((kind, bytes, signed))) => Counted {
            number: Number::OwnElement {
                place,
                index: Box::new(index.number.clone()),
                count,
                bytes,
                signed,
            },
            kind,
            present: index.present.clone().and(Test::compare(
                Condition::Below,
                index.number.clone(),
                Number::Constant(count.into()),
            )),
        },
        (None, None) => return Ok(None),
    };
    Ok(Some(Val::Number(number)))
}

/// Whether a text has any letters.
pub(crate) fn is_filled(values: &mut Values<'_, '_>, value: &Val, span: Span) -> Test {
    if let Val::Literal(text) = value {
        return Test::Constant(!text.is_empty());
    }
    let first = Number::OwnPart {
        place: text_place(values, value, span),
        bytes: 1,
        signed: false,
    };
    value.present().and(Test::not_zero(first))
}

/// Where the letters of a text are.
fn text_place(values: &mut Values<'_, '_>, value: &Val, span: Span) -> Place {
    match value {
        Val::Stored {
            place,
            shape: Shape::Text(_),
        } => *place,
        Val::Stored {
            place,
            shape: Shape::Counted(_),
        } => place.at(8),
        _ => {
            let shape = Shape::Text(values.text_bytes(value));
            match values.copied(Copied::Value(value.clone()), shape, span) {
                Val::Stored { place, .. } => place,
                _ => Place::stack(-8),
            }
        }
    }
}

/// `==` and `!=` of composite values.
pub(crate) fn compare(
    values: &mut Values<'_, '_>,
    operation: Binary,
    (left, right): (Val, Val),
    spans: (Span, Span),
) -> Lowered<Val> {
    let test = match operation {
        Binary::Equal => equal(values, left, right, spans)?,
        Binary::NotEqual => equal(values, left, right, spans)?.negated(),
        _ => {
            return Err(Diagnostic::new(
                spans.0.to(spans.1),
                "values of several parts can be compared with == and != only",
                "take a part of each: .0, .name or [0]",
            ));
        }
    };
    Ok(Val::number(Number::test(test), Kind::Boolean))
}

/// Whether two values of any type are equal.
fn equal(values: &mut Values<'_, '_>, left: Val, right: Val, spans: (Span, Span)) -> Lowered<Test> {
    if values.is_text(&left) && values.is_text(&right) {
        return values.texts_equal(left, right, spans);
    }
    let (left, right) = (
        at_hand(values, left, spans.0),
        at_hand(values, right, spans.1),
    );
    let mut shape = values.shape(&left, false);
    let other = values.shape(&right, false);
    let merged = shape.merge(&other);
    if merged.is_some() && is_cut(&shape) {
        return Err(Diagnostic::new(
            spans.1,
            "only the first elements of this list are kept, so it is not compared as a whole",
            "compare elements of both: [0]",
        ));
    }
    if merged.is_none() {
        return Err(Diagnostic::new(
            spans.1,
            format!(
                "this is {}, and cannot be compared with {}",
                names::shape(&other),
                names::shape(&shape)
            ),
            "compare values of the same types",
        ));
    }
    if let Shape::Bytes(most) = shape {
        return Ok(bytes_equal(values, most, (left, right), spans));
    }
    let names = names_of(&left);
    let other_names = names_of(&right);
    let (Some(parts), Some(others)) = (parts(&left), parts(&right)) else {
        let left = values.as_number(left, spans.0)?;
        let right = values.as_number(right, spans.1)?;
        // Call stacks, too, are equal if their numbers are.
        if !left.kind.is_number() {
            let equal = Test::compare(Condition::Equal, left.number, right.number);
            return Ok(left.present.and(right.present).and(equal));
        }
        let span = spans.0.to(spans.1);
        let equal = values.arithmetic(Binary::Equal, left, right, (spans.0, spans.1, span))?;
        return Ok(Test::not_zero(values.as_number(equal, span)?.number));
    };
    let mut all = Test::Constant(true);
    for (index, part) in parts.into_iter().enumerate() {
        let name = names.get(index);
        let place = other_names.iter().position(|other| Some(other) == name);
        let other = others[place.unwrap_or(index)].clone();
        all = all.and(equal(values, part, other, spans)?);
    }
    Ok(all)
}

/// Whether the lengths and all bytes are equal.
fn bytes_equal(
    values: &mut Values<'_, '_>,
    most: u32,
    (left, right): (Val, Val),
    spans: (Span, Span),
) -> Test {
    let mut word_of = |value: Val, span| {
        let copied = values.copied(Copied::Value(value), Shape::Bytes(most), span);
        let place = match copied {
            Val::Stored { place, .. } => place,
            _ => Place::stack(-8),
        };
        move |word: u32| Number::Own(place.at(8 * word))
    };
    let (left, right) = (word_of(left, spans.0), word_of(right, spans.1));
    (0..=most / 8)
        .map(|word| Test::compare(Condition::Equal, left(word), right(word)))
        .fold(Test::Constant(true), Test::and)
}

/// A value as it is kept in a variable: a number or a text that is not there is zero or empty, also
/// as a part.
pub(crate) fn kept(values: &mut Values<'_, '_>, value: Val, span: Span) -> Val {
    let value = values.simplified(value, span);
    match value {
        Val::Tuple(items) => {
            let items = items.into_iter();
            Val::Tuple(items.map(|item| kept(values, item, span)).collect())
        }
        Val::Record(fields) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(name, value)| (name, kept(values, value, span)));
            Val::Record(fields.collect())
        }
        Val::Number(counted) => {
            let kind = counted.kind.clone();
            Val::number(counted.or_zero(), kind)
        }
        value if values.is_text(&value) && value.present() != Test::Constant(true) => {
            let empty = Val::Literal("".into());
            values.chosen_text(value.present(), value, empty, span)
        }
        value => value,
    }
}

/// One of two composite values.
pub(crate) fn chosen(
    values: &mut Values<'_, '_>,
    test: Test,
    (then, otherwise): (Val, Val),
    span: Span,
) -> Lowered<Val> {
    let (then, otherwise) = (kept(values, then, span), kept(values, otherwise, span));
    let mut shape = values.shape(&then, true);
    let other = values.shape(&otherwise, true);
    if shape.merge(&other).is_none() {
        return Err(Diagnostic::new(
            span,
            format!(
                "this is {} or {}",
                names::shape(&shape),
                names::shape(&other)
            ),
            "give both sides of the `:` the same types",
        ));
    }
    let either = Box::new(Either {
        test,
        then,
        otherwise,
    });
    Ok(values.copied(Copied::Either(either), shape, span))
}

/// `(int8[8])value`, `(int8[])"text"`, `(string[16])"text"`, `(int64)array`. None: it is a cast
/// of another kind.
pub(crate) fn cast(
    values: &mut Values<'_, '_>,
    to: &TypeName,
    value: &Val,
    span: Span,
) -> Lowered<Option<Val>> {
    let (of, count) = match &to.kind {
        TypeKind::Array { of, count } => (of, Some(*count)),
        TypeKind::Slice(of) => (of, None),
        TypeKind::Named(name) if name == "string" => {
            return cast_to_text(values, None, value, to.span, span).map(Some);
        }
        TypeKind::Named(name) if name == "bool" && values.is_text(value) => {
            let test = is_filled(values, value, span);
            return Ok(Some(Val::number(Number::test(test), Kind::Boolean)));
        }
        TypeKind::Named(name) => {
            let Some((bytes, signed)) = integer(name) else {
                return Ok(None);
            };
            if !is_composite(values, value) {
                return Ok(None);
            }
            let value = at_hand(values, value.clone(), span);
            return Ok(match value {
                Val::Stored { place, shape } if shape.bytes() == bytes.into() => Some(stored(
                    place,
                    &match signed {
                        true => Shape::Signed(bytes),
                        false => Shape::Unsigned(bytes),
                    },
                )),
                _ => None,
            });
        }
        TypeKind::Pointer(_) | TypeKind::Of(_) => return Ok(None),
    };
    let TypeKind::Named(name) = &of.kind else {
        return Ok(None);
    };
    if name == "string" {
        return cast_to_text(values, count, value, to.span, span).map(Some);
    }
    let of = match integer(name) {
        Some((bytes, true)) => Shape::Signed(bytes),
        Some((bytes, false)) => Shape::Unsigned(bytes),
        None if name == "bool" => Shape::Boolean,
        None => {
            return Err(Diagnostic::new(
                to.span,
                "a value can become an array of integers only",
                "for example (uint8[8])value",
            ));
        }
    };
    let (bytes, number) = match value {
        Val::Literal(text) => (text.len() as u64 + 1, None),
        value if values.is_text(value) => (values.text_bytes(value).into(), None),
        value => {
            let counted = values.as_number(value.clone(), span)?;
            let bytes = match (&counted.kind, counted.number.constant(), count) {
                (_, _, Some(_)) => 8,
                (Kind::Literal, Some(number), None) => bytes_of_literal(number),
                (Kind::Integer { bytes, .. }, _, _) => (*bytes).into(),
                _ => 8,
            };
            (bytes, Some(counted))
        }
    };
    let size = u64::from(of.bytes());
    let count = count.unwrap_or(bytes / size);
    let wanted = count.saturating_mul(size);
    let is_whole = match (number.is_some(), count) {
        (_, 0) => false,
        (true, _) => wanted <= 8 && bytes.is_multiple_of(size),
        (false, _) => size == 1 && wanted == bytes,
    };
    if !is_whole {
        return Err(Diagnostic::new(
            to.span,
            format!("a value of {bytes} bytes does not fit this array"),
            "an array of a number has at most 8 bytes, and one of a text has all its bytes \
             and a zero",
        ));
    }
    // A narrow number has 64 bits here, too, and in memory others come after it.
    let (value, shape) = match number {
        Some(counted) => {
            let kind = counted.kind.clone();
            (Val::number(counted.or_zero(), kind), Shape::Unsigned(8))
        }
        None => (value.clone(), Shape::Text(bytes.next_multiple_of(8) as u32)),
    };
    let copied = values.copied(Copied::Value(value), shape, span);
    let Val::Stored { place, .. } = copied else {
        return Ok(None);
    };
    Ok(Some(Val::Stored {
        place,
        shape: Shape::Array {
            of: Box::new(of),
            stored: count as u32,
            count,
        },
    }))
}

/// A text of at most so many bytes.
pub(super) fn cast_to_text(
    values: &mut Values<'_, '_>,
    most: Option<u64>,
    value: &Val,
    to: Span,
    span: Span,
) -> Lowered<Val> {
    if !values.is_text(value) {
        return Err(Diagnostic::new(
            span,
            "only a text can become a text of another length",
            "str(address) makes a text of an address",
        ));
    }
    let bytes = match value {
        Val::Literal(text) => text.len() as u64 + 1,
        value => values.text_bytes(value).into(),
    };
    match most {
        Some(most) if most < bytes => Err(Diagnostic::new(
            to,
            format!("the text has up to {bytes} bytes with its end, and these are {most}"),
            "make it longer, or take less of the text: str(address, bytes)",
        )),
        _ => Ok(value.clone()),
    }
}

fn has_parts(shape: &Shape) -> bool {
    matches!(
        shape,
        Shape::Tuple(_)
            | Shape::Record(_)
            | Shape::Array { .. }
            | Shape::Items { .. }
            | Shape::Bytes(_)
    )
}

/// Whether some of an array was not stored.
fn is_cut(shape: &Shape) -> bool {
    match shape {
        Shape::Array { of, stored, count } => u64::from(*stored) < *count || is_cut(of),
        Shape::Items { more, .. } => *more > 0,
        Shape::Tuple(items) => items.iter().any(is_cut),
        Shape::Record(fields) => fields.iter().any(|(_, shape)| is_cut(shape)),
        _ => false,
    }
}

/// A part that was stored, with the sign that it has by itself.
fn with_sign(values: &mut Values<'_, '_>, part: Val) -> Val {
    match part {
        Val::Number(Counted {
            number: number @ Number::OwnPart { .. },
            kind: Kind::Literal,
            ..
        }) => Val::number(number, values.tables.open_kind()),
        part => part,
    }
}

/// A value that is stored at a place. A number of the text stays one.
fn stored(place: Place, shape: &Shape) -> Val {
    match Kind::stored(shape) {
        Some((kind, bytes, signed)) => Val::number(
            Number::OwnPart {
                place,
                bytes,
                signed,
            },
            match shape {
                Shape::Literal => Kind::Literal,
                _ => kind,
            },
        ),
        None => Val::Stored {
            place,
            shape: shape.clone(),
        },
    }
}

/// The least bytes that a number of the text fits.
fn bytes_of_literal(number: u64) -> u64 {
    let number = number.cast_signed();
    match number {
        -0x80..0x80 => 1,
        -0x8000..0x8000 => 2,
        -0x8000_0000..0x8000_0000 => 4,
        _ => 8,
    }
}
