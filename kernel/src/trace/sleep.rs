//! The option `sleep-time`: whether the durations of calls have the time in which their task was
//! switched out.
//!
//! ```text
//!   entry ──────── out ~ ~ ~ ~ ~ ~ in ──────── return
//!     └─────────────────────────────┴─► the time of the entry is moved by that much
//! ```
//!
//! Without it, each switch moves the calls of the task that comes back: the time of the entry,
//! which the tracer of calls and the profile keep in a word of the call. So hits do no more than
//! with it.
//!
//! # Invariants
//! SLEEP-1. The time of an absence is taken off once, and only if the option was off at both of its
//!     ends. A task that is out has one noted beginning, which the switch that ends it takes.
//!
//! # Contexts
//! [`leave_and_come`], [`move_entries`]: the switch of tasks, interrupts off. The rest: tasks,
//! under the lock of the tracers.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ::probes::CallAction;
use trace_agent::graph::TIME_WORD;

use crate::{
    arch::percpu,
    probes::Kernel,
    time::{NSEC_PER_SEC, read_tsc, tsc_hz, tsc_to_ns},
};

/// Durations are without it.
static IS_LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// The routines at the return of those calls whose word [`TIME_WORD`] has the time of the entry,
/// by [`Timed`]. 0: none.
static RETURNS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Who times calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    Graph,
    Profile,
}

/// Tells the routine at the return of the calls that are timed. None: there are no such calls.
pub fn set_routine(of: Timed, routine: Option<u64>) {
    RETURNS[of as usize].store(routine.unwrap_or(0), Relaxed);
}

/// Whether durations have the time in which their task was switched out.
pub fn counts() -> bool {
    !IS_LEFT_OUT.load(Relaxed)
}

/// Sets that. It counts for absences that begin from now on.
pub fn set_counts(counts: bool) {
    IS_LEFT_OUT.store(!counts, Relaxed);
}

/// A task leaves this CPU, and another one comes. Each has a word for the time at which it has
/// left. Returns by how many ticks of the time stamp counter the calls of the one that comes are to
/// be moved.
#[inline(always)]
pub fn leave_and_come(leaves: &AtomicU64, comes: &AtomicU64) -> u64 {
    let now_ns = match IS_LEFT_OUT.load(Relaxed) {
        true => tsc_to_ns(percpu::cpu_id(), read_tsc()),
        false => 0,
    };
    leaves.store(now_ns, Relaxed);
    match comes.load(Relaxed) {
        0 => 0,
        since_ns => {
            comes.store(0, Relaxed);
            ticks(now_ns.saturating_sub(since_ns))
        }
    }
}

fn ticks(ns: u64) -> u64 {
    let ticks = u128::from(ns) * u128::from(tsc_hz()) / u128::from(NSEC_PER_SEC);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Moves the entries of the current task's calls that are timed. Inlined, because a return probe on
/// it would be entered in one task's name and left in another's.
///
/// # Safety
/// Interrupts are off, and the probes know the task that comes.
#[inline(always)]
pub unsafe fn move_entries(ticks: u64) {
    let [graph, profile] = &RETURNS;
    let (graph, profile) = (graph.load(Relaxed), profile.load(Relaxed));
    // SAFETY: interrupts are off. The words of such calls are at least two, or one.
    unsafe {
        CallAction::each_call::<Kernel>(|routine, words| {
            if routine == graph || routine == profile {
                *words.add(TIME_WORD) = (*words.add(TIME_WORD)).wrapping_add(ticks);
            }
        });
    }
}
