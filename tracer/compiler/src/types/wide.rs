//! Pointers with more than an address: with a number of elements, or with a table of methods.
//!
//! A pointer to a value that ends in a slice has the number of its elements. The value's type gets
//! a [`Type::Tail`] at its end, so that the rest is as for any structure. A pointer to a trait
//! object has the address of a table. Which types have a table is known before the hit, so the
//! pointer becomes an enum of them, whose tag is that address.

use alloc::{format, vec::Vec};

use trace_interface::symbols::{
    Enum, Field, Implementor, Origin, Piece, Source, Struct, Tag, Type, TypeId, Variant,
};
use trace_language::tree::Span;

use super::{MOST_DEPTH, OWN, TRANSPARENT, Types, missing, plain_name};
use crate::{
    Lowered,
    number::{Number, Space},
    object::{At, Object},
};

/// The most types of a trait object that are told apart at a hit.
const MOST_IMPLEMENTORS: usize = 24;

/// What a pointer has beside its address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    Length,
    Table,
}

/// A pointer with more than an address.
pub(crate) struct Wide {
    pub(crate) beside: Beside,
    /// Whether it is a raw one, which is not followed.
    pub(crate) is_raw: bool,
    /// The names of its two words, and where they are.
    pub(crate) words: [(&'static str, u64); 2],
    pub(crate) to: TypeId,
}

impl Types<'_> {
    /// The pointer with more than an address that a type is. Slices and texts are types of their
    /// own.
    pub(crate) fn wide(&self, id: TypeId) -> Option<Wide> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        let [first, second] = &of.fields[..] else {
            return None;
        };
        let (beside, names) = match (&*first.name, &*second.name) {
            ("data_ptr", "length") => (Beside::Length, ["data_ptr", "length"]),
            ("pointer", "vtable") => (Beside::Table, ["pointer", "vtable"]),
            _ => return None,
        };
        let is_raw = of.name.starts_with('*');
        let is_pointer = is_raw || of.name.starts_with('&') || plain_name(&of.name) == "Box";
        if of.origin != Origin::Library || !is_pointer {
            return None;
        }
        let Type::Pointer { to, .. } = *self.describe(first.type_id) else {
            return None;
        };
        Some(Wide {
            beside,
            is_raw,
            words: [(names[0], first.offset), (names[1], second.offset)],
            to,
        })
    }

    /// The type of what a pointer with a length leads to, with its tail.
    pub(crate) fn tailed(&self, id: TypeId) -> Option<TypeId> {
        let wide = self.wide(id)?;
        if wide.beside != Beside::Length {
            return None;
        }
        let is_text = match &*self.describe(wide.to) {
            Type::Struct(of) => of.name.trim_end_matches('>').ends_with("<str"),
            _ => false,
        };
        self.with_tail(wide.to, is_text, MOST_DEPTH)
    }

