//! Sizes and offsets: of types, of fields, and of values as the tracer keeps them.

use trace_language::{
    Diagnostic,
    tree::{Expression, ExpressionKind, Name, Span},
};

use super::{
    Val, Values,
    like::{self, Like},
};
use crate::{
    Lowered,
    functions::Call,
    number::{Kind, Number, Space, Test},
    object::{At, Object},
};

/// `sizeof(TYPE)` or `sizeof(value)`.
pub(super) fn size(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    let bytes = match like::like(values, of)? {
        Like::Number(Kind::Integer { bytes, .. }) => bytes.into(),
        Like::Number(Kind::Boolean) => 1,
        Like::Number(kind) => kind.shape().bytes().into(),
        Like::Text(bytes) => bytes.into(),
        Like::Object(id) => values.types().size(id),
        Like::Made(shape) => shape.bytes().into(),
    };
    Ok(Val::number(Number::Constant(bytes), Kind::UNSIGNED))
}

/// `offsetof(TYPE, field)` or `offsetof(value, field.field)`.
pub(super) fn offset(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of, field] = call.arguments else {
        return call.refuse();
    };
    let Like::Object(id) = like::like(values, of)? else {
        return call.refuse();
    };
    // The place of the field in a value at address 0.
    let mut object = Object::in_memory(
        id,
        (Space::Kernel, Number::Constant(0)),
        Test::Constant(true),
    );
    for name in path(field, call)? {
        let Val::Object(part) = values.object_field(&object, &name)? else {
            return Err(no_offset(name.span));
        };
        object = part;
    }
    match object.at {
        At::Memory {
            address: Number::Constant(0),
            offset,
            ..
        } => Ok(Val::number(
            Number::Constant(offset.cast_unsigned()),
            Kind::UNSIGNED,
        )),
        _ => Err(no_offset(field.span)),
    }
}

fn no_offset(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        "this field is not at a fixed place in the value",
        "name a field of the structure itself",
    )
}

/// The names of `field.field`.
fn path(of: &Expression, call: Call<'_>) -> Lowered<alloc::vec::Vec<Name>> {
    match &of.kind {
        ExpressionKind::Name(text) => Ok(alloc::vec![Name {
            text: text.clone(),
            span: of.span,
        }]),
        ExpressionKind::Field { of, name } => {
            let mut names = path(of, call)?;
            names.push(name.clone());
            Ok(names)
        }
        _ => call.refuse(),
    }
}
