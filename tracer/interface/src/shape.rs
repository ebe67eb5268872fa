//! How programs store values in keys, values and records.
//!
//! The layout is our own, not that of the traced kernel's memory: fields follow each other without
//! gaps, an enum begins with the number of its variant, a text or a slice is its length and its
//! first bytes. So equal values have equal bytes, and the reader needs no debug information.

use alloc::{boxed::Box, rc::Rc, vec::Vec};

use crate::symbols::TypeId;

/// Names and shapes, in the order of storage.
pub type Fields = Vec<(Rc<str>, Shape)>;

/// The letters after `%` in the format of a time: C's, and `f` for microseconds.
pub const TIME_LETTERS: &str = "%aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUVwWxXyYzZ";

/// How a call stack is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackForm {
    /// A line for each frame: its function.
    #[default]
    Functions,
    /// The address before the function, as `perf` has it.
    Perf,
    /// The address only.
    Raw,
}

/// The lists of names that numbers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// What an errno means.
    Error,
    Signal,
    SystemCall,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Unit,
    /// A part of a value that the compiler of the kernel left out. It has no bytes.
    Unavailable,
    /// A part of a value that is deeper inside than values are stored. It has no bytes.
    Deeper,
    /// 1 in a byte and the value, or zeros if its memory cannot be read.
    Behind(Box<Shape>),
    /// Up to 16 bytes, as the signed ones.
    Unsigned(u8),
    Signed(u8),
    /// A number of the text, 0 or more, in 8 bytes. It says nothing of the sign of others that are
    /// stored in the same place.
    Literal,
    Boolean,
    /// The same in 8 bytes, as numbers are kept.
    Flag,
    Character,
    Float(u8),
    /// Where a value is: of which type, if that is known, and whether it is in the memory of the
    /// program in ring 3.
    Address {
        to: Option<TypeId>,
        is_user: bool,
    },
    Symbol {
        with_offset: bool,
    },
    /// An address of a program in 8 bytes, and the name of the task that has it in 16. It is shown
    /// by the name of its function.
    UserSymbol,
    /// The number of the probe's name in the upper 16 bits, the low 48 bits of the address.
    Probe,
    /// The number of a call stack in that map of the script, or a negated errno. A stack of a
    /// program has the program's name in its last two words.
    Stack {
        map: u32,
        is_user: bool,
        form: StackForm,
    },
    /// A number that is shown by its name in a list.
    Named(Naming),
    /// Nanoseconds since the machine started, shown as this says.
    Time {
        format: Rc<str>,
    },
    /// A text that ends with a NUL; zeros fill it up. One whose memory cannot be read is
    /// [`UNREADABLE_TEXT`] and zeros.
    Text(u32),
    /// The length in 8 bytes, and the first bytes of a text; zeros fill it up. The length is
    /// [`UNREADABLE`] if its memory cannot be read.
    Counted(u32),
    /// The same for bytes that are no text.
    Bytes(u32),
    /// The length in 8 bytes, and the first elements; zeros fill it up. [`UNREADABLE`] as above.
    List {
        of: Box<Shape>,
        most: u32,
        form: Form,
    },
    /// The same for elements of which there may be fewer: 1 in a byte and the element, or zeros.
    Slots {
        of: Box<Shape>,
        most: u32,
        form: Form,
    },
    /// The seconds in 8 bytes and the nanoseconds in 4.
    Duration,
    /// The first elements of an array that has `count`.
    Array {
        of: Box<Shape>,
        stored: u32,
        count: u64,
    },
    /// The same, if the elements are stored differently, because parts of them are unavailable.
    Items {
        items: Vec<Shape>,
        more: u64,
    },
    Tuple(Vec<Shape>),
    /// A record of the program. Its name is none.
    Record(Fields),
    Struct {
        name: Rc<str>,
        fields: Fields,
    },
    /// 0 in a byte and the value, or 1 and zeros if there is none.
    Maybe(Box<Shape>),
    /// The tag of an enum whose variants hold nothing, as it is in memory.
    Choice {
        name: Rc<str>,
        bytes: u8,
        variants: Vec<(u128, Rc<str>)>,
    },
    /// The number of the variant, in 1 or 2 bytes, and its fields. Zeros fill it up.
    Enum {
        name: Rc<str>,
        variants: Vec<(Rc<str>, Fields)>,
    },
}

