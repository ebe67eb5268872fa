//! Types, as the source has them.
//!
//! TYPES-1. A type's number is the offset of its entry; [`UNIT`] is the type of what has none. A
//!     type that several units describe has several numbers.

use trace_interface::symbols::{Enum, Field, Origin, Struct, Tag, Type, TypeId, Variant};

use crate::{
    names,
    session::{Found, Session},
};

/// `()`, where the debug information leaves it out.
pub const UNIT: TypeId = TypeId(u64::MAX);

/// The type of an entry or of what it continues.
pub fn of(session: &Session, entry: u64) -> TypeId {
    session
        .inherited(entry, |found| found.reference(gimli::DW_AT_type))
        .map_or(UNIT, TypeId)
}

/// A type's size in bytes.
pub fn size(session: &Session, id: TypeId) -> Option<u64> {
    if id == UNIT {
        return Some(0);
    }
    let found = session.entry(id.0)?;
    match found.entry.tag() {
        gimli::DW_TAG_pointer_type => Some(8),
        gimli::DW_TAG_array_type => {
            let count = array_count(session, id)?;
            size(session, of(session, id.0))?.checked_mul(count)
        }
        gimli::DW_TAG_typedef => size(session, of(session, id.0)),
        _ => found.number(gimli::DW_AT_byte_size),
    }
}

fn array_count(session: &Session, id: TypeId) -> Option<u64> {
    let mut count = None;
    session.children(id.0, |child| {
        if child.entry.tag() == gimli::DW_TAG_subrange_type {
            count = child.number(gimli::DW_AT_count).or_else(|| {
                child
                    .number(gimli::DW_AT_upper_bound)
                    .map(|last| last.wrapping_add(1))
            });
        }
    });
    count
}

/// A type's name, as one writes it.
pub fn name(session: &Session, id: TypeId) -> String {
    if id == UNIT {
        return "()".into();
    }
    let Some(found) = session.entry(id.0) else {
        return "?".into();
    };
    if let Some(name) = found.name(session) {
        return names::short(&name);
    }
    let inner = of(session, id.0);
    match found.entry.tag() {
        gimli::DW_TAG_array_type => {
            let count = array_count(session, id).unwrap_or_default();
            format!("[{}; {count}]", name_of(session, inner))
        }
        gimli::DW_TAG_pointer_type => format!("*{}", name_of(session, inner)),
        _ => "?".into(),
    }
}

fn name_of(session: &Session, id: TypeId) -> String {
    name(session, id)
}

/// The parts of a type.
pub fn describe(session: &Session, id: TypeId) -> Type {
    describe_inside(session, id, 0)
}

/// The same for a type that so many others have inside.
fn describe_inside(session: &Session, id: TypeId, depth: u32) -> Type {
    if id == UNIT {
        return Type::Unit;
    }
    let opaque = || Type::Opaque {
        name: name(session, id),
        bytes: size(session, id).unwrap_or_default(),
    };
    let Some(found) = session.entry(id.0) else {
        return opaque();
    };
    match found.entry.tag() {
        gimli::DW_TAG_base_type => base(&found).unwrap_or_else(opaque),
        gimli::DW_TAG_pointer_type => Type::Pointer {
            name: name(session, id),
            to: of(session, id.0),
        },
        gimli::DW_TAG_typedef => describe_inside(session, of(session, id.0), depth),
        gimli::DW_TAG_array_type => match array_count(session, id) {
            Some(count) => Type::Array {
                of: of(session, id.0),
                count,
            },
            None => opaque(),
        },
        gimli::DW_TAG_enumeration_type => enumeration(session, &found, id),
        gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type => {
            structure(session, &found, id, depth).unwrap_or_else(opaque)
        }
        _ => opaque(),
    }
}

fn base(found: &Found) -> Option<Type> {
    let bytes = u8::try_from(found.number(gimli::DW_AT_byte_size)?).ok()?;
    let gimli::AttributeValue::Encoding(encoding) =
        found.entry.attr_value(gimli::DW_AT_encoding)?
    else {
        return None;
    };
    Some(match encoding {
        _ if bytes == 0 => Type::Unit,
        gimli::DW_ATE_boolean => Type::Boolean,
        gimli::DW_ATE_UTF => Type::Character,
        gimli::DW_ATE_float => Type::Float { bytes },
        gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => Type::Integer {
            bytes,
            signed: true,
        },
        gimli::DW_ATE_unsigned | gimli::DW_ATE_unsigned_char => Type::Integer {
            bytes,
            signed: false,
        },
        _ => return None,
    })
}

/// Whether a type is one of signed integers.
fn is_signed(session: &Session, id: TypeId) -> bool {
    matches!(describe(session, id), Type::Integer { signed: true, .. })
}

