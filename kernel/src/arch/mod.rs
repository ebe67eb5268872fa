//! The machine under the kernel. One architecture: x86_64.

pub mod x86_64;

pub use x86_64::*;
