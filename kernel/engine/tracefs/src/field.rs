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
//! F1. Nothing outside the given bytes is read: a field beyond their end has no value.
//! F2. A value is never invented: what is not in the record prints as `(fault)`.

use alloc::borrow::Cow;
use core::{
    error::Error,
    fmt::{self, Write},
};

use crate::{
    digits::Ascii,
    memory::{OutOfMemory, copied},
};

/// The text that stands for a value that could not be read.
pub const FAULT: &str = "(fault)";

/// A symbol that covers an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolAt<'a> {
    /// Its name.
    pub name: &'a str,
    /// The distance of the address from its start.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The module that it belongs to.
    pub module: Option<&'a str>,
}

/// The reason why a name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// No symbol has this name.
    NotFound,
    /// This many symbols have this name.
    NotUnique(usize),
    /// There is no memory to look for it.
    OutOfMemory,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("no symbol has this name; see kallsyms for the names"),
            Self::NotUnique(count) => {
                write!(f, "{count} symbols have this name; give an address instead")
            }
            Self::OutOfMemory => f.write_str("there is no memory to look for the name"),
        }
    }
}

impl Error for LookupError {}

/// The symbol table of the kernel.
pub trait Symbols {
    /// How far behind the address of an object the address of its name is. The name ends with a
    /// NUL. `None`: objects of the kind have no names.
    fn name_offset(&self, object: Named) -> Option<u32> {
        let _ = object;
        None
    }

    /// The symbol that covers `address`.
    fn symbol(&self, address: u64) -> Option<SymbolAt<'_>>;

    /// The address of the only symbol named `name`.
    fn address(&self, name: &str) -> Result<u64, LookupError>;

    /// The address of the only symbol named `name` of a module; `None` as long as the module is
    /// not loaded.
    fn address_in_module(&self, module: &str, name: &str) -> Result<Option<u64>, LookupError> {
        let _ = (module, name);
        Ok(None)
    }
}

/// An object of the kernel that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// An open file: the type `%pD`.
    File,
    /// A use of a node in the tree of names, Linux's dentry: the type `%pd`.
    Node,
}

/// A symbol table without symbols.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSymbols;

impl Symbols for NoSymbols {
    fn symbol(&self, _address: u64) -> Option<SymbolAt<'_>> {
        None
    }

    fn address(&self, _name: &str) -> Result<u64, LookupError> {
        Err(LookupError::NotFound)
    }
}

/// The width of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// 8 bits.
    W8,
    /// 16 bits.
    W16,
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// All widths, narrowest first.
    pub const ALL: [Self; 4] = [Self::W8, Self::W16, Self::W32, Self::W64];

    /// The width of `bits` bits.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            8 => Some(Self::W8),
            16 => Some(Self::W16),
            32 => Some(Self::W32),
            64 => Some(Self::W64),
            _ => None,
        }
    }

    /// Its number of bits.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// Its number of bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::W8 => 1,
            Self::W16 => 2,
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }

    /// The low bits of `value` that fit.
    pub const fn truncate(self, value: u64) -> u64 {
        value & (u64::MAX >> (64 - self.bits()))
    }

    /// The low bits of `value`, with the highest of them copied upwards.
    pub const fn sign_extend(self, value: u64) -> i64 {
        let unused = 64 - self.bits();
        ((value << unused) as i64) >> unused
    }
}

/// One value, as it lies in a record and as it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A number without a sign, printed in decimal. The value of a bitfield is one, too, because
    /// its bits are moved to the low end before they are stored.
    Unsigned(Width),
    /// A number with a sign, printed in decimal.
    Signed(Width),
    /// A number without a sign, printed in hexadecimal.
    Hex(Width),
    /// A byte, printed as a character: `'c'`.
    Char,
    /// An address, printed as `symbol+0xoffset/0xsize`.
    Symbol,
    /// A string, printed in double quotes.
    String,
}

impl Element {
    /// The number of bytes that it takes in the fixed part of a record.
    pub const fn size(self) -> u32 {
        match self {
            Self::Unsigned(width) | Self::Signed(width) | Self::Hex(width) => width.bytes(),
            Self::Char => 1,
            Self::Symbol => 8,
            Self::String => 4,
        }
    }

