//! Records, and what the entry and the return of one call share.

use super::*;

#[test]
fn entry_and_return_share_their_data() {
    let entry = program(ProgramKind::Entry { data: 16 }, &[], |b| {
        b.call(Helper::Tsc)
            .mov(R7, R0)
            .call(Helper::EntryData)
            .store(R0, 8, Size::B8, R7)
            .exit(0);
    });
    let ret = program(ProgramKind::Return { data: 16 }, &[], |b| {
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
    let outside = program(ProgramKind::Entry { data: 12 }, &[], |b| {
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
