//! `typeof`: the type of a value, which is not calculated for that.
//!
//! A number has a kind, a value of the source a type, and what the program makes itself a shape
//! ([`Like`]). A word may name a type as well, and a map without its keys stands for them.
//!
//! LIKE-1. What is asked for its type runs never: nothing that its value notes, such as copies of
//!     texts, is left behind, and it assigns to no map.

use alloc::{boxed::Box, format};

use trace_interface::{
    shape::Shape,
    symbols::{Type, TypeId},
};
use trace_language::{
    Diagnostic,
    tree::{
        Block, Expression, ExpressionKind, Map as MapName, Span, StatementKind, Target, TypeKind,
        TypeName,
    },
};

use super::{Holds, Val, Values, composite, literal, variable};
use crate::{
    Lowered, names,
    number::{Counted, Kind, Number},
    types::type_name,
};

/// The type of a value.
#[derive(Clone, Debug)]
pub(crate) enum Like {
    Number(Kind),
    /// A text, and its bytes here. Others may have more.
    Text(u32),
    /// A value of the source that is no number.
    Object(TypeId),
    /// What a program makes: a tuple, a record, an array.
    Made(Shape),
}

impl Like {
    /// The kind of a number that leads nowhere.
    pub(crate) fn plain(&self) -> Option<&Kind> {
        match self {
            Self::Number(Kind::Pointer { .. }) => None,
            Self::Number(kind) if kind.is_number() => Some(kind),
            _ => None,
        }
    }

    /// Whether values of the kind can be too large for the type.
    pub(crate) fn has_limit(&self) -> bool {
        matches!(self, Self::Text(1..) | Self::Made(_))
    }

    /// The name of the type, if it is one that the language has a word for.
    fn word(&self) -> Option<alloc::string::String> {
        Some(match self {
            Self::Number(Kind::Integer { bytes, signed }) => {
                let sign = if *signed { "" } else { "u" };
                format!("{sign}int{}", 8 * u32::from(*bytes))
            }
            Self::Number(Kind::Boolean) => "bool".into(),
            Self::Number(Kind::Character) => "char".into(),
            Self::Text(_) => "string".into(),
            _ => return None,
        })
    }
}

/// The type of a value, or the one that it names.
pub(crate) fn like(values: &mut Values<'_, '_>, of: &Expression) -> Lowered<Like> {
    values.check_room(of.span)?;
    match &of.kind {
        ExpressionKind::Type(of) => like_of(values, of),
        // Of a macro's parameter that stands for a type.
        ExpressionKind::Index { of: part, index }
            if let (ExpressionKind::Type(part), ExpressionKind::Integer(count)) =
                (&part.kind, &index.kind) =>
        {
            let array = TypeName {
                kind: TypeKind::Array {
                    of: Box::new(part.clone()),
                    count: *count,
                },
                span: of.span,
            };
            like_of(values, &array)
        }
        ExpressionKind::Name(word) if word == "string" => Ok(Like::Text(0)),
        ExpressionKind::Name(word) => match values.types().named(word, of.span) {
            Ok(Some(id)) => Ok(like_type(values, id)),
            Ok(None) => Err(no_size(of.span)),
            Err(no_type) => like_value(values, of).map_err(|no_value| match is_camel(word) {
                true => no_type,
                false => no_value,
            }),
        },
        ExpressionKind::Block { body, value } => {
            check_assigns_nothing(body)?;
            match value {
                // There its value is meant, whatever keys it has.
                Some(value) if matches!(value.kind, ExpressionKind::Map(_)) => {
                    like_value(values, value)
                }
                Some(value) => like(values, value),
                None => Err(Diagnostic::new(
                    of.span,
                    "this gives no value, so it has no type",
                    "the value of a block is its last expression, without a `;` after it",
                )),
            }
        }
        ExpressionKind::Ternary {
            condition,
            then,
            otherwise,
        } if let Some(holds) = literal::decided(values, condition)? => {
            like(values, if holds { then } else { otherwise })
        }
        // Their blocks are statements, which are not made.
        ExpressionKind::Ternary {
            then, otherwise, ..
        } if of.has_block() => like_either(values, then, otherwise, of.span),
        ExpressionKind::OrElse { value, otherwise } => {
            like_either(values, value, otherwise, of.span)
        }
        ExpressionKind::Map(map) => like_map(values, map, of),
        ExpressionKind::Variable(name) if is_unset(values, name) => {
            Err(variable::no_value(name, of.span, &[]))
        }
        _ => like_value(values, of),
    }
}

