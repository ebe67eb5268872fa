//! Formats of `printf`: how they are read, and how they show values.

use alloc::{string::String, vec::Vec};
use core::{
    fmt::{self, Write},
    iter::Peekable,
    str::CharIndices,
};

use crate::{
    shape::Shape,
    value::{Symbolize, Value},
};

/// How a value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `%d`, `%i`
    Decimal,
    /// `%u`
    Unsigned,
    /// `%x`, `%X`; `%lx`
    Hex { upper: bool },
    /// `%o`
    Octal,
    /// `%p`
    Pointer,
    /// `%c`
    Character,
    /// `%s`, `%r`: as the value is.
    Natural,
}

/// A conversion: `%-8d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) style: Style,
    left: bool,
    zeros: bool,
    plus: bool,
    alternate: bool,
    width: usize,
    /// The most letters of a text.
    precision: Option<usize>,
    /// Where it is in the format, and the letter of it, for messages.
    pub(crate) at: usize,
    pub(crate) letter: char,
}

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Literal(String),
    Value(Conversion),
}

/// The most columns that a width may ask for.
const MOST_WIDTH: usize = 256;

/// Reads a format.
///
/// # Errors
/// Cause and next step.
pub(crate) fn parse(format: &str) -> Result<Vec<Part>, (String, &'static str)> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut letters = format.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        if letter != '%' {
            literal.push(letter);
            continue;
        }
        if letters.next_if(|(_, next)| *next == '%').is_some() {
            literal.push('%');
            continue;
        }
        let mut conversion = Conversion {
            style: Style::Natural,
            left: false,
            zeros: false,
            plus: false,
            alternate: false,
            width: 0,
            precision: None,
            at,
            letter: 's',
        };
        while let Some((_, flag)) = letters.next_if(|(_, next)| "-0+# ".contains(*next)) {
            match flag {
                '-' => conversion.left = true,
                '0' => conversion.zeros = true,
                '+' => conversion.plus = true,
                '#' => conversion.alternate = true,
                _ => {}
            }
        }
        conversion.width = number(&mut letters);
        if letters.next_if(|(_, next)| *next == '.').is_some() {
            conversion.precision = Some(number(&mut letters));
        }
        while letters
            .next_if(|(_, next)| "lhzjt".contains(*next))
            .is_some()
        {}
        let found = letters.next().map(|(_, letter)| letter);
        conversion.letter = found.unwrap_or('%');
        conversion.style = match found {
            Some('d' | 'i') => Style::Decimal,
            Some('u') => Style::Unsigned,
            Some('x') => Style::Hex { upper: false },
            Some('X') => Style::Hex { upper: true },
            Some('o') => Style::Octal,
            Some('p') => Style::Pointer,
            Some('c') => Style::Character,
            Some('s' | 'r') => Style::Natural,
            Some(other) => {
                return Err((
                    alloc::format!("`%{other}` is no conversion"),
                    "use %d, %u, %x, %o, %c, %p, %s or %r, and %% for a percent sign",
                ));
            }
            None => {
                return Err((
                    "the format ends with a single `%`".into(),
                    "write %% for a percent sign",
                ));
            }
        };
        if !literal.is_empty() {
            parts.push(Part::Literal(core::mem::take(&mut literal)));
        }
        parts.push(Part::Value(conversion));
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(parts)
}

/// A number of columns.
fn number(letters: &mut Peekable<CharIndices<'_>>) -> usize {
    let mut number = 0_usize;
    while let Some((_, digit)) = letters.next_if(|(_, next)| next.is_ascii_digit()) {
        number = (number * 10 + digit as usize - '0' as usize).min(MOST_WIDTH);
    }
    number
}

impl Conversion {
    /// Whether it can show values of that shape.
    pub(crate) fn takes(&self, shape: &Shape) -> bool {
        match self.style {
            Style::Natural => true,
            _ => shape.is_number(),
        }
    }

    /// Writes a value.
    pub(crate) fn write(
        &self,
        value: &Value,
        symbols: &dyn Symbolize,
        out: &mut dyn Write,
    ) -> fmt::Result {
        let number = value.number().unwrap_or(0);
        // Two's complement of 64 bits, as C shows a signed number as an unsigned one.
        let bits = number as u64;
        let mut text = String::new();
        match self.style {
            _ if *value == Value::Absent => text.push('-'),
            Style::Decimal => {
                if self.plus && number >= 0 {
                    text.push('+');
                }
                write!(text, "{number}")?;
            }
            Style::Unsigned => write!(text, "{bits}")?,
            Style::Hex { upper } => {
                if self.alternate {
                    text.push_str("0x");
                }
                match upper {
                    false => write!(text, "{bits:x}")?,
                    true => write!(text, "{bits:X}")?,
                }
            }
            Style::Octal => write!(text, "{bits:o}")?,
            Style::Pointer => write!(text, "{bits:#x}")?,
            Style::Character => {
                let character = u32::try_from(bits).ok().and_then(char::from_u32);
                text.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Style::Natural => {
                write!(text, "{}", value.shown(symbols))?;
                if let Some((end, _)) = self
                    .precision
                    .and_then(|most| text.char_indices().nth(most))
                {
                    text.truncate(end);
                }
            }
        }
        let missing = self.width.saturating_sub(text.chars().count());
        let fill =
            |out: &mut dyn Write, letter| (0..missing).try_for_each(|_| out.write_char(letter));
        let is_numeric = !matches!(self.style, Style::Natural | Style::Character);
        if self.left {
            out.write_str(&text)?;
            fill(out, ' ')
        } else if self.zeros && is_numeric {
            let sign = usize::from(text.starts_with(['-', '+']));
            out.write_str(&text[..sign])?;
            fill(out, '0')?;
            out.write_str(&text[sign..])
        } else {
            fill(out, ' ')?;
            out.write_str(&text)
        }
    }
}
