//! Which programs the verifier takes, which it refuses, and how it says so.

use bpf::{
    AluOp, AtomicOp, Builder, Condition, Helper, Insn, Kind, MOST_ENTRY_BYTES, MOST_INSNS,
    MOST_MAPS, MapDef, MapIndex, MapKind, Memory, Operand, Program, Reg,
    Reg::*,
    Size, Swap, Target, Verified, Width,
    context::Register,
    verifier::{Cause, MOST_PATH, Refusal, STEPS_OF_CALL, STEPS_OF_KERNEL_LOAD, verify},
};

fn built(kind: Kind, write: impl FnOnce(&mut Builder)) -> Program {
    let mut b = Builder::new(kind);
    write(&mut b);
    b.finish().unwrap()
}

fn taken(write: impl FnOnce(&mut Builder)) -> Verified {
    match verify(built(Kind::Probe, write)) {
        Ok(verified) => verified,
        Err(refusal) => panic!("refused: {refusal}"),
    }
}

#[test]
fn a_count_is_taken_with_its_map_and_index() {
    let verified = taken(|b| {
        let calls = b.map(MapDef::counters("calls", 1));
        b.add(calls, 0, 1).exit(0);
    });
    let fact = verified.facts()[3];
    assert_eq!(fact.map, Some(MapIndex(0)));
    assert_eq!(fact.most_index, Some(0));
    assert_eq!(verified.stack_bytes(), 0);
}

#[test]
fn a_histogram_of_a_register_is_taken_with_the_greatest_bucket() {
    let verified = taken(|b| {
        let histogram = b.map(MapDef::histogram("sizes"));
        b.load_register(R1, Register::Si)
            .call(Helper::Log2)
            .mov(R2, R0)
            .load_map(R1, histogram)
            .mov(R3, 1)
            .call(Helper::Add)
            .exit(0);
    });
    assert_eq!(
        verified.facts()[0].memory,
        Some(Memory::Context {
            offset: Register::Si.offset()
        })
    );
    assert_eq!(verified.facts()[5].most_index, Some(64));
}

#[test]
fn a_record_is_reserved_filled_and_submitted() {
    let verified = taken(|b| {
        let ring = b.map(MapDef::ring("events"));
        let full = b.label();
        b.mov(R6, R1)
            .reserve(ring, 24, full)
            .load(R2, R6, Register::Di.offset(), Size::B8)
            .store(R0, 0, Size::B8, R2)
            .load(R3, R2, 16, Size::B4)
            .store(R0, 8, Size::B8, R3)
            .store(R0, 16, Size::B8, 0)
            .submit(R0)
            .place(full)
            .exit(0);
    });
    let memory: Vec<_> = verified.facts()[6..11]
        .iter()
        .map(|fact| fact.memory.unwrap())
        .collect();
    let expected = [
        Memory::Context {
            offset: Register::Di.offset(),
        },
        Memory::Own,
        Memory::Kernel,
        Memory::Own,
        Memory::Own,
    ];
    assert_eq!(memory, expected);
}

#[test]
fn a_value_is_looked_up_by_a_key_on_the_stack() {
    let verified = taken(|b| {
        let table = b.map(MapDef::counters_by_key("by_arg", 8, 16));
        let none = b.label();
        b.load_register(R2, Register::Di)
            .store(R10, -8, Size::B8, R2)
            .load_map(R1, table)
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -8)
            .call(Helper::MapLookup)
            .branch(Condition::Equal, R0, 0, none)
            .load(R1, R0, 0, Size::B8)
            .alu(AluOp::Add, R1, 1)
            .store(R0, 0, Size::B8, R1)
            .place(none)
            .exit(0);
    });
    assert_eq!(
        verified.facts()[1].memory,
        Some(Memory::Stack { offset: -8 })
    );
    assert_eq!(verified.facts()[5].map, Some(MapIndex(0)));
    assert_eq!(verified.facts()[7].memory, Some(Memory::Own));
    assert_eq!(verified.stack_bytes(), 8);
    assert!(verified.facts().iter().all(|fact| fact.reached));
}

#[test]
fn a_loop_of_64_turns_is_taken() {
    let verified = taken(|b| {
        let head = b.label();
        b.mov(R6, 0)
            .place(head)
            .alu(AluOp::Add, R6, 1)
            .branch(Condition::Below, R6, 64, head)
            .exit(0);
    });
    assert!(verified.facts().iter().all(|fact| fact.reached));
}

