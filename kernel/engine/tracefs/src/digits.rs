//! Numbers as text, as `write!` prints them, but in fewer instructions, because a line of `trace`
//! has about ten numbers, and `write!` takes some hundred instructions for each.

use core::fmt::{self, Write};

/// A short text of ASCII. Its pieces reach the writer as one, because a call of a writer costs more
/// than several letters. A text that grows beyond `MOST` bytes is not written.
pub(crate) struct Ascii<const MOST: usize> {
    bytes: [u8; MOST],
    /// Its length, with what did not fit.
    len: usize,
}

impl<const MOST: usize> Ascii<MOST> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; MOST],
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether all of it is there.
    pub(crate) const fn is_whole(&self) -> bool {
        self.len <= MOST
    }

    /// The place of the next `len` bytes, if they fit.
    fn grow(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.len;
        self.len += len;
        self.bytes.get_mut(start..self.len)
    }

    pub(crate) fn push(&mut self, text: &[u8]) {
        if let Some(place) = self.grow(text.len()) {
            place.copy_from_slice(text);
        }
    }

    /// Appends blanks up to `len` bytes.
    pub(crate) fn pad_to(&mut self, len: usize) {
        self.fill(b' ', len.saturating_sub(self.len));
    }

    fn fill(&mut self, byte: u8, count: usize) {
        const WORD: usize = 8;
        let room = self.bytes.get_mut(self.len..self.len + WORD);
        match (count, room) {
            (0, _) => {}
            // One store: what comes after the filled bytes is overwritten by the next piece.
            (..=WORD, Some(room)) => {
                room.copy_from_slice(&[byte; WORD]);
                self.len += count;
            }
            _ => {
                if let Some(place) = self.grow(count) {
                    place.fill(byte);
                }
            }
        }
    }

    /// Appends `value` in decimal, with `fill` before it up to `width` letters.
    pub(crate) fn push_decimal(&mut self, value: u64, fill: u8, width: usize) {
        let digits = value.checked_ilog10().unwrap_or(0) as usize + 1;
        self.fill(fill, width.saturating_sub(digits));
        let Some(place) = self.grow(digits) else {
            return;
        };
        let mut rest = value;
        // Two digits at a time, because a division of 64 bits costs more than one of 8.
        for pair in place.rchunks_mut(2) {
            let low = (rest % 100) as u8;
            rest /= 100;
            match pair {
                [tens, ones] => {
                    *tens = b'0' + low / 10;
                    *ones = b'0' + low % 10;
                }
                ones => ones.fill(b'0' + low),
            }
        }
    }

    /// Appends `value` in decimal, with its sign.
    pub(crate) fn push_signed(&mut self, value: i64) {
        if value < 0 {
            self.push(b"-");
        }
        self.push_decimal(value.unsigned_abs(), b' ', 0);
    }

    /// Appends `value` in hexadecimal after `0x`.
    pub(crate) fn push_hex(&mut self, value: u64) {
        self.push(b"0x");
        let digits = value.checked_ilog2().unwrap_or(0) as usize / 4 + 1;
        let Some(place) = self.grow(digits) else {
            return;
        };
        let mut rest = value;
        for digit in place.iter_mut().rev() {
            *digit = b"0123456789abcdef"[(rest % 16) as usize];
            rest /= 16;
        }
    }

    pub(crate) fn write_to(&self, out: &mut dyn Write) -> fmt::Result {
        let text = self.bytes.get(..self.len).ok_or(fmt::Error)?;
        out.write_str(str::from_utf8(text).map_err(|_| fmt::Error)?)
    }
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
                let mut pieces = Ascii::<64>::new();
                pieces.push_decimal(value, b' ', 5);
                pieces.push(b"|");
                pieces.push_decimal(value, b'0', 6);
                pieces.pad_to(50);
                pieces.pad_to(3);
                let expected = format!("{:50}", format!("{value:5}|{value:06}"));
                prop_assert_eq!(text(|out| pieces.write_to(out)), expected);
                let mut pieces = Ascii::<64>::new();
                pieces.push_signed(value as i64);
                pieces.push(b" ");
                pieces.push_hex(value);
                let expected = format!("{} {value:#x}", value as i64);
                prop_assert_eq!(text(|out| pieces.write_to(out)), expected);
            }
        }
    }

    #[test]
    fn a_text_that_does_not_fit_is_not_written() {
        let mut full = Ascii::<4>::new();
        full.push_hex(0xff);
        assert_eq!(text(|out| full.write_to(out)), "0xff");
        assert!(full.is_whole());
        full.push_decimal(0, b' ', 0);
        assert_eq!(full.write_to(&mut String::new()), Err(fmt::Error));
        assert!(!full.is_whole());
        full.push(b"");
        assert_eq!(full.write_to(&mut String::new()), Err(fmt::Error));
    }
}
