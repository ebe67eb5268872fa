//! The meaning of a line: words, and perhaps the file that takes the output.
//!
//! ```text
//!   line     = { word | redirect } [ "#" … ]
//!   redirect = ( ">" | ">>" ) word          at most one; ">>" appends
//!   word     = { character | "'" … "'" | '"' … '"' | "\" character }
//! ```
//!
//! Blanks separate words, and so do `>` and `>>`. Quotes and backslashes take a character's meaning
//! away. Inside single quotes no character has a meaning; inside double quotes only `"` and `\` do.
//! At the start of a word `#` begins a comment; inside a word it is a character, as in `a#b`.

use alloc::{string::String, vec::Vec};
use core::{fmt, iter::Peekable, str::CharIndices};

/// A line, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The command and its arguments. Empty for an empty line.
    pub words: Vec<String>,
    /// Where the output goes, if not to the terminal.
    pub output: Option<Redirect>,
}

/// The file that takes a command's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Its path.
    pub path: String,
    /// Whether the file keeps its contents.
    pub append: bool,
}

/// A mistake in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxError {
    /// A quote has no end.
    OpenQuote(char),
    /// Nothing follows a backslash.
    OpenBackslash,
    /// No file follows `>`.
    NoFile,
    /// There is a second `>`.
    SecondFile,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenQuote(quote) => {
                write!(f, "the quotation has no end; close it with {quote}")
            }
            Self::OpenBackslash => {
                f.write_str("nothing follows the last backslash; write two to mean one")
            }
            Self::NoFile => {
                f.write_str("> and >> need the name of a file; quote them to mean the characters")
            }
            Self::SecondFile => {
                f.write_str("the output can go to one file only; remove all but one > FILE")
            }
        }
    }
}

impl core::error::Error for SyntaxError {}

/// Takes `line` apart.
///
/// # Errors
/// [`SyntaxError`].
pub fn parse(line: &str) -> Result<Line, SyntaxError> {
    let mut parsed = Line::default();
    let mut tokens = Tokens::of(line);
    while let Some(token) = tokens.next() {
        match token {
            Token::Word(word) => parsed.words.push(word.closed()?),
            Token::Redirect { append } => {
                let Some(Token::Word(word)) = tokens.next() else {
                    return Err(SyntaxError::NoFile);
                };
                let path = word.closed()?;
                if parsed.output.replace(Redirect { path, append }).is_some() {
                    return Err(SyntaxError::SecondFile);
                }
            }
            Token::Comment => {}
        }
    }
    Ok(parsed)
}

/// A piece of a line.
#[derive(Clone, Debug)]
pub(crate) enum Token {
    Word(Word),
    Redirect {
        append: bool,
    },
    /// It takes the rest of the line.
    Comment,
}

/// A word, perhaps unfinished.
#[derive(Clone, Debug, Default)]
pub(crate) struct Word {
    /// The meaning: without quotes and backslashes.
    pub text: String,
    /// Where it ends in the line, in bytes.
    pub end: usize,
    /// The end that the line lacks.
    pub open: Option<Open>,
}

/// A thing that has no end in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    Quote(char),
    Backslash,
}

impl Word {
    fn closed(self) -> Result<String, SyntaxError> {
        match self.open {
            None => Ok(self.text),
            Some(Open::Quote(quote)) => Err(SyntaxError::OpenQuote(quote)),
            Some(Open::Backslash) => Err(SyntaxError::OpenBackslash),
        }
    }
}

/// Takes a line apart. A mistake shows in the last token only, so a line that is still being typed
/// has its tokens, too.
pub(crate) struct Tokens<'a> {
    line: &'a str,
    rest: Peekable<CharIndices<'a>>,
}

impl<'a> Tokens<'a> {
    pub fn of(line: &'a str) -> Self {
        Self {
            line,
            rest: line.char_indices().peekable(),
        }
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().map(|(_, c)| *c)
    }

    fn take(&mut self) -> Option<char> {
        self.rest.next().map(|(_, c)| c)
    }

    fn take_if(&mut self, accept: impl Fn(char) -> bool) -> Option<char> {
        self.rest.next_if(|(_, c)| accept(*c)).map(|(_, c)| c)
    }

    fn word(&mut self) -> Word {
        debug_assert!(self.rest.peek().is_some(), "a word has a first character");
        let mut word = Word::default();
        while let Some(c) = self.take_if(|c| !c.is_whitespace() && c != '>') {
            match c {
                '\'' | '"' => word.open = self.quoted(c, &mut word.text),
                '\\' => match self.take() {
                    Some(c) => word.text.push(c),
                    None => word.open = Some(Open::Backslash),
                },
                _ => word.text.push(c),
            }
        }
        word.end = self.rest.peek().map_or(self.line.len(), |(at, _)| *at);
        word
    }

