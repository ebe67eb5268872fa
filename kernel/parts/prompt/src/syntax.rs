//! The meaning of a line: words, and perhaps the file that takes the output.
//!
//! ```text
//!   line     = { word | redirect }
//!   redirect = ( ">" | ">>" ) word          at most one; ">>" appends
//!   word     = { character | "'" … "'" | '"' … '"' | "\" character }
//! ```
//!
//! Blanks separate words, and so do `>` and `>>`. Quotes and backslashes take a character's meaning
//! away. Inside single quotes no character has a meaning; inside double quotes only `"` and `\` do.

use alloc::{string::String, vec::Vec};
use core::{fmt, iter::Peekable, str::Chars};

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
    let mut rest = line.chars().peekable();
    loop {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        match rest.peek() {
            None => return Ok(parsed),
            Some('>') => {
                rest.next();
                let append = rest.next_if_eq(&'>').is_some();
                while rest.next_if(|c| c.is_whitespace()).is_some() {}
                let path = word(&mut rest)?.ok_or(SyntaxError::NoFile)?;
                if parsed.output.replace(Redirect { path, append }).is_some() {
                    return Err(SyntaxError::SecondFile);
                }
            }
            Some(_) => parsed.words.extend(word(&mut rest)?),
        }
    }
}

/// Takes the word at the beginning of `rest`, if there is one.
fn word(rest: &mut Peekable<Chars<'_>>) -> Result<Option<String>, SyntaxError> {
    let mut word = None;
    while let Some(c) = rest.next_if(|c| !c.is_whitespace() && *c != '>') {
        let word = word.get_or_insert_with(String::new);
        match c {
            '\'' | '"' => quoted(c, rest, word)?,
            '\\' => word.push(rest.next().ok_or(SyntaxError::OpenBackslash)?),
            _ => word.push(c),
        }
    }
    Ok(word)
}

fn quoted(
    quote: char,
    rest: &mut Peekable<Chars<'_>>,
    word: &mut String,
) -> Result<(), SyntaxError> {
    while let Some(c) = rest.next() {
        match c {
            _ if c == quote => return Ok(()),
            '\\' if quote == '"' => match rest.next_if(|c| matches!(c, '"' | '\\')) {
                Some(c) => word.push(c),
                None => word.push('\\'),
            },
            _ => word.push(c),
        }
    }
    Err(SyntaxError::OpenQuote(quote))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        for (line, error) in [
            ("echo 'a", OpenQuote('\'')),
            ("echo \"a\\\"", OpenQuote('"')),
            ("a\\", OpenBackslash),
            ("echo >", NoFile),
            ("echo > > f", NoFile),
            ("echo >>> f", NoFile),
            ("echo > a > b", SecondFile),
            ("echo > a >> b", SecondFile),
        ] {
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
