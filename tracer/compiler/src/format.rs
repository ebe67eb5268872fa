//! How formats of `printf` are read.

use alloc::{string::String, vec::Vec};
use core::{iter::Peekable, str::CharIndices};

use trace_interface::view::{Conversion, MOST_WIDTH, Part, Style};

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
            blank: false,
            alternate: false,
            width: 0,
            precision: None,
            bytes: None,
            at,
            letter: 's',
        };
        while let Some((_, flag)) = letters.next_if(|(_, next)| "-0+# ".contains(*next)) {
            match flag {
                '-' => conversion.left = true,
                '0' => conversion.zeros = true,
                '+' => conversion.plus = true,
                '#' => conversion.alternate = true,
                _ => conversion.blank = true,
            }
        }
        if letters.next_if(|(_, next)| *next == '*').is_some() {
            if !literal.is_empty() {
                parts.push(Part::Literal(core::mem::take(&mut literal)));
            }
            parts.push(Part::Value(Conversion {
                style: Style::Width,
                letter: '*',
                ..conversion
            }));
        } else {
            conversion.width = number(&mut letters);
        }
        if letters.next_if(|(_, next)| *next == '.').is_some() {
            conversion.precision = Some(number(&mut letters));
        }
        while let Some((_, length)) = letters.next_if(|(_, next)| "lhzjt".contains(*next)) {
            conversion.bytes = Some(match (length, conversion.bytes) {
                ('h', Some(2)) => 1,
                ('h', _) => 2,
                _ => 8,
            });
        }
        let found = letters.next().map(|(_, letter)| letter);
        conversion.letter = found.unwrap_or('%');
        let dump = match found {
            Some('r') => letters.next_if(|(_, next)| "xh".contains(*next)),
            _ => None,
        };
        conversion.style = match found {
            Some('r') if dump.is_some() => Style::Dump {
                escaped: dump.is_some_and(|(_, form)| form == 'x'),
            },
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
