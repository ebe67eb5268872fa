//! Where the files of tracing are, and who may use them.

use core::fmt::{self, Write};

use tracefs::definition::MOST_NAME_BYTES;

use crate::errno::Errno;

/// The two directories that have all files.
pub(super) const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Permissions of a file that can be read.
pub(super) const READ: u32 = 0o444;
/// Permissions of a file that can be written.
pub(super) const WRITE: u32 = 0o200;

/// The path of a file of events. It takes no memory, so that events can also go when there is none.
pub(super) struct Path {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Path {
    /// The parts around the names of a group and an event have less than 64 bytes.
    const MOST: usize = 2 * MOST_NAME_BYTES + 64;

    /// # Errors
    /// ENAMETOOLONG.
    pub(super) fn of(path: fmt::Arguments<'_>) -> Result<Self, Errno> {
        let mut own = Self {
            bytes: [0; Self::MOST],
            len: 0,
        };
        own.write_fmt(path).map_err(|_| Errno::ENAMETOOLONG)?;
        Ok(own)
    }

    pub(super) fn text(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = self.bytes.get_mut(self.len..).unwrap_or_default();
        let place = rest.get_mut(..text.len()).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
