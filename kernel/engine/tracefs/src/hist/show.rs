//! The text of a `hist` file.
//!
//! The maps of all CPUs are added up to rows, one for each key, and the rows are sorted. A row has
//! the packed key as it is in the map. It is unpacked when it is printed, because names of symbols,
//! calls and stacks are looked up then. Without memory for a row there is no text.

use alloc::vec::Vec;
use core::{
    cmp::Ordering,
    error::Error,
    fmt::{self, Write},
};

use super::{Column, Hist, KEY_BYTES, Modifier, STACK_FRAMES, Sort, SortBy, Source};
use crate::{
    field::{Symbols, print_bytes, print_symbol},
    filter::COMM_BYTES,
};

/// Names that the histogram's maps do not hold.
pub trait Names {
    /// The address of a frame of the call stack with that number, 0 for the innermost one.
    fn frame(&self, stack: u64, frame: u32) -> Option<u64>;

    /// The name of a system call.
    fn syscall(&self, number: u64) -> Option<&str>;
}

/// No names.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNames;

impl Names for NoNames {
    fn frame(&self, _stack: u64, _frame: u32) -> Option<u64> {
        None
    }

    fn syscall(&self, _number: u64) -> Option<&str> {
        None
    }
}

/// An entry, summed over the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The packed key, filled up with zeros.
    key: [u8; KEY_BYTES],
    hits: u64,
    pub(super) sums: [u64; Hist::MOST_VALUES],
    comm: [u8; COMM_BYTES as usize],
}

impl Row {
    /// How many hits it counts.
    pub const fn hits(&self) -> u64 {
        self.hits
    }

    pub(super) fn number(&self, (offset, _): (usize, usize)) -> u64 {
        self.key[offset..]
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    pub(super) fn text(&self, (offset, size): (usize, usize)) -> &[u8] {
        until_nul(&self.key[offset..offset + size])
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or(bytes)
}

/// There is no memory for the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableError;

impl TableError {
    /// ENOMEM.
    pub const ERRNO: i32 = 12;
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no memory for the entries; clear the histogram or make it smaller")
    }
}

impl Error for TableError {}

/// The contents of a histogram: first add the entries of all CPUs, then [`Table::sort`], then
/// [`Table::write`].
#[derive(Clone, Debug)]
pub struct Table<'a> {
    hist: &'a Hist,
    rows: Vec<Row>,
    /// Hits that found no room.
    pub dropped: u64,
}

impl<'a> Table<'a> {
    /// A table of `hist` without entries.
    pub const fn new(hist: &'a Hist) -> Self {
        Self {
            hist,
            rows: Vec::new(),
            dropped: 0,
        }
    }

