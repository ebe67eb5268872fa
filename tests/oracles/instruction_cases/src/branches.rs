//! Branches: they lead to breakpoints, or to where nothing can be fetched.

use iced_x86::{Code as C, Decoder, DecoderOptions, Instruction, OpKind};

use crate::{Case, Code, Ground, GroundPlace, RSP, Random, case::number, encoding::decode_plainly};

/// A direct branch in `code`, aimed at a place where it is stopped. `None` if it is no direct
/// branch. `Some(None)` if it cannot be aimed there.
pub(crate) fn aim(random: &mut Random, ground: &Ground<'_>, code: &Code) -> Option<Option<Code>> {
    let mut decoder = Decoder::with_ip(64, code, ground.at, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.op0_kind() != OpKind::NearBranch64 {
        return None;
    }
    let offsets = decoder.get_constant_offsets(&instruction);
    let (offset, size) = (offsets.immediate_offset(), offsets.immediate_size());
    let target = match size {
        // A loop may lead to itself: its count ends it.
        1 if random.one_in(16) && is_counted(&instruction) => ground.at,
        1 => near_target(random, ground),
        _ => match random.below(16) {
            0 => near_target(random, ground),
            // In the same 4 GiB, and most likely not mapped.
            1 => instruction
                .next_ip()
                .wrapping_add_signed(i64::from(random.next() as i32)),
            2 => ground.windows[0].start + random.below(64),
            _ => ground.landing.start + random.below(ground.landing.end - ground.landing.start),
        },
    };
    let itself = ground.at..instruction.next_ip();
    if target != ground.at && !ground.stops(target, &itself) {
        return Some(None);
    }
    let distance = target.wrapping_sub(instruction.next_ip());
    let mut bytes = [0; 15];
    bytes[..code.len()].copy_from_slice(code);
    bytes[offset..offset + size].copy_from_slice(&distance.to_le_bytes()[..size]);
    let aimed = decode_plainly(&bytes[..code.len()], ground.at)?;
    Some((aimed.near_branch64() == target).then(|| Code::from(&bytes[..code.len()])))
}

/// Whether a count in rcx ends it.
fn is_counted(instruction: &Instruction) -> bool {
    instruction.code().is_loop() || instruction.code().is_loopcc()
}

/// A breakpoint near the code, before it or well after it.
fn near_target(random: &mut Random, ground: &Ground<'_>) -> u64 {
    let before = ground.at - ground.own.start;
    if random.one_in(2) && before > 0 {
        return ground.own.start + random.below(before);
    }
    let behind = ground.at + Ground::ROOM;
    behind + random.below(ground.own.end.saturating_sub(behind).max(1))
}

impl Ground<'_> {
    /// Bytes, from the instruction under test on, for code and for what the test puts after it.
    pub const ROOM: u64 = Code::MAX_BYTES as u64 + 8;
}

/// Gives an indirect branch or a return a target.
pub(crate) fn fit(case: &mut Case, random: &mut Random, ground: &Ground<'_>) {
    let instruction = case.instruction;
    let code = instruction.code();
    let target = ground.target(random);
    let place = if code.is_jmp_near_indirect() || code.is_call_near_indirect() {
        match instruction.op0_kind() {
            OpKind::Register => {
                match number(instruction.op0_register()) {
                    Some(RSP) | None => {}
                    Some(number) => case.registers[number] = target,
                }
                None
            }
            _ => case.operand_address(ground),
        }
    } else if matches!(code, C::Retnq | C::Retnq_imm16) {
        Some(case.registers[RSP])
    } else {
        None
    };
    if let Some(place) = place
        && ground.place(case.window, place, 8) == GroundPlace::Inside
    {
        case.set_word(place, target);
    }
}
