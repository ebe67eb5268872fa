//! Patterns of strings: an exact text, or a glob with `*`, `?`, `[a-z]`, `[!a-z]` and `\`.
//!
//! A pattern without a `*`, or with one only at its end, looks at as many bytes of a string as it
//! is long. Any other pattern has to search the string and looks at the first
//! [`Pattern::MOST_SEARCHED`] bytes. Both the matcher here and a compiled filter obey that, so they
//! agree on strings of any length.

use alloc::vec::Vec;
use core::fmt;

use fallible::OutOfMemory;

/// A set of bytes. NUL is never in it, because it ends each string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteSet([u64; 4]);

impl ByteSet {
    const EMPTY: Self = Self([0; 4]);

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    /// Whether `byte` is in the set.
    pub const fn contains(&self, byte: u8) -> bool {
        self.0[(byte / 64) as usize] >> (byte % 64) & 1 == 1
    }

    fn inverted(self) -> Self {
        Self(self.0.map(|bits| !bits)).without_nul()
    }

    fn without_nul(mut self) -> Self {
        self.0[0] &= !1;
        self
    }

    /// The runs of bytes in the set, first and last, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (u8, u8)> {
        let mut next = Some(0_u8);
        core::iter::from_fn(move || {
            let first = (next?..=u8::MAX).find(|&byte| self.contains(byte))?;
            let behind = (first..=u8::MAX).find(|&byte| !self.contains(byte));
            next = behind;
            Some((first, behind.map_or(u8::MAX, |byte| byte - 1)))
        })
    }
}

/// A piece of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// This byte.
    Byte(u8),
    /// `?`: any byte.
    Any,
    /// `[…]`: one of these bytes.
    Set(ByteSet),
    /// `*`: any bytes, or none.
    Star,
}

impl Piece {
    fn takes(self, byte: u8) -> bool {
        match self {
            Self::Byte(wanted) => wanted == byte,
            Self::Any => true,
            Self::Set(set) => set.contains(byte),
            Self::Star => false,
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The pattern as it was written, without quotes.
    source: Vec<u8>,
    pieces: Vec<Piece>,
    glob: bool,
}

impl Pattern {
    /// The most bytes that a pattern may be long.
    pub const MOST_BYTES: usize = 126;
    /// The most bytes of a string that a pattern searches.
    pub const MOST_SEARCHED: usize = 127;

    /// A pattern without pieces yet, but with room for as many as there may be.
    fn empty(source: &[u8], glob: bool) -> Result<Self, OutOfMemory> {
        let mut pattern = Self {
            source: Vec::new(),
            pieces: Vec::new(),
            glob,
        };
        let Self {
            source: copy,
            pieces,
            ..
        } = &mut pattern;
        (copy.try_reserve_exact(source.len()))
            .and_then(|()| pieces.try_reserve_exact(source.len()))
            .map_err(|_| OutOfMemory)?;
        copy.extend_from_slice(source);
        Ok(pattern)
    }

    /// The pattern that matches exactly `text`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn exact(text: &[u8]) -> Result<Self, OutOfMemory> {
        let mut pattern = Self::empty(text, false)?;
        pattern
            .pieces
            .extend(text.iter().map(|&byte| Piece::Byte(byte)));
        Ok(pattern)
    }

    /// The glob `source`. A `[` that nothing closes stands for itself.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn glob(source: &[u8]) -> Result<Self, OutOfMemory> {
        let mut pattern = Self::empty(source, true)?;
        let pieces = &mut pattern.pieces;
        let mut rest = source;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            pieces.push(match byte {
                b'*' => {
                    // Two stars in a row are one.
                    if pieces.last() == Some(&Piece::Star) {
                        continue;
                    }
                    Piece::Star
                }
                b'?' => Piece::Any,
                b'[' => match set(after) {
                    Some((set, after)) => {
                        rest = after;
                        Piece::Set(set)
                    }
                    None => Piece::Byte(b'['),
                },
                b'\\' => match after.split_first() {
                    Some((&byte, after)) => {
                        rest = after;
                        Piece::Byte(byte)
                    }
                    None => Piece::Byte(b'\\'),
                },
                byte => Piece::Byte(byte),
            });
        }
        Ok(pattern)
    }

    /// The pattern as it was written, without quotes.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// Whether it was written as a glob.
    pub const fn is_glob(&self) -> bool {
        self.glob
    }

    /// Prints it in quotes, with `mark` in front of it, as a filter has it.
    pub(super) fn print(&self, mark: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.source.contains(&b'"') {
            '\''
        } else {
            '"'
        };
        write!(f, "{quote}{mark}")?;
        for chunk in self.source.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        write!(f, "{quote}")
    }

    /// Its pieces.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Whether it has to search a string: it has a `*` that is not its last piece.
    pub fn searches(&self) -> bool {
        let all_but_last = self.pieces.split_last().map_or(&[][..], |(_, rest)| rest);
        all_but_last.contains(&Piece::Star)
    }

    /// Whether `text`, which has no NUL, matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        let text = if self.searches() {
            &text[..text.len().min(Self::MOST_SEARCHED)]
        } else {
            text
        };
        let (mut piece, mut at) = (0, 0);
        // Where to go on if the pieces after the last star do not match.
        let mut retry = None;
        loop {
            match (self.pieces.get(piece), text.get(at)) {
                (None, None) => return true,
                (Some(Piece::Star), _) => {
                    piece += 1;
                    retry = Some((piece, at));
                    continue;
                }
                (Some(wanted), Some(&byte)) if wanted.takes(byte) => {
                    piece += 1;
                    at += 1;
                    continue;
                }
                _ => {}
            }
            match retry {
                Some((from, start)) if start < text.len() => {
                    retry = Some((from, start + 1));
                    (piece, at) = (from, start + 1);
                }
                _ => return false,
            }
        }
    }
}

