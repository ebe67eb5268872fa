//! Histograms: the ranges of their buckets, and their pictures.
//!
//! ```text
//! [512, 1K)              3 |@@@@@@@@@@@@@                                       |
//! [1K, 2K)              12 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
//! ```

use alloc::{string::String, vec::Vec};
use core::fmt::{self, Write};

use trace_interface::view::Scale;

/// The width of the longest bar.
const BAR: u64 = 52;

/// A range of values, and how many were in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The lowest value. None if there is no lowest one.
    pub low: Option<i128>,
    /// The lowest value above the range. None if there is none above.
    pub end: Option<i128>,
    pub count: u64,
}

/// The buckets in ascending order with their ranges.
fn ranges(scale: Scale) -> Vec<(u32, Option<i128>, Option<i128>)> {
    match scale {
        Scale::Log2 => {
            let mut ranges = alloc::vec![(Scale::NEGATIVE, None, Some(0)), (0, Some(0), Some(1))];
            ranges.extend(
                (1..=64).map(|bucket: u32| (bucket, Some(1 << (bucket - 1)), Some(1 << bucket))),
            );
            ranges
        }
        Scale::Split { bits } => {
            let negative = Scale::negative_of(bits);
            let mut ranges = alloc::vec![(negative, None, Some(0))];
            ranges.extend((0..negative).map(|bucket| {
                // So many bits behind the first ones are one bucket.
                let below = (bucket >> bits).saturating_sub(1);
                let low = i128::from(bucket - (below << bits)) << below;
                (bucket, Some(low), Some(low + (1 << below)))
            }));
            ranges
        }
        Scale::Linear { from, to, step } => {
            let (from, to) = (i128::from(from), i128::from(to));
            let step = i128::from(step);
            let mut ranges = alloc::vec![(0, None, Some(from))];
            for bucket in 1..=scale.steps() {
                let low = from + step * i128::from(bucket - 1);
                ranges.push((bucket, Some(low), Some((low + step).min(to))));
            }
            ranges.push((scale.steps() + 1, Some(to), None));
            ranges
        }
    }
}

/// The rows of the picture: from the first bucket that is not empty to the last.
pub(crate) fn rows(scale: Scale, count: impl Fn(u32) -> u64) -> Vec<Bucket> {
    let mut rows: Vec<Bucket> = ranges(scale)
        .into_iter()
        .map(|(bucket, low, end)| Bucket {
            low,
            end,
            count: count(bucket),
        })
        .collect();
    let last = rows.iter().rposition(|row| row.count != 0);
    rows.truncate(last.map_or(0, |last| last + 1));
    let first = rows.iter().position(|row| row.count != 0);
    rows.drain(..first.unwrap_or(0));
    rows
}

/// A bound, shortened: 1024 is `1K`. Only whole multiples are shortened.
fn bound(number: i128) -> String {
    let mut text = String::new();
    let mut rest = number;
    let mut unit = "";
    for next in ["K", "M", "G", "T", "P", "E"] {
        if rest == 0 || rest % 1024 != 0 {
            break;
        }
        rest /= 1024;
        unit = next;
    }
    let _ = write!(text, "{rest}{unit}");
    text
}

impl Bucket {
    /// `[0]`, `[2, 4)`, `(..., 0)`, `[1K, ...)`.
    pub fn label(&self) -> String {
        let mut text = String::new();
        let _ = match (self.low, self.end) {
            (Some(low), Some(end)) if low + 1 == end => write!(text, "[{}]", bound(low)),
            (Some(low), Some(end)) => write!(text, "[{}, {})", bound(low), bound(end)),
            (None, Some(end)) => write!(text, "(..., {})", bound(end)),
            (Some(low), None) => write!(text, "[{}, ...)", bound(low)),
            (None, None) => write!(text, "(...)"),
        };
        text
    }
}

/// Draws the rows, each with its newline, after one newline.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, rows: &[Bucket]) -> fmt::Result {
    let most = rows.iter().map(|row| row.count).max().unwrap_or(0).max(1);
    for row in rows {
        let bar = (u128::from(row.count) * u128::from(BAR) / u128::from(most)) as usize;
        let bar = "@".repeat(bar);
        let width = BAR as usize;
        writeln!(f, "{:<16}{:>8} |{bar:<width$}|", row.label(), row.count)?;
    }
    Ok(())
}
