//! Whatever the bytes are: what is decoded, refused, translated and displaced is consistent.
//!
//! [`examine`] is what the coverage-guided fuzzer (`kernel/probes/fuzz`) feeds; the test replays
//! the corpus that it has found.

use iced_x86::Instruction;
use instruction_cases::encoding::decode_plainly;
use probes::insn::{
    Block, BoundaryError, BoundaryWalk, DecodeError, Ending, FunctionCode, Insn, Instructions,
    JUMP_BYTES, Refusal, SLOT_BYTES, Translation, classify, decode, step_copy, translate,
};
use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::amd64::InstDecoder;

use crate::symbolic;

/// Longer functions show nothing new.
const MOST_BYTES: usize = 96;

/// Where a function, slots and the post stub lie.
struct Places {
    function: u64,
    slot: u64,
    stub: u64,
    /// All within the top 2 GiB.
    kernel: bool,
}

impl Places {
    fn of(selector: u8) -> Self {
        let shift = u64::from(selector >> 1) << 12;
        if selector & 1 == 0 {
            Self {
                function: 0xffff_ffff_8810_0000 + shift + u64::from(selector >> 4),
                slot: 0xffff_ffff_a000_0000 + shift,
                stub: 0xffff_ffff_8000_4000,
                kernel: true,
            }
        } else {
            Self {
                function: 0x5555_0000_0000 + shift,
                slot: 0x7fff_0000_0000 + shift,
                stub: 0x1234_5678,
                kernel: false,
            }
        }
    }
}

/// Checks everything about the function in `input`, whose first two bytes choose addresses.
///
/// # Panics
/// If something is inconsistent.
pub fn examine(input: &[u8]) {
    let [selector, behind, function @ ..] = input else {
        return;
    };
    let function = &function[..function.len().min(MOST_BYTES)];
    let places = Places::of(*selector);
    let instructions: Vec<_> = Instructions::new(function, places.function).collect();
    let decoded: Vec<Insn> = instructions.iter().filter_map(|insn| insn.ok()).collect();
    for insn in &decoded {
        let behind = &function[(insn.next_ip() - places.function) as usize..];
        examine_instruction(insn, behind, &places);
    }
    examine_boundaries(function, &decoded, places.function);
    let behind = vec![[0xcc, 0x90, 0xc3][usize::from(behind % 3)]; usize::from(behind >> 2) % 8];
    let mut code = FunctionCode::new(function.to_vec(), places.function);
    for insn in &decoded {
        examine_region(&mut code, &behind, insn, &decoded, &places);
    }
}

fn examine_instruction(insn: &Insn, behind: &[u8], places: &Places) {
    assert_same_length(insn);
    let alone = decode(insn.bytes(), insn.ip()).expect("it is complete");
    assert_eq!(alone.bytes(), insn.bytes());
    assert!(!insn.to_string().is_empty());
    let _ = (insn.indirect_branch(), insn.switches_stacks());
    if let Err(refusal) = classify(insn, behind) {
        assert!(Refusal::ALL.contains(&refusal));
        assert!(!refusal.name().is_empty() && !refusal.to_string().is_empty());
        assert!(refusal.errno() > 0);
    }
    // Those that only their follower makes impossible can be translated.
    let original = decode_plainly(insn.bytes(), insn.ip()).expect("it is an instruction");
    match (
        classify(insn, insn.bytes()),
        translate(insn, places.slot, Ending::Resume),
    ) {
        (Err(refusal), translation) => {
            if refusal != Refusal::InterruptShadow {
                assert_eq!(translation.map(drop), Err(refusal));
                assert_eq!(step_copy(insn, places.slot).map(drop), Err(refusal));
            }
        }
        (Ok(_), Err(refusal)) => {
            assert_eq!(refusal, Refusal::DisplacementRange);
            assert!(original.is_ip_rel_memory_operand() && !is_in_reach(&original, places.slot));
            assert_eq!(step_copy(insn, places.slot).map(drop), Err(refusal));
        }
        (Ok(_), Ok(_)) => {
            let target = insn.branch_target().unwrap_or(places.function);
            let inside = target.wrapping_sub(places.slot).wrapping_add(64) < 192;
            if !inside && target != places.stub {
                let short = places.kernel && target >= 0xffff_ffff_8000_0000;
                let limit = if short {
                    SLOT_BYTES
                } else {
                    Translation::MAX_BYTES
                };
                symbolic::check(insn.bytes(), insn.ip(), places.slot, places.stub, limit);
            }
            examine_step_copy(insn, &original, places.slot);
        }
    }
}

/// Whether code at `slot` reaches the RIP-relative operand of `original`, give or take its length.
fn is_in_reach(original: &Instruction, slot: u64) -> bool {
    let distance = original.ip_rel_memory_address().wrapping_sub(slot) as i64;
    i32::try_from(distance - 16).is_ok() && i32::try_from(distance + 16).is_ok()
}

