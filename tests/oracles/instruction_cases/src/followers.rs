//! Instructions after the one under test: short, and harmless from any state. A jump in place of
//! the first instruction displaces them, too.

use crate::{Case, Ground, RSP, Random, Unpredictable};

/// Appends up to three instructions in one of two cases.
pub(crate) fn append(case: &mut Case, random: &mut Random, ground: &Ground<'_>) {
    // A result that differs each time must not be the input of another instruction.
    if random.one_in(2) || case.unpredictable != Unpredictable::default() {
        return;
    }
    for _ in 0..1 + random.below(3) {
        one(case, random, ground);
    }
}

fn one(case: &mut Case, random: &mut Random, ground: &Ground<'_>) {
    let next = case.range().end;
    // Any but rsp.
    let register = (random.below(15) as u8 + RSP as u8 + 1) % 16;
    let (source, low) = (random.byte() & 15, register & 7);
    let rex = 0x48 | (source >> 3) << 2 | register >> 3;
    let modrm = 0xc0 | (source & 7) << 3 | low;
    let reads_stack = low != 4 && case.dead_below == 0;
    let code = &mut case.code;
    match random.below(12) {
        0..4 => {
            let opcode = random.of(&[0x01, 0x09, 0x11, 0x19, 0x21, 0x29, 0x31, 0x39, 0x85, 0x89]);
            code.extend(&[rex, opcode, modrm]);
        }
        4 => code.extend(&[
            0x40 | register >> 3,
            0xd3,
            0xc0 | (random.byte() & 0x38) | low,
        ]),
        5 => {
            // Here the destination is the other operand.
            let rex = 0x48 | (register >> 3) << 2 | source >> 3;
            let condition = 0x40 | random.byte() & 15;
            code.extend(&[rex, 0x0f, condition, 0xc0 | low << 3 | (source & 7)]);
        }
        6 => code.extend(&[random.of(&[0xf5, 0xf8, 0xf9, 0xfc, 0xfd, 0x9c, 0x90, 0x9f, 0x9e])]),
        7 => code.extend(&[0x41, 0x50 | source & 7]),
        8 if reads_stack => code.extend(&[0x58 | low]),
        9 => code.extend(&[0x6a, random.byte()]),
        10 => {
            let end = ground.own.end - 1;
            let distance = end.wrapping_sub(next + 2) as i64;
            if let Ok(distance) = i8::try_from(distance) {
                code.extend(&[
                    random.of(&[0x74, 0x75, 0x78, 0x7f, 0xe3, 0xeb, 0x72]),
                    distance as u8,
                ]);
            }
        }
        _ => {
            let distance = ground.landing.start.wrapping_sub(next + 5) as u32;
            code.extend(&[0xe8]);
            code.extend(&distance.to_le_bytes());
        }
    }
}
