//! BPF programs to test with: random ones, each with the machine to run it in, and the public
//! [`vectors`] of the instruction set.
//!
//! The tests of the verifier and of the compiler use the same cases. A case is known by its seed,
//! so that what one test finds can be repeated in another one.
//!
//! ```text
//!   seed ─► writer    a program that keeps track of what registers and stack hold, so most of what
//!    │                it does is allowed
//!    ├────► mistakes  in about half of the programs one or two instructions are changed; a few
//!    │                programs are nothing but random instructions
//!    └────► world     registers and memory: pointers into mapped memory, texts, extreme numbers
//! ```
//!
//! Most programs without a mistake pass the verifier, and so do some with one. The others are for
//! its refusals.
//!
//! # Contexts
//! All functions are pure.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod mistakes;
mod smaller;
mod vectors;
mod world;
mod writer;

use core::fmt;

use bpf::Program;
use bpf_interpreter::TestMachine;
pub use instruction_cases::Random;
pub use vectors::{Vector, vectors};
pub use world::{KERNEL, KERNEL_BYTES, USER, USER_BYTES};

/// Enough instructions for any program that the verifier takes.
pub const LIMIT: u64 = 200_000;

/// A program, and the seed of it and of its machine.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    pub program: Program,
}

impl Case {
    /// The case of that seed. Neighbours differ.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::of_case(seed, 1);
        let mut program = writer::draw(&mut random);
        mistakes::make(&mut random, &mut program);
        Self { seed, program }
    }

    /// The machine of the case, the same each time.
    pub fn machine(&self) -> TestMachine {
        world::draw(&mut Random::of_case(self.seed, 2), &self.program)
    }

    /// The smallest case that still `fails`, as far as leaving out instructions finds it.
    pub fn smaller(&self, fails: impl Fn(&Self) -> bool) -> Self {
        smaller::smaller(self, fails)
    }
}

/// The program as a listing, for messages.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {:?}", self.seed, self.program.kind)?;
        for (index, map) in self.program.maps.iter().enumerate() {
            writeln!(f, "map {index}: {map:?}")?;
        }
        for (index, insn) in self.program.insns.iter().enumerate() {
            writeln!(f, "{index:4}  {insn}")?;
        }
        Ok(())
    }
}
