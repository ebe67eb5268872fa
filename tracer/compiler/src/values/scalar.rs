//! Values of the source as numbers: integers, types around one, enums, `Result`s of numbers.

use alloc::{format, string::String, vec::Vec};

use bpf::AluOp;
use trace_interface::symbols::{Enum, Struct, Tag, Type};
use trace_language::{Diagnostic, tree::Span};

use super::{Val, Values};
use crate::{
    Lowered,
    number::{Counted, Kind, Number},
    object::Object,
    types::{missing, shortened, type_name},
};

impl Values<'_, '_> {
    /// An integer of the source is a number like any other.
    pub(crate) fn simplified(&mut self, value: Val, span: Span) -> Val {
        match &value {
            Val::Object(object) if self.types().is_scalar(object) => {
                match self.object_number(object, span) {
                    Ok(counted) => Val::Number(counted),
                    Err(_) => value,
                }
            }
            _ => value,
        }
    }

    /// An object as a number: an integer, a type around one, an enum without fields, or a `Result`
    /// of numbers.
    pub(crate) fn object_number(&mut self, object: &Object, span: Span) -> Lowered<Counted> {
        let described = self.types().describe(object.type_id);
        let read = |bytes, signed| object.read(0, bytes, signed);
        let (number, kind) = match &*described {
            Type::Integer { bytes, signed } if *bytes <= 8 => {
                let kind = Kind::Integer {
                    bytes: *bytes,
                    signed: *signed,
                };
                (read(*bytes, *signed), kind)
            }
            Type::Boolean => (read(1, false), Kind::Boolean),
            Type::Character => (read(4, false), Kind::Character),
            Type::Pointer { to, .. } => (
                read(8, false),
                Kind::Pointer {
                    to: Some(*to),
                    space: object.space(),
                },
            ),
            Type::Struct(Struct { fields, .. }) => {
                let mut with_bytes = fields
                    .iter()
                    .filter(|field| self.types().size(field.type_id) != 0);
                if let (Some(only), None) = (with_bytes.next(), with_bytes.next()) {
                    return self.object_number(&object.part(only.type_id, only.offset), span);
                }
                return Err(no_number(&described, span));
            }
            Type::Enum(of)
                if of
                    .variants
                    .iter()
                    .all(|variant| self.types().is_unit(variant)) =>
            {
                match of.tag {
                    Some(Tag {
                        offset,
                        bytes,
                        signed,
                    }) => (
                        object.read(offset, bytes, signed),
                        Kind::Integer { bytes, signed },
                    ),
                    None => (Some(Number::Constant(0)), Kind::Literal),
                }
            }
            Type::Enum(of) => match self.result_number(object, of, span)? {
                Some(counted) => return Ok(counted),
                None => return Err(no_number(&described, span)),
            },
            _ => return Err(no_number(&described, span)),
        };
        Ok(Counted {
            number: number.ok_or_else(|| missing(span))?,
            kind,
            present: object.present.clone(),
        })
    }

    /// A `Result` of numbers as system calls give it: that of `Ok`, or that of `Err`, negated.
    fn result_number(
        &mut self,
        object: &Object,
        of: &Enum,
        span: Span,
    ) -> Lowered<Option<Counted>> {
        let variant = |name: &str| of.variants.iter().position(|variant| variant.name == name);
        let (Some(ok), Some(err), 2) = (variant("Ok"), variant("Err"), of.variants.len()) else {
            return Ok(None);
        };
        let is_ok = self.types().is_variant(object, of, ok, span)?;
        let mut numbers = [Number::Constant(0), Number::Constant(0)];
        for (number, variant) in numbers.iter_mut().zip([ok, err]) {
            let mut with_bytes = of.variants[variant]
                .fields
                .iter()
                .filter(|field| self.types().size(field.type_id) != 0);
            match (with_bytes.next(), with_bytes.next()) {
                (None, _) => {}
                (Some(only), None) => {
                    let part = object.part(only.type_id, only.offset);
                    match self.object_number(&part, span) {
                        Ok(counted) => *number = counted.number,
                        Err(_) => return Ok(None),
                    }
                }
                _ => return Ok(None),
            }
        }
        let [ok, err] = numbers;
        let err = Number::alu(AluOp::Sub, Number::Constant(0), err);
        Ok(Some(Counted {
            number: Number::select(is_ok, ok, err),
            kind: Kind::SIGNED,
            present: object.present.clone(),
        }))
    }
}

fn no_number(described: &Type, span: Span) -> Diagnostic {
    let help = match described {
        Type::Struct(of) => {
            let fields: Vec<String> = of
                .fields
                .iter()
                .map(|field| format!(".{}", field.name))
                .collect();
            format!("take a field: {}", shortened(&fields))
        }
        Type::Enum(of) => {
            let variants = of
                .variants
                .iter()
                .map(|variant| format!(".{}", variant.name));
            let variants: Vec<String> = variants.collect();
            format!(
                "take what a variant holds: {}; or print it whole",
                shortened(&variants)
            )
        }
        Type::Slice { .. } | Type::Str => "use it as it is, or take its length: .len".into(),
        Type::Array { .. } => "take an element: [0]".into(),
        Type::Float { .. } => "floating-point numbers can be printed and be keys only".into(),
        _ => "print it, or use it as a key".into(),
    };
    Diagnostic::new(
        span,
        format!("this is {}, not a number", type_name(described)),
        help,
    )
}
