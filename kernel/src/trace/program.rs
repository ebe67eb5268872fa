//! Programs of this kernel: those of [`trace_agent::program`], and their errors as errnos.

pub use trace_agent::program::{LoadError, LoadedMap, watchpoint};
use trace_agent::{buffer::BufferError, program};

use crate::{errno::Errno, probes::Kernel};

/// A program, ready to be attached.
pub type Program = program::Program<Kernel>;
/// A kprobe that runs a program.
pub type AttachedProbe = program::AttachedProbe<Kernel>;
/// A kretprobe that runs programs.
pub type AttachedCall = program::AttachedCall<Kernel>;
/// A watchpoint that runs one program after the other.
pub type WatchPlace = program::WatchPlace<Kernel>;
/// A watchpoint that runs a program.
pub type AttachedWatch = program::AttachedWatch<Kernel>;
/// Kprobes that all run one program.
pub type AttachedProbes = program::AttachedProbes<Kernel>;
/// Kretprobes that all run the same programs.
pub type AttachedCalls = program::AttachedCalls<Kernel>;

impl From<LoadError> for Errno {
    fn from(error: LoadError) -> Self {
        match error {
            error if error.is_out_of_memory() => Self::ENOMEM,
            LoadError::Probe(error) => error.into(),
            _ => Self::EINVAL,
        }
    }
}

impl From<BufferError> for Errno {
    fn from(error: BufferError) -> Self {
        match error {
            BufferError::OutOfMemory => Self::ENOMEM,
            BufferError::Size => Self::EINVAL,
            BufferError::Busy => Self::EBUSY,
        }
    }
}
