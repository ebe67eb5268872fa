//! Why the tree refuses a request.

use core::{error, fmt};

use abi::errno;
use fallible::OutOfMemory;

/// A refusal. Nothing in the tree has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    NotFound,
    AccessDenied,
    Busy,
    Exists,
    NotDirectory,
    IsDirectory,
    Invalid,
    TooBig,
    NoSpace,
    NameTooLong,
    NotEmpty,
    OutOfMemory,
}

impl Error {
    /// The errno that Linux gives in the same place.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotFound => errno::ENOENT,
            Self::OutOfMemory => errno::ENOMEM,
            Self::AccessDenied => errno::EACCES,
            Self::Busy => errno::EBUSY,
            Self::Exists => errno::EEXIST,
            Self::NotDirectory => errno::ENOTDIR,
            Self::IsDirectory => errno::EISDIR,
            Self::Invalid => errno::EINVAL,
            Self::TooBig => errno::EFBIG,
            Self::NoSpace => errno::ENOSPC,
            Self::NameTooLong => errno::ENAMETOOLONG,
            Self::NotEmpty => errno::ENOTEMPTY,
        }
    }
}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "no such file or directory: create it first, or correct the path",
            Self::AccessDenied => {
                "the mode of the file or of its directory does not allow this: see its \
                 permission bits"
            }
            Self::Busy => "the root directory cannot be removed",
            Self::Exists => "the name is taken: choose another, or remove what is there",
            Self::NotDirectory => "a directory is needed here, and this is a file",
            Self::IsDirectory => "a file is needed here, and this is a directory",
            Self::Invalid => {
                "the request makes no sense for this path: see the call's documentation"
            }
            Self::TooBig => "the file would exceed the largest size of a file: split it",
            Self::NoSpace => "the file system is full: remove files first",
            Self::NameTooLong => {
                "a name or the path is too long: 255 bytes for a name, 4095 for a path"
            }
            Self::NotEmpty => "the directory is not empty: remove its entries first",
            Self::OutOfMemory => "there is no memory for it: free some first",
        })
    }
}

impl error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::Error::*;

    #[test]
    fn errors_have_the_numbers_that_programs_know() {
        let numbers = [
            (NotFound, 2),
            (OutOfMemory, 12),
            (AccessDenied, 13),
            (Busy, 16),
            (Exists, 17),
            (NotDirectory, 20),
            (IsDirectory, 21),
            (Invalid, 22),
            (TooBig, 27),
            (NoSpace, 28),
            (NameTooLong, 36),
            (NotEmpty, 39),
        ];
        for (error, number) in numbers {
            assert_eq!(error.errno(), number, "{error}");
        }
    }
}