/// The set after a `[`, and the bytes after its `]`.
fn set(source: &[u8]) -> Option<(ByteSet, &[u8])> {
    let (inverted, mut rest) = match source.split_first() {
        Some((b'!', rest)) => (true, rest),
        _ => (false, source),
    };
    let mut set = ByteSet::EMPTY;
    let mut first = true;
    loop {
        let (&low, after) = rest.split_first()?;
        if low == b']' && !first {
            let set = if inverted {
                set.inverted()
            } else {
                set.without_nul()
            };
            return Some((set, after));
        }
        first = false;
        let high = match after {
            [b'-', high, after @ ..] if *high != b']' => {
                rest = after;
                *high
            }
            _ => {
                rest = after;
                low
            }
        };
        for byte in low..=high {
            set.insert(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn globs_match_as_linux_matches_them() {
        for (pattern, yes, no) in [
            ("abc", &["abc"][..], &["", "ab", "abcd", "xabc"][..]),
            ("*abc", &["abc", "xabc", "ababc"], &["abcx", "ab", ""]),
            ("abc*", &["abc", "abcx"], &["ab", "xabc", ""]),
            ("*abc*", &["abc", "xabcx", "ababcab"], &["ab", "axbc", ""]),
            ("*", &["", "x"], &[]),
            ("", &[""], &["x"]),
            (
                "a*b*c",
                &["abc", "axxbxxc", "abbcc"],
                &["ab", "acb", "abcx"],
            ),
            ("a?c", &["abc", "axc"], &["ac", "abbc"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x", "-x"]),
            ("[!a-c]x", &["dx", "-x"], &["ax", "x"]),
            ("[]x]", &["]", "x"], &["[", ""]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[ab", &["[ab"], &["a", "b"]),
            ("\\*", &["*"], &["x", "\\*"]),
            ("a\\", &["a\\"], &["a"]),
            ("**x", &["x", "xx"], &["", "xy"]),
            // The first try of the middle part must not be the last one.
            ("*aab", &["aaab"], &["aaa"]),
        ] {
            let glob = Pattern::glob(pattern.as_bytes()).unwrap();
            for text in yes {
                assert!(glob.matches(text.as_bytes()), "{pattern} {text}");
            }
            for text in no {
                assert!(!glob.matches(text.as_bytes()), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn exact_patterns_have_no_special_letters() {
        assert!(Pattern::exact(b"a*").unwrap().matches(b"a*"));
        assert!(!Pattern::exact(b"a*").unwrap().matches(b"ab"));
        assert!(!Pattern::exact(b"a*").unwrap().searches());
    }

    #[test]
    fn only_a_star_before_the_end_searches() {
        for (pattern, searches) in [
            ("ab*", false),
            ("*", false),
            ("a?", false),
            ("*a", true),
            ("a*b", true),
        ] {
            assert_eq!(
                Pattern::glob(pattern.as_bytes()).unwrap().searches(),
                searches,
                "{pattern}"
            );
        }
        let mut text = vec![b'x'; Pattern::MOST_SEARCHED];
        *text.last_mut().unwrap() = b'y';
        assert!(Pattern::glob(b"*y").unwrap().matches(&text));
        text.push(b'z');
        assert!(
            !Pattern::glob(b"*z").unwrap().matches(&text),
            "the byte lies past what is searched"
        );
        assert!(Pattern::glob(b"x*").unwrap().matches(&text));
    }

    #[test]
    fn runs_of_a_set_cover_it() {
        let runs = |source: &str| match Pattern::glob(source.as_bytes()).unwrap().pieces() {
            [Piece::Set(set)] => set.runs().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(runs("[a-cx]"), [(b'a', b'c'), (b'x', b'x')]);
        assert_eq!(runs("[!a]"), [(1, b'a' - 1), (b'b', 255)]);
        assert_eq!(runs("[z-a]"), []);
    }
}
