//! Instructions that are malformed or missing, and programs that do not end.

use super::*;

#[test]
fn malformed_and_missing_instructions_are_objected_to() {
    let one = |insn| {
        refused(&Program {
            kind: ProgramKind::Probe,
            insns: vec![insn],
            maps: vec![],
        })
    };
    assert_eq!(one(Insn::Jump { target: Target(7) }), Reason::NoInstruction);
    assert_eq!(
        one(Insn::LoadImm { dst: R0, value: 0 }),
        Reason::NoInstruction
    );
    assert_eq!(
        one(Insn::LoadMap {
            dst: R0,
            map: MapIndex(0)
        }),
        Reason::NoSuchMap(MapIndex(0))
    );
    let extend = |width, bits| Insn::SignExtend {
        width,
        bits,
        dst: R0,
        src: R1,
    };
    assert_eq!(one(extend(Width::W32, 32)), Reason::Malformed);
    assert_eq!(one(extend(Width::W64, 7)), Reason::Malformed);
    assert_eq!(
        one(Insn::Swap {
            swap: Swap::ToBig,
            bits: 8,
            dst: R1
        }),
        Reason::Malformed
    );
    let atomic = |size| Insn::Atomic {
        op: AtomicOp::Exchange,
        base: R10,
        offset: -8,
        size,
        reg: R1,
    };
    assert_eq!(one(atomic(Size::B2)), Reason::Malformed);
    assert_eq!(one(atomic(Size::B8)), Reason::StackNotSet { offset: -8 });
    let write = Insn::Alu {
        width: Width::W64,
        op: AluOp::Add,
        dst: R10,
        operand: Operand::Imm(0),
    };
    assert_eq!(one(write), Reason::FramePointerWritten);
}

#[test]
fn an_endless_loop_meets_the_limit() {
    let endless = Program {
        kind: ProgramKind::Probe,
        insns: vec![Insn::Jump { target: Target(0) }],
        maps: vec![],
    };
    assert_eq!(refused(&endless), Reason::LimitReached(LIMIT));
    let short = probe(&[], |b| {
        b.exit(3);
    });
    let run = |limit| run(&short, &mut TestMachine::new(&short), limit);
    assert_eq!(run(3), Ok(3));
    assert_eq!(run(2).unwrap_err().reason, Reason::LimitReached(2));
}
