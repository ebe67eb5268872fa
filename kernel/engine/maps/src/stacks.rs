//! Stack traces by number: each different trace is kept once.
//!
//! ```text
//!   slot    word 0   hash of the frames, never 0; 0 while the slot is free
//!           word 1   state: generation, number of frames; no frames while they are being written
//!           word 2…  the frames, the innermost first
//! ```
//!
//! The number of a trace is its slot and the slot's generation, so a number that was given out
//! before [`Stacks::clear`] is never taken for a later trace.
//!
//! # Invariants
//! STACKS-1. A slot is claimed by an exchange of word 0. Until its state has a number of frames,
//!     only the claimer writes to it.
//! STACKS-2. The frames of a slot with a number of frames do not change. `clear` takes the number
//!     away and raises the generation before the slot becomes free.
//!
//! # Contexts and ordering
//! [`Stacks::insert`] works in any context and never waits. If it meets a slot with its own hash
//! that is still being written, it cannot compare, and goes on. So the same new trace may get two
//! numbers if two hits insert it at the same time. Readers that group by traces use
//! [`Stacks::first_equal`].
//!
//! The state is stored with Release after the frames, and loaded with Acquire before them. A reader
//! looks at it again after them (a sequence lock).
//!
//! # No room
//! A trace may be in [`WINDOW`] slots. If all of them have other traces, the hit is lost as
//! [`Lost::Full`], and counted. A trace with too many frames is cut, and keeps the innermost ones.

