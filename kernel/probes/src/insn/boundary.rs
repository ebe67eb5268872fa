//! Where instructions start: linear decoding from a function's first byte.
//!
//! x86-64 has no marks between instructions, and bytes in the middle of one may decode as well. So
//! an address counts as a start only if decoding from the function's first byte arrives there. What
//! compilers put between instructions decodes as instructions, too: padding, and the landing pad of
//! indirect branches.
//!
//! | type | yields | for |
//! |---|---|---|
//! | [`Instructions`] | each [`Insn`] with its bytes | reading code |
//! | `DecodedForms` | each decoded form, without a copy | facts about whole functions |
//! | [`BoundaryWalk`] | the instruction at an address | registrations, in ascending order |
//!
//! The bytes are the original ones: probes must have been undone in them.

use iced_x86::{Code, Decoder, Instruction};

use super::decode::{DecodeError, Insn, decode, decode_by, decoder, forced_emulation_len};

/// The instructions of a piece of code, in order. It ends after the last byte, or after the first
/// error.
pub struct Instructions<'a> {
    /// The code that is left, and its address.
    bytes: &'a [u8],
    ip: u64,
    /// The decoder of all of the code.
    decoder: Decoder<'a>,
}

impl<'a> Instructions<'a> {
    /// Decodes `bytes`, the original code at `start`. Breakpoints and jumps of probes must have
    /// been undone.
    pub fn new(bytes: &'a [u8], start: u64) -> Self {
        Self {
            bytes,
            ip: start,
            decoder: decoder(bytes, start),
        }
    }
}

impl Iterator for Instructions<'_> {
    type Item = Result<Insn, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        match decode_by(&mut self.decoder, self.bytes, self.ip) {
            Ok(insn) => {
                self.bytes = &self.bytes[insn.len()..];
                self.ip = insn.next_ip();
                // One instruction may be more than the decoder has taken.
                let behind = self.decoder.max_position() - self.bytes.len();
                if self.decoder.position() != behind {
                    let is_set = self.decoder.set_position(behind);
                    debug_assert!(is_set.is_ok(), "inside the code");
                    self.decoder.set_ip(self.ip);
                }
                Some(Ok(insn))
            }
            Err(_) => {
                // The decoder sees more than an instruction may have, so its reason may be another.
                let insn = decode(self.bytes, self.ip);
                self.bytes = &[];
                Some(insn)
            }
        }
    }
}

/// The same for a walk over much code that asks what instructions do, not which bytes they have.
/// Without a copy of each instruction, and of its bytes, a step takes less than half.
pub(super) struct DecodedForms<'a> {
    bytes: &'a [u8],
    decoder: Decoder<'a>,
    form: Instruction,
    has_failed: bool,
}

impl<'a> DecodedForms<'a> {
    /// The same as [`Instructions::new`].
    pub(super) fn new(bytes: &'a [u8], start: u64) -> Self {
        Self {
            bytes,
            decoder: decoder(bytes, start),
            form: Instruction::default(),
            has_failed: false,
        }
    }

    /// The next instruction; `None` after the last one, or after the first error.
    pub(super) fn next(&mut self) -> Option<Result<&Instruction, DecodeError>> {
        if self.has_failed || !self.decoder.can_decode() {
            return None;
        }
        let (offset, ip) = (self.decoder.position(), self.decoder.ip());
        self.decoder.decode_out(&mut self.form);
        if self.form.is_invalid() {
            self.has_failed = true;
            // The decoder sees more than an instruction may have, so its reason may be another.
            let reason = decode(&self.bytes[offset..], ip).err();
            return Some(Err(reason.unwrap_or(DecodeError::Invalid { ip })));
        }
        if self.form.code() == Code::Ud2
            && let Some(len) = forced_emulation_len(&self.bytes[offset..])
        {
            self.form.set_len(len);
            self.form.set_next_ip(ip.wrapping_add(len as u64));
            let is_set = self.decoder.set_position(offset + len);
            debug_assert!(is_set.is_ok(), "inside the code");
            self.decoder.set_ip(self.form.next_ip());
        }
        Some(Ok(&self.form))
    }
}

/// Why an address is not the start of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryError {
    /// The address is inside the instruction at `start`, the nearest start before it.
    MidInstruction { start: u64 },
    /// Decoding from the function's start does not get as far as the address, or not beyond it.
    Undecodable(DecodeError),
}

/// How many instructions a walk decodes at once, when it is asked a second time.
const RUN: usize = 8;

/// Finds instructions of one function by their addresses. It goes on where it stopped, so targets
/// in ascending order cost one decoding of the function altogether.
#[derive(Clone, Debug, Default)]
pub struct BoundaryWalk {
    /// Instructions that follow each other: the one found last is at `found`. Those after it were
    /// decoded with it, because who asks about two instructions of a function will ask about more,
    /// and a decoder costs more than the decoding of an instruction.
    run: [Option<Insn>; RUN],
    found: usize,
}

impl BoundaryWalk {
    /// A walk that begins at the function's start.
    pub const fn new() -> Self {
        Self {
            run: [None; RUN],
            found: 0,
        }
    }

