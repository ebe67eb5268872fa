//! Arguments of helpers, and the kinds of programs that have each helper.

use super::*;

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
            start: 2044,
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
    assert!(matches!(
        refused(&huge),
        Reason::Outside { start: 2040, .. }
    ));
}

#[test]
fn helpers_belong_to_kinds_of_programs() {
    let call = |kind, helper| {
        result(&program(kind, &[], |b| {
            b.call(helper).exit(0);
        }))
        .map_err(|objection| objection.reason)
    };
    let (entry, ret) = (
        ProgramKind::Entry { data: 8 },
        ProgramKind::Return { data: 8 },
    );
    let refused = |helper| Err(Reason::NotInThisKind(helper));
    assert_eq!(
        call(ProgramKind::Probe, Helper::EntryData),
        refused(Helper::EntryData)
    );
    assert_eq!(call(entry, Helper::EntryData), Ok(0));
    assert_eq!(call(ret, Helper::EntryData), Ok(0));
    for kind in [ProgramKind::Probe, entry] {
        let found = call(kind, Helper::ReturnAddress);
        assert_eq!(found, refused(Helper::ReturnAddress));
    }
    assert_eq!(call(ret, Helper::ReturnAddress), Ok(0));
}