    /// Whether a `format` file says `signed:1`. A string does, as in Linux.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::Signed(_) | Self::String)
    }

    /// Its type in a `format` file.
    pub const fn c_type(self) -> &'static str {
        match self {
            Self::Unsigned(width) | Self::Hex(width) => match width {
                Width::W8 => "u8",
                Width::W16 => "u16",
                Width::W32 => "u32",
                Width::W64 => "u64",
            },
            Self::Signed(width) => match width {
                Width::W8 => "s8",
                Width::W16 => "s16",
                Width::W32 => "s32",
                Width::W64 => "s64",
            },
            Self::Char => "u8",
            Self::Symbol => "u64",
            Self::String => "__data_loc char[]",
        }
    }

    /// Its conversion in the `print fmt` of a `format` file.
    pub const fn print_format(self) -> &'static str {
        match self {
            Self::Unsigned(Width::W64) => "%Lu",
            Self::Unsigned(_) => "%u",
            Self::Signed(Width::W64) => "%Ld",
            Self::Signed(_) => "%d",
            Self::Hex(Width::W64) => "0x%Lx",
            Self::Hex(_) => "0x%x",
            Self::Char => "'%c'",
            Self::Symbol => "%pS",
            Self::String => "\\\"%s\\\"",
        }
    }

    /// The number at `offset` of `record`, with its sign copied upwards. A string's field gives
    /// its location.
    fn number(self, record: &[u8], offset: usize) -> Option<u64> {
        let size = self.size() as usize;
        let bytes = record.get(offset..offset.checked_add(size)?)?;
        let mut value = [0; 8];
        value[..size].copy_from_slice(bytes);
        let value = u64::from_le_bytes(value);
        Some(match self {
            Self::Signed(width) => width.sign_extend(value) as u64,
            _ => value,
        })
    }

    /// Appends `value` if it is printed as a number. Returns whether it is.
    fn push_number<const MOST: usize>(self, value: u64, text: &mut Ascii<MOST>) -> bool {
        match self {
            Self::Unsigned(_) => text.push_decimal(value, b' ', 0),
            Self::Signed(_) => text.push_signed(value as i64),
            Self::Hex(_) => text.push_hex(value),
            Self::Char | Self::Symbol | Self::String => return false,
        }
        true
    }

    /// Prints the value at `offset` of `record`.
    fn print(
        self,
        record: &[u8],
        offset: usize,
        symbols: &dyn Symbols,
        out: &mut dyn Write,
    ) -> fmt::Result {
        if let Self::String = self {
            return match string_at(record, offset) {
                Some(text) => {
                    out.write_char('"')?;
                    print_bytes(text, out)?;
                    out.write_char('"')
                }
                None => out.write_str(FAULT),
            };
        }
        let Some(value) = self.number(record, offset) else {
            return out.write_str(FAULT);
        };
        match self {
            Self::Unsigned(_) | Self::Signed(_) | Self::Hex(_) => {
                let mut text = Ascii::<20>::new();
                self.push_number(value, &mut text);
                text.write_to(out)
            }
            Self::Char => {
                out.write_char('\'')?;
                print_bytes(&[value as u8], out)?;
                out.write_char('\'')
            }
            Self::Symbol => print_symbol(value, symbols, out),
            Self::String => unreachable!("strings are printed above"),
        }
    }
}

/// The bytes that the field at `offset` locates.
fn located(record: &[u8], offset: usize) -> Option<&[u8]> {
    let location = Element::String.number(record, offset)?;
    let (start, length) = ((location & 0xffff) as usize, (location >> 16) as usize);
    if length == 0 {
        return None;
    }
    record.get(start..start + length)
}

/// The bytes of the string that the field at `offset` locates, without its NUL.
fn string_at(record: &[u8], offset: usize) -> Option<&[u8]> {
    let bytes = located(record, offset)?;
    Some(bytes.split(|&byte| byte == 0).next().unwrap_or(bytes))
}

/// Prints bytes of unknown encoding: what is not UTF-8 becomes U+FFFD.
pub(crate) fn print_bytes(bytes: &[u8], out: &mut dyn Write) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        out.write_str(chunk.valid())?;
        if !chunk.invalid().is_empty() {
            out.write_char(char::REPLACEMENT_CHARACTER)?;
        }
    }
    Ok(())
}

