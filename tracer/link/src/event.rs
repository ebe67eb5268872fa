//! What happens to a traced guest.

use boot::guest;
use trace_wire::WireError;

/// An event of a traced guest.
#[derive(Debug)]
pub enum Event {
    /// The kernel has sent this: a `trace_interface::Frame`, encoded.
    Message(Vec<u8>),
    /// The kernel's messages cannot be read any more. No further ones come.
    Damaged(WireError),
    /// The guest wrote this to its log.
    Log(Vec<u8>),
    /// The kernel at the other end of a line has said that it has died, and why. Its memory comes.
    Died(String),
    /// A piece of its memory has come, which [`Trace::rings`](crate::Trace::rings) and
    /// [`Trace::maps`](crate::Trace::maps) have.
    Memory,
    /// It ended. Nothing comes after it.
    End(guest::End),
    /// It could not be run.
    Failed(anyhow::Error),
    /// There was nothing until the deadline.
    Deadline,
    /// The watchdog found that it does not get on. It has been killed, and its end comes next.
    Hung,
}
