//! Every prefix on every form that is re-encoded: kept, or refused by name.
//!
//! None, each and each two of them stand before each form. A replacement has all that its original
//! had. Where processors disagree about a prefix, the test finds out which kind runs it, and the
//! replacement has to do the same there.

use iced_x86::{Decoder, DecoderOptions};
use probes::insn::{Class, DecodeError, Ending, Refusal, classify, decode, flags::bits, translate};

use super::{Bench, PROBED, in_every_layout};
use crate::{
    closing,
    machine::{Layout, Machine, RAX, RCX, RSP, Stop},
    symbolic,
};

/// All legacy prefixes, and REX prefixes of each kind.
const PREFIXES: [u8; 15] = [
    0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e, 0x3e, 0x26, 0x36, 0x64, 0x65, 0x40, 0x41, 0x48, 0x4f,
];

/// The forms that are re-encoded, or carried out by other means.
const FORMS: [&str; 22] = [
    "e0 30",
    "e1 30",
    "e2 30",
    "e3 30",
    "74 30",
    "0f 85 30 00 00 00",
    "eb 30",
    "e9 30 00 00 00",
    "e8 30 00 00 00",
    "ff d0",
    "ff e0",
    "ff d4",
    "ff 13",
    "ff 23",
    "ff 54 24 08",
    "ff 15 RIP",
    "ff 25 RIP",
    "c3",
    "c2 08 00",
    "9c",
    "9d",
    // With RIP-relative operands the copy is changed, too.
    "8b 05 RIP",
];

/// No prefix, each, and each two.
fn combinations() -> impl Iterator<Item = Vec<u8>> {
    let one = PREFIXES.iter().map(|&a| vec![a]);
    let two = PREFIXES
        .iter()
        .flat_map(|&a| PREFIXES.iter().map(move |&b| vec![a, b]));
    [vec![]].into_iter().chain(one).chain(two)
}

fn is_prefix(byte: u8) -> bool {
    PREFIXES.contains(&byte) || byte & 0xf0 == 0x40
}

/// The prefixes of all instructions in `code`.
fn prefixes_of(code: &[u8], ip: u64) -> Vec<u8> {
    let mut found = Vec::new();
    for instruction in Decoder::with_ip(64, code, ip, DecoderOptions::NONE).iter() {
        assert!(!instruction.is_invalid(), "{code:02x?}");
        let start = (instruction.ip() - ip) as usize;
        found.extend(code[start..].iter().take_while(|&&byte| is_prefix(byte)));
    }
    found
}

impl Bench {
    /// `prefixes`, then `form`: operands and distances count from the end of all of it.
    fn prefixed(&self, prefixes: &[u8], form: &str) -> Vec<u8> {
        let text: String = prefixes.iter().map(|byte| format!("{byte:02x} ")).collect();
        self.assemble(&(text + form))
    }
}

#[test]
fn a_replacement_has_all_prefixes_of_its_original() {
    let bench = Bench::new(Layout::Low);
    let post = Ending::Post {
        stub: bench.machine.stub(),
        saved_flags: None,
    };
    let (mut kept, mut refused) = (0, 0);
    for prefixes in combinations() {
        for form in FORMS {
            let bytes = bench.prefixed(&prefixes, form);
            let Ok(insn) = decode(&bytes, bench.probed()) else {
                // A lock, or an operand that is no word any more and so ends elsewhere.
                assert!(
                    prefixes.iter().any(|p| [0xf0, 0x66].contains(p)),
                    "{bytes:02x?}"
                );
                continue;
            };
            let class = match classify(&insn, &[]) {
                Ok(class) => class,
                Err(refusal) => {
                    let named = matches!(refusal, Refusal::OperandSizeBranch | Refusal::Prefix);
                    assert!(named && !prefixes.is_empty(), "{bytes:02x?}: {refusal:?}");
                    refused += 1;
                    continue;
                }
            };
            for ending in [Ending::Resume, post] {
                let slot = bench.machine.slot();
                let translation = translate(&insn, slot, ending).unwrap();
                if symbolic::emulated(&insn, ending).is_some() {
                    assert!(prefixes.iter().all(|p| *p == 0x66 || p & 0xf0 == 0x40));
                    continue;
                }
                let mut found = prefixes_of(translation.code(), slot);
                for prefix in &prefixes {
                    let place = found.iter().position(|byte| byte == prefix);
                    found.swap_remove(place.unwrap_or_else(|| {
                        panic!(
                            "{bytes:02x?} loses {prefix:02x}: {:02x?}",
                            translation.code()
                        )
                    }));
                }
                kept += 1;
            }
            assert!(class != Class::Ordinary || insn.bytes()[prefixes.len()] == 0x8b);
        }
    }
    println!("{kept} kept, {refused} refused");
    assert!(kept > 1000 && refused > 500);
}

