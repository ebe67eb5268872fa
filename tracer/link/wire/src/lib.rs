//! How the kernel and the tracer on the host talk.
//!
//! ```text
//!   host ── fw_cfg files [`SCRIPT_FILE`], [`OPTIONS_FILE`] ─────────► kernel, once, at the boot
//!   host ── second serial port: control bytes ([`Control`]) ────────► kernel
//!   host ◄─ second serial port: messages ([`Header`], then bytes) ── kernel
//! ```
//!
//! A machine without fw_cfg (Bochs) has the two files in its initramfs, under the same names.
//!
//! If the host shares the machine's memory ([`Options::memory`]), the messages go through an
//! [`outbox`] there, and the serial port has only two kinds of messages: where things are in memory
//! ([`MemoryPlace`]), and empty ones, which say that there is something new in the outbox.
//!
//! A tracer that comes to a kernel that runs already has neither fw_cfg nor its memory: [`stream`]
//! is for that, over any line of bytes and with any kernel.
//!
//! # Invariants
//! WIRE-1. A message is its header and as many bytes as the header says. The header has a sum of
//!     those bytes ([`crc32`]). A reader that finds another sum, or a length above [`MOST_BYTES`],
//!     stops: it cannot know where the next message begins.
//!
//! # Contexts
//! Everything works in any context. Only [`Reader`], [`MemoryPlace`] and [`stream::HostEnd`]
//! allocate.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod outbox;
mod place;
pub mod stream;

use alloc::vec::Vec;
use core::fmt;

pub use place::{Extent, MapPart, MemoryPlace};

/// The script's bytes.
pub const SCRIPT_FILE: &str = "opt/trace/script";
/// How to run it: lines `KEY=VALUE`, see [`Options`].
pub const OPTIONS_FILE: &str = "opt/trace/options";

/// The most KiB of a CPU's ring that a kernel takes: see [`Options::ring_kib`].
pub const MOST_RING_KIB: u32 = 16 << 10;

/// The most bytes of a message.
pub const MOST_BYTES: u32 = 64 << 20;

/// A byte that the host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// End the trace now. The kernel detaches all, sends what is left, and powers off.
    End,
}

impl Control {
    /// The byte as it is sent.
    pub const fn byte(self) -> u8 {
        match self {
            Self::End => b'E',
        }
    }

    /// The control of that byte. Others have no meaning, and are ignored.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            b'E' => Some(Self::End),
            _ => None,
        }
    }
}

/// The header in front of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of bytes of the message, without the header.
    pub bytes: u32,
    /// The [`crc32`] of these bytes.
    pub sum: u32,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = 8;

    /// The header of a message. None: it is longer than [`MOST_BYTES`].
    pub fn of(message: &[u8]) -> Option<Self> {
        let bytes = u32::try_from(message.len()).ok()?;
        (bytes <= MOST_BYTES).then(|| Self {
            bytes,
            sum: crc32(message),
        })
    }

    /// The header as it is sent.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.bytes.to_le_bytes();
        let [e, f, g, h] = self.sum.to_le_bytes();
        [a, b, c, d, e, f, g, h]
    }

    fn decode([a, b, c, d, e, f, g, h]: [u8; Self::BYTES]) -> Self {
        Self {
            bytes: u32::from_le_bytes([a, b, c, d]),
            sum: u32::from_le_bytes([e, f, g, h]),
        }
    }
}

/// The sum of Ethernet and zip files (IEEE 802.3, reflected, all ones at both ends).
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32_of(0, bytes)
}

/// The sum of more bytes after those that have the sum `before`; of no bytes it is 0.
pub fn crc32_of(before: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!before, |sum, byte| {
        sum >> 8 ^ TABLE[usize::from(sum as u8 ^ byte)]
    })
}

/// The sums of single bytes.
static TABLE: [u32; 256] = {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut sum = at as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = sum >> 1 ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[at] = sum;
        at += 1;
    }
    table
};

/// Why a stream of messages cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The bytes of a message have another sum than its header says.
    Sum { expected: u32, found: u32 },
    /// The header says more than [`MOST_BYTES`].
    TooLong { bytes: u32 },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum { expected, found } => write!(
                f,
                "a message of the kernel has the sum {found:#x}, and its header says \
                 {expected:#x}; bytes were lost on the serial line, so run it again"
            ),
            Self::TooLong { bytes } => write!(
                f,
                "the header of a message says {bytes} bytes, and the most is {MOST_BYTES}; bytes \
                 were lost on the serial line, so run it again"
            ),
        }
    }
}

impl core::error::Error for WireError {}

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: Vec<u8>,
    /// How many of them have been given out.
    taken: usize,
}

impl Reader {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            taken: 0,
        }
    }

    /// Adds bytes, as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all its bytes are there.
    ///
    /// # Errors
    /// [`WireError`]; the same again at the next call.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, WireError> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((header, rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let header = Header::decode(*header);
        if header.bytes > MOST_BYTES {
            return Err(WireError::TooLong {
                bytes: header.bytes,
            });
        }
        let Some(message) = rest.get(..header.bytes as usize) else {
            return Ok(None);
        };
        let found = crc32(message);
        if found != header.sum {
            return Err(WireError::Sum {
                expected: header.sum,
                found,
            });
        }
        self.taken += Header::BYTES + message.len();
        Ok(Some(message))
    }

    /// How many bytes of an incomplete message have come.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.taken
    }
}

