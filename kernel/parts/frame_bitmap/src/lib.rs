//! The set of free physical frames: one bit for each frame.
//!
//! Frames are numbers here. Their addresses and contents are the caller's business. The lowest free
//! frame is handed out first. The caller provides the memory for the bits, and the lock.
//!
//! # Invariants
//! BITMAP-1. A set bit is a free frame, and `free` counts the set bits.
//! BITMAP-2. No word below `first_candidate` has a bit set, so a search starts there.
#![no_std]
#![forbid(unsafe_code)]

use core::ops::Range;

const FRAMES_PER_WORD: usize = u64::BITS as usize;

/// How many words the bits of `frames` frames take.
pub const fn words_for(frames: usize) -> usize {
    frames.div_ceil(FRAMES_PER_WORD)
}

/// The bits of frames 0 to some limit.
pub struct FrameBitmap<'a> {
    words: &'a mut [u64],
    free: usize,
    first_candidate: usize,
}

impl<'a> FrameBitmap<'a> {
    /// A bitmap in `words` in which no frame is free.
    pub fn new(words: &'a mut [u64]) -> Self {
        words.fill(0);
        let first_candidate = words.len();
        Self {
            words,
            free: 0,
            first_candidate,
        }
    }

    /// A bitmap of no frames.
    pub const fn empty() -> Self {
        Self {
            words: &mut [],
            free: 0,
            first_candidate: 0,
        }
    }

    /// How many frames are free.
    pub const fn free(&self) -> usize {
        self.free
    }

    /// Takes the lowest free frame, if it is below `limit`.
    pub fn take(&mut self, limit: usize) -> Option<usize> {
        let start = self.first_candidate.min(self.words.len());
        let found = self.words[start..].iter().position(|&word| word != 0);
        self.first_candidate = found.map_or(self.words.len(), |offset| start + offset);
        let word = self.words.get_mut(self.first_candidate)?;
        let bit = word.trailing_zeros() as usize;
        let frame = self.first_candidate * FRAMES_PER_WORD + bit;
        if frame >= limit {
            return None;
        }
        *word &= !(1 << bit);
        self.free -= 1;
        Some(frame)
    }

    /// Makes `frame` free.
    ///
    /// # Panics
    /// If it is free already, or beyond the bits.
    pub fn give(&mut self, frame: usize) {
        let (word, mask) = (frame / FRAMES_PER_WORD, 1 << (frame % FRAMES_PER_WORD));
        assert!(
            self.words[word] & mask == 0,
            "frame {frame} was freed twice"
        );
        self.words[word] |= mask;
        self.free += 1;
        self.first_candidate = self.first_candidate.min(word);
    }

    /// Makes each frame of `frames` free. Panics as [`FrameBitmap::give`] does.
    pub fn give_all(&mut self, frames: Range<usize>) {
        frames.for_each(|frame| self.give(frame));
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::{collections::BTreeSet, vec, vec::Vec};

    #[test]
    fn nothing_is_free_at_first() {
        let mut words = [u64::MAX; 2];
        let mut frames = FrameBitmap::new(&mut words);
        assert_eq!((frames.take(usize::MAX), frames.free()), (None, 0));
        assert_eq!(FrameBitmap::empty().take(usize::MAX), None);
    }

    #[test]
    fn lowest_frame_goes_first() {
        let mut words = [0; 4];
        let mut frames = FrameBitmap::new(&mut words);
        frames.give_all(100..103);
        frames.give(7);
        let taken: Vec<_> = core::iter::from_fn(|| frames.take(usize::MAX)).collect();
        assert_eq!(taken, [7, 100, 101, 102]);
    }

    #[test]
    fn limit_is_kept() {
        let mut words = [0; 4];
        let mut frames = FrameBitmap::new(&mut words);
        frames.give_all(63..66);
        assert_eq!(frames.take(63), None);
        assert_eq!(frames.take(64), Some(63));
        assert_eq!(frames.take(64), None);
        assert_eq!(frames.take(65), Some(64));
        assert_eq!(frames.free(), 1);
    }

    #[test]
    #[should_panic(expected = "frame 5 was freed twice")]
    fn double_free_is_refused() {
        let mut words = [0];
        let mut frames = FrameBitmap::new(&mut words);
        frames.give(5);
        frames.give(5);
    }

    proptest! {
        /// Compares the bitmap with a set of numbers.
        #[test]
    fn behaves_like_a_set(
        steps in proptest::collection::vec((any::<bool>(), 0usize..300), 0..400)
    ) {
            let mut words = vec![0; words_for(300)];
            let mut frames = FrameBitmap::new(&mut words);
            let mut model = BTreeSet::new();
            for (give, number) in steps {
                if give {
                    if model.insert(number) {
                        frames.give(number);
                    }
                } else {
                    let expected = model.first().copied().filter(|&first| first < number);
                    prop_assert_eq!(frames.take(number), expected);
                    expected.map(|frame| model.remove(&frame));
                }
                prop_assert_eq!(frames.free(), model.len());
            }
        }
    }
}
