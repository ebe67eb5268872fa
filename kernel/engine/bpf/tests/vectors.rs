//! The public vectors of the instruction set, in the interpreter.

use std::collections::BTreeMap;

use bpf::{
    AluOp, Condition, Insn, Program, ProgramKind,
    wire::{decode, encode},
};
use bpf_cases::{Vector, vectors};
use bpf_interpreter::{TestMachine, run_on_memory};

/// The number of vectors in the file; a reader that skips some would make the other tests empty.
const COUNT: usize = 309;

fn program(vector: &Vector) -> Program {
    let insns = decode(&vector.wire).unwrap_or_else(|error| panic!("{}: {error}", vector.name));
    Program {
        kind: ProgramKind::Probe,
        insns,
        maps: vec![],
    }
}

#[test]
fn each_vector_has_its_result() {
    let vectors = vectors();
    assert_eq!(vectors.len(), COUNT);
    let mut wrong = vec![];
    for mut vector in vectors {
        let program = program(&vector);
        let mut machine = TestMachine::new(&program);
        let result = run_on_memory(&program, &mut vector.memory, &mut machine, 10_000);
        if result != Ok(vector.result) {
            wrong.push(format!(
                "{}: expected {:#x}, found {result:x?}",
                vector.name, vector.result
            ));
        }
        assert_eq!(machine.faults, 0, "{}", vector.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_vector_is_encoded_as_it_stands() {
    for vector in vectors() {
        // The two that have a jump of the long form come back with the short one.
        if vector.wire.chunks(8).any(|slot| slot[0] == 0x06) {
            assert!(vector.name.ends_with("ja32"), "{}", vector.name);
            continue;
        }
        let again = encode(&program(&vector).insns).unwrap();
        assert_eq!(again, vector.wire, "{}", vector.name);
    }
}

/// The vectors together have each operation, or they would not show that it is right.
#[test]
fn the_vectors_have_every_operation() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for insn in vectors().iter().flat_map(|vector| program(vector).insns) {
        let name = match insn {
            Insn::Alu { width, op, .. } => format!("{width:?} {op:?}"),
            Insn::Branch {
                width, condition, ..
            } => format!("{width:?} {condition:?}"),
            Insn::Swap { swap, bits, .. } => format!("{swap:?} {bits}"),
            Insn::SignExtend { width, bits, .. } => format!("{width:?} sign {bits}"),
            Insn::Load { size, signed, .. } => format!("load {size:?} {signed}"),
            Insn::Store { size, .. } => format!("store {size:?}"),
            Insn::Atomic { op, size, .. } => format!("{op:?} {size:?}"),
            _ => continue,
        };
        *counts.entry(name).or_default() += 1;
    }
    let operations = 2 * (AluOp::ShiftRightSigned as usize + 1);
    let conditions = 2 * (Condition::LessOrEqual as usize + 1);
    let swaps = 3 * 3;
    let (extensions, loads, stores, atomics) = (5, 4 + 3, 4, 2 * 10);
    assert_eq!(
        counts.len(),
        operations + conditions + swaps + extensions + loads + stores + atomics,
        "{counts:#?}"
    );
}
