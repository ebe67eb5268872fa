//! Sizes and offsets: of types, of fields, and of values as the tracer keeps them.

use trace_interface::symbols::TypeId;
use trace_language::{
    Diagnostic,
    tree::{Expression, ExpressionKind, Name, Span, TypeKind, TypeName},
};

use super::{Val, Values};
use crate::{
    Lowered,
    functions::Call,
    number::{Counted, Kind, Number, Space, Test},
    object::{At, Object},
};

/// `sizeof(TYPE)` or `sizeof(value)`.
pub(super) fn size(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of] = call.arguments else {
        return call.refuse();
    };
    let of = of_typeof(of);
    if let Some(id) = type_named(values, of) {
        let size = values.types().size(id);
        return Ok(Val::number(Number::Constant(size), Kind::UNSIGNED));
    }
    let value = values.value(of)?;
    let bytes = match &value {
        Val::Number(Counted {
            kind: Kind::Integer { bytes, .. },
            ..
        }) => (*bytes).into(),
        Val::Number(Counted {
            kind: Kind::Boolean,
            ..
        }) => 1,
        Val::Literal(text) => text.len() as u64 + 1,
        Val::Object(object) => values.types().size(object.type_id),
        value => values.shape(value, false).bytes().into(),
    };
    Ok(Val::number(Number::Constant(bytes), Kind::UNSIGNED))
}

/// `offsetof(TYPE, field)` or `offsetof(value, field.field)`.
pub(super) fn offset(values: &mut Values<'_, '_>, call: Call<'_>) -> Lowered<Val> {
    let [of, field] = call.arguments else {
        return call.refuse();
    };
    let of = of_typeof(of);
    let id = match type_named(values, of) {
        Some(id) => id,
        None => match values.value(of)? {
            Val::Object(object) => object.type_id,
            _ => return call.refuse(),
        },
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

/// `typeof(x)` has the size of `x`.
fn of_typeof(of: &Expression) -> &Expression {
    match &of.kind {
        ExpressionKind::Call { name, arguments } if name.text == "typeof" => match &arguments[..] {
            [of] => of_typeof(of),
            _ => of,
        },
        _ => of,
    }
}

/// The type that a word names, unless it is a variable of the probed function.
fn type_named(values: &mut Values<'_, '_>, of: &Expression) -> Option<TypeId> {
    let ExpressionKind::Name(word) = &of.kind else {
        return None;
    };
    let name = TypeName {
        kind: TypeKind::Named(word.clone()),
        span: of.span,
    };
    values.types().named(&name).ok().flatten()
}
