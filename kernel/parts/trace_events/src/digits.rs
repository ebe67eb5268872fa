//! Numbers as text, as `write!` prints them, but by fewer instructions: a line of `trace` has about
//! ten numbers, and `write!` takes some hundred instructions for each.

use core::fmt::{self, Write};

/// The most digits of a number of 64 bits, in decimal.
const MOST: usize = 20;

/// Writes `value` in decimal, with `fill` before it up to `width` letters. `width` is 20 at most.
pub fn write_decimal(value: u64, fill: u8, width: usize, out: &mut dyn Write) -> fmt::Result {
    let mut text = [fill; MOST];
    let mut at = MOST;
    let mut rest = value;
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    write_ascii(&text[at.min(MOST - width.min(MOST))..], out)
}

/// Writes `value` in decimal, with its sign.
pub fn write_signed(value: i64, out: &mut dyn Write) -> fmt::Result {
    if value < 0 {
        out.write_str("-")?;
    }
    write_decimal(value.unsigned_abs(), b' ', 0, out)
}

/// Writes `value` in hexadecimal behind `0x`.
pub fn write_hex(value: u64, out: &mut dyn Write) -> fmt::Result {
    const PREFIX: usize = 2;
    const DIGITS: usize = 16;
    let mut text = [0; PREFIX + DIGITS];
    let mut at = text.len();
    let mut rest = value;
    loop {
        at -= 1;
        text[at] = b"0123456789abcdef"[(rest % 16) as usize];
        rest /= 16;
        if rest == 0 {
            break;
        }
    }
    at -= PREFIX;
    text[at..at + PREFIX].copy_from_slice(b"0x");
    write_ascii(&text[at..], out)
}

fn write_ascii(text: &[u8], out: &mut dyn Write) -> fmt::Result {
    out.write_str(str::from_utf8(text).map_err(|_| fmt::Error)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, string::String};
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
        let mut out = String::new();
        write(&mut out).unwrap();
        out
    }

    proptest! {
        #[test]
        fn numbers_are_written_as_the_formatter_writes_them(value: u64, bits in 0..64u32) {
            for value in [value, value >> bits, 0, u64::MAX] {
                prop_assert_eq!(text(|out| write_decimal(value, b' ', 0, out)), format!("{value}"));
                let wide = text(|out| write_decimal(value, b' ', 5, out));
                prop_assert_eq!(wide, format!("{value:5}"));
                prop_assert_eq!(
                    text(|out| write_decimal(value, b'0', 6, out)),
                    format!("{value:06}")
                );
                let signed = value as i64;
                prop_assert_eq!(text(|out| write_signed(signed, out)), format!("{signed}"));
                prop_assert_eq!(text(|out| write_hex(value, out)), format!("{value:#x}"));
            }
        }
    }
}
