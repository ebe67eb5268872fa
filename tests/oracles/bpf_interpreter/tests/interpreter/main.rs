//! The interpreter: every objection, and what every helper does.

mod arguments;
mod atomic;
mod control;
mod machine;
mod maps;
mod memory;
mod pointers;
mod records;
mod texts;

use bpf::{
    AluOp, AtomicOp, Builder, Condition, Helper, Insn, MapDef, MapIndex, MapKind, Operand, Program,
    ProgramKind, Reg, Reg::*, STACK_BYTES, Size, Swap, Target, Width, context::Register, errno,
};
use bpf_interpreter::{Addresses, Objection, Reason, Space, TestMachine, run, run_on_memory};

const KERNEL: u64 = 0xffff_8000_0000_1000;
const LIMIT: u64 = 1_000;

/// A program in which `r6` keeps the context.
fn program(kind: ProgramKind, maps: &[MapDef], write: impl FnOnce(&mut Builder)) -> Program {
    let mut b = Builder::new(kind);
    for map in maps {
        b.map(map.clone());
    }
    b.mov(R6, R1);
    write(&mut b);
    b.finish().unwrap()
}

fn probe(maps: &[MapDef], write: impl FnOnce(&mut Builder)) -> Program {
    program(ProgramKind::Probe, maps, write)
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
