#![doc = include_str!("../README.md")]
//! Memory that may be refused: making a box, a vector or a text is an error then, where the
//! collections of `alloc` would end the kernel.
//!
//! [`OutOfMemory`] says nothing more, because whoever asked knows what it was for. Each error of a
//! part converts from it.
//!
//! # Contexts
//! Those of the allocator: tasks.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

mod shared;

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{fmt, ops::Deref};

pub use shared::Shared;

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// A box.
///
/// # Errors
/// [`OutOfMemory`].
#[expect(
    unsafe_code,
    reason = "a box of one element becomes a box of that element"
)]
pub fn try_box<T>(value: T) -> Result<Box<T>, OutOfMemory> {
    let mut one = try_vec(1)?;
    one.push(value);
    // No bytes are to spare, so this needs no memory. The length is right.
    let one: Box<[T; 1]> = one.into_boxed_slice().try_into().map_err(|_| OutOfMemory)?;
    // SAFETY: an array of one element is laid out as the element.
    Ok(unsafe { Box::from_raw(Box::into_raw(one).cast()) })
}

/// An empty vector with room for `count` elements.
///
/// # Errors
/// [`OutOfMemory`].
pub fn try_vec<T>(count: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
    Ok(vec)
}

/// Appends `item`.
///
/// # Errors
/// [`OutOfMemory`]; then it is as it was.
pub fn push<T>(items: &mut Vec<T>, item: T) -> Result<(), OutOfMemory> {
    items.try_reserve(1).map_err(|_| OutOfMemory)?;
    items.push(item);
    Ok(())
}

/// The items, as many as their iterator has promised at most.
///
/// # Errors
/// [`OutOfMemory`].
pub fn collected<T>(items: impl Iterator<Item = T>) -> Result<Vec<T>, OutOfMemory> {
    let (least, most) = items.size_hint();
    let mut all = try_vec(most.unwrap_or(least))?;
    for item in items {
        push(&mut all, item)?;
    }
    Ok(all)
}

/// A copy of `text`.
///
/// # Errors
/// [`OutOfMemory`].
pub fn copied(text: &str) -> Result<String, OutOfMemory> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())
        .map_err(|_| OutOfMemory)?;
    copy.push_str(text);
    Ok(copy)
}

/// The text of `value`.
///
/// # Errors
/// [`OutOfMemory`].
pub fn written(value: &dyn fmt::Display) -> Result<String, OutOfMemory> {
    let mut text = Text::new();
    fmt::write(&mut text, format_args!("{value}")).map_err(|_| OutOfMemory)?;
    Ok(text.into_string())
}

/// Text that grows while there is memory: an error of writing to it says that there is none.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// No text, and no memory taken.
    pub const fn new() -> Self {
        Self(String::new())
    }

    /// Drops the text, and keeps its memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The text.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Write for Text {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The same condition as in `push_str`, which is asked once then.
        if text.len() > self.0.capacity() - self.0.len() {
            self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fmt::Write;

    #[test]
    fn what_fits_is_there() {
        assert_eq!(try_box([7; 3]).as_deref(), Ok(&[7; 3]));
        assert_eq!(try_vec::<u64>(5).map(|vec| vec.capacity() >= 5), Ok(true));
        assert_eq!(collected(1..4).as_deref(), Ok(&[1, 2, 3][..]));
        assert_eq!(copied("text").as_deref(), Ok("text"));
        assert_eq!(written(&12.5).as_deref(), Ok("12.5"));
        let mut text = Text::new();
        write!(text, "{}-{}", 1, 2).unwrap();
        assert_eq!(&*text, "1-2");
    }

    #[test]
    fn what_no_memory_could_hold_is_an_error() {
        assert_eq!(try_vec::<u64>(usize::MAX), Err(OutOfMemory));
        assert_eq!(collected(0..usize::MAX), Err(OutOfMemory));
    }
}
