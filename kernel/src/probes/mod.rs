//! Kprobes, jprobes and kretprobes of this kernel: the crate `probes` with what it asks of a
//! kernel.
//!
//! [`Kernel`] implements [`Platform`](::probes::Platform), and [`PROBES`] is the one registry.
//! Modules use [`register`] or the `register_*` family. Traps, faults, the scheduler and IPIs call
//! `PROBES` directly, or a function of [`hooks`] where this kernel has something to add.
//!
//! | file | content |
//! |---|---|
//! | [`platform`] | what the probes ask of this kernel, and the assembly that they bring |
//! | [`hooks`] | what this kernel asks of the probes, beside the methods of `PROBES` |
//! | [`text_poke`] | stores to kernel text, and the waits for all CPUs |
//! | [`every_cpu`] | work that every CPU does once |
//! | [`preempt_at_breakpoint`] | a turn for waiting tasks where every instruction is probed |
//! | [`linux_api`] | `register_kprobe` and its relatives |
//! | [`blacklist`] | the text that may not be probed |
//! | [`handler_rules`], [`running_handler`] | the end of a handler that breaks the rules |
//! | [`watched_memory`] | the memory that may be watched |
//! | [`self_test`] | a second task and an NMI, for the probes' self-test |
//! | [`debugfs`], [`names`], [`survey`] | files, symbol names, verdicts on all instructions |
//! | [`single_step_trace`] | one call watched instruction by instruction, for `walkthrough` |
//!
//! # A breakpoint
//! The gate of #BP leads to `kprobe_breakpoint`, assembly of the probes that [`platform`] expands.
//! It serves the hit itself if it finds the address in the probes' table. All other breakpoints go
//! on to `do_breakpoint` in `arch/x86_64/traps.rs`. That function asks the probes once more, for
//! the breakpoints that are theirs without being a probe's: for example the one at the end of
//! `jprobe_return`.
//!
//! # Contexts
//! Registration: tasks that may sleep. Each hook says for itself. A grace period ends when each
//! CPU was seen outside slots and handlers once. One look at a CPU is enough, because interrupt
//! handlers of this kernel run with interrupts off throughout, and because no task is switched
//! away while `PROBES.may_preempt` is false.

pub(crate) mod blacklist;
pub mod debugfs;
mod every_cpu;
mod gate_entry;
pub mod handler_rules;
pub mod hooks;
mod linux_api;
mod names;
mod platform;
pub mod preempt_at_breakpoint;
pub mod running_handler;
mod self_test;
pub mod single_step_trace;
pub mod survey;
pub mod text_poke;
pub mod watch_scopes;
mod watched_memory;
pub mod watched_objects;

pub use ::probes::{
    AimError, AimedAt, EntryVerdict, FaultVerdict, Jprobe, JprobeEntry, Kprobe, Kretprobe,
    KretprobeInstance, PreVerdict, ProbeError, PtRegs, Touched, WatchAccess, WatchScope,
    Watchpoint, jprobe, kprobe,
    registry::{Owner, Probe, ReturnMethod, StepMethod},
};
pub use blacklist::HAS_CLONE;
pub use hooks::borrowed_return_address;
pub use linux_api::*;
pub use platform::{ACTION_PAGES, Kernel};

use ::probes::Probes;

use crate::{cmdline, errno::Errno, pr_warn};

/// The probes of this kernel.
pub static PROBES: Probes<Kernel> = Probes::new();

/// A registered probe that its holder owns; dropping it unregisters.
pub type Registered<O> = ::probes::Registered<Kernel, O>;

/// The watchpoints of this kernel.
pub const WATCHPOINTS: ::probes::Watchpoints<'_, Kernel> = ::probes::Watchpoints::of(&PROBES);

/// A registered watchpoint that its holder owns; dropping it unregisters.
pub type RegisteredWatchpoint = ::probes::RegisteredWatchpoint<Kernel>;

/// Makes the probes ready. After heap, symbols and per-CPU data; before the first module.
pub fn init() {
    blacklist::init();
    let step = choose(
        "kprobes.step",
        [
            ("translate", StepMethod::Translate),
            ("tf", StepMethod::TrapFlag),
        ],
    );
    let returns = choose(
        "kprobes.return",
        [
            ("asm", ReturnMethod::Asm),
            ("trap3", ReturnMethod::Trap3),
            ("trap4", ReturnMethod::Trap4),
        ],
    );
    let optimize = choose("kprobes.optimize", [("1", true), ("0", false)]);
    PROBES.init(step, returns, optimize);
}

/// The method that the command line names, or the first one.
fn choose<T: Copy, const N: usize>(parameter: &str, methods: [(&str, T); N]) -> T {
    let (default, method) = methods[0];
    let Some(given) = cmdline::get(parameter) else {
        return method;
    };
    let known = methods.iter().find(|(name, _)| *name == given);
    known.map_or_else(
        || {
            let names = methods.map(|(name, _)| name).join(", ");
            pr_warn!("{parameter}={given} is unknown; {names} are known. Using {default}");
            method
        },
        |(_, method)| *method,
    )
}

/// Registers a probe of any kind that the returned handle owns. Task context, may sleep.
///
/// # Errors
/// [`ProbeError`]; nothing has changed then.
pub fn register<O: Owner>(probe: O) -> Result<Registered<O>, ProbeError> {
    PROBES.register_owned(probe)
}

impl From<ProbeError> for Errno {
    fn from(error: ProbeError) -> Self {
        Errno::from_code(error.errno()).unwrap_or(Errno::EINVAL)
    }
}
