//! The harness behind `cargo test`: runs the guest tests, several in one boot, each under its own
//! name.
//!
//! ```text
//!   catalogue    the tests, read from the test kernel's ELF: listing them needs no boot
//!   boots        boots the kernel as often as needed for a verdict on each test of a group
//!   processors   shares the machine's processors among guests
//!   transcript   follows one boot's serial line: which test runs, its output, how it ended
//!   trials       lists the tests and their verdicts, as an ordinary test binary does
//!   built        kernels, built once
//!   session      types at the kernel's prompt and reads its answers
//!   tracer       runs the command `trace` and reads its answers
//!   traced       a kernel to which that command comes over a line
//!   document     reads documents, and compares or writes what they show
//!   modules      reads which modules of a crate name which
//! ```
//!
//! [`mod@bench`] is the benchmark, `cargo bench`. The suites themselves are `suite.rs` (QEMU),
//! `second_suite.rs` (the second kernel in QEMU) and `bochs.rs`. `test_protocol` has the guest's
//! side.

#![forbid(unsafe_code)]

pub mod bench;
pub mod boots;
pub mod built;
pub mod catalogue;
pub mod document;
pub mod modules;
pub mod processors;
pub mod session;
pub mod traced;
pub mod tracer;
pub mod transcript;
pub mod trials;

pub use boots::{record, run};
pub use catalogue::{Catalogue, GuestTest};
pub use document::Document;
pub use session::Session;
pub use traced::{Traced, free_path};
pub use transcript::{Over, Verdict};