    /// The same type, whose last field is elements: of a structure that is one itself its last
    /// field, and so on.
    fn with_tail(&self, id: TypeId, is_text: bool, depth: u32) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        let last = of.fields.last()?;
        let content = self.describe(last.type_id);
        let of_name = match &*content {
            Type::Struct(content) if content.origin != Origin::Union => Some(&content.name),
            _ => None,
        };
        let is_element = of_name.is_none_or(|name| {
            last.offset + self.size(last.type_id) > of.bytes
                || !self.has_tail(last.type_id, depth) && of.name.contains(&format!("[{name}]"))
        });
        let tail = match is_element {
            true => {
                let byte = Type::Integer {
                    bytes: 1,
                    signed: false,
                };
                // What an `OsStr` has in it.
                let is_system = of.origin == Origin::Library && plain_name(&of.name) == "Slice";
                self.synthetic(Type::Tail {
                    of: last.type_id,
                    is_text: (is_text || is_system) && *content == byte,
                })
            }
            // With padding only the name of the type tells.
            false
                if self.has_tail(last.type_id, depth)
                    || of_name.is_some_and(|name| {
                        name.trim_end_matches('>').ends_with(']')
                            && of.name.contains(&format!("<{name}"))
                    }) =>
            {
                self.with_tail(last.type_id, is_text, depth.checked_sub(1)?)?
            }
            false => return None,
        };
        let mut own = of.clone();
        own.fields.last_mut()?.type_id = tail;
        Some(self.synthetic(Type::Struct(own)))
    }

    /// Whether a structure has more than its bytes: its last field is described as one element, and
    /// the structure has no room for one.
    fn has_tail(&self, id: TypeId, depth: u32) -> bool {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return false;
        };
        of.fields.last().is_some_and(|last| {
            last.offset + self.size(last.type_id) > of.bytes
                || depth > 0 && self.has_tail(last.type_id, depth - 1)
        })
    }

    /// Whether a value of a type has a [`Type::Tail`], so that it has more bytes than its size.
    pub(crate) fn ends_in_tail(&self, id: TypeId) -> bool {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return matches!(&*described, Type::Tail { .. });
        };
        id.0 >= OWN
            && of
                .fields
                .last()
                .is_some_and(|last| self.ends_in_tail(last.type_id))
    }

    /// The enum of the types that a pointer to a trait object may lead to. None: it is no such
    /// pointer, or there are too many types.
    pub(crate) fn enum_of_implementors(&self, id: TypeId) -> Option<TypeId> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        let is_counted =
            of.origin == Origin::Library && matches!(plain_name(&of.name), "Arc" | "Rc");
        let (at, pointer) = match is_counted {
            true => {
                let (at, pointer) = self.field_at(id, &["ptr"])?;
                (at, self.only_field(pointer)?)
            }
            false => (0, id),
        };
        let wide = self.wide(pointer)?;
        if wide.beside != Beside::Table || wide.is_raw != is_counted {
            return None;
        }
        let object = trait_object(&of.name)?;
        let [(_, address), (_, table)] = wide.words;
        // What counts the pointers stands in front, and is not shown.
        let (in_front, behind) = match is_counted {
            true => (COUNTERS, self.last_field(wide.to)?.type_id),
            false => (0, wide.to),
        };
        let implementors = self.kernel.implementors(pointer);
        if implementors.is_empty() || implementors.len() > MOST_IMPLEMENTORS {
            return None;
        }
        let mut variants: Vec<Variant> = Vec::new();
        for of in implementors {
            let (type_id, align) = self.with_object(behind, &of, MOST_DEPTH)?;
            let offset = in_front.next_multiple_of(align);
            let content = Field {
                name: "value".into(),
                offset,
                type_id,
            };
            let content = self.synthetic(Type::Struct(Struct {
                name: TRANSPARENT.into(),
                bytes: offset + self.size(type_id),
                fields: [content].into(),
                parameters: Vec::new(),
                origin: Origin::Library,
            }));
            let leads_to = self.synthetic(Type::Pointer {
                name: format!("&{}", of.name),
                to: content,
            });
            variants.push(Variant {
                name: of.name,
                tag: Some(of.table.into()),
                fields: [Field {
                    name: "0".into(),
                    offset: at + address,
                    type_id: leads_to,
                }]
                .into(),
            });
        }
        let unit = self.synthetic(Type::Unit);
        let raw = self.synthetic(Type::Pointer {
            name: "*const ()".into(),
            to: unit,
        });
        let word = |(name, offset): (&str, u64)| Field {
            name: name.into(),
            offset: at + offset,
            type_id: raw,
        };
        variants.push(Variant {
            name: object.into(),
            tag: None,
            fields: wide.words.into_iter().map(word).collect(),
        });
        Some(self.synthetic(Type::Enum(Enum {
            name: object.into(),
            bytes: of.bytes,
            tag: Some(Tag {
                offset: at + table,
                bytes: 8,
                signed: false,
            }),
            variants,
            origin: Origin::Library,
        })))
    }

    /// The type of what a pointer with a length, an `Arc` or an `Rc` leads to.
    pub(crate) fn led_to_by(&self, id: TypeId) -> Option<TypeId> {
        let shared = self.shared(id).map(|(to, _)| to);
        shared.or_else(|| self.tailed(id))
    }

    fn last_field(&self, id: TypeId) -> Option<Field> {
        match &*self.describe(id) {
            Type::Struct(of) => of.fields.last().cloned(),
            _ => None,
        }
    }

    /// A type that ends in a trait object, with a value of that type in its place, and what values
    /// of it lie at multiples of. Structures around the object are those of the library alone,
    /// because of others nothing says how they are aligned.
    fn with_object(&self, id: TypeId, object: &Implementor, depth: u32) -> Option<(TypeId, u64)> {
        let described = self.describe(id);
        let Type::Struct(of) = &*described else {
            return None;
        };
        if of.name.starts_with("dyn ") || of.name.starts_with("(dyn ") {
            return Some((object.type_id, object.align.max(1)));
        }
        if of.origin != Origin::Library {
            return None;
        }
        let mut own = of.clone();
        let (last, others) = own.fields.split_last_mut()?;
        let (inner, mut align) = self.with_object(last.type_id, object, depth.checked_sub(1)?)?;
        let end = others
            .iter()
            .map(|field| field.offset + self.size(field.type_id));
        last.offset = end.max().unwrap_or(0).next_multiple_of(align);
        last.type_id = inner;
        own.bytes = last.offset + self.size(inner);
        for field in others.iter() {
            align = align.max(self.align(field.type_id, depth)?);
        }
        own.bytes = own.bytes.next_multiple_of(align);
        Some((self.synthetic(Type::Struct(own)), align))
    }

    /// What values of a type of the library lie at multiples of.
    fn align(&self, id: TypeId, depth: u32) -> Option<u64> {
        match &*self.describe(id) {
            Type::Unit | Type::Boolean => Some(1),
            Type::Character => Some(4),
            Type::Integer { bytes, .. } | Type::Float { bytes } => Some((*bytes).into()),
            Type::Pointer { .. } | Type::Slice { .. } | Type::Str => Some(8),
            Type::Array { of, .. } => self.align(*of, depth.checked_sub(1)?),
            Type::Struct(of) if of.origin == Origin::Library => {
                let depth = depth.checked_sub(1)?;
                let fields = of.fields.iter();
                let mut aligns = fields.map(|field| self.align(field.type_id, depth));
                aligns.try_fold(1, |most, align| Some(align?.max(most)))
            }
            _ => None,
        }
    }

    /// The value that an object leads to, if it is a pointer with a length, an `Arc` or an `Rc`.
    pub(crate) fn led_to(&self, object: &Object, span: Span) -> Lowered<Option<Object>> {
        if let Some(to) = self.tailed(object.type_id) {
            return self.behind_wide(object, to, span).map(Some);
        }
        self.shared_content(object, span)
    }

    /// What a pointer with a length leads to, as that type.
    pub(crate) fn behind_wide(&self, pointer: &Object, to: TypeId, span: Span) -> Lowered<Object> {
        let word = |at| pointer.read(at, 8, false).ok_or_else(|| missing(span));
        let (address, length) = (word(0)?, word(8)?);
        let place = (pointer.space(), address);
        let mut content = Object::in_memory(to, place, pointer.present.clone());
        content.length = Some(length);
        Ok(content)
    }
}

