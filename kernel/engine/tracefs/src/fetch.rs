//! Fetch arguments: `NAME=FETCH:TYPE`, the values that a hit records.
//!
//! | fetch | value |
//! |---|---|
//! | `%REG` | a register |
//! | `$stack`, `$stackN` | the stack pointer, the word number N from there |
//! | `$argN` | an argument of the function, N from 1; in a return event as it was at the entry |
//! | `$retval` | the result of the function, in a return event |
//! | `$comm` | the name of the task |
//! | `$addr`, `$old`, `$new` | in a watch: its address, and the values before and after |
//! | `\IMM`, `\"TEXT"` | a constant |
//! | `@ADDR`, `@SYM+N` | the memory there |
//! | `@+N` | the memory with the byte N of the file, in an event of a program |
//! | `+N(F)`, `-N(F)` | the memory at the value of F plus or minus N; `+uN(F)` in user space |
//!
//! A value of the type `%pD` or `%pd` is the address of an open file or of a node. Its name is
//! recorded: the string at the address that is in the object ([`Symbols::name_offset`]).
//!
//! In an event of a program, all memory is the program's: `+N(F)` is `+uN(F)`, and `$stackN`,
//! `@ADDR` read it as well.
//!
//! # Invariants
//! FETCH-1. An argument keeps its text, and the text alone is printed. So what is printed parses to
//!     the same argument.
//! FETCH-2. A fetch that is parsed can be carried out: its symbols are there, it fits the place of
//!     the probe, and its type fits the value.

use crate::{
    field::{Element, FieldKind, LookupError, Named, Symbols, Width},
    number,
    refusal::{Reason, no_memory},
};
use alloc::{boxed::Box, string::String};
use core::fmt;

use bpf::context::Register;
use fallible::{OutOfMemory, copied, try_box, written};

/// The limits of the syntax, which differ between releases of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grammar {
    /// The most bytes of a fetch with its type.
    pub most_fetch_bytes: usize,
    /// The number of words of a kernel stack.
    pub stack_words: u64,
}

impl Grammar {
    /// The limits of Linux 6: the text of a fetch has at most 63 bytes.
    pub const LINUX_6: Self = Self {
        most_fetch_bytes: 63,
        stack_words: 2048,
    };
    /// The limits of Linux 7, which allows longer texts.
    pub const LINUX_7: Self = Self {
        most_fetch_bytes: 255,
        ..Self::LINUX_6
    };
}

impl Default for Grammar {
    fn default() -> Self {
        Self::LINUX_7
    }
}

/// Where an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// Recorded at the first instruction of a function.
    Entry,
    /// Recorded at another instruction.
    Inside,
    /// Recorded at the return of a function.
    Return,
}

/// A place in memory that is known when the event is defined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An address.
    Address(u64),
    /// A distance from a symbol.
    Symbol {
        /// The name of the symbol.
        name: String,
        /// The distance in bytes.
        offset: i64,
    },
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Symbol { name, offset: 0 } => f.write_str(name),
            Self::Symbol { name, offset } => write!(f, "{name}{offset:+}"),
        }
    }
}

impl Location {
    /// Parses what follows an `@`.
    pub(crate) fn parse(text: &str, symbols: &dyn Symbols) -> Result<Self, Reason> {
        if text.starts_with('+') {
            return Err(Reason::FileOnKprobe);
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let address = number::digits(text).ok_or(Reason::BadMemoryAddress)?;
            return Ok(Self::Address(address));
        }
        let (name, offset) = match text.find(['+', '-']) {
            Some(sign) => text.split_at(sign),
            None => (text, "+0"),
        };
        let offset = number::signed(offset).ok_or(Reason::BadMemoryAddress)?;
        match symbols.address(name) {
            Ok(_) => Ok(Self::Symbol {
                name: copied(name)?,
                offset,
            }),
            Err(LookupError::NotFound) => Err(Reason::BadMemoryAddress),
            Err(LookupError::NotUnique(_)) => Err(Reason::SymbolNotUnique),
            Err(LookupError::OutOfMemory) => Err(Reason::OutOfMemory),
        }
    }