    /// Adds an entry of the table of one CPU. A key may come more than once. The key of an array
    /// ([`Hist::is_log2_array`]) is the index.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        let mut words = value.chunks_exact(8).map(|word| {
            word.first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes))
        });
        let mut row = Row {
            key: [0; KEY_BYTES],
            hits: words.next().unwrap_or(0),
            sums: [0; Hist::MOST_VALUES],
            comm: [0; COMM_BYTES as usize],
        };
        if row.hits == 0 {
            // A counter of an array that nothing was added to, or an entry that was cleared.
            return Ok(());
        }
        let length = key.len().min(KEY_BYTES);
        row.key[..length].copy_from_slice(&key[..length]);
        for (sum, word) in row.sums.iter_mut().zip(words).take(self.hist.values.len()) {
            *sum = word;
        }
        let comm = value.get(self.hist.exec_name_offset()..).unwrap_or(&[]);
        let length = comm.len().min(row.comm.len());
        row.comm[..length].copy_from_slice(&comm[..length]);
        self.rows.try_reserve(1).map_err(|_| TableError)?;
        self.rows.push(row);
        Ok(())
    }

    /// Sums the entries of the same key, and sorts as the histogram says. Entries that are equal by
    /// that are in the order of their keys.
    pub fn sort(&mut self) {
        // Among the names of one pid the least one is shown, because CPUs may have noted several.
        self.rows.sort_unstable_by_key(|row| (row.key, row.comm));
        self.rows.dedup_by(|row, kept| {
            let same = row.key == kept.key;
            if same {
                kept.hits = kept.hits.wrapping_add(row.hits);
                for (sum, more) in kept.sums.iter_mut().zip(row.sums) {
                    *sum = sum.wrapping_add(more);
                }
                if kept.comm[0] == 0 {
                    kept.comm = row.comm;
                }
            }
            same
        });
        let hist = self.hist;
        let places: Vec<_> = hist.key_places().collect();
        let by_rules = |left: &Row, right: &Row| {
            let rules = hist
                .sort
                .iter()
                .map(|rule| compare(hist, &places, *rule, left, right));
            let by_rules = rules.fold(Ordering::Equal, Ordering::then);
            by_rules.then_with(|| left.key.cmp(&right.key))
        };
        self.rows.sort_unstable_by(by_rules);
    }

    /// The entries.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// All hits that found room.
    pub fn hits(&self) -> u64 {
        self.rows
            .iter()
            .fold(0, |hits, row| hits.wrapping_add(row.hits))
    }

    /// Writes the text of the file. An event with more than one histogram has two empty lines
    /// between them.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(
        &self,
        paused: bool,
        symbols: &dyn Symbols,
        names: &dyn Names,
        out: &mut dyn Write,
    ) -> fmt::Result {
        let line = self.hist.line(paused);
        write!(out, "# event histogram\n#\n# trigger info: {line}\n#\n\n")?;
        let totals = core::array::from_fn(|index| Total::of(&self.rows, index));
        for row in &self.rows {
            self.write_row(row, &totals, symbols, names, out)?;
        }
        let (hits, entries, dropped) = (self.hits(), self.rows.len(), self.dropped);
        writeln!(
            out,
            "\nTotals:\n    Hits: {hits}\n    Entries: {entries}\n    Dropped: {dropped}"
        )
    }

    fn write_row(
        &self,
        row: &Row,
        totals: &[Total; Hist::MOST_VALUES],
        symbols: &dyn Symbols,
        names: &dyn Names,
        out: &mut dyn Write,
    ) -> fmt::Result {
        out.write_str("{ ")?;
        let mut ends_line = false;
        for (index, (key, place)) in self
            .hist
            .keys
            .iter()
            .zip(self.hist.key_places())
            .enumerate()
        {
            out.write_str(if index == 0 { "" } else { ", " })?;
            write!(out, "{}:", key.source.name())?;
            if key.source == Source::Stack {
                write_stack(row.number(place), symbols, names, out)?;
                ends_line = true;
            } else {
                out.write_char(' ')?;
                write_key(key, row, place, symbols, names, out)?;
            }
        }
        out.write_str(if ends_line { "}" } else { " }" })?;
        if !self.hist.without_hits {
            write!(out, " hitcount: {:>10}", row.hits)?;
        }
        for ((value, sum), total) in self.hist.values.iter().zip(row.sums).zip(totals) {
            let name = value.source.name();
            match value.modifier {
                Modifier::Hex => write!(out, "  {name}: {sum:>10x}")?,
                Modifier::Percent => match part_of(sum, total.sum) {
                    Some(part) => {
                        write!(out, "  {name} (%): {:>3}.{:02}", part / 100, part % 100)?;
                    }
                    None => write!(out, "  {name} (%):[ERROR]")?,
                },
                Modifier::Graph => {
                    write!(out, "  {name}: ")?;
                    write_bar(part_of(sum, total.most), out)?;
                }
                _ => write!(out, "  {name}: {sum:>10}")?,
            }
        }
        out.write_char('\n')
    }
}

/// What is known of a value of all rows.
struct Total {
    sum: u64,
    most: u64,
}

impl Total {
    fn of(rows: &[Row], index: usize) -> Self {
        let sums = || rows.iter().map(|row| row.sums[index]);
        Self {
            sum: sums().fold(0, u64::wrapping_add),
            most: sums().max().unwrap_or(0),
        }
    }
}

/// How many ten-thousandths of `total` a number is. None, as in Linux: the total has passed the
/// largest number, and began anew.
fn part_of(value: u64, total: u64) -> Option<u32> {
    let part = match value.checked_mul(10000) {
        Some(many) => many.checked_div(total),
        None => value.checked_div(total / 10000),
    };
    match part {
        Some(part) => Some(part as u32),
        None => (value == 0).then_some(0),
    }
}

