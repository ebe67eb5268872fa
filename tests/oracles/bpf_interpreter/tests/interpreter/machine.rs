//! The answers of the machine under the programs.

use super::*;

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
        program(ProgramKind::Return { data: 0 }, &[], |b| {
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