    /// Its address.
    pub fn address(&self, symbols: &dyn Symbols) -> Result<u64, LookupError> {
        match self {
            Self::Address(address) => Ok(*address),
            Self::Symbol { name, offset } => {
                Ok(symbols.address(name)?.wrapping_add_signed(*offset))
            }
        }
    }
}

/// A value to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// A register.
    Register(Register),
    /// The stack pointer.
    StackPointer,
    /// A word of the stack, from 0 on.
    Stack(u32),
    /// An argument of the function, from 1 on.
    Argument(u32),
    /// The result of the function.
    ReturnValue,
    /// The name of the task.
    Comm,
    /// The address that is watched, of a watch that moves.
    WatchedAddress,
    /// A constant number.
    Immediate(u64),
    /// A constant text.
    Text(String),
    /// Memory at a known place.
    Memory(Location),
    /// Memory at a distance from a value.
    Dereference {
        /// Whether it is user memory.
        user: bool,
        /// The distance in bytes.
        offset: i64,
        /// The value.
        of: Box<Self>,
    },
}

impl Fetch {
    /// Linux carries a fetch out in at most this many steps, the storing included.
    const MOST_STEPS: u32 = 15;

    /// The number of steps before the value is stored.
    fn steps(&self) -> u32 {
        match self {
            Self::Memory(Location::Address(_)) => 1,
            Self::Memory(Location::Symbol { .. }) => 2,
            Self::Dereference { of, .. } => of.steps() + 1,
            _ => 0,
        }
    }

    /// Whether the value is read from memory by its address.
    const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::Dereference { .. })
    }

    const fn is_user_memory(&self) -> bool {
        matches!(self, Self::Dereference { user: true, .. })
    }

    /// Whether the value is a text from the beginning.
    const fn is_text(&self) -> bool {
        matches!(self, Self::Comm | Self::Text(_))
    }

    /// The arguments of the function that it reads.
    pub fn argument(&self) -> Option<u32> {
        match self {
            Self::Argument(number) => Some(*number),
            Self::Dereference { of, .. } => of.argument(),
            _ => None,
        }
    }
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// `u8` to `u64`.
    Unsigned(Width),
    /// `s8` to `s64`.
    Signed(Width),
    /// `x8` to `x64`.
    Hex(Width),
    /// `char`.
    Char,
    /// `symbol`.
    Symbol,
    /// `bWIDTH@OFFSET/CONTAINER`.
    Bitfield {
        /// The number of bits.
        width: u8,
        /// The number of the lowest bit.
        offset: u8,
        /// The width of the number that holds them.
        container: Width,
    },
    /// `string`.
    String,
    /// `ustring`: a string in user memory.
    UserString,
    /// `symstr`: the symbol of an address, written at the hit.
    SymbolString,
}

impl ValueType {
    /// The type named `name`.
    fn parse(name: &str) -> Result<Self, Reason> {
        if let Some(bits) = name.strip_prefix('b') {
            return Self::parse_bitfield(bits);
        }
        Ok(match name {
            "char" => Self::Char,
            "symbol" => Self::Symbol,
            "string" => Self::String,
            "ustring" => Self::UserString,
            "symstr" => Self::SymbolString,
            _ => {
                let width = |digits| {
                    Width::ALL.into_iter().find(|width| match width {
                        Width::W8 => digits == "8",
                        Width::W16 => digits == "16",
                        Width::W32 => digits == "32",
                        Width::W64 => digits == "64",
                    })
                };
                let (kind, digits) = name.split_at_checked(1).ok_or(Reason::BadType)?;
                let width = width(digits).ok_or(Reason::BadType)?;
                match kind {
                    "u" => Self::Unsigned(width),
                    "s" => Self::Signed(width),
                    "x" => Self::Hex(width),
                    _ => return Err(Reason::BadType),
                }
            }
        })
    }