/// Writes a bar for so many ten-thousandths of its column.
fn write_bar(part: Option<u32>, out: &mut dyn Write) -> fmt::Result {
    const LETTERS: usize = 20;
    let Some(part) = part else {
        return write!(out, "{:>LETTERS$}", "[ERROR]");
    };
    let bar = part as usize * LETTERS / 10000;
    for at in 0..LETTERS {
        out.write_char(if at < bar { '#' } else { ' ' })?;
    }
    Ok(())
}

fn compare(
    hist: &Hist,
    places: &[(usize, usize)],
    rule: Sort,
    left: &Row,
    right: &Row,
) -> Ordering {
    let ascending = match rule.by {
        SortBy::HitCount => left.hits.cmp(&right.hits),
        SortBy::Value(index) => left.sums[index].cmp(&right.sums[index]),
        SortBy::Key(index) => {
            let (key, place) = (&hist.keys[index], places[index]);
            match key.source.number() {
                // Buckets of logarithms have an index of 4 bytes in arrays; it reads the same.
                Some((_, true)) => (left.number(place) as i64).cmp(&(right.number(place) as i64)),
                Some((_, false)) => left.number(place).cmp(&right.number(place)),
                None => left.text(place).cmp(right.text(place)),
            }
        }
    };
    if rule.descending {
        ascending.reverse()
    } else {
        ascending
    }
}

fn write_key(
    key: &Column,
    row: &Row,
    place: (usize, usize),
    symbols: &dyn Symbols,
    names: &dyn Names,
    out: &mut dyn Write,
) -> fmt::Result {
    let out = &mut Padded { out, written: 0 };
    if key.source.is_text() {
        print_bytes(row.text(place), out)?;
        return out.fill(50);
    }
    let number = row.number(place);
    match key.modifier {
        // A key has no percentage and no bar.
        Modifier::None | Modifier::Percent | Modifier::Graph => write!(out, "{number:>10}"),
        Modifier::Hex => write!(out, "{number:x}"),
        Modifier::Symbol => {
            write!(out, "[{number:x}] ")?;
            out.written = 0;
            match symbols.symbol(number) {
                Some(symbol) => {
                    out.write_str(symbol.name)?;
                    if let Some(module) = symbol.module {
                        write!(out, " [{module}]")?;
                    }
                }
                None => write!(out, "{number:#x}")?,
            }
            out.fill(45)
        }
        Modifier::SymbolOffset => {
            write!(out, "[{number:x}] ")?;
            out.written = 0;
            print_symbol(number, symbols, out)?;
            out.fill(55)
        }
        Modifier::ExecName => {
            match number {
                0 => out.write_str("<idle>")?,
                _ => print_bytes(until_nul(&row.comm), out)?,
            }
            out.fill(16)?;
            write!(out, "[{number:>10}]")
        }
        Modifier::Syscall => {
            out.write_str(names.syscall(number).unwrap_or("unknown_syscall"))?;
            out.fill(30)?;
            write!(out, "[{number:>3}]")
        }
        Modifier::Log2 => write!(out, "~ 2^{number:<2}"),
        Modifier::Buckets(size) => {
            write!(out, "~ {number}-{}", number.wrapping_add(size - 1))
        }
    }
}

fn write_stack(
    stack: u64,
    symbols: &dyn Symbols,
    names: &dyn Names,
    out: &mut dyn Write,
) -> fmt::Result {
    out.write_char('\n')?;
    for address in (0..STACK_FRAMES).map_while(|frame| names.frame(stack, frame)) {
        out.write_str("         ")?;
        print_symbol(address, symbols, out)?;
        out.write_char('\n')?;
    }
    Ok(())
}

/// Counts letters, to fill up a column.
struct Padded<'a> {
    out: &'a mut dyn Write,
    written: usize,
}

impl Padded<'_> {
    /// Adds spaces up to `width` letters.
    fn fill(&mut self, width: usize) -> fmt::Result {
        write!(self.out, "{:1$}", "", width.saturating_sub(self.written))
    }
}

impl Write for Padded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.written += text.chars().count();
        self.out.write_str(text)
    }
}
