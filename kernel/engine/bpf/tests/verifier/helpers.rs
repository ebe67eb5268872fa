//! Arguments of helpers, and records.
//!
//! Each argument of each kind has programs that give something else, and the refusal's text. A
//! record is accessed inside, and given back once on every path.

use super::*;

#[test]
fn helpers_get_what_they_want() {
    let call = |helper, set: fn(&mut Builder)| {
        move |b: &mut Builder| {
            set(b);
            b.call(helper).exit(0);
        }
    };
    refuses(
        "insn 3, `call add`: expected a map of kind Array or PerCpuArray in r1, found map 1; load \
         the map with its own instruction",
        call(Helper::Add, |b| {
            b.load_map(R1, HASH).mov(R2, 0).mov(R3, 1);
        }),
    );
    refuses(
        "insn 3, `call add`: expected a map with values of 8 bytes or more, because it adds to 8 \
         in r1, found map 4; give its values more bytes",
        call(Helper::Add, |b| {
            b.load_map(R1, SMALL).mov(R2, 0).mov(R3, 1);
        }),
    );
    refuses(
        "insn 1, `call func_ip`: expected the context, as r1 holds it at first in r1, found the \
         number 5; keep the context in r6 to r9 for later calls",
        call(Helper::FuncIp, |b| {
            b.mov(R1, 5);
        }),
    );
    // Keys and buffers.
    refuses(
        "insn 4, `call map_lookup`: expected a number at r10 minus 4, found a byte that was not \
         written on every path, or is of a pointer; write it first, and read pointers whole",
        call(Helper::MapLookup, |b| {
            b.store(R10, -8, Size::B4, 1)
                .load_map(R1, HASH)
                .mov(R2, R10)
                .alu(AluOp::Add, R2, -8);
        }),
    );
    let comm = |below: i32, size: i32| {
        move |b: &mut Builder| {
            b.mov(R1, R10)
                .alu(AluOp::Sub, R1, below)
                .mov(R2, size)
                .call(Helper::Comm)
                .load(R1, R10, -8, Size::B8)
                .exit(0);
        }
    };
    takes(comm(16, 16));
    refuses(
        "insn 3, `call comm`: expected bytes -2048 to -1 of the stack, counted from r10, found \
         -16 to 0; check the offset, or make it smaller",
        comm(16, 17),
    );
    refuses(
        "insn 3, `call comm`: expected a known number of bytes, 1 or more in r2, found the number \
         0; set it to a constant on every path that leads here",
        comm(16, 0),
    );
    refuses(
        "insn 4, `r1 = *(u64 *)(r10 - 8)`: expected a number at r10 minus 1, found a byte that was \
         not written on every path, or is of a pointer; write it first, and read pointers whole",
        comm(16, 15),
    );
    // Records.
    let reserve = |helper, size: i32, third: i32| {
        move |b: &mut Builder| {
            let end = b.label();
            b.load_map(R1, RING)
                .mov(R2, size)
                .mov(R3, third)
                .mov(R4, 0)
                .call(helper)
                .branch(Condition::Equal, R0, 0, end)
                .submit(R0)
                .place(end)
                .exit(0);
        }
    };
    takes(reserve(Helper::RingReserve, 1, 0));
    takes(reserve(Helper::RingReserve, 3072, 0));
    takes(reserve(Helper::EventReserve, 8, 100));
    refuses(
        "insn 4, `call ring_reserve`: expected a known number of bytes from 1 to 3072 in r2, found \
         the number 3073; set it to a constant on every path that leads here",
        reserve(Helper::RingReserve, 3073, 0),
    );
    refuses(
        "insn 4, `call event_reserve`: expected a known number of bytes from 8 to 3072 in r2, \
         found the number 7; set it to a constant on every path that leads here",
        reserve(Helper::EventReserve, 7, 0),
    );
    refuses(
        "insn 4, `call ring_reserve`: expected the number 0 in r3, found the number 1; there are \
         no flags: set it to 0",
        reserve(Helper::RingReserve, 8, 1),
    );
    refuses(
        "insn 5, `call event_reserve`: expected a known number in r4, found a number (any number); \
         set it to a constant on every path that leads here",
        call(Helper::EventReserve, |b| {
            b.load_register(R4, Register::Di)
                .mov(R5, 0)
                .load_map(R1, RING)
                .mov(R2, 8)
                .mov(R3, 0);
        }),
    );
    let append = |b: &mut Builder| {
        b.mov(R1, R7).mov(R2, 0).mov(R3, 8).call(Helper::AppendStr);
    };
    takes(|b| with_record(b, true, append));
    refuses(
        "insn 10, `call append_str`: expected the record of event_reserve, by its beginning in r1, \
         found a pointer into the record of 16 bytes (offset 0); pass the pointer that the call \
         gave that reserved it",
        |b| with_record(b, false, append),
    );
    refuses(
        "insn 2, `call str_len`: expected a number in r1, found a pointer into the stack (r10 plus \
         0); a pointer of the program is not a number",
        call(Helper::StrLen, |b| {
            b.mov(R1, R10).mov(R2, 8);
        }),
    );
    takes(call(Helper::StackId, |b| {
        b.load_map(R2, STACKS).mov(R3, 0);
    }));
}

