//! Frames: how bytes on a line that may lose or change them become packets, or known damage.
//!
//! ```text
//!   0  MAGIC (2)   kind   flags   sequence (4)   length (2)   sum of bytes 0 to 9 (2)
//!  12  sum of bytes 0 to 11 and the payload (4)
//!  16  payload, at most MOST_PAYLOAD bytes
//! ```
//!
//! Numbers are little-endian. The sum of the header is the low half of its [`crc32`]: so a wrong
//! length is found at once, and not by waiting for bytes that never come.
//!
//! # Invariants
//! PACKET-1. A packet comes out of a [`Receiver`] only if both sums fit. All other bytes are told
//!     as [`Damage`]. Nothing of a damaged frame comes out.
//! PACKET-2. After damage the receiver goes on at the next byte that may begin a frame, so the
//!     first whole frame after it is found, also when it was inside of what a wrong length had
//!     claimed.
//! PACKET-3. A receiver needs no memory but its own, and each byte is looked at a bounded number of
//!     times.
//!
//! # Contexts
//! Any. Nothing allocates or waits.

use core::fmt;

use crate::{crc32, crc32_of};

/// What each frame begins with. Neither byte is text, so a console's words are skipped quickly.
const MAGIC: [u8; 2] = [0xd7, 0x9b];
/// Bytes in front of the payload.
pub const HEADER_BYTES: usize = 16;
/// The most bytes of a payload. A kernel needs room for one frame.
pub const MOST_PAYLOAD: usize = 1024;
/// The most bytes of a frame.
pub const MOST_FRAME: usize = HEADER_BYTES + MOST_PAYLOAD;

/// Where the header's own sum is, which is that of all before it.
const HEADER_SUM: usize = 10;
/// Where the sum of all else is.
const WHOLE_SUM: usize = 12;
/// The flag of a frame whose message goes on in the next one.
const MORE: u8 = 1;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Host: it has come. Version and number of this call, 4 bytes each.
    Hello = 1,
    /// Host: a script comes. Its bytes and their sum, 4 bytes each; then the options as text.
    Begin = 2,
    /// Host: bytes of the script, in order.
    Script = 3,
    /// Host: end the trace, and send what is left.
    End = 4,
    /// Host: it goes. A trace that runs is to end unheard.
    Leave = 5,
    /// Either: the sender is there, and has nothing to say.
    Alive = 6,
    /// Kernel, to a hello: version and number of the hello, 4 bytes each; then what the kernel says
    /// of itself ([`crate::stream::About`]).
    Welcome = 17,
    /// Kernel: an answer of the trace.
    Message = 18,
    /// Kernel: it does not do what was asked. The text says why.
    Refusal = 19,
    /// Kernel: the trace is over, and all was sent.
    Over = 20,
    /// Kernel: it has died, and its numbers begin anew. Version and number of the hello, 4 bytes
    /// each; then why, as text.
    Died = 21,
    /// Kernel: a piece of its memory ([`crate::stream::Piece`]).
    Memory = 22,
}

impl FrameKind {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Begin,
        Self::Script,
        Self::End,
        Self::Leave,
        Self::Alive,
        Self::Welcome,
        Self::Message,
        Self::Refusal,
        Self::Over,
        Self::Died,
        Self::Memory,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// What is wrong with bytes that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Bytes between frames.
    Noise,
    /// A header whose sum is another one, or that says what no header says.
    Header,
    /// A payload whose sum is another one.
    Payload,
    /// A frame is missing, or came twice: this number was to come, and that one came.
    Sequence { expected: u32, found: u32 },
    /// A frame that does not fit in where it came, of this kind.
    Order(FrameKind),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Noise => f.write_str("there are bytes between the frames"),
            Self::Header => f.write_str("the header of a frame is damaged"),
            Self::Payload => f.write_str("the bytes of a frame have another sum than it says"),
            Self::Sequence { expected, found } => {
                write!(f, "frame {found} came where frame {expected} was to come")
            }
            Self::Order(kind) => write!(f, "a frame {kind:?} came where none may come"),
        }
    }
}

impl core::error::Error for Damage {}

/// A frame that came whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub kind: FrameKind,
    /// The message goes on in the next frame.
    pub more: bool,
    /// The number of the frame among those of its sender.
    pub sequence: u32,
    pub payload: &'a [u8],
}

