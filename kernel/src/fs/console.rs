//! `/dev/console`: the output of programs goes into the kernel's log. So it keeps its place among
//! the kernel's own messages and never tears one of their lines.

use super::{How, Opened, Special};
use crate::{console, errno::Errno, pr_info};
use alloc::{boxed::Box, string::String};

/// The console. Each write makes at least one line, and waits while much is still to be printed.
/// There is no input: a read finds its end.
pub struct Console;

impl Special for Console {
    fn open(&self, _how: How) -> Result<Box<dyn Opened>, Errno> {
        Ok(Box::new(Self))
    }
}

impl Opened for Console {
    fn read(&self, _at: u64, _buf: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write(&self, _at: u64, data: &[u8]) -> Result<usize, Errno> {
        console::wait_for_room()?;
        let text = String::from_utf8_lossy(data);
        pr_info!("{}", text.strip_suffix('\n').unwrap_or(&text));
        Ok(data.len())
    }
}
