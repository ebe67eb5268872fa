//! Tests on one thread. The models of several CPUs are in `tests/models`.

mod images;
pub(super) mod interrupt;
mod merging;
mod nesting;
mod pages;
mod queue;
mod spare;
mod world;
