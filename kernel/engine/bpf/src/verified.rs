//! A program that the verifier has taken, with the facts that the compiler relies on.

use alloc::vec::Vec;

use crate::{MapIndex, Program};

/// The memory that a load or store reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// The registers of the probed code, at a constant offset. Loads only.
    Context { offset: i16 },
    /// The program's stack, at a constant offset below `r10`: -2048 to -1.
    Stack { offset: i16 },
    /// A map's value, a record, or what entry and return share; or the stack, at an offset that
    /// varies, or on some paths only. The access cannot fault.
    Own,
    /// Anything else: kernel memory, which may not be there. Loads only.
    Kernel,
}

/// The verifier's findings about one instruction. They hold on all paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fact {
    /// Some path leads here. The compiler leaves out what is not reached.
    pub reached: bool,
    /// The memory of a load, a store or an atomic operation.
    pub memory: Option<Memory>,
    /// The map of a call that takes one.
    pub map: Option<MapIndex>,
    /// The greatest index of a call: what `r2` can have for [`Add`](crate::Helper::Add), and what
    /// the key can have for [`MapLookup`](crate::Helper::MapLookup) in an array, if the verifier
    /// knows it.
    pub most_index: Option<u64>,
}

/// How much there was to see of a program, to be compared with what the verifier allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The steps of the longest path: at most [`verifier::MOST_PATH`](crate::verifier::MOST_PATH).
    pub path: u32,
    /// The steps of the walk: at most [`verifier::MOST_WALK`](crate::verifier::MOST_WALK).
    pub walk: u32,
}

/// See the module's text. Only the verifier makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    program: Program,
    facts: Vec<Fact>,
    stack_bytes: u16,
    cost: Cost,
}

impl Verified {
    /// `facts` are those of `program`, one for each instruction.
    pub(crate) fn new(program: Program, facts: Vec<Fact>, stack_bytes: u16, cost: Cost) -> Self {
        Self {
            program,
            facts,
            stack_bytes,
            cost,
        }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// One for each instruction.
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// How much there was to see.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// Bytes of the stack that the program uses, a multiple of 8.
    pub fn stack_bytes(&self) -> u16 {
        self.stack_bytes
    }
}
