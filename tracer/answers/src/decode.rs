//! The values of bytes that a program stored.
//!
//! A shape tells how the bytes are read, and nothing else is asked. Bytes that are not there count
//! as zeros. What could not be read at the hit has a mark of its own in each shape.
//!
//! A shape says how many bytes there are, and what they mean. Bytes that are missing count as
//! zeros, so nothing here fails: a record that was cut has the value of its beginning.

use alloc::{collections::BTreeMap, rc::Rc, string::String, vec::Vec};

use core::time::Duration;

use trace_interface::shape::{Form, Shape, UNREADABLE, UNREADABLE_TEXT};

use crate::value::{UserStack, Value};

/// The things that the reader knows beside the bytes.
#[derive(Debug, Default)]
pub(crate) struct Context {
    /// Call stacks by map and number.
    pub(crate) stacks: BTreeMap<(u32, u64), Rc<[u64]>>,
    /// Each name of a probe: the text, and whether a function's name follows.
    pub(crate) probes: Vec<(Rc<str>, bool)>,
    /// The time of day, in nanoseconds since 1970, at which the machine's clock was 0. None: the
    /// kernel does not know the time of day.
    pub(crate) epoch_of_zero: Option<i128>,
}

/// Stands for a time of day of a kernel that does not know it.
const NO_TIME: &str = "(no time of day)\n";