    /// The bitfield `WIDTH@OFFSET/CONTAINER`. A wrong container is a wrong type, as in Linux.
    fn parse_bitfield(text: &str) -> Result<Self, Reason> {
        let (_, container) = text.split_once('/').ok_or(Reason::BadType)?;
        let container = number::unsigned(container).and_then(Width::from_bits);
        let container = container.ok_or(Reason::BadType)?;
        let (width, rest) = number::leading(text);
        let rest = rest.strip_prefix('@').ok_or(Reason::BadBitfield)?;
        let (offset, tail) = number::leading(rest);
        if width == 0 || tail.len() == rest.len() || !tail.starts_with('/') {
            return Err(Reason::BadBitfield);
        }
        let bits = u64::from(container.bits());
        match width.checked_add(offset) {
            Some(end) if end <= bits => Ok(Self::Bitfield {
                width: width as u8,
                offset: offset as u8,
                container,
            }),
            _ => Err(Reason::BadBitfield),
        }
    }

    /// Whether it is stored as a string.
    pub const fn is_string(self) -> bool {
        matches!(self, Self::String | Self::UserString | Self::SymbolString)
    }

    /// The form in a record.
    pub const fn element(self) -> Element {
        match self {
            Self::Unsigned(width)
            | Self::Bitfield {
                container: width, ..
            } => Element::Unsigned(width),
            Self::Signed(width) => Element::Signed(width),
            Self::Hex(width) => Element::Hex(width),
            Self::Char => Element::Char,
            Self::Symbol => Element::Symbol,
            Self::String | Self::UserString | Self::SymbolString => Element::String,
        }
    }

    /// Whether two probes of one event may have these types at one argument. Bitfields of one
    /// container count as the number that holds them.
    pub fn is_same(self, other: Self) -> bool {
        let plain = |ty| match ty {
            Self::Bitfield { container, .. } => Self::Unsigned(container),
            ty => ty,
        };
        plain(self) == plain(other)
    }
}

/// An argument of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Its text after the `=`.
    pub text: String,
    /// The value.
    pub fetch: Fetch,
    /// The type of the value.
    pub value_type: ValueType,
    /// The number of values of an array.
    pub count: Option<u8>,
}

impl Argument {
    /// The most bytes of a name.
    pub const MOST_NAME_BYTES: usize = 32;
    /// The most values of an array.
    pub const MOST_COUNT: u64 = 64;

    /// The form in a record.
    pub const fn kind(&self) -> FieldKind {
        let element = self.value_type.element();
        match self.count {
            Some(count) => FieldKind::Array { element, count },
            None => FieldKind::One(element),
        }
    }
}

/// A reason at an offset of a text.
type At = (Reason, usize);

/// The things that the parsing of an argument depends on.
pub(crate) struct Parser<'a> {
    pub(crate) grammar: &'a Grammar,
    pub(crate) site: Site,
    pub(crate) symbols: &'a dyn Symbols,
    /// The path of the program that the event is of.
    pub(crate) program: Option<&'a str>,
    /// The address that the event watches, if it is a watch. None in it: that is known at the hit.
    pub(crate) watched: Option<Option<u64>>,
}

