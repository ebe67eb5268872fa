//! Elements of slices, arrays, collections, and of what pointers lead to.
//!
//! An element is a value in memory of its own, whose place is computed. One past the end is not
//! there, so what is calculated with it is not there, either.

use alloc::format;

use bpf::{AluOp, Condition};
use trace_interface::symbols::{Type, TypeId};
use trace_language::{Diagnostic, tree::Span};

use super::{Val, Values, composite};
use crate::{
    Lowered,
    number::{Counted, Kind, Number, Test},
    object::{At, Object},
    types::{MOST_DEPTH, Types, library::Collection, missing, shape::is_reference, type_name},
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
            // A reference that a variable holds.
            Val::Number(Counted {
                number,
                kind:
                    Kind::Pointer {
                        to: Some(to),
                        space,
                    },
                present,
            }) if has_elements(self.types(), to, MOST_DEPTH) => {
                let number = composite::steady_address(self, number, span);
                Object::in_memory(to, (space, number), present)
            }
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
                let number = composite::steady_address(self, number, span);
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
        let object = self.types().unwrapped(&object);
        if let Some(content) = self.types().led_to(&object, span)? {
            return self.index(Val::Object(content.sliced(self.types())), index, span);
        }
        if let Type::Pointer { name, to } = &*self.types().describe(object.type_id) {
            let (to, space) = (*to, object.space());
            let first = object.read(0, 8, false).ok_or_else(|| missing(span))?;
            // A reference leads to one value, and a pointer to any number of them.
            let inner = match is_reference(name) {
                true => Val::Object(Object::in_memory(to, (space, first), object.present)),
                false => Val::Number(Counted {
                    number: first,
                    kind: Kind::Pointer {
                        to: Some(to),
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
        let word = |at| object.read(at, 8, false).ok_or_else(|| missing(span));
        let (of, first, count) = match &*described {
            Type::Slice { of } => (*of, word(0)?, word(8)?),
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
            Type::Struct(_) => match self.types().collection(object.type_id) {
                Some(Collection::Run {
                    pointer,
                    length,
                    skip,
                    of,
                }) => {
                    let skip = Number::Constant(skip);
                    let first = Number::alu(AluOp::Add, word(pointer)?, skip);
                    (of, first, word(length)?)
                }
                Some(Collection::Ring {
                    pointer,
                    length,
                    head,
                    capacity,
                    of,
                }) => {
                    return of_ring(
                        self.types(),
                        [pointer, length, head, capacity],
                        of,
                        object,
                        index,
                        span,
                    );
                }
                _ => return Err(no_elements(&described, span)),
            },
            other => return Err(no_elements(other, span)),
        };
        Ok(Found::Elements(Elements { of, first, count }))
    }
}

/// Whether values of a type have elements, by themselves or where they lead to.
fn has_elements(types: &Types<'_>, id: TypeId, depth: u32) -> bool {
    let inner = types.led_to_by(id).or_else(|| match &*types.describe(id) {
        Type::Struct(of) => types.transparent(of).map(|only| only.type_id),
        Type::Pointer { name, to } if is_reference(name) => Some(*to),
        _ => None,
    });
    match (&*types.describe(id), inner) {
        (Type::Array { .. } | Type::Slice { .. } | Type::Tail { .. }, _) => true,
        (_, Some(inner)) => depth > 0 && has_elements(types, inner, depth - 1),
        _ => matches!(
            types.collection(id),
            Some(Collection::Run { .. } | Collection::Ring { .. })
        ),
    }
}

/// An element of a ring, whose pointer, length, head and capacity are at these offsets.
fn of_ring(
    types: &Types<'_>,
    places: [u64; 4],
    of: TypeId,
    object: &Object,
    index: &Counted,
    span: Span,
) -> Lowered<Found> {
    let words = places.map(|at| object.read(at, 8, false));
    let [Some(first), Some(count), Some(head), Some(capacity)] = words else {
        return Err(missing(span));
    };
    let at = Number::alu(AluOp::Add, head, index.number.clone());
    let is_inside = Test::compare(Condition::Below, at.clone(), capacity.clone());
    let wrapped = Number::alu(AluOp::Sub, at.clone(), capacity);
    let at = Number::select(is_inside, at, wrapped);
    let size = Number::Constant(types.size(of));
    let offset = Number::alu(AluOp::Mul, at, size);
    let address = Number::alu(AluOp::Add, first, offset);
    let inside = Test::compare(Condition::Below, index.number.clone(), count);
    let present = object
        .present
        .clone()
        .and(index.present.clone())
        .and(inside);
    let place = (object.space(), address);
    Ok(Found::Element(Object::in_memory(of, place, present)))
}
fn no_elements(of: &Type, span: Span) -> Diagnostic {
    Diagnostic::new(span, format!("{} has no elements", type_name(of)), "")
}
