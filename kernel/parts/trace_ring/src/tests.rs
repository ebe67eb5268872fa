//! Tests on one thread. The models of several CPUs are in `tests/models`.

pub(super) mod interrupt;
mod nesting;
mod world;
