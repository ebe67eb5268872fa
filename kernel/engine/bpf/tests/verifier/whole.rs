//! Whole programs that are taken, and the facts about them.

use super::*;

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
