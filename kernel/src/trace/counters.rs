//! Counters of programs in the data of the CPUs: each is counted by one instruction through GS, so
//! a hit that only counts needs no register.
//!
//! There are [`percpu::COUNTERS`]. A map of one counter takes one while there are any; the others
//! take memory of the heap.
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

use crate::arch::{percpu, smp};

const WORDS: usize = percpu::COUNTERS.div_ceil(64);

/// A bit for each: somebody has it.
static TAKEN: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// A map of one counter, 0 on all CPUs. None: all are in use.
pub fn take() -> Option<Array> {
    let number = TAKEN.iter().enumerate().find_map(|(at, word)| {
        let lowest_free = |taken: u64| (taken != u64::MAX).then_some(taken | (taken + 1));
        // Acquire: whoever gave it back does not count there any more.
        let before = word.fetch_update(AcqRel, Acquire, lowest_free).ok()?;
        Some(at * 64 + before.trailing_ones() as usize)
    })?;
    let (start, _) = percpu::counter(number);
    let part = size_of::<percpu::PerCpu>() / size_of::<AtomicU64>();
    for cpu in 0..smp::possible_cpus() {
        // SAFETY: this counter, of another CPU.
        unsafe { start.add(cpu * part).as_ref() }.store(0, Relaxed);
    }
    let lent = Lent {
        start,
        part,
        give_back,
    };
    // SAFETY: the counters of all CPUs are there, and the bit is ours until `give_back`.
    Some(unsafe { Array::lent_counter(lent, smp::possible_cpus()) })
}

fn give_back(start: NonNull<AtomicU64>) {
    let number = offset(start.addr().get() as u64) / size_of::<AtomicU64>();
    let first = percpu::counter(0).1 / size_of::<AtomicU64>();
    let number = number - first;
    TAKEN[number / 64].fetch_and(!(1 << (number % 64)), Release);
}

/// How far a counter of CPU 0 is from GS base.
pub fn offset(start: u64) -> usize {
    let (first, first_offset) = percpu::counter(0);
    start as usize - first.addr().get() + first_offset
}
