//! What several tests use: handlers, targets, NMIs, single steps, the knob for jumps.
//!
//! No test belongs here. What only one folder's tests use stays with them.

pub mod handlers;
pub mod jumps;
pub mod nmi;
pub mod numbered_targets;
pub mod own_code;
pub mod preserved_registers;
pub mod register_state;
pub mod stepping;
pub mod user_stepping;
