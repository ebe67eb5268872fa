//! Why the probes of an event cannot be armed.

use tracefs::compile;

use crate::{errno::Errno, trace::program::LoadError, uprobes::UprobeError};

/// Why the probes of an event cannot be armed.
#[derive(Debug)]
pub enum ArmError {
    /// There is no program for what is wanted.
    Program(compile::CompileError),
    Load(LoadError),
    /// A probe in a program cannot be registered.
    User(UprobeError),
}

impl ArmError {
    /// Whether memory was short, so that it may work later.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Program(error) => error.is_out_of_memory(),
            Self::Load(error) => error.is_out_of_memory(),
            Self::User(error) => *error == UprobeError::OutOfMemory,
        }
    }
}

impl<E: Into<LoadError>> From<E> for ArmError {
    fn from(error: E) -> Self {
        Self::Load(error.into())
    }
}

impl From<ArmError> for Errno {
    fn from(error: ArmError) -> Self {
        match error {
            error if error.is_out_of_memory() => Self::ENOMEM,
            ArmError::Program(_) => Self::EINVAL,
            ArmError::Load(error) => error.into(),
            ArmError::User(error) => error.into(),
        }
    }
}
