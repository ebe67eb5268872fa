//! Fields: of structures, variants, slices, tuples, and what pointers lead to.
//!
//! A field of a value that is not there is not there. One that the compiler of the kernel left out
//! is refused with the reason.

use alloc::{format, string::String, vec::Vec};

use bpf::AluOp;
use trace_interface::symbols::{Field, Struct, Type, Variant};
use trace_language::{
    Diagnostic,
    tree::{Expression, ExpressionKind, Name, Span},
};

use super::{Val, Values, composite};
use crate::{
    Lowered, names,
    number::{Counted, Kind, Number},
    object::Object,
    types::{Types, field_of, missing, shortened, type_name},
};

impl Values<'_, '_> {
    pub(crate) fn field(&mut self, of: &Expression, name: &Name) -> Lowered<Val> {
        if let ExpressionKind::Name(word) = &of.kind
            && word == "args"
        {
            return self.argument(name);
        }
        let value = match self.value(of)? {
            // A tuple of a map is copied first.
            value @ Val::Element { .. } => composite::at_hand(self, value, of.span),
            value => value,
        };
        if let Some(part) = composite::part(self, &value, name)? {
            return Ok(part);
        }
        match value {
            Val::Object(object) => self.object_field(&object, name),
            Val::Number(Counted {
                number,
                kind:
                    Kind::Pointer {
                        to: Some(to),
                        space,
                    },
                present,
            }) => {
                let number = composite::steady_address(self, number, of.span);
                let object = Object::in_memory(to, (space, number), present);
                self.object_field(&object, name)
            }
            Val::Number(_) => Err(Diagnostic::new(
                name.span,
                format!("a number has no field `{}`", name.text),
                match self.tables.options.debug_info {
                    true => "cast it to a pointer first: ((&Type)value).field",
                    false => names::NO_DEBUG_INFORMATION,
                },
            )),
            _ => Err(Diagnostic::new(
                name.span,
                format!("this value has no field `{}`", name.text),
                "",
            )),
        }
    }

    /// A field, a variant, or the length of a slice.
    pub(crate) fn object_field(&mut self, object: &Object, name: &Name) -> Lowered<Val> {
        let described = self.types().describe(object.type_id);
        let word = |at| {
            let number = object.read(at, 8, false);
            let number = number.ok_or_else(|| missing(name.span));
            number.map(|number| Counted {
                number,
                kind: Kind::UNSIGNED,
                present: object.present.clone(),
            })
        };
        match &*described {
            Type::Struct(of) => match field_of(&of.fields, &name.text) {
                Some(field) => {
                    let part = object.part(field.type_id, field.offset);
                    Ok(Val::Object(part.sliced(self.types())))
                }
                None => match shown_as(self.types(), object, of, name.span)? {
                    Some(content) => self.object_field(&content, name),
                    None => Err(no_field(&of.name, &of.fields, name)),
                },
            },
            Type::Pointer { to, .. } => {
                let address = word(0)?;
                let place = (object.space(), address.number);
                let object = Object::in_memory(*to, place, address.present);
                self.object_field(&object, name)
            }
            Type::Slice { .. } | Type::Str => match &*name.text {
                "len" | "length" => Ok(Val::Number(word(8)?)),
                "ptr" | "data_ptr" => Ok(Val::Number(Counted {
                    kind: Kind::Pointer {
                        to: match &*described {
                            Type::Slice { of } => Some(*of),
                            _ => None,
                        },
                        space: object.space(),
                    },
                    ..word(0)?
                })),
                _ => Err(Diagnostic::new(
                    name.span,
                    format!("{} has no field `{}`", type_name(&described), name.text),
                    "it has .len, .ptr and, if it is a slice, elements: [0]",
                )),
            },
            Type::Array { count, .. } if name.text == "len" => {
                Ok(Val::number(Number::Constant(*count), Kind::UNSIGNED))
            }
            Type::Enum(of) => {
                let variant = of
                    .variants
                    .iter()
                    .position(|variant| variant.name == name.text);
                let Some(variant) = variant else {
                    // The only variant's fields need no name of it.
                    if let [only] = &of.variants[..]
                        && let Some(field) = field_of(&only.fields, &name.text)
                    {
                        return Ok(Val::Object(object.part(field.type_id, field.offset)));
                    }
                    let variants = of.variants.iter().map(|variant| &*variant.name);
                    let near = names::nearest(&name.text, variants.clone());
                    let all: Vec<String> = variants.map(|name| format!(".{name}")).collect();
                    return Err(Diagnostic::new(
                        name.span,
                        format!("`{}` has no variant `{}`", of.name, name.text),
                        match near.is_empty() {
                            true => format!("it has {}", shortened(&all)),
                            false => names::did_you_mean(&near),
                        },
                    ));
                };
                let test = self.types().is_variant(object, of, variant, name.span)?;
                let present = object.present.clone().and(test);
                let mut content = self.types().content(object, of, variant);
                content.present = present;
                content.is_variant = true;
                Ok(Val::Object(content))
            }
            other => Err(Diagnostic::new(
                name.span,
                format!("{} has no field `{}`", type_name(other), name.text),
                match other {
                    Type::Array { .. } => "it has .len and elements: [0]",
                    _ => "",
                },
            )),
        }
    }

