//! The cost of compiled actions: programs on a probe at the entry of `bench_empty`.
//!
//! Each row is checked in the same run: what the program has counted, summed up or recorded is what
//! the calls must have caused, to the last one.

use abi::open;
use alloc::{format, string::String, vec, vec::Vec};
use bpf::{
    AluOp, Builder, Condition, Helper, MapDef, MapIndex, MapKind, ProgramKind, Reg, Reg::*,
    Size::B8, context::Register,
};
use kernel::{
    fs,
    mm::shared::Shared,
    probes::{Kprobe, Kretprobe, survey},
    symbols,
    trace::{
        TRACING,
        events::EVENTS as EVENT_LIST,
        program::{AttachedCall, AttachedProbe, AttachedProbes, LoadError, Program},
        tracers::TRACERS as FUNCTION_TRACERS,
    },
};
use test_protocol::Quantity;
use trace_maps::{MAX_FRAMES, Map};

use crate::{
    stopwatch,
    targets::{CHAIN, DEPTH, Target},
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
        .add_by_key(calls, -8, 1);
    calls
}

/// The first argument, the stack pointer and the time; then it counts the record.
fn stream(b: &mut Builder) -> MapIndex {
    let ring = b.map(MapDef::ring("records"));
    let done = b.map(MapDef::counters("done", 1));
    let full = b.label();
    b.load_register(R6, Register::Di)
        .load_register(R7, Register::Sp)
        .reserve(ring, 24, full)
        .mov(R8, R0)
        .store(R8, 0, B8, R6)
        .store(R8, 8, B8, R7)
        .call(Helper::Tsc)
        .store(R8, 16, B8, R0)
        .submit(R8)
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
    TRACING.buffer.written()
}

/// Measures the requested rows. `suffix` stands after the names: how hits come.
///
/// # Errors
/// That of the first program or probe that is refused.
///
/// # Panics
/// If a program has not done its work as often as it should.
pub fn measure(suffix: &str) -> Result<(), LoadError> {
    for row in ROWS {
        let name = format!("{}{suffix}", row.name);
        if !wanted(&name) {
            continue;
        }
        let mut b = Builder::new(ProgramKind::Probe);
        let map = (row.program)(&mut b);
        b.exit(0);
        let program = Program::load(b.finish()?)?;
        let before = (row.done)(&program, map);
        let probe = AttachedProbe::new(program, Kprobe::new().symbol(TARGET))?;
        publish(&name, || (row.done)(probe.program(), map) - before);
    }
    latency(&format!("a_latency_hist{suffix}"))?;
    latency_by_task(&format!("a_latency_key{suffix}"))?;
    stacks(suffix)?;
    for event in EVENTS {
        event.measure(suffix);
    }
    count_by_function(suffix)?;
    attach_all(suffix)?;
    for tracer in TRACERS {
        tracer.measure(suffix);
        tracer.start(suffix);
    }
    profile_of_functions(suffix);
    // These have one row each, that by jumps.
    if suffix.is_empty() {
        files("t_files", "nop");
        files("t_files_function", "function");
        files("t_files_graph", "function_graph");
        read_line();
    }
    Ok(())
}

/// A row of an event of `kprobe_events`.
struct Event {
    name: &'static str,
    kind: char,
    arguments: &'static str,
    filter: Option<&'static str>,
    /// Counts hits in a histogram, in place of recording them.
    trigger: Option<&'static str>,
    /// Whether hits are recorded. Otherwise they are only counted.
    recorded: bool,
    /// The content of `tracing_on`.
    tracing_on: &'static str,
}

impl Event {
    const fn new(name: &'static str, arguments: &'static str) -> Self {
        Self {
            name,
            kind: 'p',
            arguments,
            filter: None,
            trigger: None,
            recorded: true,
            tracing_on: "1",
        }
    }
}

