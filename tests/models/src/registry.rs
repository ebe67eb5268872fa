//! The part that changes the probes: two files of it.

#[path = "../../../kernel/probes/src/registry/in_flight.rs"]
#[allow(dead_code)]
pub(crate) mod in_flight;
#[path = "../../../kernel/probes/src/registry/list.rs"]
#[allow(dead_code)]
pub(crate) mod list;
