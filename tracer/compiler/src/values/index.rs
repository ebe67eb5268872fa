//! Elements of slices, arrays, vectors, and of what pointers lead to.

use alloc::format;

use bpf::{AluOp, Condition};
use trace_interface::symbols::{Type, TypeId};
use trace_language::{
    Diagnostic,
    tree::{Name, Span},
};

use super::{Val, Values, composite};
use crate::{
    Lowered,
    number::{Counted, Kind, Number, Test},
    object::{At, Object},
    types::{MOST_DEPTH, missing, plain_name, type_name},
};

/// Elements that follow one another in memory.
struct Elements {
    of: TypeId,
    /// The address of the first one.
    first: Number,
    count: Number,
}

/// See [`Values::elements`].
enum Found {
    Elements(Elements),
    Element(Object),
}

impl Values<'_, '_> {
    /// `value[index]`.
    pub(crate) fn index(&mut self, value: Val, index: Counted, span: Span) -> Lowered<Val> {
        let value = match value {
            Val::Element { .. } => composite::at_hand(self, value, span),
            value => value,
        };
        let index = composite::once(self, index, span);
        if let Some(part) = composite::part_at(self, &value, &index, span)? {
            return Ok(part);
        }
        let object = match value {
            Val::Object(object) => object,
            Val::Number(Counted {
                number,
                kind:
                    Kind::Pointer {
                        to: Some(to),
                        space,
                    },
                present,
            }) => {
                // As an array without an end, as in C.
                let size = self.types().size(to);
                let offset = Number::alu(AluOp::Mul, index.number, Number::Constant(size));
                let address = Number::alu(AluOp::Add, number, offset);
                return Ok(Val::Object(Object::in_memory(
                    to,
                    (space, address),
                    present.and(index.present),
                )));
            }
            _ => {
                return Err(Diagnostic::new(
                    span,
                    "this value has no elements",
                    "take an element of a slice, an array or a pointer",
                ));
            }
        };
        // A reference to an array or slice is as good as the array; another one leads to elements.
        if let Type::Pointer { to, .. } = &*self.types().describe(object.type_id) {
            let space = object.space();
            let first = object.read(0, 8, false).ok_or_else(|| missing(span))?;
            let inner = match &*self.types().describe(*to) {
                Type::Array { .. } | Type::Slice { .. } => {
                    Val::Object(Object::in_memory(*to, (space, first), object.present))
                }
                _ => Val::Number(Counted {
                    number: first,
                    kind: Kind::Pointer {
                        to: Some(*to),
                        space,
                    },
                    present: object.present,
                }),
            };
            return self.index(inner, index, span);
        }
        let Elements { of, first, count } = match self.elements(&object, &index, span)? {
            Found::Elements(elements) => elements,
            Found::Element(element) => return Ok(Val::Object(element)),
        };
        let size = self.types().size(of);
        let offset = Number::alu(AluOp::Mul, index.number.clone(), Number::Constant(size));
        let address = (object.space(), Number::alu(AluOp::Add, first, offset));
        let inside = Test::compare(Condition::Below, index.number, count);
        let present = object.present.and(index.present).and(inside);
        Ok(Val::Object(Object::in_memory(of, address, present)))
    }

    /// Where the elements of a value are, or the one that is in a register.
    fn elements(&mut self, object: &Object, index: &Counted, span: Span) -> Lowered<Found> {
        let described = self.types().describe(object.type_id);
        let (of, first, count) = match &*described {
            Type::Slice { of } => {
                let first = object.read(0, 8, false).ok_or_else(|| missing(span))?;
                let count = object.read(8, 8, false).ok_or_else(|| missing(span))?;
                (*of, first, count)
            }
            Type::Array { of, count } => match (&object.at, index.number.constant()) {
                (At::Pieces { .. }, Some(constant)) if constant < *count => {
                    let size = self.types().size(*of);
                    return Ok(Found::Element(object.part(*of, size * constant)));
                }
                (
                    At::Memory {
                        address, offset, ..
                    },
                    _,
                ) => {
                    let offset = Number::Constant(offset.cast_unsigned());
                    let first = Number::alu(AluOp::Add, address.clone(), offset);
                    (*of, first, Number::Constant(*count))
                }
                (At::Pieces { .. }, Some(_)) => {
                    return Err(Diagnostic::new(
                        span,
                        format!("the array has {count} elements"),
                        "use a smaller index",
                    ));
                }
                (At::Pieces { .. }, None) => {
                    return Err(Diagnostic::new(
                        span,
                        "the array is in registers, so its index must be a number of the text",
                        "use a constant index",
                    ));
                }
            },
            Type::Struct(vec) if plain_name(&vec.name) == "Vec" => {
                let of = self.types().element(&vec.name, span)?;
                let name = Name {
                    text: "len".into(),
                    span,
                };
                let count = self.object_field(object, &name)?;
                let count = self.as_number(count, span)?.number;
                let pointer = self.types().pointer_in(object, MOST_DEPTH);
                let first = pointer.and_then(|(pointer, _)| pointer.read(0, 8, false));
                (of, first.ok_or_else(|| missing(span))?, count)
            }
            other => {
                return Err(Diagnostic::new(
                    span,
                    format!("{} has no elements", type_name(other)),
                    "",
                ));
            }
        };
        Ok(Found::Elements(Elements { of, first, count }))
    }
}