#[test]
fn a_comparison_of_one_copy_with_null_tells_about_the_others() {
    for compared in [R0, R7] {
        for condition in [Condition::Equal, Condition::NotEqual] {
            taken(|b| {
                let calls = b.map(MapDef::counters_by_key("calls", 8, 4));
                let (there, end) = (b.label(), b.label());
                b.store(R10, -8, Size::B8, 1)
                    .load_map(R1, calls)
                    .mov(R2, R10)
                    .alu(AluOp::Add, R2, -8)
                    .call(Helper::MapLookup)
                    .mov(R7, R0);
                if condition == Condition::Equal {
                    b.branch(condition, compared, 0, end);
                } else {
                    b.branch(condition, compared, 0, there).jump(end);
                }
                b.place(there).store(R7, 0, Size::B8, 1);
                b.place(end).exit(0);
            });
        }
    }
}

fn array(value_size: u32) -> MapDef {
    MapDef {
        name: "array".into(),
        kind: MapKind::Array,
        key_size: 4,
        value_size,
        entries: 4,
    }
}

/// The maps of the programs below, by their numbers: an array with values of 24 bytes, a hash with
/// keys of 8 and values of 16, a ring, call stacks, an array with values of 4.
const ARRAY: MapIndex = MapIndex(0);
const HASH: MapIndex = MapIndex(1);
const RING: MapIndex = MapIndex(2);
const STACKS: MapIndex = MapIndex(3);
const SMALL: MapIndex = MapIndex(4);

fn with_maps(kind: Kind, write: impl FnOnce(&mut Builder)) -> Program {
    built(kind, |b| {
        let map = |kind, key_size, value_size| MapDef {
            name: "map".into(),
            kind,
            key_size,
            value_size,
            entries: 4,
        };
        b.map(array(24));
        b.map(map(MapKind::Hash, 8, 16));
        b.map(MapDef::ring("ring"));
        b.map(map(MapKind::Stacks, 4, 64));
        b.map(array(4));
        write(b);
    })
}

#[track_caller]
fn takes(write: impl FnOnce(&mut Builder)) -> Verified {
    takes_in(Kind::Probe, write)
}

#[track_caller]
fn takes_in(kind: Kind, write: impl FnOnce(&mut Builder)) -> Verified {
    verify(with_maps(kind, write)).unwrap_or_else(|refusal| panic!("refused: {refusal}"))
}

/// The refusal has this text.
#[track_caller]
fn refuses(text: &str, write: impl FnOnce(&mut Builder)) {
    refuses_in(Kind::Probe, text, write);
}

#[track_caller]
fn refuses_in(kind: Kind, text: &str, write: impl FnOnce(&mut Builder)) {
    refuses_program(text, with_maps(kind, write));
}

#[track_caller]
fn refuses_program(text: &str, program: Program) {
    match verify(program) {
        Ok(_) => panic!("taken, not refused with: {text}"),
        Err(refusal) => assert_eq!(refusal.to_string(), text),
    }
}

fn of_insns(insns: Vec<Insn>) -> Program {
    Program {
        kind: Kind::Probe,
        insns,
        maps: Vec::new(),
    }
}

/// `insn`, and an end.
fn alone(insn: Insn) -> Program {
    built(Kind::Probe, |b| {
        b.push(insn).exit(0);
    })
}

/// `r0 = ` a value of the array, which is there.
fn value(b: &mut Builder) {
    b.store(R10, -4, Size::B4, 1)
        .load_map(R1, ARRAY)
        .mov(R2, R10)
        .alu(AluOp::Add, R2, -4)
        .call(Helper::MapLookup);
}

/// `r0 = ` a value of the hash, or null.
fn value_or_null(b: &mut Builder) {
    b.store(R10, -8, Size::B8, 1)
        .load_map(R1, HASH)
        .mov(R2, R10)
        .alu(AluOp::Add, R2, -8)
        .call(Helper::MapLookup);
}

/// `r0 = ` a record of 16 bytes, or null.
fn record_or_null(b: &mut Builder) {
    b.load_map(R1, RING)
        .mov(R2, 16)
        .mov(R3, 0)
        .call(Helper::RingReserve);
}

