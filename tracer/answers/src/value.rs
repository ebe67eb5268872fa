//! Values as they are shown: numbers, texts, addresses, values of Rust types, aggregates.
//!
//! A value knows its text and its order among others, and nothing of the bytes that it came from.
//! Names of functions are asked for when it is shown, because symbols may be read later.

use alloc::{rc::Rc, string::String, vec::Vec};
use core::{
    cmp::Ordering,
    fmt::{self, Write},
    net::IpAddr,
    time::Duration,
};

use trace_interface::{
    codes,
    shape::{Naming, StackForm},
};
pub use trace_interface::{
    shape::Form,
    symbols::{Symbol, Symbolize},
};

use crate::{
    histogram::{self, Bucket},
    series::{self, Interval},
};

/// Knows no names.
#[derive(Clone, Copy, Debug)]
pub struct NoSymbols;

impl Symbolize for NoSymbols {
    fn symbol(&self, _address: u64) -> Option<Symbol> {
        None
    }
}

/// Name and value of a field. A field of a tuple has a number as its name.
pub type NamedValue = (Rc<str>, Value);

/// The call stack of a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserStack {
    /// The name of the task, which is the file name of the program, cut off after 15 bytes.
    pub program: Rc<str>,
    /// The innermost first.
    pub addresses: Rc<[u64]>,
}

impl UserStack {
    /// Its frames as texts, the innermost first: a function and the distance from its beginning.
    pub fn frames(&self, symbols: &dyn Symbolize) -> impl Iterator<Item = (String, Option<u64>)> {
        self.addresses.iter().map(
            |address| match symbols.user_frame(&self.program, *address) {
                Some(symbol) => (symbol.name, Some(symbol.offset)),
                None => (alloc::format!("{address:#x}"), None),
            },
        )
    }
}

/// A value. A key of a map is one, too.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unit,
    /// A value that was not there, such as `retval.Ok` of an `Err`.
    Absent,
    /// A part of a value that the compiler of the kernel left out where the probe is.
    Unavailable,
    /// A part that is deeper inside of a value than values are stored.
    Deeper,
    /// A value whose memory could not be read.
    Unreadable,
    /// Bytes that no value of the type has, such as an enum with a tag of no variant.
    Invalid,
    Unsigned(u64),
    Signed(i64),
    /// Numbers of more than 64 bits.
    Wide(u128),
    SignedWide(i128),
    /// A number of 4 bytes, which has a shorter text than the same of 8.
    Single(f32),
    Float(f64),
    Duration(Duration),
    Boolean(bool),
    Character(char),
    /// A text. `cut` if there was more of it.
    Text {
        text: String,
        cut: bool,
    },
    /// Bytes in the place of a text that are not all UTF-8, as an `OsStr` may have them.
    NoText {
        bytes: Vec<u8>,
        cut: bool,
    },
    Bytes(Vec<u8>),
    /// A pointer.
    Address(u64),
    /// An address that is shown by the name of its function.
    Symbol {
        address: u64,
        /// Whether the distance from the function's beginning is shown.
        with_offset: bool,
    },
    /// An address of a program that is shown by the name of its function. The program's name is as
    /// in [`UserStack`].
    UserSymbol {
        program: Rc<str>,
        address: u64,
    },
    /// The name of a probe: what stands before the function's name, and the address that has the
    /// name, if a name follows.
    Probe {
        prefix: Rc<str>,
        address: Option<u64>,
    },
    /// A call stack, the innermost address first. None if the kernel could not record it.
    Stack(StackForm, Option<Rc<[u64]>>),
    /// The same of a program. None also if the task has no program.
    UserStack(StackForm, Option<UserStack>),
    /// A number that a list has a name for.
    Named(Naming, i64),
    Tuple(Vec<Value>),
    /// A slice, an array or another collection. `more`: how many elements follow these.
    List {
        items: Vec<Value>,
        more: u64,
        form: Form,
    },
    /// A record of the program has no name.
    Struct {
        name: Rc<str>,
        fields: Vec<NamedValue>,
    },
    Variant {
        /// The enum, as in the source.
        of: Rc<str>,
        name: Rc<str>,
        fields: Vec<NamedValue>,
    },
    /// Count and total of `stats`; the total is signed or not as the values were.
    Statistics {
        count: u64,
        total: i128,
        average: i128,
    },
    /// The value of `avg`.
    Average {
        count: u64,
        total: i128,
        average: i128,
    },
    /// The buckets of `hist` and `lhist`, from the first bucket that is not empty to the last.
    Histogram(Vec<Bucket>),
    /// The intervals of `tseries`.
    Series(Vec<Interval>),
}