static EVENTS: &[Event] = &[
    Event::new("ev_0", ""),
    Event::new("ev_1", "%di"),
    Event::new("ev_3", "%di %si +0(%sp):u64"),
    Event::new("ev_str", "@bench_text:string"),
    Event {
        kind: 'r',
        ..Event::new("ev_ret", "$retval")
    },
    Event {
        kind: 'w',
        ..Event::new("ev_watch", "$old $new")
    },
    Event {
        filter: Some("arg1 == 1"),
        recorded: false,
        ..Event::new("ev_reject", "%di")
    },
    Event {
        recorded: false,
        tracing_on: "0",
        ..Event::new("ev_off", "")
    },
    Event {
        trigger: Some("hist:keys=arg1"),
        recorded: false,
        ..Event::new("h_arg", "%di")
    },
    Event {
        trigger: Some("hist:keys=arg1.log2"),
        recorded: false,
        ..Event::new("h_log2", "%di")
    },
];

/// The rows of a tracer of all functions.
struct Tracer {
    row: &'static str,
    /// The row of its start on all functions.
    start: Option<&'static str>,
    name: &'static str,
    /// The option that is on.
    option: Option<&'static str>,
    /// What a call leaves.
    records: u64,
}

const TRACERS: &[Tracer] = &[
    Tracer {
        row: "t_function_args",
        start: None,
        name: "function",
        option: Some("func-args"),
        records: 1,
    },
    Tracer {
        row: "t_graph_args",
        start: None,
        name: "function_graph",
        option: Some("funcgraph-args"),
        records: 2,
    },
    Tracer {
        row: "t_function",
        start: Some("t_start_function"),
        name: "function",
        option: None,
        records: 1,
    },
    Tracer {
        row: "t_graph",
        start: Some("t_start_graph"),
        name: "function_graph",
        option: None,
        records: 2,
    },
];

impl Tracer {
    /// The cost of a call of the target, on which alone the tracer is.
    fn measure(&self, suffix: &str) {
        let name = format!("{}{suffix}", self.row);
        if !wanted(&name) {
            return;
        }
        write("set_ftrace_filter", TARGET);
        let set = |prefix: &str| {
            if let Some(option) = self.option {
                write("trace_options", &format!("{prefix}{option}"));
            }
        };
        set("");
        write("current_tracer", self.name);
        let taken = stopwatch::recorded_calls(Target::named(TARGET), CALLS);
        let calls = stopwatch::calls_of(CALLS);
        let written = TRACING.buffer.written();
        assert_eq!(written, self.records * calls, "{name}: records");
        write("current_tracer", "nop");
        set("no");
        write("set_ftrace_filter", "");
        tell(Quantity::Cost, &name, taken.ticks, CALLS);
        tell(Quantity::Traps, &name, taken.traps, CALLS);
    }

    /// The cost of its start on all functions, for each of them.
    fn start(&self, suffix: &str) {
        let Some(start) = self.start else { return };
        let name = format!("{start}{suffix}");
        if !wanted(&name) {
            return;
        }
        for is_measured in [false, true] {
            let ticks = stopwatch::ticks_of(|| write("current_tracer", self.name));
            let (functions, _) = FUNCTION_TRACERS.lock().books();
            write("current_tracer", "nop");
            if is_measured {
                tell(Quantity::Cost, &name, ticks, functions as u64);
            }
        }
    }
}

/// The cost of opening a program's file, reading its head and closing it, while the tracer `tracer`
/// is on all functions of the kernel.
fn files(row: &str, tracer: &str) {
    const ROUNDS: u64 = 100;
    const PATH: &str = "/bin/workload";
    const MAGIC: &[u8] = b"\x7fELF";
    if !wanted(row) {
        return;
    }
    write("current_tracer", tracer);
    let round = || {
        let mut bytes = [0; 64];
        let file = fs::open(PATH, open::RDONLY).expect("the program is there");
        assert_eq!(file.read_at(0, &mut bytes), Ok(bytes.len()));
        assert!(bytes.starts_with(MAGIC));
    };
    round();
    let missed = || FUNCTION_TRACERS.lock().books().1;
    let (before, missed_before) = (TRACING.buffer.written(), missed());
    let ticks = stopwatch::ticks_of(|| (0..ROUNDS).for_each(|_| round()));
    let written = TRACING.buffer.written() - before;
    assert_eq!(tracer != "nop", written >= 3 * ROUNDS, "{row}: {written}");
    // A round with a call that is missed would cost less. A tick that comes while a handler runs by
    // a jump has its calls missed, about eight.
    let missed = missed() - missed_before;
    assert!(missed < ROUNDS, "{row}: {missed} calls are missed");
    write("current_tracer", "nop");
    tell(Quantity::Cost, row, ticks, ROUNDS);
}