    /// Returns the instruction that starts at `target`. It is found by decoding `function_bytes`
    /// (original code, whose first byte is at `function_start`) from the start. All calls of one
    /// walk are about the same function.
    ///
    /// `int3` padding counts as instructions of one byte. The instruction after a forced-emulation
    /// prefix belongs to the prefix.
    ///
    /// # Errors
    /// [`BoundaryError`]. No code is at a target outside the function, so there it is
    /// [`DecodeError::Truncated`].
    pub fn find(
        &mut self,
        function_bytes: &[u8],
        function_start: u64,
        target: u64,
    ) -> Result<&Insn, BoundaryError> {
        let offset = target.wrapping_sub(function_start);
        let no_code = BoundaryError::Undecodable(DecodeError::Truncated { ip: target });
        if offset >= function_bytes.len() as u64 {
            return Err(no_code);
        }
        let known = self.run.iter().map_while(Option::as_ref);
        let at_target = known
            .clone()
            .skip(self.found)
            .position(|insn| insn.ip() == target);
        if let Some(distance) = at_target {
            self.found += distance;
        } else {
            let last = known.last().copied();
            self.decode_to(function_bytes, function_start, target, last)?;
        }
        self.run[self.found].as_ref().ok_or(no_code)
    }

    /// Decodes from behind `last`, or from the function's start, to `target`, which is in the
    /// function. It is then the first of the run.
    fn decode_to(
        &mut self,
        function_bytes: &[u8],
        function_start: u64,
        target: u64,
        last: Option<Insn>,
    ) -> Result<(), BoundaryError> {
        *self = Self::new();
        // After a prefix the instruction is none of its own, so there the walk starts anew.
        let from = last
            .filter(|last| last.next_ip() <= target && !last.is_forced_emulation_prefix())
            .map_or(function_start, |last| last.next_ip());
        let bytes = &function_bytes[from.wrapping_sub(function_start) as usize..];
        let mut instructions = Instructions::new(bytes, from);
        let mut prefix_start = None;
        // The walk gets to the target, or beyond it, before the function's end.
        for insn in &mut instructions {
            let insn = insn.map_err(BoundaryError::Undecodable)?;
            let start = prefix_start.take().unwrap_or(insn.ip());
            if insn.is_forced_emulation_prefix() {
                prefix_start = Some(start);
            }
            if start == target {
                self.run[0] = Some(insn);
                break;
            }
            if insn.next_ip().wrapping_sub(target) as i64 > 0 {
                return Err(BoundaryError::MidInstruction { start });
            }
        }
        if last.is_some() && prefix_start.is_none() {
            for place in &mut self.run[1..] {
                match instructions.next() {
                    // What `ud2` is depends on the bytes after it, which may not be known yet.
                    Some(Ok(insn)) if insn.code() != Code::Ud2 => *place = Some(insn),
                    // An error belongs to the one who asks about that instruction.
                    _ => break,
                }
            }
        }
        Ok(())
    }
}

/// The length of the landing pad at the start of a function: 4 for `endbr64`, or for the 4-byte
/// no-op that replaces it in functions that are never called indirectly. Else 0. A probe of the
/// function's entry goes after it.
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

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{super::xorshift, *};
    use std::vec::Vec;

    /// Both walks over bytes of all kinds, many of which are no instructions.
    #[test]
    fn decoded_forms_are_those_of_the_instructions() {
        const START: u64 = 0xffff_ffff_8012_3450;
        let mut random = xorshift(0x2545_f491_4f6c_dd1d);
        let mut next = || (random() >> 24) as u8;
        let (mut walked, mut failed, mut prefixed) = (0, 0, 0);
        for _ in 0..50_000 {
            let mut bytes: Vec<u8> = (0..next() % 40).map(|_| next()).collect();
            let at = usize::from(next()) % (bytes.len() + 1);
            // Rare beginnings: forced emulation, REX2, EVEX of map 4, too many prefixes.
            let rare: [&[u8]; 6] = [b"", b"", b"\x0f\x0bxen", b"\xd5", b"\x62\xf4", &[0x66; 15]];
            bytes.splice(
                at..at,
                rare[usize::from(next()) % rare.len()].iter().copied(),
            );
            let mut forms = DecodedForms::new(&bytes, START);
            for insn in Instructions::new(&bytes, START) {
                let form = forms.next().expect("both have one");
                match (insn, form) {
                    (Ok(insn), Ok(form)) => {
                        assert_eq!(insn.instruction(), form, "{bytes:x?}");
                        assert_eq!((insn.ip(), insn.next_ip()), (form.ip(), form.next_ip()));
                        assert_eq!(insn.len(), form.len(), "{bytes:x?}");
                        walked += 1;
                        prefixed += u32::from(insn.is_forced_emulation_prefix());
                    }
                    (Err(insn), Err(form)) => {
                        assert_eq!(insn, form, "{bytes:x?}");
                        failed += 1;
                    }
                    (insn, form) => panic!("{insn:?} and {form:?} of {bytes:x?}"),
                }
            }
            assert!(forms.next().is_none(), "{bytes:x?}");
        }
        assert!(
            walked > 50_000 && failed > 1000 && prefixed > 100,
            "{walked} {failed} {prefixed}"
        );
    }
}