impl Value {
    /// The number that it is, for conditions and sorting.
    pub fn number(&self) -> Option<i128> {
        Some(match self {
            Self::Unsigned(number) | Self::Address(number) => (*number).into(),
            Self::Symbol { address, .. } => (*address).into(),
            Self::Signed(number) | Self::Named(_, number) => (*number).into(),
            Self::Boolean(is) => i128::from(*is),
            Self::Character(character) => u32::from(*character).into(),
            Self::Wide(number) => i128::try_from(*number).ok()?,
            Self::SignedWide(number) => *number,
            Self::Average { average, .. } => *average,
            Self::Statistics { total, .. } => *total,
            Self::Histogram(buckets) => buckets.iter().map(|bucket| i128::from(bucket.count)).sum(),
            _ => return None,
        })
    }

    /// Divides what a map counts in, as `print(@map, top, divisor)` says.
    pub(crate) fn divide(&mut self, divisor: u64) {
        let by = i128::from(divisor.max(1));
        match self {
            Self::Unsigned(number) => *number /= divisor.max(1),
            Self::Signed(number) => *number = (i128::from(*number) / by) as i64,
            Self::Average { average, .. } | Self::Statistics { average, .. } => *average /= by,
            Self::Histogram(buckets) => {
                for bucket in buckets {
                    bucket.count /= divisor.max(1);
                }
            }
            _ => {}
        }
    }

    /// Its text, as it stands in a line.
    pub fn shown<'a>(&'a self, symbols: &'a dyn Symbolize) -> Shown<'a> {
        Shown {
            value: self,
            symbols,
            quoted: false,
        }
    }

    /// The order in which entries of maps are printed: numbers by size, and before texts.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) => return a.cmp(&b),
            (Some(_), None) => return Ordering::Less,
            (None, Some(_)) => return Ordering::Greater,
            (None, None) => {}
        }
        match (self, other) {
            (Self::Text { text: a, .. }, Self::Text { text: b, .. }) => a.cmp(b),
            (Self::Tuple(a), Self::Tuple(b)) => order_of_lists(a, b),
            (Self::List { items: a, .. }, Self::List { items: b, .. }) => order_of_lists(a, b),
            (Self::Stack(_, a), Self::Stack(_, b)) => a.cmp(b),
            (Self::UserStack(_, a), Self::UserStack(_, b)) => a.cmp(b),
            (Self::Bytes(a), Self::Bytes(b))
            | (Self::NoText { bytes: a, .. }, Self::NoText { bytes: b, .. }) => a.cmp(b),
            (
                Self::UserSymbol { program, address },
                Self::UserSymbol {
                    program: other_program,
                    address: other_address,
                },
            ) => (program, address).cmp(&(other_program, other_address)),
            (Self::Float(a), Self::Float(b)) => a.total_cmp(b),
            (Self::Single(a), Self::Single(b)) => a.total_cmp(b),
            (Self::Duration(a), Self::Duration(b)) => a.cmp(b),
            // The one that has changed last comes last.
            (Self::Series(a), Self::Series(b)) => last_change(a).cmp(&last_change(b)),
            (
                Self::Probe { prefix, address },
                Self::Probe {
                    prefix: other_prefix,
                    address: other_address,
                },
            ) => (prefix, address).cmp(&(other_prefix, other_address)),
            (
                Self::Variant { name, fields, .. },
                Self::Variant {
                    name: other_name,
                    fields: other_fields,
                    ..
                },
            ) => name
                .cmp(other_name)
                .then_with(|| order_of_fields(fields, other_fields)),
            (
                Self::Struct { fields, .. },
                Self::Struct {
                    fields: other_fields,
                    ..
                },
            ) => order_of_fields(fields, other_fields),
            _ => Ordering::Equal,
        }
    }
}

pub(crate) fn order_of_lists(a: &[Value], b: &[Value]) -> Ordering {
    let items = a.iter().zip(b).map(|(a, b)| a.order(b));
    items
        .into_iter()
        .find(|order| order.is_ne())
        .unwrap_or(a.len().cmp(&b.len()))
}

