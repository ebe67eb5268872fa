//! Scripts of the tracer: those of [`trace_agent::script`], where they come from in this kernel and
//! where their answers go.
//!
//! | file | content |
//! |---|---|
//! | [`outbox`] | answers through memory that the host reads |
//! | [`symbols_only`] | names for a compiler that runs in the kernel |
//! | [`at_boot`] | a script that the host hands to the machine, and the way of its answers |
//! | [`remote`] | tracers that come to the running kernel |
//! | [`com2`] | the second serial port, where both ways end |

pub mod at_boot;
mod com2;
mod outbox;
pub mod remote;
pub mod symbols_only;

pub use trace_agent::script::{How, Outlet, OwnTasks, Refusal};

use crate::probes::Kernel;

/// A script that runs.
pub type Session = trace_agent::script::Session<Kernel>;
