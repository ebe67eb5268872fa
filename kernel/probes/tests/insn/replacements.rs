//! The exact code of replacements, and what they say about themselves.
//!
//! The bytes are compared with templates, so that a change of code is seen as one. What a
//! replacement tells of each of its positions is what a fault and a stack walk rely on: before the
//! commit point the probed address, after it the address where the code goes on.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use probes::{
    PtRegs,
    insn::{
        Block, Class, Ending, FlagsOp, OperandSize, Position, Refusal, ResumeIp, SLOT_BYTES,
        SavedFlagsOperand, StepProgress, Translation, classify, decode,
        flags::{self, bits},
        step_copy, translate,
    },
};

const IP: u64 = 0xffff_ffff_8012_3450;
const SLOT: u64 = 0xffff_ffff_8052_3000;
const STUB: u64 = 0xffff_ffff_8000_1000;
const POST: Ending = Ending::Post {
    stub: STUB,
    saved_flags: Some(SavedFlagsOperand { gs_offset: 0x40 }),
};

fn bytes(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect()
}

fn translated(text: &str, ending: Ending) -> Translation {
    translate(&decode(&bytes(text), IP).unwrap(), SLOT, ending).unwrap()
}

/// Compares code with a template in which `@x` stands for the 32-bit distance to an address from
/// after that field, and `=x` for its low 32 bits.
fn assert_code(code: &[u8], template: &str, names: &[(&str, u64)]) {
    let mut expected = Vec::new();
    for word in template.split_whitespace() {
        match word.split_at(1) {
            (kind @ ("@" | "="), name) => {
                let address = names.iter().find(|(n, _)| *n == name).unwrap().1;
                let base = if kind == "@" {
                    SLOT + expected.len() as u64 + 4
                } else {
                    0
                };
                expected.extend((address.wrapping_sub(base) as u32).to_le_bytes());
            }
            _ => expected.push(u8::from_str_radix(word, 16).unwrap()),
        }
    }
    assert_eq!(
        code, expected,
        "expected {template}\n{code:02x?}\n{expected:02x?}"
    );
}