    /// A field of a variant, for patterns.
    pub(crate) fn variant_field(
        &mut self,
        object: &Object,
        variant: &Variant,
        name: &Name,
    ) -> Lowered<Object> {
        match field_of(&variant.fields, &name.text) {
            Some(field) => Ok(object.part(field.type_id, field.offset)),
            None => Err(no_field(&variant.name, &variant.fields, name)),
        }
    }

    /// `*object`.
    pub(crate) fn dereference(&mut self, object: &Object, span: Span) -> Lowered<Val> {
        let described = self.types().describe(object.type_id);
        match &*described {
            Type::Pointer { to, .. } => {
                let address = object.read(0, 8, false).ok_or_else(|| missing(span))?;
                Ok(Val::Object(Object::in_memory(
                    *to,
                    (object.space(), address),
                    object.present.clone(),
                )))
            }
            Type::Str | Type::Slice { .. } => Ok(Val::Object(object.clone())),
            Type::Struct(_) if self.types().wide(object.type_id).is_some() => {
                Ok(Val::Object(object.clone()))
            }
            other => Err(Diagnostic::new(
                span,
                format!("{} is no reference", type_name(other)),
                "leave the `*` out",
            )),
        }
    }

    /// Address and length of a text of the source, if the object is one.
    pub(crate) fn text_of(
        &mut self,
        object: &Object,
        span: Span,
    ) -> Lowered<Option<(Number, Number)>> {
        match &*self.types().describe(object.type_id) {
            Type::Str => {
                let address = object.read(0, 8, false).ok_or_else(|| missing(span))?;
                let length = object.read(8, 8, false).ok_or_else(|| missing(span))?;
                Ok(Some((address, length)))
            }
            Type::Tail { is_text: true, .. } => Ok(object.address().zip(object.length.clone())),
            Type::Struct(_) => match self.types().text_in(object.type_id) {
                Some((pointer, length, skip)) => {
                    let address = object
                        .read(pointer, 8, false)
                        .ok_or_else(|| missing(span))?;
                    let length = object.read(length, 8, false).ok_or_else(|| missing(span))?;
                    let skip = Number::Constant(skip);
                    Ok(Some((Number::alu(AluOp::Add, address, skip), length)))
                }
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

/// The value that a structure is shown as: what it leads to, the types that it may have, or its
/// only field.
fn shown_as(
    types: &Types<'_>,
    object: &Object,
    of: &Struct,
    span: Span,
) -> Lowered<Option<Object>> {
    if let Some(content) = types.led_to(object, span)? {
        return Ok(Some(content));
    }
    if let Some(id) = types.seen(object.type_id) {
        return Ok(Some(object.part(id, 0)));
    }
    let only = types.transparent(of);
    Ok(only.map(|only| object.part(only.type_id, only.offset)))
}

fn no_field(of: &str, fields: &[Field], name: &Name) -> Diagnostic {
    let near = names::nearest(&name.text, fields.iter().map(|field| &*field.name));
    let all: Vec<String> = fields
        .iter()
        .map(|field| format!("`{}`", field.name))
        .collect();
    Diagnostic::new(
        name.span,
        format!("`{of}` has no field `{}`", name.text),
        match (near.is_empty(), all.is_empty()) {
            (false, _) => names::did_you_mean(&near),
            (true, false) => format!("it has {}", shortened(&all)),
            (true, true) => "it has none".into(),
        },
    )
}
