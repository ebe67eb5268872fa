//! Histograms with buckets of powers of two: an array map with one word for each bucket.
//!
//! Bucket 0 holds the value 0. Bucket `b` holds the values from `2^(b-1)` to `2^b - 1`. For
//! example, 5 is in bucket 3, which holds 4 to 7.

/// How many buckets all values of 64 bits need.
pub const BUCKETS: usize = 65;

/// The bucket of `value`.
#[inline]
pub const fn bucket(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// The lowest and the highest value in bucket `bucket`; `None` if there is no such bucket.
pub const fn bounds(bucket: u32) -> Option<(u64, u64)> {
    match bucket {
        0 => Some((0, 0)),
        1..=64 => Some((1 << (bucket - 1), u64::MAX >> (64 - bucket))),
        _ => None,
    }
}

/// A line of a histogram: how many values were in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The lowest value that is counted here.
    pub low: u64,
    /// The highest value that is counted here.
    pub high: u64,
    /// How many there were.
    pub count: u64,
}

/// The rows of `counts`, one for each bucket, from the first bucket that is not empty to the last
/// one. Empty ones between them have rows, because a picture needs them. Counts beyond the last
/// bucket are not looked at.
pub fn rows(counts: &[u64]) -> impl Iterator<Item = Row> {
    let used = |count: &u64| *count != 0;
    let counts = counts.get(..BUCKETS).unwrap_or(counts);
    let first = counts.iter().position(used).unwrap_or(counts.len());
    let end = counts.iter().rposition(used).map_or(0, |last| last + 1);
    (0u32..)
        .zip(counts)
        .take(end)
        .skip(first)
        .filter_map(|(bucket, &count)| {
            let (low, high) = bounds(bucket)?;
            Some(Row { low, high, count })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_value_is_within_the_bounds_of_its_bucket_and_the_bounds_leave_no_gap() {
        let mut next = Some(0u64);
        for bucket_number in 0..BUCKETS as u32 {
            let (low, high) = bounds(bucket_number).unwrap();
            assert_eq!(Some(low), next);
            assert_eq!((bucket(low), bucket(high)), (bucket_number, bucket_number));
            next = high.checked_add(1);
        }
        assert_eq!((next, bounds(65)), (None, None));
        assert_eq!(
            (bucket(0), bucket(1), bucket(5), bucket(u64::MAX)),
            (0, 1, 3, 64)
        );
    }

    #[test]
    fn rows_go_from_the_first_used_bucket_to_the_last() {
        let mut counts = [0; 70];
        assert_eq!(rows(&counts).count(), 0);
        (counts[2], counts[4], counts[69]) = (7, 9, 1);
        let row = |low, high, count| Row { low, high, count };
        assert_eq!(
            rows(&counts).collect::<Vec<_>>(),
            [row(2, 3, 7), row(4, 7, 0), row(8, 15, 9)]
        );
        counts[64] = 1;
        assert_eq!(rows(&counts).last(), Some(row(1 << 63, u64::MAX, 1)));
    }
}
