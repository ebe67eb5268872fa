//! The link over a stream of bytes: how the tracer attaches to any kernel that has a serial port.
//!
//! ```text
//!   host                                          kernel
//!   Hello(version, call) ───────────────────────►          again and again until it is answered
//!                        ◄─────────────────────── Welcome(version, call, about)
//!   Begin(bytes, sum, options), Script … ───────►
//!                        ◄─────────────────────── Message …       or Refusal, and it is over
//!   Alive, End ─────────────────────────────────►
//!                        ◄─────────────────────── Message …, Alive, Memory …, Over
//!   Leave ──────────────────────────────────────►          and the next host may come
//!
//!                        ◄─────────────────────── Died(version, call, why), Memory …, Over
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`frame`] | frames with sums and numbers, and how damage is found |
//! | [`about`] | what a kernel says of itself: capabilities, clock, build id, slide, events |
//! | [`kernel`] | the kernel's end: bytes in, what the host asks for out |
//! | [`host`] | the host's end |
//! | [`memory`] | rings and maps at the end of a recording, and the words of a kernel that dies |
//!
//! Neither end waits, reads a clock or knows a device: whoever has one passes on bytes. The
//! kernel's end allocates nothing, so any kernel can have it.
//!
//! # Invariants
//! STREAM-1. A hello is answered at any time, whatever came before it. It ends what went on, so a
//!     host can come after one that was unplugged.
//! STREAM-2. The frames of a side are numbered from its hello or welcome on. A frame that is
//!     damaged, missing, double, or of the wrong kind ends what goes on, and is told to the user.
//!     So a value that is shown is one that was sent.
//! STREAM-3. Before the hello and the welcome, bytes that are no frame are skipped: a line may have
//!     been used for something else.
//! STREAM-4. A side from which nothing comes for [`SILENCE_SECONDS`] is taken for gone. Each sends
//!     [`FrameKind::Alive`] every second while it has nothing else to say. A kernel may be silent
//!     while it loads a script, because loading may take long.
//! STREAM-5. A kernel that dies says so at any time, also in the middle of a frame. Its frame
//!     [`FrameKind::Died`] has the number of the host's hello, and begins the numbers anew. A host
//!     that has found damage waits for it ([`DYING_SECONDS`]), because a frame that was cut off is
//!     how a death begins.

pub mod about;
pub mod frame;
pub mod host;
pub mod kernel;
pub mod memory;

pub use about::{About, BuildId, Capabilities, Capability, Events};
pub use frame::{Damage, FrameKind, MOST_FRAME};
pub use host::{HostEnd, Said};
pub use kernel::{Asked, KernelEnd};
pub use memory::{Deathbed, Fill, Piece, Whole};

/// The version of the protocol. Both sides must have the same one.
pub const VERSION: u32 = 3;

/// See STREAM-4.
pub const SILENCE_SECONDS: u64 = 10;

/// See STREAM-5.
pub const DYING_SECONDS: u64 = 2;

/// The 8 bytes that hello and welcome begin with, and what comes after them.
fn numbers(payload: &[u8]) -> Option<(u32, u32, &[u8])> {
    let ([a, b, c, d, e, f, g, h], rest) = payload.split_first_chunk()?;
    let first = u32::from_le_bytes([*a, *b, *c, *d]);
    Some((first, u32::from_le_bytes([*e, *f, *g, *h]), rest))
}

/// The same, to be sent.
fn of_numbers(first: u32, second: u32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_le_bytes(), second.to_le_bytes());
    [a, b, c, d, e, f, g, h]
}
