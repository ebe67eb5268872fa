//! Series in time: a value for each of the last intervals, and their pictures.
//!
//! ```text
//!              0                                                   2
//! hh:mm:ss.ms  |___________________________________________________|
//! 10:41:46.700 |                         *                         | 1
//! 10:41:46.800 *                                                   | 0
//!              v___________________________________________________v
//!              0                                                   2
//! ```
//!
//! An interval is known by its number, which is the time divided by its length. A program keeps as
//! many intervals as the series has, each in a slot, and takes a slot again for a later interval.
//! The number in the slot tells which one it is of.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt::{self, Write};

use trace_interface::view::{Gathered, Series};

use crate::time;

/// The columns of the picture, with its two borders.
const WIDTH: usize = 53;

/// An interval, and what was in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Nanoseconds since 1970.
    pub begin: i128,
    /// None if nothing was.
    pub value: Option<i128>,
}

impl Interval {
    /// `1970-01-01 00:00:00.500000000`
    pub fn start(&self) -> String {
        let part = self.begin.rem_euclid(1_000_000_000);
        alloc::format!("{}.{part:09}", time::format("%F %T", self.begin))
    }
}

/// The last intervals that a map has, of whatever key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latest(u64);

impl Latest {
    /// `words` are those of each slot.
    pub(crate) fn of(slots: impl Iterator<Item = [u64; 4]>) -> Self {
        Self(slots.map(|[number, ..]| number).max().unwrap_or(0))
    }
}

/// What the CPUs have kept in an interval.
struct Kept {
    count: u64,
    total: u64,
    /// When the last value came.
    at: u64,
}

/// The intervals of a key, from its first one to the latest of the map. A slot has the number of
/// its interval and 1, how many values there were, what was kept of them, and when the last one
/// came. `zero`: the time since 1970 when the clock was 0.
pub(crate) fn intervals(
    of: &Series,
    slots: impl Iterator<Item = [u64; 4]>,
    Latest(latest): Latest,
    zero: i128,
) -> Vec<Interval> {
    let first = latest.saturating_sub(u64::from(of.intervals)) + 1;
    let mut found: BTreeMap<u64, Kept> = BTreeMap::new();
    for [number, count, total, at] in slots {
        if number < first || count == 0 {
            continue;
        }
        let kept = found.entry(number).or_insert(Kept {
            count: 0,
            total: 0,
            at: 0,
        });
        match of.gathered {
            Gathered::Sum | Gathered::Average => kept.total = kept.total.wrapping_add(total),
            Gathered::Most | Gathered::Least => kept.total = kept.total.max(total),
            Gathered::Last if kept.count == 0 || at >= kept.at => kept.total = total,
            Gathered::Last => {}
        }
        kept.count = kept.count.wrapping_add(count);
        kept.at = kept.at.max(at);
    }
    let Some(first) = found.keys().next().copied() else {
        return Vec::new();
    };
    let interval = |number: u64| Interval {
        begin: zero + i128::from(number - 1) * i128::from(of.nanoseconds),
        value: found.get(&number).map(|kept| value(of, kept)),
    };
    (first..=latest).map(interval).collect()
}

fn value(of: &Series, kept: &Kept) -> i128 {
    let number = |number: u64| match of.signed {
        true => i128::from(number.cast_signed()),
        false => i128::from(number),
    };
    // Turned so that the greatest wins: see `Class::Most`.
    let turned_back = |number: u64| match of.signed {
        true => number ^ 1 << 63,
        false => number,
    };
    match of.gathered {
        Gathered::Sum | Gathered::Last => number(kept.total),
        Gathered::Average => number(kept.total) / i128::from(kept.count.max(1)),
        Gathered::Most => number(turned_back(kept.total)),
        Gathered::Least => number(turned_back(!kept.total)),
    }
}

/// Draws the intervals, each with its newline.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, intervals: &[Interval]) -> fmt::Result {
    let values = || intervals.iter().filter_map(|interval| interval.value);
    let (Some(mut least), Some(mut most)) = (values().min(), values().max()) else {
        return f.write_str("<no data>\n");
    };
    if least == most {
        (least, most) = (least - 1, most + 1);
    }
    let length = match intervals {
        [first, second, ..] => second.begin - first.begin,
        _ => 0,
    };
    let (unit, part, digits) = match length {
        1_000_000_000.. => ("", 1, 0),
        1_000_000.. => (".ms", 1_000_000, 3),
        1_000.. => (".us", 1_000, 6),
        _ => (".ns", 1, 9),
    };
    let clock = match digits {
        0 => 8,
        digits => 9 + digits,
    };
    let column =
        |value: i128, columns: usize| ((value - least) * columns as i128 / (most - least)) as usize;
    let ends = {
        let (least, most) = (alloc::format!("{least}"), alloc::format!("{most}"));
        let blanks = WIDTH.saturating_sub(least.len() + most.len());
        alloc::format!("{:clock$} {least}{:blanks$}{most}", "", "")
    };
    let line = "_".repeat(WIDTH - 2);
    let head = alloc::format!("hh:mm:ss{unit}");
    writeln!(f, "{ends}\n{head:clock$} |{line}|")?;
    for interval in intervals {
        let mut row = [b' '; WIDTH];
        (row[0], row[WIDTH - 1]) = (b'|', b'|');
        if least < 0 && most > 0 {
            row[column(0, WIDTH).min(WIDTH - 1)] = b'.';
        }
        if let Some(value) = interval.value {
            row[column(value, WIDTH - 1)] = b'*';
        }
        let mut shown = time::format("%T", interval.begin);
        if digits > 0 {
            let of_second = interval.begin.rem_euclid(1_000_000_000) / part;
            write!(shown, ".{of_second:0digits$}")?;
        }
        let row: String = row.map(char::from).into_iter().collect();
        match interval.value {
            Some(value) => writeln!(f, "{shown:clock$} {row} {value}")?,
            None => writeln!(f, "{shown:clock$} {row} -")?,
        }
    }
    writeln!(f, "{:clock$} v{line}v\n{ends}", "")
}

