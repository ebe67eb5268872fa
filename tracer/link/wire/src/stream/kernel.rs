//! The kernel's end of the link: bytes go in, and what the host asks for comes out.
//!
//! ```text
//!   bytes ─► next ─► Hello ─► the kernel ends what it traces, and calls welcome
//!                    Begin ─► it makes room, or calls refuse
//!                    Script ► it copies the piece
//!                    Run ───► all pieces are there and their sum fits: it starts the script
//!                    End, Leave, Damaged ─► it ends the script
//! ```
//!
//! # Invariants
//! KERNEL-1. [`Asked::Script`] gives as many bytes as [`Asked::Begin`] has said, and
//!     [`Asked::Run`] comes after all of them, if their sum is the one that was said.
//! KERNEL-2. After [`Asked::Damaged`] and [`KernelEnd::refuse`] nothing but a hello comes out.
//!
//! # Contexts
//! Any; one at a time. Nothing allocates or waits. A value takes somewhat more than a frame, so a
//! kernel with small stacks keeps it elsewhere.

use core::fmt::{self, Write};

use super::{
    VERSION,
    frame::{Damage, FrameKind, Packet, Receiver, Sender},
    memory::{Fill, InFrames, Piece, send_piece},
    numbers, of_numbers,
};
use crate::crc32_of;

/// What the host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// A host has come. What is traced is to end unheard; then [`KernelEnd::welcome`] answers.
    Hello,
    /// A script of so many bytes comes. The text is how to run it: [`crate::Options`].
    Begin { bytes: u32, options: &'a str },
    /// The next bytes of the script.
    Script(&'a [u8]),
    /// The script is whole.
    Run,
    /// The trace is to end, and its last answers are wanted.
    End,
    /// The host goes: the trace is to end unheard.
    Leave,
    /// The host is there.
    Alive,
    /// Bytes were lost or changed: the trace is to end, and [`KernelEnd::refuse`] tells the host.
    Damaged(Damage),
}

/// What may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Only a hello.
    Unheard,
    /// A script, too.
    Welcomed,
    /// The rest of a script: so many bytes. `sum` is the one that all are to have, and `so_far`
    /// that of those that came.
    Loading { left: u32, sum: u32, so_far: u32 },
    /// The script was given out, and may be running.
    Running,
}

/// See the module's text.
#[derive(Debug)]
pub struct KernelEnd {
    receiver: Receiver,
    sender: Sender,
    /// The number of the next frame of the host.
    expected: u32,
    /// The number of the host's call.
    call: u32,
    phase: Phase,
    /// The script is whole, and that was not told.
    is_whole: bool,
}

impl Default for KernelEnd {
    fn default() -> Self {
        Self::new()
    }
}

impl KernelEnd {
    /// One that has heard nothing.
    pub const fn new() -> Self {
        Self {
            receiver: Receiver::new(),
            sender: Sender::new(),
            expected: 0,
            call: 0,
            phase: Phase::Unheard,
            is_whole: false,
        }
    }

