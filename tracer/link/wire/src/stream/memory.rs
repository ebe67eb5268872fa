//! Pieces of a kernel's memory: its rings and its maps, as they were when it died or when a
//! recording ended.
//!
//! ```text
//!   payload of a message:  kind 4 | number 4 | cpu 4 | layout 16 | 0 4 | whole 8 | at 8 | bytes
//! ```
//!
//! # Invariants
//! PIECE-1. A [`Piece`] that was read lies in the whole that it is a part of, and no whole is
//!     larger than [`MOST_WHOLE`].
//! PIECE-2. The rings come before the maps, and of the rings the newest pages first. So what is
//!     missing when the line ends early are maps and old records.
//!
//! # Contexts
//! Any. Nothing allocates or waits.

use core::fmt::{self, Write};

use super::{
    VERSION,
    frame::{FrameKind, MOST_FRAME, MOST_PAYLOAD, Sender},
    of_numbers,
};

/// The most bytes of a ring or of a part of a map.
pub const MOST_WHOLE: u64 = 64 << 20;

/// What a piece is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whole {
    /// The ring of a CPU.
    Ring { cpu: u32 },
    /// The memory of a map that one CPU uses, or all of them. What no piece has of it is 0.
    Map {
        /// The map's number in the script.
        map: u32,
        cpu: u32,
        /// The form of the memory, as the crate of the maps encodes it.
        layout: [u32; 4],
    },
}

/// Where a piece belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub of: Whole,
    /// The bytes of the whole.
    pub whole: u64,
    /// Where the piece begins in it.
    pub at: u64,
}

const RING: u32 = 1;
const MAP: u32 = 2;

impl Piece {
    /// Bytes in front of those of the memory.
    pub const BYTES: usize = 48;

    /// The piece as it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, number, cpu, layout) = match self.of {
            Whole::Ring { cpu } => (RING, 0, cpu, [0; 4]),
            Whole::Map { map, cpu, layout } => (MAP, map, cpu, layout),
        };
        let [a, b, c, d] = layout;
        let low = |number: u64| number as u32;
        let words = [
            kind,
            number,
            cpu,
            a,
            b,
            c,
            d,
            0,
            low(self.whole),
            low(self.whole >> 32),
            low(self.at),
            low(self.at >> 32),
        ];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The piece of a message, and its bytes. None: it is none (PIECE-1).
    pub fn decode(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, bytes) = message.split_first_chunk::<{ Self::BYTES }>()?;
        let word = |index: usize| {
            let word: [u8; 4] = core::array::from_fn(|byte| head[4 * index + byte]);
            u32::from_le_bytes(word)
        };
        let wide = |index| u64::from(word(index)) | u64::from(word(index + 1)) << 32;
        let (number, cpu) = (word(1), word(2));
        let layout = [3, 4, 5, 6].map(word);
        let of = match word(0) {
            RING => Whole::Ring { cpu },
            MAP => Whole::Map {
                map: number,
                cpu,
                layout,
            },
            _ => return None,
        };
        let (whole, at) = (wide(8), wide(10));
        let end = at.checked_add(bytes.len() as u64)?;
        let fits = whole <= MOST_WHOLE && end <= whole;
        fits.then_some((Self { of, whole, at }, bytes))
    }
}

/// What writes the bytes of a piece, from that place in the piece on.
pub type Fill<'f> = &'f mut dyn FnMut(u64, &mut [u8]);

/// Sends a piece of `bytes` bytes. It takes a frame's room on the stack.
pub(super) fn send_piece(
    sender: &mut Sender,
    piece: &Piece,
    bytes: u64,
    fill: Fill<'_>,
    out: &mut impl FnMut(&[u8]),
) {
    const ROOM: usize = MOST_PAYLOAD;
    let mut room = [0; ROOM];
    sender.send_part(FrameKind::Memory, &piece.encode(), out);
    let mut at = 0;
    while at < bytes {
        let part = &mut room[..(bytes - at).min(ROOM as u64) as usize];
        fill(at, part);
        sender.send_part(FrameKind::Memory, part, out);
        at += part.len() as u64;
    }
    sender.send(FrameKind::Memory, &[], out);
}

/// The end of a kernel that dies: what it says when nothing else of it runs any more.
///
/// It needs nothing of the [`KernelEnd`](super::KernelEnd) that has served the host, because that
/// may have been in the middle of a frame, and may be whatever a broken kernel has made of it.
#[derive(Debug)]
pub struct Deathbed {
    sender: Sender,
}

