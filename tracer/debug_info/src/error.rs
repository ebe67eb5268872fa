//! Why the debug information cannot be opened.

use std::{fmt, io, path::PathBuf};

/// Why the debug information cannot be opened.
#[derive(Debug)]
pub enum Error {
    Read {
        path: PathBuf,
        error: io::Error,
    },
    /// The file is not an ELF file of 64 bits, but what is said here.
    Format {
        path: PathBuf,
        found: &'static str,
    },
    /// There is no debug information.
    Stripped {
        path: PathBuf,
    },
    Dwarf(gimli::Error),
    Size,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, error } => write!(
                f,
                "the kernel's file {} cannot be read: {error}; build the kernel first",
                path.display()
            ),
            Self::Format { path, found } => write!(
                f,
                "{} should be an ELF file of 64 bits and is {found}; build the kernel again",
                path.display()
            ),
            Self::Stripped { path } => write!(
                f,
                "{} has no debug information; give the file from before it was stripped \
                 (NAME.debug beside it)",
                path.display()
            ),
            Self::Dwarf(error) => write!(
                f,
                "the debug information is damaged ({error}); build the kernel again"
            ),
            Self::Size => f.write_str(
                "the debug information is larger than 4 GiB, which its index does not hold; build \
                 the kernel with less of it",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { error, .. } => Some(error),
            Self::Dwarf(error) => Some(error),
            _ => None,
        }
    }
}
