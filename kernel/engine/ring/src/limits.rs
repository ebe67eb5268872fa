//! The one size that the tests and the models change.

/// Bytes of a data page. A power of two. Small in the unit tests, which fill many pages;
/// `tests/` has the size of the kernel.
pub const PAGE_BYTES: usize = if cfg!(test) { 256 } else { 4096 };
