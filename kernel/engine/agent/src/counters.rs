//! Counters of programs in the data of the CPUs: each is counted by one instruction through GS, so
//! a hit that only counts needs no register.
//!
//! There are [`COUNTERS`]. A map of one counter takes one while there are any; the others take
//! memory of the heap. So do all in a kernel whose CPUs have their data at irregular distances.
//!
//! # Contexts
//! Any; the set of those in use is atomic.

use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use trace_maps::{Array, Lent};

use crate::{Agent, PerCpu, per_cpu::COUNTERS};

const WORDS: usize = COUNTERS.div_ceil(64);

/// Which counters are in use.
pub struct Counters {
    /// A bit for each: somebody has it.
    taken: [AtomicU64; WORDS],
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self {
            taken: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// The lowest that is free.
    fn take(&self) -> Option<usize> {
        self.taken.iter().enumerate().find_map(|(at, word)| {
            let lowest_free = |taken: u64| (taken != u64::MAX).then_some(taken | (taken + 1));
            // Acquire: whoever gave it back does not count there any more.
            let before = word.fetch_update(AcqRel, Acquire, lowest_free).ok()?;
            Some(at * 64 + before.trailing_ones() as usize)
        })
    }

    fn give_back(&self, number: usize) {
        self.taken[number / 64].fetch_and(!(1 << (number % 64)), Release);
    }
}

/// The distance in words from the data of a CPU to that of the next one. None: it is not the same
/// everywhere.
fn distance<A: Agent>() -> Option<usize> {
    let address =
        |cpu| A::cpu_tracing(cpu).map(|data| core::ptr::from_ref(data).expose_provenance());
    let first = address(0)?;
    let distance = match address(1) {
        Some(second) if A::possible_cpus() > 1 => second.checked_sub(first)?,
        _ => size_of::<PerCpu>(),
    };
    let is_regular =
        (1..A::possible_cpus()).all(|cpu| address(cpu) == Some(first + cpu * distance));
    let words = distance / size_of::<AtomicU64>();
    (is_regular && distance % size_of::<AtomicU64>() == 0).then_some(words)
}

/// A map of one counter, 0 on all CPUs. None: all are in use, or they cannot be used.
pub fn take<A: Agent>() -> Option<Array> {
    let part = distance::<A>()?;
    let first = A::cpu_tracing(0)?;
    let number = A::tracing().counters.take()?;
    for cpu in 0..A::possible_cpus() {
        if let Some(data) = A::cpu_tracing(cpu) {
            data.counter(number).store(0, Relaxed);
        }
    }
    let start = core::ptr::from_ref(first.counter(number)).addr();
    let lent = Lent {
        // The counters of the other CPUs are reached from here, too, and `distance` has exposed
        // the data of all.
        start: NonNull::new(core::ptr::with_exposed_provenance_mut(start))?,
        part,
        give_back: give_back::<A>,
    };
    // SAFETY: the counters of all CPUs are there, at that distance, and the bit is ours until
    // `give_back`.
    Some(unsafe { Array::lent_counter(lent, A::possible_cpus()) })
}

fn give_back<A: Agent>(start: NonNull<AtomicU64>) {
    let from_data = offset::<A>(start.addr().get() as u64) - A::GS_OFFSET as usize;
    let number = (from_data - PerCpu::COUNTERS_OFFSET) / size_of::<AtomicU64>();
    A::tracing().counters.give_back(number);
}

/// How far a counter of CPU 0 is from the GS base.
pub fn offset<A: Agent>(start: u64) -> usize {
    let first = A::cpu_tracing(0).map_or(0, |data| core::ptr::from_ref(data).addr());
    start as usize - first + A::GS_OFFSET as usize
}

/// The counter of CPU number `cpu` whose word of CPU 0 is at `start`. Any context.
#[inline(always)]
pub(crate) fn on_cpu<A: Agent>(start: u64, cpu: usize) -> u64 {
    let address = |cpu| A::cpu_tracing(cpu).map_or(0, |data| core::ptr::from_ref(data).addr());
    start
        .wrapping_sub(address(0) as u64)
        .wrapping_add(address(cpu) as u64)
}