fn order_of_fields(a: &[NamedValue], b: &[NamedValue]) -> Ordering {
    let fields = a.iter().zip(b).map(|((_, a), (_, b))| a.order(b));
    fields
        .into_iter()
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// When a series has had its last value.
fn last_change(of: &[Interval]) -> Option<i128> {
    let with_value = of.iter().rev().find(|interval| interval.value.is_some());
    with_value.map(|interval| interval.begin)
}

/// See [`Value::shown`].
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    value: &'a Value,
    symbols: &'a dyn Symbolize,
    /// Texts inside of other values stand in quotes, as Rust's `{:?}` writes them.
    quoted: bool,
}

impl<'a> Shown<'a> {
    fn inner(&self, value: &'a Value) -> Self {
        Self {
            value,
            quoted: true,
            ..*self
        }
    }

    /// The elements in their brackets, and how many more there are.
    fn list(
        &self,
        f: &mut fmt::Formatter<'_>,
        items: &'a [Value],
        more: u64,
        form: Form,
    ) -> fmt::Result {
        f.write_char(if form == Form::List { '[' } else { '{' })?;
        for (index, item) in items.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            match (form, item) {
                (Form::Map, Value::Tuple(pair)) if pair.len() == 2 => {
                    write!(f, "{}: {}", self.inner(&pair[0]), self.inner(&pair[1]))?;
                }
                _ => write!(f, "{}", self.inner(item))?,
            }
        }
        if more > 0 {
            f.write_str(if items.is_empty() { "" } else { ", " })?;
            write!(f, "…and {more} more")?;
        }
        f.write_char(if form == Form::List { ']' } else { '}' })
    }

    /// `(1, 2)` of fields with numbers, ` { a: 1 }` of fields with names, nothing of no fields.
    fn fields(&self, f: &mut fmt::Formatter<'_>, fields: &'a [NamedValue]) -> fmt::Result {
        let Some((first, _)) = fields.first() else {
            return Ok(());
        };
        let is_tuple = first.starts_with(|c: char| c.is_ascii_digit());
        f.write_str(if is_tuple { "(" } else { " { " })?;
        for (index, (name, value)) in fields.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            if !is_tuple {
                write!(f, "{name}: ")?;
            }
            write!(f, "{}", self.inner(value))?;
        }
        f.write_str(if is_tuple { ")" } else { " }" })
    }

    /// `Name(1, 2)`.
    fn parts(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        parts: impl Iterator<Item = &'a Value>,
    ) -> fmt::Result {
        write!(f, "{name}(")?;
        for (index, part) in parts.enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            write!(f, "{}", self.inner(part))?;
        }
        f.write_char(')')
    }

    /// A structure, as `{:?}` writes it: without paths and parameters of generic types.
    fn structure(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        fields: &'a [NamedValue],
    ) -> fmt::Result {
        let inner = |at: usize| self.inner(&fields[at].1);
        match (name, fields.len()) {
            (whole, 0) if is_shown_whole(whole) => f.write_str(whole),
            // A tuple's name is its type; its fields say all.
            (tuple, 1) if tuple.starts_with('(') => write!(f, "({},)", inner(0)),
            (tuple, _) if tuple.starts_with('(') => self.fields(f, fields),
            // Types of the library are stored by these names, which no type of the source has.
            ("..", 2) => write!(f, "{}..{}", inner(0), inner(1)),
            ("..=", 3) => {
                let is_over = fields[2].1 == Value::Boolean(true);
                let after = if is_over { " (exhausted)" } else { "" };
                write!(f, "{}..={}{after}", inner(0), inner(1))
            }
            ("..=", 2) => write!(f, "{}..={}", inner(0), inner(1)),
            ("a..", 1) => write!(f, "{}..", inner(0)),
            ("..a", 1) => write!(f, "..{}", inner(0)),
            ("..=a", 1) => write!(f, "..={}", inner(0)),
            ("..", 0) => f.write_str(".."),
            ("OnceCell()" | "LazyCell()", 1) => {
                let name = name.trim_end_matches("()");
                match &fields[0].1 {
                    Value::Variant {
                        name: state,
                        fields,
                        ..
                    } => match (&**state, &fields[..]) {
                        ("Some" | "Init", [(_, value)]) => {
                            write!(f, "{name}({})", self.inner(value))
                        }
                        ("Poisoned", _) => write!(f, "{name}(<poisoned>)"),
                        _ => write!(f, "{name}(<uninit>)"),
                    },
                    other => write!(f, "{name}({})", self.inner(other)),
                }
            }
            ("TypeId()", 1) => match halves_of(&fields[0].1) {
                Some(number) => write!(f, "TypeId({number:#034x})"),
                None => write!(f, "TypeId({})", inner(0)),
            },
            ("Location()", 3) => {
                let (file, line, column) = (inner(0), inner(1), inner(2));
                write!(
                    f,
                    "Location {{ file: {file}, line: {line}, column: {column} }}"
                )
            }
            ("SocketAddr()", 2) => write!(f, "{}:{}", inner(0), inner(1)),
            ("SocketAddr()", 3) if fields[2].1.number() == Some(0) => {
                write!(f, "[{}]:{}", inner(0), inner(1))
            }
            ("SocketAddr()", 3) => write!(f, "[{}%{}]:{}", inner(0), inner(2), inner(1)),
            ("Mutex()" | "RwLock()", 2) => {
                let name = name.trim_end_matches("()");
                write!(
                    f,
                    "{name} {{ data: {}, poisoned: {}, .. }}",
                    inner(0),
                    inner(1)
                )
            }
            ("IpAddr()", 1) => match address_of(&fields[0].1) {
                Some(address) => write!(f, "{address}"),
                None => write!(f, "{}", inner(0)),
            },
            ("CStr()", 1) => match bytes_of(&fields[0].1) {
                Some((bytes, more)) if self.quoted => write_c_text(f, &bytes, more),
                Some((bytes, more)) => {
                    f.write_str(&String::from_utf8_lossy(without_nul(&bytes, more)))?;
                    f.write_str(if more > 1 { ".." } else { "" })
                }
                None => write!(f, "{}", inner(0)),
            },
            ("Chars()", 1) => match contents_of(&fields[0].1).and_then(bytes_of) {
                Some((bytes, more)) => write_characters(f, &bytes, more),
                None => write!(f, "Chars({})", inner(0)),
            },
            ("Pointer()", 2) => {
                write!(f, "Pointer {{ addr: {}, metadata: ", inner(0))?;
                match &fields[1].1 {
                    table @ Value::Address(_) => write!(f, "DynMetadata({})", self.inner(table))?,
                    length => write!(f, "{}", self.inner(length))?,
                }
                f.write_str(" }")
            }
            (of, 1) if let Some(name) = of.strip_suffix("{}") => {
                write!(f, "{name} {{ {}: {} }}", fields[0].0, inner(0))
            }
            (of, 1)
                if let Some(name) = of.strip_suffix("[]")
                    && let Value::List { items, more: 0, .. } = &fields[0].1 =>
            {
                self.parts(f, name, items.iter())
            }
            (of, _) if let Some(name) = of.strip_suffix("[]") => {
                let content = |(_, value)| contents_of(value).unwrap_or(value);
                self.parts(
                    f,
                    name,
                    fields.iter().map(|(name, value)| content((name, value))),
                )
            }
            (of, 1..) if let Some(name) = of.strip_suffix("()") => {
                self.parts(f, name, fields.iter().map(|(_, value)| value))
            }
            _ => {
                f.write_str(short_name(name))?;
                self.fields(f, fields)
            }
        }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Value::Unit => f.write_str("()"),
            Value::Absent => f.write_char('-'),
            Value::Unavailable => f.write_str("<unavailable>"),
            Value::Unreadable => f.write_str("<unreadable>"),
            Value::Invalid => f.write_str("<invalid>"),
            Value::Deeper => f.write_char('…'),
            Value::Unsigned(number) => write!(f, "{number}"),
            Value::Signed(number) => write!(f, "{number}"),
            Value::Wide(number) => write!(f, "{number}"),
            Value::SignedWide(number) => write!(f, "{number}"),
            Value::Single(number) => write!(f, "{number:?}"),
            Value::Float(number) => write!(f, "{number:?}"),
            Value::Duration(duration) => write!(f, "{duration:?}"),
            Value::Boolean(is) => write!(f, "{is}"),
            Value::Character(character) if self.quoted => write!(f, "{character:?}"),
            Value::Character(character) => f.write_char(*character),
            Value::Text { text, cut } => {
                match self.quoted {
                    true => write!(f, "{text:?}")?,
                    false => f.write_str(text)?,
                }
                f.write_str(if *cut { ".." } else { "" })
            }
            Value::NoText { bytes, cut } => {
                let quote = if self.quoted { "\"" } else { "" };
                f.write_str(quote)?;
                for chunk in bytes.utf8_chunks() {
                    match self.quoted {
                        true => {
                            let quoted = alloc::format!("{:?}", chunk.valid());
                            f.write_str(&quoted[1..quoted.len() - 1])?;
                        }
                        false => f.write_str(chunk.valid())?,
                    }
                    let mut invalid = chunk.invalid().iter();
                    invalid.try_for_each(|byte| write!(f, "\\x{byte:02X}"))?;
                }
                f.write_str(quote)?;
                f.write_str(if *cut { ".." } else { "" })
            }
            Value::Bytes(bytes) => bytes.iter().try_for_each(|byte| match byte {
                b' '..=b'~' if *byte != b'\\' => f.write_char(char::from(*byte)),
                _ => write!(f, "\\x{byte:02x}"),
            }),
            Value::Address(address) => write!(f, "{address:#x}"),
            Value::Symbol {
                address,
                with_offset,
            } => match self.symbols.symbol(*address) {
                Some(symbol) if *with_offset => write!(f, "{}+{}", symbol.name, symbol.offset),
                Some(symbol) => f.write_str(&symbol.name),
                None => write!(f, "{address:#x}"),
            },
            Value::UserSymbol { program, address } => {
                match self.symbols.user_symbol(program, *address) {
                    Some(symbol) => f.write_str(&symbol.name),
                    None => write!(f, "{address:#x}"),
                }
            }
            Value::Probe { prefix, address } => {
                f.write_str(prefix)?;
                match address.map(|address| (address, self.symbols.symbol(address))) {
                    None => Ok(()),
                    Some((_, Some(symbol))) if symbol.offset == 0 => f.write_str(&symbol.name),
                    Some((_, Some(symbol))) => write!(f, "{}+{}", symbol.name, symbol.offset),
                    Some((address, None)) => write!(f, "{address:#x}"),
                }
            }
            Value::Stack(_, None) | Value::UserStack(_, None) => {
                f.write_str("\n    (no call stack)\n")
            }
            Value::UserStack(form, Some(stack)) => {
                let frames = stack.frames(self.symbols);
                write_stack(f, *form, stack.addresses.iter().copied().zip(frames))
            }
            Value::Stack(form, Some(addresses)) => {
                let frames = addresses.iter().map(|address| {
                    let frame = match self.symbols.frame(*address) {
                        Some(symbol) => (symbol.name, Some(symbol.offset)),
                        None => (alloc::format!("{address:#x}"), None),
                    };
                    (*address, frame)
                });
                write_stack(f, *form, frames)
            }
            Value::Named(naming, number) => match codes::name(*naming, *number) {
                Some(name) => f.write_str(name),
                None => write!(f, "{} {number}", codes::unknown(*naming)),
            },
            Value::Tuple(items) => {
                f.write_char('(')?;
                for (index, item) in items.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    write!(f, "{}", item.shown(self.symbols))?;
                }
                f.write_str(if items.len() == 1 { ",)" } else { ")" })
            }
            Value::List { items, more, form } => self.list(f, items, *more, *form),
            Value::Struct { name, fields } if name.is_empty() => {
                for (index, (name, value)) in fields.iter().enumerate() {
                    let before = if index == 0 { "{" } else { "," };
                    write!(f, "{before} .{name} = {}", value.shown(self.symbols))?;
                }
                f.write_str(" }")
            }
            Value::Struct { name, fields } => self.structure(f, name, fields),
            // An enum without a name is shown by its content only.
            Value::Variant { of, fields, .. } if &**of == "()" && fields.len() == 1 => {
                let value = &fields[0].1;
                write!(f, "{}", Shown { value, ..*self })
            }
            Value::Variant { of, name, .. } if &**of == "Alignment()" => {
                let shift = name.trim_start_matches("_Align1Shl");
                let bytes = 1_u64.checked_shl(shift.parse().unwrap_or(0)).unwrap_or(0);
                write!(f, "{bytes} (1 << {shift})")
            }
            Value::Variant { name, fields, .. } => {
                f.write_str(name)?;
                self.fields(f, fields)
            }
            Value::Statistics {
                count,
                total,
                average,
            } => write!(
                f,
                "{{ .count = {count}, .average = {average}, .total = {total} }}"
            ),
            Value::Average { average, .. } => write!(f, "{average}"),
            Value::Histogram(buckets) => histogram::write(f, buckets),
            Value::Series(intervals) => series::write(f, intervals),
        }
    }
}

