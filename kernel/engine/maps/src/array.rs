//! Arrays: values by index, shared by the CPUs or one for each CPU.
//!
//! ```text
//!   base + (cpu << cpu_shift) + index * stride      a value; an array that is shared has no cpu
//! ```
//!
//! Compiled code computes this address itself, after it has compared the index with the number of
//! entries. It adds with one instruction, so that an interrupt in the middle loses nothing: with an
//! ordinary `add` to a value of its own CPU, with a locked one to a shared value.
//!
//! The part of a CPU is a power of two of bytes, at least 64, so CPUs share no cache line.
//!
//! # Contexts and ordering
//! Words are read and written relaxed: a word is never torn, but two words of a value may be from
//! different moments.
//!
//! [`Array::clear`] stores zeros. A store from another CPU and an addition that is not locked may
//! meet, and then the value from before the store comes back. So the values of a CPU are to be
//! cleared or taken on that CPU while hits go on ([`Array::clear_cpu`], [`Array::take_cpu`]).

use core::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::block::{Block, OutOfMemory, checked_product};

/// The most bytes of a value of an array.
pub const MAX_ARRAY_VALUE_BYTES: usize = bpf::MapDef::MOST_ARRAY_VALUE_BYTES as usize;

/// The least bytes of a CPU's part: a cache line.
const LEAST_PART_BYTES: usize = 64;

/// An array.
pub struct Array {
    memory: Memory,
    cpus: usize,
    shared: bool,
    /// Words from one CPU's part to the next one's.
    part: usize,
    /// Words of a value.
    value_words: usize,
    entries: usize,
}

/// The words of an array.
enum Memory {
    Own(Block),
    Lent(Lent),
}

/// Words that have another owner, for example the data of the CPUs.
pub struct Lent {
    /// The word of CPU 0. They are all 0 now.
    pub start: NonNull<AtomicU64>,
    /// The distance in words from the word of one CPU to that of the next.
    pub part: usize,
    /// Called with `start` when the array is dropped.
    pub give_back: fn(NonNull<AtomicU64>),
}

// SAFETY: the words are atomic.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        (self.give_back)(self.start);
    }
}

/// Where compiled code finds the values of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayPlace {
    /// The address of value 0 of CPU 0.
    pub base: u64,
    /// A CPU's values lie `cpu << cpu_shift` bytes after those of CPU 0. `None` if all CPUs share
    /// the values, or if they are [`Lent`].
    pub cpu_shift: Option<u32>,
    /// Their owner knows where the values of the other CPUs are.
    pub is_lent: bool,
    /// Bytes from one value to the next one.
    pub stride: u32,
    /// How many values there are.
    pub entries: u32,
}

impl Array {
    /// An array of zeros. The sizes were checked.
    pub(crate) fn new(
        value_bytes: usize,
        entries: usize,
        cpus: usize,
        shared: bool,
    ) -> Result<Self, OutOfMemory> {
        let value_words = value_bytes.div_ceil(8);
        let bytes = checked_product(entries, value_words * 8)?;
        let part_bytes = if shared {
            bytes
        } else {
            bytes
                .max(LEAST_PART_BYTES)
                .checked_next_power_of_two()
                .ok_or(OutOfMemory { bytes })?
        };
        let cpus = if shared { 1 } else { cpus };
        Ok(Self {
            memory: Memory::Own(Block::zeroed(checked_product(part_bytes / 8, cpus)?)?),
            cpus,
            shared,
            part: part_bytes / 8,
            value_words,
            entries,
        })
    }

    /// An array of one counter for each of `cpus` CPUs.
    ///
    /// # Safety
    /// The words that [`Lent`] names for these CPUs are there, and no other code uses them, until
    /// they are given back.
    pub unsafe fn lent_counter(lent: Lent, cpus: usize) -> Self {
        Self {
            part: lent.part,
            memory: Memory::Lent(lent),
            cpus,
            shared: false,
            value_words: 1,
            entries: 1,
        }
    }

    fn start(&self) -> NonNull<AtomicU64> {
        match &self.memory {
            Memory::Own(block) => block.start(),
            Memory::Lent(lent) => lent.start,
        }
    }

    /// The words of CPU number `cpu`, of which there is one.
    fn part(&self, cpu: usize) -> &[AtomicU64] {
        let start = cpu * self.part;
        match &self.memory {
            Memory::Own(block) => block.words().get(start..start + self.part).unwrap_or(&[]),
            // SAFETY: by the contract of `lent_counter`; the array lives as long as the reference.
            Memory::Lent(lent) => core::slice::from_ref(unsafe { lent.start.add(start).as_ref() }),
        }
    }

