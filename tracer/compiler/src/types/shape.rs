//! How values of a type are stored.
//!
//! A part that the compiler of the kernel left out has no bytes, and the rest is as it would be
//! without it. Values inside of values are stored to a depth, and lists to a length.

use alloc::{boxed::Box, rc::Rc, vec::Vec};

use trace_interface::{
    shape::Shape,
    symbols::{Field, Type, TypeId},
};

use super::{MOST_DEPTH, Types, field_of, plain_name};
use crate::object::{Gaps, Object};

/// The most elements that are stored of a slice or an array.
const MOST_ELEMENTS: u32 = 16;

impl Types<'_> {
    /// How an object is stored. A part that the compiler of the kernel left out is
    /// [`Shape::Unavailable`].
    pub(crate) fn shape_of(&self, object: &Object) -> Shape {
        self.shape_at(object.type_id, 0, object.gaps())
    }

    /// Offset and type of a field.
    fn place_of(&self, id: TypeId, name: &str) -> Option<(u64, TypeId)> {
        match &*self.describe(id) {
            Type::Struct(of) => field_of(&of.fields, name).map(|of| (of.offset, of.type_id)),
            _ => None,
        }
    }

    /// Whether the length or the pointer of a `String` is missing. Its capacity is not needed.
    fn lacks_text(&self, id: TypeId, gaps: Gaps<'_>) -> bool {
        let bytes = self.place_of(id, "vec");
        let length = bytes.and_then(|(at, bytes)| {
            let (inside, _) = self.place_of(bytes, "len")?;
            Some(at + inside)
        });
        let pointer = self.offset_of_pointer(id, MOST_DEPTH);
        [length, pointer]
            .into_iter()
            .any(|at| at.is_none_or(|at| gaps.lacks(at, 8)))
    }

    /// Where the first pointer inside of a value is.
    fn offset_of_pointer(&self, id: TypeId, depth: u32) -> Option<u64> {
        match &*self.describe(id) {
            Type::Pointer { .. } => Some(0),
            Type::Struct(of) if depth > 0 => of.fields.iter().find_map(|field| {
                let inside = self.offset_of_pointer(field.type_id, depth - 1)?;
                Some(field.offset + inside)
            }),
            _ => None,
        }
    }

    /// The most bytes that are stored of a text at a depth. Of one that is a part of a value fewer
    /// are, because there may be many.
    pub(crate) fn text_bytes(&self, depth: u32) -> u32 {
        const MOST_INSIDE: u32 = 64;
        match depth {
            0 => self.options.text_bytes,
            _ => self.options.text_bytes.min(MOST_INSIDE),
        }
    }

    pub(crate) fn shape_at(&self, id: TypeId, depth: u32, gaps: Option<Gaps<'_>>) -> Shape {
        let options = self.options;
        let described = self.describe(id);
        if depth > MOST_DEPTH {
            return Shape::Unit;
        }
        let size = self.size(id);
        let gaps = gaps.filter(|gaps| gaps.lacks(0, size));
        let inner = |offset: u64| gaps.map(|gaps| gaps.behind(offset));
        if let Some(gaps) = gaps {
            let is_lost = match &*described {
                Type::Struct(of) if plain_name(&of.name) == "String" => self.lacks_text(id, gaps),
                Type::Struct(_) | Type::Array { .. } | Type::Unit => false,
                Type::Enum(of) => of
                    .tag
                    .is_some_and(|tag| gaps.lacks(tag.offset, tag.bytes.into())),
                _ => true,
            };
            if is_lost {
                return Shape::Unavailable;
            }
        }
        let fields = |fields: &[Field]| {
            fields
                .iter()
                .map(|field| {
                    let shape = self.shape_at(field.type_id, depth + 1, inner(field.offset));
                    (Rc::from(&*field.name), shape)
                })
                .collect::<Vec<_>>()
        };
        let elements = |shape: &Shape| {
            let size = shape.bytes().max(1);
            (options.slice_bytes / size).clamp(1, MOST_ELEMENTS)
        };
        match &*described {
            Type::Unit => Shape::Unit,
            Type::Integer { bytes, signed } => match (bytes, signed) {
                (1 | 2 | 4 | 8, true) => Shape::Signed(*bytes),
                (1 | 2 | 4 | 8, false) => Shape::Unsigned(*bytes),
                _ => Shape::Array {
                    of: Box::new(Shape::Unsigned(1)),
                    stored: u32::from(*bytes),
                    count: (*bytes).into(),
                },
            },
            Type::Boolean => Shape::Boolean,
            Type::Character => Shape::Character,
            Type::Float { bytes } => Shape::Float(*bytes),
            Type::Pointer { .. } => Shape::Address,
            Type::Str => Shape::Counted(self.text_bytes(depth)),
            Type::Slice { of } => match &*self.describe(*of) {
                Type::Integer {
                    bytes: 1,
                    signed: false,
                } => Shape::Bytes(options.slice_bytes),
                _ => {
                    let of = self.shape_at(*of, depth + 1, None);
                    Shape::List {
                        most: elements(&of),
                        of: Box::new(of),
                    }
                }
            },
            Type::Array { of: id, count } => {
                let of = self.shape_at(*id, depth + 1, None);
                let stored = u32::try_from(*count).unwrap_or(u32::MAX).min(elements(&of));
                if gaps.is_none() {
                    return Shape::Array {
                        of: Box::new(of),
                        stored,
                        count: *count,
                    };
                }
                let size = self.size(*id);
                let item = |index| {
                    let gaps = inner(size * u64::from(index));
                    self.shape_at(*id, depth + 1, gaps)
                };
                Shape::Items {
                    items: (0..stored).map(item).collect(),
                    cut: *count > stored.into(),
                }
            }
            Type::Struct(of) if plain_name(&of.name) == "String" => {
                Shape::Counted(self.text_bytes(depth))
            }
            Type::Struct(of) if self.transparent(of).is_some() => {
                let only = self.transparent(of);
                let (id, at) = only.map_or((id, 0), |field| (field.type_id, field.offset));
                self.shape_at(id, depth + 1, inner(at))
            }
            Type::Struct(of) => Shape::Struct {
                name: Rc::from(&*of.name),
                fields: fields(&of.fields),
            },
            Type::Enum(of) if self.choice(of).is_some() => Shape::Choice {
                name: Rc::from(&*of.name),
                bytes: of.tag.map_or(1, |tag| tag.bytes),
                variants: of
                    .variants
                    .iter()
                    .filter_map(|variant| Some((variant.tag?, Rc::from(&*variant.name))))
                    .collect(),
            },
            Type::Enum(of) => Shape::Enum {
                name: Rc::from(&*of.name),
                variants: of
                    .variants
                    .iter()
                    .map(|variant| (Rc::from(&*variant.name), fields(&variant.fields)))
                    .collect(),
            },
            Type::Opaque { bytes, .. } => {
                let stored = u32::try_from(*bytes).unwrap_or(u32::MAX).min(MOST_ELEMENTS);
                Shape::Array {
                    of: Box::new(Shape::Unsigned(1)),
                    stored,
                    count: *bytes,
                }
            }
        }
    }
}