#[cfg(test)]
mod tests {
    use core::cmp::Ordering;

    use super::*;
    use crate::{NoSymbols, Value};

    /// The rows of the picture, without the times.
    fn rows(values: &[Option<i128>]) -> Vec<String> {
        let intervals = (0..).zip(values).map(|(number, value)| Interval {
            begin: number * 1_000_000,
            value: *value,
        });
        let text = alloc::format!("{}", Value::Series(intervals.collect()).shown(&NoSymbols));
        let lines = text.lines().skip(2);
        let rows = lines.filter_map(|line| line.split_once(' '));
        let mut rows: Vec<String> = rows.map(|(_, row)| row.into()).collect();
        // The lower border and the numbers below it.
        rows.truncate(values.len());
        rows
    }

    /// A row with these letters in these columns, and the value.
    fn row(letters: &[(usize, char)], value: &str) -> String {
        let mut row = [' '; WIDTH];
        (row[0], row[WIDTH - 1]) = ('|', '|');
        for (column, letter) in letters {
            row[*column] = *letter;
        }
        alloc::format!("{} {value}", row.iter().collect::<String>())
    }

    #[test]
    fn equal_values_are_in_the_middle() {
        let middle = row(&[(26, '*')], "5");
        assert_eq!(
            rows(&[Some(5), None, Some(5)]),
            [&*middle, &row(&[], "-"), &middle]
        );
        assert_eq!(rows(&[Some(5)]), [middle]);
    }

    #[test]
    fn times_are_as_fine_as_the_intervals() {
        for (length, unit, second) in [
            (60_000_000_000, "", "00:01:00"),
            (1_000_000_000, "", "00:00:01"),
            (999_999_999, ".ms", "00:00:00.999"),
            (1_000_000, ".ms", "00:00:00.001"),
            (999_999, ".us", "00:00:00.000999"),
            (1_000, ".us", "00:00:00.000001"),
            (999, ".ns", "00:00:00.000000999"),
        ] {
            let interval = |number| Interval {
                begin: number * length,
                value: Some(number),
            };
            let series = Value::Series(alloc::vec![interval(0), interval(1)]);
            let text = alloc::format!("{}", series.shown(&NoSymbols));
            let lines: Vec<&str> = text.lines().collect();
            let width = second.len();
            let head = alloc::format!("hh:mm:ss{unit}");
            let head = alloc::format!("{head:width$} |{}|", "_".repeat(WIDTH - 2));
            assert_eq!(lines[1], head, "{length}");
            assert_eq!(lines[3].split(' ').next(), Some(second), "{length}");
            let ends = alloc::format!("{:width$} 0{:51}1", "", "");
            assert_eq!((lines[0], lines[5]), (&*ends, &*ends), "{length}");
        }
    }

    #[test]
    fn the_series_that_has_changed_last_comes_last() {
        let series = |values: &[Option<i128>]| {
            let intervals = (0..).zip(values);
            let intervals = intervals.map(|(begin, value)| Interval {
                begin,
                value: *value,
            });
            Value::Series(intervals.collect())
        };
        let early = series(&[Some(9), None, None]);
        let late = series(&[Some(1), Some(2), None]);
        assert_eq!(early.order(&late), Ordering::Less);
        assert_eq!(late.order(&early), Ordering::Greater);
        assert_eq!(series(&[None]).order(&early), Ordering::Less);
    }

    #[test]
    fn the_least_is_on_the_left_and_zero_is_marked_between() {
        assert_eq!(
            rows(&[Some(-10), Some(10), Some(-5)]),
            [
                row(&[(26, '.'), (0, '*')], "-10"),
                row(&[(26, '.'), (52, '*')], "10"),
                row(&[(26, '.'), (13, '*')], "-5"),
            ]
        );
        assert_eq!(rows(&[Some(0), Some(52)])[0], row(&[(0, '*')], "0"));
        assert_eq!(rows(&[None, None]), [""; 0]);
    }
}
