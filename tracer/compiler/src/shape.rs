//! How programs store values in keys, values and records, and how these bytes are read.
//!
//! The layout is our own, not that of the traced kernel's memory: fields follow each other without
//! gaps, an enum begins with the number of its variant, a text or a slice is its length and its
//! first bytes. So equal values have equal bytes, and the reader needs no debug information.

use alloc::{boxed::Box, collections::BTreeMap, rc::Rc, string::String, vec::Vec};

use crate::value::{UserStack, Value};

/// Names and shapes, in the order of storage.
pub(crate) type Fields = Vec<(Rc<str>, Shape)>;

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    Unit,
    /// A part of a value that the compiler of the kernel left out. It has no bytes.
    Unavailable,
    Unsigned(u8),
    Signed(u8),
    Boolean,
    /// The same in 8 bytes, as numbers are kept.
    Flag,
    Character,
    Float(u8),
    Address,
    Symbol {
        with_offset: bool,
    },
    /// The number of the probe's name in the upper 16 bits, the low 48 bits of the address.
    Probe,
    /// The number of a call stack in that map of the script, or a negated errno. A stack of a
    /// program has the program's name in its last two words.
    Stack {
        map: u32,
        is_user: bool,
    },
    /// Nanoseconds since the machine started, shown as this says.
    Time {
        format: Rc<str>,
    },
    /// A text that ends with a NUL; zeros fill it up.
    Text(u32),
    /// The length in 8 bytes, and the first bytes of a text; zeros fill it up.
    Counted(u32),
    /// The same of bytes that are no text.
    Bytes(u32),
    /// The length in 8 bytes, and the first elements; zeros fill it up.
    List {
        of: Box<Shape>,
        most: u32,
    },
    /// The first elements of an array that has `count`.
    Array {
        of: Box<Shape>,
        stored: u32,
        count: u64,
    },
    /// The same, if the elements are stored differently, because parts of them are unavailable.
    Items {
        items: Vec<Shape>,
        cut: bool,
    },
    Tuple(Vec<Shape>),
    Struct {
        name: Rc<str>,
        fields: Fields,
    },
    /// 1 in a byte and the value, or zeros: there is none.
    Maybe(Box<Shape>),
    /// The tag of an enum whose variants hold nothing, as it is in memory.
    Choice {
        name: Rc<str>,
        bytes: u8,
        variants: Vec<(u64, Rc<str>)>,
    },
    /// The number of the variant, in 1 or 2 bytes, and its fields. Zeros fill it up.
    Enum {
        name: Rc<str>,
        variants: Vec<(Rc<str>, Fields)>,
    },
}

/// The things that the reader knows beside the bytes.
#[derive(Debug, Default)]
pub(crate) struct Context {
    /// By map and number.
    pub(crate) stacks: BTreeMap<(u32, u64), Rc<[u64]>>,
    /// Of each name of a probe: the text, and whether a function's name follows.
    pub(crate) probes: Vec<(Rc<str>, bool)>,
    /// The time of day, in nanoseconds since 1970, at which the machine's clock was 0.
    pub(crate) epoch_of_zero: i128,
}

