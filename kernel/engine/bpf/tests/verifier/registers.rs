//! Registers, the context and the stack.
//!
//! What is read was written before, wholly, on every path. The context is loaded register by
//! register and never written. Pointers are kept on the stack only, in whole slots.

use super::*;

#[test]
fn registers_are_written_before_they_are_read() {
    const LOST: &str = "found nothing that was written on every path; write it on every path that \
                        leads here; a call loses r1 to r5, and a submitted or discarded record is \
                        lost everywhere";
    refuses(
        &format!("insn 0, `exit`: expected a number in r0, {LOST}"),
        |b| {
            b.push(Insn::Exit);
        },
    );
    refuses(
        &format!("insn 0, `r2 = r3`: expected a value in r3, {LOST}"),
        |b| {
            b.mov(R2, R3).exit(0);
        },
    );
    refuses(
        &format!("insn 0, `r2 += 1`: expected a value in r2, {LOST}"),
        |b| {
            b.alu(AluOp::Add, R2, 1).exit(0);
        },
    );
    refuses(
        &format!(
            "insn 1, `r2 = *(u64 *)(r1 + 0)`: expected an address or a pointer to memory in r1, \
             {LOST}"
        ),
        |b| {
            b.call(Helper::Tsc).load(R2, R1, 0, Size::B8).exit(0);
        },
    );
    // On one of two paths only.
    refuses(
        &format!("insn 3, `r4 = r3`: expected a value in r3, {LOST}"),
        |b| {
            let over = b.label();
            b.load_register(R2, Register::Di)
                .branch(Condition::Equal, R2, 0, over)
                .mov(R3, 1)
                .place(over)
                .mov(R4, R3)
                .exit(0);
        },
    );
    // r6 to r9 are kept.
    takes(|b| {
        b.mov(R6, R1)
            .call(Helper::Tsc)
            .load(R2, R6, 0, Size::B8)
            .exit(0);
    });
}

#[test]
fn a_result_is_a_number() {
    refuses(
        "insn 1, `exit`: expected a number in r0, found a pointer into the stack (r10 plus 0); a \
         pointer of the program is not a number",
        |b| {
            b.mov(R0, R10).push(Insn::Exit);
        },
    );
}

#[test]
fn the_context_is_loaded_by_registers_and_never_written() {
    let load = |offset, size| {
        move |b: &mut Builder| {
            b.load(R2, R1, offset, size).exit(0);
        }
    };
    let last = Register::Ss.offset();
    for size in [Size::B1, Size::B2, Size::B4, Size::B8] {
        takes(load(last, size));
    }
    refuses(
        "insn 0, `r2 = *(u64 *)(r1 + 168)`: expected bytes 0 to 167 of the context, found 168 to \
         175; check the offset, or make it smaller",
        load(last + 8, Size::B8),
    );
    refuses(
        "insn 0, `r2 = *(u8 *)(r1 - 1)`: expected bytes 0 to 167 of the context, found -1 to -1; \
         check the offset, or make it smaller",
        load(-1, Size::B1),
    );
    refuses(
        "insn 0, `r2 = *(u32 *)(r1 + 116)`: expected 1, 2, 4 or 8 bytes inside one register of the \
         context, found 4 at 116; each register is 8 bytes, and the context has 168 bytes",
        load(116, Size::B4),
    );
    refuses(
        "insn 0, `*(u64 *)(r1 + 0) = 1`: expected a pointer into the program's own memory in r1, \
         found the context; the context may be read only",
        |b| {
            b.store(R1, 0, Size::B8, 1).exit(0);
        },
    );
    refuses(
        "insn 0, `r1 += 8`: expected a number in r1, found the context; a pointer can only be \
         copied, and moved by a number with `+=` and `-=` of 64 bits, unless it is the context, a \
         map or possibly null",
        |b| {
            b.alu(AluOp::Add, R1, 8).exit(0);
        },
    );
}

#[test]
fn the_stack_is_accessed_inside_only() {
    let store = |offset, size| {
        move |b: &mut Builder| {
            b.store(R10, offset, size, 1).exit(0);
        }
    };
    assert_eq!(takes(store(-2048, Size::B8)).stack_bytes(), 2048);
    assert_eq!(takes(store(-1, Size::B1)).stack_bytes(), 8);
    assert_eq!(takes(store(-9, Size::B8)).stack_bytes(), 16);
    refuses(
        "insn 0, `*(u8 *)(r10 - 2049) = 1`: expected bytes -2048 to -1 of the stack, counted from \
         r10, found -2049 to -2049; check the offset, or make it smaller",
        store(-2049, Size::B1),
    );
    refuses(
        "insn 0, `*(u64 *)(r10 - 7) = 1`: expected bytes -2048 to -1 of the stack, counted from \
         r10, found -7 to 0; check the offset, or make it smaller",
        store(-7, Size::B8),
    );
}

#[test]
fn bytes_of_the_stack_are_written_before_they_are_read() {
    let rest = "a byte that was not written on every path, or is of a pointer; write it first, and \
                read pointers whole";
    takes(|b| {
        b.store(R10, -6, Size::B2, 1)
            .store(R10, -4, Size::B4, 1)
            .load(R1, R10, -6, Size::B4)
            .exit(0);
    });
    refuses(
        &format!(
            "insn 1, `r1 = *(u64 *)(r10 - 8)`: expected a number at r10 minus 8, found {rest}"
        ),
        |b| {
            b.store(R10, -7, Size::B4, 1)
                .load(R1, R10, -8, Size::B8)
                .exit(0);
        },
    );
    // The part of a pointer.
    refuses(
        &format!(
            "insn 1, `r1 = *(u32 *)(r10 - 8)`: expected a number at r10 minus 8, found {rest}"
        ),
        |b| {
            b.store(R10, -8, Size::B8, R1)
                .load(R1, R10, -8, Size::B4)
                .exit(0);
        },
    );
    // The rest of one.
    refuses(
        &format!(
            "insn 2, `r1 = *(u64 *)(r10 - 8)`: expected a number at r10 minus 7, found {rest}"
        ),
        |b| {
            b.store(R10, -8, Size::B8, R1)
                .store(R10, -8, Size::B1, 0)
                .load(R1, R10, -8, Size::B8)
                .exit(0);
        },
    );
}

#[test]
fn pointers_are_kept_on_the_stack_only_and_whole() {
    takes(|b| {
        b.store(R10, -8, Size::B8, R1)
            .call(Helper::Tsc)
            .load(R6, R10, -8, Size::B8)
            .load(R2, R6, 0, Size::B8)
            .exit(0);
    });
    refuses(
        "insn 0, `*(u64 *)(r10 - 12) = r1`: expected an offset that is a multiple of 8, found \
         another; a pointer on the stack and an atomic operation need that",
        |b| {
            b.store(R10, -12, Size::B8, R1).exit(0);
        },
    );
    refuses(
        "insn 0, `*(u32 *)(r10 - 8) = r10`: expected a number in r10, found a pointer into the \
         stack (r10 plus 0); a pointer of the program is not a number",
        |b| {
            b.store(R10, -8, Size::B4, R10).exit(0);
        },
    );
    refuses(
        "insn 5, `*(u64 *)(r0 + 0) = r10`: expected a number in r10, found a pointer into the \
         stack (r10 plus 0); a pointer of the program is not a number",
        |b| {
            value(b);
            b.store(R0, 0, Size::B8, R10).exit(0);
        },
    );
}