/// Keeps the bits of a tag.
fn mask(value: u128, bytes: u8) -> u128 {
    match bytes {
        16.. => value,
        _ => value & ((1 << (8 * u32::from(bytes))) - 1),
    }
}

/// A number that the debug information gives in as few bytes as it has. One of a signed type has
/// the sign of those.
fn number(found: &Found, attribute: gimli::DwAt, signed: bool) -> Option<u128> {
    use gimli::AttributeValue::{Block, Data1, Data2, Data4, Data8, Sdata, Udata};
    let extended = |number: i64| i128::from(number).cast_unsigned();
    Some(match (found.entry.attr(attribute)?.raw_value(), signed) {
        (Data1(number), true) => extended(number.cast_signed().into()),
        (Data2(number), true) => extended(number.cast_signed().into()),
        (Data4(number), true) => extended(number.cast_signed().into()),
        (Data8(number), true) => extended(number.cast_signed()),
        (Data1(number), false) => number.into(),
        (Data2(number), false) => number.into(),
        (Data4(number), false) => number.into(),
        (Data8(number), false) => number.into(),
        (Sdata(number), _) => extended(number),
        (Udata(number), _) => number.into(),
        (Block(bytes), _) => {
            let mut number = [0; 16];
            let bytes = bytes.slice();
            number.get_mut(..bytes.len())?.copy_from_slice(bytes);
            u128::from_le_bytes(number)
        }
        _ => return None,
    })
}

/// An enumeration of which no variant has data.
fn enumeration(session: &Session, found: &Found, id: TypeId) -> Type {
    let bytes = found.number(gimli::DW_AT_byte_size).unwrap_or_default();
    let tag = u8::try_from(bytes).unwrap_or_default();
    let signed = is_signed(session, of(session, id.0));
    let mut variants = Vec::new();
    session.children(id.0, |child| {
        if child.entry.tag() == gimli::DW_TAG_enumerator {
            let value = number(child, gimli::DW_AT_const_value, signed);
            variants.push(Variant {
                name: child.name(session).unwrap_or_default(),
                tag: value.map(|value| mask(value, tag)),
                fields: Vec::new(),
            });
        }
    });
    Type::Enum(Enum {
        name: name(session, id),
        bytes,
        tag: (tag > 0).then_some(Tag {
            offset: 0,
            bytes: tag,
            signed,
        }),
        variants,
        origin: origin(session, id),
    })
}

fn structure(session: &Session, found: &Found, id: TypeId, depth: u32) -> Option<Type> {
    let bytes = found.number(gimli::DW_AT_byte_size)?;
    let mut part = None;
    session.children(id.0, |child| {
        if child.entry.tag() == gimli::DW_TAG_variant_part {
            part = Some(child.offset());
        }
    });
    let full_name = found.name(session).unwrap_or_default();
    let name = match full_name.split('<').next() {
        // These are shown with the whole paths of their parameters.
        Some("PhantomData" | "MaybeUninit") if session.is_of_library(id.0) => {
            names::of_library(&full_name)
        }
        _ => names::short(&full_name),
    };
    if let Some(part) = part {
        let origin = origin(session, id);
        return variants(session, part, (name, bytes, origin), depth).map(Type::Enum);
    }
    let fields = fields(session, id, 0, is_environment(&full_name));
    if let [data, length] = &fields[..]
        && data.name == "data_ptr"
        && length.name == "length"
    {
        let to = of(session, data.type_id.0);
        let pointee = full_name
            .strip_prefix("alloc::boxed::Box<")
            .or_else(|| full_name.strip_prefix("&mut "))
            .or_else(|| full_name.strip_prefix('&'))
            .unwrap_or_default();
        if pointee == "str" || pointee.starts_with("str,") || pointee == "str>" {
            return Some(Type::Str);
        }
        if pointee.starts_with('[') {
            return Some(Type::Slice { of: to });
        }
    }
    // The compiler describes pointers with more than an address, by names with whole paths.
    let is_pointer = ["&", "*const ", "*mut ", "alloc::boxed::Box<"];
    let origin = match found.entry.tag() {
        gimli::DW_TAG_union_type => Origin::Union,
        _ if is_pointer.iter().any(|begin| full_name.starts_with(begin)) => Origin::Library,
        _ => origin(session, id),
    };
    Some(Type::Struct(Struct {
        name,
        bytes,
        fields,
        parameters: parameters(session, id),
        origin,
    }))
}

/// Whose a structure or an enum is.
fn origin(session: &Session, id: TypeId) -> Origin {
    match session.is_of_library(id.0) {
        true => Origin::Library,
        false => Origin::Source,
    }
}

