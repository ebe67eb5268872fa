//! What an execution leaves out, so that a model fails which notices it.

use std::cell::Cell;

/// A part of the code that can be left out, to see a model fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// Stores order nothing before them.
    Release,
    /// Loads order nothing that follows them.
    Acquire,
    /// Fences do nothing.
    Fence,
    /// A comparing exchange is a load and a store.
    Exchange,
    /// No task waits for hits that are under way.
    Grace,
    /// A pop does not raise the tag of a free list.
    Tag,
    /// A pop reads the head before the tag.
    HeadBeforeTag,
    /// The breakpoint is in the text before the site is in the table.
    ArmFirst,
    /// An interrupt that finds its CPU in a hit says that it found it elsewhere.
    AlwaysQuiescent,
}

thread_local! {
    static WEAKNESS: Cell<Option<Weakness>> = const { Cell::new(None) };
}

/// The executions from now on leave this out, or nothing.
pub(crate) fn set(weakness: Option<Weakness>) {
    WEAKNESS.set(weakness);
}

/// Whether this execution leaves `weakness` out.
pub(crate) fn is_weak(weakness: Weakness) -> bool {
    WEAKNESS.get() == Some(weakness)
}
