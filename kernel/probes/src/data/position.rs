//! Where the probed code is, for each offset into a slot or detour.
//!
//! A fault in a slot and a stack walk ask this. The translator knows the answer ([`Position`]), but
//! neither of them may need the translator. So the answers are kept, packed into 8 bytes each,
//! because every site has some.

use crate::insn::{Position, ResumeIp, Translation};

/// The [`Position`] of the probed code from one offset on, up to the next one that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedPosition {
    /// How far the probed code's instruction pointer is from the probed address. If `stacked`: how
    /// far from RSP the word is that holds it.
    ip: i32,
    /// The number to add to RSP to get the probed code's stack pointer.
    pub(crate) rsp_correction: i16,
    /// The first offset that this is for. 0: this is unused.
    from: u8,
    stacked: bool,
}

impl PackedPosition {
    /// The probed address itself.
    pub(crate) const PROBED: Self = Self {
        ip: 0,
        rsp_correction: 0,
        from: 0,
        stacked: false,
    };

    /// The probed address itself, with something on the stack.
    pub(crate) const fn probed(rsp_correction: i16) -> Self {
        Self {
            rsp_correction,
            ..Self::PROBED
        }
    }

    /// Packs `position`, which is that from offset `from` on, for a probe at `probed`. None if it
    /// is too far away.
    pub(crate) fn new(from: u8, position: Position, probed: u64) -> Option<Self> {
        let (ip, stacked) = match position.ip {
            ResumeIp::Known(ip) => {
                let distance = ip.wrapping_sub(probed) as i64;
                (distance.try_into().ok()?, false)
            }
            ResumeIp::Stacked(offset) => (offset, true),
        };
        Some(Self {
            ip,
            rsp_correction: position.rsp_correction.try_into().ok()?,
            from,
            stacked,
        })
    }

    /// So many bytes after the probed address, from that offset on: of code that is executed
    /// unchanged elsewhere.
    pub(crate) const fn behind(bytes: u8) -> Self {
        Self {
            ip: bytes as i32,
            from: bytes,
            ..Self::PROBED
        }
    }

    /// The first offset that this is for.
    pub(crate) fn from(&self) -> usize {
        self.from.into()
    }

    /// Whether both are the same position, from whatever offset on.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        (self.ip, self.stacked, self.rsp_correction)
            == (other.ip, other.stacked, other.rsp_correction)
    }

    /// The instruction pointer of the probed code, for a probe at `probed` and this RSP. `read`
    /// reads a word of the stack.
    pub(crate) fn ip(&self, probed: u64, sp: u64, read: impl FnOnce(u64) -> Option<u64>) -> u64 {
        if self.stacked {
            read(sp.wrapping_add_signed(self.ip.into())).unwrap_or(probed)
        } else {
            probed.wrapping_add_signed(self.ip.into())
        }
    }
}

/// The positions of a slot. A slot that ends in a jump back needs 4 at the most, any other 7.
/// Before the first one the position is the probed address, with nothing to add to RSP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positions<const N: usize>([PackedPosition; N]);

impl<const N: usize> Positions<N> {
    pub(crate) const NONE: Self = Self([PackedPosition::PROBED; N]);

    /// Those of an instruction of `len` bytes that is executed unchanged.
    pub(crate) const fn of_plain(len: u8) -> Self {
        let mut positions = Self::NONE;
        positions.0[0] = PackedPosition::behind(len);
        positions
    }

    /// Those of `code`. None if it needs more than fit, which no translation does.
    pub(crate) fn of(code: &Translation) -> Option<Self> {
        let mut positions = Self::NONE;
        let mut unused = positions.0.iter_mut();
        let mut last = PackedPosition::PROBED;
        for (offset, position) in code.positions() {
            let packed = PackedPosition::new(offset as u8, position, code.probed_ip())?;
            if !packed.is_same_as(&last) {
                last = packed;
                *unused.next()? = last;
            }
        }
        Some(positions)
    }

    /// The position at `offset`.
    pub(crate) fn at(&self, offset: usize) -> PackedPosition {
        self.0
            .iter()
            .take_while(|packed| packed.from != 0 && packed.from() <= offset)
            .last()
            .copied()
            .unwrap_or(PackedPosition::PROBED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::{Ending, Position, decode, translate};

    const PROBED: u64 = 0xffff_ffff_8001_2340;
    const SLOT: u64 = 0xffff_ffff_a000_0040;
    const ENDINGS: [Ending; 2] = [
        Ending::Resume,
        Ending::Post {
            stub: 0xffff_ffff_8000_1000,
            saved_flags: None,
        },
    ];
    /// One of each class: ordinary, stack, direct and indirect branches, calls and returns.
    const INSTRUCTIONS: [&[u8]; 13] = [
        &[0x48, 0x89, 0xf8],                   // mov rax, rdi
        &[0x55],                               // push rbp
        &[0x48, 0x8b, 0x05, 0x10, 0, 0, 0],    // mov rax, [rip + 16]
        &[0xeb, 0x10],                         // jmp +16
        &[0x74, 0x10],                         // je +16
        &[0xe2, 0xfe],                         // loop 0
        &[0xe8, 0x00, 0x10, 0, 0],             // call +4096
        &[0xff, 0xd0],                         // call rax
        &[0xff, 0x54, 0x24, 0x08],             // call [rsp + 8]
        &[0xff, 0xe0],                         // jmp rax
        &[0xff, 0x24, 0x25, 0, 0, 0x10, 0x80], // jmp [0xffffffff80100000]
        &[0xc3],                               // ret
        &[0xc2, 0x10, 0],                      // ret 16
    ];

    #[test]
    fn positions_that_differ_in_anything_but_where_they_begin_are_different() {
        let packed = |from, ip, rsp_correction| {
            let position = Position { ip, rsp_correction };
            PackedPosition::new(from, position, PROBED).unwrap()
        };
        let known = ResumeIp::Known(PROBED + 8);
        let position = packed(3, known, 8);
        assert!(position.is_same_as(&packed(5, known, 8)));
        for other in [
            packed(3, ResumeIp::Known(PROBED + 9), 8),
            packed(3, ResumeIp::Stacked(8), 8),
            packed(3, known, 16),
        ] {
            assert!(!position.is_same_as(&other), "{other:?}");
        }
    }

    #[test]
    fn packed_positions_say_at_each_offset_what_the_translation_says() {
        // The word at RSP + n is known by its address alone.
        let sp = 0xffff_ff90_0000_1000_u64;
        let read = |address: u64| Some(address ^ 0x5555);
        for bytes in INSTRUCTIONS {
            let insn = decode(bytes, PROBED).unwrap();
            for ending in ENDINGS {
                let Ok(code) = translate(&insn, SLOT, ending) else {
                    continue;
                };
                let at = |offset| match ending {
                    Ending::Post { .. } => Positions::<7>::of(&code).expect("room").at(offset),
                    _ => Positions::<4>::of(&code).expect("room").at(offset),
                };
                for offset in 0..code.code().len() {
                    let (packed, position) = (at(offset), code.position(offset));
                    let ip = match position.ip {
                        ResumeIp::Known(ip) => ip,
                        ResumeIp::Stacked(at) => read(sp.wrapping_add_signed(at.into())).unwrap(),
                    };
                    assert_eq!(
                        (packed.rsp_correction.into(), packed.ip(PROBED, sp, read)),
                        (position.rsp_correction, ip),
                        "{bytes:02x?} {ending:?} at {offset}"
                    );
                }
            }
        }
    }
}
