//! The guest's side of the harness: the list of all tests, the runner, and the tests of both.
//!
//! `tests/src` has the host's side, and `tests/protocol` what they say to each other.

pub mod registry;
pub mod runner;
mod self_test;
pub mod waiting;
