//! The interpreter: every objection, and what every helper does.

use bpf::{
    AluOp, AtomicOp, Builder, Condition, Helper, Insn, Kind, MapDef, MapIndex, MapKind, Operand,
    Program, Reg,
    Reg::*,
    STACK_BYTES, Size, Swap, Target, Width,
    context::Register,
    errno,
    interpreter::{Addresses, Objection, Reason, Space, TestMachine, run, run_on_memory},
};

const KERNEL: u64 = 0xffff_8000_0000_1000;
const LIMIT: u64 = 1_000;

/// A program in which `r6` keeps the context.
fn program(kind: Kind, maps: &[MapDef], write: impl FnOnce(&mut Builder)) -> Program {
    let mut b = Builder::new(kind);
    for map in maps {
        b.map(map.clone());
    }
    b.mov(R6, R1);
    write(&mut b);
    b.finish().unwrap()
}

fn probe(maps: &[MapDef], write: impl FnOnce(&mut Builder)) -> Program {
    program(Kind::Probe, maps, write)
}

fn result(program: &Program) -> Result<u64, Objection> {
    run(program, &mut TestMachine::new(program), LIMIT)
}

/// The reason why the last instruction in front of the exit is objected to.
#[track_caller]
fn refused(program: &Program) -> Reason {
    let objection = result(program).expect_err("an objection");
    assert!(!objection.to_string().is_empty());
    objection.reason
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

fn hash(entries: u32) -> MapDef {
    MapDef {
        name: "hash".into(),
        kind: MapKind::Hash,
        key_size: 8,
        value_size: 16,
        entries,
    }
}

/// `r0 = ` a pointer to the value of index 1 of the map, which is an array.
fn lookup(b: &mut Builder, map: u16) {
    b.store(R10, -4, Size::B4, 1)
        .load_map(R1, MapIndex(map))
        .mov(R2, R10)
        .alu(AluOp::Add, R2, -4)
        .call(Helper::MapLookup);
}

fn reserve(b: &mut Builder, size: i32) {
    b.load_map(R1, MapIndex(0))
        .mov(R2, size)
        .mov(R3, 0)
        .call(Helper::RingReserve);
}

/// `r0 = ` a record of an event, with that room.
fn reserve_event(b: &mut Builder, size: i32, room: i32) {
    b.load_map(R1, MapIndex(0))
        .mov(R2, size)
        .mov(R3, room)
        .mov(R4, 77)
        .call(Helper::EventReserve);
}

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

#[test]
fn the_context_is_read_by_register_and_not_written() {
    let mut machine = TestMachine::new(&probe(&[], |_| {}));
    for (index, register) in Register::ALL.into_iter().enumerate() {
        machine.set_register(register, 0x8877_6655_4433_2200 + index as u64);
        for (size, expected) in [
            (Size::B1, index as u64),
            (Size::B2, 0x2200 + index as u64),
            (Size::B4, 0x4433_2200 + index as u64),
            (Size::B8, 0x8877_6655_4433_2200 + index as u64),
        ] {
            let load = probe(&[], |b| {
                b.load(R0, R1, register.offset(), size).push(Insn::Exit);
            });
            assert_eq!(
                run(&load, &mut machine, LIMIT),
                Ok(expected),
                "{register:?}"
            );
        }
    }
    let load = |offset| {
        refused(&probe(&[], |b| {
            b.load(R0, R1, offset, Size::B4).exit(0);
        }))
    };
    assert_eq!(load(4), Reason::NotARegister { start: 4 });
    for offset in [-8, 168] {
        assert_eq!(
            load(offset),
            Reason::Outside {
                object: "the context",
                start: offset.into(),
                bytes: 4,
                size: 168
            }
        );
    }
    let store = probe(&[], |b| {
        b.store(R1, 0, Size::B8, 1).exit(0);
    });
    assert_eq!(refused(&store), Reason::ContextWritten);
    let atomic = probe(&[], |b| {
        b.mov(R2, 1)
            .push(Insn::Atomic {
                op: AtomicOp::Add { fetch: false },
                base: R1,
                offset: 0,
                size: Size::B8,
                reg: R2,
            })
            .exit(0);
    });
    assert_eq!(refused(&atomic), Reason::ContextWritten);
}

#[test]
fn a_load_through_a_number_is_one_of_kernel_memory() {
    let load = |size, signed, address: u64| {
        probe(&[], |b| {
            b.set(R2, address as i64)
                .push(Insn::Load {
                    dst: R0,
                    base: R2,
                    offset: -1,
                    size,
                    signed,
                })
                .push(Insn::Exit);
        })
    };
    let mut machine = TestMachine::new(&load(Size::B1, false, 0));
    machine.put(
        Space::Kernel,
        KERNEL,
        &[0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88],
    );
    let at = KERNEL + 1;
    for (size, signed, expected) in [
        (Size::B1, false, 0x81),
        (Size::B2, false, 0x8281),
        (Size::B4, false, 0x8483_8281),
        (Size::B8, false, 0x8887_8685_8483_8281),
        (Size::B1, true, 0xffff_ffff_ffff_ff81),
        (Size::B2, true, 0xffff_ffff_ffff_8281),
        (Size::B4, true, 0xffff_ffff_8483_8281),
    ] {
        let load = load(size, signed, at);
        assert_eq!(run(&load, &mut machine, LIMIT), Ok(expected));
    }
    assert_eq!(machine.faults, 0);
    for (count, (address, size)) in [
        (at + 1, Size::B8),
        (at - 1, Size::B1),
        (0, Size::B8),
        (u64::MAX, Size::B4),
    ]
    .into_iter()
    .enumerate()
    {
        let load = load(size, true, address);
        assert_eq!(run(&load, &mut machine, LIMIT), Ok(0), "{address:#x}");
        assert_eq!(machine.faults, count as u64 + 1);
    }
    let store = probe(&[], |b| {
        b.set(R2, KERNEL as i64).store(R2, 0, Size::B1, 1).exit(0);
    });
    assert_eq!(refused(&store), Reason::WrittenThroughNumber(KERNEL));
}

#[test]
fn malformed_and_missing_instructions_are_objected_to() {
    let one = |insn| {
        refused(&Program {
            kind: Kind::Probe,
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
        kind: Kind::Probe,
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

#[test]
fn a_value_is_accessed_inside_only_and_keeps_what_is_stored() {
    let access = |offset: i16| {
        let program = probe(&[array(12)], |b| {
            lookup(b, 0);
            b.store(R0, offset, Size::B8, -2).exit(0);
        });
        let mut machine = TestMachine::new(&program);
        run(&program, &mut machine, LIMIT).map(|_| {
            machine
                .value(MapIndex(0), 0, &1_u32.to_le_bytes())
                .unwrap()
                .to_vec()
        })
    };
    assert_eq!(
        access(4).unwrap(),
        [0, 0, 0, 0, 0xfe, 255, 255, 255, 255, 255, 255, 255]
    );
    for offset in [-1, 5] {
        assert_eq!(
            access(offset).unwrap_err().reason,
            Reason::Outside {
                object: "a value of a map",
                start: offset.into(),
                bytes: 8,
                size: 12
            }
        );
    }
    let through_the_map = probe(&[array(8)], |b| {
        b.load_map(R1, MapIndex(0))
            .load(R0, R1, 0, Size::B8)
            .exit(0);
    });
    assert_eq!(refused(&through_the_map), Reason::MapAccessed);
}

#[test]
fn an_array_has_no_value_behind_its_end() {
    let null = probe(&[array(8)], |b| {
        b.store(R10, -4, Size::B4, 4)
            .load_map(R1, MapIndex(0))
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -4)
            .call(Helper::MapLookup)
            .push(Insn::Exit);
    });
    assert_eq!(result(&null), Ok(0));
}

#[test]
fn arguments_of_other_types_are_objected_to() {
    let maps = [array(4), hash(1), MapDef::ring("ring")];
    let call = |helper: Helper, write: &dyn Fn(&mut Builder)| {
        let program = probe(&maps, |b| {
            b.store(R10, -8, Size::B8, 0)
                .mov(R7, R10)
                .alu(AluOp::Add, R7, -8);
            write(b);
            b.call(helper).exit(0);
        });
        match refused(&program) {
            Reason::WrongArgument {
                register,
                helper: found,
                ..
            } => {
                assert_eq!(found, helper);
                register
            }
            other => panic!("{helper:?}: {other:?}"),
        }
    };
    let map = |map| {
        move |b: &mut Builder| {
            b.load_map(R1, MapIndex(map)).mov(R2, R7).mov(R3, 1);
        }
    };
    // The wrong kind of map; a number, and a pointer, for a map.
    assert_eq!(call(Helper::MapLookup, &map(2)), R1);
    assert_eq!(call(Helper::MapDelete, &map(0)), R1);
    assert_eq!(call(Helper::AddByKey, &map(0)), R1);
    // Its values are too small for a counter.
    assert_eq!(call(Helper::Add, &map(0)), R1);
    for reg in [R7, R3] {
        let lookup = |b: &mut Builder| {
            b.mov(R3, 0).mov(R1, reg).mov(R2, R7);
        };
        assert_eq!(call(Helper::MapLookup, &lookup), R1);
    }
    // A number, the context, and a map for a key.
    for key in [R3, R6, R1] {
        let lookup = |b: &mut Builder| {
            b.load_map(R1, MapIndex(1)).mov(R3, 0).mov(R2, key);
        };
        assert_eq!(call(Helper::MapLookup, &lookup), R2);
    }
    // Not the beginning of the context.
    let func_ip = |b: &mut Builder| {
        b.mov(R1, R6).alu(AluOp::Add, R1, 8);
    };
    assert_eq!(call(Helper::FuncIp, &func_ip), R1);
    // Sizes.
    let comm = |b: &mut Builder| {
        b.mov(R1, R7).mov(R2, 0);
    };
    assert_eq!(call(Helper::Comm, &comm), R2);
    let comm = |b: &mut Builder| {
        b.mov(R1, R6).mov(R2, 8);
    };
    assert_eq!(call(Helper::Comm, &comm), R1);
    for (helper, size) in [
        (Helper::RingReserve, 0),
        (Helper::RingReserve, 3073),
        (Helper::EventReserve, 7),
        (Helper::EventReserve, 3073),
        (Helper::EventReserve, -1),
    ] {
        let reserve = |b: &mut Builder| {
            b.load_map(R1, MapIndex(2))
                .mov(R2, size)
                .mov(R3, 0)
                .mov(R4, 0);
        };
        assert_eq!(call(helper, &reserve), R2, "{size}");
    }
    let flags = |b: &mut Builder| {
        b.load_map(R1, MapIndex(2)).mov(R2, 8).mov(R3, 1);
    };
    assert_eq!(call(Helper::RingReserve, &flags), R3);
    // No record.
    let submit = |b: &mut Builder| {
        b.mov(R1, R7).mov(R2, 0);
    };
    assert_eq!(call(Helper::RingSubmit, &submit), R1);
}

#[test]
fn arguments_in_memory_lie_inside_and_are_set() {
    let key = |offset: i32| {
        refused(&probe(&[hash(1)], |b| {
            b.store(R10, -8, Size::B4, 0)
                .load_map(R1, MapIndex(0))
                .mov(R2, R10)
                .alu(AluOp::Add, R2, offset)
                .call(Helper::MapLookup)
                .exit(0);
        }))
    };
    assert_eq!(key(-8), Reason::StackNotSet { offset: -4 });
    assert!(matches!(
        key(-4),
        Reason::Outside {
            bytes: 8,
            start: 508,
            ..
        }
    ));
    let huge = probe(&[], |b| {
        b.mov(R1, R10)
            .alu(AluOp::Add, R1, -8)
            .mov(R2, -1)
            .call(Helper::Comm)
            .exit(0);
    });
    assert!(matches!(refused(&huge), Reason::Outside { start: 504, .. }));
}

#[test]
fn helpers_belong_to_kinds_of_programs() {
    let call = |kind, helper| {
        result(&program(kind, &[], |b| {
            b.call(helper).exit(0);
        }))
        .map_err(|objection| objection.reason)
    };
    let (entry, ret) = (Kind::Entry { data: 8 }, Kind::Return { data: 8 });
    let refused = |helper| Err(Reason::NotInThisKind(helper));
    assert_eq!(
        call(Kind::Probe, Helper::EntryData),
        refused(Helper::EntryData)
    );
    assert_eq!(call(entry, Helper::EntryData), Ok(0));
    assert_eq!(call(ret, Helper::EntryData), Ok(0));
    for kind in [Kind::Probe, entry] {
        let found = call(kind, Helper::ReturnAddress);
        assert_eq!(found, refused(Helper::ReturnAddress));
    }
    assert_eq!(call(ret, Helper::ReturnAddress), Ok(0));
}

#[test]
fn entry_and_return_share_their_data() {
    let entry = program(Kind::Entry { data: 16 }, &[], |b| {
        b.call(Helper::Tsc)
            .mov(R7, R0)
            .call(Helper::EntryData)
            .store(R0, 8, Size::B8, R7)
            .exit(0);
    });
    let ret = program(Kind::Return { data: 16 }, &[], |b| {
        b.call(Helper::EntryData)
            .load(R7, R0, 8, Size::B8)
            .call(Helper::Tsc)
            .alu(AluOp::Sub, R0, R7)
            .push(Insn::Exit);
    });
    let mut machine = TestMachine::new(&entry);
    machine.tsc_step = 250;
    assert_eq!(run(&entry, &mut machine, LIMIT), Ok(0));
    assert_eq!(run(&ret, &mut machine, LIMIT), Ok(250));
    let outside = program(Kind::Entry { data: 12 }, &[], |b| {
        b.call(Helper::EntryData).store(R0, 8, Size::B8, 0).exit(0);
    });
    assert!(matches!(
        refused(&outside),
        Reason::Outside {
            object: "the data of entry and return",
            start: 8,
            size: 12,
            ..
        }
    ));
}

#[test]
fn a_record_is_given_back_once_and_not_used_after() {
    let maps = [MapDef::ring("ring")];
    let held = probe(&maps, |b| {
        reserve(b, 8);
        b.exit(0);
    });
    assert_eq!(refused(&held), Reason::RecordHeld);
    let after = |use_it: &dyn Fn(&mut Builder)| {
        refused(&probe(&maps, |b| {
            reserve(b, 16);
            b.mov(R7, R0).submit(R0);
            use_it(b);
            b.exit(0);
        }))
    };
    let load = |b: &mut Builder| {
        b.load(R0, R7, 0, Size::B8);
    };
    let again = |b: &mut Builder| {
        b.mov(R1, R7).mov(R2, 0).call(Helper::RingDiscard);
    };
    assert_eq!(after(&load), Reason::RecordReleased);
    assert_eq!(after(&again), Reason::RecordReleased);
    let middle = probe(&maps, |b| {
        reserve(b, 16);
        b.mov(R1, R0)
            .alu(AluOp::Add, R1, 8)
            .mov(R2, 0)
            .call(Helper::RingSubmit)
            .exit(0);
    });
    assert!(matches!(
        refused(&middle),
        Reason::WrongArgument { register: R1, .. }
    ));
    // Texts are appended to events only.
    let append = probe(&maps, |b| {
        reserve(b, 16);
        b.mov(R1, R0)
            .mov(R2, 0)
            .mov(R3, 0)
            .call(Helper::AppendStr)
            .exit(0);
    });
    assert!(matches!(
        refused(&append),
        Reason::WrongArgument { register: R1, .. }
    ));
}

#[test]
fn records_reach_the_reader_in_order_and_only_when_submitted() {
    let two = probe(&[MapDef::ring("ring")], |b| {
        for (value, helper) in [
            (1, Helper::RingSubmit),
            (2, Helper::RingDiscard),
            (3, Helper::RingSubmit),
        ] {
            let null = b.label();
            reserve(b, 4);
            b.branch(Condition::Equal, R0, 0, null)
                .store(R0, 0, Size::B4, value)
                .mov(R1, R0)
                .mov(R2, 0)
                .call(helper);
            b.place(null);
        }
        b.exit(0);
    });
    let mut machine = TestMachine::new(&two);
    machine.room_for_records = 4;
    for _ in 0..2 {
        assert_eq!(run(&two, &mut machine, LIMIT), Ok(0));
    }
    let published: Vec<_> = machine
        .published
        .iter()
        .map(|record| record.bytes[0])
        .collect();
    assert_eq!(published, [1, 3, 1]);
    assert_eq!(
        (machine.discarded, machine.refused, machine.held()),
        (1, 2, 0)
    );
    assert_eq!(machine.published[0].bytes, [1, 0, 0, 0]);
}

#[test]
fn an_event_has_a_header_and_texts_behind_it() {
    let event = probe(&[MapDef::ring("ring")], |b| {
        reserve_event(b, 24, 11);
        b.mov(R7, R0);
        b.store(R10, -8, Size::B8, 0x0201);
        // 4 bytes; then the 7 that are left take part of 9; then nothing.
        for (offset, address) in [(8, KERNEL), (12, KERNEL + 8), (16, KERNEL)] {
            b.mov(R1, R7)
                .set(R2, address as i64)
                .mov(R3, 100)
                .call(Helper::AppendStr)
                .store(R7, offset, Size::B4, R0);
        }
        b.mov(R1, R7)
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -8)
            .mov(R3, 2)
            .call(Helper::AppendBytes)
            .store(R7, 20, Size::B4, R0)
            .submit(R7)
            .exit(0);
    });
    let mut machine = TestMachine::new(&event);
    machine.put(Space::Kernel, KERNEL, b"abc\0\0\0\0\0sequence\0");
    machine.pid_tgid = 0x5_0000_0006;
    machine.event_flags = 3;
    machine.preempt_count = 4;
    assert_eq!(run(&event, &mut machine, LIMIT), Ok(0));
    let bytes = &machine.published[0].bytes;
    assert_eq!(bytes[..8], [77, 0, 3, 4, 6, 0, 0, 0]);
    let place = |offset: usize| u32::from_le_bytes(*bytes[offset..].first_chunk().unwrap());
    assert_eq!(place(8), 24 | 4 << 16);
    assert_eq!(place(12), 28 | 7 << 16);
    assert_eq!((place(16), place(20)), (35, 35));
    assert_eq!(&bytes[24..], b"abc\0sequen\0");
    // The program itself does not see what is behind its part.
    let behind = probe(&[MapDef::ring("ring")], |b| {
        reserve_event(b, 24, 8);
        b.store(R0, 20, Size::B8, 0).exit(0);
    });
    assert!(matches!(
        refused(&behind),
        Reason::Outside {
            start: 20,
            size: 24,
            ..
        }
    ));
}

#[test]
fn a_text_that_cannot_be_read_is_said_to_be_so() {
    let append = |room, address: u64, length, helper| {
        let event = probe(&[MapDef::ring("ring")], |b| {
            reserve_event(b, 12, room);
            b.mov(R7, R0)
                .mov(R1, R7)
                .set(R2, address as i64)
                .mov(R3, length)
                .call(helper)
                .store(R7, 8, Size::B4, R0)
                .submit(R7)
                .exit(0);
        });
        let mut machine = TestMachine::new(&event);
        machine.put(Space::Kernel, KERNEL, b"text");
        machine.put(Space::User, 0x1000, b"user\0");
        assert_eq!(run(&event, &mut machine, LIMIT), Ok(0));
        machine.published.remove(0).bytes.split_off(8)
    };
    let behind = |length: u8, text: &[u8]| {
        let place = [12, 0, length, 0];
        [&place[..], text].concat()
    };
    // No NUL in front of the end of the memory; nothing there; no length; little room.
    let append_str = Helper::AppendStr;
    assert_eq!(append(16, KERNEL, 16, append_str), behind(0, b""));
    assert_eq!(append(16, 0, 16, append_str), behind(0, b""));
    assert_eq!(append(16, KERNEL, 0, append_str), behind(0, b""));
    assert_eq!(append(4, 0, 16, append_str), behind(0, b""));
    // Room for the NUL only: nothing is read.
    assert_eq!(append(1, 0, 16, append_str), behind(1, b"\0"));
    assert_eq!(append(4, KERNEL, 16, append_str), behind(4, b"tex\0"));
    assert_eq!(append(0, KERNEL, 16, append_str), behind(0, b""));
    assert_eq!(append(0, 0, 0, append_str), behind(0, b""));
    // Shortened by the length in front of the end of the memory.
    assert_eq!(append(16, KERNEL, 5, append_str), behind(5, b"text\0"));
    assert_eq!(append(16, KERNEL, 3, append_str), behind(3, b"te\0"));
    // The other space.
    let append_user = Helper::AppendUserStr;
    assert_eq!(append(16, 0x1000, 16, append_user), behind(5, b"user\0"));
    assert_eq!(append(16, KERNEL, 16, append_user), behind(0, b""));
}

#[test]
fn an_event_is_at_most_as_long_as_a_record() {
    let event = probe(&[MapDef::ring("ring")], |b| {
        reserve_event(b, 3070, 5);
        b.mov(R7, R0)
            .mov(R1, R0)
            .mov(R2, R10)
            .store(R10, -8, Size::B8, -1)
            .alu(AluOp::Add, R2, -8)
            .mov(R3, 8)
            .call(Helper::AppendBytes)
            .mov(R8, R0)
            .submit(R7)
            .mov(R0, R8)
            .push(Insn::Exit);
    });
    let mut machine = TestMachine::new(&event);
    assert_eq!(run(&event, &mut machine, LIMIT), Ok(3070 | 2 << 16));
    assert_eq!(machine.published[0].bytes.len(), 3072);
}

#[test]
fn lengths_of_texts_count_the_nul() {
    let length = |helper, address: u64, most: i64| {
        let program = probe(&[], |b| {
            b.set(R1, address as i64)
                .set(R2, most)
                .call(helper)
                .push(Insn::Exit);
        });
        let mut machine = TestMachine::new(&program);
        machine.put(Space::Kernel, KERNEL, b"text\0");
        machine.put(Space::Kernel, KERNEL + 8, &[b'x'; 4000]);
        machine.put(Space::User, 0x1000, b"user memory\0");
        run(&program, &mut machine, LIMIT).unwrap()
    };
    assert_eq!(length(Helper::StrLen, KERNEL, 100), 5);
    assert_eq!(length(Helper::StrLen, KERNEL, 5), 5);
    assert_eq!(length(Helper::StrLen, KERNEL, 4), 4);
    assert_eq!(length(Helper::StrLen, KERNEL, 0), 0);
    assert_eq!(length(Helper::StrLen, KERNEL + 8, 10_000), 3072);
    assert_eq!(length(Helper::StrLen, KERNEL + 3000, -1), 0);
    assert_eq!(length(Helper::StrLen, u64::MAX, 9), 0);
    assert_eq!(length(Helper::StrLen, 0x1000, 100), 0);
    assert_eq!(length(Helper::UserStrLen, 0x1000, 100), 12);
}

#[test]
fn copies_fill_their_buffer() {
    let copy = |helper, size: i32, address: u64| {
        let program = probe(&[array(8)], |b| {
            lookup(b, 0);
            b.store(R0, 0, Size::B8, -1)
                .mov(R7, R0)
                .mov(R1, R0)
                .mov(R2, size)
                .set(R3, address as i64)
                .call(helper)
                .push(Insn::Exit);
        });
        let mut machine = TestMachine::new(&program);
        machine.put(Space::Kernel, KERNEL, b"text\0");
        machine.put(Space::User, 0x1000, b"user\0more");
        machine.comm = *b"a task of 15 le\0";
        let result = run(&program, &mut machine, LIMIT).unwrap();
        let value = machine.value(MapIndex(0), 0, &1_u32.to_le_bytes()).unwrap();
        (result as i64, <[u8; 8]>::try_from(value).unwrap())
    };
    use Helper as H;
    assert_eq!(
        copy(H::ReadKernel, 4, KERNEL),
        (0, *b"text\xff\xff\xff\xff")
    );
    assert_eq!(
        copy(H::ReadKernel, 6, KERNEL),
        (errno::EFAULT, *b"\0\0\0\0\0\0\xff\xff")
    );
    assert_eq!(copy(H::ReadUser, 8, 0x1000), (0, *b"user\0mor"));
    assert_eq!(copy(H::ReadUser, 8, KERNEL), (errno::EFAULT, [0; 8]));
    // Zeros behind the NUL.
    assert_eq!(copy(H::ReadUserStr, 8, 0x1000), (5, *b"user\0\0\0\0"));
    assert_eq!(copy(H::ReadKernelStr, 7, KERNEL), (5, *b"text\0\0\0\xff"));
    assert_eq!(
        copy(H::ReadKernelStr, 4, KERNEL),
        (4, *b"tex\0\xff\xff\xff\xff")
    );
    assert_eq!(
        copy(H::ReadKernelStr, 1, 0),
        (1, *b"\0\xff\xff\xff\xff\xff\xff\xff")
    );
    assert_eq!(copy(H::ReadKernelStr, 8, 0x1000), (errno::EFAULT, [0; 8]));
    assert_eq!(copy(H::Comm, 8, 0), (0, *b"a task \0"));
    assert_eq!(copy(H::Comm, 3, 0), (0, *b"a \0\xff\xff\xff\xff\xff"));
}

#[test]
fn a_name_fills_a_larger_buffer_with_zeros() {
    let comm = probe(&[], |b| {
        b.mov(R1, R10)
            .alu(AluOp::Add, R1, -24)
            .mov(R2, 24)
            .call(Helper::Comm)
            .load(R0, R10, -8, Size::B8)
            .load(R1, R10, -24, Size::B4)
            .alu(AluOp::Add, R0, R1)
            .push(Insn::Exit);
    });
    assert_eq!(result(&comm), Ok(u32::from_le_bytes(*b"test").into()));
}

/// Calls `helper` with the key of 8 bytes `key` of map 0, the value `[third; 2]` or the delta
/// `third`, and the flags.
fn with_key(helper: Helper, machine: &mut Option<TestMachine>, args: [i32; 3]) -> i64 {
    let [key, third, flags] = args;
    let program = probe(&[hash(2)], |b| {
        b.store(R10, -8, Size::B8, key)
            .store(R10, -24, Size::B8, third)
            .store(R10, -16, Size::B8, third)
            .load_map(R1, MapIndex(0))
            .mov(R2, R10)
            .alu(AluOp::Add, R2, -8)
            .mov(R3, third)
            .mov(R4, flags);
        if helper == Helper::MapUpdate {
            b.mov(R3, R10).alu(AluOp::Add, R3, -24);
        }
        b.call(helper).push(Insn::Exit);
    });
    let machine = machine.get_or_insert_with(|| TestMachine::new(&program));
    run(&program, machine, LIMIT).unwrap() as i64
}

#[test]
fn a_hash_takes_and_gives_values_by_key() {
    let mut machine = None;
    let mut call = |helper, args| with_key(helper, &mut machine, args);
    use Helper as H;
    assert_eq!(call(H::MapLookup, [1, 0, 0]), 0);
    assert_eq!(call(H::MapUpdate, [1, 10, 2]), errno::ENOENT);
    assert_eq!(call(H::MapUpdate, [1, 10, 1]), 0);
    assert_eq!(call(H::MapUpdate, [1, 11, 1]), errno::EEXIST);
    assert_eq!(call(H::MapUpdate, [1, 12, 3]), errno::EINVAL);
    assert_eq!(call(H::MapUpdate, [1, 13, 2]), 0);
    assert_eq!(call(H::AddByKey, [2, -7, 0]), 0);
    assert_eq!(call(H::AddByKey, [2, 5, 0]), 0);
    assert_eq!(call(H::AddByKey, [3, 5, 0]), errno::E2BIG);
    assert_eq!(call(H::MapUpdate, [3, 5, 0]), errno::E2BIG);
    assert_eq!(call(H::MapUpdate, [1, 14, 0]), 0);
    assert_ne!(call(H::MapLookup, [1, 0, 0]), 0);
    assert_eq!(call(H::MapDelete, [1, 0, 0]), 0);
    assert_eq!(call(H::MapDelete, [1, 0, 0]), errno::ENOENT);
    assert_eq!(call(H::MapLookup, [1, 0, 0]), 0);
    // The value that is used again begins with zeros.
    assert_eq!(call(H::AddByKey, [3, 5, 0]), 0);
    let values: Vec<_> = machine.unwrap().values(MapIndex(0)).into_iter().collect();
    let value = |first: i64| [first.to_le_bytes(), [0; 8]].concat();
    assert_eq!(
        values,
        [
            ((0, 2_u64.to_le_bytes().to_vec()), value(-2)),
            ((0, 3_u64.to_le_bytes().to_vec()), value(5)),
        ]
    );
}

#[test]
fn a_key_is_read_and_taken_away_on_all_cpus() {
    let by_cpu = MapDef {
        kind: MapKind::PerCpuHash,
        ..hash(4)
    };
    let call = |machine: &mut TestMachine, helper, word: i32| {
        let program = probe(core::slice::from_ref(&by_cpu), |b| {
            b.store(R10, -8, Size::B8, 1)
                .load_map(R1, MapIndex(0))
                .mov(R2, R10)
                .alu(AluOp::Add, R2, -8)
                .mov(R3, word)
                .call(helper)
                .push(Insn::Exit);
        });
        run(&program, machine, LIMIT).unwrap() as i64
    };
    let program = probe(core::slice::from_ref(&by_cpu), |b| {
        b.mov(R0, 0).push(Insn::Exit);
    });
    let mut machine = TestMachine::new(&program);
    let value = |first: u64, second: u64| [first.to_le_bytes(), second.to_le_bytes()].concat();
    machine.set_value(MapIndex(0), 0, &1_u64.to_le_bytes(), &value(5, 1));
    machine.set_value(MapIndex(0), 3, &1_u64.to_le_bytes(), &value(7, 9));
    machine.set_value(MapIndex(0), 3, &2_u64.to_le_bytes(), &value(100, 100));
    // It runs on another CPU than those that have the key.
    machine.cpu = 1;
    use Helper as H;
    assert_eq!(call(&mut machine, H::SumOfCpus, 0), 12);
    assert_eq!(call(&mut machine, H::SumOfCpus, 1), 10);
    assert_eq!(call(&mut machine, H::SumOfCpus, 2), 0);
    assert_eq!(call(&mut machine, H::SumOfCpus, -1), 0);
    assert_eq!(call(&mut machine, H::MostOfCpus, 0), 7);
    assert_eq!(call(&mut machine, H::MostOfCpus, 1), 9);
    assert_eq!(call(&mut machine, H::DeleteOfCpus, 0), 0);
    assert_eq!(call(&mut machine, H::DeleteOfCpus, 0), errno::ENOENT);
    assert_eq!(call(&mut machine, H::SumOfCpus, 0), 0);
    let left: Vec<_> = machine.values(MapIndex(0)).into_keys().collect();
    assert_eq!(left, [(3, 2_u64.to_le_bytes().to_vec())]);
}

#[test]
fn keys_come_one_by_one_each_once() {
    let by_cpu = MapDef {
        kind: MapKind::PerCpuHash,
        ..hash(4)
    };
    let next = |place: i32| {
        probe(core::slice::from_ref(&by_cpu), |b| {
            b.load_map(R1, MapIndex(0))
                .mov(R2, place)
                .mov(R3, R10)
                .alu(AluOp::Add, R3, -8)
                .mov(R4, 8)
                .call(Helper::NextKey)
                .load(R1, R10, -8, Size::B8)
                .alu(AluOp::ShiftLeft, R1, 32)
                .alu(AluOp::Or, R0, R1)
                .push(Insn::Exit);
        })
    };
    let mut machine = TestMachine::new(&next(0));
    for (cpu, key) in [(0, 1_u64), (1, 1), (1, 2), (0, 3)] {
        machine.set_value(MapIndex(0), cpu, &key.to_le_bytes(), &[1]);
    }
    let mut keys = Vec::new();
    let mut place = 0;
    // One call for each key, and one that says that there are no more.
    for calls in 1.. {
        assert!(calls <= 4, "{keys:?}");
        let found = run(&next(place), &mut machine, LIMIT).unwrap();
        place = found as i32;
        if place == 0 {
            assert_eq!(found, 0);
            break;
        }
        keys.push(found >> 32);
    }
    keys.sort_unstable();
    assert_eq!(keys, [1, 2, 3]);

    let count = probe(core::slice::from_ref(&by_cpu), |b| {
        b.load_map(R1, MapIndex(0))
            .call(Helper::CountKeys)
            .push(Insn::Exit);
    });
    assert_eq!(run(&count, &mut machine, LIMIT).unwrap(), 3);
}

/// The frames that are skipped, and those for which the map has no room, are not there. Behind the
/// frames of a program is its name.
#[test]
fn frames_of_call_stacks_are_counted() {
    let stacks = MapDef {
        name: "stacks".into(),
        kind: MapKind::Stacks,
        key_size: 4,
        value_size: 4 * 8,
        entries: 4,
    };
    let count = |flags: i32| {
        let program = probe(core::slice::from_ref(&stacks), |b| {
            b.load_map(R2, MapIndex(0))
                .mov(R3, flags)
                .call(Helper::StackId)
                .load_map(R1, MapIndex(0))
                .mov(R2, R0)
                .call(Helper::CountFrames)
                .push(Insn::Exit);
        });
        let mut machine = TestMachine::new(&program);
        machine.call_stack = vec![1, 2, 3, 4, 5];
        machine.user_call_stack = vec![6, 7, 8];
        machine.comm = *b"a name\0\0\0\0\0\0\0\0\0\0";
        let count = run(&program, &mut machine, LIMIT).unwrap();
        (count, machine.stacks(MapIndex(0)).first().cloned())
    };
    let name = u64::from_le_bytes(*b"a name\0\0");
    assert_eq!(count(0), (4, Some(vec![1, 2, 3, 4])));
    assert_eq!(count(3), (2, Some(vec![4, 5])));
    assert_eq!(count(5), (0, None));
    assert_eq!(count(0x100), (4, Some(vec![6, 7, name, 0])));
    assert_eq!(count(0x102), (3, Some(vec![8, name, 0])));
    assert_eq!(count(0x103), (0, None));
}

#[test]
fn an_array_updates_only_values_that_it_has() {
    let update = |index: i32, flags| {
        let program = probe(&[array(8)], |b| {
            b.store(R10, -8, Size::B8, index)
                .load_map(R1, MapIndex(0))
                .mov(R2, R10)
                .alu(AluOp::Add, R2, -8)
                .mov(R3, R2)
                .mov(R4, flags)
                .call(Helper::MapUpdate)
                .push(Insn::Exit);
        });
        result(&program).unwrap() as i64
    };
    assert_eq!(update(3, 0), 0);
    assert_eq!(update(3, 2), 0);
    assert_eq!(update(3, 1), errno::EEXIST);
    assert_eq!(update(4, 0), errno::E2BIG);
    assert_eq!(update(4, 1), errno::E2BIG);
}

#[test]
fn counters_add_for_each_cpu() {
    let count = probe(&[MapDef::counters("calls", 2), array(16)], |b| {
        for index in [1, 1, 2, -1] {
            b.add(MapIndex(0), index, 3);
            b.add(MapIndex(1), index, 3);
        }
        b.exit(0);
    });
    let mut machine = TestMachine::new(&count);
    for cpu in [0, 1, 1] {
        machine.cpu = cpu;
        assert_eq!(run(&count, &mut machine, LIMIT), Ok(0));
    }
    let key = 1_u32.to_le_bytes();
    let counter = |map, cpu| {
        let value = machine.value(MapIndex(map), cpu, &key).unwrap();
        u64::from_le_bytes(*value.first_chunk().unwrap())
    };
    assert_eq!((counter(0, 0), counter(0, 1), counter(1, 0)), (6, 12, 18));
    assert_eq!(machine.values(MapIndex(0)).len(), 2);
    assert_eq!(machine.values(MapIndex(1)).len(), 2);
}

#[test]
fn buckets_are_by_powers_of_two() {
    let bucket = |value: u64| {
        result(&probe(&[], |b| {
            b.set(R1, value as i64).call(Helper::Log2).push(Insn::Exit);
        }))
    };
    for (value, expected) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1 << 63, 64)] {
        assert_eq!(bucket(value), Ok(expected), "{value}");
    }
    assert_eq!(bucket(u64::MAX), Ok(64));
}

#[test]
fn call_stacks_have_numbers() {
    let stacks = MapDef {
        name: "stacks".into(),
        kind: MapKind::Stacks,
        key_size: 4,
        value_size: 16,
        entries: 2,
    };
    let id = |flags| {
        probe(std::slice::from_ref(&stacks), |b| {
            b.mov(R1, R6)
                .load_map(R2, MapIndex(0))
                .mov(R3, flags)
                .call(Helper::StackId)
                .push(Insn::Exit);
        })
    };
    let mut machine = TestMachine::new(&id(0));
    machine.call_stack = vec![1, 2, 3, 2, 3];
    let mut number = |flags| run(&id(flags), &mut machine, LIMIT).unwrap() as i64;
    assert_eq!(number(0), 0);
    assert_eq!(number(1), 1);
    assert_eq!(number(3), 1);
    assert_eq!(number(0x200), 0);
    assert_eq!(number(2), errno::E2BIG);
    assert_eq!(number(5), errno::EFAULT);
    assert_eq!(machine.stacks(MapIndex(0)), [[1, 2], [2, 3]]);
}

#[test]
fn the_machine_answers_what_it_was_told() {
    let ask = |helper: Helper| {
        program(Kind::Return { data: 0 }, &[], |b| {
            b.call(helper).push(Insn::Exit);
        })
    };
    let mut machine = TestMachine::new(&ask(Helper::CpuId));
    machine.cpu = 3;
    machine.pid_tgid = 4;
    machine.func_ip = 5;
    machine.return_address = 6;
    machine.tsc = 7;
    machine.not_recording = 9;
    for (helper, expected) in [
        (Helper::CpuId, 3),
        (Helper::PidTgid, 4),
        (Helper::FuncIp, 5),
        (Helper::ReturnAddress, 6),
        (Helper::NotRecording, 9),
        (Helper::Tsc, 7),
        (Helper::Tsc, 8),
    ] {
        assert_eq!(
            run(&ask(helper), &mut machine, LIMIT),
            Ok(expected),
            "{helper:?}"
        );
    }
}

/// The result of an atomic operation on memory with `old`: the register, `r0`, and the memory.
fn atomic(op: AtomicOp, size: Size, old: u64, reg: u64, expected: u64) -> (u64, u64, u64) {
    let mut memory = old.to_le_bytes();
    let after = |returned: Reg, memory: &mut [u8]| {
        let program = Program {
            kind: Kind::Probe,
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

#[test]
fn objects_may_have_their_real_addresses() {
    let program = probe(&[array(8)], |b| {
        lookup(b, 0);
        b.store(R0, 0, Size::B8, 42).push(Insn::Exit);
    });
    let mut machine = TestMachine::new(&program);
    machine.addresses = Addresses::Real;
    let address = run(&program, &mut machine, LIMIT).unwrap();
    let value = machine.value(MapIndex(0), 0, &1_u32.to_le_bytes()).unwrap();
    assert_eq!(value[0], 42);
    assert_eq!(address, value.as_ptr().addr() as u64);
}
