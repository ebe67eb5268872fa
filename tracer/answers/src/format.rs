//! How conversions of `printf` show values.

use alloc::string::String;
use core::fmt::{self, Write};

use trace_interface::view::{Conversion, Style};

use crate::value::{Symbolize, Value};

/// Writes a value as a conversion says.
pub(crate) fn write(
    conversion: &Conversion,
    value: &Value,
    symbols: &dyn Symbolize,
    out: &mut dyn Write,
) -> fmt::Result {
    // Two's complement, as C shows a signed number as an unsigned one.
    let (whole, bytes) = match value {
        Value::Wide(number) => (number.cast_signed(), 16),
        Value::SignedWide(number) => (*number, 16),
        other => (other.number().unwrap_or(0), 8),
    };
    let unused = 128 - 8 * u32::from(conversion.bytes.unwrap_or(bytes).clamp(1, bytes));
    let bits = whole.cast_unsigned() << unused >> unused;
    let number = whole << unused >> unused;
    let is_there = !matches!(
        value,
        Value::Absent | Value::Unavailable | Value::Unreadable | Value::Invalid
    );
    let mut text = String::new();
    match conversion.style {
        // What is not there has one text, whatever the conversion.
        _ if !is_there => {
            write!(text, "{}", value.shown(symbols))?;
        }
        Style::Decimal if matches!(value, Value::Wide(_)) && conversion.bytes.is_none() => {
            write!(text, "{bits}")?;
        }
        Style::Decimal => {
            match number {
                ..0 => text.push('-'),
                _ if conversion.plus => text.push('+'),
                _ if conversion.blank => text.push(' '),
                _ => {}
            }
            digits(
                &mut text,
                conversion,
                format_args!("{}", number.unsigned_abs()),
            )?;
        }
        Style::Unsigned => digits(&mut text, conversion, format_args!("{bits}"))?,
        Style::Hex { upper } => {
            let prefix = match (conversion.alternate && bits != 0, upper) {
                (false, _) => "",
                (true, false) => "0x",
                (true, true) => "0X",
            };
            text.push_str(prefix);
            match upper {
                false => digits(&mut text, conversion, format_args!("{bits:x}"))?,
                true => digits(&mut text, conversion, format_args!("{bits:X}"))?,
            }
        }
        Style::Octal => {
            digits(&mut text, conversion, format_args!("{bits:o}"))?;
            if conversion.alternate && !text.starts_with('0') {
                text.insert(0, '0');
            }
        }
        Style::Pointer => write!(text, "{bits:#x}")?,
        Style::Character => {
            let character = u32::try_from(bits).ok().and_then(char::from_u32);
            text.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        Style::Dump { escaped } => {
            let Value::Bytes(bytes) = value else {
                return Ok(());
            };
            for (index, byte) in bytes.iter().enumerate() {
                match escaped {
                    true => write!(text, "\\x{byte:02x}")?,
                    false if index == 0 => write!(text, "{byte:02x}")?,
                    false => write!(text, " {byte:02x}")?,
                }
            }
        }
        // The next conversion takes it.
        Style::Width => return Ok(()),
        Style::Natural => {
            write!(text, "{}", value.shown(symbols))?;
            if let Some((end, _)) = conversion
                .precision
                .and_then(|most| text.char_indices().nth(most))
            {
                text.truncate(end);
            }
        }
    }
    let missing = conversion.width.saturating_sub(text.chars().count());
    let fill = |out: &mut dyn Write, letter| (0..missing).try_for_each(|_| out.write_char(letter));
    let is_numeric = is_there
        && !matches!(
            conversion.style,
            Style::Natural | Style::Character | Style::Dump { .. }
        );
    if conversion.left {
        out.write_str(&text)?;
        fill(out, ' ')
    } else if conversion.zeros && is_numeric && conversion.precision.is_none() {
        let mut sign = usize::from(text.starts_with(['-', '+', ' ']));
        if text[sign..].starts_with("0x") || text[sign..].starts_with("0X") {
            sign += 2;
        }
        out.write_str(&text[..sign])?;
        fill(out, '0')?;
        out.write_str(&text[sign..])
    } else {
        fill(out, ' ')?;
        out.write_str(&text)
    }
}

/// The digits of a number, at least as many as the precision says. If that is none, zero has none.
fn digits(text: &mut String, conversion: &Conversion, digits: fmt::Arguments<'_>) -> fmt::Result {
    let mut known = String::new();
    write!(known, "{digits}")?;
    if conversion.precision == Some(0) && known == "0" {
        return Ok(());
    }
    let missing = conversion
        .precision
        .unwrap_or(0)
        .saturating_sub(known.len());
    text.extend(core::iter::repeat_n('0', missing));
    text.push_str(&known);
    Ok(())
}
