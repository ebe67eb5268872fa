//! The kernel's memory, values of maps, and the stack at places that are not known.
//!
//! What may be null is compared before it is used. An index that is known to be inside needs no
//! comparison, so the tests are also about what is known, and when it ends to be known.

use super::*;

#[test]
fn kernel_memory_is_loaded_but_never_written() {
    let verified = takes(|b| {
        b.load_register(R2, Register::Di)
            .load(R3, R2, 16, Size::B8)
            .load(R4, R3, -8, Size::B4)
            .exit(0);
    });
    assert_eq!(verified.facts()[2].memory, Some(Memory::Kernel));
    let text = "expected a pointer into the program's own memory in r2, found a number (any \
                number); kernel memory may be read only; store into the stack, a value, a record \
                or entry data";
    refuses(&format!("insn 1, `*(u64 *)(r2 + 0) = 1`: {text}"), |b| {
        b.load_register(R2, Register::Di)
            .store(R2, 0, Size::B8, 1)
            .exit(0);
    });
    refuses(
        &format!("insn 2, `lock *(u64 *)(r2 + 0) += r3`: {text}"),
        |b| {
            b.load_register(R2, Register::Di)
                .mov(R3, 1)
                .push(atomic_add(R2, 0, Size::B8, R3))
                .exit(0);
        },
    );
}

#[test]
fn a_value_is_accessed_inside_only() {
    let access = |offset, size| {
        move |b: &mut Builder| {
            value(b);
            b.load(R1, R0, offset, size).exit(0);
        }
    };
    takes(access(16, Size::B8));
    takes(access(23, Size::B1));
    refuses(
        "insn 5, `r1 = *(u64 *)(r0 + 17)`: expected bytes 0 to 23 of a value of map 0, found 17 to \
         24; check the offset, or make it smaller",
        access(17, Size::B8),
    );
    refuses(
        "insn 5, `r1 = *(u8 *)(r0 - 1)`: expected bytes 0 to 23 of a value of map 0, found -1 to \
         -1; check the offset, or make it smaller",
        access(-1, Size::B1),
    );
}

#[test]
fn what_may_be_null_is_compared_first() {
    refuses(
        "insn 5, `r1 = *(u64 *)(r0 + 0)`: expected an address or a pointer to memory in r0, found \
         a value of map 1 or null; compare it with 0 first, and leave if it is",
        |b| {
            value_or_null(b);
            b.load(R1, R0, 0, Size::B8).exit(0);
        },
    );
    refuses(
        "insn 4, `*(u64 *)(r0 + 0) = 1`: expected a pointer into the program's own memory in r0, \
         found the record or null; compare it with 0 first, and leave if it is",
        |b| {
            record_or_null(b);
            b.store(R0, 0, Size::B8, 1).exit(0);
        },
    );
    // A copy knows it, too, also one on the stack.
    takes(|b| {
        let end = b.label();
        value_or_null(b);
        b.mov(R6, R0)
            .store(R10, -16, Size::B8, R0)
            .branch(Condition::Equal, R0, 0, end)
            .store(R6, 0, Size::B8, 1)
            .load(R7, R10, -16, Size::B8)
            .store(R7, 8, Size::B8, 1)
            .place(end)
            .exit(0);
    });
    // The value of an earlier turn is not the one that is compared.
    refuses(
        "insn 15, `*(u64 *)(r6 + 0) = 1`: expected a pointer into the program's own memory in r6, \
         found a value of map 1 or null; compare it with 0 first, and leave if it is",
        |b| {
            let (head, end) = (b.label(), b.label());
            b.mov(R9, 0).mov(R6, 0).mov(R0, 0);
            b.place(head).mov(R6, R0);
            value_or_null(b);
            b.alu(AluOp::Add, R9, 1)
                .branch(Condition::Below, R9, 3, head)
                .branch(Condition::Equal, R0, 0, end)
                .branch(Condition::Equal, R9, 0, end)
                .push(Insn::Alu {
                    width: Width::W64,
                    op: AluOp::Mov,
                    dst: R1,
                    operand: R9.into(),
                })
                .mov(R2, 2)
                .store(R6, 0, Size::B8, 1)
                .place(end)
                .exit(0);
        },
    );
}

#[test]
fn a_lookup_with_a_known_index_is_not_null() {
    let lookup = |index: i32| {
        move |b: &mut Builder| {
            b.store(R10, -4, Size::B4, index)
                .load_map(R1, ARRAY)
                .mov(R2, R10)
                .alu(AluOp::Add, R2, -4)
                .call(Helper::MapLookup)
                .store(R0, 0, Size::B8, 1)
                .exit(0);
        }
    };
    assert_eq!(takes(lookup(3)).facts()[4].most_index, Some(3));
    refuses(
        "insn 5, `*(u64 *)(r0 + 0) = 1`: expected a pointer into the program's own memory in r0, \
         found a value of map 0 or null; compare it with 0 first, and leave if it is",
        lookup(4),
    );
    let masked = |mask: i32| {
        move |b: &mut Builder| {
            let end = b.label();
            b.load_register(R3, Register::Di)
                .alu(AluOp::And, R3, mask)
                .store(R10, -8, Size::B4, R3)
                .load_map(R1, ARRAY)
                .mov(R2, R10)
                .alu(AluOp::Add, R2, -8)
                .call(Helper::MapLookup)
                .branch(Condition::Equal, R0, 0, end)
                .store(R0, 0, Size::B8, 1)
                .place(end)
                .exit(0);
        }
    };
    let verified = takes(masked(3));
    assert_eq!(verified.facts()[6].most_index, Some(3));
    let verified = takes(masked(-1));
    assert_eq!(verified.facts()[6].most_index, None);
}

/// A store somewhere in the stack may have changed any of it: what was known of the bytes that it
/// reaches is known no more, and what was known of the others still is.
#[test]
fn a_store_at_an_unknown_offset_leaves_no_known_index_behind() {
    let lookup = |first: i32, store: fn(&mut Builder)| {
        move |b: &mut Builder| {
            b.store(R10, -16, Size::B8, 0)
                .store(R10, -8, Size::B8, 1)
                .load_register(R3, Register::Di)
                .alu(AluOp::And, R3, 4)
                .alu(AluOp::Add, R3, R10)
                .alu(AluOp::Add, R3, first);
            store(b);
            b.load_map(R1, ARRAY)
                .mov(R2, R10)
                .alu(AluOp::Add, R2, -8)
                .call(Helper::MapLookup)
                .store(R0, 0, Size::B8, 1)
                .exit(0);
        }
    };
    fn number(b: &mut Builder) {
        b.store(R3, 0, Size::B4, 7);
    }
    fn atomic(b: &mut Builder) {
        b.mov(R4, 7).push(atomic_add(R3, 0, Size::B4, R4));
    }
    fn by_helper(b: &mut Builder) {
        b.load_register(R5, Register::Si)
            .mov(R1, R3)
            .mov(R2, 4)
            .mov(R3, R5)
            .call(Helper::ReadKernel);
    }
    type Store = fn(&mut Builder);
    let stores: [(Store, usize); 3] = [(number, 1), (atomic, 2), (by_helper, 5)];
    for (store, insns) in stores {
        refuses(
            &format!(
                "insn {}, `*(u64 *)(r0 + 0) = 1`: expected a pointer into the program's own \
                 memory in r0, found a value of map 0 or null; compare it with 0 first, and leave \
                 if it is",
                10 + insns
            ),
            lookup(-8, store),
        );
        let verified = takes(lookup(-16, store));
        assert_eq!(verified.facts()[9 + insns].most_index, Some(1));
    }
}