/// The header in front of a payload, which has at most [`MOST_PAYLOAD`] bytes.
fn header(kind: FrameKind, more: bool, sequence: u32, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&MAGIC);
    header[2] = kind as u8;
    header[3] = if more { MORE } else { 0 };
    header[4..8].copy_from_slice(&sequence.to_le_bytes());
    header[8..HEADER_SUM].copy_from_slice(&(payload.len() as u16).to_le_bytes());
    let sum = crc32(&header[..HEADER_SUM]) as u16;
    header[HEADER_SUM..WHOLE_SUM].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32_of(crc32(&header[..WHOLE_SUM]), payload);
    header[WHOLE_SUM..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The sending side: it numbers the frames.
#[derive(Debug, Default)]
pub struct Sender {
    next: u32,
}

impl Sender {
    /// One that has sent nothing.
    pub const fn new() -> Self {
        Self { next: 0 }
    }

    /// Numbers the frames from 0 again.
    pub fn restart(&mut self) {
        self.next = 0;
    }

    /// Sends a message, in as many frames as it needs. `out` gets the bytes in order.
    pub fn send(&mut self, kind: FrameKind, message: &[u8], out: &mut impl FnMut(&[u8])) {
        let mut rest = message;
        loop {
            let (payload, after) = rest.split_at(rest.len().min(MOST_PAYLOAD));
            let more = !after.is_empty();
            self.send_frame(kind, more, payload, out);
            if !more {
                return;
            }
            rest = after;
        }
    }

    /// Sends a part of a message that goes on, of at most [`MOST_PAYLOAD`] bytes.
    pub fn send_part(&mut self, kind: FrameKind, part: &[u8], out: &mut impl FnMut(&[u8])) {
        self.send_frame(kind, true, part, out);
    }

    fn send_frame(
        &mut self,
        kind: FrameKind,
        more: bool,
        payload: &[u8],
        out: &mut impl FnMut(&[u8]),
    ) {
        out(&header(kind, more, self.next, payload));
        if !payload.is_empty() {
            out(payload);
        }
        self.next = self.next.wrapping_add(1);
    }
}

/// The receiving side: one frame's bytes.
pub struct Receiver {
    bytes: [u8; MOST_FRAME],
    filled: usize,
    /// How many of them are a frame that has been given out.
    taken: usize,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (filled, taken) = (self.filled, self.taken);
        write!(f, "Receiver {{ filled: {filled}, taken: {taken} }}")
    }
}

impl Default for Receiver {
    fn default() -> Self {
        Self::new()
    }
}

/// What the bytes that came so far begin with.
enum Beginning {
    /// A frame with a payload of `length` bytes.
    Whole {
        kind: FrameKind,
        length: usize,
    },
    /// Something that so many more bytes may make a frame.
    Part {
        missing: usize,
    },
    Damaged(Damage),
}

impl Receiver {
    /// One that nothing has come to.
    pub const fn new() -> Self {
        Self {
            bytes: [0; MOST_FRAME],
            filled: 0,
            taken: 0,
        }
    }

    /// Takes bytes from the front of `input` until there is a packet or damage. None: the input is
    /// used up.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<Result<Packet<'_>, Damage>> {
        self.skip(self.taken);
        self.taken = 0;
        let (kind, length) = loop {
            match self.beginning() {
                Beginning::Whole { kind, length } => break (kind, length),
                Beginning::Part { missing } => {
                    let (now, later) = input.split_at(missing.min(input.len()));
                    if now.is_empty() {
                        return None;
                    }
                    // There is room, because a frame has at most as many bytes.
                    self.bytes[self.filled..self.filled + now.len()].copy_from_slice(now);
                    self.filled += now.len();
                    *input = later;
                }
                Beginning::Damaged(damage) => {
                    let rest = &self.bytes[1..self.filled];
                    let next = rest.iter().position(|byte| *byte == MAGIC[0]);
                    self.skip(next.map_or(self.filled, |at| at + 1));
                    return Some(Err(damage));
                }
            }
        };
        self.taken = HEADER_BYTES + length;
        Some(Ok(self.packet(kind, length)))
    }

    /// The packet that [`Receiver::next`] gave out last. None: it was damage, or nothing.
    pub fn last(&self) -> Option<Packet<'_>> {
        let length = self.taken.checked_sub(HEADER_BYTES)?;
        Some(self.packet(FrameKind::of(self.bytes[2])?, length))
    }

    fn packet(&self, kind: FrameKind, length: usize) -> Packet<'_> {
        Packet {
            kind,
            more: self.bytes[3] & MORE != 0,
            sequence: self.word(4),
            payload: &self.bytes[HEADER_BYTES..HEADER_BYTES + length],
        }
    }

    fn beginning(&self) -> Beginning {
        let bytes = &self.bytes[..self.filled];
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Beginning::Damaged(Damage::Noise);
        }
        if bytes.len() < HEADER_BYTES {
            return Beginning::Part {
                missing: HEADER_BYTES - bytes.len(),
            };
        }
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let length = usize::from(half(8));
        let fits = crc32(&bytes[..HEADER_SUM]) as u16 == half(HEADER_SUM);
        let (true, Some(kind), ..=MOST_PAYLOAD) = (fits, FrameKind::of(bytes[2]), length) else {
            return Beginning::Damaged(Damage::Header);
        };
        match bytes[HEADER_BYTES..].get(..length) {
            None => Beginning::Part {
                missing: HEADER_BYTES + length - bytes.len(),
            },
            Some(payload) => {
                let sum = crc32_of(crc32(&bytes[..WHOLE_SUM]), payload);
                match sum == self.word(WHOLE_SUM) {
                    true => Beginning::Whole { kind, length },
                    false => Beginning::Damaged(Damage::Payload),
                }
            }
        }
    }

    fn word(&self, at: usize) -> u32 {
        let word: [u8; 4] = core::array::from_fn(|index| self.bytes[at + index]);
        u32::from_le_bytes(word)
    }

    /// Drops bytes at the front.
    fn skip(&mut self, count: usize) {
        self.bytes.copy_within(count..self.filled, 0);
        self.filled -= count;
    }
}