    /// The place of the array, as compiled code needs it.
    pub fn place(&self) -> ArrayPlace {
        let is_lent = matches!(self.memory, Memory::Lent(_));
        ArrayPlace {
            base: self.start().as_ptr().expose_provenance() as u64,
            cpu_shift: (!self.shared && !is_lent).then(|| self.part.trailing_zeros() + 3),
            is_lent,
            stride: (self.value_words * 8) as u32,
            entries: self.entries as u32,
        }
    }

    /// The address of the values of `cpu`.
    pub(crate) fn address(&self, cpu: usize) -> u64 {
        let first = self.part(cpu).first();
        first.map_or(0, |first| {
            core::ptr::from_ref(first).expose_provenance() as u64
        })
    }

    /// How many CPUs have values of their own; 1 if the values are shared.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// How many values there are for each CPU.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Words of a value.
    pub fn value_words(&self) -> usize {
        self.value_words
    }

    /// The value of `index` for `cpu`; `cpu` has no meaning if the values are shared. Any context.
    #[inline]
    pub fn lookup(&self, index: usize, cpu: usize) -> Option<*mut u64> {
        let first = self.value(index, cpu)?.first()?;
        Some(core::ptr::from_ref(first).cast_mut().cast())
    }

    #[inline]
    fn value(&self, index: usize, cpu: usize) -> Option<&[AtomicU64]> {
        let cpu = if self.shared { 0 } else { cpu };
        if index >= self.entries || cpu >= self.cpus {
            return None;
        }
        let start = index * self.value_words;
        self.part(cpu).get(start..start + self.value_words)
    }

    /// Copies the value of `index` for `cpu` to the first words of `to`. False if there is none.
    pub fn read_per_cpu(&self, index: usize, cpu: usize, to: &mut [u64]) -> bool {
        let Some(value) = self.value(index, cpu) else {
            return false;
        };
        for (to, word) in to.iter_mut().zip(value) {
            *to = word.load(Relaxed);
        }
        true
    }

    /// Stores the first words of the value of `index` for `cpu`. False if there is none. A hit that
    /// adds meanwhile may be lost.
    pub fn write(&self, index: usize, cpu: usize, words: &[u64]) -> bool {
        let Some(value) = self.value(index, cpu) else {
            return false;
        };
        for (to, word) in value.iter().zip(words) {
            to.store(*word, Relaxed);
        }
        true
    }

    /// Sums up the values of `index` on all CPUs, each word by itself, to the first words of `to`.
    /// Sums wrap. False if there is no such value.
    pub fn read_sum(&self, index: usize, to: &mut [u64]) -> bool {
        to.fill(0);
        (0..self.cpus).all(|cpu| {
            let value = self.value(index, cpu);
            for (to, word) in to.iter_mut().zip(value.unwrap_or(&[])) {
                *to = to.wrapping_add(word.load(Relaxed));
            }
            value.is_some()
        })
    }

    /// Sets all values of all CPUs to 0. See the module's text on hits that go on meanwhile.
    pub fn clear(&self) {
        for cpu in 0..self.cpus {
            self.clear_cpu(cpu);
        }
    }

    /// Takes the values of `cpu` away: `visit` gets each word that is not 0, with its place among
    /// them, and it is 0 then. If it runs on that CPU, or the values are shared, each addition is
    /// in what was taken or stays, as far as it is to one word. On that CPU, in no hit, that is so
    /// of all words that a hit changes.
    pub fn take_cpu(&self, cpu: usize, mut visit: impl FnMut(usize, u64)) {
        for (place, word) in self.words_of_cpu(cpu) {
            if word.load(Relaxed) != 0 {
                visit(place, word.swap(0, Relaxed));
            }
        }
    }

    /// Calls `visit` with each word of the values of `cpu` that is not 0, and its place among them.
    pub fn for_each_of_cpu(&self, cpu: usize, mut visit: impl FnMut(usize, u64)) {
        for (place, word) in self.words_of_cpu(cpu) {
            match word.load(Relaxed) {
                0 => {}
                word => visit(place, word),
            }
        }
    }

    /// The words of the values of `cpu`, each with its place; none if there is no such CPU.
    fn words_of_cpu(&self, cpu: usize) -> impl Iterator<Item = (usize, &AtomicU64)> {
        let part = if cpu < self.cpus { self.part(cpu) } else { &[] };
        let words = part.iter().take(self.entries * self.value_words);
        words.enumerate()
    }

    /// Sets all values of `cpu` to 0. If it runs on that CPU, each hit is either cleared away as a
    /// whole or stays as a whole, as far as its value is one word.
    pub fn clear_cpu(&self, cpu: usize) {
        if cpu < self.cpus {
            for word in self.part(cpu) {
                word.store(0, Relaxed);
            }
        }
    }
}
