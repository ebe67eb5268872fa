//! Why a program cannot be loaded or attached.

use core::fmt;

use bpf::{
    BuildError, ProgramKind,
    verifier::{Cause, Refusal},
};
use bpf_compiler::CompileError;
use fallible::OutOfMemory;
use probes::ProbeError;
use trace_maps::MapError;

use crate::{buffer::BufferError, facts::NoTable};

/// Why a program cannot be loaded or attached.
#[derive(Clone, Debug)]
pub enum LoadError {
    Build(BuildError),
    Refused(Refusal),
    Map(MapError),
    Compile(CompileError),
    Probe(ProbeError),
    OutOfMemory,
    /// A script asks for too many programs on timer ticks.
    TooManyProfiles,
    /// A script aims more watchpoints than there can be, or two by one number.
    TooManyWatches,
    /// The kernel has no table for call stacks.
    NoStacks,
    /// The kernel knows no programs in ring 3 whose stacks could be walked.
    NoUserStacks,
    /// A program of this kind cannot be attached so.
    Kind(ProgramKind),
    /// The two programs of a call share different numbers of bytes.
    Shared {
        entry: u32,
        on_return: u32,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => error.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Map(error) => error.fmt(f),
            Self::Compile(error) => error.fmt(f),
            Self::Probe(error) => error.fmt(f),
            Self::OutOfMemory => f.write_str("there is no memory for the program"),
            Self::TooManyProfiles => f.write_str("a script has at most 8 profiles; use fewer"),
            Self::TooManyWatches => f.write_str("a script aims at most 4 watches; use fewer"),
            Self::NoStacks => f.write_str(
                "this kernel gives no call stacks (`Agent::unwind_table`); leave kstack out",
            ),
            Self::NoUserStacks => f.write_str(
                "this kernel gives no stacks of user programs (`Agent::program_frame`); leave \
                 ustack out",
            ),
            Self::Kind(kind) => write!(
                f,
                "a program of {kind:?} cannot be attached there; a kprobe takes one of Probe, a \
                 call one of Entry and one of Return"
            ),
            Self::Shared { entry, on_return } => write!(
                f,
                "the program of the entry shares {entry} bytes, that of the return {on_return}; \
                 give both the same number"
            ),
        }
    }
}

impl core::error::Error for LoadError {}

impl LoadError {
    /// Whether memory was short, so that it may work later.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Self::OutOfMemory
                | Self::Build(BuildError::OutOfMemory)
                | Self::Refused(Refusal {
                    cause: Cause::OutOfMemory,
                    ..
                })
                | Self::Map(MapError::OutOfMemory(_))
                | Self::Compile(CompileError::OutOfMemory)
                | Self::Probe(ProbeError::OutOfMemory)
        )
    }

    /// The place that cannot be probed, if that is the matter. Another place might do.
    pub fn refused_place(&self) -> Option<u64> {
        let Self::Probe(error) = self else {
            return None;
        };
        match error {
            ProbeError::NoSymbolAt { addr }
            | ProbeError::NotText { addr }
            | ProbeError::Gone { addr }
            | ProbeError::Blacklisted { addr, .. }
            | ProbeError::MidInstruction { addr, .. }
            | ProbeError::Undecodable { addr, .. }
            | ProbeError::Instruction { addr, .. }
            | ProbeError::NotFunctionEntry { addr, .. }
            | ProbeError::MixedReturnMethods { addr } => Some(*addr),
            _ => None,
        }
    }
}

impl From<BuildError> for LoadError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

impl From<Refusal> for LoadError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<MapError> for LoadError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

impl From<CompileError> for LoadError {
    fn from(error: CompileError) -> Self {
        Self::Compile(error)
    }
}

impl From<ProbeError> for LoadError {
    fn from(error: ProbeError) -> Self {
        Self::Probe(error)
    }
}

impl From<OutOfMemory> for LoadError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<BufferError> for LoadError {
    fn from(_: BufferError) -> Self {
        // Making the first rings fails for this reason only.
        Self::OutOfMemory
    }
}

impl From<NoTable> for LoadError {
    fn from(reason: NoTable) -> Self {
        match reason {
            NoTable::NotHere => Self::NoStacks,
            NoTable::OutOfMemory => Self::OutOfMemory,
        }
    }
}