/// The value of bytes that a program stored in a shape. Bytes that are missing count as zeros.
pub(crate) fn decode(shape: &Shape, bytes: &[u8], context: &Context) -> Value {
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .take(8)
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let first = |most: usize| &bytes[..most.min(bytes.len())];
    let behind = |from: usize| bytes.get(from..).unwrap_or(&[]);
    let fields = |mut bytes: &[u8], fields: &[(Rc<str>, Shape)]| {
        let field = |(name, shape): &(Rc<str>, Shape)| {
            let value = decode(shape, bytes, context);
            bytes = bytes.get(shape.bytes() as usize..).unwrap_or(&[]);
            (name.clone(), value)
        };
        fields.iter().map(field).collect::<Vec<_>>()
    };
    match shape {
        Shape::Unit => Value::Unit,
        Shape::Unavailable => Value::Unavailable,
        Shape::Deeper => Value::Deeper,
        Shape::Behind(of) => match number(first(1)) {
            0 => Value::Unreadable,
            _ => decode(of, behind(1), context),
        },
        Shape::Unsigned(16) => Value::Wide(wide(first(16))),
        Shape::Signed(16) => Value::SignedWide(wide(first(16)).cast_signed()),
        Shape::Duration => {
            let nanoseconds = number(behind(8).get(..4).unwrap_or(&[])) as u32;
            let seconds = Duration::from_secs(number(first(8)));
            Value::Duration(seconds.saturating_add(Duration::new(0, nanoseconds)))
        }
        Shape::Unsigned(size) => Value::Unsigned(number(first((*size).into()))),
        Shape::Signed(size) => {
            let unused = 64 - 8 * u32::from(*size);
            let number = number(first((*size).into()));
            Value::Signed((number << unused).cast_signed() >> unused)
        }
        Shape::Literal => Value::Signed(number(first(8)).cast_signed()),
        Shape::Boolean => match number(first(1)) {
            0 => Value::Boolean(false),
            1 => Value::Boolean(true),
            _ => Value::Invalid,
        },
        Shape::Flag => Value::Boolean(number(first(8)) != 0),
        Shape::Character => {
            let code = number(first(4)) as u32;
            match char::from_u32(code) {
                Some(character) => Value::Character(character),
                None => Value::Invalid,
            }
        }
        Shape::Float(4) => Value::Single(f32::from_bits(number(first(4)) as u32)),
        Shape::Float(8) => Value::Float(f64::from_bits(number(first(8)))),
        Shape::Float(size) => Value::Bytes(first((*size).into()).to_vec()),
        Shape::Address { .. } => Value::Address(number(first(8))),
        Shape::Symbol { with_offset } => Value::Symbol {
            address: number(first(8)),
            with_offset: *with_offset,
        },
        Shape::UserSymbol => Value::UserSymbol {
            program: name_of(behind(8).get(..16).unwrap_or(behind(8))).into(),
            address: number(first(8)),
        },
        Shape::Probe => {
            let number = number(first(8));
            let probe = context.probes.get((number >> 48) as usize);
            let (prefix, has_name) = probe.cloned().unwrap_or_default();
            Value::Probe {
                prefix,
                address: has_name.then_some(((number << 16).cast_signed() >> 16).cast_unsigned()),
            }
        }
        // A negated errno is no number that a stack has.
        Shape::Stack { map, is_user, form } => {
            let stack = context.stacks.get(&(*map, number(first(8))));
            match is_user {
                false => Value::Stack(*form, stack.cloned()),
                true => Value::UserStack(*form, stack.and_then(|words| user_stack(words))),
            }
        }
        Shape::Named(naming) => Value::Named(*naming, number(first(8)).cast_signed()),
        Shape::Time { format } => {
            let since_zero = i128::from(number(first(8)));
            let at = context.epoch_of_zero.map(|zero| zero + since_zero);
            let text = match at {
                Some(at) => crate::time::format(format, at),
                None if format.ends_with('\n') => NO_TIME.into(),
                None => NO_TIME.trim_end().into(),
            };
            Value::Text { text, cut: false }
        }
        Shape::Text(_) if bytes.starts_with(&UNREADABLE_TEXT) => Value::Unreadable,
        Shape::Text(size) => text_of(before_nul(first(*size as usize)), false),
        Shape::Counted(_) | Shape::Bytes(_) | Shape::List { .. } | Shape::Slots { .. }
            if number(first(8)) == UNREADABLE =>
        {
            Value::Unreadable
        }
        Shape::Counted(most) => {
            let length = number(first(8));
            let stored = length.min((*most).into()) as usize;
            let text = behind(8);
            text_of(&text[..stored.min(text.len())], length > (*most).into())
        }
        Shape::Bytes(most) => {
            let stored = number(first(8)).min((*most).into()) as usize;
            let bytes = behind(8);
            Value::Bytes(bytes[..stored.min(bytes.len())].to_vec())
        }
        Shape::List { of, most, form } => {
            let length = number(first(8));
            let stored = length.min((*most).into());
            Value::List {
                items: items(of, behind(8), stored as usize, context),
                more: length - stored,
                form: *form,
            }
        }
        Shape::Slots { of, most, form } => {
            let slot = of.bytes() as usize + 1;
            let slots = behind(8).chunks(slot).take(*most as usize);
            let filled = slots.filter(|slot| slot[0] != 0);
            let items: Vec<Value> = filled.map(|slot| decode(of, &slot[1..], context)).collect();
            Value::List {
                more: number(first(8)).saturating_sub(items.len() as u64),
                items,
                form: *form,
            }
        }
        Shape::Array { of, stored, count } => Value::List {
            items: items(of, bytes, *stored as usize, context),
            more: count.saturating_sub((*stored).into()),
            form: Form::List,
        },
        Shape::Tuple(items) | Shape::Items { items, .. } => {
            let mut rest = bytes;
            let item = |shape: &Shape| {
                let value = decode(shape, rest, context);
                rest = rest.get(shape.bytes() as usize..).unwrap_or(&[]);
                value
            };
            let items = items.iter().map(item).collect();
            match shape {
                Shape::Items { more, .. } => Value::List {
                    items,
                    more: *more,
                    form: Form::List,
                },
                _ => Value::Tuple(items),
            }
        }
        Shape::Maybe(of) => match number(first(1)) {
            0 => decode(of, behind(1), context),
            _ => Value::Absent,
        },
        Shape::Record(of) => Value::Struct {
            name: "".into(),
            fields: fields(bytes, of),
        },
        Shape::Struct { name, fields: of } => Value::Struct {
            name: name.clone(),
            fields: fields(bytes, of),
        },
        Shape::Choice {
            name,
            bytes,
            variants,
        } => {
            let tag = wide(first((*bytes).into()));
            match variants.iter().find(|(known, _)| *known == tag) {
                Some((_, variant)) => Value::Variant {
                    of: name.clone(),
                    name: variant.clone(),
                    fields: Vec::new(),
                },
                None => Value::Invalid,
            }
        }
        Shape::Enum { name, variants } => {
            let tag = Shape::tag_bytes(variants.len()) as usize;
            match variants.get(number(first(tag)) as usize) {
                Some((variant, of)) => Value::Variant {
                    of: name.clone(),
                    name: variant.clone(),
                    fields: fields(behind(tag), of),
                },
                None => Value::Invalid,
            }
        }
    }
}