/// The cost of a call in the profile of functions.
fn profile_of_functions(suffix: &str) {
    let name = format!("t_profile{suffix}");
    if !wanted(&name) {
        return;
    }
    write("set_ftrace_filter", TARGET);
    write("function_profile_enabled", "1");
    let taken = stopwatch::recorded_calls(Target::named(TARGET), CALLS);
    write("function_profile_enabled", "0");
    let mut text = String::new();
    let shown = FUNCTION_TRACERS.lock().show_profile(0, &mut text);
    shown.expect("a profile is there");
    let calls = format!("{}", stopwatch::calls_of(CALLS));
    let is_counted = text.split_whitespace().any(|word| word == calls);
    assert!(is_counted, "{name}: {text}");
    write("set_ftrace_filter", "");
    tell(Quantity::Cost, &name, taken.ticks, CALLS);
    tell(Quantity::Traps, &name, taken.traps, CALLS);
}

/// The text that `ev_str` records.
#[unsafe(no_mangle)]
#[used]
static bench_text: [u8; 17] = *b"sixteen letters!\0";

/// The content of a file of tracing.
pub fn read_file(file: &str) -> String {
    let bytes = program(&format!("/sys/kernel/tracing/{file}"));
    String::from_utf8(bytes).expect("files of tracing are text")
}

/// The content of a file.
pub fn program(path: &str) -> Vec<u8> {
    let file = fs::open(path, open::RDONLY).expect("the file is there");
    let mut bytes = Vec::new();
    let mut chunk = [0; 512];
    loop {
        match file.read_at(bytes.len() as u64, &mut chunk) {
            Ok(0) => return bytes,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(errno) => panic!("{path}: {errno}"),
        }
    }
}

/// Writes `text` to a file of tracing.
pub fn write(file: &str, text: &str) {
    let path = format!("/sys/kernel/tracing/{file}");
    let written = fs::open(&path, open::WRONLY | open::TRUNC)
        .and_then(|file| file.write_at(0, text.as_bytes()));
    if let Err(errno) = written {
        panic!("{text:?} to {file}: {errno}");
    }
}

/// Hits and misses of the only event.
fn profile() -> (u64, u64) {
    let events = EVENT_LIST.lock();
    let mut probes = events.iter().flat_map(|(_, event)| &event.probes);
    let profile = probes.next().expect("an event is defined").profile();
    (profile.hits, profile.misses)
}

/// The text of the event's histograms.
fn histogram_text() -> String {
    let mut text = String::new();
    let mut events = EVENT_LIST.lock();
    let event = events.event(&("bench".into(), "row".into()));
    let shown = event.and_then(|event| event.show_histograms(&mut text));
    shown.expect("a histogram is there");
    text
}

