//! Helpers that read and change maps.
//!
//! Keys are taken, given and counted as the helpers' texts say, on one CPU and on all. Flags and
//! keys that are not there have the errno of Linux.

use super::*;

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

/// The frames that are skipped, and those for which the map has no room, are not there. After the
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