/// Does `then` with a record of 16 bytes in `r7`, and gives it back.
fn with_record(b: &mut Builder, event: bool, then: impl FnOnce(&mut Builder)) {
    let end = b.label();
    b.load_map(R1, RING).mov(R2, 16).mov(R3, 0).mov(R4, 9);
    b.call(match event {
        true => Helper::EventReserve,
        false => Helper::RingReserve,
    });
    b.branch(Condition::Equal, R0, 0, end).mov(R7, R0);
    then(b);
    b.mov(R1, R7)
        .mov(R2, 0)
        .call(Helper::RingDiscard)
        .place(end)
        .exit(0);
}

#[test]
fn a_program_has_instructions_but_not_too_many() {
    refuses_program(
        "expected 1 to 4096 instructions, found none; a program ends with `exit`",
        of_insns(Vec::new()),
    );
    let of_length = |length: usize| {
        let mov = Insn::LoadImm { dst: R0, value: 0 };
        let mut insns = vec![mov; length - 1];
        insns.push(Insn::Exit);
        of_insns(insns)
    };
    verify(of_length(MOST_INSNS)).unwrap();
    refuses_program(
        "expected at most 4096 instructions, found 4097; make it shorter",
        of_length(MOST_INSNS + 1),
    );
}

#[test]
fn maps_and_entry_data_are_limited() {
    let of_maps = |count: usize| Program {
        maps: vec![array(8); count],
        ..alone(Insn::LoadImm { dst: R0, value: 0 })
    };
    verify(of_maps(MOST_MAPS)).unwrap();
    refuses_program(
        "expected at most 16 maps, found 17; use fewer",
        of_maps(MOST_MAPS + 1),
    );
    let mut program = of_maps(2);
    program.maps[1].key_size = 5;
    refuses_program(
        "map 1 has a key of 5 bytes; this kind of map takes 4 to 4; change its definition",
        program,
    );
    let sharing = |data| {
        built(Kind::Entry { data }, |b| {
            b.exit(0);
        })
    };
    verify(sharing(MOST_ENTRY_BYTES)).unwrap();
    refuses_program(
        "expected at most 256 bytes of entry data, found 257; share less",
        sharing(MOST_ENTRY_BYTES + 1),
    );
}

#[test]
fn instructions_are_well_formed_even_where_no_path_leads() {
    let jump = |target| {
        of_insns(vec![
            Insn::LoadImm { dst: R0, value: 0 },
            Insn::Exit,
            Insn::Jump {
                target: Target(target),
            },
        ])
    };
    verify(jump(2)).unwrap();
    refuses_program(
        "insn 2, `goto 3`: expected a jump to one of the instructions 0 to 2, found one to 3; jump \
         to an instruction of the program",
        jump(3),
    );
    refuses_program(
        "insn 0, `r1 = map 0`: expected one of the program's 0 maps, found map 0; add the map to \
         the program",
        alone(Insn::LoadMap {
            dst: R1,
            map: MapIndex(0),
        }),
    );
    for insn in [
        Insn::LoadImm { dst: R10, value: 0 },
        Insn::Load {
            dst: R10,
            base: R1,
            offset: 0,
            size: Size::B8,
            signed: false,
        },
    ] {
        refuses_program(
            &format!(
                "insn 0, `{insn}`: expected one of r0 to r9 to write, found r10; r10 is read-only: \
                 copy it first"
            ),
            alone(insn),
        );
    }
    let extend = |width, bits| {
        built(Kind::Probe, |b| {
            b.mov(R1, 5)
                .push(Insn::SignExtend {
                    width,
                    bits,
                    dst: R1,
                    src: R1,
                })
                .exit(0);
        })
    };
    verify(extend(Width::W64, 32)).unwrap();
    refuses_program(
        "insn 1, `w1 = (s32)w1`: expected a sign extension of 8 or 16 bits, found one of 32; use \
         one of these",
        extend(Width::W32, 32),
    );
    refuses_program(
        "insn 1, `r1 = (s7)r1`: expected a sign extension of 8, 16 or 32 bits, found one of 7; use \
         one of these",
        extend(Width::W64, 7),
    );
    refuses_program(
        "insn 0, `r1 = be8 r1`: expected a reordering of 16, 32 or 64 bits, found one of 8; use \
         one of these",
        alone(Insn::Swap {
            swap: Swap::ToBig,
            bits: 8,
            dst: R1,
        }),
    );
    refuses_program(
        "insn 0, `lock *(u16 *)(r10 - 8) += r1`: expected an atomic operation on 4 or 8 bytes, \
         found 2; use one of these",
        alone(atomic_add(R10, -8, Size::B2, R1)),
    );
    refuses_program(
        "insn 0, `r0 = 0x0 ll`: expected a next instruction, found the end of the program; end it \
         with `exit`",
        of_insns(vec![Insn::LoadImm { dst: R0, value: 0 }]),
    );
}

