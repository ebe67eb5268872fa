//! Why a module was not loaded or unloaded, in sentences.

use crate::errno::Errno;
use alloc::{string::String, vec::Vec};
use core::{
    convert::Infallible,
    fmt::{self, Display},
};
use params::BadValue;

/// The error of an init function.
#[derive(Clone, Debug)]
pub struct InitError {
    errno: Errno,
    text: String,
}

impl InitError {
    #[doc(hidden)]
    pub fn new<E: Display + Into<Errno>>(error: E) -> Self {
        Self {
            text: alloc::format!("{error}"),
            errno: error.into(),
        }
    }
}

impl From<Infallible> for Errno {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Why a module was not loaded or unloaded. Nothing has changed.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum ModuleError {
    /// No such module is compiled in.
    Unknown {
        module: String,
        known: Vec<&'static str>,
    },
    /// It is loaded.
    AlreadyLoaded { module: &'static str },
    /// It is not loaded.
    NotLoaded { module: &'static str },
    /// It is being loaded or unloaded.
    Busy { module: &'static str },
    /// It has no such parameter.
    UnknownParam {
        module: &'static str,
        param: String,
        known: Vec<&'static str>,
    },
    /// The parameter does not take that value.
    BadParam {
        module: &'static str,
        param: &'static str,
        value: Option<String>,
        reason: BadValue,
    },
    /// Its init function failed.
    Init {
        module: &'static str,
        error: InitError,
    },
}

impl ModuleError {
    /// The error number.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Unknown { .. } | Self::NotLoaded { .. } => Errno::ENOENT,
            Self::AlreadyLoaded { .. } => Errno::EEXIST,
            Self::Busy { .. } => Errno::EBUSY,
            Self::UnknownParam { .. } | Self::BadParam { .. } => Errno::EINVAL,
            Self::Init { error, .. } => error.errno,
        }
    }
}

impl From<ModuleError> for Errno {
    fn from(error: ModuleError) -> Self {
        error.errno()
    }
}

/// Names, separated by commas.
struct Names<'a>(&'a [&'static str]);

impl Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            write!(f, "{}{name}", if index > 0 { ", " } else { "" })?;
        }
        if self.0.is_empty() {
            f.write_str("none")
        } else {
            Ok(())
        }
    }
}

impl Display for ModuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { module, known } => {
                write!(
                    f,
                    "there is no module {module}; those compiled in are: {}",
                    Names(known)
                )
            }
            Self::AlreadyLoaded { module } => {
                write!(f, "{module} is loaded already; unload it first")
            }
            Self::NotLoaded { module } => write!(f, "{module} is not loaded"),
            Self::Busy { module } => {
                write!(
                    f,
                    "{module} is being loaded or unloaded; try again when that is done"
                )
            }
            Self::UnknownParam {
                module,
                param,
                known,
            } => {
                write!(
                    f,
                    "{module} has no parameter {param}; it has: {}",
                    Names(known)
                )
            }
            Self::BadParam {
                module,
                param,
                value,
                reason,
            } => match value {
                Some(value) => write!(f, "{module}.{param} does not take \"{value}\"; {reason}"),
                None => write!(f, "{module}.{param} does not go without a value; {reason}"),
            },
            Self::Init { error, .. } => f.write_str(&error.text),
        }
    }
}

impl core::error::Error for ModuleError {}
