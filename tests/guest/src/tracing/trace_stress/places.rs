//! Programs with bad loads at places where faults are dealt with, tasks are switched, memory is
//! taken and lines are logged; and places where no program may be.
//!
//! A bad load in an action faults, and the fault is mended before anything that can be probed runs:
//! so it may be at any place that a probe may have, that of the fault's own handler included. The
//! places are found by the names of functions, and the books close there as elsewhere.

use alloc::{format, vec::Vec};

use abi::WaitStatus;
use bpf::{
    AluOp, Builder, Condition, Helper, MapDef, ProgramKind, Reg::*, Size::B8, context::Register,
};
use kernel::{
    errno::Errno,
    pr_info,
    probes::{Kprobe, Kretprobe, ProbeError, register},
    symbols::{self, Symbol},
    task::exec::run_program,
    trace::{
        TRACING,
        program::{AttachedCall, AttachedProbes, LoadError, Program},
        shared::Shared,
    },
};

use super::{Rings, Since, address_of};
use crate::{
    tools::jumps::Optimization,
    tracing::trace_files::{append, clean_up, echo, exists, show},
};

/// Hits; texts that could be read where nothing is; hits without a record.
const COUNTERS: u32 = 3;

/// A program that loads from nowhere, and from wherever the arguments of the place point.
fn bad_loads() -> Shared<Program> {
    let mut b = Builder::new(ProgramKind::Probe);
    let counts = b.map(MapDef::counters("counts", COUNTERS));
    let ring = b.map(MapDef::ring("records"));
    let (full, end) = (b.label(), b.label());
    b.load_register(R6, Register::Di)
        .load_register(R7, Register::Si)
        .add(counts, 0, 1)
        // Not canonical, and the first page.
        .set(R8, 0x1234_5678_9abc_def0)
        .load(R8, R8, 8, B8)
        .load(R9, R8, 16, B8)
        // The arguments, whatever they are.
        .load(R6, R6, 0, B8)
        .load(R6, R6, 8, B8)
        .load(R7, R7, 0, B8);
    for (helper, address) in [
        (Helper::ReadKernelStr, 0xffff_fff0_0000_0000_u64),
        (Helper::ReadKernelStr, 0x8765_4321_0000_0000),
        (Helper::ReadUserStr, 0x7fff_ffff_e000),
        (Helper::ReadKernel, 0xffff_fff0_0000_0000),
    ] {
        let failed = b.label();
        b.mov(R1, R10)
            .alu(AluOp::Add, R1, -32)
            .mov(R2, 32)
            .set(R3, address as i64)
            .call(helper)
            .branch(Condition::Less, R0, 0, failed)
            .add(counts, 1, 1)
            .place(failed);
    }
    b.reserve(ring, 24, full)
        .store(R0, 0, B8, R6)
        .store(R0, 8, B8, R7)
        .alu(AluOp::Add, R8, R9)
        .store(R0, 16, B8, R8)
        .submit(R0)
        .jump(end)
        .place(full)
        .add(counts, 2, 1)
        .place(end)
        .exit(0);
    Program::load(b.finish().unwrap()).unwrap()
}

/// Parts of names of functions that deal with faults, ticks, switches, memory and the log.
const DANGEROUS: [&str; 11] = [
    "do_page_fault",
    "do_exception",
    "timer_interrupt",
    "kernel::task::scheduler::",
    "kernel::task::wait_queue::",
    "kernel::mm::heap::",
    "kernel::mm::frame::",
    "kernel::mm::uaccess::",
    "kernel::log::",
    "kernel::sync::",
    "do_nmi",
];

fn dangerous() -> Vec<u64> {
    let mut places: Vec<u64> = symbols::functions()
        .filter(|symbol| {
            let name = format!("{symbol}");
            !name.contains("guest_tests") && DANGEROUS.iter().any(|part| name.contains(part))
        })
        .map(|symbol| symbol.start)
        .filter(|at| register(alloc::boxed::Box::new(Kprobe::new().at(*at).disabled())).is_ok())
        .collect();
    places.sort();
    places.dedup();
    places
}

fn work() {
    for args in [
        &["bad_pointers"][..],
        &["copy_on_write"],
        &["heap"],
        &["rounds", "2"],
    ] {
        assert_eq!(
            run_program("/bin/exercise", args),
            Ok(WaitStatus::exited(0)),
            "{args:?}"
        );
    }
    pr_info!("dangerous places are traced");
}

fn load_badly(jumps: bool) {
    let _jumps = Optimization::set(jumps);
    let _rings = Rings::of(64, true);
    let since = Since::now();
    let places = dangerous();
    assert!(places.len() > 20, "{} places", places.len());
    assert!(places.contains(&address_of("do_page_fault")));
    assert!(places.contains(&address_of("timer_interrupt")));
    let program = bad_loads();
    let before = TRACING.bad_loads();
    let probes = AttachedProbes::new(program.clone(), &places).unwrap();
    work();
    assert_eq!(probes.detach(), 0, "a lone action is never missed");
    let [hits, read, refused] = [0, 1, 2].map(|index| program.counter(bpf::MapIndex(0), index));
    let bad = TRACING.bad_loads() - before;
    let totals = since.totals();
    pr_info!(
        "{hits} hits at {} places, {bad} bad loads, {totals:?}",
        places.len()
    );
    assert!(hits > 1_000, "{hits} hits");
    assert_eq!(read, 0, "texts that are not there were read");
    // Four helpers and two loads find nothing at any place; the arguments may point anywhere.
    assert!(
        bad >= 6 * hits && bad <= 9 * hits,
        "{bad} bad loads, {hits} hits"
    );
    assert_eq!(refused, totals.dropped + totals.off, "{totals:?}");
    assert_eq!(hits, totals.written + refused, "{totals:?}");
}