/// What a traced kernel does during a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// The program that runs in ring 3 and its arguments, divided by blanks. None: the default one.
    pub run: Option<&'a str>,
    /// The trace ends after this many nanoseconds. None: it ends with the program.
    pub nanoseconds: Option<u64>,
    /// The host reads the machine's memory.
    pub memory: bool,
    /// KiB of each CPU's ring. None: as it is.
    pub ring_kib: Option<u32>,
    /// The rings overwrite their oldest records. No code in the machine reads them, so no record is
    /// sent and no request is served.
    pub overwrite: bool,
    /// The machine shows that each of its CPUs gets on: [`outbox::FED`].
    pub watchdog: bool,
    /// The host reads the script's maps in memory while it runs ([`MemoryPlace::Map`]).
    pub maps: bool,
    /// The tracer's own tasks are traced like all.
    pub with_tracer: bool,
}

impl<'a> Options<'a> {
    /// Reads the text of [`OPTIONS_FILE`]. Lines with other keys are ignored.
    pub fn parse(text: &'a str) -> Self {
        let mut options = Self::default();
        for line in text.lines() {
            match line.split_once('=') {
                Some(("run", value)) => options.run = Some(value),
                Some(("nanoseconds", value)) => options.nanoseconds = value.parse().ok(),
                Some(("ring_kib", value)) => options.ring_kib = value.parse().ok(),
                Some(("memory", value)) => options.memory = value == "1",
                Some(("overwrite", value)) => options.overwrite = value == "1",
                Some(("watchdog", value)) => options.watchdog = value == "1",
                Some(("maps", value)) => options.maps = value == "1",
                Some(("with_tracer", value)) => options.with_tracer = value == "1",
                _ => {}
            }
        }
        options
    }
}

impl fmt::Display for Options<'_> {
    /// Writes the options as [`Options::parse`] reads them. A line break in `run` would end it, so
    /// it becomes a blank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(run) = self.run {
            f.write_str("run=")?;
            for part in run.split_inclusive(['\n', '\r']) {
                let text = part.trim_end_matches(['\n', '\r']);
                f.write_str(text)?;
                if text.len() < part.len() {
                    f.write_str(" ")?;
                }
            }
            f.write_str("\n")?;
        }
        if let Some(nanoseconds) = self.nanoseconds {
            writeln!(f, "nanoseconds={nanoseconds}")?;
        }
        if let Some(kib) = self.ring_kib {
            writeln!(f, "ring_kib={kib}")?;
        }
        let switches = [
            ("memory", self.memory),
            ("overwrite", self.overwrite),
            ("watchdog", self.watchdog),
            ("maps", self.maps),
            ("with_tracer", self.with_tracer),
        ];
        for (name, _) in switches.iter().filter(|(_, on)| *on) {
            writeln!(f, "{name}=1")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    fn sent(message: &[u8]) -> Vec<u8> {
        let mut bytes = Header::of(message).unwrap().encode().to_vec();
        bytes.extend_from_slice(message);
        bytes
    }

    #[test]
    fn messages_come_out_whole_however_the_bytes_come() {
        let messages: [&[u8]; 3] = [b"one", b"", b"three"];
        let stream = messages.map(sent).concat();
        for step in 1..=stream.len() {
            let mut reader = Reader::new();
            let mut found = Vec::new();
            for piece in stream.chunks(step) {
                reader.push(piece);
                while let Some(message) = reader.next_message().unwrap() {
                    found.push(message.to_vec());
                }
            }
            assert_eq!(found, messages, "in pieces of {step}");
            assert_eq!(reader.pending(), 0);
        }
    }

    #[test]
    fn a_damaged_message_and_a_wrong_length_end_the_stream() {
        let mut damaged = sent(b"text");
        *damaged.last_mut().unwrap() ^= 1;
        let mut reader = Reader::new();
        reader.push(&damaged);
        for _ in 0..2 {
            assert!(matches!(reader.next_message(), Err(WireError::Sum { .. })));
        }
        let mut reader = Reader::new();
        reader.push(&[0xff; 8]);
        let error = reader.next_message();
        assert_eq!(error, Err(WireError::TooLong { bytes: u32::MAX }));
    }

    #[test]
    fn options_are_read_as_they_were_written() {
        use alloc::string::ToString;
        let options = Options {
            run: Some("workload 3 a=b"),
            nanoseconds: Some(5),
            ring_kib: Some(64),
            memory: true,
            overwrite: false,
            watchdog: true,
            maps: true,
            with_tracer: true,
        };
        assert_eq!(Options::parse(&options.to_string()), options);
        assert_eq!(Options::parse(""), Options::default());
        let broken = Options {
            run: Some("a\nnanoseconds=1"),
            ..Options::default()
        };
        let text = broken.to_string();
        assert_eq!(Options::parse(&text).nanoseconds, None, "{text}");
    }
}
