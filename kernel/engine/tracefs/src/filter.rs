//! Filters: expressions over the fields of a record that say which hits count.
//!
//! ```text
//! common_pid != 0 && (bytes > 4096 || name ~ "*.rs") && !(flags & 0x10)
//! ```
//!
//! The language is that of Linux's `filter` files and of `if` after a trigger
//! (`Documentation/trace/events.rst`). [`Filter::parse`] reads it, [`Filter::matches`] says what it
//! means, and [`Filter::compile`] turns it into instructions that run before a record is reserved,
//! so a hit that is filtered out writes nothing.
//!
//! - A number is compared in the width and with the sign of its field. A constant that does not fit
//!   loses its upper bits: `ret == 0xfffffff2` finds -14 in a field of 32 bits.
//! - A field `char` may be compared with `'c'`.
//! - `comm` and `CPU` are those of the hit, unless the event has a field of that name.
//! - `FIELD.function == NAME` holds for any address in the function.
//! - A string that could not be read is neither equal to a pattern nor different from it.
//!
//! # Invariants
//! FILTER-1. A filter nests at most [`Filter::MOST_PARENS`] deep, so recursion over it is bounded.
//! FILTER-2. An `And` or `Or` has at least two parts, and none of its own kind. A `Not` holds no
//!     `Not`.
//!
//! # Differences from Linux
//! Each bad filter is refused with EINVAL, and any with ENOMEM if there is no memory; Linux has
//! EPERM, ENOENT or ESRCH for some. Linux takes `a == 1 &&` as `a == 1`; here it is refused. A glob
//! that begins with a digit is a glob here. A pattern has at most [`Pattern::MOST_BYTES`] bytes. An
//! array and a `symstr` cannot be compared.

mod compile;
mod error;
mod parse;
mod pattern;
mod tasks;

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;

pub(crate) use compile::{COMM_BYTES, load_number};
pub use compile::{CompileError, Frame, Load, LoadError, Loaded};
pub use error::{FilterError, FilterReason};
pub use pattern::{ByteSet, Pattern, Piece};
pub use tasks::of_tasks;

use crate::field::{Element, Field, FieldKind, Width};

/// The text of the file `filter` of a group, which has no filter of its own.
pub const GROUP_TEXT: &str = "\
### global filter ###
# Use this to set filters for multiple events.
# Only events with the given fields will be affected.
# If no events are modified, an error message will be displayed here
";

/// The thing that a test looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A field of the record.
    Field(Field),
    /// The name of the task.
    Comm,
    /// The number of the CPU.
    Cpu,
}

impl Subject {
    /// The type of its value, if it is one value that can be compared.
    pub const fn element(&self) -> Option<Element> {
        match self {
            // Its text is not known before it is printed.
            Self::Field(field) if field.is_symbol_string() => None,
            Self::Field(field) => match field.kind {
                FieldKind::One(element) => Some(element),
                FieldKind::Array { .. } => None,
            },
            Self::Comm => Some(Element::String),
            Self::Cpu => Some(Element::Signed(Width::W32)),
        }
    }

    /// The width and whether there is a sign, if it is one number.
    pub(crate) const fn number(&self) -> Option<(Width, bool)> {
        match self.element() {
            Some(Element::Unsigned(width) | Element::Hex(width)) => Some((width, false)),
            Some(Element::Signed(width)) => Some((width, true)),
            Some(Element::Char) => Some((Width::W8, false)),
            Some(Element::Symbol) => Some((Width::W64, false)),
            Some(Element::String) | None => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Field(field) => &field.name,
            Self::Comm => "comm",
            Self::Cpu => "CPU",
        })
    }
}

/// A comparison of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// `&`: they have a bit in common.
    AnyBit,
}

impl Comparison {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
        Self::AnyBit,
    ];

    const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::AnyBit => "&",
        }
    }

    fn holds<T: Ord>(self, left: T, right: T) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
            Self::AnyBit => false,
        }
    }
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// A comparison with a number.
    Number {
        subject: Subject,
        comparison: Comparison,
        /// The number in the subject's width, with its sign copied upwards.
        value: u64,
    },
    /// A comparison of a string with a pattern.
    Text {
        subject: Subject,
        /// Whether the pattern must not match.
        negated: bool,
        pattern: Pattern,
    },
    /// A comparison of an address with the addresses of a function.
    Function {
        field: Field,
        /// Whether it must lie outside.
        negated: bool,
        /// Its first address.
        start: u64,
        /// The address after it.
        end: u64,
    },
}