/// The lines of a call stack, after a newline.
fn write_stack(
    f: &mut fmt::Formatter<'_>,
    form: StackForm,
    frames: impl Iterator<Item = (u64, (String, Option<u64>))>,
) -> fmt::Result {
    f.write_char('\n')?;
    for (address, (name, offset)) in frames {
        match form {
            StackForm::Functions => write!(f, "    {name}")?,
            StackForm::Perf => write!(f, "\t{address:x} {name}")?,
            StackForm::Raw => write!(f, "{address:x}")?,
        }
        match offset {
            Some(offset) if form != StackForm::Raw => writeln!(f, "+{offset}")?,
            _ => f.write_char('\n')?,
        }
    }
    Ok(())
}

/// Whether a type without fields is shown by its whole name.
fn is_shown_whole(name: &str) -> bool {
    name == "(Weak)" || name.starts_with("PhantomData<") || name.starts_with("MaybeUninit<")
}

/// The number whose low and high half are two addresses.
fn halves_of(halves: &Value) -> Option<u128> {
    match halves {
        Value::List { items, more: 0, .. } => match items[..] {
            [Value::Address(low), Value::Address(high)] => {
                Some(u128::from(high) << 64 | u128::from(low))
            }
            _ => None,
        },
        _ => None,
    }
}

