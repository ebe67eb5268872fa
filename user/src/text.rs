//! Text put together without a heap.

#![forbid(unsafe_code)]

use core::{ffi::CStr, fmt};

/// A NUL-terminated string of up to `N - 1` bytes, for paths and arguments. A `write!` of more text
/// returns an error.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// Formats a new text; panics if it does not fit.
    pub fn format(args: fmt::Arguments<'_>) -> Self {
        let mut text = Self::new();
        fmt::write(&mut text, args).expect("text longer than its buffer");
        text
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written")
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.len + s.len();
        if end >= N {
            return Err(fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}
