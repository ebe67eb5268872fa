//! Taking a path apart.

use crate::Error;
use abi::{NAME_MAX, PATH_MAX};

/// One step along a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    Stay,
    Up,
    Down(&'a [u8]),
}

/// A path that is not empty and not too long.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    bytes: &'a [u8],
}

impl<'a> Path<'a> {
    pub fn try_new(bytes: &'a [u8]) -> Result<Self, Error> {
        match bytes.len() {
            0 => Err(Error::NotFound),
            // `PATH_MAX` counts the NUL, which is not part of `bytes`.
            len if len >= PATH_MAX => Err(Error::NameTooLong),
            _ => Ok(Self { bytes }),
        }
    }

    /// Whether the path starts at the root.
    #[inline]
    pub fn is_absolute(self) -> bool {
        self.bytes.starts_with(b"/")
    }

    /// Whether the path ends in a slash: it then can name a directory only.
    #[inline]
    pub fn demands_directory(self) -> bool {
        self.bytes.ends_with(b"/")
    }

    /// The steps, one per component; several slashes count as one.
    pub fn steps(self) -> impl DoubleEndedIterator<Item = Result<Step<'a>, Error>> {
        self.bytes
            .split(|&byte| byte == b'/')
            .filter(|component| !component.is_empty())
            .map(|component| match component {
                b"." => Ok(Step::Stay),
                b".." => Ok(Step::Up),
                name if name.len() > NAME_MAX => Err(Error::NameTooLong),
                name => Ok(Step::Down(name)),
            })
    }
}
