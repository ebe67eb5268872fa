//! Numbers from a seed: the same everywhere.

/// A small deterministic generator (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of `seed`. An even seed and the odd one after it are the same.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The numbers of case `number` under `seed`, whatever the cases before it have drawn.
    pub fn of_case(seed: u64, number: u64) -> Self {
        // Neighbours must not look alike: mixed as by splitmix64.
        let mut mixed = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self::new(mixed ^ mixed >> 31)
    }

    /// The next 64 bits.
    #[allow(
        clippy::should_implement_trait,
        reason = "it never ends, so an iterator's Option would be in the way"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    /// One of 256 bytes.
    pub fn byte(&mut self) -> u8 {
        (self.next() >> 24) as u8
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
