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
//! between two tests.
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
pub const SECTION: &str = ".guest_tests";

/// The kernel command line's argument that selects tests by their index in the section: see
/// [`parse_selection`].
pub const PARAMETER: &str = "guest_tests.run";