impl Parser<'_> {
    /// Parses the word of an argument. `number` counts arguments from 0. `is_used` tells whether a
    /// name is taken.
    pub(crate) fn argument(
        &self,
        word: &str,
        number: usize,
        is_used: impl Fn(&str) -> bool,
    ) -> Result<Argument, At> {
        let (name, body) = match word.split_once('=') {
            Some((name, _)) if name.len() > Argument::MOST_NAME_BYTES => {
                return Err((Reason::ArgumentNameTooLong, 0));
            }
            Some(("", _)) => return Err((Reason::NoArgumentName, 0)),
            Some((name, body)) => (copied(name).map_err(no_memory)?, body),
            None => (automatic_argument_name(number).map_err(no_memory)?, word),
        };
        if !is_identifier(&name) {
            return Err((Reason::BadArgumentName, 0));
        }
        if RESERVED.contains(&name.as_str()) || is_used(&name) {
            return Err((Reason::UsedArgumentName, 0));
        }
        let start = word.len() - body.len();
        let (fetch, value_type, count) = self
            .body(body)
            .map_err(|(reason, offset)| (reason, start + offset))?;
        Ok(Argument {
            name,
            text: copied(body).map_err(no_memory)?,
            fetch,
            value_type,
            count,
        })
    }

    /// Parses `FETCH[:TYPE]`.
    fn body(&self, body: &str) -> Result<(Fetch, ValueType, Option<u8>), At> {
        if body.len() > self.grammar.most_fetch_bytes {
            return Err((Reason::ArgumentTooLong, 0));
        }
        if body.is_empty() {
            return Err((Reason::NoArgumentBody, 0));
        }
        let (text, type_text) = split_type(body);
        let type_start = text.len() + 1;
        let at_type = |(reason, offset)| (reason, type_start + offset);
        let (name, count) = match type_text {
            Some(type_text) => {
                let (name, count) = split_array(type_text).map_err(at_type)?;
                (Some(name), count)
            }
            None => (None, None),
        };
        let is_text = matches!(text, "$comm" | "$COMM") || text.starts_with("\\\"");
        if let Some(named) = name.filter(|_| !is_text).and_then(named)
            && let Some(offset) = self.symbols.name_offset(named)
        {
            if count.is_some() {
                return Err(at_type((Reason::BadType, 0)));
            }
            return Ok((self.name_of(text, offset)?, ValueType::String, None));
        }
        let value_type = match name {
            None if is_text => ValueType::String,
            None => ValueType::Hex(Width::W64),
            Some("string") if is_text && count.is_none() => ValueType::String,
            Some(_) if is_text => return Err(at_type((Reason::NeedStringType, 0))),
            // A bitfield is refused after the fetch, as in Linux, but a wrong type before it.
            Some(name) => match ValueType::parse(name) {
                Err(Reason::BadBitfield) => {
                    self.fetch(text, 0)?;
                    return Err(at_type((Reason::BadBitfield, 0)));
                }
                other => other.map_err(|reason| at_type((reason, 0)))?,
            },
        };
        let fetch = self.fetch(text, 0)?;
        let in_program = self.program.is_some();
        check_type(&fetch, value_type, count, in_program).map_err(|reason| match reason {
            Reason::TooManySteps => (reason, 0),
            _ => at_type((reason, 0)),
        })?;
        Ok((fetch, value_type, count))
    }

    /// Parses the fetch of an object's address. Returns that of its name, whose address is `offset`
    /// bytes after it.
    fn name_of(&self, text: &str, offset: u32) -> Result<Fetch, At> {
        let mut fetch = self.fetch(text, 0)?;
        if fetch.steps() + 2 >= Fetch::MOST_STEPS {
            return Err((Reason::TooManySteps, 0));
        }
        for offset in [i64::from(offset), 0] {
            fetch = Fetch::Dereference {
                user: false,
                offset,
                of: try_box(fetch).map_err(no_memory)?,
            };
        }
        Ok(fetch)
    }

    /// Parses a fetch without its type, which begins at offset `at`.
    fn fetch(&self, text: &str, at: usize) -> Result<Fetch, At> {
        let rest = text.get(1..).unwrap_or("");
        match text.as_bytes().first() {
            Some(b'$') => self.variable(rest).map_err(|reason| (reason, at)),
            Some(b'%') => Register::named(rest)
                .map(Fetch::Register)
                .ok_or((Reason::BadRegister, at)),
            Some(b'@') => match self.program {
                Some(path) => self.program_memory(path, rest),
                None => Location::parse(rest, self.symbols).map(Fetch::Memory),
            }
            .map_err(|reason| (reason, at)),
            Some(b'+' | b'-') => self.dereference(text, at),
            Some(b'\\') => immediate(rest, at + 1),
            Some(byte) if byte.is_ascii_alphabetic() || *byte == b'_' => {
                Err((Reason::NoArgumentNames, at))
            }
            _ => Err((Reason::BadFetch, at)),
        }
    }

    /// Parses what follows a `$`.
    fn variable(&self, name: &str) -> Result<Fetch, Reason> {
        let decimal = |digits: &str| {
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty();
            is_number.then(|| digits.parse::<u64>().unwrap_or(u64::MAX))
        };
        match name {
            "retval" if self.site == Site::Return => return Ok(Fetch::ReturnValue),
            "retval" => return Err(Reason::RetvalOnProbe),
            "comm" | "COMM" => return Ok(Fetch::Comm),
            "stack" => return Ok(Fetch::StackPointer),
            "arg*" => return Err(Reason::NoArgumentNames),
            _ => (),
        }
        // Where the values are is said by the kernel's watchpoints that run a program.
        match (self.watched, name) {
            (Some(Some(address)), "addr") => return Ok(Fetch::Immediate(address)),
            (Some(None), "addr") => return Ok(Fetch::WatchedAddress),
            (Some(_), "old") => return Ok(Fetch::Register(Register::OrigAx)),
            (Some(_), "new") => return Ok(Fetch::Register(Register::Ss)),
            _ => (),
        }
        if let Some(number) = name.strip_prefix("stack") {
            let number = decimal(number).ok_or(Reason::BadVariable)?;
            return match u32::try_from(number) {
                Ok(word) if number <= self.grammar.stack_words => match self.program {
                    Some(_) => Ok(Fetch::Dereference {
                        user: true,
                        offset: i64::from(word) * 8,
                        of: try_box(Fetch::StackPointer)?,
                    }),
                    None => Ok(Fetch::Stack(word)),
                },
                _ => Err(Reason::BadStackNumber),
            };
        }
        if let Some(number) = name.strip_prefix("arg") {
            let number = decimal(number).ok_or(Reason::BadVariable)?;
            return match u32::try_from(number) {
                Ok(argument @ 1..) if number <= self.grammar.stack_words => match self.site {
                    Site::Entry | Site::Return if self.program.is_none() => {
                        Ok(Fetch::Argument(argument))
                    }
                    _ => Err(Reason::NotFunctionEntry),
                },
                _ => Err(Reason::BadArgumentNumber),
            };
        }
        Err(Reason::BadVariable)
    }

    /// Parses what follows an `@` in an event of the program at `path`.
    fn program_memory(&self, path: &str, text: &str) -> Result<Fetch, Reason> {
        let address = match text.strip_prefix('+') {
            Some(offset) => {
                let offset = number::digits(offset).ok_or(Reason::BadFileOffset)?;
                let address = self.symbols.program_address(path, offset);
                address.ok_or(Reason::BadFileOffset)?
            }
            None if text.starts_with(|c: char| c.is_ascii_digit()) => {
                number::digits(text).ok_or(Reason::BadMemoryAddress)?
            }
            None => return Err(Reason::SymbolOnUserProbe),
        };
        Ok(Fetch::Dereference {
            user: true,
            offset: 0,
            of: try_box(Fetch::Immediate(address))?,
        })
    }

    /// Parses `+N(F)`, `-N(F)`, `+uN(F)` or `-uN(F)`.
    fn dereference(&self, text: &str, at: usize) -> Result<Fetch, At> {
        let (sign, rest) = text.split_at(1);
        let (user, rest) = match rest.strip_prefix('u') {
            Some(rest) => (true, rest),
            None => (self.program.is_some(), rest),
        };
        let (distance, inner) = rest
            .split_once('(')
            .ok_or((Reason::DereferenceNeedsBrace, at))?;
        let inner_at = at + text.len() - inner.len();
        let offset = number::digits(distance)
            .and_then(|distance| match sign {
                "-" => 0_i64.checked_sub_unsigned(distance),
                _ => i64::try_from(distance).ok(),
            })
            .ok_or((Reason::BadDereferenceOffset, at))?;
        let close = inner
            .rfind(')')
            .ok_or((Reason::DereferenceNotClosed, inner_at + inner.len()))?;
        let of = self.fetch(&inner[..close], inner_at)?;
        if of.is_text() {
            return Err((Reason::CommDereferenced, inner_at));
        }
        if of.steps() + 1 >= Fetch::MOST_STEPS {
            return Err((Reason::TooManySteps, inner_at));
        }
        // Linux drops what follows the last brace. That hides a mistake, so it is refused here.
        if close + 1 < inner.len() {
            return Err((Reason::BadFetch, inner_at + close + 1));
        }
        Ok(Fetch::Dereference {
            user,
            offset,
            of: try_box(of).map_err(no_memory)?,
        })
    }
}

