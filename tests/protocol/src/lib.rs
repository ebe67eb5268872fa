//! The protocol between the test harness on the host and the test runner in the guest.
//!
//! ```text
//!   host                                              guest
//!   reads the descriptors in SECTION of the ELF  ◄──  guest_test! put them there
//!   boots with PARAMETER=selection               ──►  runs these tests, in this order
//!   reads the markers in the serial log          ◄──  prints one before and one after each test
//!   reads the exit status                        ◄──  success after the last test, failure in a
//!   panic
//! ```
//!
//! A test has passed if the guest was still well at the beginning of the next test, or at its own
//! successful end. So any failure of the guest belongs to exactly one test, also one that happens
//! between two tests. The guest ends a test itself when its time is over: it panics, and says so
//! ([`TIME_IS_OVER`]). Only a guest whose CPUs let no interrupt in has to be ended by the host.
//!
//! The benchmark is a module; it prints its results as [`Measurement`]s.
#![no_std]

mod descriptor;
mod marker;
mod measurement;
mod selection;

pub use descriptor::{Descriptor, Text};
pub use marker::Marker;
pub use measurement::{Measurement, Quantity, Skipped};
pub use selection::{Ranges, parse_selection};

/// The ELF section of the descriptors: an array of [`Descriptor`] without gaps.
pub const SECTION: &str = "guest_tests";

/// The end of the guest's last message about a test that took longer than its time limit. The
/// test's full name comes before it.
pub const TIME_IS_OVER: &str = "its time is over";

/// The kernel command line's argument that selects tests by their index in the section: see
/// [`parse_selection`].
pub const PARAMETER: &str = "guest_tests.run";

/// Returns the name of a test, under which it is listed: the path of its function without the crate
/// and the folder of its file. So a file may move to another folder.
pub fn name(path: &str) -> Option<&str> {
    path.splitn(3, "::").nth(2)
}
