//! Memory that may be refused: if there is none for a written line, that is an error, where the
//! collections of `alloc` would end the kernel.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{fmt, ops::Deref};

use crate::refusal::{Reason, Refusal};

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl From<OutOfMemory> for Reason {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<OutOfMemory> for (Reason, usize) {
    fn from(_: OutOfMemory) -> Self {
        (Reason::OutOfMemory, 0)
    }
}

impl From<OutOfMemory> for Refusal {
    fn from(_: OutOfMemory) -> Self {
        Self::line(Reason::OutOfMemory)
    }
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
    Ok(text.0)
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
        // The same condition as in `push_str`, which is checked once then.
        if text.len() > self.0.capacity() - self.0.len() {
            self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        }
        self.0.push_str(text);
        Ok(())
    }
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
    let mut all = Vec::new();
    let (least, most) = items.size_hint();
    all.try_reserve_exact(most.unwrap_or(least))
        .map_err(|_| OutOfMemory)?;
    for item in items {
        push(&mut all, item)?;
    }
    Ok(all)
}

/// A value in memory of its own, as in a [`Box`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boxed<T>(Box<[T; 1]>);

impl<T> Boxed<T> {
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(value: T) -> Result<Self, OutOfMemory> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).map_err(|_| OutOfMemory)?;
        one.push(value);
        // No bytes are to spare, so this needs no memory. The length is right.
        let one = one.into_boxed_slice().try_into();
        one.map(Self).map_err(|_| OutOfMemory)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        let [value] = *self.0;
        value
    }
}

impl<T> Deref for Boxed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0[0]
    }
}