impl Event {
    fn measure(&self, suffix: &str) {
        let name = format!("{}{suffix}", self.name);
        if !wanted(&name) {
            return;
        }
        let Self {
            kind, arguments, ..
        } = self;
        let (file, place, target) = match kind {
            'w' => ("dynamic_events", "w@bench_watched", "bench_store"),
            _ => ("kprobe_events", TARGET, TARGET),
        };
        write(file, &format!("{kind}:bench/row {place} {arguments}"));
        if let Some(filter) = self.filter {
            write("events/bench/row/filter", filter);
        }
        match self.trigger {
            None => write("events/bench/row/enable", "1"),
            Some(trigger) => write("events/bench/row/trigger", trigger),
        }
        write("tracing_on", self.tracing_on);
        TRACING.buffer.clear(None);
        let taken = stopwatch::recorded_calls(Target::named(target), CALLS);
        let hits = stopwatch::calls_of(CALLS);
        assert_eq!(profile(), (hits, 0), "{name}: hits and misses");
        let recorded = if self.recorded { hits } else { 0 };
        assert_eq!(TRACING.buffer.written(), recorded, "{name}: records");
        if let Some(trigger) = self.trigger {
            let counted = format!("Hits: {hits}\n");
            assert!(histogram_text().contains(&counted), "{name}: {counted}");
            write("events/bench/row/trigger", &format!("!{trigger}"));
        }
        write("events/bench/row/enable", "0");
        write("tracing_on", "1");
        write(file, "");
        tell(Quantity::Cost, &name, taken.ticks, CALLS);
        tell(Quantity::Traps, &name, taken.traps, CALLS);
    }
}

/// The addresses of all functions that can be probed.
fn all_functions() -> Vec<u64> {
    let can_be_probed = |function: &symbols::Symbol<'_>| {
        let judged = survey::function(function);
        judged.is_ok_and(|judged| judged.first().is_some_and(|first| first.verdict.is_ok()))
    };
    symbols::functions()
        .filter(|function| function.kind == symbols::SymbolKind::Text)
        .filter(can_be_probed)
        .map(|function| function.start)
        .collect()
}

/// Counts by what the helper before has returned.
fn count_by_result(b: &mut Builder, calls: MapIndex) -> &mut Builder {
    b.store(R10, -8, B8, R0).add_by_key(calls, -8, 1)
}

/// The cost of a count by the probed function, alone and while the same program is on all functions
/// of the kernel.
fn count_by_function(suffix: &str) -> Result<(), LoadError> {
    const KEYS: u32 = 8192;
    let function = symbols::functions().find(|function| function.name == TARGET);
    let function = function.expect("the target is a function").start;
    for (name, is_all) in [("a_by_func", false), ("a_by_func_all", true)] {
        let name = format!("{name}{suffix}");
        if !wanted(&name) {
            continue;
        }
        let addresses = match is_all {
            true => all_functions(),
            false => vec![function],
        };
        let mut b = Builder::new(ProgramKind::Probe);
        let calls = b.map(MapDef::counters_by_key("calls", 8, KEYS));
        count_by_result(b.call(Helper::FuncIp), calls).exit(0);
        let program = Program::load(b.finish()?)?;
        let attached = AttachedProbes::new(program.clone(), &addresses)?;
        publish(&name, || program.sum_of_key(calls, &function.to_le_bytes()));
        drop(attached);
    }
    Ok(())
}

/// The cost of attaching a count to all functions of the kernel in one call, and of detaching it.
fn attach_all(suffix: &str) -> Result<(), LoadError> {
    let (attach, detach) = (format!("attach_all{suffix}"), format!("detach_all{suffix}"));
    if !(wanted(&attach) || wanted(&detach)) {
        return Ok(());
    }
    let addresses = all_functions();
    for is_measured in [false, true] {
        let mut b = Builder::new(ProgramKind::Probe);
        let map = count(&mut b);
        b.exit(0);
        let program = Program::load(b.finish()?)?;
        let mut attached = None;
        let attaching = stopwatch::ticks_of(|| {
            attached = Some(AttachedProbes::new(program.clone(), &addresses));
        });
        let attached = attached.expect("it was made")?;
        Target::named(TARGET).call(CALLS);
        assert!(program.counter(map, 0) >= CALLS, "hits are counted");
        let detaching = stopwatch::ticks_of(|| drop(attached));
        if is_measured {
            tell(Quantity::Cost, &attach, attaching, addresses.len() as u64);
            tell(Quantity::Cost, &detach, detaching, addresses.len() as u64);
        }
    }
    Ok(())
}

