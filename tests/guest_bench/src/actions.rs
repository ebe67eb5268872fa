//! The cost of compiled actions: programs on a probe at the entry of `bench_empty`.
//!
//! Each row is checked in the same run: what the program has counted, summed up or recorded is what
//! the calls must have caused, to the last one.

use bpf::{
    AluOp, Builder, Condition, Helper, Kind, MapDef, MapIndex, Reg::*, Size::B8, context::Register,
};
use kernel::{
    probes::{Kprobe, Kretprobe},
    trace::program::{AttachedCall, AttachedProbe, LoadError, Program},
};
use test_protocol::Quantity;

use crate::{
    stopwatch,
    targets::{DEPTH, Target},
    tell, wanted,
};

/// Calls that a figure is the mean of.
const CALLS: u64 = 1000;
const TARGET: &str = "bench_empty";

/// A row: its name without `_int3`, its program, and the question how often it has done its work.
struct Row {
    name: &'static str,
    program: fn(&mut Builder) -> MapIndex,
    done: fn(&Program, MapIndex) -> u64,
}

#[rustfmt::skip]
static ROWS: &[Row] = &[
    Row { name: "a_count", program: count, done: first_counter },
    Row { name: "a_hist", program: histogram, done: bucket_of_the_argument },
    Row { name: "a_count_by_arg", program: count_by_argument, done: counted_by_argument },
    Row { name: "a_stream_24", program: stream, done: records },
];

/// The argument of each call.
const ARGUMENT: u64 = DEPTH;

fn count(b: &mut Builder) -> MapIndex {
    let calls = b.map(MapDef::counters("calls", 1));
    b.add(calls, 0, 1);
    calls
}

fn histogram(b: &mut Builder) -> MapIndex {
    let buckets = b.map(MapDef::histogram("arguments"));
    b.load_register(R1, Register::Di)
        .call(Helper::Log2)
        .mov(R2, R0)
        .load_map(R1, buckets)
        .mov(R3, 1)
        .call(Helper::Add);
    buckets
}

fn count_by_argument(b: &mut Builder) -> MapIndex {
    let calls = b.map(MapDef::counters_by_key("calls", 8, 1024));
    b.load_register(R2, Register::Di)
        .store(R10, -8, B8, R2)
        .load_map(R1, calls)
        .mov(R2, R10)
        .alu(AluOp::Add, R2, -8)
        .mov(R3, 1)
        .call(Helper::AddByKey);
    calls
}

/// The first argument, the stack pointer and the time; then it counts the record.
fn stream(b: &mut Builder) -> MapIndex {
    let ring = b.map(MapDef::ring("records"));
    let done = b.map(MapDef::counters("done", 1));
    let full = b.label();
    b.load_register(R6, Register::Di)
        .load_register(R7, Register::Sp)
        .load_map(R1, ring)
        .mov(R2, 24)
        .mov(R3, 0)
        .call(Helper::RingReserve)
        .branch(Condition::Equal, R0, 0, full)
        .mov(R8, R0)
        .store(R8, 0, B8, R6)
        .store(R8, 8, B8, R7)
        .call(Helper::Tsc)
        .store(R8, 16, B8, R0)
        .mov(R1, R8)
        .mov(R2, 0)
        .call(Helper::RingSubmit)
        .place(full);
    done
}

fn first_counter(program: &Program, map: MapIndex) -> u64 {
    program.counter(map, 0)
}

fn bucket_of_the_argument(program: &Program, map: MapIndex) -> u64 {
    program.counter(map, 1 + ARGUMENT.ilog2() as usize)
}

fn counted_by_argument(program: &Program, map: MapIndex) -> u64 {
    program.sum_of_key(map, &ARGUMENT.to_le_bytes())
}

fn records(_: &Program, _: MapIndex) -> u64 {
    kernel::trace::buffer::written()
}

/// Measures the requested rows. `suffix` stands behind the names: how hits come.
///
/// # Errors
/// That of the first program or probe that is refused.
///
/// # Panics
/// If a program has not done its work as often as it should.
pub fn measure(suffix: &str) -> Result<(), LoadError> {
    for row in ROWS {
        let name = alloc::format!("{}{suffix}", row.name);
        if !wanted(&name) {
            continue;
        }
        let mut b = Builder::new(Kind::Probe);
        let map = (row.program)(&mut b);
        b.exit(0);
        let program = Program::load(b.finish()?)?;
        let before = (row.done)(&program, map);
        let probe = AttachedProbe::new(program, Kprobe::new().symbol(TARGET))?;
        publish(&name, || (row.done)(probe.program(), map) - before);
    }
    latency(&alloc::format!("a_latency_hist{suffix}"))
}

/// Measures the calls, with whatever is attached, and checks that the work was done.
fn publish(name: &str, done: impl Fn() -> u64) {
    let target = Target::named(TARGET);
    target.call(CALLS);
    assert_eq!(done(), CALLS, "{name}: hits with their work done");
    let taken = stopwatch::calls(target, CALLS);
    assert_eq!(
        done(),
        CALLS + stopwatch::calls_of(CALLS),
        "{name}: hits with their work done"
    );
    tell(Quantity::Cost, name, taken.ticks, CALLS);
    tell(Quantity::Traps, name, taken.traps, CALLS);
}

/// The time of each call, by the entry and the return.
fn latency(name: &str) -> Result<(), LoadError> {
    if !wanted(name) {
        return Ok(());
    }
    let mut entry = Builder::new(Kind::Entry { data: 8 });
    let of_entry = entry.map(MapDef::histogram("ticks"));
    entry
        .call(Helper::Tsc)
        .mov(R6, R0)
        .call(Helper::EntryData)
        .store(R0, 0, B8, R6)
        .exit(0);
    let mut on_return = Builder::new(Kind::Return { data: 8 });
    let ticks = on_return.map(MapDef::histogram("ticks"));
    assert_eq!(of_entry, ticks);
    on_return
        .call(Helper::EntryData)
        .load(R6, R0, 0, B8)
        .call(Helper::Tsc)
        .alu(AluOp::Sub, R0, R6)
        .mov(R1, R0)
        .call(Helper::Log2)
        .mov(R2, R0)
        .load_map(R1, ticks)
        .mov(R3, 1)
        .call(Helper::Add)
        .exit(0);
    let on_return = Program::load(on_return.finish()?)?;
    let entry = Program::load_beside(entry.finish()?, &on_return)?;
    let call = AttachedCall::new(Some(entry), on_return, Kretprobe::new().symbol(TARGET))?;
    publish(name, || {
        (0..65)
            .map(|bucket| call.program().counter(ticks, bucket))
            .sum()
    });
    Ok(())
}
