//! Fields of records: where a value lies in the bytes of a record, and how it is printed.
//!
//! A record is a run of bytes. Its fields lie at fixed offsets, packed and little-endian:
//!
//! ```text
//!   0        2     3       4        8             fixed part                    end
//!   ├─ type ─┼flags┼preempt┼─ pid ──┼─ address ─ ─┼─ arguments … ─ ┼─ strings … ─┤
//! ```
//!
//! A string does not lie in the fixed part. Its field there is a `u32`: the offset of the bytes
//! from the start of the record in the low half, and their number, with the NUL at the end, in the
//! high half. The number 0 says that the string could not be read.
//!
//! # Invariants
//! FIELD-1. Nothing outside the given bytes is read: a field beyond their end has no value.
//! FIELD-2. A value is never invented: what is not in the record prints as `(fault)`.

mod element;
mod symbols;
#[cfg(test)]
mod tests;

use alloc::borrow::Cow;
use core::fmt::{self, Write};

use fallible::{OutOfMemory, copied};

pub(crate) use element::print_bytes;
pub use element::{Element, FAULT, Width};
pub use symbols::{LookupError, Named, NoSymbols, ProgramError, SymbolAt, Symbols, print_symbol};

use crate::digits::Ascii;
use element::{located, string_at};

/// The type of a field: one value, or an array of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldKind {
    /// One value.
    One(Element),
    /// Several values of the same type.
    Array {
        /// The type of each.
        element: Element,
        /// Their number, 1 to 64.
        count: u8,
    },
}

impl FieldKind {
    /// The type of its values.
    pub const fn element(self) -> Element {
        match self {
            Self::One(element) | Self::Array { element, .. } => element,
        }
    }

    /// The number of its values.
    pub const fn count(self) -> u32 {
        match self {
            Self::One(_) => 1,
            Self::Array { count, .. } => count as u32,
        }
    }

    /// The number of bytes in the fixed part of a record.
    pub const fn size(self) -> u32 {
        self.element().size() * self.count()
    }
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its offset from the start of the record.
    pub offset: u32,
    /// Its type.
    pub kind: FieldKind,
    /// The type that its `format` file shows.
    c_type: &'static str,
    /// Whether the bytes of its string are an address, whose symbol is the text.
    is_symbol: bool,
}

impl Field {
    /// The number of bytes at the start of each record that all events have in common.
    pub const COMMON_SIZE: u32 = 8;

