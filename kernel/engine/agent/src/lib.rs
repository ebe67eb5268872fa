//! The agent of the tracer in a kernel: it takes scripts of compiled programs, has probes run
//! them, and sends back what they find. It knows nothing of the kernel but the traits
//! [`Agent`] and [`probes::Platform`].
//!
//! ```text
//!   Script ─► script::Session ─► program: verified, compiled, placed (code), attached to probes
//!                  ▲                                     │
//!                  │ frames of the answers               │ a hit runs the code
//!                  │                                     ▼
//!   link ◄─────────┴── buffer: rings of records ◄── records, helpers, stacks, counters
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`platform`], [`facts`] | what a kernel gives the agent: the trait [`Agent`], and its types |
//! | [`per_cpu`], [`Local`] | what the agent keeps for each CPU; that and the probes' |
//! | [`state`] | the rest, in one static of the kernel: [`Tracing`] |
//! | [`mod@entry_points`] | the functions of the hit path, which a macro puts into the kernel |
//! | [`program`] | a program: verified, compiled, attached to a probe |
//! | [`functions`], [`graph`] | tracers of all functions: their entries, and their calls |
//! | [`code`] | executable memory for programs |
//! | [`buffer`], [`snapshot`] | the rings that records go to, and their readers; exchanging rings |
//! | [`records`] | records, as programs reserve and submit them |
//! | [`helpers`] | what programs call: maps, texts, the running task |
//! | [`nofault`] | reads of memory that may not be there |
//! | [`counters`] | counters that are reached by one instruction |
//! | [`stacks`] | call stacks of hits |
//! | [`script`] | a script: loaded, attached, run, answered |
//! | [`remote`], [`Serial`] | a tracer that comes over a line, and its scripts; a serial port |
//! | [`last_words`] | what the panic handler sends it |
//!
//! # A kernel that has it
//! ```text
//!   trace_agent::kernel! { Kernel, PROBES, TRACING, cs = …, ss = …, gates = [1, 13, 14] }
//!   static LOCAL: Local = Local::new();        // for each CPU
//!   unsafe impl Platform for Kernel { … }      // what the probes ask
//!   unsafe impl Agent for Kernel { … }
//! ```
//! At the start of each CPU it calls [`Local::init`], at each switch of tasks
//! [`Tracing::task_switched`], and in a task of its own [`remote::serve`] with a line, such as
//! [`Serial`]. [`kernel!`] has faults offered to [`Tracing::mend`] first of all. All of it is
//! in `examples/glue.rs`. [`snapshot`] asks for a call in interrupts if the kernel takes snapshots.
//!
//! # A hit
//! A jump or a breakpoint leads to compiled code ([`probes::action`]). It reads registers and
//! memory, counts in maps and writes records to the ring of its CPU. It takes no lock and allocates
//! nothing. A load of memory that is not there is mended by [`Tracing::mend`], before anything that
//! can be probed: it gives zero and is counted.
//!
//! # What a kernel has not
//! Each provided method of [`Agent`] stands for something that a kernel may lack: call stacks, user
//! programs, timer ticks, event sources. A script that needs it is refused, with its name.
//!
//! # Contexts
//! Each function says for itself. What a program calls is on the hit path: any context, with the
//! CPU kept.

#![no_std]

extern crate alloc;

pub mod buffer;
mod clock;
pub mod code;
pub mod counters;
pub mod entry_points;
pub mod facts;
pub mod functions;
pub mod graph;
pub mod helpers;
mod kernel;
pub mod last_words;
mod local;
pub mod nofault;
pub mod per_cpu;
pub mod platform;
pub mod program;
pub mod records;
pub mod remote;
pub mod script;
mod serial;
pub mod snapshot;
pub mod stacks;
pub mod state;
pub mod tasks;

pub use bpf;
#[doc(hidden)]
pub use bpf_compiler;
pub use bpf_compiler::KERNEL_MEMORY_END;
pub use code::CodePage;
pub use fallible::{OutOfMemory, Shared};
pub use local::Local;
pub use per_cpu::PerCpu;
pub use platform::{Agent, Traced};
pub use probes;
pub use serial::Serial;
pub use state::{MarkError, Tracing};
#[doc(hidden)]
pub use trace_maps::call_slowly;