#[test]
fn every_prefix_on_every_branch_does_the_same_out_of_line() {
    in_every_layout(|bench| {
        let mut cpu = bench.cpu();
        let target = bench.target();
        cpu.gpr[RAX] = target;
        cpu.gpr[8] = target;
        let (cell, rsp) = (bench.cell(), cpu.gpr[RSP]);
        // The operand with any base: RBX, R11, and what 32 bits leave of it; also the word for GS.
        (cpu.gpr[3], cpu.gpr[11]) = (cell, cell);
        for address in [cell, rsp + 8] {
            bench.machine.set(address, target);
        }
        for form in FORMS {
            // The word that `popf` pops, and that a return and a call find.
            let word = if form == "9d" { 0x2d7 } else { target };
            bench.machine.set(rsp, word);
            let counted = matches!(&form[..2], "e0" | "e1" | "e2" | "e3");
            for prefixes in combinations() {
                // Two prefixes in one layout, and only one of each kind.
                const KINDS: [u8; 8] = [0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x65, 0x48, 0x41];
                let kinds = prefixes.iter().all(|prefix| KINDS.contains(prefix));
                if prefixes.len() > 1 && !(kinds && bench.machine.layout == Layout::Low) {
                    continue;
                }
                let bytes = bench.prefixed(&prefixes, form);
                let insn = match decode(&bytes, bench.probed()) {
                    Ok(insn) if insn.len() == bytes.len() => insn,
                    Ok(_) | Err(DecodeError::Invalid { .. } | DecodeError::Truncated { .. }) => {
                        continue;
                    }
                    Err(error) => panic!("{bytes:02x?}: {error}"),
                };
                // FS is this thread's own: a word of it may be anything.
                if classify(&insn, &[]).is_err() || prefixes.contains(&0x64) && !counted {
                    continue;
                }
                let counts: &[u64] = if counted { &[0, 1, 2] } else { &[2] };
                for &count in counts {
                    for zero in [0, bits::ZF] {
                        let mut cpu = cpu.clone();
                        cpu.gpr[RCX] = count;
                        cpu.flags |= zero;
                        bench.check(insn.bytes(), &cpu);
                    }
                }
            }
        }
    });
}

/// Where `bytes` lead to, executed as they are.
fn led_to(machine: &mut Machine, bytes: &[u8], flags: u64) -> Stop {
    let mut cpu = crate::machine::Cpu::new();
    cpu.ip = machine.text() + PROBED;
    cpu.flags |= flags;
    cpu.gpr[RCX] = 2;
    cpu.gpr[RSP] = machine.stack() + 0x400;
    machine.prepare(cpu.ip, bytes);
    machine.resume(&mut cpu)
}

/// Intel: a repeat prefix means nothing on `loope` and `loopne`. AMD: it chooses the condition.
#[test]
fn a_repeat_prefix_on_loope_is_ignored_or_chooses_the_condition() {
    let mut machine = Machine::new(Layout::Low, super::STACK_BYTES);
    let end = machine.text() + PROBED + 3;
    let mut taken = |prefix: u8, opcode: u8, flags: u64| match led_to(
        &mut machine,
        &[prefix, opcode, 0x30],
        flags,
    ) {
        Stop::Int3 { at } if at == end => false,
        Stop::Int3 { at } if at == end + 0x30 => true,
        stop => panic!("{prefix:02x} {opcode:02x}: {stop:x?}"),
    };
    let chosen_by = [(0xf2, 0xe1), (0xf3, 0xe0)].map(|(prefix, opcode)| {
        let by_zero_flag = [taken(prefix, opcode, 0), taken(prefix, opcode, bits::ZF)];
        match (opcode, by_zero_flag) {
            (0xe1, [false, true]) | (0xe0, [true, false]) => "opcode",
            (0xe1, [true, false]) | (0xe0, [false, true]) => "prefix",
            other => panic!("neither Intel's nor AMD's answer: {other:x?}"),
        }
    });
    assert_eq!(chosen_by[0], chosen_by[1]);
    // Where both say the same, and where there is no condition to choose.
    for (prefix, opcode) in [(0xf2, 0xe0), (0xf3, 0xe1)] {
        assert_eq!(taken(prefix, opcode, 0), opcode == 0xe0);
        assert_eq!(taken(prefix, opcode, bits::ZF), opcode == 0xe1);
    }
    for prefix in [0xf2, 0xf3] {
        for flags in [0, bits::ZF] {
            assert!(taken(prefix, 0xe2, flags));
            assert!(!taken(prefix, 0xe3, flags));
        }
    }
    closing::saw(&format!(
        "`f2 loope` and `f3 loopne` take their condition from the {}",
        chosen_by[0]
    ));
}

/// Intel: 0x66 is ignored. AMD: an immediate of 16 bits, and a target of 16 bits. QEMU 7.2: such an
/// immediate, and the whole target.
#[test]
fn an_operand_size_prefix_on_a_jump_is_ignored_or_truncates_the_target() {
    let mut machine = Machine::new(Layout::Low, super::STACK_BYTES);
    let at = machine.text() + PROBED;
    let seen = match led_to(&mut machine, &[0x66, 0xe9, 0x30, 0, 0, 0], 0) {
        Stop::Int3 { at: to } if to == at + 6 + 0x30 => "is ignored",
        Stop::Fetch { at: to } if to == (at + 4 + 0x30) & 0xffff => "truncates the target",
        Stop::Int3 { at: to } if to == at + 4 + 0x30 => "shortens the immediate alone",
        stop => panic!("neither Intel's answer, nor AMD's, nor QEMU's: {stop:x?}"),
    };
    closing::saw(&format!("0x66 on `jmp rel` {seen}"));
}