fn atomic_add(base: Reg, offset: i16, size: Size, reg: Reg) -> Insn {
    Insn::Atomic {
        op: AtomicOp::Add { fetch: false },
        base,
        offset,
        size,
        reg,
    }
}

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
    assert_eq!(takes(store(-512, Size::B8)).stack_bytes(), 512);
    assert_eq!(takes(store(-1, Size::B1)).stack_bytes(), 8);
    assert_eq!(takes(store(-9, Size::B8)).stack_bytes(), 16);
    refuses(
        "insn 0, `*(u8 *)(r10 - 513) = 1`: expected bytes -512 to -1 of the stack, counted from \
         r10, found -513 to -513; check the offset, or make it smaller",
        store(-513, Size::B1),
    );
    refuses(
        "insn 0, `*(u64 *)(r10 - 7) = 1`: expected bytes -512 to -1 of the stack, counted from \
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
        "insn 3, `call comm`: expected bytes -512 to -1 of the stack, counted from r10, found -16 \
         to 0; check the offset, or make it smaller",
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
    takes_in(Kind::Entry { data: 16 }, entry_data);
    takes_in(Kind::Return { data: 16 }, entry_data);
    refuses_in(
        Kind::Return { data: 15 },
        "insn 1, `*(u64 *)(r0 + 8) = 1`: expected bytes 0 to 14 of the entry data, found 8 to 15; \
         check the offset, or make it smaller",
        entry_data,
    );
    for kind in [Kind::Probe, Kind::Entry { data: 0 }] {
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
    takes_in(Kind::Return { data: 0 }, return_address);
    for kind in [Kind::Probe, Kind::Entry { data: 8 }] {
        refuses_in(
            kind,
            "insn 0, `call return_address`: expected a helper of this kind of program, found \
             return_address; only the return of a call has a return address",
            return_address,
        );
    }
}

/// `r2 = ` the one on one path, the other on another; then `then`.
fn either(b: &mut Builder, one: fn(&mut Builder), other: fn(&mut Builder)) {
    let (second, join) = (b.label(), b.label());
    b.load_register(R3, Register::Di)
        .branch(Condition::Equal, R3, 0, second);
    one(b);
    b.jump(join).place(second);
    other(b);
    b.place(join);
}

#[test]
fn facts_hold_on_all_paths() {
    refuses(
        "insn 5, `r4 = *(u64 *)(r2 + 0)`: expected the same kind of memory on every path, found \
         kernel memory or the context on one and other memory on another; use an instruction for \
         each",
        |b| {
            either(
                b,
                |b| {
                    b.mov(R2, R1);
                },
                |b| {
                    b.mov(R2, R3);
                },
            );
            b.load(R4, R2, 0, Size::B8).exit(0);
        },
    );
    refuses(
        "insn 7, `call add`: expected the same map on every path, found map 5 and map 0; use a \
         call for each",
        |b| {
            b.map(array(8));
            either(
                b,
                |b| {
                    b.load_map(R1, ARRAY);
                },
                |b| {
                    b.load_map(R1, MapIndex(5));
                },
            );
            b.mov(R2, 0).mov(R3, 0).call(Helper::Add).exit(0);
        },
    );
    let verified = takes(|b| {
        b.store(R10, -8, Size::B8, 1).store(R10, -24, Size::B8, 1);
        either(
            b,
            |b| {
                b.mov(R2, -8);
            },
            |b| {
                b.mov(R2, -24);
            },
        );
        b.alu(AluOp::Add, R2, R10).load(R4, R2, 0, Size::B8).exit(0);
    });
    assert_eq!(verified.facts()[8].memory, Some(Memory::Own));
    let verified = takes(|b| {
        either(
            b,
            |b| {
                b.mov(R2, 2);
            },
            |b| {
                b.mov(R2, 7);
            },
        );
        b.load_map(R1, ARRAY).mov(R3, 1).call(Helper::Add).exit(0);
    });
    assert_eq!(verified.facts()[7].most_index, Some(7));
}

#[test]
fn code_that_no_path_reaches_is_told_and_not_checked() {
    let verified = takes(|b| {
        let end = b.label();
        b.mov(R2, 5)
            .branch(Condition::Above, R2, 4, end)
            .store(R2, 0, Size::B8, 1)
            .place(end)
            .exit(0);
    });
    let reached: Vec<_> = verified.facts().iter().map(|fact| fact.reached).collect();
    assert_eq!(reached, [true, true, false, true, true]);
}

/// A loop of so many turns, with `body` in it. `r9` counts.
fn turns(b: &mut Builder, turns: i64, body: impl FnOnce(&mut Builder)) {
    let head = b.label();
    b.mov(R9, 0).set(R8, turns).place(head);
    body(b);
    b.alu(AluOp::Add, R9, 1)
        .branch(Condition::NotEqual, R9, R8, head)
        .exit(0);
}

#[test]
fn paths_end_in_time() {
    // Two steps for each turn, and four around them.
    let most = (i64::from(MOST_PATH) - 4) / 2;
    takes(|b| turns(b, most, |_| {}));
    refuses(
        "insn 2, `r9 += 1`: expected a path of at most 65536 steps, found a longer one through \
         here; bound the loop, or make fewer turns",
        |b| turns(b, most + 2, |_| {}),
    );
    // A call counts for more, and so does a load of kernel memory.
    let most_calls = (i64::from(MOST_PATH) - 4) / i64::from(2 + STEPS_OF_CALL);
    let call = |b: &mut Builder| {
        b.call(Helper::Tsc);
    };
    takes(|b| turns(b, most_calls, call));
    verify(with_maps(Kind::Probe, |b| turns(b, most_calls + 1, call))).unwrap_err();
    let most_loads = (i64::from(MOST_PATH) - 4) / i64::from(2 + STEPS_OF_KERNEL_LOAD);
    let load = |b: &mut Builder| {
        b.load(R3, R9, 0, Size::B8);
    };
    takes(|b| turns(b, most_loads, load));
    verify(with_maps(Kind::Probe, |b| turns(b, most_loads + 1, load))).unwrap_err();
    refuses(
        "insn 1, `r6 = 1`: expected a loop to change something that ends it, found the same state \
         again; count its turns in a register or on the stack",
        |b| {
            let head = b.label();
            b.mov(R6, 1).place(head).mov(R6, 1).jump(head);
        },
    );
}

#[test]
fn the_walk_ends_in_time_and_memory() {
    // Each bit that is put together doubles the states.
    refuses(
        "insn 66, `r0 = r7`: expected that 200000 steps show all paths, found more \
         of them; make loops and branches fewer",
        |b| {
            b.mov(R6, R1).mov(R7, 0);
            for _ in 0..16 {
                let over = b.label();
                b.load(R2, R6, 0, Size::B8)
                    .alu(AluOp::ShiftLeft, R7, 1)
                    .branch(Condition::Equal, R2, 0, over)
                    .alu(AluOp::Or, R7, 1)
                    .place(over);
            }
            b.mov(R0, R7).push(Insn::Exit);
        },
    );
    // Each turn leaves a way for later, with a full stack.
    refuses(
        "insn 69, `if r2 == 0 goto 71`: expected that 4194304 bytes hold the states of all paths, \
         found more; make loops and branches fewer",
        |b| {
            b.mov(R6, R1);
            for slot in 1..=64 {
                b.store(R10, -8 * slot, Size::B8, 0);
            }
            turns(b, 4000, |b| {
                let over = b.label();
                b.mov(R7, 0)
                    .load(R2, R6, 0, Size::B8)
                    .branch(Condition::Equal, R2, 0, over)
                    .mov(R7, 1)
                    .place(over)
                    .store(R10, -8, Size::B8, R7);
            });
        },
    );
    let out_of_memory = Refusal {
        at: None,
        cause: Cause::OutOfMemory,
    };
    assert_eq!(
        out_of_memory.to_string(),
        "there is no memory to check the program; free some and try again"
    );
}

/// Two ways that differ only in what nothing reads are one, so that 64 branches in a row do not
/// make 2^64 paths.
#[test]
fn branches_in_a_row_are_walked_once() {
    takes(|b| {
        b.mov(R6, R1);
        for _ in 0..64 {
            let over = b.label();
            b.load(R2, R6, 0, Size::B8)
                .mov(R3, 2)
                .branch(Condition::Equal, R2, 0, over)
                .mov(R3, 1)
                .place(over);
        }
        b.exit(0);
    });
}
