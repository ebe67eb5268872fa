//! The kernel's symbols.

use alloc::{format, string::String};

use crate::glue::covering;
pub use crate::glue::lookup;

/// `symbol+0x4`, for messages.
pub fn describe(addr: u64) -> String {
    match covering(addr) {
        Some((name, start)) => format!("{name}+{:#x}", addr - start),
        None => format!("{addr:#x}"),
    }
}
