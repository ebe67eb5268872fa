//! The types of values, and one value as it lies in a record and as it is printed.
//!
//! A number is little-endian and not aligned. A string's field locates its bytes elsewhere in the
//! record. Neither is read beyond the record's end (FIELD-1), and what is not there prints as
//! [`FAULT`] (FIELD-2).

use core::fmt::{self, Write};

use super::symbols::{Symbols, print_symbol};
use crate::digits::Ascii;

/// The text that stands for a value that could not be read.
pub const FAULT: &str = "(fault)";

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
    pub(super) fn number(self, record: &[u8], offset: usize) -> Option<u64> {
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
    pub(super) fn push_number<const MOST: usize>(self, value: u64, text: &mut Ascii<MOST>) -> bool {
        match self {
            Self::Unsigned(_) => text.push_decimal(value, b' ', 0),
            Self::Signed(_) => text.push_signed(value as i64),
            Self::Hex(_) => text.push_hex(value),
            Self::Char | Self::Symbol | Self::String => return false,
        }
        true
    }

    /// Prints the value at `offset` of `record`.
    pub(super) fn print(
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
pub(super) fn located(record: &[u8], offset: usize) -> Option<&[u8]> {
    let location = Element::String.number(record, offset)?;
    let (start, length) = ((location & 0xffff) as usize, (location >> 16) as usize);
    if length == 0 {
        return None;
    }
    record.get(start..start + length)
}

/// The bytes of the string that the field at `offset` locates, without its NUL.
pub(super) fn string_at(record: &[u8], offset: usize) -> Option<&[u8]> {
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
