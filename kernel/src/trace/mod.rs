//! Tracing: programs that probes run, and the files that show what they found.
//!
//! The programs, their maps and rings are those of the crate [`trace_agent`]. Here are what this
//! kernel gives it, and what is this kernel's alone: events and their files.
//!
//! | file | content |
//! |---|---|
//! | [`agent`] | what the kernel gives the agent, and the agent itself: [`TRACING`] |
//! | [`program`] | programs of this kernel |
//! | [`names`] | names of functions that fit into a line |
//! | [`event`], [`events`] | one event; all of them, and the commands that define them |
//! | [`sources`] | events of the kernel's own |
//! | [`tracers`] | the tracers of all functions: their entries, and their calls |
//! | [`files`], [`output`] | the files below `/sys/kernel/tracing`; lines of `trace` |
//! | [`follow`] | children of tasks in a set are in it, too |
//! | [`sleep`] | durations of calls without the time in which their task is switched out |
//! | [`stacks`] | call stacks as text |
//! | [`touched`] | the functions that tracing has been on |
//! | [`triggers`] | acts of one event on recording as a whole, or on another event |
//! | [`dump`], [`dump_requests`] | records that go to the console; who asks for that |
//! | [`script`] | scripts of the tracer: where they come from and where their answers go |
//! | [`shared`] | values with several holders, whose memory may be refused |
//!
//! # Contexts
//! [`mend`]: on the hit path, interrupts off. All else says for itself.

pub mod agent;
pub mod dump;
pub mod dump_requests;
pub mod event;
pub mod events;
pub mod files;
pub mod follow;
pub mod names;
pub mod output;
pub mod program;
pub mod script;
pub mod sleep;
pub mod sources;
pub mod stacks;
pub mod tasks;
pub mod touched;
pub mod tracers;
pub mod triggers;
mod user;

pub use agent::TRACING;
pub use trace_agent::{MarkError, bpf, buffer};

pub use crate::mm::shared;

use crate::arch::PtRegs;

/// Mends a fault of an action: of a load in its code, or of a copy in a helper. False: it is
/// another fault. Interrupts off.
#[inline(always)]
pub fn mend(regs: &mut PtRegs) -> bool {
    TRACING.mend(regs)
}

/// Takes a snapshot on all CPUs that have a second ring. Any context, on the hit path.
#[inline(always)]
pub fn take_snapshot() {
    trace_agent::snapshot::take::<crate::probes::Kernel>();
}

/// An interrupt has left `regs`, and is about to be served: a snapshot that waits is completed.
#[inline(always)]
pub fn on_interrupt(regs: &PtRegs) {
    trace_agent::snapshot::on_interrupt::<crate::probes::Kernel>(regs);
}

/// The same: this CPU has nothing to do. Interrupts off.
#[inline(always)]
pub fn on_rest() {
    trace_agent::snapshot::on_rest::<crate::probes::Kernel>();
}
