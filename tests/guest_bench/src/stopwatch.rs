//! Ticks and traps of a number of calls, with nothing in between.
//!
//! Two counts of calls are timed and subtracted, so the cost of the timing itself cancels out.
//! Interrupts are off meanwhile. Registration needs them on; there the CPU's priority is raised, so
//! that none comes.

use core::sync::atomic::Ordering::Relaxed;

use kernel::{arch::percpu, time::read_tsc};
use x86_64::{
    instructions::interrupts::without_interrupts,
    registers::control::{Cr8, PriorityClass},
};

use crate::{params, targets::Target};

/// The cost of a number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    pub ticks: u64,
    /// #BP and #DB exceptions.
    pub traps: u64,
}

/// How often a measurement is made where ticks are not instructions; odd, for the median.
const INEXACT_ROUNDS: usize = 31;

/// The cost of `count` calls of `target`. To measure it, `target` is called
/// [`calls_of`]`(count)` times.
pub fn calls(target: Target, count: u64) -> Taken {
    measure(target, count, 0)
}

/// The same where each call leaves a record in a ring. Now and then a record begins a page, which
/// takes longer, so two measurements may differ by a fraction of an instruction a call.
pub fn recorded_calls(target: Target, count: u64) -> Taken {
    measure(target, count, count)
}

/// Ticks of two equal measurements may be `may_differ` apart.
fn measure(target: Target, count: u64, may_differ: u64) -> Taken {
    let difference = || {
        without_interrupts(|| {
            let few = once(target, 1);
            let many = once(target, 1 + count);
            Taken {
                // Where ticks are time, a disturbed single call may take longer than many.
                ticks: many.ticks.saturating_sub(few.ticks),
                traps: many.traps - few.traps,
            }
        })
    };
    if params().exact {
        let (first, second) = (difference(), difference());
        let apart = first.ticks.abs_diff(second.ticks);
        assert!(
            apart <= may_differ && first.traps == second.traps,
            "two equal measurements differ: {first:?} and {second:?}"
        );
        first
    } else {
        let mut all = [(); INEXACT_ROUNDS].map(|()| difference());
        all.sort_unstable();
        all[INEXACT_ROUNDS / 2]
    }
}

/// How often [`calls`] calls its target to measure `count` calls.
pub fn calls_of(count: u64) -> u64 {
    let rounds = if params().exact { 2 } else { INEXACT_ROUNDS };
    rounds as u64 * (count + 2)
}

fn once(target: Target, count: u64) -> Taken {
    let before = traps();
    let ticks = target.call(count);
    Taken {
        ticks,
        traps: traps() - before,
    }
}

/// The #BP and #DB exceptions of this CPU so far.
fn traps() -> u64 {
    let probes = &percpu::this().probes;
    probes.breakpoints.load(Relaxed) + probes.debug_traps.load(Relaxed)
}

/// The ticks that `work` takes. It may sleep only for a lock, because no interrupt comes meanwhile.
pub fn ticks_of(work: impl FnOnce()) -> u64 {
    let before = Cr8::read();
    Cr8::write(PriorityClass::new(15));
    let start = read_tsc();
    work();
    let end = read_tsc();
    Cr8::write(before);
    end - start
}
