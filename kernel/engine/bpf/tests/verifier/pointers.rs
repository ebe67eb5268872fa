//! Arithmetic and comparisons of pointers, and atomic operations.

use super::*;

#[test]
fn pointers_are_moved_by_bounded_numbers() {
    let indexed = |prepare: fn(&mut Builder), size| {
        move |b: &mut Builder| {
            b.load_register(R6, Register::Di);
            value(b);
            prepare(b);
            b.alu(AluOp::Add, R0, R6).load(R1, R0, 8, size).exit(0);
        }
    };
    fn mask(b: &mut Builder) {
        b.alu(AluOp::And, R6, 15);
    }
    fn nothing(_: &mut Builder) {}
    takes(indexed(mask, Size::B1));
    refuses(
        "insn 8, `r1 = *(u16 *)(r0 + 8)`: expected bytes 0 to 23 of a value of map 0, found 8 to \
         24; check the offset, or make it smaller",
        indexed(mask, Size::B2),
    );
    refuses(
        "insn 6, `r0 += r6`: expected a number between bounds of at most 2^29 in r6, found a \
         number (any number); compare it with its bounds first, or mask it",
        indexed(nothing, Size::B1),
    );
    // By branches, on the right side of them.
    let checked = |condition, limit: i32| {
        move |b: &mut Builder| {
            let end = b.label();
            b.load_register(R6, Register::Di);
            value(b);
            b.branch(condition, R6, limit, end)
                .alu(AluOp::Add, R0, R6)
                .load(R1, R0, 0, Size::B1)
                .place(end)
                .exit(0);
        }
    };
    takes(checked(Condition::Above, 23));
    takes(checked(Condition::AboveOrEqual, 24));
    refuses(
        "insn 8, `r1 = *(u8 *)(r0 + 0)`: expected bytes 0 to 23 of a value of map 0, found 0 to \
         24; check the offset, or make it smaller",
        checked(Condition::Above, 24),
    );
    refuses(
        "insn 7, `r0 += r6`: expected a number between bounds of at most 2^29 in r6, found a \
         number (any number); compare it with its bounds first, or mask it",
        checked(Condition::Greater, 23),
    );
    // Numbers without a bit in common are added, so their bounds are: 0 to 5 and 16.
    for op in [AluOp::Or, AluOp::Xor] {
        takes(|b| {
            let end = b.label();
            b.load_register(R6, Register::Di);
            value(b);
            b.branch(Condition::Above, R6, 5, end)
                .alu(op, R6, 16)
                .alu(AluOp::Add, R0, R6)
                .load(R1, R0, 2, Size::B1)
                .place(end)
                .exit(0);
        });
    }
    let far = "insn 2, `r2 += r3`: expected a pointer within 2^29 bytes of its memory in r2, found \
               a pointer into the stack (r10 plus 536870913); check the distance before it is \
               added";
    let moved = |first: i32| {
        move |b: &mut Builder| {
            b.mov(R2, R10)
                .set(R3, 1 << 29)
                .alu(AluOp::Add, R2, R3)
                .alu(AluOp::Add, R2, first)
                .exit(0);
        }
    };
    takes(moved(0));
    refuses(
        &far.replace("insn 2", "insn 3").replace("r3", "1"),
        moved(1),
    );
}

#[test]
fn pointers_have_no_other_arithmetic_and_comparison() {
    let rest = "a pointer can only be copied, and moved by a number with `+=` and `-=` of 64 bits, \
                unless it is the context, a map or possibly null";
    refuses(
        &format!(
            "insn 1, `r2 *= 2`: expected a number in r2, found a pointer into the stack (r10 plus \
             0); {rest}"
        ),
        |b| {
            b.mov(R2, R10).alu(AluOp::Mul, R2, 2).exit(0);
        },
    );
    refuses(
        &format!(
            "insn 1, `w2 += 2`: expected a number in r2, found a pointer into the stack (r10 plus \
             0); {rest}"
        ),
        |b| {
            b.mov(R2, R10)
                .push(Insn::Alu {
                    width: Width::W32,
                    op: AluOp::Add,
                    dst: R2,
                    operand: Operand::Imm(2),
                })
                .exit(0);
        },
    );
    refuses(
        &format!("insn 1, `r2 += 8`: expected a number in r2, found map 0; {rest}"),
        |b| {
            b.load_map(R2, ARRAY).alu(AluOp::Add, R2, 8).exit(0);
        },
    );
    refuses(
        &format!(
            "insn 5, `r0 += 8`: expected a number in r0, found a value of map 1 or null; {rest}"
        ),
        |b| {
            value_or_null(b);
            b.alu(AluOp::Add, R0, 8).exit(0);
        },
    );
    let rest = "a pointer can only be compared with 0, by `==` and `!=` of 64 bits";
    let compare = |width, condition, operand| {
        move |b: &mut Builder| {
            b.mov(R2, R10).push(Insn::Branch {
                width,
                condition,
                dst: R2,
                operand,
                // The first label.
                target: Target(0),
            });
            let end = b.label();
            b.place(end).exit(0);
        }
    };
    let found = "a pointer into the stack (r10 plus 0)";
    takes(compare(Width::W64, Condition::Equal, Operand::Imm(0)));
    refuses(
        &format!("insn 1, `if w2 == 0 goto 2`: expected a number in r2, found {found}; {rest}"),
        compare(Width::W32, Condition::Equal, Operand::Imm(0)),
    );
    refuses(
        &format!("insn 1, `if r2 == r10 goto 2`: expected a number in r2, found {found}; {rest}"),
        compare(Width::W64, Condition::Equal, Operand::Reg(R10)),
    );
    refuses(
        &format!("insn 1, `if r2 > 0 goto 2`: expected a number in r2, found {found}; {rest}"),
        compare(Width::W64, Condition::Above, Operand::Imm(0)),
    );
    refuses(
        &format!("insn 1, `if r2 != 1 goto 2`: expected a number in r2, found {found}; {rest}"),
        compare(Width::W64, Condition::NotEqual, Operand::Imm(1)),
    );
}

#[test]
fn atomic_operations_are_aligned_and_of_numbers() {
    let add = |offset, size| {
        move |b: &mut Builder| {
            b.store(R10, -16, Size::B8, 0)
                .store(R10, -8, Size::B8, 0)
                .mov(R2, 1)
                .push(atomic_add(R10, offset, size, R2))
                .exit(0);
        }
    };
    takes(add(-8, Size::B8));
    takes(add(-12, Size::B4));
    refuses(
        "insn 3, `lock *(u64 *)(r10 - 12) += r2`: expected an offset that is a multiple of 8, \
         found another; a pointer on the stack and an atomic operation need that",
        add(-12, Size::B8),
    );
    refuses(
        "insn 1, `lock *(u64 *)(r10 - 8) += r10`: expected a number in r10, found a pointer into \
         the stack (r10 plus 0); a pointer of the program is not a number",
        |b| {
            b.store(R10, -8, Size::B8, 0)
                .push(atomic_add(R10, -8, Size::B8, R10))
                .exit(0);
        },
    );
}
