//! Mistakes of a text: where, why, and what to do.

use alloc::{borrow::Cow, string::String};
use core::fmt;

use crate::tree::Span;

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub span: Span,
    /// The cause, for example "expected an expression, found `}`".
    pub message: String,
    /// The next step. Empty if there is none.
    pub help: String,
}

impl Diagnostic {
    pub fn new(span: Span, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            help: help.into(),
        }
    }

    /// The diagnostic with its line of the text and carets below it, for terminals without colours.
    pub fn show<'a>(&'a self, text: &'a str) -> Shown<'a> {
        Shown {
            diagnostic: self,
            text,
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}

impl core::error::Error for Diagnostic {}

/// See [`Diagnostic::show`].
pub struct Shown<'a> {
    diagnostic: &'a Diagnostic,
    text: &'a str,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic {
            span,
            message,
            help,
        } = self.diagnostic;
        writeln!(f, "error: {message}")?;
        // Diagnostics of another text must not make this one panic.
        let at = floor(self.text, span.start);
        let begin = self.text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[begin..].lines().next().unwrap_or("");
        let number = self.text[..begin].matches('\n').count() + 1;
        let width = Width(number);
        writeln!(f, "{number} | {line}")?;
        write!(f, "{width} | ")?;
        let before = &self.text[begin..at];
        for letter in before.chars() {
            f.write_str(if letter == '\t' { "\t" } else { " " })?;
        }
        let end = floor(self.text, span.end).min(begin + line.len()).max(at);
        let carets = self.text[at..end].chars().count().max(1);
        for _ in 0..carets {
            f.write_str("^")?;
        }
        if !help.is_empty() {
            write!(f, "\n{width} = help: {help}")?;
        }
        Ok(())
    }
}

/// As many blanks as a number has digits.
struct Width(usize);

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.checked_ilog10().unwrap_or(0) + 1;
        (0..digits).try_for_each(|_| f.write_str(" "))
    }
}

/// The last beginning of a character at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// A part of a text as messages quote it: one line, not long.
pub(crate) fn quoted(text: &str) -> Cow<'_, str> {
    const MOST: usize = 40;
    let line = text.lines().next().unwrap_or("");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => Cow::Owned(alloc::format!("{}…", &line[..end])),
        None => Cow::Borrowed(line),
    }
}
