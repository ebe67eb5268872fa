//! The cost of probes in programs.
//!
//! The program measures itself, by the time stamp counter, over calls of a function of two
//! instructions. Of several rounds the shortest counts, because no interrupt came in it. It reports
//! by calling a function with the figure, on which this module has a probe of its own.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use alloc::vec::Vec;
use bpf::{Builder, MapDef, ProgramKind};
use elf_program::Executable;
use kernel::{
    mm::{paging::USER_END, shared::Shared},
    probes::{Kernel, PreVerdict},
    task::exec::run_program,
    trace::program::Program,
    uprobes::{
        Uprobe, Uretprobe, UserProbe,
        probe::ProbeRef,
        registry::{self, RegisteredUserProbe},
    },
};
use test_protocol::Quantity;
use trace_agent::{Agent as _, facts::PlaceInProgram};

use crate::{
    actions::{read_file, write},
    params, stopwatch, tell, wanted,
};

const PROGRAM: &str = "/bin/exercise";
const TARGET: &str = "probed_add";
/// The probes of `u_register_10000`.
const MANY: u64 = 10_000;

/// What the program has reported: ticks, and the calls that they are of.
static TICKS: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn shared<T>(probe: T) -> Shared<T> {
    Shared::try_new(probe).expect("there is memory")
}

fn at(symbol: &'static str) -> Uprobe {
    Uprobe::new().program(PROGRAM).symbol(symbol)
}

/// Ticks of so many calls of the target, and how many calls those are.
fn measured() -> (u64, u64) {
    let report = at("probed_report").handler(|_, regs| {
        TICKS.store(regs.di, Relaxed);
        CALLS.store(regs.si, Relaxed);
        PreVerdict::Execute
    });
    let _report = RegisteredUserProbe::new(report).expect("the program has the function");
    let ended = run_program(PROGRAM, &["probed_cost"]).expect("the program can be run");
    assert_eq!(ended.code(), Some(0));
    (TICKS.load(Relaxed), CALLS.load(Relaxed))
}

/// Measures the row `name`, and twice, if ticks are instructions.
fn cost(name: &str) {
    let (ticks, calls) = measured();
    if params().exact {
        // A record now and then begins a page.
        let (again, _) = measured();
        assert!(
            ticks.abs_diff(again) <= calls,
            "{name}: two equal measurements differ: {ticks} and {again}"
        );
    }
    tell(Quantity::Cost, name, ticks, calls);
}

/// A row of an event of the program: its definition, and its filter.
fn event(name: &str, definition: &str) {
    if !wanted(name) {
        return;
    }
    write("uprobe_events", definition);
    write("events/bench/row/enable", "1");
    cost(name);
    write("events/bench/row/enable", "0");
    let profile = read_file("uprobe_profile");
    let hits = profile
        .split_whitespace()
        .nth(2)
        .and_then(|hits| hits.parse::<u64>().ok());
    assert!(hits.is_some_and(|hits| hits > 0), "{name}: {profile}");
    write("uprobe_events", "");
}

/// A row of a compiled action that counts, at the function or at its returns.
fn counted(name: &str, returns: bool) {
    if !wanted(name) {
        return;
    }
    let mut builder = Builder::new(ProgramKind::Probe);
    let calls = builder.map(MapDef::counters("calls", 1));
    builder.add(calls, 0, 1);
    builder.exit(0);
    let program = Program::load(builder.finish().expect("it is right"));
    let program = program.expect("it is verified, and there is memory");
    let run = Program::in_program(&program).expect("there is memory");
    let place = PlaceInProgram {
        path: PROGRAM,
        function: Some(TARGET),
        offset: 0,
        counter: None,
        returns,
    };
    let attached = Kernel::attach_to_program(run, &place).expect("the function is there");
    cost(name);
    assert_eq!(attached.detach(), 0);
    assert!(program.counter(calls, 0) > 0);
}

/// Measures all rows.
pub fn measure() {
    if wanted("u_base") {
        cost("u_base");
    }
    if wanted("u_elsewhere") {
        let _other = RegisteredUserProbe::new(at("probed_sign")).expect("the function is there");
        cost("u_elsewhere");
    }
    if wanted("u_int3") {
        let probe = at(TARGET).handler(|_, _| PreVerdict::Execute);
        let probe = RegisteredUserProbe::new(probe).expect("the function is there");
        cost("u_int3");
        assert!(probe.hits() > 0 && probe.nmissed() == 0);
    }
    if wanted("u_int3_post") {
        let probe = at(TARGET).post_handler(|_, _| {});
        let probe = RegisteredUserProbe::new(probe).expect("the function is there");
        cost("u_int3_post");
        assert!(probe.hits() > 0 && probe.nmissed() == 0);
    }
    if wanted("u_ret") {
        let probe = Uretprobe::new()
            .program(PROGRAM)
            .symbol(TARGET)
            .handler(|_, _| {});
        let probe = RegisteredUserProbe::new(probe).expect("the function is there");
        cost("u_ret");
        assert!(probe.hits() > 0 && probe.nmissed() == 0);
    }
    event("u_ev", "p:bench/row /bin/exercise:probed_add");
    event(
        "u_ev_3",
        "p:bench/row /bin/exercise:probed_add %di %si $stack0",
    );
    event("u_ev_ret", "r:bench/row /bin/exercise:probed_add");
    event(
        "u_ev_retval",
        "r:bench/row /bin/exercise:probed_add $retval",
    );
    counted("u_count", false);
    counted("u_count_ret", true);
    register();
}

/// The cost of registering and of unregistering many probes, and that of starting a program which
/// has them, each.
fn register() {
    let names = ["u_register_10000", "u_unregister_10000", "u_start_10000"];
    if !names.iter().any(|name| wanted(name)) {
        return;
    }
    let probes = many();
    let bare = start();
    let register = stopwatch::ticks_of(|| {
        registry::register(&probes).expect("they can be probed");
    });
    let probed = start();
    let unregister = stopwatch::ticks_of(|| {
        registry::unregister(&probes).expect("this is a task");
    });
    for (name, ticks) in names.into_iter().zip([register, unregister, probed - bare]) {
        if wanted(name) {
            tell(Quantity::Cost, name, ticks, MANY);
        }
    }
}

/// Ticks of a program from its start to its end, which does next to nothing.
fn start() -> u64 {
    let run = || _ = run_program(PROGRAM, &["sleep", "0"]);
    run();
    stopwatch::ticks_of(run)
}

/// Probes on that many instructions of the program, but of the functions that its start needs.
fn many() -> Vec<UserProbe> {
    let bytes = crate::actions::program(PROGRAM);
    let program = Executable::parse(&bytes[..4096], 0x1_0000..USER_END).expect("it is a program");
    let mut functions: Vec<_> = elf_program::functions(&bytes)
        .filter(|function| function.size > 0)
        .map(|function| (function.start, function.size))
        .collect();
    functions.sort_unstable();
    functions.dedup();
    let mut all = Vec::new();
    for (start, size) in functions {
        let offset = program.code_offset(start).expect("functions are code");
        let code = &bytes[offset as usize..][..size as usize];
        for insn in probes::insn::Instructions::new(code, start).map_while(Result::ok) {
            let can_be_probed = probes::insn::classify(&insn, &[]).is_ok();
            if can_be_probed && (all.len() as u64) < MANY {
                let one = Uprobe::new()
                    .program(PROGRAM)
                    .offset(offset + (insn.ip() - start));
                all.push(ProbeRef::Shared(shared(one)).into());
            }
        }
    }
    assert_eq!(all.len() as u64, MANY);
    all
}
