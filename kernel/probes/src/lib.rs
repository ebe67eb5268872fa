//! Kprobes, kretprobes and jprobes for an x86_64 kernel.
//!
//! A probe is a breakpoint that someone else's code can run on. This crate owns everything between the
//! trap and the handler: which addresses carry probes, how the displaced instruction still runs, how a
//! function's return is caught, how text is patched under running processors and when memory that a hit
//! may still use can go. It knows no kernel: a kernel implements [`Platform`], lays a [`PerCpu`] into its
//! per-CPU data, routes its traps to [`Probes`] and expands [`entry_points!`] once.
//!
//! # Principles
//! 1. A hit takes no lock, allocates nothing, formats nothing and never panics.
//! 2. The displaced instruction is translated, not stepped: one trap a hit ([`insn`]).
//! 3. Publish, then arm; disarm, then unpublish; free only after a grace period ([`registry`]).
//! 4. Every refusal is a [`ProbeError`] with a name, an errno and a way out, and has changed nothing.
//!
//! # Where to look
//! [`kprobe`], [`kretprobe`], [`mod@jprobe`]: what users fill in. [`registry`]: registering, arming, removing.
//! [`hit`]: the way of one hit; [`debug_trap`]: single steps; [`historic`]: older ways back from a call. [`site`], [`address_table`], [`slot`], [`counters`]:
//! what a hit finds. [`instance`]: the ledger of borrowed return addresses. [`asm`]: the assembly.
//! [`platform`]: what a kernel provides.
#![no_std]

extern crate alloc;

pub mod asm;
pub mod data;
pub mod error;
pub mod hit;
pub mod insn;
pub mod limits;
pub mod platform;
pub mod pt_regs;
pub mod registry;

#[doc(hidden)]
pub use asm::jprobe_return;
pub use data::{
    instance, jprobe,
    jprobe::{Jprobe, JprobeEntry},
    kprobe,
    kprobe::{FaultVerdict, Kprobe, PreVerdict},
    kretprobe,
    kretprobe::{EntryVerdict, Kretprobe, KretprobeInstance},
    method::{ReturnMethod, StepMethod},
    per_cpu::PerCpu,
    probe::Probe,
};
pub use error::ProbeError;
pub use platform::Platform;
pub use pt_regs::PtRegs;
pub use registry::{Host, Probes, Registered, optimize};