    /// Takes bytes from the front of `input` until the host asks for something. None: the input is
    /// used up.
    pub fn next<'a>(&'a mut self, input: &mut &[u8]) -> Option<Asked<'a>> {
        if core::mem::take(&mut self.is_whole) {
            return Some(self.ran());
        }
        let Self {
            receiver,
            expected,
            call,
            phase,
            is_whole,
            ..
        } = self;
        let damaged = |phase: &mut Phase, damage| {
            *phase = Phase::Unheard;
            Some(Asked::Damaged(damage))
        };
        loop {
            match receiver.next(input)? {
                // A hello of another form is one of another protocol.
                Ok(packet) if packet.kind == FrameKind::Hello => {
                    if numbers(packet.payload).is_some() {
                        break;
                    }
                }
                // Bytes for somebody else (STREAM-3).
                _ if *phase == Phase::Unheard => {}
                Ok(_) => break,
                Err(damage) => return damaged(phase, damage),
            }
        }
        let packet = receiver.last()?;
        if let (FrameKind::Hello, Some((_, number, _))) = (packet.kind, numbers(packet.payload)) {
            (*call, *expected, *phase) = (number, 1, Phase::Welcomed);
            return Some(Asked::Hello);
        }
        if packet.sequence != *expected {
            let (expected, found) = (*expected, packet.sequence);
            return damaged(phase, Damage::Sequence { expected, found });
        }
        *expected = expected.wrapping_add(1);
        match asked(packet, phase, is_whole) {
            Ok(asked) => Some(asked),
            Err(damage) => damaged(phase, damage),
        }
    }

    /// All pieces were given out.
    fn ran(&mut self) -> Asked<'static> {
        if let Phase::Loading { sum, so_far, .. } = self.phase
            && sum == so_far
        {
            self.phase = Phase::Running;
            return Asked::Run;
        }
        self.phase = Phase::Unheard;
        Asked::Damaged(Damage::Payload)
    }

    /// Answers a hello.
    pub fn welcome(&mut self, about: impl fmt::Display, out: &mut impl FnMut(&[u8])) {
        self.sender.restart();
        let mut text = InFrames::new(&mut self.sender, FrameKind::Welcome, out);
        text.push(&of_numbers(VERSION, self.call));
        // The writer takes everything.
        let _ = write!(text, "{about}");
        text.finish();
    }

    /// Sends an answer of the trace.
    pub fn message(&mut self, message: &[u8], out: &mut impl FnMut(&[u8])) {
        self.sender.send(FrameKind::Message, message, out);
    }

    /// Sends a piece of memory that has so many bytes, at the end of a recording.
    pub fn memory(
        &mut self,
        piece: &Piece,
        bytes: u64,
        fill: Fill<'_>,
        out: &mut impl FnMut(&[u8]),
    ) {
        send_piece(&mut self.sender, piece, bytes, fill, out);
    }

    /// The number of the host's call. None: none was welcomed, or it is gone.
    pub fn call(&self) -> Option<u32> {
        (self.phase != Phase::Unheard).then_some(self.call)
    }

    /// Says that it does not do what was asked, and why. It is over then.
    pub fn refuse(&mut self, why: impl fmt::Display, out: &mut impl FnMut(&[u8])) {
        self.phase = Phase::Unheard;
        let mut text = InFrames::new(&mut self.sender, FrameKind::Refusal, out);
        // As above.
        let _ = write!(text, "{why}");
        text.finish();
    }

    /// Says that the trace is over. The host may send another script.
    pub fn over(&mut self, out: &mut impl FnMut(&[u8])) {
        if self.phase == Phase::Running {
            self.phase = Phase::Welcomed;
        }
        self.sender.send(FrameKind::Over, &[], out);
    }

    /// Says that it is there.
    pub fn alive(&mut self, out: &mut impl FnMut(&[u8])) {
        self.sender.send(FrameKind::Alive, &[], out);
    }

    /// Forgets the host, from which nothing has come for too long.
    pub fn forget(&mut self) {
        self.phase = Phase::Unheard;
    }
}

/// What a frame of a host that was welcomed asks for.
fn asked<'a>(
    packet: Packet<'a>,
    phase: &mut Phase,
    is_whole: &mut bool,
) -> Result<Asked<'a>, Damage> {
    match (packet.kind, *phase) {
        (FrameKind::Begin, Phase::Welcomed) => {
            let wrong = Damage::Order(FrameKind::Begin);
            let (bytes, sum, options) = numbers(packet.payload).ok_or(wrong)?;
            let options = str::from_utf8(options).map_err(|_| wrong)?;
            *phase = Phase::Loading {
                left: bytes,
                sum,
                so_far: crc32_of(0, &[]),
            };
            *is_whole = bytes == 0;
            Ok(Asked::Begin { bytes, options })
        }
        (FrameKind::Script, Phase::Loading { left, sum, so_far }) => {
            let piece = packet.payload;
            let length = piece.len() as u32;
            let left = left
                .checked_sub(length)
                .ok_or(Damage::Order(FrameKind::Script))?;
            let so_far = crc32_of(so_far, piece);
            *phase = Phase::Loading { left, sum, so_far };
            *is_whole = left == 0;
            Ok(Asked::Script(piece))
        }
        (FrameKind::Alive, _) => Ok(Asked::Alive),
        (FrameKind::Leave, _) => {
            *phase = Phase::Unheard;
            Ok(Asked::Leave)
        }
        // It may cross the last answers.
        (FrameKind::End, Phase::Welcomed | Phase::Running) => Ok(Asked::End),
        (kind, _) => Err(Damage::Order(kind)),
    }
}
