//! The code of a slot: what stands for a displaced instruction, and whether it fits.

use crate::{
    data::per_cpu::PerCpu,
    insn::{Ending, JUMP_BYTES, MAX_INSN_BYTES, Refusal, SavedFlagsOperand, Translation, jump},
    platform::Platform,
};

/// How the replacement of an instruction ends where a post handler waits.
pub(super) fn post_ending<P: Platform>() -> Ending {
    Ending::Post {
        stub: P::entry_points().post_stub,
        saved_flags: Some(SavedFlagsOperand {
            gs_offset: PerCpu::gs_distance::<P>() + PerCpu::SAVED_FLAGS_OFFSET,
        }),
    }
}

/// The replacement, if it fits into a slot. With prefixes, and an address in a literal, it may
/// not. By reference, because a replacement is large and each move of it is a copy.
pub(super) fn fitting<P: Platform>(
    translation: &Result<Translation, Refusal>,
) -> Result<&Translation, Refusal> {
    match translation {
        Ok(code) if code.code().len() <= P::SLOT_BYTES => Ok(code),
        Ok(_) => Err(Refusal::NoRoom),
        Err(refusal) => Err(*refusal),
    }
}

/// The code of a slot at `slot` for an instruction of these bytes that is executed unchanged, and
/// its length.
pub(super) fn plain_slot(
    bytes: &[u8],
    slot: u64,
    next_ip: u64,
) -> ([u8; MAX_INSN_BYTES + JUMP_BYTES], usize) {
    let mut code = [0; MAX_INSN_BYTES + JUMP_BYTES];
    let (len, end) = (bytes.len(), bytes.len() + JUMP_BYTES);
    code[..len].copy_from_slice(bytes);
    code[len..end].copy_from_slice(&jump(slot + len as u64, next_ip));
    (code, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::position::Positions,
        insn::{Insn, classify, decode, is_plain, pushed_register, translate, xorshift},
    };

    const PROBED: u64 = 0xffff_ffff_8001_2340;
    const SLOT: u64 = 0xffff_ffff_a000_0040;

    /// Also where each part of the slot leads, and the register that is pushed.
    fn is_what_its_translation_would_be(insn: &Insn) {
        let translation = translate(insn, SLOT, Ending::Resume).unwrap();
        let (code, len) = plain_slot(insn.bytes(), SLOT, insn.next_ip());
        assert_eq!(&code[..len], translation.code(), "{insn:?}");
        let positions = Positions::<4>::of(&translation).unwrap();
        let plain = Positions::<4>::of_plain(insn.len() as u8);
        for offset in 0..len {
            assert_eq!(plain.at(offset), positions.at(offset), "{insn:?} {offset}");
        }
        assert_eq!(
            pushed_register(insn.bytes()),
            insn.pushed_register(),
            "{insn:?}"
        );
    }

    #[test]
    fn a_plain_instruction_gets_the_slot_that_its_translation_would_be() {
        let plain: [&[u8]; 7] = [
            &[0x55],
            &[0x41, 0x57],
            &[0x48, 0x89, 0xe5],
            &[0x48, 0x83, 0xec, 0x18],
            &[0x48, 0x81, 0xec, 0x98, 1, 0, 0],
            &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],
            // mov qword ptr fs:[rax + rcx + 0x1000], 1, with prefixes of no use
            &[
                0x64, 0x64, 0x64, 0x48, 0xc7, 0x84, 0x08, 0, 0x10, 0, 0, 1, 0, 0, 0,
            ],
        ];
        for bytes in plain {
            let insn = decode(bytes, PROBED).unwrap();
            assert!(is_plain(&insn, classify(&insn, &[]).unwrap()), "{insn:?}");
            is_what_its_translation_would_be(&insn);
        }
        // Bytes of all kinds; REX prefixes and the opcodes of usual instructions are frequent.
        let mut random = xorshift(0x9e37_79b9_7f4a_7c15);
        let (mut plain, mut others) = (0, 0);
        for _ in 0..100_000 {
            let mut bytes = [random().to_le_bytes(), random().to_le_bytes()].concat();
            bytes[0] = [bytes[0], 0x48, 0x41, 0x66][(random() >> 20) as usize % 4];
            let Ok(insn) = decode(&bytes, PROBED) else {
                continue;
            };
            match classify(&insn, &bytes[insn.len()..]) {
                Ok(class) if is_plain(&insn, class) => {
                    is_what_its_translation_would_be(&insn);
                    plain += 1;
                }
                _ => others += 1,
            }
        }
        assert!(plain > 10_000 && others > 10_000, "{plain} {others}");
    }
}