/// The cost of a line of `trace`, for an event with three arguments.
fn read_line() {
    let name = "read_line";
    if !wanted(name) {
        return;
    }
    write(
        "kprobe_events",
        &format!("p:bench/row {TARGET} %di %si +0(%sp):u64"),
    );
    write("events/bench/row/enable", "1");
    TRACING.buffer.clear(None);
    Target::named(TARGET).call(CALLS);
    write("events/bench/row/enable", "0");
    let file = fs::open("/sys/kernel/tracing/trace", open::RDONLY).expect("trace is there");
    let mut chunk = vec![0; 4096];
    let mut read = |counts: bool| {
        let (mut at, mut lines) = (0, 0);
        loop {
            let len = file.read_at(at, &mut chunk).expect("trace can be read");
            if len == 0 {
                return lines;
            }
            if counts {
                lines += chunk[..len].iter().filter(|byte| **byte == b'\n').count();
            }
            at += len as u64;
        }
    };
    // The names of functions are collected at the first line.
    let lines = read(true) as u64;
    assert!(lines > CALLS, "{lines} lines");
    let ticks = stopwatch::ticks_of(|| {
        read(false);
    });
    write("kprobe_events", "");
    tell(Quantity::Cost, name, ticks, CALLS);
}

/// Measures the calls, with whatever is attached, and checks that the work was done.
fn publish(name: &str, done: impl Fn() -> u64) {
    publish_calls_of(Target::named(TARGET), name, done);
}

/// The same with calls of another target, each with one hit.
fn publish_calls_of(target: Target, name: &str, done: impl Fn() -> u64) {
    target.call(CALLS);
    assert_eq!(done(), CALLS, "{name}: hits with their work done");
    let taken = stopwatch::recorded_calls(target, CALLS);
    assert_eq!(
        done(),
        CALLS + stopwatch::calls_of(CALLS),
        "{name}: hits with their work done"
    );
    tell(Quantity::Cost, name, taken.ticks, CALLS);
    tell(Quantity::Traps, name, taken.traps, CALLS);
}

/// The count by call stack, at the innermost of a chain of [`CHAIN`] calls; and the bare chain.
fn stacks(suffix: &str) -> Result<(), LoadError> {
    let chain = Target::named("bench_chain_15");
    // Without probes, so once is enough.
    if suffix.is_empty() && wanted("base_depth16") {
        let taken = stopwatch::calls(chain, CALLS);
        tell(Quantity::Cost, "base_depth16", taken.ticks, CALLS);
        tell(Quantity::Traps, "base_depth16", taken.traps, CALLS);
    }
    let name = format!("a_stack_count{suffix}");
    if !wanted(&name) {
        return Ok(());
    }
    let mut b = Builder::new(ProgramKind::Probe);
    let stacks = b.map(MapDef {
        name: "stacks".into(),
        kind: MapKind::Stacks,
        key_size: 4,
        value_size: 8 * CHAIN as u32,
        entries: 1024,
    });
    let calls = b.map(MapDef::counters_by_key("calls", 8, 1024));
    b.load_map(R2, stacks).mov(R3, 0).call(Helper::StackId);
    count_by_result(&mut b, calls).exit(0);
    let program = Program::load(b.finish()?)?;
    let probe = AttachedProbe::new(program, Kprobe::new().symbol("bench_chain_0"))?;
    // The functions of the chain, the innermost first.
    let functions: Vec<u64> = (0..CHAIN)
        .map(|number| Target::named(&format!("bench_chain_{number}")).address())
        .collect();
    let is_whole = |number: u64| {
        let Some(Map::Stacks(stacks)) = probe.program().map(stacks) else {
            return false;
        };
        let mut frames = [0; MAX_FRAMES];
        let count = stacks.frames(number, &mut frames).unwrap_or(0);
        let found = frames[..count]
            .iter()
            .map(|&frame| symbols::lookup_addr(frame).map_or(0, |symbol| symbol.start));
        found.eq(functions.iter().copied())
    };
    publish_calls_of(chain, &name, || {
        let mut sum = 0;
        if let Some(Map::Hash(calls)) = probe.program().map(calls) {
            calls.for_each(|_, key, value| {
                let number = u64::from_le_bytes(key.try_into().unwrap_or_default());
                if is_whole(number) {
                    sum += value[0];
                }
            });
        }
        sum
    });
    Ok(())
}

