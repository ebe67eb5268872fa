//! What is known of a value before the program runs: its type by name, and `comptime`.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use trace_interface::{
    shape::Shape,
    symbols::{Type, TypeId},
};
use trace_language::tree::ExpressionKind;

use super::{
    Val, Values,
    like::{self, Like},
    literal,
};
use crate::{
    Lowered,
    functions::Call,
    number::{Counted, Kind, Number, Test},
    types::type_name,
};

/// `typeinfo(value)`: the names of its type, the short one and the whole one.
pub(super) fn record(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let (base, full) = names(values, call)?;
    let base = Val::Literal(base.into());
    let fields = [("base_type", base), ("full_type", Val::Literal(full))];
    Ok(Val::Record(
        fields.map(|(name, value)| (name.into(), value)).into(),
    ))
}

/// Whether the type of a value has that short name.
pub(super) fn is(values: &mut Values<'_, '_>, call: Call<'_>, wanted: &str) -> Lowered<Val> {
    let (base, _) = names(values, call)?;
    Ok(truth(base == wanted))
}

/// Whether a value is an integer without a sign.
pub(super) fn is_unsigned(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let (base, full) = names(values, call)?;
    Ok(truth(base == INTEGER && full.starts_with('u')))
}

/// Whether a value is a number or a text of the program's text.
pub(super) fn is_literal(_: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    let is_text = matches!(of.kind, ExpressionKind::String(_));
    Ok(truth(is_text || literal::constant(of)?.is_some()))
}

/// Whether a map has no keys.
pub(super) fn is_scalar(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    let ExpressionKind::Map(map) = &of.kind else {
        return call.refuse();
    };
    let number = values.tables.map(&map.name);
    match &values.tables.maps[number as usize].keys {
        Some(keys) => Ok(truth(keys.is_empty())),
        None => Err(like::not_assigned(map)),
    }
}

/// `comptime value`: one that is known before the program runs.
pub(super) fn known(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    let value = values.value(of)?;
    match is_known(&value) {
        true => Ok(value),
        false => Err(literal::not_known(of)),
    }
}

const INTEGER: &str = "int";

fn truth(is: bool) -> Val {
    Val::number(Number::Constant(is.into()), Kind::Boolean)
}

fn is_known(value: &Val) -> bool {
    match value {
        Val::Number(Counted {
            number: Number::Constant(_),
            present: Test::Constant(true),
            ..
        })
        | Val::Literal(_) => true,
        Val::Tuple(items) => items.iter().all(is_known),
        Val::Record(fields) => fields.iter().all(|(_, value)| is_known(value)),
        _ => false,
    }
}

/// The names of the type of what a call is asked of.
fn names(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<(&'static str, String)> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    Ok(match like::like(values, of)? {
        Like::Number(kind) => of_number(values, &kind),
        // Texts get the room that they need.
        Like::Text(_) => ("string", "string".into()),
        Like::Object(id) => of_object(values, id),
        Like::Made(shape) => of_shape(values, &shape),
    })
}

fn of_number(values: &Values<'_, '_>, kind: &Kind) -> (&'static str, String) {
    let plain = |word: &'static str| (word, word.to_string());
    match kind {
        Kind::Literal => (INTEGER, "int64".into()),
        Kind::Integer { bytes, signed } => {
            let sign = if *signed { "" } else { "u" };
            (INTEGER, format!("{sign}int{}", 8 * u32::from(*bytes)))
        }
        Kind::Boolean => plain("bool"),
        Kind::Character => plain("char"),
        Kind::Pointer { to: None, .. } => ("pointer", "void *".into()),
        Kind::Pointer { to: Some(to), .. } => {
            let (_, to) = of_object(values, *to);
            ("pointer", format!("{to} *"))
        }
        Kind::Symbol { .. } => plain("ksym"),
        Kind::Probe => plain("probe"),
        Kind::Stack { is_user: false, .. } => plain("kstack"),
        Kind::Stack { is_user: true, .. } => plain("ustack"),
        Kind::Named(_) => plain("name"),
        Kind::Time { .. } => plain("timestamp"),
    }
}

fn of_object(values: &Values<'_, '_>, id: TypeId) -> (&'static str, String) {
    let described = values.types().describe(id);
    let base = match &*described {
        Type::Integer { bytes, signed } => {
            let (bytes, signed) = (*bytes, *signed);
            return of_number(values, &Kind::Integer { bytes, signed });
        }
        Type::Boolean => return of_number(values, &Kind::Boolean),
        Type::Character => return of_number(values, &Kind::Character),
        Type::Pointer { to, .. } => {
            let (_, to) = of_object(values, *to);
            return ("pointer", format!("{to} *"));
        }
        Type::Array { of, count } => {
            let (_, of) = of_object(values, *of);
            return ("array", format!("{of}[{count}]"));
        }
        _ if values.types().is_text(id) => "string",
        Type::Slice { .. } => "slice",
        Type::Struct(_) => "struct",
        Type::Enum(_) => "enum",
        _ => "value",
    };
    let full = match &*described {
        Type::Struct(of) => of.name.to_string(),
        Type::Enum(of) => of.name.to_string(),
        other => type_name(other),
    };
    (base, full)
}

fn of_shape(values: &Values<'_, '_>, shape: &Shape) -> (&'static str, String) {
    if let Some((kind, bytes, signed)) = Kind::stored(shape) {
        let kind = match kind {
            Kind::Integer { .. } => Kind::Integer { bytes, signed },
            kind => kind,
        };
        return of_number(values, &kind);
    }
    let full = |shape: &Shape| of_shape(values, shape).1;
    match shape {
        shape if shape.is_text() => ("string", "string".into()),
        Shape::Tuple(items) => {
            let items: Vec<String> = items.iter().map(full).collect();
            ("tuple", format!("({})", items.join(",")))
        }
        Shape::Record(fields) => {
            let field = |(name, of): &(_, Shape)| format!("{name}={}", full(of));
            let fields: Vec<String> = fields.iter().map(field).collect();
            ("record", format!("({})", fields.join(",")))
        }
        Shape::Array { of, count, .. } => ("array", format!("{}[{count}]", full(of))),
        shape => ("value", crate::names::shape(shape)),
    }
}
