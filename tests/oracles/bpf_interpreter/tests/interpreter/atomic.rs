//! Atomic operations.

use super::*;

/// The result of an atomic operation on memory with `old`: the register, `r0`, and the memory.
fn atomic(op: AtomicOp, size: Size, old: u64, reg: u64, expected: u64) -> (u64, u64, u64) {
    let mut memory = old.to_le_bytes();
    let after = |returned: Reg, memory: &mut [u8]| {
        let program = Program {
            kind: ProgramKind::Probe,
            insns: vec![
                Insn::LoadImm {
                    dst: R3,
                    value: reg,
                },
                Insn::LoadImm {
                    dst: R0,
                    value: expected,
                },
                Insn::Atomic {
                    op,
                    base: R1,
                    offset: 0,
                    size,
                    reg: R3,
                },
                Insn::Alu {
                    width: Width::W64,
                    op: AluOp::Mov,
                    dst: R0,
                    operand: returned.into(),
                },
                Insn::Exit,
            ],
            maps: vec![],
        };
        let mut machine = TestMachine::new(&program);
        run_on_memory(&program, memory, &mut machine, LIMIT).unwrap()
    };
    let r0 = after(R0, &mut memory.clone());
    let reg = after(R3, &mut memory);
    (reg, r0, u64::from_le_bytes(memory))
}

#[test]
fn atomic_operations_change_memory_and_fetch_what_was_there() {
    use AtomicOp as A;
    const OLD: u64 = 0x1111_1111_f0f0_f0f0;
    const REG: u64 = 0x2222_2222_3333_3333;
    let full = |op| atomic(op, Size::B8, OLD, REG, 9);
    let half = |op| atomic(op, Size::B4, OLD, REG, 9);
    let high = OLD & !0xffff_ffff;
    for (op, fetching, expected) in [
        (
            A::Add { fetch: false },
            A::Add { fetch: true },
            OLD.wrapping_add(REG),
        ),
        (A::Or { fetch: false }, A::Or { fetch: true }, OLD | REG),
        (A::And { fetch: false }, A::And { fetch: true }, OLD & REG),
        (A::Xor { fetch: false }, A::Xor { fetch: true }, OLD ^ REG),
    ] {
        let expected_half = high | expected & 0xffff_ffff;
        assert_eq!(full(op), (REG, 9, expected), "{op:?}");
        assert_eq!(full(fetching), (OLD, 9, expected), "{op:?}");
        assert_eq!(half(op), (REG, 9, expected_half), "{op:?}");
        assert_eq!(half(fetching), (0xf0f0_f0f0, 9, expected_half), "{op:?}");
    }
    assert_eq!(full(A::Exchange), (OLD, 9, REG));
    assert_eq!(half(A::Exchange), (0xf0f0_f0f0, 9, high | 0x3333_3333));
    let compare = |size, expected| atomic(A::CompareExchange, size, OLD, REG, expected);
    assert_eq!(compare(Size::B8, OLD), (REG, OLD, REG));
    assert_eq!(compare(Size::B8, OLD + 1), (REG, OLD, OLD));
    // The upper half of r0 does not count, and is cleared.
    let swapped = high | 0x3333_3333;
    assert_eq!(compare(Size::B4, 0xf0f0_f0f0), (REG, 0xf0f0_f0f0, swapped));
    assert_eq!(compare(Size::B4, OLD), (REG, 0xf0f0_f0f0, swapped));
}