/// The time of each call, by the entry and the return.
fn latency(name: &str) -> Result<(), LoadError> {
    if !wanted(name) {
        return Ok(());
    }
    let mut entry = Builder::new(ProgramKind::Entry { data: 8 });
    let of_entry = entry.map(MapDef::histogram("ticks"));
    entry
        .call(Helper::Tsc)
        .mov(R6, R0)
        .call(Helper::EntryData)
        .store(R0, 0, B8, R6)
        .exit(0);
    let mut on_return = Builder::new(ProgramKind::Return { data: 8 });
    let ticks = on_return.map(MapDef::histogram("ticks"));
    assert_eq!(of_entry, ticks);
    on_return.call(Helper::EntryData).load(R6, R0, 0, B8);
    count_ticks_since(&mut on_return, R6, ticks);
    on_return.exit(0);
    let on_return = Program::load(on_return.finish()?)?;
    let entry = Program::load_beside(entry.finish()?, &on_return)?;
    publish_calls(name, entry, on_return, ticks)
}

/// The same by a map of the tasks that are in a call, as programs for Linux do it.
fn latency_by_task(name: &str) -> Result<(), LoadError> {
    const KEY: i16 = -8;
    const TIME: i16 = -16;
    if !wanted(name) {
        return Ok(());
    }
    let maps = |builder: &mut Builder| {
        let started = builder.map(MapDef {
            name: "started".into(),
            kind: MapKind::Hash,
            key_size: 8,
            value_size: 8,
            entries: 4096,
        });
        (started, builder.map(MapDef::histogram("ticks")))
    };
    let key = |builder: &mut Builder, started| {
        builder
            .load_map(R1, started)
            .mov(R2, R10)
            .alu(AluOp::Add, R2, i32::from(KEY));
    };
    let mut entry = Builder::new(ProgramKind::Entry { data: 0 });
    let (started, _) = maps(&mut entry);
    entry
        .call(Helper::PidTgid)
        .store(R10, KEY, B8, R0)
        .call(Helper::Tsc)
        .store(R10, TIME, B8, R0);
    key(&mut entry, started);
    entry
        .mov(R3, R10)
        .alu(AluOp::Add, R3, i32::from(TIME))
        .mov(R4, 0)
        .call(Helper::MapUpdate)
        .exit(0);
    let mut on_return = Builder::new(ProgramKind::Return { data: 0 });
    let (_, ticks) = maps(&mut on_return);
    let end = on_return.label();
    on_return.call(Helper::PidTgid).store(R10, KEY, B8, R0);
    key(&mut on_return, started);
    on_return
        .call(Helper::MapLookup)
        .branch(Condition::Equal, R0, 0, end)
        .load(R6, R0, 0, B8);
    count_ticks_since(&mut on_return, R6, ticks);
    key(&mut on_return, started);
    on_return.call(Helper::MapDelete).place(end).exit(0);
    let on_return = Program::load(on_return.finish()?)?;
    let entry = Program::load_beside(entry.finish()?, &on_return)?;
    publish_calls(name, entry, on_return, ticks)
}

/// Counts the ticks since the time in `since` in a histogram.
fn count_ticks_since(builder: &mut Builder, since: Reg, histogram: MapIndex) {
    builder
        .call(Helper::Tsc)
        .alu(AluOp::Sub, R0, since)
        .mov(R1, R0)
        .call(Helper::Log2)
        .mov(R2, R0)
        .load_map(R1, histogram)
        .mov(R3, 1)
        .call(Helper::Add);
}

/// The row of two programs of which the second one counts calls in a histogram.
fn publish_calls(
    name: &str,
    entry: Shared<Program>,
    on_return: Shared<Program>,
    histogram: MapIndex,
) -> Result<(), LoadError> {
    let call = AttachedCall::new(Some(entry), on_return, Kretprobe::new().symbol(TARGET))?;
    publish(name, || {
        (0..65)
            .map(|bucket| call.program().counter(histogram, bucket))
            .sum()
    });
    Ok(())
}