/// Up to 16 bytes as a number.
fn wide(bytes: &[u8]) -> u128 {
    let number = |sum, byte: &u8| sum << 8 | u128::from(*byte);
    bytes.iter().rev().fold(0, number)
}

fn items(shape: &Shape, bytes: &[u8], count: usize, context: &Context) -> Vec<Value> {
    let size = shape.bytes() as usize;
    (0..count)
        .map(|index| decode(shape, bytes.get(index * size..).unwrap_or(&[]), context))
        .collect()
}

/// The frames of a program, and its name after them.
fn user_stack(words: &[u64]) -> Option<UserStack> {
    let (addresses, name) = words.split_last_chunk::<2>()?;
    let name = name.map(u64::to_le_bytes);
    Some(UserStack {
        program: name_of(name.as_flattened()).into(),
        addresses: addresses.into(),
    })
}

/// The bytes in front of a NUL.
fn before_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// The name of a program; bytes that are no text become U+FFFD.
fn name_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(before_nul(bytes)).into_owned()
}

/// The text that bytes are. Of a text that was cut, the last character may be in part.
fn text_of(bytes: &[u8], cut: bool) -> Value {
    let whole = match core::str::from_utf8(bytes) {
        Err(error) if cut && error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    };
    match core::str::from_utf8(whole) {
        Ok(text) => Value::Text {
            text: text.into(),
            cut,
        },
        Err(_) => Value::NoText {
            bytes: bytes.into(),
            cut,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_no_value_has_are_no_value() {
        let decoded = |shape: Shape, bytes: &[u8]| decode(&shape, bytes, &Context::default());
        assert_eq!(decoded(Shape::Boolean, &[1]), Value::Boolean(true));
        for byte in [2, 0x80, 0xfe, 0xff] {
            assert_eq!(decoded(Shape::Boolean, &[byte]), Value::Invalid);
        }
        for code in [0xd800, 0xdfff, 0x11_0000, u32::MAX] {
            let bytes = code.to_le_bytes();
            assert_eq!(decoded(Shape::Character, &bytes), Value::Invalid);
        }
        let choice = Shape::Choice {
            name: "Level".into(),
            bytes: 1,
            variants: [(0, "Low".into()), (200, "High".into())].into(),
        };
        assert_eq!(decoded(choice, &[100]), Value::Invalid);
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let decoded = |text: &[u8], length: u64| {
            let bytes = [&length.to_le_bytes(), text].concat();
            decode(&Shape::Counted(4), &bytes, &Context::default())
        };
        let text = |text: &str, cut| Value::Text {
            text: text.into(),
            cut,
        };
        assert_eq!(decoded("aß".as_bytes(), 3), text("aß", false));
        assert_eq!(decoded(b"abc\xc3", 5), text("abc", true));
        let no_text = |bytes: &[u8], cut| Value::NoText {
            bytes: bytes.into(),
            cut,
        };
        assert_eq!(decoded(b"abc\xc3", 4), no_text(b"abc\xc3", false));
        assert_eq!(decoded(b"\xffabc", 5), no_text(b"\xffabc", true));
        // So are those of a text that a NUL ends.
        let until_nul = |bytes: &[u8]| decode(&Shape::Text(8), bytes, &Context::default());
        assert_eq!(until_nul("aß\0bcd\0".as_bytes()), text("aß", false));
        assert_eq!(until_nul(b"a\xc3\0bcde\0"), no_text(b"a\xc3", false));
    }
}
