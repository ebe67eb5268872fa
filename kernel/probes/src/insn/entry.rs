//! Facts about the entry of a function, found when its kernel is built.
//!
//! Most probes are at entries, and a tool may ask for one at each function of a kernel. To register
//! one takes decoding: the instruction, those that a jump displaces, and often much of the
//! function, because a branch in it may lead under the jump. The code of a kernel does not change,
//! so this can be done once. The program that makes a kernel's file asks [`EntryFacts::of`] for
//! each function, and stores the 16 bits that it gets in the file. The kernel hands them to the
//! probes ([`Symbol::entry`](crate::platform::Symbol::entry)).
//!
//! Two kinds of entries have facts:
//! - an open one: its displaced instructions are executed unchanged at any address, one after the
//!   other;
//! - a closed one: no jump may be there, because of the function's code. Its first instruction is
//!   executed unchanged at any address.
//!
//! One or two entries in a hundred are of neither kind. They are decoded, as all are in a kernel
//! that has no facts.
//!
//! ```text
//!   bits   0..5   bytes of the displaced instructions, 5 to 19; 0: no jump
//!          5..9   open: whether one begins 1, 2, 3 or 4 bytes after the entry;
//!                 closed: bytes of the first instruction, 1 to 15
//!          9      whether the flags are dead at the entry, if it is open
//!         10      whether a landing pad comes before the entry
//! ```
//! So 0 stands for an entry without facts.

use super::{
    MAX_INSN_BYTES,
    boundary::{Instructions, landing_pad_len},
    classify::{Class, classify},
    decode::Insn,
    encoding::JUMP_BYTES,
    region::FunctionCode,
};

/// The most bytes that a jump displaces: four, and the longest instruction.
pub const MAX_DISPLACED: usize = JUMP_BYTES - 1 + MAX_INSN_BYTES;

const LEN: u16 = 0x1f;
const STARTS: u32 = 5;
const FIRST_LEN: u16 = 0xf;
const DEAD_FLAGS: u16 = 1 << 9;
const LANDING_PAD: u16 = 1 << 10;
const LANDING_PAD_BYTES: u64 = 4;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryFacts(u16);

impl EntryFacts {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self(0);

    /// Those of a function that is as it is without probes.
    pub fn of(function: &mut FunctionCode) -> Self {
        Self::found(function).unwrap_or(Self::UNKNOWN)
    }

    fn found(function: &mut FunctionCode) -> Option<Self> {
        let pad = landing_pad_len(function.bytes());
        let entry = function.start() + pad as u64;
        // A jump that reaches past the function needs to know what is there.
        if function.len() < (pad + JUMP_BYTES) as u64 {
            return None;
        }
        let mut bits = match function.region(&[], entry)? {
            Ok(region) => {
                let insns = region.insns();
                let plain = |insn| Class::of(insn).is_ok_and(|class| is_plain(insn, class));
                if !insns.iter().all(plain) {
                    return None;
                }
                let len: usize = insns.iter().map(Insn::len).sum();
                let starts = insns.iter().skip(1).map(|insn| insn.ip() - entry);
                let starts = starts.fold(0, |starts, at| starts | 1 << (at - 1));
                let is_dead = function.flags_are_dead(entry);
                // At most 19.
                len as u16 | starts << STARTS | if is_dead { DEAD_FLAGS } else { 0 }
            }
            Err(_) => {
                let bytes = &function.bytes()[pad..];
                let first = Instructions::new(bytes, entry).next()?.ok()?;
                let class = classify(&first, &bytes[first.len()..]).ok()?;
                // At most 15.
                is_plain(&first, class).then(|| (first.len() as u16) << STARTS)?
            }
        };
        if pad > 0 {
            bits |= LANDING_PAD;
        }
        Some(Self(bits))
    }

    /// The bits that are stored.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// From what [`EntryFacts::to_bits`] has given.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Whether something is known.
    #[inline]
    pub(crate) fn are_known(self) -> bool {
        self != Self::UNKNOWN
    }

    /// Bytes of the landing pad before the entry.
    #[inline]
    pub(crate) fn landing_pad_len(self) -> u64 {
        if self.0 & LANDING_PAD != 0 {
            LANDING_PAD_BYTES
        } else {
            0
        }
    }

    /// Bytes of the instructions that a jump displaces; 0 if no jump may be there, and if nothing
    /// is known.
    pub(crate) fn displaced_len(self) -> usize {
        usize::from(self.0 & LEN)
    }

    /// Whether a displaced instruction begins `behind` bytes after an open entry. `behind` is less
    /// than [`JUMP_BYTES`].
    pub(crate) fn begins(self, behind: usize) -> bool {
        behind == 0 || self.0 >> STARTS >> (behind - 1) & 1 != 0
    }

