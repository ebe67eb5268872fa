//! User probes: handlers that run when a program gets to an instruction, or returns from a
//! function.
//!
//! A probe is on an instruction of a file. Every program that runs the file has a breakpoint there,
//! in its own copy of the page: those that run when the probe is registered, and those that start
//! later. The file itself never changes.
//!
//! | file | content |
//! |---|---|
//! | [`probe`] | [`Uprobe`], [`Uretprobe`], and a call that is followed |
//! | `common` | what both kinds of probes have |
//! | `calls` | the calls of a task that are followed |
//! | `target` | from a path and a symbol to the instruction, and whether it may be probed |
//! | [`space`] | what is known of one program in memory: places, slots |
//! | `published` | what hits read without a lock |
//! | [`registry`] | registering, and the breakpoints in all programs |
//! | `aftermath` | what a change leaves to be done when all programs have their breakpoints |
//! | [`hit`] | what happens at a breakpoint |
//! | [`error`] | refusals |
//!
//! # Invariants
//! UPROBES-1. A program has a breakpoint at a place exactly if a probe is registered there that is
//!     not disabled and may fire in that process. All changes are made under one lock, which fork
//!     and the start of a program take as well. An error on the way takes back what was done.
//! UPROBES-2. When a probe was unregistered or disabled, no handler of it runs: handlers run with
//!     interrupts off, and every CPU is asked for an answer.
//! UPROBES-3. A program that finds its reference counter raised is seen at its next call: the word
//!     is raised when every CPU has the breakpoint.
//!
//! # Contexts
//! Registration, fork and exec: tasks that may sleep. A hit waits for no other task.

mod aftermath;
mod calls;
mod common;
pub mod error;
pub mod hit;
pub mod probe;
mod published;
pub mod registry;
pub mod space;
mod target;

pub use error::UprobeError;
pub use hit::{copy_from_program, copy_to_program};
pub use probe::{ProbeRef, Uprobe, Uretprobe, UserCall, UserProbe};
pub use registry::{
    RegisteredUserProbe, disable_uprobe, disable_uretprobe, enable_uprobe, enable_uretprobe,
    register_uprobe, register_uprobes, register_uretprobe, register_uretprobes, unregister_uprobe,
    unregister_uprobes, unregister_uretprobe, unregister_uretprobes,
};
pub use target::{address_in_memory, check_file, function_offset, watchpoint};
