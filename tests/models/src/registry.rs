//! The part that changes the probes: one file of it.

#[path = "../../../kernel/probes/src/registry/in_flight.rs"]
#[allow(dead_code)]
pub(crate) mod in_flight;
