//! Completing the word at the cursor.
//!
//! ```text
//!   line up to the cursor ─► WordPlace ─► its owner ─► Candidates ─► the text that all begin with
//!                            words before, word so far              or, if that is there, a list
//! ```
//!
//! The owner of the prompt says which words may stand in a place. It may offer too many, because
//! only those that begin with the word so far count. This module reads and writes quotes and
//! backslashes. The owner sees and gives the meaning of words.

use alloc::{string::String, vec::Vec};
use core::fmt;

use crate::syntax::{Open, Token, Tokens, Word};

/// The most candidates that are listed.
const MOST_LISTED: usize = 60;

/// The width of the list, in characters. Every terminal has that.
const WIDTH: usize = 80;

/// The place of the word that is being typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WordPlace {
    /// The words before it. Empty if it is the command.
    pub words: Vec<String>,
    /// The word so far.
    pub word: String,
    /// Whether it is the file for the output.
    pub is_output: bool,
    /// The quotation that the word is in.
    quote: Option<char>,
    /// Whether the word has begun.
    begun: bool,
}

impl WordPlace {
    /// The place at the end of `line`; `None` where no word can be completed.
    fn behind(line: &str) -> Option<Self> {
        let mut place = Self::default();
        for token in Tokens::of(line) {
            match token {
                Token::Word(Word {
                    open: Some(Open::Backslash),
                    ..
                })
                | Token::Comment => return None,
                Token::Word(word) if word.end == line.len() => {
                    place.begun = true;
                    place.word = word.text;
                    place.quote = word.open.and_then(|open| match open {
                        Open::Quote(quote) => Some(quote),
                        Open::Backslash => None,
                    });
                }
                Token::Word(_) if place.is_output => place.is_output = false,
                Token::Word(word) => place.words.push(word.text),
                Token::Redirect { .. } => place.is_output = true,
            }
        }
        Some(place)
    }

    /// `text` as it is written in this place.
    fn quoted(&self, text: &str) -> String {
        let mut written = String::new();
        for (index, c) in text.chars().enumerate() {
            match (self.quote, c) {
                (Some('\''), '\'') => written.push_str(r"'\''"),
                (Some('"'), '"' | '\\') | (None, ' ' | '>' | '\'' | '"' | '\\') => {
                    written.extend(['\\', c])
                }
                (None, '#') if index == 0 && !self.begun => written.push_str(r"\#"),
                _ => written.push(c),
            }
        }
        written
    }
}

/// Whether a word ends where a candidate ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// It does: a blank may follow.
    Word,
    /// It goes on, as after the name of a directory.
    Open,
}

/// The words that may stand in a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    from: usize,
    words: Vec<(String, End)>,
}

impl Candidates {
    /// Candidates for the part of the word from byte `from` on. For example, `from` is after the
    /// last slash of a path, and the candidates are names in that directory.
    pub fn behind(from: usize) -> Self {
        Self {
            from,
            words: Vec::new(),
        }
    }

    /// Adds a word, or the part of it that these candidates are for.
    pub fn add(&mut self, text: impl Into<String>, end: End) {
        self.words.push((text.into(), end));
    }
}

/// The effect of the Tab key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Nothing can be said.
    None,
    /// This text goes into the line.
    Insert(String),
    /// There are several ways to go on.
    Choice(List),
}