/// What a tuple with one field has in it.
fn contents_of(tuple: &Value) -> Option<&Value> {
    match tuple {
        Value::Struct { fields, .. } => match &fields[..] {
            [(_, only)] => Some(only),
            _ => None,
        },
        _ => None,
    }
}

/// The bytes that a list of numbers is, and how many more there are.
fn bytes_of(list: &Value) -> Option<(Vec<u8>, u64)> {
    let (items, more) = match list {
        Value::List { items, more, .. } => (items, more),
        Value::Bytes(bytes) => return Some((bytes.clone(), 0)),
        _ => return None,
    };
    // A `char` of C is signed.
    let byte = |item: &Value| match item {
        Value::Unsigned(number) => u8::try_from(*number).ok(),
        Value::Signed(number) => i8::try_from(*number).ok().map(i8::cast_unsigned),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = items.iter().map(byte).collect();
    Some((bytes?, *more))
}

/// A text of C without the NUL at its end, which may be what is missing.
fn without_nul(bytes: &[u8], more: u64) -> &[u8] {
    match more {
        0 => bytes.strip_suffix(&[0]).unwrap_or(bytes),
        _ => bytes,
    }
}

/// A text of C in quotes.
fn write_c_text(f: &mut fmt::Formatter<'_>, bytes: &[u8], more: u64) -> fmt::Result {
    f.write_char('"')?;
    for chunk in without_nul(bytes, more).utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\0' => f.write_str("\\0")?,
                _ if character.is_ascii() => {
                    write!(f, "{}", (u32::from(character) as u8).escape_ascii())?;
                }
                _ => write!(f, "{}", character.escape_debug())?,
            }
        }
        write!(f, "{}", chunk.invalid().escape_ascii())?;
    }
    f.write_str(if more > 1 { "\".." } else { "\"" })
}

/// The characters that an iterator of them has yet to give.
fn write_characters(f: &mut fmt::Formatter<'_>, bytes: &[u8], more: u64) -> fmt::Result {
    let valid = match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    f.write_str("Chars([")?;
    for (index, character) in valid.chars().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        write!(f, "{character:?}")?;
    }
    match more {
        0 => f.write_str("])"),
        _ => f.write_str(", …])"),
    }
}

/// The address of a network that four or sixteen numbers are.
fn address_of(octets: &Value) -> Option<IpAddr> {
    let Value::List { items, more: 0, .. } = octets else {
        return None;
    };
    let octets = items.iter().map(|item| u8::try_from(item.number()?).ok());
    let octets: Vec<u8> = octets.collect::<Option<_>>()?;
    let four = <[u8; 4]>::try_from(&octets[..]).map(IpAddr::from);
    let sixteen = || <[u8; 16]>::try_from(&octets[..]).map(IpAddr::from);
    four.or_else(|_| sixteen()).ok()
}

/// `a::b::Name<c::D>` without path and parameters.
fn short_name(name: &str) -> &str {
    let end = name.find('<').unwrap_or(name.len());
    let begin = name[..end].rfind("::").map_or(0, |colons| colons + 2);
    &name[begin..end]
}
