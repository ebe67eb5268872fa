//! The context, the kernel's memory and values of maps.

use super::*;

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