    /// A copy.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(Self {
            name: match &self.name {
                Cow::Borrowed(name) => Cow::Borrowed(name),
                Cow::Owned(name) => Cow::Owned(copied(name)?),
            },
            ..*self
        })
    }

    /// The field `name` at `offset`.
    pub fn new(name: impl Into<Cow<'static, str>>, offset: u32, kind: FieldKind) -> Self {
        Self {
            name: name.into(),
            offset,
            kind,
            c_type: kind.element().c_type(),
            is_symbol: false,
        }
    }

    /// The string `name` at `offset`, whose text is the symbol of an address. A hit stores the
    /// address, 8 bytes, where other strings have their text. The symbol is looked up when the
    /// string is printed, because a hit should not wait for that.
    pub fn symbol_string(name: impl Into<Cow<'static, str>>, offset: u32) -> Self {
        let kind = FieldKind::One(Element::String);
        Self {
            is_symbol: true,
            ..Self::new(name, offset, kind)
        }
    }

    /// The address `name` at `offset`, as each event has one or two before its arguments.
    pub fn address(name: &'static str, offset: u32) -> Self {
        Self {
            c_type: "unsigned long",
            ..Self::new(name, offset, FieldKind::One(Element::Hex(Width::W64)))
        }
    }

    /// The fields that all events have in common.
    pub fn common() -> [Self; 4] {
        let field = |name, offset, element, c_type| Self {
            c_type,
            ..Self::new(name, offset, FieldKind::One(element))
        };
        [
            field(
                "common_type",
                0,
                Element::Unsigned(Width::W16),
                "unsigned short",
            ),
            field(
                "common_flags",
                2,
                Element::Unsigned(Width::W8),
                "unsigned char",
            ),
            field(
                "common_preempt_count",
                3,
                Element::Unsigned(Width::W8),
                "unsigned char",
            ),
            field("common_pid", 4, Element::Signed(Width::W32), "int"),
        ]
    }

    /// Whether its value is made with the record. What comes before that, such as a filter, does
    /// not have it.
    pub fn is_only_in_records(&self) -> bool {
        // No argument can have these names.
        matches!(&*self.name, "common_flags" | "common_preempt_count")
    }

    /// The number of bytes in the fixed part of a record.
    pub const fn size(&self) -> u32 {
        self.kind.size()
    }

    /// Whether its `format` file says `signed:1`.
    pub const fn is_signed(&self) -> bool {
        self.kind.element().is_signed()
    }

    /// Whether it is an array.
    pub const fn is_array(&self) -> bool {
        matches!(self.kind, FieldKind::Array { .. })
    }

    /// Whether it is the string of [`Field::symbol_string`].
    pub const fn is_symbol_string(&self) -> bool {
        self.is_symbol
    }

    /// Whether it is one string.
    pub const fn is_string(&self) -> bool {
        matches!(self.kind, FieldKind::One(Element::String))
    }

    /// Its C declaration: `u64 arg1`, `u8 name[4]` or `__data_loc char[] path`. A `format` file
    /// shows that.
    pub fn declaration(&self) -> Declaration<'_> {
        Declaration(self)
    }

    /// Its value in `record`, with its sign copied upwards; of an array the first. `None` for a
    /// string and where the record is too short.
    pub fn number(&self, record: &[u8]) -> Option<u64> {
        match self.kind.element() {
            Element::String => None,
            element => element.number(record, self.offset as usize),
        }
    }

    /// The bytes of its string in `record`, without the NUL; of an array the first. `None` for a
    /// number, for a symbol string, for a string that could not be read, and where the record is
    /// too short.
    pub fn string<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        match self.kind.element() {
            Element::String if !self.is_symbol => string_at(record, self.offset as usize),
            _ => None,
        }
    }

    /// Prints `before`, the name, `=` and the value.
    pub fn print_named(
        &self,
        before: &str,
        record: &[u8],
        symbols: &dyn Symbols,
        out: &mut dyn Write,
    ) -> fmt::Result {
        // Most are numbers with short names: one text.
        let mut text = Ascii::<64>::new();
        text.push(before.as_bytes());
        text.push(self.name.as_bytes());
        text.push(b"=");
        if let FieldKind::One(element) = self.kind
            && let Some(value) = element.number(record, self.offset as usize)
            && element.push_number(value, &mut text)
            && text.is_whole()
        {
            return text.write_to(out);
        }
        out.write_str(before)?;
        out.write_str(&self.name)?;
        out.write_str("=")?;
        self.print(record, symbols, out)
    }

    /// Prints its value in `record`: `5`, `0x2a`, `'c'`, `"text"`, `main+0x4/0x20` or `{1,2}`.
    /// A value that is not in the record prints as `(fault)`.
    pub fn print(&self, record: &[u8], symbols: &dyn Symbols, out: &mut dyn Write) -> fmt::Result {
        let offset = self.offset as usize;
        if self.is_symbol {
            let address = located(record, offset).and_then(|bytes| bytes.first_chunk());
            let Some(address) = address else {
                return out.write_str(FAULT);
            };
            out.write_char('"')?;
            print_symbol(u64::from_le_bytes(*address), symbols, out)?;
            return out.write_char('"');
        }
        match self.kind {
            FieldKind::One(element) => element.print(record, offset, symbols, out),
            FieldKind::Array { element, count } => {
                out.write_char('{')?;
                for index in 0..usize::from(count) {
                    if index > 0 {
                        out.write_char(',')?;
                    }
                    let offset = offset + index * element.size() as usize;
                    element.print(record, offset, symbols, out)?;
                }
                out.write_char('}')
            }
        }
    }
}

/// The C declaration of a field.
#[derive(Clone, Copy, Debug)]
pub struct Declaration<'a>(&'a Field);

impl fmt::Display for Declaration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Field {
            name, kind, c_type, ..
        } = self.0;
        match kind {
            FieldKind::One(_) => write!(f, "{c_type} {name}"),
            // The bytes of strings have no fixed number, so the number of strings follows the type.
            FieldKind::Array {
                element: Element::String,
                count,
            } => {
                write!(f, "{c_type}[{count}] {name}")
            }
            FieldKind::Array { count, .. } => write!(f, "{c_type} {name}[{count}]"),
        }
    }
}
