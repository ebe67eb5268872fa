//! A count on every function, and on every instruction of the kernel, that can be probed, and
//! events beside it, while programs run.
//!
//! By breakpoints the processor's exceptions are an independent count: each is a hit of the count,
//! a miss, or a breakpoint that had just gone.

use alloc::{boxed::Box, format, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{WaitStatus, open};
use bpf::{Builder, Condition, Helper, MapDef, MapIndex, ProgramKind, Reg::*, Size::B8};
use kernel::{
    arch::{percpu, smp},
    fs, pr_info,
    probes::{
        Kprobe, PROBES, RegisteredWatchpoint, WATCHPOINTS, WatchAccess, Watchpoint, register,
        survey, watch_scopes,
        watched_objects::{ObjectWatch, RegisteredObjectWatch},
    },
    symbols::{self, Symbol},
    task::{
        exec::{run_program, start_program},
        kthread::spawn_kthread_on,
        process::Which,
        wait::wait_for_child,
    },
    trace::{
        events::EVENTS,
        program::{AttachedProbes, Program},
        shared::Shared,
        tracers::TRACERS,
    },
    uprobes,
};
use trace_maps::Map;

use super::{Rings, Since, address_of};
use crate::{
    load::whole_kernel::COUNTED,
    probes::user_probes,
    tools::jumps::Optimization,
    tools::own_code::{is_of_the_kernel, is_of_the_suite},
    tracing::trace_files::{append, clean_up, echo, show},
};

/// Hits, and hits that the map of keys had no room for.
const COUNTS: MapIndex = MapIndex(0);
const BY_PLACE: MapIndex = MapIndex(1);

/// Counts all hits; and each place by itself, if there are so many at most.
fn counter(places: Option<u32>) -> Shared<Program> {
    let mut b = Builder::new(ProgramKind::Probe);
    let counts = b.map(MapDef::counters("counts", 2));
    let Some(places) = places else {
        b.add(counts, 0, 1).exit(0);
        return Program::load(b.finish().unwrap()).unwrap();
    };
    let by_place = b.map(MapDef::counters_by_key("places", 8, places));
    let end = b.label();
    b.call(Helper::FuncIp)
        .store(R10, -8, B8, R0)
        .add(counts, 0, 1)
        .add_by_key(by_place, -8, 1)
        .branch(Condition::Equal, R0, 0, end)
        .add(counts, 1, 1)
        .place(end)
        .exit(0);
    Program::load(b.finish().unwrap()).unwrap()
}

/// The functions that are `wanted`.
fn functions(wanted: impl Fn(&Symbol<'_>) -> bool) -> Vec<Symbol<'static>> {
    let mut functions: Vec<_> = symbols::functions()
        .filter(|symbol| symbol.kind == symbols::SymbolKind::Text && wanted(symbol))
        .collect();
    functions.sort_by_key(|symbol| symbol.start);
    functions.dedup_by_key(|symbol| symbol.start);
    functions
}

/// The entries of functions that can be probed, those of the tests among them. The suite of the
/// probes does not run meanwhile.
fn entries() -> Vec<u64> {
    let can_be_probed = |at: &u64| register(Box::new(Kprobe::new().at(*at).disabled())).is_ok();
    let functions = functions(|symbol| !is_of_the_suite(symbol));
    let starts = functions.into_iter().map(|symbol| symbol.start);
    starts.filter(can_be_probed).collect()
}

/// All instructions of the kernel that can be probed.
fn instructions() -> Vec<u64> {
    let mut end = 0;
    let mut places = Vec::new();
    for symbol in functions(is_of_the_kernel) {
        // Another name for a part of the function before.
        if symbol.start >= end {
            end = symbol.start + symbol.size;
            let judged = survey::function(&symbol).unwrap().into_iter();
            places.extend(
                judged
                    .filter(|judged| judged.verdict.is_ok())
                    .map(|judged| judged.insn.ip()),
            );
        }
    }
    places
}

/// Defines events on one in so many functions that have a name. Returns how many.
fn define_events(one_in: usize) -> usize {
    let names = show("available_filter_functions");
    let mut defined = 0;
    for name in names.lines().step_by(one_in) {
        let line = format!("p:many/e{defined} {name} a=%di:u64 b=+0(%si):u64");
        defined += usize::from(append(&line, "kprobe_events").is_ok());
    }
    defined
}

/// Programs, side by side and alone, that end as they do without probes. `counted` says how often a
/// function was hit, if that is counted for each.
fn work(counted: Option<&dyn Fn(u64) -> u64>) {
    const ROUNDS: u64 = 20;
    let ends_well = |args: &[&str]| {
        assert_eq!(
            run_program("/bin/exercise", args),
            Ok(WaitStatus::exited(0)),
            "{args:?}"
        );
    };
    let hits = || counted.map(|counted| COUNTED.map(|(name, _)| counted(address_of(name))));
    let before = hits();
    ends_well(&["calls", &format!("{ROUNDS}")]);
    if let (Some(before), Some(after)) = (before, hits()) {
        for ((name, each), (then, now)) in COUNTED.iter().zip(before.iter().zip(after)) {
            assert_eq!(now, then + each * ROUNDS, "{name}: {then} before");
        }
    }
    let children = ["contents", "copy_on_write", "wait"]
        .map(|name| start_program("/bin/exercise", &[name]).unwrap());
    for pid in children {
        let end = wait_for_child(Which::Pid(pid), false).unwrap().unwrap();
        assert_eq!(end.1, WaitStatus::exited(0));
    }
    ends_well(&["heap"]);
    ends_well(&["bad_pointers"]);
}

/// Exceptions that the probes got, and those among them that found no breakpoint any more.
fn traps() -> (u64, u64) {
    (0..smp::online_cpus()).fold((0, 0), |(all, stale), cpu| {
        let counts = &percpu::of(cpu).probes;
        (
            all + counts.breakpoints.load(Relaxed),
            stale + counts.stale_breakpoints.load(Relaxed),
        )
    })
}

/// Hits and misses of all events.
fn profiles() -> (u64, u64) {
    let events = EVENTS.lock();
    let probes = events.iter().flat_map(|(_, event)| &event.probes);
    probes.fold((0, 0), |(hits, misses), probe| {
        let profile = probe.profile();
        (hits + profile.hits, misses + profile.misses)
    })
}

/// A count at each of `places`, and events on some functions.
fn count(places: &[u64], by_place: bool, jumps: bool, one_in: usize) {
    clean_up();
    work(None);
    let _jumps = Optimization::set(jumps);
    let _rings = Rings::of(64, true);
    let since = Since::now();
    let (detours, slots) = (PROBES.detours_in_use(), PROBES.slots_in_use());
    let (traps_before, stale_before) = traps();
    let program = counter(by_place.then_some(16_384));
    let probes = AttachedProbes::new(program.clone(), places).unwrap();
    let events = define_events(one_in);
    assert!(events > 10, "{events} events");
    echo("1", "events/many/enable").unwrap();
    let of = |at: u64| program.sum_of_key(BY_PLACE, &at.to_le_bytes());
    work(by_place.then_some(&of));
    echo("0", "events/many/enable").unwrap();
    let (hits_of_events, misses_of_events) = profiles();
    clean_up();
    let misses = probes.detach();
    let (traps, stale) = traps();
    let (traps, stale) = (traps - traps_before, stale - stale_before);
    let [hits, unkept] = [0, 1].map(|index| program.counter(COUNTS, index));
    let totals = since.totals();
    pr_info!(
        "everything traced: {} places, {hits} hits, {misses} misses, {traps} traps, {stale} stale; \
         {events} events, {hits_of_events} hits, {misses_of_events} misses, {totals:?}",
        places.len()
    );
    assert!(hits > places.len() as u64);
    assert!(hits_of_events > 0);
    assert_eq!(
        hits_of_events,
        totals.written + totals.dropped + totals.off,
        "{totals:?}"
    );
    if jumps {
        assert!(traps < hits + misses + stale, "no hit came by jump");
    } else {
        assert_eq!(traps, hits + misses + stale, "a trap is unaccounted for");
    }
    if by_place {
        let Some(Map::Hash(counts)) = program.map(BY_PLACE) else {
            panic!("the counts by place are a hash");
        };
        let mut all = 0;
        counts.for_each(|_, place, count| {
            let place = u64::from_le_bytes(place.try_into().unwrap());
            assert!(places.binary_search(&place).is_ok(), "{place:#x}");
            all += count[0];
        });
        assert_eq!(all + unkept, hits, "{unkept} without a key");
        assert!(COUNTED.iter().all(|(name, _)| of(address_of(name)) > 0));
    }
    assert_eq!(PROBES.slots_in_use(), slots);
    assert!(PROBES.detours_in_use() <= detours);
}

#[guest_test(memory = 512)]
fn every_function_is_counted_by_jumps() {
    count(&entries(), true, true, 50);
}

#[guest_test(memory = 512)]
fn every_function_is_counted_by_breakpoints() {
    count(&entries(), true, false, 50);
}

#[guest_test(smp = 1, memory = 512)]
fn every_function_is_counted_on_one_cpu() {
    count(&entries(), true, true, 50);
}

#[guest_test(smp = 4, memory = 512, ignore)]
fn every_function_is_counted_on_four_cpus() {
    count(&entries(), true, true, 50);
}

#[guest_test(memory = 1024, timeout = 3600, ignore)]
fn every_instruction_is_counted_by_breakpoints() {
    count(&instructions(), false, false, 10);
}

#[guest_test(memory = 1024, timeout = 3600, ignore)]
fn every_instruction_is_counted_by_jumps() {
    count(&instructions(), false, true, 10);
}

#[guest_test(smp = 4, memory = 1024, timeout = 3600, ignore)]
fn every_instruction_is_counted_on_four_cpus() {
    count(&instructions(), false, false, 10);
}

/// The hits and misses of an event.
fn profile_of(group: &str, event: &str) -> (u64, u64) {
    let mut events = EVENTS.lock();
    let event = events.event(&(group.into(), event.into())).unwrap();
    let profile = event.profile();
    (profile.hits, profile.misses)
}

/// A word in a page of its own, because QEMU 7.2 gives hits to locked instructions beside a watched
/// word (docs/emulators.md).
#[repr(align(4096))]
struct Alone(AtomicU64);

#[unsafe(no_mangle)]
static WATCHED_ALONE: Alone = Alone(AtomicU64::new(0));
const _: () = assert!(size_of::<Alone>() == 4096);

/// The watches of a word, and of the instruction that stores it, in a program.
fn program_watches() -> [RegisteredWatchpoint; 2] {
    let file = fs::open("/bin/exercise", open::RDONLY).unwrap();
    let scope = watch_scopes::programs_of(file.node());
    let instruction = Watchpoint::new()
        .at(user_probes::address("watched_store"))
        .in_programs(scope)
        .access(WatchAccess::Execute);
    let word = uprobes::watchpoint("/bin/exercise", "WATCHED_ZERO").unwrap();
    [word, instruction].map(|watch| {
        let watch = watch.handler(|_, _, _| {});
        WATCHPOINTS.register_owned(Box::new(watch)).unwrap()
    })
}

/// A watch of the queue of tasks, which every switch of tasks writes.
fn queue_watch() -> RegisteredObjectWatch {
    let queue = symbols::lookup_name("kernel::task::scheduler::RUN_QUEUE").unwrap();
    let watch = ObjectWatch::new(queue.start, queue.size, Box::new(|_, _| {}));
    RegisteredObjectWatch::new(Box::new(watch)).expect("it can be watched")
}

/// A count on every function, the tracer of calls on every function, events, a watch of a word that
/// every CPU changes, one of the scheduler's queue, and probes and watches in programs, all at
/// once. Each keeps its books.
fn together(jumps: bool) {
    const ROUNDS: u64 = 10;
    const STORES: u64 = 100;
    const STORES_OF_PROGRAM: u64 = 50;
    clean_up();
    work(None);
    let _jumps = Optimization::set(jumps);
    let _rings = Rings::of(64, true);
    let (detours, slots) = (PROBES.detours_in_use(), PROBES.slots_in_use());
    let program = counter(None);
    let probes = AttachedProbes::new(program.clone(), &entries()).unwrap();
    assert!(define_events(50) > 10);
    for (line, file) in [
        (
            "w:all/stores w@WATCHED_ALONE old=$old:u64 new=$new:u64",
            "dynamic_events",
        ),
        ("p:all/add /bin/exercise:probed_add a=%di", "uprobe_events"),
        (
            "r:all/added /bin/exercise:probed_add sum=$retval",
            "uprobe_events",
        ),
    ] {
        append(line, file).unwrap();
    }
    echo("function_graph", "current_tracer").unwrap();
    for group in ["many", "all"] {
        echo("1", &format!("events/{group}/enable")).unwrap();
    }
    work(None);
    let args = format!("{ROUNDS}");
    let (watches, queue) = (program_watches(), queue_watch());
    let stores_of_program = format!("{STORES_OF_PROGRAM}");
    let programs = [
        ["probed", &args],
        ["probed", &args],
        ["watched_stores", &stores_of_program],
    ];
    let programs = programs.map(|args| start_program("/bin/exercise", &args).unwrap());
    let store = || (0..STORES).for_each(|value| WATCHED_ALONE.0.store(value, Relaxed));
    let cpus = smp::online_cpus();
    let stores: Vec<_> = (0..cpus)
        .map(|cpu| spawn_kthread_on(1 << cpu, "stores", store).unwrap())
        .collect();
    stores.iter().for_each(|thread| thread.wait_released());
    for pid in programs {
        let (_, status) = wait_for_child(Which::Pid(pid), false).unwrap().unwrap();
        assert_eq!(status, WaitStatus::exited(0));
    }
    echo("0", "events/all/enable").unwrap();
    let (touched, missed) = profile_of("all", "stores");
    assert_eq!(
        touched + missed,
        cpus as u64 * STORES,
        "{touched} and {missed}"
    );
    let [word, instruction] = watches
        .each_ref()
        .map(|watch| watch.hits() + watch.nmissed());
    assert_eq!(
        (word, instruction),
        (STORES_OF_PROGRAM, 2 * STORES_OF_PROGRAM)
    );
    assert!(queue.hits() > 0);
    drop((watches, queue));
    let ((added, missed), (returned, lost)) =
        (profile_of("all", "add"), profile_of("all", "added"));
    // In each round: directly, three times by `probed_calls`, and by `probed_tail`.
    let calls = 2 * 5 * ROUNDS;
    assert_eq!((added + missed, returned + lost), (calls, calls));
    let (functions, missed_calls) = TRACERS.lock().books();
    let (hits_of_events, _) = profiles();
    pr_info!(
        "together: {} hits; {functions} functions, {missed_calls} calls missed; {hits_of_events} \
         hits of events; {touched} of the watch, {added} in the program",
        program.counter(COUNTS, 0)
    );
    assert!(hits_of_events > 0 && program.counter(COUNTS, 0) > functions as u64);
    echo("nop", "current_tracer").unwrap();
    echo("0", "events/enable").unwrap();
    echo("", "dynamic_events").unwrap();
    clean_up();
    probes.detach();
    assert_eq!(PROBES.slots_in_use(), slots);
    assert!(PROBES.detours_in_use() <= detours);
}

#[guest_test(smp = 2, memory = 512)]
fn all_kinds_work_together() {
    together(true);
}

#[guest_test(smp = 4, memory = 512, ignore)]
fn all_kinds_work_together_by_breakpoints_on_four_cpus() {
    together(false);
}
