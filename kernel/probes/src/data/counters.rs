//! Hit counters: each probe has one word for each CPU. CPUs that hit the same probe share no cache
//! line.
//!
//! ```text
//!   block   part of CPU 0: word 0 = number of CPUs, words 1 … 511 = counters
//!           part of CPU 1: word 0 unused,           words 1 … 511 = counters
//!           …              a page each
//! ```
//!
//! A [`Counter`] is the address of its word for CPU 0. The word for another CPU lies a multiple of
//! [`PART_BYTES`] after it, and each CPU keeps its own multiple in its [`PerCpu`]. So a hit is
//! counted with two loads and one increment. Where the data of the CPUs are as far apart as the
//! parts, the word is at one distance from the GS base on each CPU. There the assembly counts with
//! one load and one increment.
//!
//! # Invariants
//! COUNTER-1. Blocks are never freed. Reading a counter that was given back gives a useless number,
//!     but does no harm.
//! COUNTER-2. Only its CPU writes a word. Hits on one CPU nest strictly or count with one
//!     instruction, so plain increments lose nothing.
//!
//! # Contexts
//! Taking and giving back: under the registry's lock. Counting and summing up: any context.

use alloc::{alloc::alloc_zeroed, vec::Vec};
use core::{
    alloc::Layout,
    ptr::{NonNull, null_mut},
    sync::atomic::{
        AtomicPtr, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::{data::per_cpu::PerCpu, error::ProbeError, limits::PART_BYTES};

/// The words of one part; the first one is no counter.
const PART_WORDS: usize = PART_BYTES / 8;

/// The counters that no probe has; kept under the registry's lock.
pub(crate) struct FreeCounters {
    free: Vec<NonNull<AtomicU64>>,
    blocks: usize,
}

// SAFETY: the words are shared memory of the program, not of a thread.
unsafe impl Send for FreeCounters {}

impl FreeCounters {
    pub(crate) const fn new() -> Self {
        Self {
            free: Vec::new(),
            blocks: 0,
        }
    }

    /// Takes a counter and sets it to 0 for all of `cpus` CPUs. That number is the same in every
    /// call.
    pub(crate) fn take(&mut self, cpus: usize) -> Result<NonNull<AtomicU64>, ProbeError> {
        if self.free.is_empty() {
            self.grow(cpus)?;
        }
        let counter = self.free.pop().ok_or(ProbeError::OutOfMemory)?;
        for word in words(counter) {
            // Release: see `Counter::get`.
            word.store(0, Release);
        }
        Ok(counter)
    }

    /// Gives a counter back; there is room for it since it was taken.
    #[inline]
    pub(crate) fn give_back(&mut self, counter: NonNull<AtomicU64>) {
        self.free.push(counter);
    }

    fn grow(&mut self, cpus: usize) -> Result<(), ProbeError> {
        let all = (self.blocks + 1) * (PART_WORDS - 1);
        self.free
            .try_reserve(all)
            .map_err(|_| ProbeError::OutOfMemory)?;
        let size = cpus.max(1) * PART_BYTES;
        let layout =
            Layout::from_size_align(size, PART_BYTES).map_err(|_| ProbeError::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(ProbeError::OutOfMemory)?;
        let words: NonNull<AtomicU64> = block.cast();
        // SAFETY: fresh memory, all of it zero, at least a part long.
        unsafe {
            words.as_ref().store(cpus as u64, Relaxed);
            self.free
                .extend((1..PART_WORDS).rev().map(|word| words.add(word)));
        }
        self.blocks += 1;
        Ok(())
    }
}

/// The words of `counter`, that of CPU 0 first.
#[inline]
fn words(counter: NonNull<AtomicU64>) -> impl Iterator<Item = &'static AtomicU64> {
    let block = counter
        .map_addr(|addr| core::num::NonZero::new(addr.get() & !(PART_BYTES - 1)).unwrap_or(addr));
    // SAFETY: a counter is a word of a block. Blocks begin at a multiple of a part's size and are
    // never freed (COUNTER-1).
    let cpus = unsafe { block.as_ref() }.load(Relaxed) as usize;
    // SAFETY: a block has as many parts as its first word says.
    (0..cpus).map(move |cpu| unsafe { counter.byte_add(cpu * PART_BYTES).as_ref() })
}

/// The sum of the words of `counter`.
#[inline]
fn sum(counter: NonNull<AtomicU64>) -> u64 {
    // Acquire: who sees what was stored after the counter was given back sees that it was.
    words(counter).map(|word| word.load(Acquire)).sum()
}

/// How often something happened, on all CPUs together. It has a counter while it counts, and keeps
/// the last sum afterwards.
#[repr(C)]
pub(crate) struct Counter {
    /// The word of CPU 0; null while the probe is not registered.
    word: AtomicPtr<AtomicU64>,
    /// What the assembly adds to the GS base, or to the CPU's part, to get the word.
    pub(crate) distance: AtomicU64,
    /// The sum when the counter was given back.
    last: AtomicU64,
}

impl Counter {
    pub(crate) const fn new() -> Self {
        Self {
            word: AtomicPtr::new(null_mut()),
            distance: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// Starts to count from 0. `origin`: the address from which the assembly counts on CPU 0.
    pub(crate) fn start(&self, counter: NonNull<AtomicU64>, origin: u64) {
        let distance = (counter.addr().get() as u64).wrapping_sub(origin);
        self.distance.store(distance, Relaxed);
        self.word.store(counter.as_ptr(), Release);
    }

    /// Whether it has been started and not stopped.
    pub(crate) fn is_counting(&self) -> bool {
        !self.word.load(Relaxed).is_null()
    }

    /// Ends counting, keeps the sum and returns the counter that [`Counter::start`] was given.
    /// Nothing counts there any more.
    #[inline]
    pub(crate) fn stop(&self) -> Option<NonNull<AtomicU64>> {
        let counter = NonNull::new(self.word.load(Relaxed))?;
        self.last.store(sum(counter), Release);
        self.word.store(null_mut(), Release);
        Some(counter)
    }

    /// The sum over all CPUs. Any context.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        loop {
            let word = self.word.load(Acquire);
            let Some(counter) = NonNull::new(word) else {
                return self.last.load(Acquire);
            };
            let sum = sum(counter);
            // If it was given back meanwhile, another probe may count there.
            if self.word.load(Acquire) == word {
                return sum;
            }
        }
    }

    /// Counts one up on this CPU; the counter was started. Any context that keeps its CPU.
    #[inline(always)]
    pub(crate) fn count(&self, cpu: &PerCpu) {
        let word = self.word.load(Relaxed);
        let part = cpu.counter_part.load(Relaxed) as usize;
        // SAFETY: a probe that is hit has a counter, with a part for each CPU (COUNTER-1). A load
        // and a store are enough by COUNTER-2.
        unsafe {
            let word = &*word.byte_add(part);
            word.store(word.load(Relaxed) + 1, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_sum_up_their_cpus_and_keep_the_sum_when_they_end() {
        let mut free = FreeCounters::new();
        let (counter, cpus) = (
            Counter::new(),
            [PerCpu::new(), PerCpu::new(), PerCpu::new()],
        );
        for (number, cpu) in cpus.iter().enumerate() {
            cpu.init(number);
        }
        assert_eq!(counter.get(), 0);
        counter.start(free.take(3).unwrap(), 0);
        for (times, cpu) in cpus.iter().enumerate() {
            (0..=times).for_each(|_| counter.count(cpu));
        }
        assert_eq!(counter.get(), 6);
        // Each CPU counts in a word of its own.
        let word = NonNull::new(counter.word.load(Relaxed)).unwrap();
        let parts: Vec<_> = words(word).map(|part| part.load(Relaxed)).collect();
        assert_eq!(parts, [1, 2, 3]);
        free.give_back(counter.stop().unwrap());
        assert_eq!(counter.get(), 6);
        // The same word again, from 0.
        counter.start(free.take(3).unwrap(), 0);
        assert_eq!(counter.get(), 0);
    }

    #[test]
    fn no_two_counters_share_a_word() {
        let mut free = FreeCounters::new();
        let taken: Vec<_> = (0..3 * PART_WORDS).map(|_| free.take(2).unwrap()).collect();
        let mut all: Vec<usize> = taken
            .iter()
            .flat_map(|counter| words(*counter))
            .map(|word| core::ptr::from_ref(word).addr())
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2 * 3 * PART_WORDS);
        taken
            .into_iter()
            .for_each(|counter| free.give_back(counter));
        assert_eq!(free.free.len(), free.blocks * (PART_WORDS - 1));
    }
}