#[test]
fn replacements_are_as_documented() {
    for (original, resume, post) in [
        ("90", "90 e9 @next", "90 68 =next e9 @stub"),
        (
            "48 8b 05 00 01 00 00",
            "48 8b 05 @far e9 @next",
            "48 8b 05 @far 68 =next e9 @stub",
        ),
        ("eb 10", "e9 @to10", "68 =to10 e9 @stub"),
        ("e9 10 00 00 00", "e9 @to10", "68 =to10 e9 @stub"),
        (
            "74 10",
            "0f 84 @to10 e9 @next",
            "74 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        (
            "0f 8f 10 00 00 00",
            "0f 8f @to10 e9 @next",
            "7f 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        (
            "e2 10",
            "e2 05 e9 @next e9 @to10",
            "e2 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        (
            "67 e3 10",
            "67 e3 05 e9 @next e9 @to10",
            "67 e3 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        (
            "e8 10 00 00 00",
            "68 =next e9 @to10",
            "68 =next 68 =to10 e9 @stub",
        ),
        (
            "67 e8 10 00 00 00",
            "68 =next 67 e9 @to10",
            "68 =next 68 =to10 67 e9 @stub",
        ),
        (
            "66 66 48 e8 10 00 00 00",
            "68 =next 66 66 48 e9 @to10",
            "68 =next 68 =to10 66 66 48 e9 @stub",
        ),
        ("f2 eb 10", "f2 e9 @to10", "68 =to10 f2 e9 @stub"),
        (
            "3e 74 10",
            "3e 0f 84 @to10 e9 @next",
            "3e 74 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        (
            "2e f3 0f 8f 10 00 00 00",
            "2e f3 0f 8f @to10 e9 @next",
            "2e f3 7f 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        (
            "f2 e1 10",
            "f2 e1 05 e9 @next e9 @to10",
            "f2 e1 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        (
            "f3 67 48 e0 10",
            "f3 67 48 e0 05 e9 @next e9 @to10",
            "f3 67 48 e0 0a 68 =next e9 @stub 68 =to10 e9 @stub",
        ),
        ("ff d0", "68 =next ff e0", "68 =next 50 e9 @stub"),
        ("41 ff d3", "68 =next 41 ff e3", "68 =next 41 53 e9 @stub"),
        (
            "ff d4",
            "54 ff 34 24 48 c7 44 24 08 =next c3",
            "54 ff 34 24 48 c7 44 24 08 =next e9 @stub",
        ),
        ("41 ff d4", "68 =next 41 ff e4", "68 =next 41 54 e9 @stub"),
        (
            "ff 54 24 08",
            "ff 74 24 08 ff 34 24 48 c7 44 24 08 =next c3",
            "ff 74 24 08 ff 34 24 48 c7 44 24 08 =next e9 @stub",
        ),
        (
            "2e ff 15 00 01 00 00",
            "2e ff 35 @far ff 34 24 48 c7 44 24 08 =next c3",
            "2e ff 35 @far ff 34 24 48 c7 44 24 08 =next e9 @stub",
        ),
        (
            "f2 3e 4c ff 10",
            "3e 4c ff 30 ff 34 24 48 c7 44 24 08 =next f2 c3",
            "3e 4c ff 30 ff 34 24 48 c7 44 24 08 =next f2 e9 @stub",
        ),
        (
            "66 48 ff 10",
            "66 48 ff 30 ff 34 24 48 c7 44 24 08 =next c3",
            "66 48 ff 30 ff 34 24 48 c7 44 24 08 =next e9 @stub",
        ),
        (
            "f2 3e 41 ff d3",
            "68 =next f2 3e 41 ff e3",
            "68 =next 3e 41 53 f2 e9 @stub",
        ),
        (
            "65 67 43 ff 94 88 10 00 00 00",
            "65 67 43 ff b4 88 10 00 00 00 ff 34 24 48 c7 44 24 08 =next c3",
            "65 67 43 ff b4 88 10 00 00 00 ff 34 24 48 c7 44 24 08 =next e9 @stub",
        ),
        ("ff e0", "ff e0", "50 e9 @stub"),
        ("3e 41 ff e7", "3e 41 ff e7", "3e 41 57 e9 @stub"),
        ("ff 25 00 01 00 00", "ff 25 @far", "ff 35 @far e9 @stub"),
        ("ff 24 24", "ff 24 24", "ff 34 24 e9 @stub"),
        ("c3", "c3", "e9 @stub"),
        ("f3 c3", "f3 c3", "f3 e9 @stub"),
        ("c2 00 00", "c2 00 00", "e9 @stub"),
        (
            "c2 08 00",
            "c2 08 00",
            "ff 34 24 8f 84 24 08 00 00 00 48 8d a4 24 08 00 00 00 e9 @stub",
        ),
        (
            "c2 f8 ff",
            "c2 f8 ff",
            "ff 34 24 8f 84 24 f8 ff 00 00 48 8d a4 24 f8 ff 00 00 e9 @stub",
        ),
        (
            "9c",
            "9c e9 @next",
            "65 ff 34 25 40 00 00 00 68 =next e9 @stub",
        ),
        (
            "66 9c",
            "66 9c e9 @next",
            "66 65 ff 34 25 40 00 00 00 68 =next e9 @stub",
        ),
        ("9d", "9d e9 @next", "68 =next e9 @stub"),
        ("fa", "fa e9 @next", "68 =next e9 @stub"),
        ("fb", "fb e9 @next", "68 =next e9 @stub"),
    ] {
        let next = IP + bytes(original).len() as u64;
        let names = [
            ("next", next),
            ("to10", next + 0x10),
            ("far", next + 0x100),
            ("stub", STUB),
        ];
        assert_code(translated(original, Ending::Resume).code(), resume, &names);
        assert_code(translated(original, POST).code(), post, &names);
    }
}

#[test]
fn immediates_behind_the_displacement_are_kept() {
    for (original, tail) in [
        ("c7 05 00 01 00 00 11 22 33 44", 4),
        ("c6 05 00 01 00 00 11", 1),
        ("48 6b 05 00 01 00 00 11", 1),
        ("48 0f a4 05 00 01 00 00 11", 1),
        ("0f 0f 05 00 01 00 00 bf", 1),
        ("c4 e3 71 0f 05 00 01 00 00 04", 1),
        ("62 f3 75 08 25 05 00 01 00 00 5a", 1),
    ] {
        let original = bytes(original);
        let insn = decode(&original, IP).unwrap();
        let translation = translate(&insn, SLOT, Ending::Resume).unwrap();
        let copy = &translation.code()[..original.len()];
        let field = original.len() - tail - 4;
        assert_eq!(copy[..field], original[..field]);
        assert_eq!(copy[field + 4..], original[field + 4..]);
        let displacement = u32::from_le_bytes(copy[field..field + 4].try_into().unwrap());
        assert_eq!(displacement, (IP + 0x100).wrapping_sub(SLOT) as u32);
    }
}

