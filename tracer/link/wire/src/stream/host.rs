//! The host's end of the link: bytes go in, and what the kernel says comes out.
//!
//! # Invariants
//! ANSWER-1. What comes out was sent in answer to this host's hello, in order, and none is missing
//!     in between. Anything else is [`Damage`], after which nothing comes out but what a kernel
//!     says that dies: [`Said::Died`] and what follows it.
//!
//! # Contexts
//! Task context: messages are put together in memory.

use alloc::{string::String, vec::Vec};

use super::{
    VERSION,
    frame::{Damage, FrameKind, MOST_PAYLOAD, Packet, Receiver, Sender},
    memory::Piece,
    numbers, of_numbers,
};
use crate::{MOST_BYTES, crc32};

/// What the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It answers the hello. The text is one of [`super::About`], if the version is this one's.
    Welcome { version: u32, about: String },
    /// An answer of the trace.
    Message(Vec<u8>),
    /// It does not do what was asked, and why.
    Refusal(String),
    /// The trace is over.
    Over,
    /// It has died, and why. Pieces of its memory follow, and [`Said::Over`].
    Died(String),
    /// A piece of its memory.
    Memory { piece: Piece, bytes: Vec<u8> },
    /// It is there.
    Alive,
}

/// See the module's text.
#[derive(Debug)]
pub struct HostEnd {
    receiver: Receiver,
    sender: Sender,
    /// The number of this call: other welcomes are answers to hosts before.
    call: u32,
    /// The number of the kernel's next frame. None: it has not answered.
    expected: Option<u32>,
    /// The parts of a message that came, and of which kind it is.
    parts: Option<(FrameKind, Vec<u8>)>,
    /// Bytes were lost or changed.
    is_damaged: bool,
}

impl HostEnd {
    /// One that has not said hello. `call` is to differ from that of hosts before on the same line.
    pub fn new(call: u32) -> Self {
        Self {
            receiver: Receiver::new(),
            sender: Sender::new(),
            call,
            expected: None,
            parts: None,
            is_damaged: false,
        }
    }

    fn bytes(&mut self, kind: FrameKind, message: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |more: &[u8]| bytes.extend_from_slice(more);
        self.sender.send(kind, message, &mut push);
        bytes
    }

    /// The bytes of a hello. It is sent again until the kernel answers.
    pub fn hello(&mut self) -> Vec<u8> {
        self.sender.restart();
        self.bytes(FrameKind::Hello, &of_numbers(VERSION, self.call))
    }

    /// The bytes that begin a script. None: the options have more than [`Self::MOST_OPTIONS`]
    /// bytes, or the script more than 4 GiB.
    pub fn script(&mut self, script: &[u8], options: &str) -> Option<Vec<u8>> {
        if options.len() > Self::MOST_OPTIONS {
            return None;
        }
        let mut begin = of_numbers(script.len().try_into().ok()?, crc32(script)).to_vec();
        begin.extend_from_slice(options.as_bytes());
        let mut bytes = self.bytes(FrameKind::Begin, &begin);
        if !script.is_empty() {
            bytes.extend(self.bytes(FrameKind::Script, script));
        }
        Some(bytes)
    }

    /// The most bytes of options.
    pub const MOST_OPTIONS: usize = MOST_PAYLOAD - 8;

    /// The bytes that ask for the end.
    pub fn end(&mut self) -> Vec<u8> {
        self.bytes(FrameKind::End, &[])
    }

    /// The bytes that say that it goes.
    pub fn leave(&mut self) -> Vec<u8> {
        self.bytes(FrameKind::Leave, &[])
    }

    /// The bytes that say that it is there.
    pub fn alive(&mut self) -> Vec<u8> {
        self.bytes(FrameKind::Alive, &[])
    }

    /// Takes bytes from the front of `input` until the kernel has said something. None: the input
    /// is used up.
    ///
    /// # Errors
    /// [`Damage`]. After it nothing comes out but [`Said::Died`] and what follows it.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<Result<Said, Damage>> {
        loop {
            let result = match (self.receiver.next(input)?, self.expected) {
                // Before the welcome the line may have anything (STREAM-3), and so it may after
                // damage.
                (Err(_), None) => continue,
                (Err(damage), Some(_)) => Err(damage),
                (Ok(packet), _) => take(
                    packet,
                    self.call,
                    self.is_damaged,
                    &mut self.expected,
                    &mut self.parts,
                ),
            };
            match result {
                Ok(None) => {}
                Ok(Some(said)) => return Some(Ok(said)),
                Err(damage) => {
                    (self.expected, self.parts, self.is_damaged) = (None, None, true);
                    return Some(Err(damage));
                }
            }
        }
    }
}

/// Puts a packet where it belongs. None: nothing is whole yet.
fn take(
    packet: Packet<'_>,
    call: u32,
    is_damaged: bool,
    expected: &mut Option<u32>,
    parts: &mut Option<(FrameKind, Vec<u8>)>,
) -> Result<Option<Said>, Damage> {
    let Packet { kind, sequence, .. } = packet;
    let is_first = match kind {
        FrameKind::Welcome => !is_damaged,
        FrameKind::Died => true,
        _ => false,
    };
    if is_first && sequence == 0 {
        let answers = numbers(packet.payload).is_some_and(|(_, number, _)| number == call);
        // A second hello may have been on its way when the first one was answered. Its answer is
        // the same, and comes before anything else.
        if !answers {
            return Ok(None);
        }
        (*expected, *parts) = (Some(0), None);
    }
    match *expected {
        // An answer to a host before.
        None => return Ok(None),
        Some(expected) if expected != sequence => {
            let found = sequence;
            return Err(Damage::Sequence { expected, found });
        }
        Some(number) => *expected = Some(number.wrapping_add(1)),
    }
    let (of_kind, mut message) = parts.take().unwrap_or((kind, Vec::new()));
    let fits = message.len() + packet.payload.len() <= MOST_BYTES as usize;
    if of_kind != kind || !fits {
        return Err(Damage::Order(kind));
    }
    message.extend_from_slice(packet.payload);
    if packet.more {
        *parts = Some((kind, message));
        return Ok(None);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = match kind {
        FrameKind::Welcome => {
            let (version, _, about) = numbers(&message).ok_or(Damage::Order(kind))?;
            Said::Welcome {
                version,
                about: text(about),
            }
        }
        FrameKind::Message => Said::Message(message),
        FrameKind::Refusal => Said::Refusal(text(&message)),
        FrameKind::Over => Said::Over,
        FrameKind::Alive => Said::Alive,
        FrameKind::Died => {
            let (_, _, why) = numbers(&message).ok_or(Damage::Order(kind))?;
            Said::Died(text(why))
        }
        FrameKind::Memory => {
            let (piece, bytes) = Piece::decode(&message).ok_or(Damage::Order(kind))?;
            let bytes = bytes.to_vec();
            Said::Memory { piece, bytes }
        }
        FrameKind::Hello
        | FrameKind::Begin
        | FrameKind::Script
        | FrameKind::End
        | FrameKind::Leave => {
            return Err(Damage::Order(kind));
        }
    };
    Ok(Some(said))
}
