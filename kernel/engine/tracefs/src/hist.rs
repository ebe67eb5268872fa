//! Histograms: tables of hits and sums by the values of fields, as `hist` triggers make them.
//!
//! ```text
//! hist:keys=common_pid.execname,name:vals=bytes:sort=bytes.descending:size=256 if bytes > 0
//!
//! { common_pid: cat             [        12], name: main.rs       } hitcount:    3  bytes:   4096
//! ```
//!
//! The language and the file are those of Linux (`Documentation/trace/histogram.rst`). [`parse`]
//! reads a line, [`Hist::compile`] makes the instructions of a hit, and [`Table`] is what the
//! `hist` file shows.
//!
//! # The table
//! A map for each CPU has the packed keys as its key: 8 bytes for each number, the rest of
//! [`KEY_BYTES`] shared by the strings. Its value is the hit count, one sum for each value, and
//! with `.execname` the name of the task. A hit adds one to the count by
//! [`AddByKey`](bpf::Helper::AddByKey), and to each sum by one atomic instruction on the CPU's own
//! memory, so an interrupt in the middle loses nothing. A reader may see a hit in the count before
//! it sees it in the sums.
//!
//! One key `.log2` without values needs no hash: its table is an array of counters by bucket.
//!
//! # Limits
//! HIST-1. There are 1 to 3 keys, at most 2 values and at most 2 sort keys, as in Linux.
//! HIST-2. The packed keys have at most [`KEY_BYTES`] bytes. A longer string is shortened in the
//!     key.
//! HIST-3. Nothing shown depends on the order of the entries in the maps.
//!
//! # Differences from Linux
//! Variables, expressions and actions (`onmatch` and the like) are refused. Histograms of one name
//! do not share a table. `size` is the entries of each CPU, not of all. A caret stands below the
//! wrong word, where Linux has it below the first word that looks like it. A sort field may carry
//! the modifier of its key, so that the line that the file shows can be written again.
//!
//! [`parse`]: Hist::parse

mod compile;
mod error;
mod parse;
mod show;

use alloc::{string::String, vec::Vec};
use core::fmt;

use bpf::{MapDef, MapKind};

pub use compile::Maps;
pub use error::{HistError, HistReason};
pub(crate) use parse::split_filter;
pub use show::{Names, NoNames, Row, Table, TableError};

use crate::{
    field::{Element, Field, Width},
    filter::{COMM_BYTES, Filter},
};

/// The bytes of all keys of an entry together.
pub const KEY_BYTES: usize = 64;
/// The frames of a stack that is a key.
pub const STACK_FRAMES: u32 = 16;

/// Where a key or value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A field of the record.
    Field(Field),
    /// The number of the CPU.
    Cpu,
    /// The name of the task.
    Comm,
    /// The call stack. Only a key.
    Stack,
    /// The hits. Only a value, in another form than the hit count that each row has.
    HitCount,
}

impl Source {
    /// Its name in lines of the `hist` file.
    pub fn name(&self) -> &str {
        match self {
            Self::Field(field) => &field.name,
            Self::Cpu => "common_cpu",
            Self::Comm => "common_comm",
            Self::Stack => "common_stacktrace",
            Self::HitCount => "hitcount",
        }
    }

    /// Whether it is a string.
    pub fn is_text(&self) -> bool {
        match self {
            Self::Field(field) => field.is_string(),
            Self::Comm => true,
            Self::Cpu | Self::Stack | Self::HitCount => false,
        }
    }

    /// Its width and whether there is a sign, if it is a number.
    const fn number(&self) -> Option<(Width, bool)> {
        match self {
            Self::Field(field) => match field.kind.element() {
                Element::Unsigned(width) | Element::Hex(width) => Some((width, false)),
                Element::Signed(width) => Some((width, true)),
                Element::Char => Some((Width::W8, false)),
                Element::Symbol => Some((Width::W64, false)),
                Element::String => None,
            },
            Self::Cpu => Some((Width::W32, false)),
            Self::HitCount => Some((Width::W64, false)),
            Self::Comm | Self::Stack => None,
        }
    }
}

/// How a key or value is grouped or shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modifier {
    None,
    Hex,
    /// The symbol of an address.
    Symbol,
    /// The symbol of an address, with the offset into it.
    SymbolOffset,
    /// The name of the task of a `common_pid`.
    ExecName,
    /// The name of a system call.
    Syscall,
    /// The least power of two that is not below the number.
    Log2,
    /// Ranges of this many numbers.
    Buckets(u64),
    /// The part of the sum over all rows.
    Percent,
    /// A bar that is as long as the sum is, beside the largest one of all rows.
    Graph,
}

impl fmt::Display for Modifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::Hex => ".hex",
            Self::Symbol => ".sym",
            Self::SymbolOffset => ".sym-offset",
            Self::ExecName => ".execname",
            Self::Syscall => ".syscall",
            Self::Log2 => ".log2",
            Self::Percent => ".percent",
            Self::Graph => ".graph",
            Self::Buckets(size) => return write!(f, ".buckets={size}"),
        })
    }
}

/// A key or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub source: Source,
    pub modifier: Modifier,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.source.name(), self.modifier)
    }
}

/// The values by which entries are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub by: SortBy,
    pub descending: bool,
}

/// See [`Sort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    HitCount,
    /// Which value.
    Value(usize),
    /// Which key.
    Key(usize),
}

