//! What values become as texts: conversions of `printf`, and what maps gather.
//!
//! Conversions are those of C. Histograms and series become one line each, without their pictures,
//! as the compared output has them.

use std::collections::BTreeMap;

use super::{
    tree::{Conversion, Gather, Type},
    value::Value,
};

/// A value as a conversion shows it. `bits` are those of its own type, `width` is a value that is
/// given for the width.
pub(super) fn converted(is: &Conversion, value: &Value, bits: u32, width: Option<i64>) -> String {
    let mut left = is.flags.contains('-');
    let columns = match width {
        Some(width) => {
            left |= width < 0;
            width.unsigned_abs().min(256) as usize
        }
        None => is.width,
    };
    let text = match is.letter {
        'r' if let Value::Bytes(bytes) = value
            && !is.dump.is_empty() =>
        {
            let escape = if is.dump == "x" { "\\x" } else { "" };
            let bytes = bytes.iter().map(|byte| format!("{escape}{byte:02x}"));
            let between = if is.dump == "x" { "" } else { " " };
            bytes.collect::<Vec<_>>().join(between)
        }
        's' | 'r' => {
            let most = is.precision.unwrap_or(usize::MAX);
            value.shown().chars().take(most).collect()
        }
        'c' => char::from(value.bits() as u8).to_string(),
        'p' => format!("{:#x}", value.bits()),
        _ => number(is, value.bits(), bits),
    };
    let missing = columns.saturating_sub(text.chars().count());
    let has_zeros = is.flags.contains('0') && is.precision.is_none() && is.is_of_numbers();
    match (left, has_zeros) {
        (true, _) => text + &" ".repeat(missing),
        (false, true) => {
            let digits = text.find(|c: char| c.is_ascii_hexdigit());
            let mut sign = digits.unwrap_or(0);
            if text[sign..].starts_with("0x") || text[sign..].starts_with("0X") {
                sign += 2;
            }
            format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..])
        }
        (false, false) => " ".repeat(missing) + &text,
    }
}

/// A number without its width, as C shows it.
fn number(is: &Conversion, number: u64, own_bits: u32) -> String {
    let is_decimal = matches!(is.letter, 'd' | 'i');
    let bits = match is.length {
        "hh" => 8,
        "h" => 16,
        "" if !is_decimal => own_bits,
        _ => 64,
    };
    let up = number << (64 - bits);
    let natural = up >> (64 - bits);
    let whole = up.cast_signed() >> (64 - bits);
    let digits = match is.letter {
        'd' | 'i' => whole.unsigned_abs().to_string(),
        'u' => natural.to_string(),
        'x' => format!("{natural:x}"),
        'X' => format!("{natural:X}"),
        _ => format!("{natural:o}"),
    };
    let has_prefix = is.flags.contains('#') && natural != 0;
    let digits = match is.precision {
        Some(0) if natural == 0 => String::new(),
        least => format!("{digits:0>0$}", least.unwrap_or(0)),
    };
    let before = match is.letter {
        'd' | 'i' if whole < 0 => "-",
        'd' | 'i' if is.flags.contains('+') => "+",
        'd' | 'i' if is.flags.contains(' ') => " ",
        'x' if has_prefix => "0x",
        'X' if has_prefix => "0X",
        'o' if is.flags.contains('#') && !digits.starts_with('0') => "0",
        _ => "",
    };
    format!("{before}{digits}")
}

/// The order of entries: by their values, then by their keys.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Number(i128),
    Text(String),
    Parts(Vec<Order>),
}

impl Order {
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Number { .. } | Value::Truth(_) | Value::Address(_) => {
                Self::Number(value.exact())
            }
            Value::Text(text) => Self::Text(text.clone()),
            Value::Bytes(_) => unreachable!("bytes are only printed"),
            Value::Tuple(parts) | Value::Array(parts) => {
                Self::Parts(parts.iter().map(Self::of).collect())
            }
            Value::Record(fields) => {
                Self::Parts(fields.iter().map(|(_, value)| Self::of(value)).collect())
            }
        }
    }
}

/// What a map has of the values that it was given.
pub(super) fn gathered(gather: Gather, values: &[Value], of: &Type) -> Value {
    let sum = || {
        let bits = values.iter().map(Value::bits);
        bits.fold(0, u64::wrapping_add)
    };
    let is_signed = *of == Type::Signed;
    let least = || values.iter().min_by_key(|value| value.exact());
    let most = || values.iter().max_by_key(|value| value.exact());
    let bits = match gather {
        Gather::Count => values.len() as u64,
        Gather::Sum => sum(),
        Gather::Min => least().map_or(0, Value::bits),
        Gather::Max => most().map_or(0, Value::bits),
        Gather::Avg if values.is_empty() => 0,
        Gather::Avg if is_signed => (sum().cast_signed() / values.len() as i64).cast_unsigned(),
        Gather::Avg => sum() / values.len() as u64,
        Gather::Stats | Gather::Hist(_) | Gather::Lhist(..) | Gather::Series(_) => {
            unreachable!("no value")
        }
    };
    Value::unsigned(bits).of(of)
}

