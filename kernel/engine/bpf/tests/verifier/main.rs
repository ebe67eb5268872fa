//! Which programs the verifier takes, which it refuses, and how it says so.

mod form;
mod helpers;
mod memory;
mod paths;
mod pointers;
mod registers;
mod whole;

use bpf::{
    AluOp, AtomicOp, Builder, Condition, Helper, Insn, MOST_ENTRY_BYTES, MOST_INSNS, MOST_MAPS,
    MapDef, MapIndex, MapKind, Memory, Operand, Program, ProgramKind, Reg,
    Reg::*,
    Size, Swap, Target, Verified, Width,
    context::Register,
    verifier::{Cause, MOST_PATH, Refusal, STEPS_OF_CALL, STEPS_OF_KERNEL_LOAD, verify},
};

fn built(kind: ProgramKind, write: impl FnOnce(&mut Builder)) -> Program {
    let mut b = Builder::new(kind);
    write(&mut b);
    b.finish().unwrap()
}

fn taken(write: impl FnOnce(&mut Builder)) -> Verified {
    match verify(built(ProgramKind::Probe, write)) {
        Ok(verified) => verified,
        Err(refusal) => panic!("refused: {refusal}"),
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

fn with_maps(kind: ProgramKind, write: impl FnOnce(&mut Builder)) -> Program {
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
    takes_in(ProgramKind::Probe, write)
}

#[track_caller]
fn takes_in(kind: ProgramKind, write: impl FnOnce(&mut Builder)) -> Verified {
    verify(with_maps(kind, write)).unwrap_or_else(|refusal| panic!("refused: {refusal}"))
}

/// The refusal has this text.
#[track_caller]
fn refuses(text: &str, write: impl FnOnce(&mut Builder)) {
    refuses_in(ProgramKind::Probe, text, write);
}

#[track_caller]
fn refuses_in(kind: ProgramKind, text: &str, write: impl FnOnce(&mut Builder)) {
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
        kind: ProgramKind::Probe,
        insns,
        maps: Vec::new(),
    }
}

/// `insn`, and an end.
fn alone(insn: Insn) -> Program {
    built(ProgramKind::Probe, |b| {
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

fn atomic_add(base: Reg, offset: i16, size: Size, reg: Reg) -> Insn {
    Insn::Atomic {
        op: AtomicOp::Add { fetch: false },
        base,
        offset,
        size,
        reg,
    }
}