/// Completes the word at the end of `line`. `candidates` says which words may stand there.
pub(crate) fn complete(
    line: &str,
    mut candidates: impl FnMut(&WordPlace) -> Candidates,
) -> Completion {
    let Some(place) = WordPlace::behind(line) else {
        return Completion::None;
    };
    let Candidates { from, mut words } = candidates(&place);
    let Some(typed) = place.word.get(from..) else {
        return Completion::None;
    };
    // Others cannot be typed.
    let is_typed = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    words.retain(|(text, _)| text.starts_with(typed) && is_typed(text));
    words.sort();
    words.dedup_by(|(a, _), (b, _)| a == b);
    let (Some((first, end)), Some((last, _))) = (words.first(), words.last()) else {
        return Completion::None;
    };
    // All share the beginning that the first and the last one share.
    let shared = first
        .bytes()
        .zip(last.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let mut added = place.quoted(&first[typed.len()..shared]);
    if words.len() == 1 && *end == End::Word {
        added.extend(place.quote);
        added.push(' ');
    }
    if !added.is_empty() {
        Completion::Insert(added)
    } else if words.len() > 1 {
        Completion::Choice(List(words.into_iter().map(|(text, _)| text).collect()))
    } else {
        Completion::None
    }
}

/// Prints words in columns, and how many there are beyond the most that are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List(Vec<String>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(MOST_LISTED)];
        let width = shown.iter().map(String::len).max().unwrap_or(0) + 2;
        for row in shown.chunks((WIDTH / width).max(1)) {
            if let Some((last, others)) = row.split_last() {
                others
                    .iter()
                    .try_for_each(|word| write!(f, "{word:width$}"))?;
                f.write_str(last)?;
            }
            f.write_str("\r\n")?;
        }
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "and {more} more\r\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::ToString, vec};
    use proptest::prelude::*;

    use crate::syntax;

    fn place(line: &str) -> WordPlace {
        WordPlace::behind(line).expect(line)
    }

    /// Completes with whole words.
    fn completed(line: &str, words: &[&str]) -> Completion {
        complete(line, |_| {
            let mut candidates = Candidates::default();
            words
                .iter()
                .for_each(|word| candidates.add(*word, End::Word));
            candidates
        })
    }

    fn inserted(text: &str) -> Completion {
        Completion::Insert(text.into())
    }

    #[test]
    fn the_place_is_that_of_the_cursor() {
        for (line, words, word, is_output) in [
            ("", &[][..], "", false),
            ("  ca", &[], "ca", false),
            ("cat ", &["cat"], "", false),
            ("cat a 'b c' /pr", &["cat", "a", "b c"], "/pr", false),
            ("echo 'a b", &["echo"], "a b", false),
            ("echo \"a b", &["echo"], "a b", false),
            ("echo a\\ b", &["echo"], "a b", false),
            ("echo 'a'", &["echo"], "a", false),
            ("echo >", &["echo"], "", true),
            ("echo >> /pr", &["echo"], "/pr", true),
            ("echo>a", &["echo"], "a", true),
            ("echo > a ", &["echo"], "", false),
            ("echo > a b", &["echo"], "b", false),
            ("echo > a b > ", &["echo", "b"], "", true),
            ("> a ec", &[], "ec", false),
        ] {
            let at = place(line);
            assert_eq!(at.words, words, "{line}");
            assert_eq!((&*at.word, at.is_output), (word, is_output), "{line}");
        }
        for line in ["echo # a", "#", "echo a\\"] {
            assert_eq!(WordPlace::behind(line), None, "{line}");
        }
    }

    #[test]
    fn a_word_grows_as_far_as_it_is_certain() {
        let names = ["lsmod", "ls", "insmod"];
        assert_eq!(completed("i", &names), inserted("nsmod "));
        assert_eq!(completed("ls", &["lsmod", "lsx"]), {
            Completion::Choice(List(vec!["lsmod".into(), "lsx".into()]))
        });
        assert_eq!(completed("l", &names), inserted("s"));
        assert_eq!(completed("lsm", &names), inserted("od "));
        assert_eq!(completed("lsmod", &names), inserted(" "));
        assert_eq!(completed("x", &names), Completion::None);
        assert_eq!(completed("", &[]), Completion::None);
        // The same word twice is one word, and one that cannot be typed is none.
        assert_eq!(completed("a", &["ab", "ab", "a\u{e4}"]), inserted("b "));
    }

    #[test]
    fn a_word_that_goes_on_gets_no_blank() {
        let open = |line: &str| {
            complete(line, |at| {
                let from = at.word.rfind('/').map_or(0, |slash| slash + 1);
                let mut candidates = Candidates::behind(from);
                candidates.add("sys/", End::Open);
                candidates
            })
        };
        assert_eq!(open("ls s"), inserted("ys/"));
        assert_eq!(open("ls /s"), inserted("ys/"));
        assert_eq!(open("ls '/s"), inserted("ys/"));
        assert_eq!(open("ls /sys/"), inserted("sys/"));
        assert_eq!(open("ls /sys/sys"), inserted("/"));
        let outside = complete("a", |_| Candidates::behind(2));
        assert_eq!(outside, Completion::None);
    }

    #[test]
    fn what_is_added_is_quoted_as_its_place_demands() {
        for (line, word, added) in [
            ("a", "a b>c", r"\ b\>c "),
            ("a", r#"a'"\"#, r#"\'\"\\ "#),
            ("'a", r#"a b'">\"#, r#" b'\''">\' "#),
            ("\"a", r#"a b'">\"#, r#" b'\">\\" "#),
            ("'a'", "a b", r"\ b "),
            ("echo ", "#a#b", r"\#a#b "),
            ("echo a", "a#b", "#b "),
            ("echo '", "#a", "#a' "),
            ("echo ''", "#a", "#a "),
        ] {
            assert_eq!(completed(line, &[word]), inserted(added), "{line}");
        }
    }

    #[test]
    fn a_long_list_says_how_much_it_leaves_out() {
        let list = |count| List((0..count).map(|n| format!("word{n:04}")).collect());
        assert_eq!(list(2).to_string(), "word0000  word0001\r\n");
        let most = list(60).to_string();
        assert_eq!(most.lines().count(), 8);
        assert!(most.lines().all(|row| row.len() <= 80) && most.ends_with("word0059\r\n"));
        let more = list(61).to_string();
        assert_eq!(more, format!("{most}and 1 more\r\n"));
        let wide = List(vec!["x".repeat(100), "y".into()]).to_string();
        assert_eq!(wide.lines().count(), 2);
    }

    proptest! {
        /// The line with the added text has the candidate as its last word.
        #[test]
        fn a_completed_line_means_the_candidate(
            word in "[ -~]{1,12}",
            cut in 0..12_usize,
            quote in prop::option::of(prop::sample::select(vec!['\'', '"'])),
        ) {
            let typed: String = word.chars().take(cut).collect();
            let mut line = String::from("echo ");
            match quote {
                Some(quote) => {
                    line.push(quote);
                    let place = WordPlace { quote: Some(quote), ..WordPlace::default() };
                    line += &place.quoted(&typed);
                }
                None => line += &WordPlace::default().quoted(&typed),
            }
            if let Completion::Insert(added) = completed(&line, &[&word]) {
                line += &added;
            }
            let parsed = syntax::parse(&line).expect("quoted as it should be");
            prop_assert_eq!(parsed.words, ["echo", &*word]);
        }
    }
}