/// That of one of two values.
fn like_either(
    values: &mut Values<'_, '_>,
    then: &Expression,
    otherwise: &Expression,
    span: Span,
) -> Lowered<Like> {
    let mut told = |of: &Expression| {
        let like = like(values, of)?;
        let constant = match &like {
            Like::Number(Kind::Integer { .. }) => literal::constant(of)?,
            _ => None,
        };
        Ok(match constant {
            Some(_) => (Like::Number(Kind::Literal), constant),
            None => (like, None),
        })
    };
    let (then, then_constant) = told(then)?;
    let (otherwise, other_constant) = told(otherwise)?;
    let merged = match (&then, &otherwise) {
        (Like::Number(a), Like::Number(b)) => {
            let kind = values
                .tables
                .either((a, then_constant), (b, other_constant));
            Some(Like::Number(match kind {
                Kind::Literal => values.tables.open_kind(),
                kind => kind,
            }))
        }
        (Like::Text(a), Like::Text(b)) => Some(Like::Text(*a.max(b))),
        (Like::Object(a), Like::Object(b)) if a == b => Some(then.clone()),
        (Like::Made(a), Like::Made(b)) => {
            let mut both = a.clone();
            both.merge(b).map(|_| Like::Made(both))
        }
        _ => None,
    };
    merged.ok_or_else(|| {
        let (then, otherwise) = (like_name(values, &then), like_name(values, &otherwise));
        Diagnostic::new(
            span,
            format!("this is {then} or {otherwise}"),
            "give both sides of it the same types",
        )
    })
}

/// Whether a variable was declared, and nothing tells yet what it holds.
fn is_unset(values: &Values<'_, '_>, name: &str) -> bool {
    let known = values.find(name);
    known.is_some_and(|known| matches!(known.holds, Holds::Nothing))
}

/// The type of a declared variable. None: its first value says it.
pub(crate) fn declared(values: &mut Values<'_, '_>, to: &TypeName) -> Lowered<Option<Like>> {
    match &to.kind {
        TypeKind::Of(of) => Ok(Some(match like(values, of)? {
            // Texts get the room that they need.
            Like::Text(_) => Like::Text(0),
            other => other,
        })),
        TypeKind::Named(name) if name == "string" => Ok(Some(Like::Text(0))),
        TypeKind::Slice(of) if is_string(of) => Ok(Some(Like::Text(0))),
        TypeKind::Array { of, count } if is_string(of) => {
            Ok(Some(Like::Text(u32::try_from(*count).unwrap_or(0))))
        }
        TypeKind::Named(_) => {
            let id = type_named(values, to)?;
            let model = id.map(|id| like_type(values, id));
            Ok(model.filter(|model| model.plain().is_some()))
        }
        // A cast to it says what is wrong with it.
        _ => Ok(None),
    }
}

/// Refuses a value that a declared type has no room for.
pub(crate) fn check_limit(
    values: &mut Values<'_, '_>,
    limit: &Like,
    value: &Val,
    span: Span,
) -> Lowered<()> {
    match limit {
        Like::Text(most) if values.is_text(value) => {
            composite::cast_to_text(values, Some((*most).into()), value, span, span).map(drop)
        }
        Like::Made(_) => cast_like(values, limit, value.clone(), (span, span)).map(drop),
        _ => Ok(()),
    }
}

/// That of a map's value, or of its keys if it has some and the text gives none.
fn like_map(values: &mut Values<'_, '_>, map: &MapName, of: &Expression) -> Lowered<Like> {
    let known = values.tables.maps.iter();
    let mut known = known.filter(|known| known.name.as_deref() == Some(&*map.name.text));
    let Some(known) = known.next().filter(|known| known.class.is_some()) else {
        return Err(not_assigned(map));
    };
    let keys = known.keys.as_deref().unwrap_or_default();
    if !map.keys.is_empty() || keys.is_empty() {
        return like_value(values, of);
    }
    let shape = match keys {
        [only] => only.clone(),
        keys => Shape::Tuple(keys.into()),
    };
    Ok(like_shape(shape))
}

