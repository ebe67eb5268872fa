//! How deep a text may be.

use alloc::format;

use crate::{diagnostic::Diagnostic, tree::Span};

/// How deep blocks and expressions may be nested, together. A level takes up to 3.6 KiB of stack
/// here (a parenthesis: `parentheses`, `ternary`, `unary` and `postfix` in an optimised build). So
/// the deepest text takes 120 KiB, which the host has. The kernel's stacks have 32 KiB; there each
/// level is checked ([`crate::parse_with_room`]).
pub const MAX_DEPTH: usize = 32;
/// The stack that a level and what it calls need at most, here and in the compiler, where a level
/// is 4 KiB.
pub const BYTES_OF_LEVEL: usize = 8 << 10;
/// This is deeper than [`MAX_DEPTH`].
pub(crate) fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        format!("this is nested more than {MAX_DEPTH} deep"),
        "keep a part of it in a variable: `$part = …;`",
    )
}

/// The stack here is too small for what comes next.
pub fn no_room(span: Span) -> Diagnostic {
    Diagnostic::new(
        span,
        "this is nested too deep for the stack of the kernel's own prompt",
        "keep a part of it in a variable: `$part = …;`, or use `cargo run -- trace` on the host",
    )
}
