//! Reads that wait for data.
//!
//! A special file whose data come bit by bit lets its reader sleep here. The reader wakes when
//! there are data, or when it is to stop: its task was killed, or it carries out a command at the
//! prompt and Ctrl-C was typed. Then the read ends with EINTR, and nothing was taken from the file.
//!
//! Task context. The file's position stays locked meanwhile, so other reads through the same open
//! file wait for this one.

use crate::{
    errno::Errno,
    task::WaitQueue,
    terminal,
    time::{TICK_NS, ktime_get},
};

/// Sleeps until `condition` is true. Writers make it true and then wake `queue`. EINTR if the
/// reader is to stop. The condition must not sleep.
pub fn wait_for_data(queue: &WaitQueue, mut condition: impl FnMut() -> bool) -> Result<(), Errno> {
    let mut is_met = false;
    queue.wait_interruptible(|| {
        is_met = condition();
        is_met || terminal::Command::stops_here()
    })?;
    if is_met { Ok(()) } else { Err(Errno::EINTR) }
}

/// The same for data that come from code that may not wake tasks, such as probe handlers and NMIs:
/// the condition is checked at each tick.
pub fn poll_for_data(mut condition: impl FnMut() -> bool) -> Result<(), Errno> {
    let nobody = WaitQueue::new();
    loop {
        let mut is_met = false;
        let waited = nobody.wait_interruptible_until_deadline(ktime_get() + TICK_NS, || {
            is_met = condition();
            is_met || terminal::Command::stops_here()
        });
        match waited {
            Ok(()) if is_met => return Ok(()),
            Ok(()) => return Err(Errno::EINTR),
            Err(Errno::ETIMEDOUT) => {}
            Err(errno) => return Err(errno),
        }
    }
}
