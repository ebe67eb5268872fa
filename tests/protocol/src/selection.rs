//! A list of indices as text: `0-12,14,20-31`. It is short enough for a kernel command line, and
//! keeps the order.

use core::{fmt, ops::RangeInclusive};

/// Shows a sequence of indices; runs of consecutive ones become ranges.
#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a>(pub &'a [usize]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|first, second| first + 1 == *second);
        for (position, run) in runs.enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match run {
                [first, .., last] => write!(f, "{first}-{last}")?,
                [only] => write!(f, "{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// Reads the text of [`Ranges`], range by range. An item that is not a range of indices is returned
/// unchanged.
pub fn parse_selection(text: &str) -> impl Iterator<Item = Result<RangeInclusive<usize>, &str>> {
    text.split(',').map(|item| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
            _ => Err(item),
        }
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{string::ToString, vec::Vec};

    #[test]
    fn what_is_shown_is_read_back() {
        for (indices, text) in [
            (&[3][..], "3"),
            (&[0, 1, 2, 5, 7, 8], "0-2,5,7-8"),
            (&[2, 1, 0], "2,1,0"),
        ] {
            assert_eq!(Ranges(indices).to_string(), text);
            let read: Vec<usize> = parse_selection(text).flat_map(Result::unwrap).collect();
            assert_eq!(read, indices);
        }
    }

    #[test]
    fn what_is_no_range_is_named() {
        let items: Vec<_> = parse_selection("1,x,5-2,-3,").collect();
        assert_eq!(items, [Ok(1..=1), Err("x"), Err("5-2"), Err("-3"), Err("")]);
    }
}
