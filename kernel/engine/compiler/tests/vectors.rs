//! The public vectors of the instruction set, in machine code.

mod machine;

use bpf::{
    AluOp, Helper, Insn, MapDef, MapIndex, MapKind, Operand, Program, ProgramKind, Reg, Size,
    Target, Width, context::Register, verifier::verify, wire::decode,
};
use bpf_cases::{Vector, vectors};
use bpf_interpreter::TestMachine;
use machine::{FORMS, Variant, run, with_result};

/// The instructions in front of a vector's own: its memory becomes the value of an array, to which
/// `r1` points; `r2` is the number of its bytes.
fn prologue(memory: &[u8]) -> Vec<Insn> {
    let mov = |dst, operand: Operand| Insn::Alu {
        width: Width::W64,
        op: AluOp::Mov,
        dst,
        operand,
    };
    let mut insns = vec![
        Insn::Store {
            base: Reg::R10,
            offset: -4,
            size: Size::B4,
            value: 0.into(),
        },
        Insn::LoadMap {
            dst: Reg::R1,
            map: MapIndex(0),
        },
        mov(Reg::R2, Reg::R10.into()),
        Insn::Alu {
            width: Width::W64,
            op: AluOp::Add,
            dst: Reg::R2,
            operand: (-4).into(),
        },
        Insn::Call {
            helper: Helper::MapLookup,
        },
    ];
    for (at, byte) in memory.iter().enumerate() {
        insns.push(Insn::Store {
            base: Reg::R0,
            offset: at as i16,
            size: Size::B1,
            value: i32::from(*byte).into(),
        });
    }
    insns.push(mov(Reg::R1, Reg::R0.into()));
    insns.push(mov(Reg::R2, (memory.len() as i32).into()));
    insns.push(mov(Reg::R0, 0.into()));
    insns
}

/// `dst = value` from an unknown 0, so that the compiler computes nothing in advance.
fn hidden(dst: Reg, width: Width, value: i64) -> Vec<Insn> {
    let alu = |width, op, operand: i32| Insn::Alu {
        width,
        op,
        dst,
        operand: operand.into(),
    };
    let low = value as i32;
    let high = (value.wrapping_sub(i64::from(low)) >> 32) as i32;
    let mut insns = vec![Insn::Load {
        dst,
        base: Reg::R10,
        offset: ZERO,
        size: Size::B8,
        signed: false,
    }];
    if i64::from(low) != value {
        insns.push(alu(Width::W64, AluOp::Add, high));
        insns.push(alu(Width::W64, AluOp::ShiftLeft, 32));
    }
    insns.push(alu(width, AluOp::Add, low));
    insns
}

/// Where the unknown 0 is on the stack.
const ZERO: i16 = -512;

/// The vector as a program of a probe. If `hides`, the compiler knows none of its constants.
fn program(vector: &Vector, hides: bool) -> Program {
    let mut insns = prologue(&vector.memory);
    if hides {
        insns.splice(
            0..0,
            [
                Insn::Load {
                    dst: Reg::R0,
                    base: Reg::R1,
                    offset: Register::R15.offset(),
                    size: Size::B8,
                    signed: false,
                },
                Insn::Store {
                    base: Reg::R10,
                    offset: ZERO,
                    size: Size::B8,
                    value: Reg::R0.into(),
                },
            ],
        );
    }
    let own = decode(&vector.wire).unwrap_or_else(|error| panic!("{}: {error}", vector.name));
    let mut places = Vec::new();
    for insn in own {
        places.push(Target(insns.len() as u16));
        match insn {
            Insn::Alu {
                width,
                op: AluOp::Mov,
                dst,
                operand: Operand::Imm(imm),
            } if hides => insns.extend(hidden(dst, width, imm.into())),
            Insn::LoadImm { dst, value } if hides => {
                insns.extend(hidden(dst, Width::W64, value as i64));
            }
            insn => insns.push(insn),
        }
    }
    let begin = usize::from(places[0].0);
    for insn in &mut insns[begin..] {
        if let Insn::Jump { target } | Insn::Branch { target, .. } = insn {
            *target = places[usize::from(target.0)];
        }
    }
    let memory = MapDef {
        name: "memory".into(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: vector.memory.len().max(8) as u32,
        entries: 1,
    };
    with_result(&Program {
        kind: ProgramKind::Probe,
        insns,
        maps: vec![memory],
    })
}

fn results_of(hides: bool) -> usize {
    let mut taken = 0;
    let mut wrong = vec![];
    for vector in vectors() {
        let Ok(verified) = verify(program(&vector, hides)) else {
            continue;
        };
        taken += 1;
        for (number, form) in FORMS.into_iter().enumerate() {
            let mut world = TestMachine::new(verified.program());
            let (after, _) = run(&verified, form, &mut world, Variant(number as u64 * 0x55));
            let result = after.array_word(MapIndex(1));
            if result != vector.result || !after.errors.is_empty() {
                wrong.push(format!(
                    "{}, {form:?}: expected {:#x}, found {result:#x}",
                    vector.name, vector.result
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    taken
}

#[test]
fn each_vector_has_its_result() {
    assert_eq!(results_of(false), vectors().len());
}

/// The verifier refuses some of these, because their loops or offsets have no bounds any more.
#[test]
fn each_vector_has_its_result_without_constants() {
    assert_eq!(results_of(true), 307);
}
