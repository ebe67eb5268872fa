//! Numbers as C writes them: `12`, `0x1f`, `017`.

/// The value of all of `text`; a leading `+` is allowed. `None` if it is not a number or needs more
/// than 64 bits.
pub(crate) fn unsigned(text: &str) -> Option<u64> {
    digits(text.strip_prefix('+').unwrap_or(text))
}

/// The value of all of `text`, which begins with a digit.
pub(crate) fn digits(text: &str) -> Option<u64> {
    let (digits, radix) = split_radix(text);
    // `from_str_radix` allows a sign, which must not follow another one or `0x`.
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// The value of all of `text` with its sign.
pub(crate) fn signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(text) => 0_i64.checked_sub_unsigned(digits(text)?),
        None => unsigned(text)?.try_into().ok(),
    }
}

/// The number at the start of `text`, and what follows it. 0 and all of `text` if there is none.
pub(crate) fn leading(text: &str) -> (u64, &str) {
    let (body, radix) = split_radix(text);
    let end = body
        .find(|c: char| !c.is_digit(radix))
        .unwrap_or(body.len());
    match u64::from_str_radix(&body[..end], radix) {
        Ok(value) => (value, &body[end..]),
        Err(_) => (0, text),
    }
}

fn split_radix(text: &str) -> (&str, u32) {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match hex {
        Some(hex) if hex.starts_with(|c: char| c.is_ascii_hexdigit()) => (hex, 16),
        _ if text.starts_with('0') && text.len() > 1 => (text, 8),
        _ => (text, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_forms_are_read() {
        for (text, value) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("+12", Some(12)),
            ("0x1F", Some(31)),
            ("0X1f", Some(31)),
            ("017", Some(15)),
            ("0xffffffffffffffff", Some(u64::MAX)),
            ("0x10000000000000000", None),
            ("08", None),
            ("", None),
            ("+", None),
            ("++1", None),
            ("-1", None),
            ("0x", None),
            ("0x+1", None),
            ("1a", None),
            ("12 ", None),
        ] {
            assert_eq!(unsigned(text), value, "{text}");
        }
        for (text, value) in [
            ("-1", Some(-1)),
            ("+7", Some(7)),
            ("-0x8000000000000000", Some(i64::MIN)),
            ("0x8000000000000000", None),
            ("-+1", None),
            ("--1", None),
            ("-", None),
        ] {
            assert_eq!(signed(text), value, "{text}");
        }
    }

    #[test]
    fn leading_number_ends_at_the_first_other_letter() {
        assert_eq!(leading("8@4/32"), (8, "@4/32"));
        assert_eq!(leading("0x10/8"), (16, "/8"));
        assert_eq!(leading("0/8"), (0, "/8"));
        assert_eq!(leading("a/16"), (0, "a/16"));
        assert_eq!(leading(""), (0, ""));
    }
}
