//! The program's arguments, read in place from the stack on which the kernel laid them out.

use core::{
    ffi::{CStr, c_char},
    str::FromStr,
};

/// An iterator over the arguments, the program's name first.
#[derive(Clone)]
pub struct Args {
    left: &'static [*const c_char],
}

impl Args {
    /// # Safety
    /// 1. `argv` points to `argc` pointers, each to a NUL-terminated string.
    /// 2. All of it stays unchanged for the life of the program.
    pub(crate) unsafe fn new(argc: usize, argv: *const *const c_char) -> Self {
        Self {
            // SAFETY: by (1) and (2).
            left: unsafe { core::slice::from_raw_parts(argv, argc) },
        }
    }

    /// Parses the next argument; `None` if there is none or it does not parse.
    pub fn parse_next<T: FromStr>(&mut self) -> Option<T> {
        self.next_str()?.parse().ok()
    }

    /// Parses the last argument. Returns `default` if there is none, and `None` if it does not
    /// parse or is not the last one.
    pub fn parse_last_or<T: FromStr>(&mut self, default: T) -> Option<T> {
        match self.left {
            [] => Some(default),
            [_] => self.parse_next(),
            _ => None,
        }
    }

    /// Returns the next argument; `None` if there is none or it is not UTF-8.
    pub fn next_str(&mut self) -> Option<&'static str> {
        self.next()?.to_str().ok()
    }
}

impl Iterator for Args {
    type Item = &'static CStr;

    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.left.split_first()?;
        self.left = rest;
        // SAFETY: `Args::new` was promised NUL-terminated strings that never change.
        Some(unsafe { CStr::from_ptr(*first) })
    }
}