#[test]
fn absolute_addresses_are_not_rebased() {
    for original in [
        "48 8b 04 25 00 10 00 00",
        "48 a1 00 10 00 00 00 00 00 00",
        "67 a1 00 10 00 00",
        "8b 04 65 00 10 00 00",
    ] {
        let original = bytes(original);
        let translation = translate(&decode(&original, IP).unwrap(), SLOT, Ending::Resume).unwrap();
        assert_eq!(translation.code()[..original.len()], original);
    }
}

#[test]
fn a_prefix_does_not_reach_the_operand_of_a_jump_through_a_literal() {
    // GS, or an address of 32 bits, would have the jump read another word. BND is of the branch.
    let (ip, slot) = (0x7f12_3456_7890_u64, 0x1000);
    for (original, opcode) in [
        ("65 eb 10", "ff 25"),
        ("67 e9 10 00 00 00", "ff 25"),
        ("65 f2 67 eb 10", "f2 ff 25"),
    ] {
        let insn = decode(&bytes(original), ip).unwrap();
        let jump = translate(&insn, slot, Ending::Resume).unwrap();
        let target = insn.branch_target().unwrap().to_le_bytes();
        let expected = [bytes(opcode), bytes("00 00 00 00"), target.to_vec()].concat();
        assert_eq!(jump.code(), expected, "{original}");
    }
}

const KNOWN: fn(u64, i32) -> Position = |ip, rsp_correction| Position {
    ip: ResumeIp::Known(ip),
    rsp_correction,
};

#[test]
fn positions_before_the_commit_point_lead_back_to_the_probed_address() {
    let call = translated("ff 10", Ending::Resume);
    // push [rax]; push [rsp]; mov [rsp + 8], ret; ret
    for (offset, rsp_correction) in [(0, 0), (2, 8), (5, 16), (14, 16)] {
        assert_eq!(call.position(offset), KNOWN(IP, rsp_correction));
    }
    let call = translated("ff d0", Ending::Resume);
    assert_eq!(
        (call.position(0), call.position(5)),
        (KNOWN(IP, 0), KNOWN(IP, 8)),
        "a jump to a non-canonical address is the call's own fault"
    );
}

#[test]
fn positions_behind_the_commit_point_tell_where_it_goes_on() {
    let load = translated("48 8b 00", Ending::Resume);
    assert_eq!(
        (load.position(0), load.position(3)),
        (KNOWN(IP, 0), KNOWN(IP + 3, 0))
    );

    let load = translated("48 8b 00", POST);
    assert_eq!(load.position(3), KNOWN(IP + 3, 0));
    assert_eq!(
        load.position(8),
        Position {
            ip: ResumeIp::Stacked(0),
            rsp_correction: 8
        }
    );

    let ret = translated("c2 10 00", POST);
    assert_eq!(
        (ret.position(0), ret.position(3)),
        (KNOWN(IP, 0), KNOWN(IP, 8))
    );
    assert_eq!(
        ret.position(10),
        Position {
            ip: ResumeIp::Stacked(16),
            rsp_correction: 24
        }
    );
    assert_eq!(
        ret.position(18),
        Position {
            ip: ResumeIp::Stacked(0),
            rsp_correction: 8
        }
    );

    let jcc = translated("74 10", POST);
    assert_eq!(jcc.position(2), KNOWN(IP + 2, 0));
    assert_eq!(jcc.position(12), KNOWN(IP + 0x12, 0));
}