/// The names that no argument may have.
const RESERVED: [&str; 8] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_tgid",
    "__probe_ip",
    "__probe_ret_ip",
    "__probe_func",
];

/// Whether `name` is a C identifier.
pub(crate) fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Divides `FETCH:TYPE`. A colon inside a string is part of the string.
fn split_type(body: &str) -> (&str, Option<&str>) {
    let colon = if let Some(string) = body.strip_prefix("\\\"") {
        let close = string.rfind('"').map(|quote| quote + 3);
        close.filter(|close| body[*close..].starts_with(':'))
    } else {
        body.find(':')
    };
    match colon {
        Some(colon) => (&body[..colon], Some(&body[colon + 1..])),
        None => (body, None),
    }
}

/// The object whose name is the value of a type.
fn named(type_name: &str) -> Option<Named> {
    match type_name {
        "%pD" => Some(Named::File),
        "%pd" => Some(Named::Node),
        _ => None,
    }
}

/// Divides `TYPE[K]`.
fn split_array(text: &str) -> Result<(&str, Option<u8>), At> {
    let Some((name, rest)) = text.split_once('[') else {
        return Ok((text, None));
    };
    let start = name.len() + 1;
    let (digits, tail) = rest
        .split_once(']')
        .ok_or((Reason::ArrayNotClosed, text.len()))?;
    if !tail.is_empty() {
        return Err((Reason::BadArraySuffix, start + digits.len() + 1));
    }
    match number::unsigned(digits) {
        // Linux reads the size into 32 bits.
        None | Some(0) | Some(0x1_0000_0000..) => Err((Reason::BadArrayNumber, start)),
        Some(count) if count > Argument::MOST_COUNT => Err((Reason::ArrayTooBig, start)),
        Some(count) => Ok((name, Some(count as u8))),
    }
}

