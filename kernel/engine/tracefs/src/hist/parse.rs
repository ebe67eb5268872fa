//! Reads `hist` triggers.
//!
//! A line is divided into words that know their columns, because each refusal points at a word.
//! Keys and values are read before the sort keys, which name them. What was left out gets the value
//! that Linux gives it, so the line that the file shows can be written again.

use alloc::vec::Vec;

use fallible::{copied, push, written};

use super::{Column, Hist, HistError, HistReason as Reason, Modifier, Order, Sort, SortBy, Source};
use crate::{
    field::{Field, Symbols},
    filter::Filter,
    number,
};

/// The columns of a line count from the `h` of `hist:`, which is not in the parsed text.
const PREFIX_BYTES: usize = "hist:".len();

/// A part of the line and its column.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    column: usize,
}

impl<'a> Word<'a> {
    fn error<T>(self, reason: Reason) -> Result<T, HistError> {
        Err(HistError::new(reason, self.column))
    }

    /// The parts between `separator`.
    fn split(self, separator: char) -> impl Iterator<Item = Word<'a>> {
        let mut column = self.column;
        self.text.split(separator).map(move |text| {
            let word = Word { text, column };
            column += text.len() + separator.len_utf8();
            word
        })
    }

    /// The parts before and after the first `separator`.
    fn split_once(self, separator: char) -> Option<(Word<'a>, Word<'a>)> {
        let (before, behind) = self.text.split_once(separator)?;
        let column = self.column + before.len() + separator.len_utf8();
        Some((
            Word {
                text: before,
                ..self
            },
            Word {
                text: behind,
                column,
            },
        ))
    }

    /// The part after `prefix`.
    fn strip_prefix(self, prefix: &str) -> Option<Word<'a>> {
        let text = self.text.strip_prefix(prefix)?;
        Some(Word {
            text,
            column: self.column + prefix.len(),
        })
    }
}

/// Splits the text of a trigger at an `if` that stands by itself. The filter begins after it.
pub(crate) fn split_filter(text: &str) -> (&str, Option<&str>) {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices("if") {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        if is_space(before) && (is_space(bytes.get(at + 2)) || at + 2 == bytes.len()) {
            return (text[..at].trim(), Some(text.get(at + 3..).unwrap_or("")));
        }
    }
    (text.trim(), None)
}

impl Hist {
    /// Reads the text after `hist:`. The common fields need not be among `fields`.
    ///
    /// # Errors
    /// [`HistError`].
    pub fn parse(text: &str, fields: &[Field], symbols: &dyn Symbols) -> Result<Self, HistError> {
        let (trigger, filter) = split_filter(text);
        let leading = text.len() - text.trim_start().len();
        let line = Word {
            text: trigger,
            column: PREFIX_BYTES + leading,
        };
        let parts = Parts::of(line)?;
        let Some(keys) = parts.keys else {
            return line.error(Reason::NoKeys);
        };
        // In Linux's order, because the first error is the one that is reported.
        let mut values = Vec::new();
        for word in parts.values.iter().flat_map(|word| word.split(',')) {
            if word.text == "hitcount" {
                continue;
            }
            if values.len() == Self::MOST_VALUES {
                return word.error(Reason::TooManyValues);
            }
            push(&mut values, value(word, fields)?)?;
        }
        if parts.without_hits && values.is_empty() {
            return Err(HistError::new(Reason::NoValueBesideHits, 0));
        }
        let mut hist = Self {
            keys: Vec::new(),
            values,
            sort: Vec::new(),
            size: parts.size,
            name: parts.name.map(copied).transpose()?,
            without_hits: parts.without_hits,
            order: parts.order,
            filter: None,
        };
        for word in keys.split(',') {
            if hist.keys.len() == Self::MOST_KEYS {
                return word.error(Reason::TooManyKeys);
            }
            push(&mut hist.keys, key(word, fields)?)?;
        }
        match parts.sort {
            Some(word) => hist.sort = hist.parse_sort(word)?,
            None => {
                let usual = Sort {
                    by: SortBy::HitCount,
                    descending: false,
                };
                push(&mut hist.sort, usual)?;
            }
        }
        hist.filter = filter
            .map(|filter| Filter::parse(filter, fields, symbols))
            .transpose()
            .map_err(HistError::Filter)?;
        Ok(hist)
    }