#[test]
fn addresses_far_from_each_other_go_through_literals() {
    let (ip, slot, stub) = (0x7f12_3456_7890, 0x1000, 0x5555_0000_0000);
    let post = Ending::Post {
        stub,
        saved_flags: None,
    };
    let next = |len: u64| (ip + len).to_le_bytes().to_vec();
    let call = translate(&decode(&[0xff, 0xd0], ip).unwrap(), slot, Ending::Resume).unwrap();
    // push [rip + 2]; jmp rax; literal
    assert_eq!(
        call.code(),
        [bytes("ff 35 02 00 00 00 ff e0"), next(2)].concat()
    );
    let nop = translate(&decode(&[0x90], ip).unwrap(), slot, post).unwrap();
    // nop; push [rip + 6]; jmp [rip + 8]; literals
    let expected = [
        bytes("90 ff 35 06 00 00 00 ff 25 08 00 00 00"),
        next(1),
        stub.to_le_bytes().to_vec(),
    ]
    .concat();
    assert_eq!(nop.code(), expected);
    let jcc = translate(&decode(&[0x74, 0x10], ip).unwrap(), slot, post).unwrap();
    // The stub's literal serves both exits.
    assert_eq!(jcc.code().len(), 2 + 4 * 6 + 3 * 8);
}

#[test]
fn flag_instructions_are_left_to_the_core_where_interrupts_are_off() {
    let post = Ending::Post {
        stub: STUB,
        saved_flags: None,
    };
    for (text, op) in [
        ("9c", FlagsOp::Push(OperandSize::Quad)),
        ("66 9c", FlagsOp::Push(OperandSize::Word)),
        ("9d", FlagsOp::Pop(OperandSize::Quad)),
        ("66 9d", FlagsOp::Pop(OperandSize::Word)),
        ("fa", FlagsOp::Clear),
        ("fb", FlagsOp::Set),
    ] {
        let original = bytes(text);
        let insn = decode(&original, IP).unwrap();
        assert_eq!(classify(&insn, &[0x90]), Ok(Class::Flags(op)));
        let next = insn.next_ip();
        let resume = translated(text, Ending::Resume);
        assert!(resume.code().starts_with(&original), "{text}");
        let left = translated(text, post);
        let exit = [("next", next), ("stub", STUB)];
        assert_code(left.code(), "68 =next e9 @stub", &exit);
        assert_eq!(left.position(0), KNOWN(next, 0));
        let is_push = matches!(op, FlagsOp::Push(_));
        let is_left = translated(text, POST).code() == left.code();
        assert_eq!(is_left, !is_push, "{text}");
    }
    assert!(translated("90", post).code().starts_with(&[0x90]));
}

#[test]
fn the_longest_in_kernel_replacement_fits_a_slot() {
    let forms = [
        "66 66 66 66 66 66 2e 0f 1f 84 00 00 00 00 00",
        "65 67 43 ff 94 88 10 00 00 00",
        "65 67 43 ff a4 88 10 00 00 00",
        "67 67 2e 3e 48 e2 10",
        "67 2e 0f 84 10 00 00 00",
        "c2 ff ff",
        "66 9c",
        "ff d4",
        "e8 10 00 00 00",
    ];
    let longest = forms
        .iter()
        .flat_map(|text| [Ending::Resume, POST].map(|e| translated(text, e).code().len()))
        .max();
    assert_eq!(longest, Some(27));
    const { assert!(27 <= SLOT_BYTES) };
}

#[test]
fn several_instructions_translate_into_one_block() {
    let function = bytes("48 8b 05 00 01 00 00 74 10 48 89 c3 c3");
    let mut block = Block::new(SLOT);
    let mut ip = IP;
    let mut rest = &function[..];
    let mut offsets = Vec::new();
    while rest.len() > 1 {
        let insn = decode(rest, ip).unwrap();
        offsets.push(block.offset());
        block.append(&insn, Ending::Fall).unwrap();
        (rest, ip) = (&rest[insn.len()..], insn.next_ip());
    }
    block.jump(ip).unwrap();
    assert_eq!(offsets, [0, 7, 13]);
    assert_eq!(block.position(0), Some(KNOWN(IP, 0)));
    assert_eq!(block.position(7), Some(KNOWN(IP + 7, 0)));
    assert_eq!(block.position(13), Some(KNOWN(IP + 9, 0)));
    assert_eq!(block.position(16), Some(KNOWN(IP + 12, 0)));
    let names = [
        ("data", IP + 7 + 0x100),
        ("taken", IP + 9 + 0x10),
        ("back", IP + 12),
    ];
    assert_code(
        block.finish().unwrap(),
        "48 8b 05 @data 0f 84 @taken 48 89 c3 e9 @back",
        &names,
    );
}

