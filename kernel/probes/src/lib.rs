#![doc = include_str!("../README.md")]
//!
//! # The part that it owns
//! This crate owns everything between the trap and the handler: the table of probed addresses, the
//! execution of the displaced instruction, the way back of a probed call, the patching of text
//! under running processors, and the waiting before memory is freed that a hit may still use. It
//! knows no kernel. A kernel implements [`Platform`], lays a [`PerCpu`] into its per-CPU data and
//! expands [`kernel!`] once, which routes its traps to [`Probes`]: see [`your_kernel`].
//!
//! # Principles
//! 1. A hit takes no lock, allocates nothing, formats nothing and never panics.
//! 2. The displaced instruction is translated, not stepped, so a hit costs one trap ([`insn`]).
//! 3. Publish, then arm. Disarm, then unpublish. Free only after a grace period ([`registry`]).
//! 4. Every refusal is a [`ProbeError`] with a name, an errno and a way out. Nothing changes then.
//! 5. Each step exists once in plain Rust, for any probe. Assembly and jumps repeat some steps for
//!    speed, and fall back to the Rust in rare cases ([`hit`] has the table).
//!
//! # Layers
//! ```text
//!   self_test  what a kernel runs once, to see that it gives the probes what they need
//!   asm/       the code that a kernel expands: stubs, handlers, trampolines, templates of detours
//!   registry/  the write side: task context, one lock, may allocate
//!   hit/       the read side: any context, no lock, no allocation, no decoder
//!   platform   the trait that a kernel implements; beside it code, stacks and task_lock, for its
//!              bodies
//!   data/      the structures that a hit reads and the registry writes
//!   insn/      instructions: decoding, refusing, translating; pure
//! ```
//! A file names only files of its own layer and of those below.
//!
//! # Glossary
//! | word | meaning |
//! |---|---|
//! | site | a probed address and all probes on it |
//! | hit | one execution of a probed instruction, from the trap to its end |
//! | trap ip | the probed address + 1: the processor reports it, the table's key |
//! | displaced instruction | the probed one: it runs elsewhere, as a breakpoint replaced it |
//! | slot | the executable memory where a displaced instruction runs |
//! | post slot | a slot that ends in a stub, for sites with a post handler |
//! | detour | code made for one site, to which a jump leads in place of a trap |
//! | block | the displaced instructions at the end of a detour |
//! | template | the code that a detour begins with a copy of |
//! | arm | to put the breakpoint into the text |
//! | optimise | to turn an armed breakpoint into a jump |
//! | text poke | a store to text, with all processors synchronised after it |
//! | frame | a [`PtRegs`] on the stack: the registers of the probed code |
//! | stub | assembly that takes a breakpoint hit; chosen for each list of probes |
//! | serve | to do all that a hit asks for: its probes, and the displaced instruction |
//! | handler routine | assembly that does the work of one probe: `kprobe_handle_…` and the like |
//! | chain | the routine for a probe and all older ones of its site |
//! | action | machine code that a probe carries in place of a handler |
//! | slow path | the Rust that a stub calls in a rare case |
//! | guard | the per-CPU mark that handlers run; hits meanwhile are misses |
//! | miss | a hit that runs no handler, because its CPU held the guard |
//! | grace period | the time until each CPU was seen outside hits, slots and detours |
//! | trampoline | the code that a return-probed call returns to |
//! | return slot | the word of the stack that holds a call's return address |
//! | instance | the record of one borrowed return address |
//! | instance list | the instances of a task, newest first; its cell holds the head |
//! | sibling | an instance of the same call, for another kretprobe |
//! | sentinel | a static that ends a list or a search, so that no test for null is needed |
//! | preempt | to switch tasks when an interrupt returns |
#![no_std]
#![cfg_attr(
    not(all(
        feature = "actions",
        feature = "historic",
        feature = "jprobes",
        feature = "jumps",
        feature = "watchpoints"
    )),
    allow(
        dead_code,
        unused_imports,
        reason = "the helpers of what is left out; the linker drops them"
    )
)]

extern crate alloc;

pub mod asm;
pub mod code;
mod data;
pub mod error;
pub mod every_cpu;
pub mod gates;
pub mod hit;
pub mod insn;
mod limits;
pub mod platform;
pub mod pt_regs;
pub mod registry;
pub mod self_test;
mod stacks;
mod task_lock;
#[doc = include_str!("../docs/your-kernel.md")]
pub mod your_kernel {}

#[cfg(feature = "jprobes")]
#[doc(hidden)]
pub use asm::jprobe_return;
pub use code::Code;
#[doc(hidden)]
pub use data::instance;
#[cfg(feature = "actions")]
pub use data::{
    action,
    action::{Action, CallAction},
};
#[cfg(feature = "jprobes")]
pub use data::{
    jprobe,
    jprobe::{Jprobe, JprobeEntry},
};
pub use data::{
    kprobe,
    kprobe::{FaultVerdict, Kprobe, PreVerdict},
    kretprobe,
    kretprobe::{EntryVerdict, Kretprobe, KretprobeInstance},
    method::{ReturnMethod, StepMethod},
    per_cpu::PerCpu,
    probe::Probe,
};
#[cfg(feature = "watchpoints")]
pub use data::{
    watchpoint,
    watchpoint::{AimedAt, MOST_WATCHPOINTS, Touched, WatchAccess, WatchScope, Watchpoint},
};
pub use error::{AimError, ProbeError};
pub use platform::Platform;
pub use pt_regs::PtRegs;
#[cfg(feature = "jumps")]
pub use registry::optimize;
pub use registry::{Host, Probes, Registered, start};
#[cfg(feature = "watchpoints")]
pub use registry::{RegisteredWatchpoint, Watchpoints};
pub use self_test::{SelfTest, self_test};
pub use stacks::Stacks;
pub use task_lock::TaskLock;
