//! A program, before it is checked.

use alloc::vec::Vec;

use crate::{Insn, MapDef};

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ProgramKind {
    /// Runs at any probed instruction.
    Probe,
    /// Runs at the entry of a call, before the program of its return. They share `data` bytes. If
    /// `r0` is not zero, the return is not handled.
    Entry { data: u32 },
    /// Runs at the return of a call.
    Return { data: u32 },
}

impl ProgramKind {
    /// Bytes that the entry and the return share; 0 at a probe.
    pub const fn shared_bytes(self) -> u32 {
        match self {
            Self::Probe => 0,
            Self::Entry { data } | Self::Return { data } => data,
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub kind: ProgramKind,
    pub insns: Vec<Insn>,
    /// The maps that [`Insn::LoadMap`] counts through.
    pub maps: Vec<MapDef>,
}