/// Refuses a map of which nothing is known.
pub(super) fn not_assigned(map: &MapName) -> Diagnostic {
    Diagnostic::new(
        map.span,
        format!(
            "nothing is assigned to `@{}`, so it has no type",
            map.name.text
        ),
        "assign to it somewhere in the program, or write the type itself",
    )
}

/// That of a value itself.
fn like_value(values: &mut Values<'_, '_>, of: &Expression) -> Lowered<Like> {
    let (keys, texts, copies) = (values.keys.len(), values.texts.len(), values.copies.len());
    let value = values.value(of);
    let value = value.map(|value| values.simplified(value, of.span));
    values.keys.truncate(keys);
    values.texts.truncate(texts);
    values.copies.truncate(copies);
    Ok(match value? {
        Val::Number(Counted {
            kind: Kind::Literal,
            number,
            ..
        }) => Like::Number(match number.constant() {
            Some(_) => Kind::SIGNED,
            // Others may tell the sign of what holds it.
            None => values.tables.open_kind(),
        }),
        Val::Number(counted) => Like::Number(counted.kind),
        Val::Object(object) => Like::Object(object.type_id),
        Val::Literal(text) => Like::Text(text.len() as u32 + 1),
        value => like_shape(values.shape(&value, false)),
    })
}

/// That of values of a type.
fn like_of(values: &mut Values<'_, '_>, of: &TypeName) -> Lowered<Like> {
    match &of.kind {
        TypeKind::Of(value) => return like(values, value),
        TypeKind::Named(name) if name == "string" => return Ok(Like::Text(0)),
        _ => {}
    }
    match type_named(values, of)? {
        Some(id) => Ok(like_type(values, id)),
        None => Err(no_size(of.span)),
    }
}

fn like_type(values: &Values<'_, '_>, id: TypeId) -> Like {
    match &*values.types().describe(id) {
        Type::Integer { bytes, signed } if *bytes <= 8 => Like::Number(Kind::Integer {
            bytes: *bytes,
            signed: *signed,
        }),
        Type::Boolean => Like::Number(Kind::Boolean),
        Type::Character => Like::Number(Kind::Character),
        Type::Pointer { to, .. } => Like::Number(Kind::Pointer {
            to: Some(*to),
            space: values.site.space(),
        }),
        _ => Like::Object(id),
    }
}

/// The type that a cast names. None: it is one of nothing in particular.
pub(crate) fn type_named(values: &mut Values<'_, '_>, name: &TypeName) -> Lowered<Option<TypeId>> {
    let pointer = |to| Type::Pointer {
        name: "pointer".into(),
        to,
    };
    let new = match &name.kind {
        TypeKind::Named(text) => return values.types().named(text, name.span),
        TypeKind::Pointer(of) => match type_named(values, of)? {
            Some(to) => pointer(to),
            None => return Ok(None),
        },
        TypeKind::Slice(_) => {
            return Err(Diagnostic::new(
                name.span,
                "a pointer to a slice needs its length",
                "cast to a pointer to the first element",
            ));
        }
        TypeKind::Array { of, count } => match type_named(values, of)? {
            Some(of) => Type::Array { of, count: *count },
            None => return Ok(None),
        },
        TypeKind::Of(value) => match like(values, value)? {
            Like::Object(id) => return Ok(Some(id)),
            Like::Number(Kind::Integer { bytes, signed }) => Type::Integer { bytes, signed },
            Like::Number(Kind::Literal) => Type::Integer {
                bytes: 8,
                signed: true,
            },
            Like::Number(Kind::Boolean) => Type::Boolean,
            Like::Number(Kind::Character) => Type::Character,
            Like::Number(Kind::Pointer { to, .. }) => match to {
                Some(to) => pointer(to),
                None => return Ok(None),
            },
            other => {
                return Err(Diagnostic::new(
                    name.span,
                    format!(
                        "this is {}, which no memory holds",
                        like_name(values, &other)
                    ),
                    "take the type of a number, a pointer, or a value of the source",
                ));
            }
        },
    };
    Ok(Some(values.types().synthetic(new)))
}

