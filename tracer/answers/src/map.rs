//! The entries of a map: its keys and values, those of all CPUs together.
//!
//! A map has a part on each CPU, so the entries of one key come from several of them. They are
//! added up or compared here, as the map's [`Class`] says. Nothing is locked: the bytes are a copy.

use alloc::{collections::BTreeMap, vec::Vec};
use core::fmt::{self, Write};

use trace_interface::{
    frame::MapEntry,
    shape::Shape,
    view::{Class, MapView},
};

use crate::{
    decode::{Context, decode},
    histogram,
    series::{self, Latest},
    value::{Symbolize, Value, order_of_lists},
};

/// The keys of an entry. None: the map has no keys.
pub type Key = Vec<Value>;

/// The entries of a map, added up over the CPUs, by value and then by key.
pub(crate) fn entries(map: &MapView, entries: &[MapEntry], context: &Context) -> Vec<(Key, Value)> {
    let bytes = key_bytes(map);
    let mut grouped: BTreeMap<&[u8], Vec<&MapEntry>> = BTreeMap::new();
    for entry in entries {
        let key = entry.key.get(..bytes).unwrap_or(&entry.key);
        grouped.entry(key).or_default().push(entry);
    }
    // The same call stack may have two numbers, so equal keys are put together as values.
    let mut merged: Vec<(Key, Vec<&MapEntry>)> = Vec::new();
    let has_stack = map.keys.iter().any(has_stack);
    for (key, entries) in grouped {
        let key = self::key(map, key, context);
        match merged
            .iter_mut()
            .find(|(known, _)| has_stack && *known == key)
        {
            Some((_, known)) => known.extend(entries),
            None => merged.push((key, entries)),
        }
    }
    let latest = Latest::of(entries.iter().map(words));
    let mut values: Vec<(Key, Value)> = merged
        .into_iter()
        .filter_map(|(key, entries)| Some((key, value(map, &entries, latest, context)?)))
        .collect();
    values.sort_by(|(key, value), (other_key, other)| {
        value
            .order(other)
            .then_with(|| order_of_lists(key, other_key))
    });
    values
}

/// Makes addresses in a key that stand for a function ([`Shape::Symbol`] without an offset) that
/// of its first byte. Where `func` is asked inside of functions, each place would be a key of its
/// own otherwise, and many keys would look the same.
pub(crate) fn of_whole_functions(map: &MapView, key: &mut [u8], symbols: &dyn Symbolize) {
    in_shapes(&mut map.keys.iter(), key, symbols);
}

/// The same in the bytes of values that follow one another.
fn in_shapes(
    shapes: &mut dyn Iterator<Item = &Shape>,
    mut bytes: &mut [u8],
    symbols: &dyn Symbolize,
) {
    for shape in shapes {
        let Some((part, rest)) = bytes.split_at_mut_checked(shape.bytes() as usize) else {
            return;
        };
        bytes = rest;
        match shape {
            Shape::Tuple(items) => in_shapes(&mut items.iter(), part, symbols),
            Shape::Record(fields) => {
                in_shapes(&mut fields.iter().map(|(_, shape)| shape), part, symbols);
            }
            Shape::Symbol { with_offset: false } => {
                if let Some(word) = part.first_chunk_mut()
                    && let address = u64::from_le_bytes(*word)
                    && let Some(symbol) = symbols.symbol(address)
                {
                    *word = address.wrapping_sub(symbol.offset).to_le_bytes();
                }
            }
            _ => {}
        }
    }
}

/// Whether a call stack is in a key.
fn has_stack(shape: &Shape) -> bool {
    match shape {
        Shape::Stack { .. } => true,
        Shape::Tuple(items) => items.iter().any(has_stack),
        Shape::Record(fields) => fields.iter().any(|(_, shape)| has_stack(shape)),
        _ => false,
    }
}

/// Bytes of the keys that the program wrote. Histograms have the bucket after them.
pub(crate) fn key_bytes(map: &MapView) -> usize {
    map.keys.iter().map(|shape| shape.bytes() as usize).sum()
}

pub(crate) fn key(map: &MapView, mut bytes: &[u8], context: &Context) -> Key {
    let part = |shape: &Shape| {
        let value = decode(shape, bytes, context);
        bytes = bytes.get(shape.bytes() as usize..).unwrap_or(&[]);
        value
    };
    map.keys.iter().map(part).collect()
}

