//! Random differential: generated instructions, executed in place and by every replacement.

use std::collections::BTreeMap;

use iced_x86::Register;
use probes::insn::{Class, FlagsOp, classify, decode};

use crate::{
    differential::{Method, compare},
    generator::{Random, decode_plainly, is_repeatable, random_bytes, tame_displacement},
    machine::{Cpu, Layout, Machine, RCX, RSP},
};

const STACK_BYTES: usize = 2 * 4096;
const PROBED: u64 = 0x800;
const TARGET: u64 = 0x1234;

#[test]
fn random_instructions_do_the_same_out_of_line() {
    differential(0x1234_5678, 10_000);
}

#[test]
#[ignore = "takes minutes"]
fn a_million_random_instructions_do_the_same_out_of_line() {
    differential(0x9e37_79b9, 1_000_000);
}

fn differential(seed: u64, count: u32) {
    let mut random = Random::new(seed);
    let mut machine = Machine::new(Layout::Low, STACK_BYTES);
    let (mut executed, mut completed) = (0, 0);
    let mut classes = BTreeMap::<String, u32>::new();
    while executed < count {
        if executed % 256 == 0 {
            fill_memory(&mut machine, &mut random);
        }
        let probed = machine.text() + PROBED;
        let operand = machine.data() + 0x200 + 8 * random.below(0x300);
        let Some(bytes) = tame_displacement(&mut random_bytes(&mut random), probed, operand) else {
            continue;
        };
        let Some(instruction) = decode_plainly(&bytes, probed) else {
            continue;
        };
        if !is_repeatable(&instruction) {
            continue;
        }
        let Ok(insn) = decode(&bytes, probed) else {
            continue;
        };
        let Ok(class) = classify(&insn, Some(&insn)) else {
            continue;
        };
        // Into itself, or into the code that replaces it.
        let branches_inwards = insn.branch_target().is_some_and(|target| {
            target.wrapping_sub(probed) < insn.len() as u64 || machine.in_slot_page(target)
        });
        if branches_inwards {
            continue;
        }
        // The exit of a `ret imm16` needs a stack above the arguments, too.
        if class == Class::Return
            && instruction.op_count() > 0
            && instruction.immediate16() >= 0x400
        {
            continue;
        }
        let mut cpu = registers(&machine, &mut random);
        for (register, is_index) in [
            (instruction.memory_base(), false),
            (instruction.memory_index(), true),
        ] {
            let full = register.full_register();
            if (Register::RAX..=Register::R15).contains(&full) && full != Register::RSP {
                cpu.gpr[full as usize - Register::RAX as usize] = if is_index {
                    random.below(16)
                } else {
                    operand & !0xf
                };
            }
        }
        if matches!(class, Class::Flags(FlagsOp::Pop(_))) {
            // TF, NT and the like would hit the test itself.
            machine.set(cpu.gpr[RSP], random.next() & 0xcd5 | 0x202);
        }
        let methods = [Method::Resume, Method::Post, Method::Step];
        match compare(&mut machine, &insn, &cpu, &methods) {
            Ok(without_fault) => completed += u32::from(without_fault),
            Err(difference) => panic!(
                "{difference}\n{instruction:?} after {executed} instructions, registers {:x?}, flags {:#x}",
                cpu.gpr, cpu.flags
            ),
        }
        executed += 1;
        *classes.entry(format!("{class:?}")).or_default() += 1;
    }
    println!("{completed} of {executed} without a fault: {classes:#?}");
    assert!(
        completed > executed / 2,
        "most instructions should do something"
    );
}

/// Random memory, half of it addresses of text to branch to.
fn fill_memory(machine: &mut Machine, random: &mut Random) {
    for address in (machine.data()..machine.stack_end()).step_by(8) {
        let value = if random.one_in(2) {
            machine.text() + TARGET
        } else {
            random.next()
        };
        machine.set(address, value);
    }
}

fn registers(machine: &Machine, random: &mut Random) -> Cpu {
    let mut cpu = Cpu::new();
    for register in &mut cpu.gpr {
        *register = match random.below(4) {
            0 => random.next(),
            1 => random.below(64),
            2 => machine.text() + TARGET,
            _ => machine.data() + 0x200 + random.below(0x1800),
        };
    }
    // Counts of string instructions; their pointers; the stack.
    cpu.gpr[RCX] = random.below(20);
    for pointer in [3, 5, 6, 7] {
        cpu.gpr[pointer] = machine.data() + 0x200 + random.below(0x1800);
    }
    cpu.gpr[RSP] = machine.stack() + 0x800 + 8 * random.below(0x100);
    cpu.flags = random.next() & 0xcd5 | 0x202;
    for byte in &mut cpu.fx[32..416] {
        *byte = random.byte();
    }
    cpu
}
