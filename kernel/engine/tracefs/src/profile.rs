//! The profile of functions as text: the files `trace_stat/functionN`.
//!
//! ```text
//!   Function                               Hit    Time            Avg             s^2
//!   --------                               ---    ----            ---             ---
//!   vfs_write                               12    204.120 us      17.010 us       40.512 us
//! ```
//!
//! The columns are those of Linux. A name is not cut, because names here tell little by their
//! first 30 letters.

use core::fmt::{self, Write};

use crate::graph::write_duration;

/// What is known of a function's calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// How many there were.
    pub hits: u64,
    /// The nanoseconds of all.
    pub time_ns: u64,
    /// The variance of their durations, in square nanoseconds: 0 for a single one.
    pub variance: u64,
}

/// The variance of `hits` numbers, by their sum and the sum of their squares. 0 of fewer than two.
pub fn variance(hits: u64, sum: u64, squares: u128) -> u64 {
    let (hits, sum) = (u128::from(hits), u128::from(sum));
    let pairs = hits.saturating_mul(hits.saturating_sub(1));
    let spread = hits
        .saturating_mul(squares)
        .saturating_sub(sum.saturating_mul(sum));
    spread
        .checked_div(pairs)
        .map_or(0, |variance| u64::try_from(variance).unwrap_or(u64::MAX))
}

/// Writes the titles of the columns.
///
/// # Errors
/// That of `out`.
pub fn write_head(out: &mut dyn Write) -> fmt::Result {
    out.write_str(concat!(
        "  Function                               Hit    Time            Avg             s^2\n",
        "  --------                               ---    ----            ---             ---\n",
    ))
}

/// Writes the line of a function.
///
/// # Errors
/// That of `out`.
pub fn write_row(name: &str, calls: &Calls, out: &mut dyn Write) -> fmt::Result {
    let average = calls.time_ns.checked_div(calls.hits).unwrap_or(0);
    write!(out, "  {name:<30}  {:10}    ", calls.hits)?;
    write_duration(calls.time_ns, out)?;
    out.write_str("    ")?;
    write_duration(average, out)?;
    out.write_str("    ")?;
    // A duration is divided by 1,000 when it is shown, and squares have to be so twice.
    write_duration(calls.variance / 1000, out)?;
    out.write_char('\n')
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;

    #[test]
    fn a_variance_is_that_of_a_sample() {
        assert_eq!(variance(0, 0, 0), 0);
        assert_eq!(variance(1, 5, 25), 0);
        // 2, 4, 4, 4, 5, 5, 7, 9: the mean is 5, and the squares of the distances sum up to 32.
        assert_eq!(variance(8, 40, 232), 32 / 7);
        assert_eq!(variance(2, u64::MAX, u128::MAX), u64::MAX);
    }

    #[test]
    fn a_row_is_that_of_linux() {
        let mut out = String::new();
        write_head(&mut out).unwrap();
        let calls = Calls {
            hits: 12,
            time_ns: 204_120,
            variance: 40_512_000,
        };
        write_row("vfs_write", &calls, &mut out).unwrap();
        write_row("never", &Calls::default(), &mut out).unwrap();
        let mut lines = out.lines().skip(2);
        assert_eq!(
            lines.next(),
            Some(
                "  vfs_write                               12    204.120 us      17.010 us       \
                 40.512 us   "
            )
        );
        assert_eq!(
            lines.next(),
            Some(
                "  never                                    0    0.000 us        0.000 us        \
                 0.000 us    "
            )
        );
    }
}