impl Shape {
    pub(crate) fn is_text(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Counted(_))
    }

    /// Whether conversions of numbers show it.
    pub(crate) fn is_number(&self) -> bool {
        match self {
            Self::Unsigned(_)
            | Self::Signed(_)
            | Self::Boolean
            | Self::Flag
            | Self::Character
            | Self::Address
            | Self::Symbol { .. }
            | Self::Time { .. } => true,
            Self::Maybe(of) => of.is_number(),
            _ => false,
        }
    }

    /// Whether nothing is left of a value, because all its parts are unavailable.
    pub(crate) fn is_lost(&self) -> bool {
        let all = |fields: &Fields| {
            let known = |shape: &Self| shape.bytes() > 0;
            !fields.iter().any(|(_, shape)| known(shape))
                && fields.iter().any(|(_, shape)| shape.is_lost())
        };
        match self {
            Self::Unavailable => true,
            Self::Items { items, .. } => items.iter().all(Self::is_lost),
            Self::Struct { fields, .. } => all(fields),
            Self::Maybe(of) => of.is_lost(),
            _ => false,
        }
    }

    /// Bytes of the number of a variant.
    pub(crate) fn tag_bytes(variants: usize) -> u32 {
        if variants > 256 { 2 } else { 1 }
    }

    pub(crate) fn bytes(&self) -> u32 {
        let sum = |fields: &[(Rc<str>, Self)]| -> u32 {
            fields
                .iter()
                .fold(0, |sum, (_, shape)| sum.saturating_add(shape.bytes()))
        };
        match self {
            Self::Unit | Self::Unavailable => 0,
            Self::Unsigned(bytes)
            | Self::Signed(bytes)
            | Self::Float(bytes)
            | Self::Choice { bytes, .. } => (*bytes).into(),
            Self::Boolean => 1,
            Self::Character => 4,
            Self::Flag
            | Self::Address
            | Self::Symbol { .. }
            | Self::Probe
            | Self::Stack { .. }
            | Self::Time { .. } => 8,
            Self::Text(bytes) => *bytes,
            Self::Counted(most) | Self::Bytes(most) => most.saturating_add(8),
            Self::List { of, most } => of.bytes().saturating_mul(*most).saturating_add(8),
            Self::Array { of, stored, .. } => of.bytes().saturating_mul(*stored),
            Self::Tuple(items) | Self::Items { items, .. } => items
                .iter()
                .fold(0, |sum, shape| sum.saturating_add(shape.bytes())),
            Self::Maybe(of) => of.bytes().saturating_add(1),
            Self::Struct { fields, .. } => sum(fields),
            Self::Enum { variants, .. } => {
                let most = variants.iter().map(|(_, fields)| sum(fields)).max();
                Self::tag_bytes(variants.len()).saturating_add(most.unwrap_or(0))
            }
        }
    }

    /// The value of bytes that a program stored. Bytes that are missing count as zeros.
    pub(crate) fn decode(&self, bytes: &[u8], context: &Context) -> Value {
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .take(8)
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let first = |most: usize| &bytes[..most.min(bytes.len())];
        let behind = |from: usize| bytes.get(from..).unwrap_or(&[]);
        let fields = |mut bytes: &[u8], fields: &[(Rc<str>, Self)]| {
            let field = |(name, shape): &(Rc<str>, Self)| {
                let value = shape.decode(bytes, context);
                bytes = bytes.get(shape.bytes() as usize..).unwrap_or(&[]);
                (name.clone(), value)
            };
            fields.iter().map(field).collect::<Vec<_>>()
        };
        match self {
            Self::Unit => Value::Unit,
            Self::Unavailable => Value::Unavailable,
            Self::Unsigned(size) => Value::Unsigned(number(first((*size).into()))),
            Self::Signed(size) => {
                let unused = 64 - 8 * u32::from(*size);
                let number = number(first((*size).into()));
                Value::Signed((number << unused).cast_signed() >> unused)
            }
            Self::Boolean => Value::Boolean(number(first(1)) != 0),
            Self::Flag => Value::Boolean(number(first(8)) != 0),
            Self::Character => {
                let code = number(first(4)) as u32;
                match char::from_u32(code) {
                    Some(character) => Value::Character(character),
                    None => Value::Unsigned(code.into()),
                }
            }
            Self::Float(4) => Value::Float(f32::from_bits(number(first(4)) as u32).into()),
            Self::Float(8) => Value::Float(f64::from_bits(number(first(8)))),
            Self::Float(size) => Value::Bytes(first((*size).into()).to_vec()),
            Self::Address => Value::Address(number(first(8))),
            Self::Symbol { with_offset } => Value::Symbol {
                address: number(first(8)),
                with_offset: *with_offset,
            },
            Self::Probe => {
                let number = number(first(8));
                let probe = context.probes.get((number >> 48) as usize);
                let (prefix, has_name) = probe.cloned().unwrap_or_default();
                Value::Probe {
                    prefix,
                    address: has_name
                        .then_some(((number << 16).cast_signed() >> 16).cast_unsigned()),
                }
            }
            // A negated errno is no number that a stack has.
            Self::Stack { map, is_user } => {
                let stack = context.stacks.get(&(*map, number(first(8))));
                match is_user {
                    false => Value::Stack(stack.cloned()),
                    true => Value::UserStack(stack.and_then(|words| user_stack(words))),
                }
            }
            Self::Time { format } => {
                let at = context.epoch_of_zero + i128::from(number(first(8)));
                Value::Text {
                    text: crate::time::format(format, at),
                    cut: false,
                }
            }
            Self::Text(size) => {
                let bytes = first(*size as usize);
                let end = bytes.iter().position(|byte| *byte == 0);
                Value::Text {
                    text: lossy(&bytes[..end.unwrap_or(bytes.len())]),
                    cut: false,
                }
            }
            Self::Counted(most) => {
                let length = number(first(8));
                let stored = length.min((*most).into()) as usize;
                let text = behind(8);
                Value::Text {
                    text: lossy(&text[..stored.min(text.len())]),
                    cut: length > (*most).into(),
                }
            }
            Self::Bytes(most) => {
                let stored = number(first(8)).min((*most).into()) as usize;
                let bytes = behind(8);
                Value::Bytes(bytes[..stored.min(bytes.len())].to_vec())
            }
            Self::List { of, most } => {
                let length = number(first(8));
                let stored = length.min((*most).into()) as usize;
                Value::List {
                    items: of.items(behind(8), stored, context),
                    cut: length > (*most).into(),
                }
            }
            Self::Array { of, stored, count } => Value::List {
                items: of.items(bytes, *stored as usize, context),
                cut: *count > (*stored).into(),
            },
            Self::Tuple(items) | Self::Items { items, .. } => {
                let mut rest = bytes;
                let item = |shape: &Self| {
                    let value = shape.decode(rest, context);
                    rest = rest.get(shape.bytes() as usize..).unwrap_or(&[]);
                    value
                };
                let items = items.iter().map(item).collect();
                match self {
                    Self::Items { cut, .. } => Value::List { items, cut: *cut },
                    _ => Value::Tuple(items),
                }
            }
            Self::Maybe(of) => match number(first(1)) {
                0 => Value::Absent,
                _ => of.decode(behind(1), context),
            },
            Self::Struct { name, fields: of } => Value::Struct {
                name: name.clone(),
                fields: fields(bytes, of),
            },
            Self::Choice {
                name,
                bytes,
                variants,
            } => {
                let tag = number(first((*bytes).into()));
                match variants.iter().find(|(known, _)| *known == tag) {
                    Some((_, variant)) => Value::Variant {
                        of: name.clone(),
                        name: variant.clone(),
                        fields: Vec::new(),
                    },
                    None => Value::Unsigned(tag),
                }
            }
            Self::Enum { name, variants } => {
                let tag = Self::tag_bytes(variants.len()) as usize;
                match variants.get(number(first(tag)) as usize) {
                    Some((variant, of)) => Value::Variant {
                        of: name.clone(),
                        name: variant.clone(),
                        fields: fields(behind(tag), of),
                    },
                    None => Value::Bytes(bytes.to_vec()),
                }
            }
        }
    }

    fn items(&self, bytes: &[u8], count: usize, context: &Context) -> Vec<Value> {
        let size = self.bytes() as usize;
        (0..count)
            .map(|index| self.decode(bytes.get(index * size..).unwrap_or(&[]), context))
            .collect()
    }
}

/// The frames of a program, and its name behind them.
fn user_stack(words: &[u64]) -> Option<UserStack> {
    let (addresses, name) = words.split_last_chunk::<2>()?;
    let name = name.map(u64::to_le_bytes);
    let name = name.as_flattened();
    let end = name.iter().position(|byte| *byte == 0);
    Some(UserStack {
        program: lossy(&name[..end.unwrap_or(name.len())]).into(),
        addresses: addresses.into(),
    })
}

/// A text; bytes that are none become U+FFFD.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