/// The bytes of the counters in front of what an `Rc` or an `Arc` leads to.
const COUNTERS: u64 = 16;

/// The trait object in the name of a pointer to it: `dyn Shape` of `Rc<RefCell<dyn Shape>>`.
fn trait_object(name: &str) -> Option<&str> {
    let object = &name[name.find("dyn ")?..];
    let mut depth = 0_i32;
    let end = object.find(|letter| {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
        depth < 0
    });
    Some(&object[..end.unwrap_or(object.len())])
}

impl Object {
    /// A tail as the slice or the text that it is.
    pub(crate) fn sliced(self, types: &Types<'_>) -> Self {
        let Type::Tail { of, is_text } = *types.describe(self.type_id) else {
            return self;
        };
        let (Some(address), Some(length)) = (self.address(), self.length.clone()) else {
            return self;
        };
        let slice = match is_text {
            true => Type::Str,
            false => Type::Slice { of },
        };
        Self {
            type_id: types.synthetic(slice),
            at: At::words(self.space(), [address, length]),
            present: self.present,
            is_variant: false,
            length: None,
        }
    }
}

impl At {
    /// Two words, one after the other.
    fn words(space: Space, words: [Number; 2]) -> Self {
        let piece = |number| Piece {
            bytes: 8,
            source: Source::Value(number),
        };
        Self::Pieces {
            space,
            pieces: words.map(piece).into(),
            offset: 0,
        }
    }
}
