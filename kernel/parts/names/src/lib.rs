#![doc = include_str!("../README.md")]
//! Names that somebody has written: which ones they match, and which ones were perhaps meant.
//!
//! - [`distance`] and [`distance_with_swaps`] say how far two names are apart, so that the nearest
//!   names can be offered for one that is not there.
//! - [`did_you_mean`] and [`one_of`] show such offers.
//! - [`glob`] is the pattern with `*` and `?` of the prompt, of programs and of options. Patterns
//!   of event filters are Linux's, with sets and escapes, and stand in `tracefs`.
//!
//! Nothing is copied and nothing is allocated, because names are also looked up where there is no
//! memory.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt::{self, Display};

/// The most letters of a name that is compared.
pub const MOST_LETTERS: usize = 255;

/// A row of the table of distances between beginnings of two names: cell `j` belongs to the first
/// `j` letters of the second one.
type Row = [u16; MOST_LETTERS + 1];

/// How many letters must be put in, left out or replaced to make one name from the other
/// (Levenshtein), if they are at most `limit`. `None` as well if one is longer than
/// [`MOST_LETTERS`].
pub fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    edits::<false>(a, b, limit)
}

/// The same, but a letter that is swapped with its neighbour counts once.
pub fn distance_with_swaps(a: &str, b: &str, limit: usize) -> Option<usize> {
    edits::<true>(a, b, limit)
}

fn edits<const SWAPS: bool>(a: &str, b: &str, limit: usize) -> Option<usize> {
    let (a_len, b_len) = (a.chars().count(), b.chars().count());
    if a_len.abs_diff(b_len) > limit || a_len.max(b_len) > MOST_LETTERS {
        return None;
    }
    let mut row: Row = [0; MOST_LETTERS + 1];
    for (cell, letters) in row.iter_mut().zip(0..) {
        *cell = letters;
    }
    // The row before, and the one before that, which only swaps look at.
    let (mut last, mut before) = (row, row);
    let mut last_letter = None;
    for (i, letter) in a.chars().enumerate() {
        if SWAPS {
            before = last;
            last = row;
        }
        let mut diagonal = row[0];
        row[0] = i as u16 + 1;
        let mut least = row[0];
        let mut last_other = None;
        for (j, other) in b.chars().enumerate() {
            let replaced = diagonal + u16::from(letter != other);
            diagonal = row[j + 1];
            let mut cell = replaced.min(row[j] + 1).min(diagonal + 1);
            if SWAPS && last_letter == Some(other) && last_other == Some(letter) {
                cell = cell.min(before[j - 1] + 1);
            }
            row[j + 1] = cell;
            least = least.min(cell);
            last_other = Some(other);
        }
        if usize::from(least) > limit {
            return None;
        }
        last_letter = Some(letter);
    }
    Some(usize::from(row[b_len])).filter(|&far| far <= limit)
}

/// Whether `*` (any text) and `?` (a character) of a pattern can be replaced so that it is the
/// text.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last star does not fit.
    let mut again: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(&byte) if byte == text[t] || byte == b'?' => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after, from)) = again else {
                    return false;
                };
                again = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Offers in a sentence: `a`, `a or b`, `a, b or c`.
pub fn one_of<T: Display>(names: &[T]) -> impl Display {
    fmt::from_fn(move |f| {
        for (index, name) in names.iter().enumerate() {
            let before = match index {
                0 => "",
                _ if index + 1 == names.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}{name}")?;
        }
        Ok(())
    })
}

/// The question `did you mean a, b or c?`; nothing if there are no names.
pub fn did_you_mean<T: Display>(names: &[T]) -> impl Display {
    fmt::from_fn(move |f| match names {
        [] => Ok(()),
        names => write!(f, "did you mean {}?", one_of(names)),
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(distance("do_fork", "do_fork", 9), Some(0));
        assert_eq!(distance("do_frok", "do_fork", 9), Some(2));
        assert_eq!(distance("do_fork", "do_for", 9), Some(1));
        assert_eq!(distance("kitten", "sitting", 9), Some(3));
        assert_eq!(distance("", "abc", 9), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("ä", "a", 1), Some(1));
    }

    #[test]
    fn neighbours_that_are_swapped_count_once_if_one_wants() {
        for (a, b, far) in [
            ("do_frok", "do_fork", 1),
            ("vfs_wirte", "vfs_write", 1),
            ("ab", "ba", 1),
            ("abcd", "badc", 2),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
        ] {
            assert_eq!(distance_with_swaps(a, b, 9), Some(far), "{a} {b}");
            assert_eq!(distance_with_swaps(b, a, far), Some(far), "{b} {a}");
            assert_eq!(distance_with_swaps(a, b, far - 1), None, "{a} {b}");
        }
    }

    #[test]
    fn names_too_long_for_the_table_are_far_from_all() {
        let [longest, longer] = [MOST_LETTERS, MOST_LETTERS + 1].map(|len| "a".repeat(len));
        assert_eq!(distance(&longest, &longest, 0), Some(0));
        assert_eq!(distance(&longer, &longer, 0), None);
        assert_eq!(distance(&longest, &longer, 1), None);
    }

    #[test]
    fn stars_and_question_marks_match() {
        for (pattern, text) in [
            ("vfs_*", "vfs_write"),
            ("*write", "vfs_write"),
            ("vfs_????e", "vfs_write"),
            ("*", ""),
            ("a*b*c", "aXbYbZc"),
            ("a**", "a"),
        ] {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("vfs_*", "vfs"), ("?", ""), ("a*b", "abc"), ("", "a")] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn offers_are_a_question() {
        let shown = |names: &[&str]| did_you_mean(names).to_string();
        assert_eq!(shown(&[]), "");
        assert_eq!(shown(&["a"]), "did you mean a?");
        assert_eq!(shown(&["a", "b"]), "did you mean a or b?");
        assert_eq!(shown(&["a", "b", "c"]), "did you mean a, b or c?");
    }
}