/// `(typeof(x))value`.
pub(super) fn cast_like(
    values: &mut Values<'_, '_>,
    like: &Like,
    value: Val,
    (to, span): (Span, Span),
) -> Lowered<Val> {
    if let Some(word) = like.word() {
        let to = TypeName {
            kind: TypeKind::Named(word),
            span: to,
        };
        return values.cast_value(&to, value, span);
    }
    let fits = match (like, &value) {
        (Like::Number(Kind::Literal), _) => {
            let counted = values.as_number(value, span)?;
            super::arithmetic::check_arithmetic(&counted.kind, span)?;
            // As a number of the text, one below zero would tell the sign that it takes.
            let number = Number::Extended {
                number: Box::new(counted.number),
                bytes: 8,
                signed: true,
            };
            return Ok(Val::Number(Counted {
                number,
                kind: Kind::Literal,
                ..counted
            }));
        }
        (Like::Number(Kind::Pointer { to, space }), _) => {
            let counted = values.as_number(value, span)?;
            super::arithmetic::check_arithmetic(&counted.kind, span)?;
            let space = match counted.kind {
                Kind::Pointer { space, .. } => space,
                _ => *space,
            };
            return Ok(Val::Number(Counted {
                kind: Kind::Pointer { to: *to, space },
                ..counted
            }));
        }
        (Like::Number(kind), Val::Number(counted)) => counted.kind == *kind,
        (Like::Object(id), Val::Object(object)) => object.type_id == *id,
        (Like::Made(shape), value) =>
        // What it has to grow for does not fit.
        {
            shape.clone().merge(&values.shape(value, false)) == Some(false)
        }
        _ => false,
    };
    if fits {
        return Ok(value);
    }
    let is = match &value {
        Val::Object(object) => type_name(&values.types().describe(object.type_id)),
        value => names::shape(&values.shape(value, false)),
    };
    Err(Diagnostic::new(
        span,
        format!(
            "this is {is}, and cannot become {}",
            like_name(values, like)
        ),
        match like {
            Like::Object(_) => "cast an address to a pointer and follow that: *(&Type)address",
            _ => "give it a value of that type",
        },
    ))
}

fn like_name(values: &Values<'_, '_>, like: &Like) -> alloc::string::String {
    match like {
        Like::Number(kind) => names::shape(&kind.shape()),
        Like::Text(_) => "a text".into(),
        Like::Object(id) => type_name(&values.types().describe(*id)),
        Like::Made(shape) => names::shape(shape),
    }
}

/// A type of nothing in particular, such as `void`.
fn no_size(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        "no value is of this type",
        "write another type, or a pointer to it",
    )
}

/// Whether a path ends with a name as Rust's types have it.
fn is_camel(path: &str) -> bool {
    let last = path.rsplit("::").next().unwrap_or(path);
    last.starts_with(char::is_uppercase) && last.contains(char::is_lowercase)
}

/// Whether a type is the one of texts.
fn is_string(of: &TypeName) -> bool {
    matches!(&of.kind, TypeKind::Named(name) if name == "string")
}

/// That of what is stored so.
fn like_shape(mut shape: Shape) -> Like {
    shape.settle();
    match Kind::stored(&shape) {
        Some((kind, ..)) => Like::Number(kind),
        None if shape.is_text() => Like::Text(shape.bytes()),
        None => Like::Made(shape),
    }
}

/// Refuses a map that a block in `typeof` assigns to: the block does not run.
fn check_assigns_nothing(body: &Block) -> Lowered<()> {
    for statement in &body.statements {
        if let StatementKind::Assign {
            target: Target::Map(map),
            ..
        } = &statement.kind
        {
            return Err(Diagnostic::new(
                map.span,
                "what is asked for its type or size does not run, so it assigns to no map",
                "assign before it, and ask for the value alone",
            ));
        }
    }
    Ok(())
}