/// What the line asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// A new histogram.
    #[default]
    New,
    /// A new histogram that does not count yet; or an existing one shall not count.
    Pause,
    /// An existing one shall count again.
    Continue,
    /// An existing one shall be empty.
    Clear,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hist {
    pub keys: Vec<Column>,
    /// The values besides the hit count.
    pub values: Vec<Column>,
    /// The sort keys; never empty.
    pub sort: Vec<Sort>,
    /// Most entries of each CPU: a power of two.
    pub size: u32,
    /// Shown only: each histogram has a table of its own.
    pub name: Option<String>,
    /// The hit count is not shown.
    pub without_hits: bool,
    pub order: Order,
    pub filter: Option<Filter>,
}

impl Hist {
    /// Entries if the line does not say.
    pub const DEFAULT_SIZE: u32 = 2048;
    /// The entries that a line may ask for.
    pub const SIZES: core::ops::RangeInclusive<u32> = 1 << 7..=1 << 17;
    /// The most keys.
    pub const MOST_KEYS: usize = 3;
    /// The most values besides the hit count.
    pub const MOST_VALUES: usize = 2;
    /// The most sort keys.
    pub const MOST_SORT_KEYS: usize = 2;

    /// Whether the table is an array of counters by bucket.
    pub fn is_log2_array(&self) -> bool {
        self.values.is_empty()
            && matches!(
                &self.keys[..],
                [Column {
                    modifier: Modifier::Log2,
                    ..
                }]
            )
    }

    fn has_exec_name(&self) -> bool {
        self.keys
            .iter()
            .any(|key| key.modifier == Modifier::ExecName)
    }

    fn has_stack(&self) -> bool {
        self.keys.iter().any(|key| key.source == Source::Stack)
    }

    /// The bytes of each key in the packed key.
    fn key_sizes(&self) -> impl Iterator<Item = usize> {
        let fixed = |key: &Column| match &key.source {
            Source::Comm => Some(COMM_BYTES as usize),
            source if source.is_text() => None,
            _ => Some(8),
        };
        let taken: usize = self.keys.iter().filter_map(fixed).sum();
        let texts = self.keys.iter().filter(|key| fixed(key).is_none()).count();
        let share = (KEY_BYTES - taken) / texts.max(1) / 8 * 8;
        let size = move |key| fixed(key).unwrap_or(share);
        self.keys.iter().map(size)
    }

    /// The offset of each key in the packed key, with its bytes.
    fn key_places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.key_sizes().scan(0, |next, size| {
            let offset = *next;
            *next += size;
            Some((offset, size))
        })
    }

    /// The offset of the task's name in a value of the table.
    const fn exec_name_offset(&self) -> usize {
        8 * (1 + self.values.len())
    }

    /// The table.
    pub fn table_map(&self, name: String) -> MapDef {
        if self.is_log2_array() {
            return MapDef::histogram(name);
        }
        let comm = if self.has_exec_name() {
            COMM_BYTES as usize
        } else {
            0
        };
        MapDef {
            name: name.into(),
            kind: MapKind::PerCpuHash,
            key_size: self.key_sizes().sum::<usize>() as u32,
            value_size: (self.exec_name_offset() + comm) as u32,
            entries: self.size,
        }
    }

    /// The call stacks, if a key is one.
    pub fn stacks_map(&self, name: String) -> Option<MapDef> {
        self.has_stack().then(|| MapDef {
            name: name.into(),
            kind: MapKind::Stacks,
            key_size: 4,
            value_size: 8 * STACK_FRAMES,
            entries: self.size,
        })
    }

    /// Whether `other` is the same histogram: then a second line is refused, and `pause`, `cont`,
    /// `clear` and `!` mean it. The size and the order do not matter.
    pub fn is_same(&self, other: &Self) -> bool {
        let [own, filter] = [self, other].map(|hist| hist.filter.as_ref().map(Filter::text));
        self.is_compatible(other) && self.name == other.name && own == filter
    }

    /// Whether both can share a table.
    pub fn is_compatible(&self, other: &Self) -> bool {
        self.keys == other.keys
            && self.values == other.values
            && self.sort == other.sort
            && self.without_hits == other.without_hits
    }

    /// Its line, as `trigger` and `hist` files show it, without a newline.
    pub fn line(&self, paused: bool) -> Line<'_> {
        Line { hist: self, paused }
    }
}

/// See [`Hist::line`].
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    hist: &'a Hist,
    paused: bool,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hist {
            keys,
            values,
            sort,
            size,
            name,
            without_hits,
            filter,
            ..
        } = self.hist;
        f.write_str("hist:")?;
        if let Some(name) = name {
            write!(f, "name={name}:")?;
        }
        f.write_str("keys=")?;
        for (index, key) in keys.iter().enumerate() {
            write!(f, "{}{key}", if index == 0 { "" } else { "," })?;
        }
        f.write_str(":vals=")?;
        let mut comma = "";
        if !without_hits {
            f.write_str("hitcount")?;
            comma = ",";
        }
        for value in values {
            write!(f, "{comma}{value}")?;
            comma = ",";
        }
        f.write_str(":sort=")?;
        for (index, Sort { by, descending }) in sort.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match by {
                SortBy::HitCount => f.write_str("hitcount")?,
                SortBy::Value(index) => values[*index].fmt(f)?,
                SortBy::Key(index) => keys[*index].fmt(f)?,
            }
            f.write_str(if *descending { ".descending" } else { "" })?;
        }
        write!(f, ":size={size}")?;
        if *without_hits {
            f.write_str(":nohitcount")?;
        }
        if let Some(filter) = filter {
            write!(f, " if {}", filter.text())?;
        }
        f.write_str(if self.paused {
            " [paused]"
        } else {
            " [active]"
        })
    }
}

#[cfg(test)]
mod tests;