#[test]
fn a_counted_jump_in_a_block_falls_through_when_not_taken() {
    let mut block = Block::new(SLOT);
    block
        .append(&decode(&bytes("e2 10"), IP).unwrap(), Ending::Fall)
        .unwrap();
    block
        .append(&decode(&[0x90], IP + 2).unwrap(), Ending::Resume)
        .unwrap();
    let names = [("taken", IP + 0x12), ("back", IP + 3)];
    assert_code(
        block.finish().unwrap(),
        "e2 02 eb 05 e9 @taken 90 e9 @back",
        &names,
    );
}

#[test]
fn a_full_block_says_so() {
    let nop = decode(&[0x90], IP).unwrap();
    let mut block = Block::new(SLOT);
    let result = (0..Block::MAX_BYTES + 1).try_for_each(|_| block.append(&nop, Ending::Fall));
    assert_eq!(result, Err(Refusal::NoRoom));
}

#[test]
fn popped_flags_are_those_of_the_manual() {
    let pop = FlagsOp::Pop(OperandSize::Quad);
    let all = u64::MAX;
    let controlled = bits::ARITHMETIC
        | bits::TF
        | bits::IF
        | bits::DF
        | bits::IOPL
        | bits::NT
        | bits::AC
        | bits::ID;
    assert_eq!(
        pop.apply(0, all),
        controlled | bits::FIXED,
        "VM, VIF, VIP, RF and reserved bits are never set"
    );
    assert_eq!(pop.apply(all & 0x3f_ffff, 0) & controlled, 0);
    assert_eq!(pop.apply(bits::RF, 0), bits::FIXED);
    let word = FlagsOp::Pop(OperandSize::Word);
    assert_eq!(
        word.apply(bits::AC | bits::ID, 0),
        bits::AC | bits::ID | bits::FIXED,
        "only the low half changes"
    );
    assert_eq!(word.apply(0, all), controlled & 0xffff | bits::FIXED);
}

#[test]
fn cli_and_sti_change_the_interrupt_flag_only() {
    for flags in [0x2, 0x202, 0x2 | bits::ARITHMETIC | bits::AC | bits::TF] {
        assert_eq!(FlagsOp::Clear.apply(flags, 0), flags & !bits::IF);
        assert_eq!(FlagsOp::Set.apply(flags, 0), flags | bits::IF);
        assert_eq!(FlagsOp::Push(OperandSize::Quad).apply(flags, 0), flags);
    }
}

#[test]
fn pushed_image_hides_resume_and_virtual_mode_flags() {
    assert_eq!(flags::pushed_image(0x202 | bits::RF | bits::VM), 0x202);
    assert_eq!(flags::pushed_image(bits::IF | bits::TF), 0x302);
}

#[test]
fn a_step_restores_the_flags_of_the_probed_code() {
    let step = |text: &str, before: u64, after: u64| {
        let original = bytes(text);
        let copy = step_copy(&decode(&original, IP).unwrap(), SLOT).unwrap();
        let mut regs = PtRegs {
            ip: SLOT + original.len() as u64,
            flags: after,
            ..PtRegs::default()
        };
        assert_eq!(
            copy.finish(&mut regs, before, |_, _| {}),
            StepProgress::Done
        );
        assert_eq!(regs.ip, IP + original.len() as u64);
        regs.flags
    };
    let stepping = 0x2 | bits::TF;
    assert_eq!(step("90", 0x202, stepping), 0x202);
    assert_eq!(step("90", 0x2, stepping | bits::CF), 0x2 | bits::CF);
    assert_eq!(
        step("90", 0x302, stepping),
        0x302,
        "a TF of the code's own stays"
    );
    assert_eq!(step("fa", 0x202, stepping), 0x2);
    assert_eq!(step("fb", 0x2, stepping | bits::IF), 0x202);
    assert_eq!(step("fb", 0x102, stepping | bits::IF), 0x302);
    let resumed = stepping | bits::RF;
    assert_eq!(step("90", 0x202, resumed), 0x202, "RF is the step's own");
    assert_eq!(step("9d", 0x302, 0x2), 0x2, "what was popped stays");
    assert_eq!(step("9d", 0x2, 0x302), 0x302);
}

