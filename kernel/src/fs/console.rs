//! `/dev/console`: the serial line, shared with the kernel's log.

use super::{Opened, Special};
use crate::{errno::Errno, log};
use alloc::{boxed::Box, sync::Arc};

/// The console. There is no input: a read finds its end.
pub struct Console;

impl Special for Console {
    fn open(self: Arc<Self>) -> Result<Box<dyn Opened>, Errno> {
        Ok(Box::new(Self))
    }
}

impl Opened for Console {
    fn read(&self, _at: u64, _buf: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        log::write_console(data);
        Ok(data.len())
    }
}
