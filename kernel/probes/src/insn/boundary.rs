//! Where instructions start: linear decoding from a function's first byte.

use core::fmt;

use iced_x86::Code;

use super::{
    decode::{DecodeError, Insn, decode},
    refusal::errno,
};

/// The instructions of a piece of code, in order. It ends after the last byte, or after the first
/// error.
#[derive(Clone, Debug)]
pub struct Instructions<'a> {
    bytes: &'a [u8],
    ip: u64,
}

impl<'a> Instructions<'a> {
    /// Decodes `bytes`, the original code at `start`. Breakpoints and jumps of probes must have
    /// been undone.
    pub const fn new(bytes: &'a [u8], start: u64) -> Self {
        Self { bytes, ip: start }
    }
}

impl Iterator for Instructions<'_> {
    type Item = Result<Insn, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let insn = decode(self.bytes, self.ip);
        match &insn {
            Ok(insn) => {
                self.bytes = &self.bytes[insn.len()..];
                self.ip = insn.next_ip();
            }
            Err(_) => self.bytes = &[],
        }
        Some(insn)
    }
}

/// Why an address is not the start of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryError {
    /// The address is not inside the function's bytes.
    Outside { at: u64, start: u64, end: u64 },
    /// The address is inside the instruction at `start`.
    MidInstruction { at: u64, start: u64 },
    /// Decoding from the function's start does not get as far as the address, or not beyond it.
    Undecodable { at: u64, cause: DecodeError },
}

impl BoundaryError {
    /// The errno of a registration that fails so, positive.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Outside { .. } | Self::MidInstruction { .. } => errno::EILSEQ,
            Self::Undecodable { cause, .. } => cause.errno(),
        }
    }
}

impl fmt::Display for BoundaryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside { at, start, end } => write!(
                f,
                "{at:#x} is outside the function at {start:#x}..{end:#x}; give an offset below \
                    {:#x}",
                end.wrapping_sub(*start)
            ),
            Self::MidInstruction { at, start } => write!(
                f,
                "{at:#x} is inside an instruction; the nearest start is {start:#x}"
            ),
            Self::Undecodable { at, cause } => {
                write!(
                    f,
                    "whether an instruction starts at {at:#x} cannot be told: {cause}"
                )
            }
        }
    }
}

impl core::error::Error for BoundaryError {}

/// Returns the instruction that starts at `target`. It is found by decoding `function_bytes`
/// (original code, whose first byte is at `function_start`) from the start.
///
/// `int3` padding counts as instructions of one byte. The instruction behind a forced-emulation
/// prefix belongs to the prefix.
///
/// # Errors
/// [`BoundaryError`]; `MidInstruction` names the nearest start before `target`.
pub fn find_boundary(
    function_bytes: &[u8],
    function_start: u64,
    target: u64,
) -> Result<Insn, BoundaryError> {
    BoundaryWalk::new()
        .find(function_bytes, function_start, target)
        .copied()
}

/// [`find_boundary`] for several targets in one function. It goes on where it stopped, so targets
/// in ascending order cost one decoding of the function altogether.
#[derive(Clone, Debug, Default)]
pub struct BoundaryWalk {
    /// The instruction found last.
    found: Option<Insn>,
    /// The one behind it, if it was asked for.
    following: Option<Insn>,
}

impl BoundaryWalk {
    /// A walk that begins at the function's start.
    pub const fn new() -> Self {
        Self {
            found: None,
            following: None,
        }
    }

    /// As [`find_boundary`]. All calls of one walk are about the same function.
    ///
    /// # Errors
    /// Those of [`find_boundary`].
    pub fn find(
        &mut self,
        function_bytes: &[u8],
        function_start: u64,
        target: u64,
    ) -> Result<&Insn, BoundaryError> {
        let offset = target.wrapping_sub(function_start);
        if offset >= function_bytes.len() as u64 {
            return Err(BoundaryError::Outside {
                at: target,
                start: function_start,
                end: function_start.wrapping_add(function_bytes.len() as u64),
            });
        }
        let following = self.following.take();
        // Behind a prefix the instruction is none of its own, so there the walk starts anew.
        let from = match self.found.take() {
            Some(found) if found.next_ip() <= target && !found.is_forced_emulation_prefix() => {
                found.next_ip()
            }
            _ => function_start,
        };
        let ahead = following.filter(|insn| insn.ip() == from);
        let undecoded = ahead.as_ref().map_or(from, Insn::next_ip);
        let rest = &function_bytes[undecoded.wrapping_sub(function_start) as usize..];
        let mut prefix_start = None;
        for insn in ahead
            .map(Ok)
            .into_iter()
            .chain(Instructions::new(rest, undecoded))
        {
            let insn = insn.map_err(|cause| BoundaryError::Undecodable { at: target, cause })?;
            let start = prefix_start.take().unwrap_or(insn.ip());
            if insn.is_forced_emulation_prefix() {
                prefix_start = Some(start);
            }
            if start == target {
                return Ok(self.found.insert(insn));
            }
            if insn.next_ip().wrapping_sub(function_start) > offset {
                return Err(BoundaryError::MidInstruction { at: target, start });
            }
        }
        unreachable!("instructions cover the bytes without a gap, and the target is among them")
    }

    /// The instruction found last, and the one behind it, if there is one.
    pub fn found(
        &mut self,
        function_bytes: &[u8],
        function_start: u64,
    ) -> Option<(&Insn, Option<&Insn>)> {
        let found = self.found.as_ref()?;
        let next_ip = found.next_ip();
        let rest = function_bytes
            .get(next_ip.wrapping_sub(function_start) as usize..)
            .unwrap_or_default();
        self.following = Instructions::new(rest, next_ip).next().and_then(Result::ok);
        Some((found, self.following.as_ref()))
    }
}

/// The length of the landing pad at the start of a function: 4 for `endbr64`, or for the 4-byte
/// no-op that replaces it in functions that are never called indirectly. Else 0. A probe of the
/// function's entry goes behind it.
pub fn landing_pad_len(function_bytes: &[u8]) -> usize {
    match function_bytes {
        [0xf3, 0x0f, 0x1e, 0xfa, ..] | [0x66, 0x0f, 0x1f, 0x00, ..] => 4,
        _ => 0,
    }
}

impl Insn {
    /// Whether this is `int3`: padding, or a foreign breakpoint.
    pub fn is_int3(&self) -> bool {
        self.code() == Code::Int3
    }
}