/// Parses what follows a `\`, which is at offset `at`.
fn immediate(text: &str, at: usize) -> Result<Fetch, At> {
    if let Some(string) = text.strip_prefix('"') {
        return match string.strip_suffix('"') {
            Some(string) => Ok(Fetch::Text(copied(string).map_err(no_memory)?)),
            None => Err((Reason::StringNotClosed, at + text.len())),
        };
    }
    let value = match text.as_bytes().first() {
        Some(b'-') => number::signed(text).map(|value| value as u64),
        Some(b'+') => number::signed(&text[1..]).map(|value| value as u64),
        Some(b'0'..=b'9') => number::digits(text),
        _ => None,
    };
    value
        .map(Fetch::Immediate)
        .ok_or((Reason::BadImmediate, at))
}

/// Checks that a value can have a type. `in_program`: all memory is the program's. For the kernel
/// Linux has no arrays of user memory.
fn check_type(
    fetch: &Fetch,
    value_type: ValueType,
    count: Option<u8>,
    in_program: bool,
) -> Result<(), Reason> {
    let memory = fetch.is_memory();
    match value_type {
        ValueType::SymbolString => {
            let is_value = matches!(
                fetch,
                Fetch::Register(_) | Fetch::Stack(_) | Fetch::Argument(_) | Fetch::ReturnValue
            );
            if !is_value && (!memory || fetch.is_user_memory()) {
                return Err(Reason::BadSymbolString);
            }
            if count.is_some() {
                return Err(Reason::BadString);
            }
        }
        ValueType::String | ValueType::UserString => {
            let is_address = memory || matches!(fetch, Fetch::Immediate(_));
            if !is_address && !fetch.is_text() || count.is_some() && !memory {
                return Err(Reason::BadString);
            }
        }
        _ if count.is_some() && (!memory || fetch.is_user_memory() && !in_program) => {
            return Err(Reason::BadString);
        }
        _ => (),
    }
    // The value of memory is stored in the step that reads it. Any other value takes one more, and
    // so do an array of strings, whose pointers are read first, the bits of a bitfield, and a loop.
    let own_store = !memory
        || value_type == ValueType::SymbolString
        || value_type.is_string() && count.is_some();
    let bitfield = matches!(value_type, ValueType::Bitfield { .. });
    let more = u32::from(own_store) + u32::from(bitfield) + u32::from(count.is_some());
    if fetch.steps() + more >= Fetch::MOST_STEPS {
        return Err(Reason::TooManySteps);
    }
    Ok(())
}

/// The name of the argument with this number, from 0 on, if the definition gives none.
pub(crate) fn automatic_argument_name(number: usize) -> Result<String, OutOfMemory> {
    written(&format_args!("arg{}", number + 1))
}
