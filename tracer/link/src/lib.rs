//! The host's end of the link to a guest that traces itself: it gets its script, and its answers
//! come back.
//!
//! ```text
//!   script, options ── memory files ──► fw_cfg ─► the kernel
//!                                                    │ messages        ┌─ control bytes
//!   Event::Message ◄── messages ◄── socket ◄── COM2 ◄┤        COM2 ◄──┘  [`Trace::end`]
//!                         ▲                          │
//!                         └──── the guest's RAM ◄────┘ the outbox, if the memory is shared
//!   Event::Log, Event::End ◄── thread that has the guest
//! ```
//!
//! The other end is `kernel/src/trace/script`, and `trace_wire` is the format that both use.
//!
//! Bochs has neither fw_cfg nor memory that can be shared: the script is in the disk image's
//! initramfs, and the second serial port is a TCP connection.
//!
//! A kernel that runs already is reached over a line of bytes ([`Remote`]): a socket, or a
//! terminal. `trace_wire::stream` is the protocol there, and any kernel can have its other end.
//!
//! The memory is shared unless the request says otherwise. Then all messages go through the outbox
//! there, which costs the kernel a copy, and the serial port only tells of them. The memory stays
//! when the guest is dead: [`Trace::rings`] are its last records then. The script's maps are there,
//! too, and are read while the guest runs ([`Trace::maps`]).
//!
//! The messages are `trace_interface`'s frames, as bytes: this crate does not look into them.
//!
//! # Invariants
//! TRACE-1. Nothing has a name in a file system: QEMU inherits a socket and memory without one. So
//!     nothing is left over, however this process ends. Only the disk image for Bochs stays, as
//!     each image does.
//! TRACE-2. All messages come before [`Event::End`], because the thread that has the guest waits
//!     for the end of the socket first.

mod address;
mod event;
mod maps;
mod messages;
mod ram;
mod received;
mod remote;
mod request;
mod shared;
mod trace;
mod watchdog;

pub use address::Address;
pub use event::Event;
pub use maps::LiveMap;
pub use received::RingCopy;
pub use remote::Remote;
pub use request::{Request, Transport};
pub use trace::{Ender, Trace};