    fn parse_sort(&self, assignment: Word<'_>) -> Result<Vec<Sort>, HistError> {
        let Some((_, list)) = assignment.split_once('=') else {
            return assignment.error(Reason::EmptyAssignment);
        };
        let mut sort = Vec::new();
        for word in list.split(',') {
            if word.text.is_empty() || word.text.starts_with('.') {
                return assignment.error(Reason::EmptySortField);
            }
            if sort.len() == Self::MOST_SORT_KEYS {
                return assignment.error(Reason::TooManySortFields);
            }
            push(&mut sort, self.sort_key(word)?)?;
        }
        Ok(sort)
    }

    fn sort_key(&self, word: Word<'_>) -> Result<Sort, HistError> {
        let (name, modifier) = match word.split_once('.') {
            Some((name, modifier)) => (name, Some(modifier)),
            None => (word, None),
        };
        if name.text == "hitcount" {
            let descending = direction(Modifier::None, modifier)?;
            return Ok(Sort {
                by: SortBy::HitCount,
                descending,
            });
        }
        let values = self
            .values
            .iter()
            .enumerate()
            .map(|(i, value)| (SortBy::Value(i), value));
        let keys = self
            .keys
            .iter()
            .enumerate()
            .map(|(i, key)| (SortBy::Key(i), key));
        let mut error = HistError::new(Reason::BadSortField, name.column);
        // A field may be a key twice; then the modifier says which.
        for (by, column) in values.chain(keys) {
            if column.source == Source::Stack || !is_named(&column.source, name.text) {
                continue;
            }
            match direction(column.modifier, modifier) {
                Ok(descending) => return Ok(Sort { by, descending }),
                Err(wrong) => error = wrong,
            }
        }
        Err(error)
    }
}

/// Reads what follows the name of a sort field: whether it descends. The shown line has the
/// field's own modifier there, too.
fn direction(own: Modifier, modifier: Option<Word<'_>>) -> Result<bool, HistError> {
    let Some(word) = modifier else {
        return Ok(false);
    };
    let shown = written(&own)?;
    let own = shown.strip_prefix('.').unwrap_or("");
    let word = match word.strip_prefix(own) {
        Some(rest) if own.is_empty() => rest,
        Some(rest) if rest.text.is_empty() => return Ok(false),
        Some(rest) => rest.strip_prefix(".").unwrap_or(word),
        None => word,
    };
    match word.text {
        "descending" => Ok(true),
        "ascending" => Ok(false),
        _ => word.error(Reason::BadSortModifier),
    }
}

/// The parts of a line, not parsed yet.
struct Parts<'a> {
    keys: Option<Word<'a>>,
    values: Option<Word<'a>>,
    /// The sort keys, with their `sort=`.
    sort: Option<Word<'a>>,
    size: u32,
    name: Option<&'a str>,
    without_hits: bool,
    order: Order,
}

impl<'a> Parts<'a> {
    fn of(line: Word<'a>) -> Result<Self, HistError> {
        let mut parts = Self {
            keys: None,
            values: None,
            sort: None,
            size: Hist::DEFAULT_SIZE,
            name: None,
            without_hits: false,
            order: Order::New,
        };
        for word in line.split(':') {
            let Some((name, value)) = word.split_once('=') else {
                if matches!(word.text, "nohitcount" | "NOHC") {
                    parts.without_hits = true;
                    continue;
                }
                parts.order = match word.text {
                    "pause" => Order::Pause,
                    "cont" | "continue" => Order::Continue,
                    "clear" => Order::Clear,
                    text if text.starts_with("on") && text.contains('(') => {
                        return word.error(Reason::NotSupported);
                    }
                    _ => return word.error(Reason::UnknownPart),
                };
                continue;
            };
            if value.text.is_empty() {
                return word.error(Reason::EmptyAssignment);
            }
            match name.text {
                "key" | "keys" => parts.keys = Some(value),
                "val" | "vals" | "values" => parts.values = Some(value),
                "sort" => parts.sort = Some(word),
                "name" => parts.name = Some(value.text),
                "size" => {
                    let size = number::unsigned(value.text)
                        .and_then(|size| u32::try_from(size).ok())
                        .and_then(u32::checked_next_power_of_two)
                        .filter(|size| Hist::SIZES.contains(size));
                    match size {
                        Some(size) => parts.size = size,
                        None => return value.error(Reason::BadSize),
                    }
                }
                _ => return word.error(Reason::NotSupported),
            }
        }
        Ok(parts)
    }
}

