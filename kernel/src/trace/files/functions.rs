//! A file of tracing that is made of plain functions.

use core::fmt::Write;

use crate::{
    errno::Errno,
    fs::{How, pseudo::VirtualFile},
};

/// A file of functions.
pub(super) struct Functions {
    show: fn(&mut dyn Write) -> Result<(), Errno>,
    store: fn(&[u8]) -> Result<(), Errno>,
    /// Content is to be dropped.
    truncate: fn() -> Result<(), Errno>,
    of_lines: bool,
}

impl Functions {
    pub(super) const fn shows(show: fn(&mut dyn Write) -> Result<(), Errno>) -> Self {
        Self {
            show,
            store: |_| Err(Errno::EINVAL),
            truncate: || Ok(()),
            of_lines: false,
        }
    }

    pub(super) const fn stores(mut self, store: fn(&[u8]) -> Result<(), Errno>) -> Self {
        self.store = store;
        self
    }

    pub(super) const fn truncates(mut self, truncate: fn() -> Result<(), Errno>) -> Self {
        self.truncate = truncate;
        self
    }

    pub(super) const fn of_lines(mut self) -> Self {
        self.of_lines = true;
        self
    }
}

impl VirtualFile for &'static Functions {
    fn open(&self, how: How) -> Result<(), Errno> {
        if how.truncate {
            (self.truncate)()
        } else {
            Ok(())
        }
    }

    fn show(&self, out: &mut dyn Write) -> Result<(), Errno> {
        (self.show)(out)
    }

    fn store(&self, data: &[u8]) -> Result<(), Errno> {
        (self.store)(data)
    }

    fn is_of_lines(&self) -> bool {
        self.of_lines
    }
}
