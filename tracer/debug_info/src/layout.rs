//! How Rust hands back a result on this target, told from its type.
//!
//! The Rust ABI is not promised, but it is a function of the compiler's layout of the type, which
//! is followed here: a type is one scalar, a pair of scalars, or memory. One scalar comes back in
//! `rax`, and in `rdx` what is above its low 8 bytes; a pair as one number in each; memory of up to
//! 8 bytes in `rax`; and all else is where `rdi` pointed at the entry. Nothing says that `rax`
//! points there at the return. The tests hold it against results of each shape.
//!
//! LAYOUT-1. Where Rust's and C's ABI differ and nothing says which one a function has, nothing is
//!     returned.
//! LAYOUT-2. A structure around one scalar is that scalar, but it is memory if it has C's
//!     representation, of which nothing tells. Where it is a part of a pair, the pair is memory
//!     then, and comes back elsewhere: [`Shape::may_be_memory`].

use trace_interface::symbols::{Enum, Field, Origin, Struct, Type, TypeId};

use crate::{session::Session, types};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar {
    pub bytes: u64,
    align: u64,
    float: bool,
    /// Whether a structure of the source is around it.
    is_in_structure: bool,
}

impl Scalar {
    /// One by itself, which lies at multiples of its size.
    const fn of(bytes: u64) -> Self {
        Self {
            bytes,
            align: bytes,
            float: false,
            is_in_structure: false,
        }
    }
}

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Empty,
    Scalar(Scalar),
    /// The second one at an offset.
    Pair(Scalar, Scalar, u64),
    Memory,
}

impl Shape {
    /// Whether this is a pair that may be memory instead (LAYOUT-2).
    pub fn may_be_memory(self) -> bool {
        matches!(self, Self::Pair(a, b, _) if a.is_in_structure || b.is_in_structure)
    }
}

struct Layout {
    bytes: u64,
    align: u64,
    shape: Shape,
}

/// The shape of a type. None if the debug information does not say enough.
pub fn shape(session: &Session, id: TypeId) -> Option<Shape> {
    layout(session, id, 0).map(|layout| layout.shape)
}

/// What values of a type lie at multiples of. None if the debug information does not say enough.
pub fn align(session: &Session, id: TypeId) -> Option<u64> {
    layout(session, id, 0).map(|layout| layout.align)
}

fn scalar(bytes: u64, float: bool) -> Layout {
    let scalar = Scalar {
        float,
        ..Scalar::of(bytes)
    };
    Layout {
        bytes,
        align: bytes,
        shape: Shape::Scalar(scalar),
    }
}

fn layout(session: &Session, id: TypeId, depth: u32) -> Option<Layout> {
    // Types are nested in each other without end only where the file is damaged.
    if depth > 64 {
        return None;
    }
    let bytes = types::size(session, id)?;
    if id == types::UNIT {
        return Some(Layout {
            bytes,
            align: 1,
            shape: Shape::Empty,
        });
    }
    let entry = session.entry(id.0)?;
    let align = entry.number(gimli::DW_AT_alignment);
    let is_union = entry.entry.tag() == gimli::DW_TAG_union_type;
    Some(match types::describe(session, id) {
        Type::Unit => Layout {
            bytes,
            align: 1,
            shape: Shape::Empty,
        },
        Type::Integer { .. } | Type::Boolean | Type::Character | Type::Pointer { .. } => {
            scalar(bytes, false)
        }
        Type::Float { .. } => scalar(bytes, true),
        Type::Slice { .. } | Type::Str => {
            let pointer = Scalar::of(8);
            Layout {
                bytes,
                align: 8,
                shape: Shape::Pair(pointer, pointer, 8),
            }
        }
        Type::Array { of, .. } => Layout {
            bytes,
            align: layout(session, of, depth + 1)?.align,
            shape: if bytes == 0 {
                Shape::Empty
            } else {
                Shape::Memory
            },
        },
        Type::Struct(structure) => {
            let align = align?;
            let mut shape = fields(session, &structure.fields, bytes, align, depth)?;
            // Atomic types have the layout of C, and so has what assembly reads.
            if matches!(shape, Shape::Scalar(_)) && structure.name.starts_with("Atomic") {
                shape = Shape::Memory;
            }
            if let Shape::Scalar(scalar) = &mut shape {
                scalar.is_in_structure |= may_be_of_c(&structure);
            }
            if is_union && matches!(shape, Shape::Pair(..)) && structure.fields.len() > 2 {
                return None;
            }
            Layout {
                bytes,
                align,
                shape,
            }
        }
        Type::Enum(enumeration) if entry.entry.tag() == gimli::DW_TAG_enumeration_type => {
            match enumeration.tag {
                Some(tag) => scalar(u64::from(tag.bytes), false),
                None => Layout {
                    bytes,
                    align: 1,
                    shape: Shape::Empty,
                },
            }
        }
        Type::Enum(enumeration) => {
            let align = align?;
            Layout {
                bytes,
                align,
                shape: variants(session, &enumeration, align, depth)?,
            }
        }
        Type::Opaque { .. } | Type::Tail { .. } => return None,
    })
}

