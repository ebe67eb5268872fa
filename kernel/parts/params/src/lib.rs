//! The text of parameters: `name=value` lists, as on the kernel command line and after
//! `insmod NAME`, and the values in them. The rules are those of Linux
//! (`Documentation/admin-guide/kernel-parameters.rst`).
//!
//! - White space separates arguments. An argument is `name` or `name=value`, and the first `=` ends
//!   the name.
//! - Double quotes keep white space together: `name="a b"` and `"name=a b"` both give `a b`. They
//!   do not nest, and nothing escapes them. A missing quote at the end is added.
//! - In names `-` and `_` are the same.
//!
//! Nothing is copied and nothing is allocated: names and values are slices of the text.
#![no_std]
#![forbid(unsafe_code)]

use core::{fmt, num::IntErrorKind};

/// One argument of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg<'a> {
    /// The text before the first `=`.
    pub name: &'a str,
    /// The text after it; `None` without an `=`.
    pub value: Option<&'a str>,
}

impl<'a> Arg<'a> {
    /// Whether its name is `name`; `-` and `_` count as the same.
    pub fn is(&self, name: &str) -> bool {
        name_eq(self.name, name)
    }

    /// The module and the parameter of an argument `module.parameter=value`.
    pub fn module_param(&self) -> Option<(&'a str, &'a str)> {
        self.name.split_once('.')
    }
}

impl fmt::Display for Arg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match self.value {
            Some(value) if value.contains(|c: char| c.is_ascii_whitespace()) => {
                write!(f, "=\"{value}\"")
            }
            Some(value) => write!(f, "={value}"),
            None => Ok(()),
        }
    }
}

/// Whether two names are the same; `-` and `_` count as the same.
pub fn name_eq(a: &str, b: &str) -> bool {
    let fold = |byte| if byte == b'-' { b'_' } else { byte };
    a.len() == b.len() && a.bytes().zip(b.bytes()).all(|(a, b)| fold(a) == fold(b))
}

/// The arguments of a list, in their order.
#[derive(Clone, Debug)]
pub struct Args<'a> {
    rest: &'a str,
}

impl<'a> Args<'a> {
    /// Reads `text`.
    pub const fn new(text: &'a str) -> Self {
        Self { rest: text }
    }
}

impl<'a> Iterator for Args<'a> {
    type Item = Arg<'a>;

    fn next(&mut self) -> Option<Arg<'a>> {
        let text = self.rest.trim_ascii_start();
        if text.is_empty() {
            return None;
        }
        let mut quoted = false;
        let end = text
            .bytes()
            .position(|byte| {
                quoted ^= byte == b'"';
                !quoted && byte.is_ascii_whitespace()
            })
            .unwrap_or(text.len());
        let (arg, rest) = text.split_at(end);
        self.rest = rest;

        // A quote before the name encloses the whole argument, one after the `=` the value.
        let unquote = |text: &'a str| match text.strip_prefix('"') {
            Some(inner) => inner.strip_suffix('"').unwrap_or(inner),
            None => text,
        };
        let arg = unquote(arg);
        Some(match arg.split_once('=') {
            Some((name, value)) => Arg {
                name,
                value: Some(unquote(value)),
            },
            None => Arg {
                name: arg,
                value: None,
            },
        })
    }
}

/// The reason why a value was refused: the values that its parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadValue {
    /// The parameter needs a value.
    Missing {
        /// The values that it takes.
        expected: &'static str,
    },
    /// The value is not of the parameter's form.
    Malformed {
        /// The values that it takes.
        expected: &'static str,
    },
    /// The value does not fit.
    OutOfRange {
        /// Least value.
        min: i128,
        /// Greatest value.
        max: i128,
    },
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { expected } => write!(f, "give {expected}: name=value"),
            Self::Malformed { expected } => write!(f, "give {expected}"),
            Self::OutOfRange { min, max } => write!(f, "give a number from {min} to {max}"),
        }
    }
}

impl core::error::Error for BadValue {}

/// A type that a parameter may have.
pub trait Value<'a>: Sized {
    /// Reads the value of an argument.
    fn parse(value: Option<&'a str>) -> Result<Self, BadValue>;
}

const A_NUMBER: &str = "a number (decimal, 0x... or 0...)";
const A_SWITCH: &str = "a switch: 1, y, on, or 0, n, off";
const A_STRING: &str = "a string";

/// Reads an integer as Linux does: an optional sign, then `0x` for hexadecimal, `0` for octal, else
/// decimal.
fn integer(value: Option<&str>, min: i128, max: i128) -> Result<i128, BadValue> {
    let text = value.ok_or(BadValue::Missing { expected: A_NUMBER })?;
    let malformed = BadValue::Malformed { expected: A_NUMBER };
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` would take a second sign.
    if digits.starts_with(['+', '-']) {
        return Err(malformed);
    }
    let magnitude = match i128::from_str_radix(digits, radix) {
        Ok(magnitude) => magnitude,
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => i128::MAX,
        Err(_) => return Err(malformed),
    };
    let number = if negative { -magnitude } else { magnitude };
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(BadValue::OutOfRange { min, max })
    }
}

macro_rules! integer_values {
    ($($int:ty)+) => {
        $(impl Value<'_> for $int {
            fn parse(value: Option<&str>) -> Result<Self, BadValue> {
                // The range is the type's, so the cast keeps the number.
                let range = (<$int>::MIN as i128, <$int>::MAX as i128);
                integer(value, range.0, range.1).map(|number| number as $int)
            }
        })+
    };
}

integer_values! { i32 u32 i64 u64 usize }

impl Value<'_> for bool {
    /// A bare name means yes.
    fn parse(value: Option<&str>) -> Result<Self, BadValue> {
        match value {
            None | Some("1" | "y" | "Y" | "on") => Ok(true),
            Some("0" | "n" | "N" | "off") => Ok(false),
            Some(_) => Err(BadValue::Malformed { expected: A_SWITCH }),
        }
    }
}

impl<'a> Value<'a> for &'a str {
    fn parse(value: Option<&'a str>) -> Result<Self, BadValue> {
        value.ok_or(BadValue::Missing { expected: A_STRING })
    }
}