impl Test {
    fn holds(&self, hit: &Hit<'_>) -> bool {
        match self {
            Self::Number {
                subject,
                comparison,
                value,
            } => {
                let found = match subject {
                    Subject::Field(field) => field.number(hit.record),
                    Subject::Cpu => Some(u64::from(hit.cpu)),
                    Subject::Comm => None,
                };
                let (Some(found), Some((_, signed))) = (found, subject.number()) else {
                    return false;
                };
                match comparison {
                    Comparison::AnyBit => found & value != 0,
                    _ if signed => comparison.holds(found as i64, *value as i64),
                    _ => comparison.holds(found, *value),
                }
            }
            Self::Text {
                subject,
                negated,
                pattern,
            } => {
                let found = match subject {
                    Subject::Field(field) => field.string(hit.record),
                    Subject::Comm => Some(hit.comm),
                    Subject::Cpu => None,
                };
                found.is_some_and(|text| pattern.matches(text) != *negated)
            }
            Self::Function {
                field,
                negated,
                start,
                end,
            } => field
                .number(hit.record)
                .is_some_and(|address| (*start..*end).contains(&address) != *negated),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number {
                subject,
                comparison,
                value,
            } => {
                write!(f, "{subject} {} ", comparison.sign())?;
                match subject.number() {
                    Some((_, true)) => write!(f, "{}", *value as i64),
                    _ => write!(f, "{value}"),
                }
            }
            Self::Text {
                subject,
                negated,
                pattern,
            } => {
                let sign = match (pattern.is_glob(), negated) {
                    (true, _) => "~",
                    (false, false) => "==",
                    (false, true) => "!=",
                };
                // A glob is negated by a `!` in front of it, inside the quotes.
                let mark = if pattern.is_glob() && *negated {
                    "!"
                } else {
                    ""
                };
                write!(f, "{subject} {sign} ")?;
                pattern.print(mark, f)
            }
            Self::Function {
                field,
                negated,
                start,
                ..
            } => {
                let sign = if *negated { "!=" } else { "==" };
                write!(f, "{}.function {sign} {start:#x}", field.name)
            }
        }
    }
}

/// An expression. See the module's text for what holds for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Test(Test),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
}

impl Expression {
    fn holds(&self, hit: &Hit<'_>) -> bool {
        match self {
            Self::Test(test) => test.holds(hit),
            Self::Not(part) => !part.holds(hit),
            Self::And(parts) => parts.iter().all(|part| part.holds(hit)),
            Self::Or(parts) => parts.iter().any(|part| part.holds(hit)),
        }
    }

    fn print_part(&self, f: &mut fmt::Formatter<'_>, parens: bool) -> fmt::Result {
        if parens {
            write!(f, "({self})")
        } else {
            write!(f, "{self}")
        }
    }
}

impl fmt::Display for Expression {
    /// Writes it in the filter language. [`Filter::parse`] reads it as the same expression.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parts, sign) = match self {
            Self::Test(test) => return test.fmt(f),
            Self::Not(part) => {
                f.write_str("!")?;
                return part.print_part(f, !matches!(**part, Self::Test(_)));
            }
            Self::And(parts) => (parts, " && "),
            Self::Or(parts) => (parts, " || "),
        };
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                f.write_str(sign)?;
            }
            part.print_part(f, matches!((self, part), (Self::And(_), Self::Or(_))))?;
        }
        Ok(())
    }
}

/// A hit, as a filter sees it.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// The record, its common fields included.
    pub record: &'a [u8],
    /// The name of the task, without a NUL.
    pub comm: &'a [u8],
    /// The number of the CPU.
    pub cpu: u32,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    text: String,
    root: Expression,
}

impl Filter {
    /// The most parentheses that may be open at one place.
    pub const MOST_PARENS: usize = 16;

    /// Its text as it was written, without spaces around it. The file shows that.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its expression.
    pub fn expression(&self) -> &Expression {
        &self.root
    }

    /// Whether the hit is to be kept.
    pub fn matches(&self, hit: &Hit<'_>) -> bool {
        self.root.holds(hit)
    }
}

/// The wish of a write to a `filter` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Keep all hits: the text is `0` or `none`.
    Clear,
    /// Keep those that match.
    Set(Filter),
}

impl Request {
    /// Reads the text of a write to the `filter` file of an event with `fields`. The common ones
    /// need not be among them.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn parse(
        text: &str,
        fields: &[Field],
        symbols: &dyn crate::field::Symbols,
    ) -> Result<Self, FilterError> {
        match text.trim() {
            "0" | "none" => Ok(Self::Clear),
            _ => Filter::parse(text, fields, symbols).map(Self::Set),
        }
    }
}

#[cfg(test)]
mod compile_tests;
#[cfg(test)]
mod tests;
