//! What comes in the middle of a hit: interrupts, NMIs, faults, nested hits, a debugger's steps.
//!
//! Such an event may come between any two instructions of a hit. It finds the machine as it would
//! without probes, and leaves the hit as it found it.

pub mod between_instructions;
mod between_user_instructions;
mod between_watchpoint_instructions;
mod debugger;
pub mod disturbed_hits;
mod interrupts_and_nmis;