fn key(word: Word<'_>, fields: &[Field]) -> Result<Column, HistError> {
    if matches!(word.text, "stacktrace" | "common_stacktrace") {
        return Ok(Column {
            source: Source::Stack,
            modifier: Modifier::None,
        });
    }
    let (source, modifier) = column(word, fields)?;
    let (modifier, error) = match modifier {
        None => {
            return Ok(Column {
                source,
                modifier: Modifier::None,
            });
        }
        Some(word) => (key_modifier(word.text), word.error(Reason::BadModifier)),
    };
    match modifier {
        Some(Modifier::ExecName) if source.name() != "common_pid" => error,
        Some(_) if source.is_text() => error,
        Some(modifier) => Ok(Column { source, modifier }),
        None => error,
    }
}

fn key_modifier(text: &str) -> Option<Modifier> {
    Some(match text {
        "hex" => Modifier::Hex,
        "sym" => Modifier::Symbol,
        "sym-offset" => Modifier::SymbolOffset,
        "execname" => Modifier::ExecName,
        "syscall" => Modifier::Syscall,
        "log2" => Modifier::Log2,
        _ => {
            let size = text
                .strip_prefix("buckets=")
                .or_else(|| text.strip_prefix("bucket="))?;
            Modifier::Buckets(number::unsigned(size).filter(|size| *size > 0)?)
        }
    })
}

fn value(word: Word<'_>, fields: &[Field]) -> Result<Column, HistError> {
    if matches!(word.text, "stacktrace" | "common_stacktrace") {
        return word.error(Reason::StringOperand);
    }
    let (source, modifier) = match word.split_once('.') {
        Some((name, modifier)) if name.text == "hitcount" => (Source::HitCount, Some(modifier)),
        _ => column(word, fields)?,
    };
    if source.is_text() {
        return word.error(Reason::StringOperand);
    }
    let modifier = match modifier.map(|word| word.text) {
        None => Modifier::None,
        Some("hex") => Modifier::Hex,
        // As in Linux, whatever follows.
        Some(text) if text.starts_with("percent") => Modifier::Percent,
        Some(text) if text.starts_with("graph") => Modifier::Graph,
        Some(_) => return word.error(Reason::BadModifier),
    };
    Ok(Column { source, modifier })
}

/// The source of a key or value, and the text after the first dot.
fn column<'a>(word: Word<'a>, fields: &[Field]) -> Result<(Source, Option<Word<'a>>), HistError> {
    let (name, modifier) = match word.split_once('.') {
        Some((name, modifier)) => (name, Some(modifier)),
        None => (word, None),
    };
    let own = fields.iter().find(|field| field.name == name.text);
    let own = own.map(Field::try_clone).transpose()?;
    let source = own.map(Source::Field).or_else(|| match name.text {
        "common_cpu" | "cpu" | "CPU" => Some(Source::Cpu),
        "common_comm" | "comm" | "COMM" => Some(Source::Comm),
        text => Field::common()
            .into_iter()
            .find(|field| field.name == text)
            .map(Source::Field),
    });
    match source {
        Some(Source::Field(field)) if field.is_array() || field.is_symbol_string() => {
            name.error(Reason::NotOneValue)
        }
        Some(Source::Field(field)) if field.is_only_in_records() => {
            name.error(Reason::OnlyInRecords)
        }
        Some(source) => Ok((source, modifier)),
        None if name.text.starts_with('$') || name.text.contains(['+', '-', '*', '/']) => {
            name.error(Reason::NotSupported)
        }
        None => name.error(Reason::FieldNotFound),
    }
}

/// Whether a line means `source` by `name`.
fn is_named(source: &Source, name: &str) -> bool {
    match source {
        Source::Cpu => matches!(name, "common_cpu" | "cpu" | "CPU"),
        Source::Comm => matches!(name, "common_comm" | "comm" | "COMM"),
        source => source.name() == name,
    }
}