/// The types in angle brackets after a type's name.
fn parameters(session: &Session, id: TypeId) -> Vec<TypeId> {
    let mut parameters = Vec::new();
    session.children(id.0, |child| {
        if child.entry.tag() == gimli::DW_TAG_template_type_parameter {
            parameters.push(of(session, child.offset()));
        }
    });
    parameters
}

/// Whether a type is what a closure or a coroutine holds.
fn is_environment(name: &str) -> bool {
    name.starts_with('{')
}

/// The fields of a structure that lies at an offset, or of an environment.
fn fields(session: &Session, id: TypeId, base: u64, environment: bool) -> Vec<Field> {
    let mut fields = Vec::new();
    session.children(id.0, |child| {
        let artificial = child.entry.has_attr(gimli::DW_AT_artificial);
        if child.entry.tag() == gimli::DW_TAG_member && !artificial {
            let name = child.name(session).unwrap_or_default();
            // What a closure holds by reference has its name in the source.
            let name = match name.strip_prefix("_ref__") {
                Some(name) if environment => name,
                _ => &name,
            };
            fields.push(Field {
                name: name.into(),
                offset: base
                    + child
                        .number(gimli::DW_AT_data_member_location)
                        .unwrap_or_default(),
                type_id: of(session, child.offset()),
            });
        }
    });
    // Fields without a name are `__0`, `__1` and so on here, and numbers in the source.
    let in_order = |(number, field): (usize, &Field)| field.name == format!("__{number}");
    let mut sorted: Vec<&Field> = fields.iter().collect();
    sorted.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    if sorted.into_iter().enumerate().all(in_order) {
        for field in &mut fields {
            field.name.drain(..2);
        }
    }
    fields
}

fn variants(
    session: &Session,
    part: u64,
    (name, bytes, origin): (String, u64, Origin),
    depth: u32,
) -> Option<Enum> {
    let tag = match session.entry(part)?.reference(gimli::DW_AT_discr) {
        None => None,
        Some(member) => {
            let found = session.entry(member)?;
            let held = of(session, member);
            Some(Tag {
                offset: found
                    .number(gimli::DW_AT_data_member_location)
                    .unwrap_or_default(),
                bytes: u8::try_from(size(session, held)?)
                    .ok()
                    .filter(|bytes| *bytes <= 16)?,
                signed: is_signed(session, held),
            })
        }
    };
    let mut damaged = false;
    let mut variants = Vec::new();
    session.children(part, |child| {
        if child.entry.tag() != gimli::DW_TAG_variant {
            return;
        }
        let value = match child.entry.attr(gimli::DW_AT_discr_value) {
            None => None,
            Some(_) => {
                let signed = tag.is_some_and(|tag| tag.signed);
                let value = number(child, gimli::DW_AT_discr_value, signed);
                damaged |= value.is_none();
                value
            }
        };
        session.children(child.offset(), |member| {
            let place = member
                .number(gimli::DW_AT_data_member_location)
                .unwrap_or_default();
            let content = of(session, member.offset());
            variants.push(Variant {
                name: member.name(session).unwrap_or_default(),
                tag: tag.and_then(|tag| value.map(|value| mask(value, tag.bytes))),
                fields: fields(session, content, place, is_environment(&name)),
            });
        });
    });
    if damaged {
        return None;
    }
    if tag.is_none() {
        // Some variants can have no value.
        variants.retain(|variant: &Variant| !is_impossible(session, &variant.fields, depth));
    }
    Some(Enum {
        name,
        bytes,
        tag,
        variants,
        origin,
    })
}

/// Whether there is no value of a type, as of `!` and `Infallible`.
fn is_never(session: &Session, id: TypeId, depth: u32) -> bool {
    if id == UNIT || depth > 16 {
        return false;
    }
    match describe_inside(session, id, depth) {
        Type::Unit => session
            .entry(id.0)
            .is_some_and(|found| found.name(session).as_deref() == Some("!")),
        Type::Array { of, count } => count > 0 && is_never(session, of, depth + 1),
        // Without a tag, those that can have no value are left out.
        Type::Enum(all) if all.tag.is_none() => all.variants.is_empty(),
        Type::Enum(all) => {
            let mut variants = all.variants.iter();
            variants.all(|variant| is_impossible(session, &variant.fields, depth))
        }
        // Nothing says that a union has the field that can have no value.
        Type::Struct(all) => {
            all.origin != Origin::Union && is_impossible(session, &all.fields, depth)
        }
        _ => false,
    }
}

/// Whether fields can have no values, because one of them has none.
fn is_impossible(session: &Session, fields: &[Field], depth: u32) -> bool {
    let mut types = fields.iter().map(|field| field.type_id);
    types.any(|id| is_never(session, id, depth + 1))
}