/// Whether a structure may have C's representation: not a tuple, nor the variables of a closure.
fn may_be_of_c(structure: &Struct) -> bool {
    structure.origin != Origin::Library && !structure.name.starts_with(['(', '{'])
}

/// The fields that have bytes.
fn filled(session: &Session, fields: &[Field], depth: u32) -> Option<Vec<(u64, Layout)>> {
    let mut filled = Vec::new();
    for field in fields {
        let layout = layout(session, field.type_id, depth + 1)?;
        if layout.bytes > 0 {
            filled.push((field.offset, layout));
        }
    }
    filled.sort_by_key(|(offset, _)| *offset);
    Some(filled)
}

/// The shape of a structure.
fn fields(
    session: &Session,
    fields: &[Field],
    bytes: u64,
    align: u64,
    depth: u32,
) -> Option<Shape> {
    let filled = filled(session, fields, depth)?;
    Some(match &filled[..] {
        _ if bytes == 0 => Shape::Empty,
        [(0, only)] if only.bytes == bytes && only.align == align => only.shape,
        [(0, a), (at, b)] => match (a.shape, b.shape) {
            (Shape::Scalar(a), Shape::Scalar(b)) => pair(a, b, *at, bytes, align),
            _ => Shape::Memory,
        },
        _ => Shape::Memory,
    })
}

/// A pair, if two scalars lie as those of one do.
fn pair(a: Scalar, b: Scalar, at: u64, bytes: u64, align: u64) -> Shape {
    let second = a.bytes.next_multiple_of(b.align);
    let own_align = a.align.max(b.align);
    let whole = (second + b.bytes).next_multiple_of(own_align);
    if second == at && whole == bytes && own_align == align {
        Shape::Pair(a, b, at)
    } else {
        Shape::Memory
    }
}

/// The shape of an enumeration with data.
fn variants(session: &Session, all: &Enum, align: u64, depth: u32) -> Option<Shape> {
    let Some(tag) = all.tag else {
        return match &all.variants[..] {
            [only] => fields(session, &only.fields, all.bytes, align, depth),
            // There is no value of it.
            [] if all.bytes == 0 => Some(Shape::Empty),
            _ => None,
        };
    };
    if let Some(data) = all.variants.iter().find(|variant| variant.tag.is_none()) {
        // Where a niche of one variant tells them apart, that one's shape is the shape of all,
        // unless another one has data, too.
        for variant in &all.variants {
            if variant.tag.is_some() && !filled(session, &variant.fields, depth)?.is_empty() {
                return Some(Shape::Memory);
            }
        }
        return fields(session, &data.fields, all.bytes, align, depth);
    }
    let tag_bytes = u64::from(tag.bytes);
    let tag_scalar = Scalar::of(tag_bytes);
    if tag_bytes == all.bytes {
        return Some(Shape::Scalar(tag_scalar));
    }
    let mut common: Option<(u64, Scalar)> = None;
    let mut is_in_structure = false;
    for variant in &all.variants {
        match &filled(session, &variant.fields, depth)?[..] {
            [] => {}
            [(offset, layout)] => {
                let Shape::Scalar(scalar) = layout.shape else {
                    return Some(Shape::Memory);
                };
                is_in_structure |= scalar.is_in_structure;
                let scalar = Scalar {
                    is_in_structure: false,
                    ..scalar
                };
                match common {
                    None => common = Some((*offset, scalar)),
                    Some(before) if before == (*offset, scalar) => {}
                    Some(_) => return Some(Shape::Memory),
                }
            }
            _ => return Some(Shape::Memory),
        }
    }
    let Some((offset, scalar)) = common.filter(|_| tag.offset == 0) else {
        return Some(Shape::Memory);
    };
    let scalar = Scalar {
        is_in_structure,
        ..scalar
    };
    Some(pair(tag_scalar, scalar, offset, all.bytes, align))
}