use core::sync::atomic::{
    AtomicU64, Ordering,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use super::{
    block::{Block, OutOfMemory},
    steps::{NoSteps, Steps, add, exchange, load, store},
    table::{Lost, MULTIPLIER, TURNED, fold},
};

/// The most frames of a trace.
pub const MAX_FRAMES: usize = 127;

/// How many slots a trace may be in, from its home on.
const WINDOW: usize = 16;

/// The part of a state that counts frames.
const FRAMES: u64 = 0xff;
/// The unit of the generation in a state and in a number.
const GENERATION: u64 = 1 << 32;
/// Generations begin again after these, so that a number is never negative.
const GENERATIONS: u64 = 0x7fff_ffff << 32;
/// The index of the state, and of the first word of the frames.
const STATE: usize = 1;
pub(super) const FIRST: usize = 2;

/// Stack traces.
pub struct Stacks {
    memory: Block,
    /// The number of homes less 1.
    mask: u64,
    max_frames: usize,
    full: AtomicU64,
}

impl Stacks {
    /// No traces yet. The sizes were checked.
    pub(super) fn new(max_frames: usize, entries: usize) -> Result<Self, OutOfMemory> {
        // Half as many more, because a window is full before all slots are.
        let homes = (entries + entries / 2).next_power_of_two();
        let slots = homes.saturating_add(WINDOW - 1);
        Ok(Self {
            memory: Block::zeroed(slots.saturating_mul(FIRST + max_frames))?,
            mask: homes as u64 - 1,
            max_frames,
            full: AtomicU64::new(0),
        })
    }

    /// All words of the memory.
    #[allow(dead_code)]
    pub(super) fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.memory.words().iter().chain([&self.full])
    }

    /// How many frames of a trace are kept.
    pub fn max_frames(&self) -> usize {
        self.max_frames
    }

    /// How many hits were lost because there was no room.
    pub fn full(&self) -> u64 {
        self.full.load(Relaxed)
    }

    fn stride(&self) -> usize {
        FIRST.wrapping_add(self.max_frames)
    }

    fn slot(&self, index: usize) -> Option<&[AtomicU64]> {
        let start = index.wrapping_mul(self.stride());
        self.memory
            .words()
            .get(start..start.wrapping_add(self.stride()))
    }

    /// The number of the trace `frames`, the innermost first, which is kept from now on. Any
    /// context.
    #[inline(always)]
    pub fn insert(&self, frames: &[u64]) -> Result<u64, Lost> {
        self.insert_in_steps::<NoSteps>(frames)
    }

    /// Same as [`Stacks::insert`], with `S` before each access.
    #[inline(always)]
    pub fn insert_in_steps<S: Steps>(&self, frames: &[u64]) -> Result<u64, Lost> {
        if (1..=self.max_frames).contains(&frames.len()) {
            self.insert_whole::<S>(frames)
        } else {
            self.insert_other::<S>(frames)
        }
    }

    /// Inserts a trace that is not kept as it is. A long one is cut. An empty one is kept as one
    /// frame of 0, because a slot without frames is being written.
    #[cold]
    #[inline(never)]
    fn insert_other<S: Steps>(&self, frames: &[u64]) -> Result<u64, Lost> {
        match frames.get(..self.max_frames) {
            Some(frames) => self.insert_whole::<S>(frames),
            None => self.insert_whole::<S>(&[0]),
        }
    }

    #[inline(always)]
    fn insert_whole<S: Steps>(&self, frames: &[u64]) -> Result<u64, Lost> {
        let hash = frames.iter().fold(TURNED, |hash: u64, &frame| {
            hash.wrapping_add(frame).wrapping_mul(MULTIPLIER)
        });
        let hash = fold(hash);
        let hash = if hash == 0 { 1 } else { hash };
        let home = (hash & self.mask) as usize;
        let words = self.memory.words();
        let Some(mut rest) = words.get(home.wrapping_mul(self.stride())..) else {
            return Err(self.no_room::<S>());
        };
        for distance in 0..WINDOW {
            let Some(([tag, state, words @ ..], after)) = rest.split_at_checked(self.stride())
            else {
                break;
            };
            rest = after;
            let index = home.wrapping_add(distance);
            let found = load::<S>(tag, Acquire);
            if found == hash {
                if let Some(state) = equal::<S>(state, words, frames) {
                    return Ok(number(index, state));
                }
            } else if found == 0 && exchange::<S>(tag, 0, hash, AcqRel) {
                let generation = load::<S>(state, Relaxed) & GENERATIONS;
                // A reader of a frame from below sees that the trace before it was cleared.
                fence(Release);
                for (word, &frame) in words.iter().zip(frames) {
                    store::<S>(word, frame, Relaxed);
                }
                let complete = generation | frames.len() as u64;
                store::<S>(state, complete, Release);
                return Ok(number(index, complete));
            }
        }
        Err(self.no_room::<S>())
    }

    /// Counts a hit that is lost.
    #[cold]
    fn no_room<S: Steps>(&self) -> Lost {
        add::<S>(&self.full, 1, Relaxed);
        Lost::Full
    }

    /// Copies the frames of the trace `number` to `to`. Returns how many there are. `None` if there
    /// is no such trace, or it was cleared.
    pub fn frames(&self, number: u64, to: &mut [u64; MAX_FRAMES]) -> Option<usize> {
        self.frames_in_steps::<NoSteps>(number, to)
    }

    /// Same as [`Stacks::frames`], with `S` before each access.
    pub fn frames_in_steps<S: Steps>(
        &self,
        number: u64,
        to: &mut [u64; MAX_FRAMES],
    ) -> Option<usize> {
        let slot = self.slot((number % GENERATION) as usize)?;
        let load = |index: usize, order| slot.get(index).map_or(0, |word| load::<S>(word, order));
        let (state, count) = copy_frames(self.max_frames, load, to)?;
        (state & GENERATIONS == number & !(GENERATION - 1)).then_some(count)
    }

    /// How many frames the trace `number` has. `None` as above. Any context.
    #[inline(always)]
    pub fn count(&self, number: u64) -> Option<usize> {
        let slot = self.slot((number % GENERATION) as usize)?;
        let state = slot.get(STATE)?.load(Acquire);
        let count = (state & FRAMES) as usize;
        let is_it = state & GENERATIONS == number & !(GENERATION - 1);
        (is_it && (1..=self.max_frames).contains(&count)).then_some(count)
    }

    /// Visits all traces that are complete: the number and the frames.
    pub fn for_each(&self, mut visit: impl FnMut(u64, &[u64])) {
        let mut frames = [0; MAX_FRAMES];
        for index in 0..self.slots() {
            let Some(slot) = self.slot(index) else { break };
            let load = |index: usize, order| slot.get(index).map_or(0, |word| word.load(order));
            if let Some((state, count)) = copy_frames(self.max_frames, load, &mut frames)
                && let Some(frames) = frames.get(..count)
            {
                visit(number(index, state), frames);
            }
        }
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> usize {
        (self.mask as usize).wrapping_add(WINDOW)
    }

    /// The address of the first slot.
    pub(super) fn address(&self) -> u64 {
        self.memory.start().as_ptr().expose_provenance() as u64
    }

    /// The least number of those that the trace `number` has; see the module's text. `number`
    /// itself if it is not there.
    pub fn first_equal(&self, number: u64) -> u64 {
        let mut frames = [0; MAX_FRAMES];
        let Some(count) = self.frames(number, &mut frames) else {
            return number;
        };
        let hash_of = |index| Some(self.slot(index)?.first()?.load(Acquire));
        let at = (number % GENERATION) as usize;
        let hash = hash_of(at);
        (at.saturating_sub(WINDOW)..at)
            .filter(|&index| hash_of(index) == hash)
            .find_map(|index| {
                let [_, state, words @ ..] = self.slot(index)? else {
                    return None;
                };
                let state = equal::<NoSteps>(state, words, frames.get(..count)?)?;
                Some(self::number(index, state))
            })
            .unwrap_or(number)
    }

    /// Forgets all traces. A trace that a hit is writing meanwhile stays.
    pub fn clear(&self) {
        self.clear_in_steps::<NoSteps>();
    }

    /// Same as [`Stacks::clear`], with `S` before each access.
    pub fn clear_in_steps<S: Steps>(&self) {
        for slot in self.memory.words().chunks_exact(self.stride()) {
            let [tag, state, ..] = slot else { continue };
            let before = load::<S>(state, Relaxed);
            if before & FRAMES == 0 {
                continue;
            }
            let next = before.wrapping_add(GENERATION) & GENERATIONS;
            // One of two that clear at the same time goes on.
            if exchange::<S>(state, before, next, AcqRel) {
                store::<S>(tag, 0, Release);
            }
        }
    }
}

/// Copies the frames of a slot, of which `load` loads a word. Returns its state and how many frames
/// there are. `None` if there is no complete trace.
pub(super) fn copy_frames(
    max_frames: usize,
    mut load: impl FnMut(usize, Ordering) -> u64,
    to: &mut [u64; MAX_FRAMES],
) -> Option<(u64, usize)> {
    let before = load(STATE, Acquire);
    let count = (before & FRAMES) as usize;
    if !(1..=max_frames).contains(&count) {
        return None;
    }
    for (index, to) in to.iter_mut().enumerate().take(count) {
        *to = load(FIRST.wrapping_add(index), Relaxed);
    }
    fence(Acquire);
    (load(STATE, Relaxed) == before).then_some((before, count))
}

/// The number of the trace in slot `index`.
#[inline(always)]
pub(super) const fn number(index: usize, state: u64) -> u64 {
    index as u64 | state & GENERATIONS
}

/// If the slot has exactly `frames`, its state.
#[inline(always)]
fn equal<S: Steps>(state: &AtomicU64, words: &[AtomicU64], frames: &[u64]) -> Option<u64> {
    let before = load::<S>(state, Acquire);
    if before & FRAMES != frames.len() as u64 {
        return None;
    }
    // Nearly always they are equal, so it is not asked after each.
    let difference = words
        .get(..frames.len())?
        .iter()
        .zip(frames)
        .fold(0, |difference, (word, &frame)| {
            difference | (load::<S>(word, Relaxed) ^ frame)
        });
    if difference != 0 {
        return None;
    }
    // Pairs with the exchange of `clear`, after which another trace may be written here.
    fence(Acquire);
    (load::<S>(state, Relaxed) == before).then_some(before)
}