#[guest_test]
fn bad_loads_at_dangerous_places_by_jumps() {
    load_badly(true);
}

#[guest_test]
fn bad_loads_at_dangerous_places_by_breakpoints() {
    load_badly(false);
}

/// Events with arguments that cannot be read, also at the return, of the same functions.
#[guest_test]
fn events_with_bad_arguments_at_dangerous_places_close_their_books() {
    clean_up();
    let _rings = Rings::of(64, true);
    let since = Since::now();
    let arguments = "a=+0(%di):u64 b=+8(+0(%si)):u64 s=+0(%di):string u=+0(%dx):ustring \
                     n=@0xfffffff000000000:u64 t=+0(@0x10):string";
    for (number, name) in ["do_page_fault", "timer_interrupt", "schedule", "do_fork"]
        .iter()
        .enumerate()
    {
        let lines = [
            format!("p:bad/p{number} {name} {arguments}"),
            format!("r32:bad/r{number} {name} r=$retval:u64 s=+0($retval):string"),
        ];
        for line in lines {
            let defined = append(&line, "kprobe_events");
            assert!(
                defined.is_ok() || *name == "schedule",
                "{line}: {defined:?}"
            );
        }
    }
    echo("1", "events/bad/enable").unwrap();
    work();
    echo("0", "events/bad/enable").unwrap();
    let events = kernel::trace::events::EVENTS.lock();
    let hits: u64 = events
        .iter()
        .filter(|(name, _)| name.0 == "bad")
        .flat_map(|(_, event)| &event.probes)
        .map(|probe| probe.profile().hits)
        .sum();
    drop(events);
    let totals = since.totals();
    assert!(hits > 10, "{hits} hits");
    assert_eq!(
        hits,
        totals.written + totals.dropped + totals.off,
        "{totals:?}"
    );
    assert!(show("trace").contains("(fault)"));
    clean_up();
}

/// A call program on functions that are on the way of every switch and fault.
#[guest_test]
fn call_programs_at_dangerous_places() {
    for name in ["schedule", "do_page_fault", "timer_interrupt"] {
        let symbol = symbols::lookup_name(name).unwrap();
        let mut b = Builder::new(ProgramKind::Return { data: 8 });
        let counts = b.map(MapDef::counters("counts", 2));
        let kept = b.label();
        b.call(Helper::EntryData)
            .load(R6, R0, 0, B8)
            .add(counts, 0, 1)
            .branch(Condition::Equal, R6, 1, kept)
            .add(counts, 1, 1)
            .place(kept)
            .exit(0);
        let on_return = Program::load(b.finish().unwrap()).unwrap();
        let mut b = Builder::new(ProgramKind::Entry { data: 8 });
        b.map(MapDef::counters("counts", 2));
        b.set(R6, 0x1234_5678_9abc_def0)
            .load(R6, R6, 0, B8)
            .call(Helper::EntryData)
            .store(R0, 0, B8, 1)
            .exit(0);
        let entry = Program::load_beside(b.finish().unwrap(), &on_return).unwrap();
        let probe = Kretprobe::new().at(symbol.start).maxactive(64);
        let call = AttachedCall::new(Some(entry), on_return.clone(), probe).unwrap();
        work();
        drop(call);
        let [returns, wrong] = [0, 1].map(|index| on_return.counter(bpf::MapIndex(0), index));
        assert!(returns > 0, "no return of {name}");
        assert_eq!(wrong, 0, "data of another call of {name}");
    }
}

/// Entry code, the hit path, and what actions call themselves.
fn forbidden() -> Vec<Symbol<'static>> {
    let (entry_start, entry_end) = symbols::entry_text();
    let of_actions = [
        "trace_copy",
        "trace_copy_text",
        "trace_comm",
        "trace_pid_tgid",
        "trace_ring_reserve",
        "trace_ring_submit",
        "trace_ring_discard",
        "trace_event_reserve",
        "trace_append_text",
        "trace_add_by_key",
        "trace_map_lookup",
        "trace_map_update",
        "trace_map_delete",
        "trace_read_kernel_text",
        "kprobe_breakpoint",
        "kprobe_action",
    ];
    symbols::functions()
        .filter(|symbol| {
            (entry_start..entry_end).contains(&symbol.start) || of_actions.contains(&symbol.name)
        })
        .collect()
}

/// A program or event there is refused, with the reason.
#[guest_test]
fn places_where_no_program_may_be_are_refused() {
    clean_up();
    let program = bad_loads();
    let forbidden = forbidden();
    assert!(forbidden.len() > 20, "{}", forbidden.len());
    for symbol in forbidden {
        match AttachedProbes::new(program.clone(), &[symbol.start]) {
            Err(LoadError::Probe(error @ ProbeError::Blacklisted { addr, .. })) => {
                assert_eq!(addr, symbol.start);
                assert!(format!("{error}").len() > 20, "{error}");
            }
            Err(error) => panic!("{symbol}: {error}"),
            Ok(_) => panic!("{symbol} may not be probed"),
        }
    }
    echo("", "error_log").unwrap();
    let refused = append("p:bad kprobe_breakpoint", "kprobe_events");
    assert_eq!(refused, Err(Errno::EINVAL));
    assert!(show("error_log").contains("Failed to register probe event"));
    assert!(!exists("events/kprobes/bad"));
    echo("", "error_log").unwrap();
    clean_up();
}