/// Prints `address` as `symbol+0xoffset/0xsize`, or as a number if no symbol covers it.
pub fn print_symbol(address: u64, symbols: &dyn Symbols, out: &mut dyn Write) -> fmt::Result {
    match symbols.symbol(address) {
        Some(SymbolAt {
            name,
            offset,
            size,
            module,
        }) => {
            // One text, if the name is not among the longest.
            let mut place = Ascii::<88>::new();
            match name.len() {
                ..=48 => place.push(name.as_bytes()),
                _ => out.write_str(name)?,
            }
            place.push(b"+");
            place.push_hex(offset);
            place.push(b"/");
            place.push_hex(size);
            place.write_to(out)?;
            match module {
                Some(module) => write!(out, " [{module}]"),
                None => Ok(()),
            }
        }
        None => {
            let mut number = Ascii::<18>::new();
            number.push_hex(address);
            number.write_to(out)
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{
        format,
        string::{String, ToString},
        vec::Vec,
    };

    struct Main;

    impl Symbols for Main {
        fn symbol(&self, address: u64) -> Option<SymbolAt<'_>> {
            (0x1000..0x1020).contains(&address).then(|| SymbolAt {
                name: "main",
                offset: address - 0x1000,
                size: 0x20,
                module: None,
            })
        }

        fn address(&self, name: &str) -> Result<u64, LookupError> {
            if name == "main" {
                Ok(0x1000)
            } else {
                Err(LookupError::NotFound)
            }
        }
    }

    fn printed(field: &Field, record: &[u8]) -> String {
        let mut out = String::new();
        field.print(record, &Main, &mut out).unwrap();
        out
    }

    /// Prints the only value of `bytes`, which starts at offset 3 to show that nothing is aligned.
    fn one(element: Element, bytes: &[u8]) -> String {
        let record: Vec<u8> = [0xaa; 3].iter().chain(bytes).copied().collect();
        printed(&Field::new("f", 3, FieldKind::One(element)), &record)
    }

    #[test]
    fn each_type_prints_as_linux_prints_it() {
        let ones = [0xff; 8];
        for (element, bytes, text) in [
            (Element::Unsigned(Width::W8), &ones[..], "255"),
            (Element::Unsigned(Width::W16), &ones, "65535"),
            (Element::Unsigned(Width::W32), &ones, "4294967295"),
            (Element::Unsigned(Width::W64), &ones, "18446744073709551615"),
            (Element::Signed(Width::W8), &ones, "-1"),
            (Element::Signed(Width::W16), &[0x00, 0x80], "-32768"),
            (
                Element::Signed(Width::W32),
                &[0xff, 0xff, 0xff, 0x7f],
                "2147483647",
            ),
            (Element::Signed(Width::W64), &ones, "-1"),
            (Element::Hex(Width::W8), &[0x0a], "0xa"),
            (Element::Hex(Width::W16), &[0x34, 0x12], "0x1234"),
            (Element::Hex(Width::W32), &[0, 0, 0, 0], "0x0"),
            (Element::Hex(Width::W64), &ones, "0xffffffffffffffff"),
            (Element::Char, b"t", "'t'"),
            (Element::Symbol, &0x1004_u64.to_le_bytes(), "main+0x4/0x20"),
            (Element::Symbol, &0x2000_u64.to_le_bytes(), "0x2000"),
        ] {
            assert_eq!(one(element, bytes), text, "{element:?}");
        }
    }

    #[test]
    fn string_ends_at_its_nul() {
        let field = Field::new("s", 0, FieldKind::One(Element::String));
        let record = b"\x04\x00\x05\x00ab\0cd";
        assert_eq!(field.string(record), Some(&b"ab"[..]));
        assert_eq!(printed(&field, record), "\"ab\"");
    }

    #[test]
    fn unread_string_prints_as_fault_and_an_empty_one_as_empty() {
        let field = Field::new("s", 0, FieldKind::One(Element::String));
        assert_eq!(printed(&field, &[4, 0, 0, 0]), "(fault)");
        assert_eq!(printed(&field, &[4, 0, 1, 0, 0]), "\"\"");
    }

    #[test]
    fn bytes_beyond_the_record_are_not_read() {
        for element in [
            Element::Unsigned(Width::W32),
            Element::Symbol,
            Element::String,
        ] {
            let field = Field::new("f", 2, FieldKind::One(element));
            assert_eq!(printed(&field, &[0xff; 5]), "(fault)", "{element:?}");
            assert_eq!(field.number(&[0xff; 5]), None);
            assert_eq!(field.string(&[0xff; 5]), None);
        }
        let string = Field::new("s", 0, FieldKind::One(Element::String));
        // The location is in the record, and the text reaches one byte beyond it.
        assert_eq!(printed(&string, &[4, 0, 3, 0, b'a', b'b']), "(fault)");
        assert_eq!(printed(&string, &[0xff; 4]), "(fault)");
        let far = Field::new("f", u32::MAX, FieldKind::One(Element::Char));
        assert_eq!(printed(&far, &[0]), "(fault)");
    }

    #[test]
    fn symbol_string_prints_the_symbol_of_its_address() {
        let field = Field::symbol_string("s", 0);
        let mut record = std::vec![5, 0, 8, 0, 0xaa];
        record.extend(0x1004_u64.to_le_bytes());
        assert_eq!(printed(&field, &record), "\"main+0x4/0x20\"");
        assert_eq!(field.string(&record), None);
        assert_eq!(printed(&field, &record[..12]), "(fault)");
        assert_eq!(field.declaration().to_string(), "__data_loc char[] s");
    }

    #[test]
    fn arrays_print_in_braces() {
        let array = |element, count| Field::new("a", 0, FieldKind::Array { element, count });
        assert_eq!(
            printed(&array(Element::Char, 4), b"test"),
            "{'t','e','s','t'}"
        );
        assert_eq!(
            printed(&array(Element::Signed(Width::W16), 2), &[1, 0, 255, 255]),
            "{1,-1}"
        );
        assert_eq!(
            printed(&array(Element::Unsigned(Width::W8), 1), &[7]),
            "{7}"
        );
        let strings = array(Element::String, 2);
        let record = b"\x08\x00\x02\x00\x00\x00\x00\x00x\0";
        assert_eq!(printed(&strings, record), "{\"x\",(fault)}");
        assert_eq!(strings.size(), 8);
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let field = Field::new("s", 0, FieldKind::One(Element::String));
        assert_eq!(
            printed(&field, b"\x04\x00\x04\x00a\xffb\0"),
            "\"a\u{fffd}b\""
        );
        assert_eq!(one(Element::Char, b"\xff"), "'\u{fffd}'");
    }

    #[test]
    fn declarations_are_those_of_format_files() {
        let array = |element, count| FieldKind::Array { element, count };
        for (kind, text) in [
            (FieldKind::One(Element::Hex(Width::W64)), "u64 f"),
            (FieldKind::One(Element::Signed(Width::W32)), "s32 f"),
            (FieldKind::One(Element::Symbol), "u64 f"),
            (FieldKind::One(Element::String), "__data_loc char[] f"),
            (array(Element::Char, 4), "u8 f[4]"),
            (array(Element::String, 2), "__data_loc char[][2] f"),
        ] {
            assert_eq!(Field::new("f", 8, kind).declaration().to_string(), text);
        }
        let common: Vec<_> = Field::common()
            .iter()
            .map(|field| format!("{} {} {}", field.declaration(), field.offset, field.size()))
            .collect();
        assert_eq!(
            common,
            [
                "unsigned short common_type 0 2",
                "unsigned char common_flags 2 1",
                "unsigned char common_preempt_count 3 1",
                "int common_pid 4 4",
            ]
        );
        assert!(Field::common()[3].is_signed());
        let ip = Field::address("__probe_ip", 8);
        assert_eq!(ip.declaration().to_string(), "unsigned long __probe_ip");
    }

    #[test]
    fn numbers_carry_their_sign() {
        let field = Field::new("f", 0, FieldKind::One(Element::Signed(Width::W8)));
        assert_eq!(field.number(&[0x80]), Some(-128_i64 as u64));
        let field = Field::new("f", 0, FieldKind::One(Element::Unsigned(Width::W8)));
        assert_eq!(field.number(&[0x80]), Some(128));
        assert_eq!(field.string(&[0x80]), None);
    }
}
