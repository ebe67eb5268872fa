//! Finds the names that a wrong name may have meant.
//!
//! Similarity is the edit distance of [`names::distance`]. A name without a path is compared with
//! the last segments of paths, so `printk` finds `kernel::log::printk`.

use crate::{LookupError, Symbol, Table, try_collect};
use alloc::vec::Vec;
use core::fmt::{self, Write};
use names::{MOST_LETTERS, distance};

/// How many names are offered.
const OFFERED: usize = 3;

/// The functions of `table` with the names most like `name`, the nearest first.
pub fn nearest<'a>(table: &Table<'a>, name: &str) -> Result<Vec<Symbol<'a>>, LookupError<'a>> {
    let mut offers = [(usize::MAX, None); OFFERED];
    for symbol in table.functions() {
        let mut printed = ShortName::default();
        // A name that is too long is not compared anyway.
        let distance = match write!(printed, "{symbol}") {
            Ok(()) => likeness(name, printed.as_str()),
            Err(fmt::Error) => None,
        };
        let Some(distance) = distance else {
            continue;
        };
        let at = offers.partition_point(|&(other, _)| other <= distance);
        if at < OFFERED {
            offers[at..].rotate_right(1);
            offers[at] = (distance, Some(symbol));
        }
    }
    try_collect(offers.into_iter().filter_map(|(_, symbol)| symbol))
}

/// A name of at most [`MOST_LETTERS`] bytes.
struct ShortName {
    bytes: [u8; MOST_LETTERS],
    len: usize,
}

impl Default for ShortName {
    fn default() -> Self {
        Self {
            bytes: [0; MOST_LETTERS],
            len: 0,
        }
    }
}

impl ShortName {
    fn as_str(&self) -> &str {
        // Whole strings were written, so this is text.
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for ShortName {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let rest = self.bytes.get_mut(self.len..self.len + piece.len());
        rest.ok_or(fmt::Error)?.copy_from_slice(piece.as_bytes());
        self.len += piece.len();
        Ok(())
    }
}

/// The distance of `candidate` from the requested name. `None` if it is too far to offer.
fn likeness(name: &str, candidate: &str) -> Option<usize> {
    let segment = last_segment(candidate);
    let whole = || distance(name, candidate, name.len() / 3);
    if name.contains("::") {
        let wanted = last_segment(name);
        // The right function, looked for in a wrong place, is worth as much as two slips.
        let elsewhere = || distance(wanted, segment, wanted.len() / 3).map(|far| far + 2);
        match (whole(), elsewhere()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    } else {
        distance(name, segment, name.len() / 3)
    }
}

/// The part of a path after its last `::`, without generic arguments.
fn last_segment(path: &str) -> &str {
    let mut depth = 0;
    let generics = path.ends_with('>').then(|| {
        path.bytes().rposition(|byte| {
            match byte {
                b'>' => depth += 1,
                b'<' => depth -= 1,
                _ => {}
            }
            depth == 0
        })
    });
    let path = match generics.flatten() {
        Some(start) if start > 0 => &path[..start],
        _ => path,
    };
    path.trim_end_matches("::")
        .rsplit("::")
        .next()
        .unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_a_name_may_differ_with_its_path_and_without() {
        assert_eq!(likeness("do_frok", "kernel::do_fork"), Some(2));
        assert_eq!(likeness("abcdef", "abcxyz"), None);
        assert_eq!(likeness("a::do_fork", "a::do_frok"), Some(2));
        assert_eq!(likeness("a::do_fork", "elsewhere::do_fork"), Some(2));
        assert_eq!(likeness("a::do_fork", "elsewhere::do_frok"), Some(4));
        assert_eq!(likeness("a::abcdef", "elsewhere::abcxyz"), None);
        assert_eq!(likeness("a::b::c::d::abcdef", "elsewhere::abcxyz"), None);
        assert_eq!(likeness("a_long_path::f", "a_long_path::g"), Some(1));
    }

    #[test]
    fn last_segment_leaves_generic_arguments_out() {
        assert_eq!(last_segment("printk"), "printk");
        assert_eq!(last_segment("kernel::log::printk"), "printk");
        assert_eq!(
            last_segment("core::ptr::drop_in_place<alloc::vec::Vec<u8>>"),
            "drop_in_place"
        );
        assert_eq!(last_segment("<u32 as core::fmt::Display>::fmt"), "fmt");
        assert_eq!(last_segment("a::f::<b::C>"), "f");
    }
}