    /// Takes the rest of a quotation, and its end unless that is missing.
    fn quoted(&mut self, quote: char, text: &mut String) -> Option<Open> {
        while let Some(c) = self.take() {
            match c {
                _ if c == quote => return None,
                '\\' if quote == '"' => {
                    text.push(self.take_if(|c| matches!(c, '"' | '\\')).unwrap_or('\\'));
                }
                _ => text.push(c),
            }
        }
        Some(Open::Quote(quote))
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        while self.take_if(char::is_whitespace).is_some() {}
        Some(match self.peek()? {
            '>' => {
                self.take();
                let append = self.take_if(|c| c == '>').is_some();
                Token::Redirect { append }
            }
            '#' => {
                while self.take().is_some() {}
                Token::Comment
            }
            _ => Token::Word(self.word()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<String> {
        let line = parse(line).unwrap();
        assert_eq!(line.output, None);
        line.words
    }

    #[test]
    fn blanks_part_words() {
        assert_eq!(words("insmod  a \t b=c\n"), ["insmod", "a", "b=c"]);
        assert_eq!(parse(""), Ok(Line::default()));
        assert_eq!(parse("  "), Ok(Line::default()));
    }

    #[test]
    fn quotes_and_backslashes_take_meaning_away() {
        assert_eq!(words("echo 'a  > b' c"), ["echo", "a  > b", "c"]);
        assert_eq!(words(r#"echo "a'\"\\\x""#), ["echo", r#"a'"\\x"#]);
        assert_eq!(words(r"a\ b\>c\\ '\'"), ["a b>c\\", "\\"]);
        assert_eq!(words("''"), [""]);
        assert_eq!(words("a''b\"\"c"), ["abc"]);
    }

    #[test]
    fn a_comment_begins_at_the_start_of_a_word() {
        assert_eq!(words("echo a # b 'c"), ["echo", "a"]);
        assert_eq!(words("# echo > > \""), [""; 0]);
        assert_eq!(
            words("echo a#b '#c' \\#d \"#\"e ''#f"),
            ["echo", "a#b", "#c", "#d", "#e", "#f"]
        );
        assert_eq!(parse("echo > # file"), Err(SyntaxError::NoFile));
        let line = parse("echo 1 > file# # > other").unwrap();
        assert_eq!(line.output.unwrap().path, "file#");
    }

    #[test]
    fn output_goes_to_a_file_wherever_it_is_named() {
        let to = |path: &str, append| {
            Some(Redirect {
                path: path.into(),
                append,
            })
        };
        for (line, output) in [
            ("echo 1 > f", to("f", false)),
            ("echo 1>f", to("f", false)),
            ("echo 1 >>f", to("f", true)),
            (">> f echo 1", to("f", true)),
            ("echo > 'a b' 1", to("a b", false)),
        ] {
            let line = parse(line).unwrap();
            assert_eq!(line.words, ["echo", "1"]);
            assert_eq!(line.output, output);
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        use SyntaxError::*;
        for (line, error, text) in [
            (
                "echo 'a",
                OpenQuote('\''),
                "the quotation has no end; close it with '",
            ),
            (
                "echo \"a\\\"",
                OpenQuote('"'),
                "the quotation has no end; close it with \"",
            ),
            (
                "a\\",
                OpenBackslash,
                "nothing follows the last backslash; write two to mean one",
            ),
            (
                "echo >",
                NoFile,
                "> and >> need the name of a file; quote them to mean the characters",
            ),
            (
                "echo > > f",
                NoFile,
                "> and >> need the name of a file; quote them to mean the characters",
            ),
            (
                "echo >>> f",
                NoFile,
                "> and >> need the name of a file; quote them to mean the characters",
            ),
            (
                "echo > a > b",
                SecondFile,
                "the output can go to one file only; remove all but one > FILE",
            ),
            (
                "echo > a >> b",
                SecondFile,
                "the output can go to one file only; remove all but one > FILE",
            ),
        ] {
            assert_eq!(error.to_string(), text);
            assert_eq!(parse(line), Err(error), "{line}");
        }
    }

    proptest! {
        #[test]
    fn any_words_come_back_when_they_are_quoted(
        given in prop::collection::vec("[ -~]{0,12}", 0..6)
    ) {
            let quote = |word: &String| alloc::format!("'{}'", word.replace('\'', r"'\''"));
            let line = given.iter().map(quote).collect::<Vec<_>>().join(" ");
            prop_assert_eq!(words(&line), given);
        }

        #[test]
        fn no_line_makes_it_panic(line in "\\PC*") {
            let _ = parse(&line);
        }
    }
}