/// The length of a text or a list whose memory cannot be read.
pub const UNREADABLE: u64 = u64::MAX;

/// The first bytes of a text whose memory cannot be read: no text has bytes after its NUL.
pub const UNREADABLE_TEXT: [u8; 2] = [0, 1];

/// How a list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[1, 2]`
    List,
    /// `{1, 2}`
    Set,
    /// `{1: 2}`, of pairs
    Map,
}

impl Shape {
    /// An address of the kernel's memory, of nothing in particular.
    pub const ADDRESS: Self = Self::Address {
        to: None,
        is_user: false,
    };

    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Counted(_))
    }

    /// Whether it is of bytes that are no text.
    pub fn is_bytes(&self) -> bool {
        match self {
            Self::Bytes(_) => true,
            Self::Maybe(of) | Self::Behind(of) => of.is_bytes(),
            _ => false,
        }
    }

    /// The bytes of the text that holds the same with a NUL.
    fn text_bytes(&self) -> u32 {
        match self {
            Self::Counted(most) => (most + 1).next_multiple_of(8),
            other => other.bytes(),
        }
    }

    /// Whether conversions of numbers show it.
    pub fn is_number(&self) -> bool {
        match self {
            Self::Unsigned(_)
            | Self::Signed(_)
            | Self::Literal
            | Self::Boolean
            | Self::Flag
            | Self::Character
            | Self::Address { .. }
            | Self::Symbol { .. }
            | Self::Named(_)
            | Self::Time { .. } => true,
            Self::Maybe(of) | Self::Behind(of) => of.is_number(),
            _ => false,
        }
    }

    /// The bytes of an integer.
    pub fn number_bytes(&self) -> Option<u8> {
        match self {
            Self::Unsigned(bytes) | Self::Signed(bytes) => Some(*bytes),
            Self::Literal => Some(8),
            Self::Maybe(of) | Self::Behind(of) => of.number_bytes(),
            _ => None,
        }
    }

    /// Whether nothing is left of a value, because all its parts are unavailable.
    pub fn is_lost(&self) -> bool {
        let all = |fields: &Fields| {
            let known = |shape: &Self| shape.bytes() > 0;
            !fields.iter().any(|(_, shape)| known(shape))
                && fields.iter().any(|(_, shape)| shape.is_lost())
        };
        match self {
            Self::Unavailable => true,
            Self::Items { items, .. } => items.iter().all(Self::is_lost),
            Self::Struct { fields, .. } | Self::Record(fields) => all(fields),
            Self::Maybe(of) | Self::Behind(of) => of.is_lost(),
            _ => false,
        }
    }

    /// Bytes of the number of a variant.
    pub fn tag_bytes(variants: usize) -> u32 {
        if variants > 256 { 2 } else { 1 }
    }

    pub fn bytes(&self) -> u32 {
        let sum = |fields: &[(Rc<str>, Self)]| -> u32 {
            fields
                .iter()
                .fold(0, |sum, (_, shape)| sum.saturating_add(shape.bytes()))
        };
        match self {
            Self::Unit | Self::Unavailable | Self::Deeper => 0,
            Self::Unsigned(bytes)
            | Self::Signed(bytes)
            | Self::Float(bytes)
            | Self::Choice { bytes, .. } => (*bytes).into(),
            Self::Boolean => 1,
            Self::Character => 4,
            Self::Literal
            | Self::Flag
            | Self::Address { .. }
            | Self::Symbol { .. }
            | Self::Probe
            | Self::Stack { .. }
            | Self::Named(_)
            | Self::Time { .. } => 8,
            Self::UserSymbol => 24,
            Self::Text(bytes) => *bytes,
            Self::Counted(most) | Self::Bytes(most) => most.saturating_add(8),
            Self::List { of, most, .. } => of.bytes().saturating_mul(*most).saturating_add(8),
            Self::Slots { of, most, .. } => {
                let slot = of.bytes().saturating_add(1);
                slot.saturating_mul(*most).saturating_add(8)
            }
            Self::Duration => 12,
            Self::Array { of, stored, .. } => of.bytes().saturating_mul(*stored),
            Self::Tuple(items) | Self::Items { items, .. } => items
                .iter()
                .fold(0, |sum, shape| sum.saturating_add(shape.bytes())),
            Self::Maybe(of) | Self::Behind(of) => of.bytes().saturating_add(1),
            Self::Struct { fields, .. } | Self::Record(fields) => sum(fields),
            Self::Enum { variants, .. } => {
                let most = variants.iter().map(|(_, fields)| sum(fields)).max();
                Self::tag_bytes(variants.len()).saturating_add(most.unwrap_or(0))
            }
        }
    }

    /// Whether some of its bytes are not stored for all values.
    pub fn varies(&self) -> bool {
        match self {
            Self::Counted(_)
            | Self::Bytes(_)
            | Self::List { .. }
            | Self::Slots { .. }
            | Self::Enum { .. }
            | Self::Behind(_)
            | Self::Maybe(_) => true,
            Self::Array { of, .. } => of.varies(),
            Self::Tuple(items) | Self::Items { items, .. } => items.iter().any(Self::varies),
            Self::Struct { fields, .. } | Self::Record(fields) => {
                fields.iter().any(|(_, shape)| shape.varies())
            }
            _ => false,
        }
    }

    /// Gives numbers of the text the sign that they have by themselves.
    pub fn settle(&mut self) {
        match self {
            Self::Literal => *self = Self::Signed(8),
            Self::Maybe(of) | Self::Behind(of) => of.settle(),
            Self::Tuple(parts) => parts.iter_mut().for_each(Self::settle),
            Self::Record(fields) => fields.iter_mut().for_each(|(_, of)| of.settle()),
            _ => {}
        }
    }

    /// Makes it one that takes values of both shapes. Returns whether it changed; `None` if no
    /// shape takes both.
    pub fn merge(&mut self, other: &Self) -> Option<bool> {
        if self == other {
            return Some(false);
        }
        match (&mut *self, other) {
            (Self::Text(a), Self::Text(b)) => {
                let changed = *b > *a;
                *a = (*a).max(*b);
                Some(changed)
            }
            (Self::Text(_) | Self::Counted(_), Self::Text(_) | Self::Counted(_)) => {
                let merged = Self::Text(self.text_bytes().max(other.text_bytes()));
                let changed = *self != merged;
                *self = merged;
                Some(changed)
            }
            // Numbers of which some are signed are signed.
            (Self::Signed(8), Self::Unsigned(8) | Self::Literal)
            | (Self::Unsigned(8), Self::Literal)
            | (Self::Address { .. }, Self::Literal)
            | (Self::Unsigned(8) | Self::Signed(8) | Self::Literal, Self::Flag) => Some(false),
            (Self::Unsigned(8), Self::Signed(8))
            | (Self::Literal, Self::Unsigned(8) | Self::Signed(8) | Self::Address { .. })
            | (Self::Flag, Self::Unsigned(8) | Self::Signed(8) | Self::Literal) => {
                *self = other.clone();
                Some(true)
            }
            // What any number is assigned to leads to nothing in particular, and so does an address
            // of two types.
            (Self::Address { to, .. }, Self::Unsigned(8) | Self::Signed(8) | Self::Flag) => {
                Some(to.take().is_some())
            }
            (Self::Unsigned(8) | Self::Signed(8) | Self::Flag, Self::Address { is_user, .. }) => {
                *self = Self::Address {
                    to: None,
                    is_user: *is_user,
                };
                Some(true)
            }
            (
                Self::Address { to, is_user },
                Self::Address {
                    is_user: is_user_too,
                    ..
                },
            ) if is_user == is_user_too => Some(to.take().is_some()),
            (Self::Behind(a), b) => match b {
                Self::Behind(b) => a.merge(b),
                b => a.merge(b),
            },
            (a, Self::Behind(b)) => {
                a.merge(b)?;
                *self = Self::Behind(Box::new(a.clone()));
                Some(true)
            }
            (Self::Bytes(a), Self::Bytes(b)) => {
                let changed = *b > *a;
                *a = (*a).max(*b);
                Some(changed)
            }
            (Self::Tuple(a), Self::Tuple(b)) if a.len() == b.len() => {
                let mut changed = false;
                for (a, b) in a.iter_mut().zip(b) {
                    changed |= a.merge(b)?;
                }
                Some(changed)
            }
            // The order is that of the first.
            (Self::Record(a), Self::Record(b)) if a.len() == b.len() => {
                let mut changed = false;
                for (name, shape) in a {
                    let (_, other) = b.iter().find(|(other, _)| other == name)?;
                    changed |= shape.merge(other)?;
                }
                Some(changed)
            }
            _ => None,
        }
    }
}
