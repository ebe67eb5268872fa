//! The lines of a write, and their words.
//!
//! One definition per line. White space separates words, a `#` begins a comment, and a blank line
//! means nothing. Lines run in order. The first that fails ends the write, and those before it
//! stay.

use crate::refusal::{Reason, Refusal};
use alloc::string::String;
use core::fmt;

/// The most bytes of a line, without the newline.
pub const MOST_LINE_BYTES: usize = 4094;

/// The words of one command; at least one. They are found anew each time, so they take no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    /// The words of `line`, which holds no comment. `None` if it is blank.
    pub fn of(line: &'a str) -> Option<Self> {
        let line = line.trim_ascii();
        (!line.is_empty()).then_some(Self(line))
    }

    /// The word with this number, from 0 on.
    pub fn get(&self, number: usize) -> Option<&'a str> {
        self.from(number).next()
    }

    /// The first word: command and name.
    pub fn first(&self) -> &'a str {
        self.get(0).unwrap_or_default()
    }

    /// The words from number `from` on.
    pub fn from(&self, from: usize) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        self.0.split_ascii_whitespace().skip(from)
    }

    /// The column of a refusal in the words with single spaces between them.
    pub fn column(&self, refusal: &Refusal) -> usize {
        let before = self.from(0).take(refusal.word);
        let column = before.map(|word| word.len() + 1).sum();
        match self.get(refusal.word) {
            Some(_) => column + refusal.offset,
            None => column,
        }
    }
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, word) in self.from(0).enumerate() {
            if number > 0 {
                f.write_str(" ")?;
            }
            f.write_str(word)?;
        }
        Ok(())
    }
}

/// A line that cannot be divided into words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine<'a> {
    /// The reason.
    pub reason: Reason,
    /// The column of the caret.
    pub column: usize,
    /// The part of the line to show, on one line.
    pub shown: &'a str,
}

/// The commands of a write, in their order.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    rest: &'a [u8],
}

impl<'a> Commands<'a> {
    /// Reads what was written.
    pub const fn new(written: &'a [u8]) -> Self {
        Self { rest: written }
    }
}

impl<'a> Iterator for Commands<'a> {
    type Item = Result<Words<'a>, BadLine<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let end = self.rest.iter().position(|&byte| byte == b'\n');
            let (line, rest) = match end {
                Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
                None => (self.rest, &[][..]),
            };
            self.rest = rest;
            match words(line) {
                Ok(Some(words)) => return Some(Ok(words)),
                Ok(None) => (),
                Err(bad) => return Some(Err(bad)),
            }
        }
        None
    }
}

/// The words of `line` without its comment. `None` if it is blank.
fn words(line: &[u8]) -> Result<Option<Words<'_>>, BadLine<'_>> {
    if line.len() > MOST_LINE_BYTES {
        let shown = line[..64]
            .utf8_chunks()
            .next()
            .map_or("", |chunk| chunk.valid());
        return Err(BadLine {
            reason: Reason::LineTooLong,
            column: 0,
            shown,
        });
    }
    let text = match str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => {
            let shown = str::from_utf8(&line[..error.valid_up_to()]).unwrap_or("");
            return Err(BadLine {
                reason: Reason::NotText,
                column: shown.len(),
                shown,
            });
        }
    };
    let Some(comment) = text.find('#') else {
        return Ok(Words::of(text));
    };
    if in_string(text, comment) {
        return Err(BadLine {
            reason: Reason::CommentInString,
            column: comment,
            shown: text,
        });
    }
    Ok(Words::of(&text[..comment]))
}

/// Whether the `#` at `at` of `line` may belong to a string: its word begins one, `\"`, before it,
/// and does not end it before and only before. To cut the line there would change the string.
fn in_string(line: &str, at: usize) -> bool {
    let space = |c: char| c.is_ascii_whitespace();
    let before = line[..at].rsplit(space).next().unwrap_or("");
    let after = line[at..].split(space).next().unwrap_or("");
    match before.split_once("\\\"") {
        Some((_, string)) => !string.contains('"') || after.contains('"'),
        None => false,
    }
}

/// The lines in the value of the boot parameter `kprobe_event`: `;` separates definitions, and a
/// comma stands for a space.
pub fn boot_lines(value: &str) -> impl Iterator<Item = String> + '_ {
    value
        .split(';')
        .map(|definition| definition.replace(',', " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString, vec::Vec};
    use std::vec;

    fn commands(written: &[u8]) -> Vec<Result<String, Reason>> {
        Commands::new(written)
            .map(|command| {
                command
                    .map(|words| words.to_string())
                    .map_err(|bad| bad.reason)
            })
            .collect()
    }

    #[test]
    fn blank_lines_and_comments_are_skipped() {
        let written = b"\n  p  a\tb # tail\n# all\n\t\nr c#x\n-:d";
        assert_eq!(
            commands(written),
            ["p a b", "r c", "-:d"].map(|line| Ok(line.into()))
        );
        assert_eq!(commands(b""), []);
        assert_eq!(commands(b"\n"), []);
    }

    #[test]
    fn line_of_4094_bytes_is_the_longest() {
        let long = |bytes: usize| [b"p f ".as_slice(), &vec![b'x'; bytes - 4], b"\np g\n"].concat();
        let most = commands(&long(4094));
        assert_eq!(most.len(), 2);
        assert!(most.iter().all(Result::is_ok));
        let more = commands(&long(4095));
        assert_eq!(more, [Err(Reason::LineTooLong), Ok("p g".into())]);
        // The comment counts, as it does in Linux.
        let comment = [b"p f #".as_slice(), &vec![b'x'; 4090]].concat();
        assert_eq!(commands(&comment), [Err(Reason::LineTooLong)]);
    }

    #[test]
    fn hash_in_a_string_is_refused() {
        for refused in [
            r##"p f a=\"x#y""##,
            r##"p f \"x#"##,
            r##"p f \"x"#y""##,
            r##"p f \"#""##,
        ] {
            assert_eq!(
                commands(refused.as_bytes()),
                [Err(Reason::CommentInString)],
                "{refused}"
            );
        }
        for (fine, kept) in [
            (r##"p f a=\"x"# comment"##, r#"p f a=\"x""#),
            (r##"p f # a=\"x""##, "p f"),
            (r##"p f a=\"x" #"y""##, r#"p f a=\"x""#),
        ] {
            assert_eq!(commands(fine.as_bytes()), [Ok(kept.into())]);
        }
        let bad = Commands::new(br##"p f a=\"x#y""##)
            .next()
            .unwrap()
            .unwrap_err();
        assert_eq!(bad.column, 9);
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        assert_eq!(
            commands(b"p f\xff\np g"),
            [Err(Reason::NotText), Ok("p g".into())]
        );
    }

    #[test]
    fn column_counts_single_spaces() {
        let words = Words::of("p:a \t vfs_read   $x").unwrap();
        assert_eq!(words.column(&Refusal::new(Reason::BadVariable, 2, 1)), 14);
        assert_eq!(words.column(&Refusal::line(Reason::SameProbe)), 0);
        // One beyond the last word and a space.
        assert_eq!(
            words.column(&Refusal::new(Reason::DifferentArgumentType, 3, 7)),
            16
        );
    }

    #[test]
    fn boot_parameter_becomes_lines() {
        let lines: Vec<_> = boot_lines("p,vfs_read,$stack;r:x,do_exit").collect();
        assert_eq!(lines, ["p vfs_read $stack", "r:x do_exit"]);
    }
}