#[test]
fn a_record_is_accessed_inside_and_given_back_once() {
    let store = |offset, size| {
        move |b: &mut Builder| {
            with_record(b, false, |b| {
                b.store(R7, offset, size, 1);
            });
        }
    };
    takes(store(8, Size::B8));
    refuses(
        "insn 7, `*(u64 *)(r7 + 9) = 1`: expected bytes 0 to 15 of the record, found 9 to 16; \
         check the offset, or make it smaller",
        store(9, Size::B8),
    );
    let held = "expected no record in hand, found the one reserved at instruction 3; submit or \
                discard it first, on every path";
    refuses(&format!("insn 5, `exit`: {held}"), |b| {
        record_or_null(b);
        b.exit(0);
    });
    refuses(&format!("insn 7, `call ring_reserve`: {held}"), |b| {
        record_or_null(b);
        record_or_null(b);
        b.exit(0);
    });
    let lost = "found nothing that was written on every path; write it on every path that leads \
                here; a call loses r1 to r5, and a submitted or discarded record is lost \
                everywhere";
    // Used after it was given back; given back twice; not by its beginning.
    refuses(
        &format!(
            "insn 10, `*(u64 *)(r7 + 0) = 1`: expected a pointer into the program's own memory in \
             r7, {lost}"
        ),
        |b| {
            with_record(b, false, |b| {
                b.submit(R7).store(R7, 0, Size::B8, 1);
            });
        },
    );
    refuses(
        &format!("insn 10, `r1 = r7`: expected a value in r7, {lost}"),
        |b| {
            with_record(b, false, |b| {
                b.submit(R7);
            });
        },
    );
    refuses(
        "insn 10, `call ring_discard`: expected the record, by its beginning in r1, found a \
         pointer into the record of 16 bytes (offset 8); pass the pointer that the call gave that \
         reserved it",
        |b| {
            with_record(b, false, |b| {
                b.alu(AluOp::Add, R7, 8);
            });
        },
    );
}

#[test]
fn helpers_belong_to_kinds_of_programs() {
    let entry_data = |b: &mut Builder| {
        b.call(Helper::EntryData).store(R0, 8, Size::B8, 1).exit(0);
    };
    takes_in(ProgramKind::Entry { data: 16 }, entry_data);
    takes_in(ProgramKind::Return { data: 16 }, entry_data);
    refuses_in(
        ProgramKind::Return { data: 15 },
        "insn 1, `*(u64 *)(r0 + 8) = 1`: expected bytes 0 to 14 of the entry data, found 8 to 15; \
         check the offset, or make it smaller",
        entry_data,
    );
    for kind in [ProgramKind::Probe, ProgramKind::Entry { data: 0 }] {
        refuses_in(
            kind,
            "insn 0, `call entry_data`: expected a helper of this kind of program, found \
             entry_data; only the entry and the return of a call that share bytes have entry data",
            entry_data,
        );
    }
    let return_address = |b: &mut Builder| {
        b.call(Helper::ReturnAddress).exit(0);
    };
    takes_in(ProgramKind::Return { data: 0 }, return_address);
    for kind in [ProgramKind::Probe, ProgramKind::Entry { data: 8 }] {
        refuses_in(
            kind,
            "insn 0, `call return_address`: expected a helper of this kind of program, found \
             return_address; only the return of a call has a return address",
            return_address,
        );
    }
}
