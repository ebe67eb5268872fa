//! Registers, the stack, and the pointers that they hold.

use super::*;

#[test]
fn a_register_that_was_not_set_is_not_read() {
    for reg in [R0, R2, R3, R4, R5, R7, R8, R9] {
        let read = probe(&[], |b| {
            b.mov(R6, reg).exit(0);
        });
        assert_eq!(refused(&read), Reason::RegisterNotSet(reg));
    }
    let exit = probe(&[], |b| {
        b.push(Insn::Exit);
    });
    assert_eq!(refused(&exit), Reason::RegisterNotSet(R0));
}

#[test]
fn a_call_loses_its_arguments() {
    for reg in [R1, R2, R3, R4, R5] {
        let read = probe(&[], |b| {
            b.set(reg, 1).call(Helper::CpuId).mov(R0, reg).exit(0);
        });
        assert_eq!(refused(&read), Reason::RegisterNotSet(reg));
    }
}

#[test]
fn a_byte_of_the_stack_that_was_not_set_is_not_read() {
    let read = probe(&[], |b| {
        b.store(R10, -8, Size::B4, 1)
            .store(R10, -4, Size::B1, 1)
            .store(R10, -2, Size::B2, 1)
            .load(R0, R10, -8, Size::B8)
            .exit(0);
    });
    assert_eq!(refused(&read), Reason::StackNotSet { offset: -3 });
}

#[test]
fn the_stack_is_accessed_inside_only() {
    let access = |offset: i16, size| {
        result(&probe(&[], |b| {
            b.store(R10, offset, size, 7).exit(0);
        }))
    };
    for size in [Size::B1, Size::B2, Size::B4, Size::B8] {
        let bytes = size.bytes() as i16;
        assert_eq!(access(-bytes, size), Ok(0));
        assert_eq!(access(-(STACK_BYTES as i16), size), Ok(0));
        for outside in [1 - bytes, -(STACK_BYTES as i16) - 1, i16::MIN, i16::MAX] {
            let reason = access(outside, size).unwrap_err().reason;
            assert!(
                matches!(
                    reason,
                    Reason::Outside {
                        object: "the stack",
                        ..
                    }
                ),
                "{size:?} at {outside}: {reason:?}"
            );
        }
    }
}

#[test]
fn a_pointer_may_leave_its_object_and_come_back() {
    let there_and_back = probe(&[], |b| {
        b.store(R10, -8, Size::B8, 42)
            .mov(R3, R10)
            .alu(AluOp::Add, R3, 1 << 20)
            .alu(AluOp::Sub, R3, 1 << 20)
            .load(R0, R3, -8, Size::B8)
            .push(Insn::Exit);
    });
    assert_eq!(result(&there_and_back), Ok(42));
}

#[test]
fn other_arithmetic_makes_a_number_of_a_pointer() {
    let through = |change: &dyn Fn(&mut Builder)| {
        refused(&probe(&[], |b| {
            b.mov(R3, R10);
            change(b);
            b.store(R3, -8, Size::B8, 1).exit(0);
        }))
    };
    let alu = |width, op, operand: Operand| {
        move |b: &mut Builder| {
            b.push(Insn::Alu {
                width,
                op,
                dst: R3,
                operand,
            });
        }
    };
    type Change = Box<dyn Fn(&mut Builder)>;
    let changes: [Change; 5] = [
        Box::new(alu(Width::W64, AluOp::Or, 0.into())),
        Box::new(alu(Width::W32, AluOp::Add, 0.into())),
        Box::new(alu(Width::W32, AluOp::Mov, R10.into())),
        Box::new(alu(Width::W64, AluOp::Sub, R10.into())),
        Box::new(alu(Width::W64, AluOp::Add, R10.into())),
    ];
    for (index, change) in changes.iter().enumerate() {
        let reason = through(change);
        assert!(
            matches!(reason, Reason::WrittenThroughNumber(_)),
            "{index}: {reason:?}"
        );
    }
}

#[test]
fn a_pointer_is_a_number_to_compare() {
    let compare = probe(&[], |b| {
        let equal = b.label();
        b.mov(R3, R10)
            .alu(AluOp::Add, R3, -8)
            .mov(R4, R10)
            .alu(AluOp::Sub, R4, R3)
            .branch(Condition::Above, R10, R3, equal)
            .exit(0);
        b.place(equal).mov(R0, R4).push(Insn::Exit);
    });
    assert_eq!(result(&compare), Ok(8));
}

#[test]
fn a_pointer_in_a_slot_of_the_stack_stays_one() {
    let spilled = |disturb: Option<i16>| {
        result(&probe(&[], |b| {
            b.mov(R3, R10)
                .store(R10, -16, Size::B8, R3)
                .store(R10, -8, Size::B8, 42);
            if let Some(offset) = disturb {
                b.load(R5, R10, offset, Size::B1)
                    .store(R10, offset, Size::B1, R5);
            }
            b.load(R4, R10, -16, Size::B8)
                .store(R4, -8, Size::B8, 43)
                .load(R0, R10, -8, Size::B8)
                .push(Insn::Exit);
        }))
    };
    assert_eq!(spilled(None), Ok(43));
    for byte in [-16, -9] {
        let reason = spilled(Some(byte)).unwrap_err().reason;
        assert!(
            matches!(reason, Reason::WrittenThroughNumber(_)),
            "{byte}: {reason:?}"
        );
    }
}