/// The value of a key, of the entries of all CPUs. None if nothing was counted.
fn value(map: &MapView, entries: &[&MapEntry], latest: Latest, context: &Context) -> Option<Value> {
    let word = |entry: &MapEntry, number: usize| words(entry)[number];
    let sum = |number| {
        entries
            .iter()
            .fold(0_u64, |sum, entry| sum.wrapping_add(word(entry, number)))
    };
    let count = || Some(sum(0)).filter(|count| *count != 0);
    let of_sign = |signed, number: u64| match signed {
        true => i128::from(number.cast_signed()),
        false => i128::from(number),
    };
    let number = |signed, number: u64| match signed {
        true => Value::Signed(number.cast_signed()),
        false => Value::Unsigned(number),
    };
    Some(match &map.class {
        Class::Count => Value::Unsigned(count()?),
        Class::Sum { signed } => {
            count()?;
            number(*signed, sum(1))
        }
        Class::Average { signed } | Class::Statistics { signed } => {
            let (count, total) = (count()?, of_sign(*signed, sum(1)));
            let average = total / i128::from(count);
            match map.class {
                Class::Average { .. } => Value::Average {
                    count,
                    total,
                    average,
                },
                _ => Value::Statistics {
                    count,
                    total,
                    average,
                },
            }
        }
        Class::Most { signed } | Class::Least { signed } => {
            count()?;
            let most = entries
                .iter()
                .filter(|entry| word(entry, 0) != 0)
                .map(|entry| word(entry, 1))
                .max()?;
            let turned = match map.class {
                Class::Least { .. } => !most,
                _ => most,
            };
            number(*signed, if *signed { turned ^ 1 << 63 } else { turned })
        }
        Class::Histogram(scale) => {
            let at = key_bytes(map);
            let mut counts = BTreeMap::new();
            for entry in entries {
                let bucket = entry.key.get(at..).unwrap_or(&[]);
                let bucket = bucket
                    .iter()
                    .rev()
                    .fold(0, |number, byte| number << 8 | u32::from(*byte));
                *counts.entry(bucket).or_insert(0) += word(entry, 0);
            }
            let rows = histogram::rows(*scale, |bucket| counts.get(&bucket).copied().unwrap_or(0));
            Some(Value::Histogram(rows)).filter(|_| counts.values().any(|count| *count != 0))?
        }
        Class::Series(of) => {
            let slots = entries.iter().map(|entry| words(entry));
            // Without a time of day they count from the start of the machine.
            let zero = context.epoch_of_zero.unwrap_or(0);
            let intervals = series::intervals(of, slots, latest, zero);
            Some(Value::Series(intervals)).filter(|value| *value != Value::Series(Vec::new()))?
        }
        Class::Plain(shape) => decode(shape, &entries.first()?.value, context),
    })
}

/// The first words of a value. Those that it does not have are zero.
fn words(entry: &MapEntry) -> [u64; 4] {
    core::array::from_fn(|number| {
        let bytes = entry.value.get(8 * number..).unwrap_or(&[]);
        bytes.first_chunk().copied().map_or(0, u64::from_le_bytes)
    })
}

/// What a map without keys holds before anything is assigned to it. None: it holds nothing.
pub(crate) fn nothing_yet(map: &MapView, context: &Context) -> Option<Value> {
    let (count, total, average) = (0, 0, 0);
    match &map.class {
        _ if !map.keys.is_empty() => None,
        Class::Histogram(_) | Class::Series(_) => None,
        Class::Average { .. } => Some(Value::Average {
            count,
            total,
            average,
        }),
        Class::Statistics { .. } => Some(Value::Statistics {
            count,
            total,
            average,
        }),
        Class::Plain(shape) => Some(decode(shape, &[], context)),
        _ => Some(Value::Unsigned(0)),
    }
}

/// `@name[key, key]: value`.
pub(crate) fn write_entry(
    map: &MapView,
    key: &[Value],
    value: &Value,
    symbols: &dyn Symbolize,
    out: &mut dyn Write,
) -> fmt::Result {
    out.write_str(map.name.as_deref().unwrap_or("@"))?;
    if !key.is_empty() {
        out.write_char('[')?;
        for (index, part) in key.iter().enumerate() {
            out.write_str(if index == 0 { "" } else { ", " })?;
            write!(out, "{}", part.shown(symbols))?;
        }
        out.write_char(']')?;
    }
    match value {
        Value::Histogram(_) | Value::Series(_) => write!(out, ":\n{}", value.shown(symbols)),
        _ => writeln!(out, ": {}", value.shown(symbols)),
    }
}