    /// Bytes of the first instruction; 0 if nothing is known.
    #[inline]
    pub(crate) fn first_len(self) -> usize {
        match self.displaced_len() {
            0 => usize::from(self.0 >> STARTS & FIRST_LEN),
            len => {
                let mut behind = 1..JUMP_BYTES;
                behind.find(|behind| self.begins(*behind)).unwrap_or(len)
            }
        }
    }

    /// The same as [`FunctionCode::flags_are_dead`], for an open entry.
    pub(crate) fn flags_are_dead(self) -> bool {
        self.0 & DEAD_FLAGS != 0
    }
}

/// The register that the instruction of these bytes pushes, if it is a `push` as compilers write
/// it.
pub(crate) fn pushed_register(bytes: &[u8]) -> Option<usize> {
    match *bytes {
        [opcode @ 0x50..=0x57] => Some(usize::from(opcode & 7)),
        [0x41, opcode @ 0x50..=0x57] => Some(usize::from(opcode & 7) + 8),
        _ => None,
    }
}

/// Whether an instruction of this class, which may be probed, is executed unchanged at any address,
/// and its bytes say all that the probes want to know of it.
pub(crate) fn is_plain(insn: &Insn, class: Class) -> bool {
    class == Class::Ordinary
        && insn.ip_relative_offset().is_none()
        && !insn.is_forced_emulation_prefix()
        && insn.pushed_register() == pushed_register(insn.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0xffff_ffff_8001_2340;

    fn facts(bytes: &[u8]) -> EntryFacts {
        EntryFacts::of(&mut FunctionCode::new(bytes.to_vec(), START))
    }

    #[test]
    fn an_open_entry_has_its_instructions_and_flags() {
        // push rbp; mov rbp, rsp; push r15; ret
        let frame = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0xc3];
        let known = facts(&frame);
        assert_eq!((known.displaced_len(), known.first_len()), (6, 1));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|at| known.begins(at)),
            [true, true, false, false, true]
        );
        assert!(known.are_known() && !known.flags_are_dead());
        assert_eq!(known.landing_pad_len(), 0);
        assert_eq!(EntryFacts::from_bits(known.to_bits()), known);
        // endbr64; add rsp, -0x180: one instruction of seven bytes, which sets all flags.
        let padded = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x81, 0xc4, 0x80, 0xfe, 0xff, 0xff, 0xc3,
        ];
        let known = facts(&padded);
        assert_eq!((known.displaced_len(), known.first_len()), (7, 7));
        assert!(known.flags_are_dead());
        assert_eq!(known.landing_pad_len(), 4);
    }

    #[test]
    fn a_closed_entry_has_its_first_instruction() {
        // push rbp; nop x 4; jmp rax
        let closed = facts(&[0x55, 0x90, 0x90, 0x90, 0x90, 0xff, 0xe0]);
        assert_eq!((closed.displaced_len(), closed.first_len()), (0, 1));
        assert!(closed.are_known());
        // The longest instruction there is, and a branch back under the jump.
        let longest = [
            0x64, 0x64, 0x64, 0x48, 0xc7, 0x84, 0x08, 0, 0x10, 0, 0, 1, 0, 0, 0,
        ];
        let closed = facts(&[&longest[..], &[0xeb, 0xf0]].concat());
        assert_eq!((closed.displaced_len(), closed.first_len()), (0, 15));
        // sti; hlt may not be probed at all, and a function of two bytes is too short for a jump.
        assert_eq!(
            facts(&[0xfb, 0xf4, 0x90, 0x90, 0x90, 0xc3]),
            EntryFacts::UNKNOWN
        );
        assert_eq!(facts(&[0x55, 0xc3]), EntryFacts::UNKNOWN);
    }

    /// Each is changed, carried out or refused where it is executed elsewhere.
    #[test]
    fn entries_that_are_not_executed_unchanged_are_not_known() {
        let others: [&[u8]; 7] = [
            &[0x48, 0x8b, 0x05, 0, 1, 0, 0], // mov rax, [rip + 0x100]
            &[0xe8, 0, 1, 0, 0],             // call
            &[0x74, 0x70],                   // je
            &[0x9c],                         // pushfq
            &[0xfa],                         // cli
            &[0x40, 0x55],                   // push rbp, with a prefix of no use
            &[0x0f, 0x0b, b'x', b'e', b'n'], // a prefix for forced emulation
        ];
        for first in others {
            let code = [first, &[0x90; 6][..], &[0xc3]].concat();
            assert_eq!(facts(&code), EntryFacts::UNKNOWN, "{first:x?}");
        }
        // After the first instruction, too.
        assert_eq!(
            facts(&[0x90, 0x74, 0x70, 0x90, 0x90, 0x90, 0xc3]),
            EntryFacts::UNKNOWN
        );
    }
}
