//! How the answers of a script are read: what its records and maps hold, and how that is shown.
//!
//! The compiler makes the view beside the script, and the reader needs nothing else: neither the
//! tree nor the debug information. The kernel never sees it.
//!
//! VIEW-1. Numbers of maps are those of [`crate::script::Script::maps`], and a record is the one of
//!     the request with the same number.

use alloc::{rc::Rc, string::String, vec::Vec};

use crate::shape::Shape;

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub maps: Vec<MapView>,
    /// The records by the number of their request.
    pub records: Vec<Record>,
    pub loops: Loops,
    /// The names of probes: the text, and whether a function's name follows.
    pub probes: Vec<(Rc<str>, bool)>,
    /// The maps are not shown at the end.
    pub hides_maps: bool,
}

/// Bytes of the common header of a record.
pub const HEADER: usize = 8;
/// Where the values of a record begin, after the header.
pub const VALUES: usize = 8;

/// How the values of a map are kept and read.
#[derive(Clone, Debug, PartialEq)]
pub enum Class {
    Count,
    Sum {
        signed: bool,
    },
    Average {
        signed: bool,
    },
    Statistics {
        signed: bool,
    },
    /// The value is kept so that the greatest one wins, and zero is the least.
    Most {
        signed: bool,
    },
    /// The same, with all bits turned round.
    Least {
        signed: bool,
    },
    Histogram(Scale),
    /// The value of a slot is the number of its interval and 1, how many values there were, what
    /// was kept of them, and the time of the last one.
    Series(Series),
    Plain(Shape),
}

impl Class {
    /// How many parts the value of a key has: the buckets of a histogram, the slots of a series.
    /// Each is an entry of its own, with its number after the key. None: the value is one entry.
    pub fn parts(&self) -> Option<u32> {
        match self {
            Self::Histogram(scale) => Some(scale.buckets()),
            Self::Series(series) => Some(series.intervals),
            _ => None,
        }
    }
}

/// A value for each of the last intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// The length of an interval.
    pub nanoseconds: u64,
    /// How many intervals are kept: the slot of one is the rest of its number by this.
    pub intervals: u32,
    pub gathered: Gathered,
    pub signed: bool,
}

/// What is kept of the values of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    Last,
    Sum,
    /// The sum is kept.
    Average,
    /// Kept as [`Class::Most`] and [`Class::Least`] are.
    Most,
    Least,
}

/// A map of the script.
#[derive(Clone, Debug, PartialEq)]
pub struct MapView {
    /// The name with its sign. None if it is the compiler's own.
    pub name: Option<String>,
    pub class: Class,
    pub keys: Vec<Shape>,
}

/// The content of a record, by its request.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Only for the kernel.
    Silent,
    Exit,
    /// Values at their offsets, counted from [`VALUES`].
    Line {
        level: Level,
        parts: Vec<Part>,
        values: Vec<(u32, Shape)>,
    },
    /// Those texts that are there, with a text between them. Values as in a line.
    Joined {
        between: Rc<str>,
        values: Vec<(u32, Shape)>,
    },
    /// A value, with its newline.
    Value(Shape),
    /// The time of day, as its shape says.
    Time(Shape),
    /// The map is printed: `top` entries (0: all), values divided by `divisor`.
    Map {
        map: u32,
        top: u64,
        divisor: u64,
    },
    /// An entry of the map is printed. Its key is in the record.
    Key {
        map: u32,
    },
}

/// How serious a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// It is what the program wants to say.
    Plain,
    Warning,
    Error,
}

/// The loops that are ended after too many turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loops {
    /// The map that counts how often each was ended.
    pub counters: Option<u32>,
    /// The loops as in the text, and the most turns of each.
    pub loops: Vec<(Rc<str>, u32)>,
}

/// How values are put into buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Buckets by powers of two. Bucket 0 is for 0, bucket `b` for `2^(b-1)` up to below `2^b`,
    /// bucket [`Scale::NEGATIVE`] for what is below 0.
    Log2,
    /// Each of those powers of two in `2^bits` equal parts, where it has so many values. Buckets
    /// below `2^(bits + 1)` are for one value each, the last one is for what is below 0.
    Split { bits: u8 },
    /// Bucket 0 is for what is below `from`, the next ones for `step` values each, the last one for
    /// `to` and above.
    Linear { from: i64, to: i64, step: i64 },
}

impl Scale {
    /// The bucket of negative numbers.
    pub const NEGATIVE: u32 = 65;

    /// The most bits of [`Self::Split`].
    pub const MOST_BITS: u8 = 5;

    /// How many buckets there are.
    pub fn buckets(self) -> u32 {
        match self {
            Self::Log2 => Self::NEGATIVE + 1,
            Self::Split { bits } => Self::negative_of(bits) + 1,
            Self::Linear { .. } => self.steps() + 2,
        }
    }

    /// The bucket of negative numbers of [`Self::Split`].
    pub fn negative_of(bits: u8) -> u32 {
        (65 - u32::from(bits)) << bits
    }

    /// How many ranges lie between `from` and `to`. If there are more than `u32::MAX`, that number.
    pub fn steps(self) -> u32 {
        match self {
            Self::Log2 | Self::Split { .. } => 0,
            Self::Linear { from, to, step } => {
                let width = i128::from(to) - i128::from(from);
                let steps = (width + i128::from(step) - 1) / i128::from(step).max(1);
                u32::try_from(steps).unwrap_or(u32::MAX)
            }
        }
    }
}

/// How a value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Not shown: the width of the next conversion, as C has it. Below zero it is one with `-`.
    Width,
    /// `%d`, `%i`
    Decimal,
    /// `%u`
    Unsigned,
    /// `%x`, `%X`; `%lx`
    Hex { upper: bool },
    /// `%o`
    Octal,
    /// `%p`
    Pointer,
    /// `%c`
    Character,
    /// `%s`, `%r`: as the value is.
    Natural,
    /// `%rx`: each byte as `\x1f`; `%rh`: as `1f`, with blanks between.
    Dump { escaped: bool },
}

/// The most columns that the width of a conversion may ask for.
pub const MOST_WIDTH: usize = 256;

/// A conversion: `%-8d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    pub style: Style,
    pub left: bool,
    pub zeros: bool,
    pub plus: bool,
    /// A blank in place of the plus.
    pub blank: bool,
    pub alternate: bool,
    pub width: usize,
    /// The most letters of a text; the least digits of a number.
    pub precision: Option<usize>,
    /// How many bytes of a number are shown. None: all that it has.
    pub bytes: Option<u8>,
    /// Where it is in the format, and the letter of it, for messages.
    pub at: usize,
    pub letter: char,
}

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Literal(String),
    Value(Conversion),
}

impl Conversion {
    /// Whether it can show values of that shape.
    pub fn takes(&self, shape: &Shape) -> bool {
        match self.style {
            Style::Natural => true,
            Style::Dump { .. } => shape.is_bytes(),
            _ => shape.is_number(),
        }
    }
}