/// The step mends the word that was stored: it holds the flags before the step.
#[test]
fn a_stepped_pushf_stores_the_flags_of_the_probed_code() {
    for (text, len) in [("9c", 8), ("66 9c", 2)] {
        let original = bytes(text);
        let copy = step_copy(&decode(&original, IP).unwrap(), SLOT).unwrap();
        let mut regs = PtRegs {
            ip: SLOT + original.len() as u64,
            sp: 0x7000,
            flags: 0x302,
            ..PtRegs::default()
        };
        let mut stored = Vec::new();
        let flags = 0x202 | bits::RF | bits::AC;
        let progress = copy.finish(&mut regs, flags, |at, bytes| {
            stored.push((at, bytes.to_vec()));
        });
        assert_eq!((progress, regs.flags), (StepProgress::Done, 0x202));
        let image = (0x202 | bits::AC).to_le_bytes()[..len].to_vec();
        assert_eq!(stored, [(0x7000, image)], "{text}");
    }
}

#[test]
fn a_step_that_ends_behind_the_no_op_is_complete() {
    let copy = step_copy(&decode(&[0xfb], IP).unwrap(), SLOT).unwrap();
    assert_eq!(copy.code(), [0xfb, 0x90]);
    let mut regs = PtRegs {
        ip: SLOT + 2,
        flags: 0x302,
        ..PtRegs::default()
    };
    assert_eq!(copy.finish(&mut regs, 0x2, |_, _| {}), StepProgress::Done);
    assert_eq!((regs.ip, regs.flags), (IP + 1, 0x202));
}

#[test]
fn a_string_instruction_is_stepped_until_it_leaves_the_copy() {
    let copy = step_copy(&decode(&[0xf3, 0xa4], IP).unwrap(), SLOT).unwrap();
    let mut regs = PtRegs {
        ip: SLOT,
        flags: 0x102,
        ..PtRegs::default()
    };
    let before = regs;
    assert_eq!(
        copy.finish(&mut regs, 0x202, |_, _| {}),
        StepProgress::Unfinished
    );
    assert_eq!(regs, before);
}

#[test]
fn a_jump_to_itself_is_complete_at_its_own_address() {
    let copy = step_copy(&decode(&[0xeb, 0xfe], IP).unwrap(), SLOT).unwrap();
    let mut regs = PtRegs {
        ip: SLOT,
        flags: 0x102,
        ..PtRegs::default()
    };
    assert_eq!(copy.finish(&mut regs, 0x202, |_, _| {}), StepProgress::Done);
    assert_eq!((regs.ip, regs.flags), (IP, 0x202));
    assert_code(
        translated("eb fe", Ending::Resume).code(),
        "e9 @self",
        &[("self", IP)],
    );
}

#[test]
fn locked_instructions_stay_locked() {
    for text in [
        "f0 48 ff 07",                               // lock inc [rdi]
        "f0 48 ff 05 10 00 00 00",                   // lock inc [rip + 16]
        "f0 48 0f c1 07",                            // lock xadd [rdi], rax
        "f0 48 0f b1 15 10 00 00 00",                // lock cmpxchg [rip + 16], rdx
        "f0 48 0f c7 0f",                            // lock cmpxchg16b [rdi]
        "3e f0 48 81 8c 24 00 00 00 00 10 20 30 40", // lock or [rsp], imm32
        "f0 65 ff 04 25 10 00 00 00",                // lock inc gs:[16]
    ] {
        let insn = decode(&bytes(text), IP).unwrap();
        for code in [
            translate(&insn, SLOT, Ending::Resume)
                .unwrap()
                .code()
                .to_vec(),
            translate(&insn, SLOT, POST).unwrap().code().to_vec(),
            step_copy(&insn, SLOT).unwrap().code().to_vec(),
        ] {
            let decode = |code| Decoder::with_ip(64, code, 0, DecoderOptions::NONE).into_iter();
            let original = decode(insn.bytes()).next().unwrap();
            let locked: Vec<_> = decode(&code).filter(Instruction::has_lock_prefix).collect();
            assert_eq!(locked.len(), 1, "{text}: {code:02x?}");
            let looks = |insn: &Instruction| (insn.code(), insn.segment_prefix());
            assert_eq!(looks(&locked[0]), looks(&original), "{text}: {code:02x?}");
        }
    }
}
