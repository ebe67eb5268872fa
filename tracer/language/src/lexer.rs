//! Words, numbers and signs of a text.
//!
//! The parser asks for one at a place, and nothing is kept. Texts and numbers stay as written until
//! they are read, so a mistake in one is told at its own letters.

use alloc::{format, string::String, vec::Vec};

use crate::{
    diagnostic::{Diagnostic, quoted},
    tree::Span,
};

/// A word, number or sign. Texts are as written; [`integer`] and [`string`] read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    Word(&'a str),
    /// `$name`, without the sign.
    Variable(&'a str),
    /// `$1`, without the sign.
    Parameter(&'a str),
    /// `$#`.
    ParameterCount,
    /// `@name`, without the sign.
    Map(&'a str),
    Number(&'a str),
    /// A text with its quotes.
    String(&'a str),
    Sign(&'static str),
    End,
}

/// The signs, longer ones before those that they begin with.
const SIGNS: [&str; 52] = [
    "<<=", ">>=", "..=", "->", "=>", "::", "..", "++", "--", "&&", "||", "==", "!=", "<=", ">=",
    "<<", ">>", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "{", "}", "(", ")", "[", "]", ",",
    ";", ":", "?", ".", "=", "<", ">", "+", "-", "*", "/", "%", "&", "|", "^", "!", "~", "#", "'",
    "\\",
];

/// The token that begins at or after `position`, and its span. Blanks and comments are skipped.
///
/// # Errors
/// The text there is no token. Its span is not empty, so that whoever skips it gets further.
pub fn token(text: &str, position: usize) -> Result<(Token<'_>, Span), Diagnostic> {
    let start = skip_blanks(text, position)?;
    let rest = &text[start..];
    let spanned = |token, length: usize| (token, Span::new(start, start + length));
    let Some(first) = rest.chars().next() else {
        return Ok(spanned(Token::End, 0));
    };
    if is_word_start(first) {
        let word = word(rest);
        return Ok(spanned(Token::Word(word), word.len()));
    }
    if first.is_ascii_digit() {
        let number = word(rest);
        return Ok(spanned(Token::Number(number), number.len()));
    }
    match first {
        '@' => {
            let name = word(&rest[1..]);
            Ok(spanned(Token::Map(name), 1 + name.len()))
        }
        '$' => {
            let name = word(&rest[1..]);
            match name.bytes().next() {
                None if rest[1..].starts_with('#') => Ok(spanned(Token::ParameterCount, 2)),
                None => Err(Diagnostic::new(
                    Span::new(start, start + 1),
                    "`$` without a name",
                    "a variable is `$name`, an argument of the program `$1`, their number `$#`",
                )),
                Some(digit) if digit.is_ascii_digit() => {
                    Ok(spanned(Token::Parameter(name), 1 + name.len()))
                }
                Some(_) => Ok(spanned(Token::Variable(name), 1 + name.len())),
            }
        }
        '"' => match string_length(rest) {
            Some(length) => Ok(spanned(Token::String(&rest[..length]), length)),
            None => {
                let line = rest.lines().next().unwrap_or(rest);
                Err(Diagnostic::new(
                    Span::new(start, start + line.len()),
                    "this string does not end on its line",
                    "end it with `\"`; a line break in a string is `\\n`",
                ))
            }
        },
        _ => match SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            Some(sign) => Ok(spanned(Token::Sign(sign), sign.len())),
            None => Err(Diagnostic::new(
                Span::new(start, start + first.len_utf8()),
                format!("`{}` has no meaning here", first.escape_debug()),
                "take it out, or put it into a string",
            )),
        },
    }
}

/// The position of the first letter at or after `position` that is in no blank or comment.
pub fn skip_blanks(text: &str, position: usize) -> Result<usize, Diagnostic> {
    let mut position = position;
    loop {
        let rest = &text[position..];
        let letters = rest.trim_start();
        position += rest.len() - letters.len();
        if letters.starts_with("//") {
            position += letters.find('\n').unwrap_or(letters.len());
        } else if letters.starts_with("/*") {
            let Some(end) = letters.find("*/") else {
                return Err(Diagnostic::new(
                    Span::new(position, text.len()),
                    "this comment does not end",
                    "end it with `*/`",
                ));
            };
            position += end + "*/".len();
        } else {
            return Ok(position);
        }
    }
}

pub fn is_word_start(letter: char) -> bool {
    letter == '_' || letter.is_alphabetic()
}

pub fn is_word(letter: char) -> bool {
    letter == '_' || letter.is_alphanumeric()
}

/// The letters and digits that a text begins with.
pub fn word(text: &str) -> &str {
    &text[..text.find(|letter| !is_word(letter)).unwrap_or(text.len())]
}

/// The length of the string that a text begins with, with its quotes.
fn string_length(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '\n' => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// C's suffixes of numbers, which change nothing here.
const SUFFIXES: [&str; 7] = ["u", "l", "ul", "lu", "ll", "ull", "llu"];

/// The value of a number: decimal (`1_000`), hexadecimal, octal (`017`, `0o17`) or binary, with a
/// power of ten (`2e3`), a unit of time (`5ms`, in nanoseconds) or C's suffixes (`5UL`).
pub fn integer(text: &str, span: Span) -> Result<u64, Diagnostic> {
    let wrong = |message: String, help: &str| Err(Diagnostic::new(span, message, help));
    let too_large = || {
        wrong(
            format!("`{}` does not fit into 64 bits", quoted(text)),
            "the largest number is 18446744073709551615",
        )
    };
    let prefix = text.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = match prefix.as_deref() {
        Some("0x") => (16, &text[2..]),
        Some("0o") => (8, &text[2..]),
        Some("0b") => (2, &text[2..]),
        Some("0_") => (8, &text[1..]),
        Some(two)
            if two.starts_with('0') && two.ends_with(|second: char| second.is_ascii_digit()) =>
        {
            (8, &text[1..])
        }
        _ => (10, text),
    };
    let end = digits
        .find(|letter: char| letter != '_' && !letter.is_digit(radix.max(10)))
        .unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(end);
    let mut value = 0_u64;
    let mut any = false;
    for letter in digits.chars().filter(|letter| *letter != '_') {
        let Some(digit) = letter.to_digit(radix) else {
            return wrong(
                format!("`{}` has the digit {letter}, in base {radix}", quoted(text)),
                "a number that begins with 0 is octal, as in C; take the 0 away if it is decimal",
            );
        };
        any = true;
        let next = value.checked_mul(radix.into());
        match next.and_then(|value| value.checked_add(digit.into())) {
            Some(next) => value = next,
            None => return too_large(),
        }
    }
    // A power of ten, or a unit in nanoseconds.
    let factor = match suffix {
        _ if !any || digits.ends_with('_') => None,
        "" => Some(1),
        _ if SUFFIXES.contains(&&*suffix.to_ascii_lowercase()) => Some(1),
        _ if radix != 10 => None,
        _ => match suffix.strip_prefix(['e', 'E']) {
            // One digit stands before a power of ten.
            Some(_) if value > 9 => None,
            Some(power) if power.bytes().all(|byte| byte.is_ascii_digit()) && !power.is_empty() => {
                match power
                    .parse()
                    .ok()
                    .and_then(|power| 10_u64.checked_pow(power))
                {
                    Some(factor) => Some(factor),
                    None if value == 0 => Some(1),
                    None => return too_large(),
                }
            }
            _ => unit(suffix),
        },
    };
    match factor {
        Some(factor) => value.checked_mul(factor).map_or_else(too_large, Ok),
        None => wrong(
            format!("`{}` is no number", quoted(text)),
            "numbers are 10, 1_000, 0x1f, 017, 2e3, and times 5ns, 5us, 5ms, 5s, 5m, 5h, 5d; a \
             name begins with a letter",
        ),
    }
}

/// The nanoseconds of a unit of time.
pub fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    })
}

/// The text that a string with its quotes stands for.
pub fn string(text: &str, span: Span) -> Result<String, Diagnostic> {
    let inner = &text[1..text.len() - 1];
    let mut bytes = Vec::with_capacity(inner.len());
    let mut letters = inner.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        if letter != '\\' {
            bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        // The lexer took no backslash for the last letter.
        let Some((_, escape)) = letters.next() else {
            break;
        };
        // Digits of a base, at most `most`.
        let mut digits = |most: usize, radix: u32, first: Option<u32>| {
            let mut value = first;
            for _ in usize::from(first.is_some())..most {
                let digit = letters
                    .peek()
                    .and_then(|(_, letter)| letter.to_digit(radix));
                let Some(digit) = digit else { break };
                value = Some(value.unwrap_or(0) * radix + digit);
                letters.next();
            }
            value.and_then(|value| u8::try_from(value).ok())
        };
        let byte = match escape {
            'n' => Some(b'\n'),
            't' => Some(b'\t'),
            'r' => Some(b'\r'),
            '\\' => Some(b'\\'),
            '"' => Some(b'"'),
            'x' => digits(2, 16, None),
            '0'..='7' => digits(3, 8, escape.to_digit(8)),
            _ => None,
        };
        let Some(byte) = byte else {
            let start = span.start + 1 + at;
            return Err(Diagnostic::new(
                Span::new(start, start + 1 + escape.len_utf8()),
                format!("`\\{escape}` is not in strings"),
                "there are \\n, \\t, \\r, \\\\, \\\", \\033 (octal) and \\x1b (hexadecimal)",
            ));
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).map_err(|_| {
        Diagnostic::new(
            span,
            "the bytes of this string are no UTF-8",
            "write the letters themselves",
        )
    })
}