impl Deathbed {
    /// Says that the kernel has died, and why, to the host with that number of its call.
    ///
    /// As many zeros as a frame may have come first. They end a frame that was being sent, so the
    /// host does not take what follows for the rest of that one.
    pub fn new(call: u32, why: impl fmt::Display, out: &mut impl FnMut(&[u8])) -> Self {
        const ZEROS: [u8; 80] = [0; 80];
        const TIMES: usize = MOST_FRAME / ZEROS.len();
        const _: () = assert!(ZEROS.len() * TIMES == MOST_FRAME);
        (0..TIMES).for_each(|_| out(&ZEROS));
        let mut sender = Sender::new();
        let mut text = InFrames::new(&mut sender, FrameKind::Died, out);
        text.push(&of_numbers(VERSION, call));
        // The writer takes everything.
        let _ = write!(text, "{why}");
        text.finish();
        Self { sender }
    }

    /// Sends a piece of memory that has so many bytes.
    pub fn memory(
        &mut self,
        piece: &Piece,
        bytes: u64,
        fill: Fill<'_>,
        out: &mut impl FnMut(&[u8]),
    ) {
        send_piece(&mut self.sender, piece, bytes, fill, out);
    }

    /// Says that all was sent.
    pub fn over(mut self, out: &mut impl FnMut(&[u8])) {
        self.sender.send(FrameKind::Over, &[], out);
    }
}

/// Sends a text in frames while it is written.
pub(super) struct InFrames<'e, 'o, F> {
    sender: &'e mut Sender,
    kind: FrameKind,
    out: &'o mut F,
    bytes: [u8; MOST_PAYLOAD],
    filled: usize,
}

impl<'e, 'o, F: FnMut(&[u8])> InFrames<'e, 'o, F> {
    pub(super) fn new(sender: &'e mut Sender, kind: FrameKind, out: &'o mut F) -> Self {
        Self {
            sender,
            kind,
            out,
            bytes: [0; MOST_PAYLOAD],
            filled: 0,
        }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == MOST_PAYLOAD {
                let Self {
                    sender, kind, out, ..
                } = self;
                sender.send_part(*kind, &self.bytes, *out);
                self.filled = 0;
            }
            let (now, later) = bytes.split_at(bytes.len().min(MOST_PAYLOAD - self.filled));
            self.bytes[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
        }
    }

    pub(super) fn finish(self) {
        let last = &self.bytes[..self.filled];
        self.sender.send(self.kind, last, self.out);
    }
}

impl<F: FnMut(&[u8])> Write for InFrames<'_, '_, F> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn pieces_are_read_as_they_were_written() {
        for of in [
            Whole::Ring { cpu: 3 },
            Whole::Map {
                map: 1,
                cpu: 2,
                layout: [3, 4, 5, 6],
            },
        ] {
            let piece = Piece {
                of,
                whole: 0x10_0002,
                at: 0xf_fffe,
            };
            let message = |bytes: &[u8]| [&piece.encode()[..], bytes].concat();
            assert_eq!(
                Piece::decode(&message(b"four")),
                Some((piece, &b"four"[..]))
            );
            assert_eq!(Piece::decode(&message(b"fiver")), None, "beyond the whole");
            let cut = &message(b"")[..Piece::BYTES - 1];
            assert_eq!(Piece::decode(cut), None);
        }
        let too_large = Piece {
            of: Whole::Ring { cpu: 0 },
            whole: MOST_WHOLE + 1,
            at: 0,
        };
        assert_eq!(Piece::decode(&too_large.encode()), None);
        assert_eq!(Piece::decode(&[9; Piece::BYTES]), None, "no such kind");
    }

    #[test]
    fn the_bytes_of_a_piece_are_filled_in_frame_by_frame() {
        let piece = Piece {
            of: Whole::Ring { cpu: 0 },
            whole: 8192,
            at: 4096,
        };
        let page: Vec<u8> = (0..4096_u32).map(|number| number as u8).collect();
        let (mut sender, mut sent) = (Sender::new(), Vec::new());
        let mut fill =
            |at: u64, to: &mut [u8]| to.copy_from_slice(&page[at as usize..][..to.len()]);
        send_piece(
            &mut sender,
            &piece,
            4096,
            &mut fill,
            &mut |bytes: &[u8]| {
                sent.extend_from_slice(bytes);
            },
        );
        let mut receiver = super::super::frame::Receiver::new();
        let (mut input, mut message, mut is_whole) = (&sent[..], Vec::new(), false);
        while let Some(packet) = receiver.next(&mut input) {
            let packet = packet.unwrap();
            assert!(!is_whole, "nothing comes after the last frame");
            message.extend_from_slice(packet.payload);
            is_whole = !packet.more;
        }
        assert!(is_whole);
        assert_eq!(Piece::decode(&message), Some((piece, &page[..])));
    }
}