/// By what an entry comes before others.
pub(super) fn ranked(gather: Gather, values: &[Value], of: &Type) -> Order {
    Order::Number(match gather {
        Gather::Hist(_) | Gather::Lhist(..) => values.len() as i128,
        Gather::Stats => gathered(Gather::Sum, values, of).exact(),
        _ => gathered(gather, values, of).exact(),
    })
}

/// The nanoseconds of an interval of a series.
pub(super) const INTERVAL: u64 = 100_000_000;
/// How many of them are kept.
const INTERVALS: u64 = 4;
/// The time of day when the clock was 0, in nanoseconds.
const ZERO: u64 = 86_399_999_999_000;

/// A time of nanoseconds since the boot, by a format.
pub(super) fn time_of(format: &str, nanoseconds: u64) -> String {
    let time = ZERO + nanoseconds;
    let seconds = time / 1_000_000_000;
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        text += &match letters.next() {
            Some('H') => format!("{:02}", seconds / 3600 % 24),
            Some('M') => format!("{:02}", seconds / 60 % 60),
            Some('S') => format!("{:02}", seconds % 60),
            Some('f') => format!("{:06}", time / 1000 % 1_000_000),
            Some('s') => seconds.to_string(),
            // Of the first year.
            Some('j') => format!("{:03}", seconds / 86_400 + 1),
            other => other.map(String::from).unwrap_or_default(),
        };
    }
    text
}

/// A series in one line: the intervals to the latest one of its map, each with its time.
pub(super) fn series(gathers: &str, values: &[(u64, Value)], latest: u64, of: &Type) -> String {
    let first = (latest + 1).saturating_sub(INTERVALS);
    let in_sight = values.iter().map(|(interval, _)| *interval);
    let Some(begin) = in_sight.filter(|interval| *interval >= first).min() else {
        return String::new();
    };
    let row = |interval: u64| {
        let here = values.iter().filter(|(at, _)| *at == interval);
        let here: Vec<Value> = here.map(|(_, value)| value.clone()).collect();
        let gather = match gathers {
            "avg" => Gather::Avg,
            "sum" => Gather::Sum,
            "min" => Gather::Min,
            _ => Gather::Max,
        };
        let value = match (&here[..], gathers) {
            ([], _) => "-".into(),
            ([.., last], "") => last.clone().of(of).shown(),
            (all, _) => gathered(gather, all, of).shown(),
        };
        let time = ZERO + interval * INTERVAL;
        let seconds = time / 1_000_000_000 % 86_400;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        let digits = if begin == latest { 9 } else { 3 };
        let part = &format!("{:09}", time % 1_000_000_000)[..digits];
        format!(
            " {hours:02}:{minutes:02}:{:02}.{part} {value}",
            seconds % 60
        )
    };
    (begin..=latest).map(row).collect()
}

/// A histogram in one line, without the bars and without the steps that have nothing.
pub(super) fn histogram(gather: Gather, values: &[Value], divisor: u64) -> String {
    let mut lines: BTreeMap<i128, (String, u64)> = BTreeMap::new();
    for value in values {
        let value = value.exact();
        let (from, text) = match gather {
            Gather::Lhist(from, to, step) => equal_step(value, (from, to, step)),
            Gather::Hist(bits) => power(value, bits),
            _ => unreachable!("no histogram"),
        };
        lines.entry(from).or_insert((text, 0)).1 += 1;
    }
    lines
        .values()
        .map(|(text, count)| (text, count / divisor))
        .filter(|(_, count)| *count != 0)
        .map(|(text, count)| format!(" {text} {count}"))
        .collect()
}

/// The step of a value where each power of two has two to that power of them.
fn power(value: i128, bits: u32) -> (i128, String) {
    if value < 0 {
        return (-1, "(..., 0)".into());
    }
    let power = value.checked_ilog2().unwrap_or(0);
    let width = 1 << power.saturating_sub(bits);
    let from = value / width * width;
    (from, between(from, from + width))
}

fn equal_step(value: i128, (from, to, step): (i128, i128, i128)) -> (i128, String) {
    if value < from {
        return (from - 1, format!("(..., {})", rounded(from)));
    }
    if value >= to {
        return (to, format!("[{}, ...)", rounded(to)));
    }
    let start = from + (value - from) / step * step;
    (start, between(start, to.min(start + step)))
}

fn between(from: i128, end: i128) -> String {
    match end - from {
        1 => format!("[{}]", rounded(from)),
        _ => format!("[{}, {})", rounded(from), rounded(end)),
    }
}

/// A bound as histograms have it: whole multiples of 1024 are shortened.
fn rounded(bound: i128) -> String {
    let (mut rest, mut letters) = (bound, ["K", "M", "G", "T", "P", "E"].iter());
    let mut letter = "";
    while rest != 0
        && rest % 1024 == 0
        && let Some(next) = letters.next()
    {
        rest /= 1024;
        letter = next;
    }
    format!("{rest}{letter}")
}