/// Another decoder agrees on the length of what it knows.
fn assert_same_length(insn: &Insn) {
    let decoder = InstDecoder::default();
    let bytes = insn.bytes();
    let Ok(other) = decoder.decode_slice(bytes) else {
        return;
    };
    let other = LengthedInstruction::len(&other).to_const() as usize;
    assert!(
        other == bytes.len() || insn.is_forced_emulation_prefix(),
        "{insn:?}: {} bytes, another decoder says {other}",
        bytes.len()
    );
}

/// The copy is the same instruction, with the same operand.
fn examine_step_copy(insn: &Insn, original: &Instruction, slot: u64) {
    let copy = step_copy(insn, slot).expect("what can be translated can be stepped");
    let copied = decode_plainly(copy.code(), slot).expect("it is an instruction");
    assert_eq!(
        (copied.code(), copied.len()),
        (original.code(), original.len())
    );
    if original.is_ip_rel_memory_operand() {
        assert_eq!(
            copied.ip_rel_memory_address(),
            original.ip_rel_memory_address()
        );
    }
}

/// An address is found exactly if an instruction starts there.
fn examine_boundaries(function: &[u8], decoded: &[Insn], start: u64) {
    let mut prefixed = false;
    let mut starts = Vec::new();
    for insn in decoded {
        if !prefixed {
            starts.push(insn.ip());
        }
        prefixed = insn.is_forced_emulation_prefix();
    }
    let end = decoded.last().map_or(start, Insn::next_ip);
    for offset in 0..function.len() as u64 + 1 {
        let at = start + offset;
        match BoundaryWalk::new().find(function, start, at) {
            Ok(insn) => {
                assert!(starts.contains(&at), "{at:#x}");
                assert_eq!(insn.ip(), at);
            }
            Err(BoundaryError::MidInstruction { start: nearest }) => {
                assert!(!starts.contains(&at) && nearest < at && at < end, "{at:#x}");
                assert!(starts.contains(&nearest));
            }
            Err(BoundaryError::Undecodable(cause)) => {
                assert!(at >= end, "{at:#x}");
                if offset == function.len() as u64 {
                    assert_eq!(cause, DecodeError::Truncated { ip: at });
                }
            }
        }
    }
}

/// The code that a jump may displace is whole, can be moved, and is entered only from its
/// start.
fn examine_region(
    function: &mut FunctionCode,
    behind: &[u8],
    insn: &Insn,
    decoded: &[Insn],
    places: &Places,
) {
    let Ok(region) = function.region(behind, insn.ip()).expect("there is memory") else {
        return;
    };
    let displaced = region.insns();
    let mut next = insn.ip();
    for insn in displaced {
        assert_eq!(insn.ip(), next);
        next = insn.next_ip();
    }
    let jump_end = insn.ip() + JUMP_BYTES as u64;
    let last = displaced.last().expect("at least one");
    let behind_last = &function.bytes()[(next - places.function) as usize..];
    let falls_through = classify(last, behind_last)
        .expect("it can be displaced")
        .falls_through();
    assert!(next >= jump_end || !falls_through);
    for other in decoded {
        let target = other.branch_target().unwrap_or(0);
        let covered = insn.ip() < target && target < jump_end;
        assert!(!covered, "{other:?} branches under the jump");
        let original = decode_plainly(other.bytes(), other.ip()).expect("it is an instruction");
        assert!(
            !original.code().is_jmp_near_indirect(),
            "{other:?} may branch under the jump"
        );
    }
    let mut block = Block::new(places.slot);
    for insn in displaced {
        match block.append(insn, Ending::Fall) {
            Ok(()) => {}
            Err(refusal) => {
                assert_eq!(refusal, Refusal::DisplacementRange);
                return;
            }
        }
    }
    let code_len = block.offset();
    block.jump(last.next_ip()).expect("a jump fits");
    let code = block.finish().expect("literals fit").to_vec();
    let mut offset = 0;
    while offset < code_len {
        let moved = decode_plainly(&code[offset..], places.slot + offset as u64)
            .expect("a block is made of instructions");
        assert!(block.position(offset).is_some());
        offset += moved.len();
    }
    assert_eq!(offset, code_len);
}

#[test]
fn the_corpus_of_the_fuzzer_is_consistent() {
    use crate::corpus;
    let text = std::fs::read_to_string(corpus::PATH).expect("the corpus is in the repository");
    let inputs = corpus::inputs(&text).expect("a corpus");
    for input in &inputs {
        let examined = std::panic::catch_unwind(|| examine(input));
        assert!(examined.is_ok(), "{input:02x?}");
    }
    assert!(inputs.len() >= 1_028, "{} inputs", inputs.len());
    assert_eq!(text, corpus::text(&inputs.into_iter().collect()));
}
