//! The tracers of all functions: which calls they record, in which order, and how the files that
//! choose functions behave.
//!
//! A chain of calls of the tests' own is what is traced, so each line is known. Under load, and
//! with all functions of the kernel, the books have to add up.

use core::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use abi::open;
use alloc::{format, string::String, sync::Arc, vec, vec::Vec};

use alloc::boxed::Box;
use kernel::{
    arch::smp,
    errno::Errno,
    fs,
    probes::{Kretprobe, register, survey},
    symbols::{self, SymbolKind},
    task::kthread::spawn_kthread_on,
    time::delay_ns,
    trace::{TRACING, tracers::TRACERS},
};

use x86_64::instructions::interrupts::without_interrupts;

use crate::tools::jumps::Optimization;

use super::{append, clean_up, echo, on_cpu, path, read, show};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tracer_caller(number: u64) -> u64 {
    tracer_outer(black_box(number)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn tracer_outer(number: u64) -> u64 {
    let twice = tracer_middle(black_box(number)) + tracer_middle(black_box(number + 1));
    black_box(twice)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn tracer_middle(number: u64) -> u64 {
    tracer_inner(black_box(number)) * 2
}

#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn tracer_inner(number: u64) -> u64 {
    black_box(number) + 7
}

/// Calls itself so many times.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn tracer_recursion(depth: u64) -> u64 {
    match black_box(depth) {
        0 => 0,
        depth => tracer_recursion(depth - 1) + 1,
    }
}

/// Fails, or takes so many microseconds.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn tracer_slow(us: u64) -> i64 {
    delay_ns(us * 1000);
    match black_box(us) {
        0 => -17,
        _ => 17,
    }
}

pub(super) const FUNCTIONS: &str = "tracer_outer tracer_middle tracer_inner";

/// What `function_graph` shows of a call of the first of them.
pub(super) const TREE: [&str; 8] = [
    "tracer_outer() {",
    "  tracer_middle() {",
    "    tracer_inner();",
    "  }",
    "  tracer_middle() {",
    "    tracer_inner();",
    "  }",
    "}",
];

/// Everything as it was before, and the tracer `tracer` on these functions.
pub(super) fn begin(tracer: &str, functions: &str) {
    end();
    echo(functions, "set_ftrace_filter").unwrap();
    echo(tracer, "current_tracer").unwrap();
}

/// Everything as it was before.
pub(super) fn end() {
    echo("nop", "current_tracer").unwrap();
    for set in [
        "set_ftrace_filter",
        "set_ftrace_notrace",
        "set_graph_function",
        "set_graph_notrace",
        "set_ftrace_pid",
        "set_ftrace_notrace_pid",
    ] {
        echo("", set).unwrap();
    }
    for number in ["max_graph_depth", "tracing_thresh"] {
        echo("0", number).unwrap();
    }
    for option in ["nofunc_stack_trace", "nofunc-args", "nofuncgraph-args"] {
        echo(option, "trace_options").unwrap();
    }
    for option in ["funcgraph-irqs", "sleep-time"] {
        echo(option, "trace_options").unwrap();
    }
    echo("nofuncgraph-retval", "trace_options").unwrap();
    clean_up();
}

/// Calls all functions of the chain.
pub(super) fn call(number: u64) {
    assert_eq!(tracer_caller(number), 4 * number + 31);
}

/// The lines of a file in the order of letters: functions are listed by address.
pub(super) fn sorted(file: &str) -> Vec<String> {
    let mut lines: Vec<String> = show(file).lines().map(String::from).collect();
    lines.sort();
    lines
}

/// A line of `enabled_functions`: so many are on the function, or one of them takes registers.
fn traced(name: &str, users: u32, takes_registers: bool) -> String {
    // Linux has more flags, with blanks for those that are not set.
    let flags = if takes_registers { " R" } else { "  " };
    format!("{name} ({users}){flags}{:9}", "")
}

/// What the lines of `function` say after the time.
pub(super) fn functions() -> Vec<String> {
    super::lines()
}

/// What the lines of `function_graph` say after the duration.
pub(super) fn calls() -> Vec<String> {
    calls_in(&show("trace"))
}

pub(super) fn calls_in(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| Some(line.split_once("|  ")?.1.into()))
        .collect()
}

#[guest_test]
fn a_tracer_is_chosen_by_its_name() {
    end();
    assert_eq!(show("available_tracers"), "function_graph function nop\n");
    for tracer in ["function", "function", "function_graph", "nop"] {
        echo("tracer_inner", "set_ftrace_filter").unwrap();
        echo(tracer, "current_tracer").unwrap();
        assert_eq!(show("current_tracer"), format!("{tracer}\n"));
        assert!(show("trace").starts_with(&format!("# tracer: {tracer}\n#\n")));
        // One that does not exist changes nothing.
        assert_eq!(echo("latency", "current_tracer"), Err(Errno::EINVAL));
        assert_eq!(show("current_tracer"), format!("{tracer}\n"));
    }
    end();
}

#[guest_test]
fn a_function_is_recorded_with_its_caller() {
    begin("function", FUNCTIONS);
    call(1);
    assert_eq!(
        functions(),
        [
            "tracer_outer <-tracer_caller",
            "tracer_middle <-tracer_outer",
            "tracer_inner <-tracer_middle",
            "tracer_middle <-tracer_outer",
            "tracer_inner <-tracer_middle",
        ]
    );
    assert_eq!(
        sorted("enabled_functions"),
        ["tracer_inner", "tracer_middle", "tracer_outer"].map(|name| traced(name, 1, false))
    );
    // Nothing comes while recording is off, nor after the end.
    echo("0", "tracing_on").unwrap();
    call(1);
    echo("1", "tracing_on").unwrap();
    assert_eq!(functions().len(), 5);
    echo("nop", "current_tracer").unwrap();
    call(1);
    assert_eq!(functions(), [""; 0]);
    assert_eq!(show("enabled_functions"), "");
    end();
}

/// Each user counts, and what was traced once stays in `touched_functions`. Alone in its boot,
/// because others trace the same functions.
#[guest_test(smp = 3)]
fn functions_are_listed_that_are_and_were_traced() {
    end();
    let files = || ["enabled_functions", "touched_functions"].map(sorted);
    let none: [String; 0] = [];
    assert_eq!(files(), [none.as_slice(), none.as_slice()]);
    // What is refused has touched nothing.
    assert!(append("tracer_slow:enable_event:mine:none", "set_ftrace_filter").is_err());
    assert_eq!(files(), [none.as_slice(), none.as_slice()]);

    begin("function", "tracer_inner");
    let one = [traced("tracer_inner", 1, false)];
    assert_eq!(files(), [one.as_slice(), one.as_slice()]);
    // Its functions are those of its start.
    echo("1", "function_profile_enabled").unwrap();
    append("tracer_middle", "set_ftrace_filter").unwrap();
    append("tracer_middle:traceon", "set_ftrace_filter").unwrap();
    append("tracer_middle:traceoff:0", "set_ftrace_filter").unwrap();
    append("p:mine/one tracer_outer", "kprobe_events").unwrap();
    append("p:mine/two tracer_inner+1", "kprobe_events").unwrap();
    append("r:mine/three tracer_inner", "kprobe_events").unwrap();
    let two = [
        traced("tracer_inner", 2, false),
        traced("tracer_middle", 3, false),
    ];
    assert_eq!(files(), [two.as_slice(), two.as_slice()]);
    // An event is on its function while it is enabled. Beside the entry it is no tracing of that.
    for event in ["one", "two", "three"] {
        echo("1", &format!("events/mine/{event}/enable")).unwrap();
    }
    let three = [
        traced("tracer_inner", 3, true),
        traced("tracer_middle", 3, false),
        traced("tracer_outer", 1, true),
    ];
    assert_eq!(files(), [three.as_slice(), three.as_slice()]);

    echo("0", "function_profile_enabled").unwrap();
    append("!tracer_middle:traceon", "set_ftrace_filter").unwrap();
    append("!tracer_middle:traceoff", "set_ftrace_filter").unwrap();
    end();
    let were = ["tracer_inner", "tracer_middle", "tracer_outer"].map(|name| traced(name, 0, false));
    assert_eq!(files(), [none.as_slice(), were.as_slice()]);

    begin("function_graph", "tracer_slow");
    let now = [traced("tracer_slow", 1, false)];
    let ever = [&were[..], &now[..]].concat();
    assert_eq!(files(), [now.as_slice(), ever.as_slice()]);
    end();
}

/// The letter `d` says that interrupts were off, whether a jump or a breakpoint is there.
#[guest_test]
fn a_line_says_whether_interrupts_were_off() {
    begin("function", "tracer_inner");
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        echo("", "trace").unwrap();
        tracer_inner(1);
        without_interrupts(|| tracer_inner(1));
        let text = show("trace");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let letters: Vec<char> = lines
            .filter_map(|line| line.split_once("] ")?.1.chars().next())
            .collect();
        assert_eq!(letters, ['.', 'd'], "{text}");
    }
    end();
}

/// After each function come its callers, of which it is the first.
#[guest_test]
fn a_function_can_have_its_stack() {
    begin("function", "tracer_inner");
    echo("func_stack_trace", "trace_options").unwrap();
    call(1);
    let text = show("trace");
    let stack = concat!(
        "<stack trace>\n",
        " => tracer_inner\n",
        " => tracer_middle\n",
        " => tracer_outer\n",
        " => tracer_caller\n",
    );
    assert_eq!(text.matches(stack).count(), 2, "{text}");
    assert_eq!(text.matches("tracer_inner <-tracer_middle\n").count(), 2);
    end();
}

/// A function whose arguments are in all the registers of arguments.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn tracer_six(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 {
    black_box(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f)
}

/// Under both tracers, whether a jump or a breakpoint is there, and as soon as it is said.
#[guest_test]
fn a_call_can_have_its_registers() {
    let registers = "tracer_six(di=0x1, si=0x20, dx=0xffffffffffffffff, cx=0x4, r8=0x0, r9=0x6)";
    let six = || assert_eq!(tracer_six(1, 32, u64::MAX, 4, 0, 6), 65 + 16 + 36 - 3);
    for jumps in [true, false] {
        let _jumps = Optimization::set(jumps);
        begin("function", "tracer_six");
        six();
        echo("func-args", "trace_options").unwrap();
        assert_eq!(show("options/func-args"), "1\n");
        six();
        echo("0", "options/func-args").unwrap();
        six();
        let caller = |line: &String| line.split_once(" <-").map(|(call, _)| call.into());
        let calls: Vec<Option<String>> = functions().iter().map(caller).collect();
        let expected = ["tracer_six", registers, "tracer_six"];
        assert_eq!(calls, expected.map(|call| Some(call.into())));
        begin("function_graph", "tracer_six tracer_caller");
        echo("tracer_caller", "set_graph_function").unwrap();
        echo("funcgraph-args", "trace_options").unwrap();
        // It is no call inside of one that is shown.
        six();
        call(3);
        echo("tracer_six", "set_graph_function").unwrap();
        six();
        let shown = calls_in(&show("trace"));
        assert!(
            shown[0].starts_with("tracer_caller(di=0x3, si="),
            "{shown:?}"
        );
        assert_eq!(shown[1..], [format!("{registers};")]);
        end();
    }
}

#[guest_test]
fn calls_are_a_tree() {
    begin("function_graph", FUNCTIONS);
    call(1);
    assert_eq!(calls(), TREE);
    end();
    begin("function_graph", "tracer_recursion");
    const DEPTH: usize = 12;
    assert_eq!(tracer_recursion(DEPTH as u64), DEPTH as u64);
    let mut expected: Vec<String> = (0..DEPTH)
        .map(|depth| format!("{:1$}tracer_recursion() {{", "", 2 * depth))
        .collect();
    expected.push(format!("{:1$}tracer_recursion();", "", 2 * DEPTH));
    expected.extend(
        (0..DEPTH)
            .rev()
            .map(|depth| format!("{:1$}}}", "", 2 * depth)),
    );
    assert_eq!(calls(), expected);
    end();
}

/// Calls of one function at once that are more than the tracer can follow are missed, and counted.
#[guest_test]
fn calls_that_are_too_many_at_once_are_counted() {
    begin("function_graph", "tracer_recursion");
    assert_eq!(tracer_recursion(30), 30);
    let missed = TRACERS.lock().books().1;
    let returned = calls().iter().filter(|line| !line.ends_with('{')).count() as u64;
    assert!(missed > 0);
    assert_eq!(returned + missed, 31);
    let note = format!("# calls missed: {missed}\n");
    assert!(show("trace").contains(&note), "{}", show("trace"));
    // The records are there still when other probes take the place of these.
    for on in ["1", "0"] {
        echo(on, "options/funcgraph-args").unwrap();
        assert!(show("trace").contains(&note), "{}", show("trace"));
    }
    // They count from the time when the records are removed.
    assert_eq!(tracer_recursion(30), 30);
    echo("", "trace").unwrap();
    assert!(!show("trace").contains("missed"), "{}", show("trace"));
    assert_eq!(tracer_recursion(30), 30);
    for on in ["1", "0"] {
        assert!(show("trace").contains(&note), "{}", show("trace"));
        echo(on, "options/funcgraph-args").unwrap();
    }
    echo("nop", "current_tracer").unwrap();
    assert!(!show("trace").contains("missed"), "{}", show("trace"));
    end();
}

/// A profile tells the calls that it could not follow, also when it is off.
#[guest_test(smp = 1)]
fn a_profile_counts_what_it_misses() {
    begin("nop", "tracer_recursion");
    echo("1", "function_profile_enabled").unwrap();
    assert_eq!(tracer_recursion(30), 30);
    let text = show("trace_stat/function0");
    echo("0", "function_profile_enabled").unwrap();
    assert_eq!(show("trace_stat/function0"), text);
    let missed = text
        .lines()
        .nth(2)
        .and_then(|line| line.strip_prefix("# calls missed: "));
    let missed: u64 = missed.expect(&text).parse().unwrap();
    let row = text.lines().nth(3).expect(&text);
    let hits: u64 = row.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(hits + missed, 31, "{text}");
    end();
}

/// The profile has each function with its calls and their time on its CPU.
#[guest_test(smp = 2)]
fn a_profile_counts_calls_and_their_time() {
    end();
    // Rows of an earlier profile stay until a new one begins.
    let stat = show("trace_stat/function0");
    let head: String = stat.split_inclusive('\n').take(2).collect();
    echo("tracer_slow tracer_inner", "set_ftrace_filter").unwrap();
    for round in 0..2 {
        // A new one has no rows.
        echo("1", "function_profile_enabled").unwrap();
        assert_eq!(show("function_profile_enabled"), "1\n");
        assert_eq!(show("trace_stat/function1"), head, "{round}");
        on_cpu(1, || {
            (1..=4).for_each(|_| call(1));
            for us in [100, 200, 300] {
                tracer_slow(us);
            }
        });
        on_cpu(0, || _ = tracer_slow(500));
        echo("0", "function_profile_enabled").unwrap();
        on_cpu(1, || call(1));
        let rows = |cpu: usize| -> Vec<Vec<String>> {
            let text = show(&format!("trace_stat/function{cpu}"));
            let rows = text.lines().skip(2);
            rows.map(|row| row.split_whitespace().map(String::from).collect())
                .collect()
        };
        let number = |text: &str| text.parse::<f64>().unwrap();
        let mut first = rows(1);
        // Those of the longest time first. Which those are is not known: any call may be disturbed.
        assert!(
            first.is_sorted_by(|a, b| number(&a[2]) >= number(&b[2])),
            "{first:?}"
        );
        first.sort_by(|a, b| b[0].cmp(&a[0]));
        let names: Vec<_> = first.iter().map(|row| (&*row[0], &*row[1])).collect();
        assert_eq!(names, [("tracer_slow", "3"), ("tracer_inner", "8")]);
        let (time, average) = (number(&first[0][2]), number(&first[0][4]));
        assert!(time >= 600., "{first:?}");
        // A long time has no digits after the point.
        assert!((time / 3. - average).abs() <= 1., "{first:?}");
        // That of 100, 200 and 300 is 10,000; what disturbs a call can change it.
        assert!(number(&first[0][6]) > 100., "{first:?}");
        let other = rows(0);
        assert_eq!(
            (other.len(), &*other[0][0], &*other[0][1]),
            (1, "tracer_slow", "1")
        );
        assert_eq!(other[0][6], "0.000", "the variance of one call");
    }
    assert_eq!(echo("2", "function_profile_enabled"), Err(Errno::EINVAL));
    end();
}

/// Tracer and sets of the command line are there from the boot, and words that are wrong are left
/// out.
#[guest_test(
    cmdline = "ftrace=function_graph ftrace_filter=tracer_*,no_such_*,vfs_open \
               ftrace_notrace=tracer_inner ftrace_graph_filter=no_such,tracer_outer \
               ftrace_graph_notrace=vfs_open"
)]
fn a_tracer_of_the_command_line_runs_from_the_boot() {
    assert_eq!(show("current_tracer"), "function_graph\n");
    assert_eq!(show("set_ftrace_notrace"), "tracer_inner\n");
    assert_eq!(show("set_graph_notrace"), "vfs_open\n");
    let filter = show("set_ftrace_filter");
    for name in ["tracer_caller", "tracer_inner", "vfs_open"] {
        assert!(filter.lines().any(|line| line == name), "{name}: {filter}");
    }
    assert_eq!(show("set_graph_function"), "tracer_outer\n");
    for word in ["ftrace_filter: no_such_*", "ftrace_graph_filter: no_such"] {
        let told = format!("{word}: invalid argument (EINVAL)");
        let mut records = kernel::log::history();
        assert!(
            records.any(|record| record.text() == told.as_bytes()),
            "{told}"
        );
    }
    TRACING.buffer.clear(None);
    call(1);
    let tree = [
        "tracer_outer() {",
        "  tracer_middle();",
        "  tracer_middle();",
        "}",
    ];
    assert_eq!(calls(), tree);
    end();
}

/// The calls of an interrupt are between arrows, or not there.
#[guest_test(smp = 1)]
fn interrupts_come_and_go_by_arrows() {
    begin("function_graph", "tracer_slow do_interrupt handle_irq");
    tracer_slow(50_000);
    let text = show("trace");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let first = lines
        .iter()
        .position(|line| line.contains("tracer_slow() {"))
        .unwrap();
    assert!(lines[first + 1].ends_with("==========> |"), "{text}");
    assert!(
        lines[first + 2].ends_with("|    do_interrupt() {"),
        "{text}"
    );
    assert!(lines[first + 3].contains("      handle_irq("), "{text}");
    let comes = text.matches("==========> |\n").count();
    let goes = text.matches("<========== |\n").count();
    // A task that an interrupt has switched away from has not come back from it yet.
    assert!((1..=comes).contains(&goes), "{text}");
    echo("nofuncgraph-irqs", "trace_options").unwrap();
    echo("", "trace").unwrap();
    tracer_slow(50_000);
    assert_eq!(calls(), ["tracer_slow();"]);
    end();
}

#[guest_test]
fn a_result_is_shown_as_a_number_or_an_errno() {
    begin("function_graph", "tracer_slow tracer_outer tracer_inner");
    echo("funcgraph-retval", "trace_options").unwrap();
    assert_eq!((tracer_slow(0), tracer_slow(1)), (-17, 17));
    call(1);
    assert_eq!(
        calls(),
        [
            "tracer_slow(); /* = -17 */",
            "tracer_slow(); /* = 0x11 */",
            "tracer_outer() {",
            "  tracer_inner(); /* = 0x8 */",
            "  tracer_inner(); /* = 0x9 */",
            "} /* tracer_outer = 0x22 */",
        ]
    );
    echo("0", "options/funcgraph-retval").unwrap();
    assert!(show("trace_options").contains("nofuncgraph-retval\n"));
    assert_eq!(calls()[0], "tracer_slow();");
    end();
}

/// Events are comments in the tree, and a return probe on the same function does its work.
#[guest_test]
fn events_and_return_probes_stand_beside_the_tracer() {
    static RETURNS: AtomicU64 = AtomicU64::new(0);
    begin("function_graph", FUNCTIONS);
    append(
        "p:mine/in_middle tracer_inner number=%di:u64",
        "kprobe_events",
    )
    .unwrap();
    append(
        "r:mine/out_of_it tracer_inner result=$retval:u64",
        "kprobe_events",
    )
    .unwrap();
    echo("1", "events/mine/in_middle/enable").unwrap();
    call(1);
    append("a mark", "trace_marker").unwrap();
    let mut inside: Vec<String> = calls();
    // It stands alone, as on Linux: without the function that has written it.
    assert_eq!(inside.pop().as_deref(), Some("/* a mark */"));
    let expected = "/* in_middle: (tracer_inner+0x0/";
    let comments = inside
        .iter()
        .filter(|line| line.trim_start().starts_with(expected));
    assert_eq!(comments.clone().count(), 2, "{inside:?}");
    assert!(comments.into_iter().all(|line| line.contains("number=")));
    let without: Vec<&String> = inside.iter().filter(|line| !line.contains("/*")).collect();
    assert_eq!(without.first().unwrap().as_str(), "tracer_outer() {");
    assert_eq!(without.last().unwrap().as_str(), "}");
    echo("1", "events/mine/out_of_it/enable").unwrap();
    let counting = Kretprobe::<()>::new()
        .symbol("tracer_inner")
        .handler(|_, _| _ = RETURNS.fetch_add(1, Relaxed));
    let counting = register(Box::new(counting)).unwrap();
    echo("", "trace").unwrap();
    call(5);
    drop(counting);
    assert_eq!(RETURNS.load(Relaxed), 2);
    let inside = calls();
    for (text, count) in [("result=12 ", 1), ("result=13 ", 1), ("in_middle", 2)] {
        let found = inside.iter().filter(|line| line.contains(text)).count();
        assert_eq!(found, count, "{text}: {inside:?}");
    }
    assert_eq!(
        inside
            .iter()
            .filter(|line| line.contains("tracer_middle() {"))
            .count(),
        2
    );
    end();
}

/// What a reader of `trace_pipe` gets does not depend on how it reads.
#[guest_test]
fn a_pipe_shows_the_same_tree() {
    begin("function_graph", FUNCTIONS);
    call(1);
    let tree = calls();
    let file = fs::open(&path("trace_pipe"), open::RDONLY | open::NONBLOCK).unwrap();
    let mut text = Vec::new();
    let mut chunk = vec![0; 7];
    loop {
        match file.read_at(text.len() as u64, &mut chunk) {
            Ok(len) => text.extend_from_slice(&chunk[..len]),
            Err(Errno::EAGAIN) => break,
            Err(errno) => panic!("{errno:?}"),
        }
    }
    assert_eq!(calls_in(&String::from_utf8(text).unwrap()), tree);
    assert_eq!(calls(), [""; 0]);
    end();
}

/// On all CPUs, while tracers, sets and recording change.
#[guest_test(smp = 4, memory = 512)]
fn tracers_come_and_go_under_load() {
    come_and_go(2);
}

#[guest_test(smp = 4, memory = 512, timeout = 3600, ignore)]
fn tracers_come_and_go_for_long() {
    come_and_go(60);
}

fn come_and_go(rounds: u32) {
    end();
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..smp::online_cpus())
        .map(|cpu| {
            let stop = stop.clone();
            spawn_kthread_on(1 << cpu, "caller", move || {
                while !stop.load(Relaxed) {
                    call(3);
                    assert_eq!(tracer_recursion(5), 5);
                }
            })
            .unwrap()
        })
        .collect();
    for round in 1..=rounds {
        echo("tracer_*", "set_ftrace_filter").unwrap();
        echo("function_graph", "current_tracer").unwrap();
        echo("tracer_outer", "set_graph_function").unwrap();
        echo("0", "tracing_on").unwrap();
        echo("function", "current_tracer").unwrap();
        echo("1", "tracing_on").unwrap();
        echo("tracer_inner", "set_ftrace_notrace").unwrap();
        if round % 2 == 0 {
            // Then each switch of tasks looks for calls.
            echo("nosleep-time", "trace_options").unwrap();
            // All functions of the kernel, those that change the tracer among them.
            echo("", "set_ftrace_filter").unwrap();
            echo("function_graph", "current_tracer").unwrap();
        }
        echo("", "set_ftrace_notrace").unwrap();
        echo("sleep-time", "trace_options").unwrap();
        echo("", "set_graph_function").unwrap();
        echo("nop", "current_tracer").unwrap();
    }
    stop.store(true, Relaxed);
    for caller in callers {
        caller.wait_released();
    }
    end();
}

/// The books: entries are returns and calls that still go on, on every CPU, and no return is
/// without its entry.
#[guest_test(smp = 4)]
fn each_entry_has_its_return() {
    const CALLS: u64 = 100;
    begin("function_graph", FUNCTIONS);
    let callers: Vec<_> = (0..smp::online_cpus())
        .map(|cpu| spawn_kthread_on(1 << cpu, "caller", move || (0..CALLS).for_each(call)).unwrap())
        .collect();
    let count = callers.len() as u64;
    for caller in callers {
        caller.wait_released();
    }
    let missed = TRACERS.lock().books().1;
    assert_eq!(missed, 0);
    assert_eq!(TRACING.buffer.written(), 2 * 5 * CALLS * count);
    for cpu in 0..smp::online_cpus() {
        let text = show(&format!("per_cpu/cpu{cpu}/trace"));
        let calls = calls_in(&text);
        assert_eq!(calls.len() as u64, 8 * CALLS, "{text}");
        for (at, line) in calls.iter().enumerate() {
            assert_eq!(line, TREE[at % 8], "line {at} of CPU {cpu}");
        }
    }
    end();
}

/// With all functions of the kernel the trace can be read, and says what was called.
#[guest_test(smp = 2, memory = 512)]
fn every_function_is_traced() {
    let mut probeable: Vec<u64> = symbols::functions()
        .filter(|symbol| symbol.kind == SymbolKind::Text && symbol.size > 0)
        .filter(|symbol| survey::entry(symbol.start..symbol.start + symbol.size).is_ok())
        .map(|symbol| symbol.start)
        .collect();
    probeable.sort_unstable();
    // Equal functions have one place, under all their names.
    probeable.dedup();
    let probeable = probeable.len();
    assert!(probeable > 3000, "{probeable}");
    for tracer in ["function", "function_graph"] {
        end();
        echo(tracer, "current_tracer").unwrap();
        assert_eq!(TRACERS.lock().books().0, probeable);
        call(2);
        echo("0", "tracing_on").unwrap();
        let text = read("trace").unwrap();
        assert!(text.contains("tracer_outer"), "{text}");
        end();
    }
}

/// What makes the text calls thousands of functions, all of which are traced.
#[guest_test]
fn a_reader_sees_one_state_while_all_functions_are_traced() {
    clean_up();
    echo("40", "buffer_size_kb").unwrap();
    for tracer in ["function", "function_graph"] {
        echo(tracer, "current_tracer").unwrap();
        for _ in 0..3 {
            let text = show("trace");
            let lost = text.lines().filter(|line| line.contains("[LOST ")).count();
            assert!(lost <= smp::possible_cpus(), "{text}");
            // The reader's own call is among the last ones.
            assert!(text.lines().count() > 300, "{text}");
            if tracer == "function" {
                let (_, head) = text.split_once("entries-written: ").unwrap();
                let entries: usize = head.split('/').next().unwrap().parse().unwrap();
                let lines = text.lines().filter(|line| line.contains(" <-"));
                assert_eq!(lines.count(), entries);
            }
        }
    }
    echo("nop", "current_tracer").unwrap();
    echo("256", "buffer_size_kb").unwrap();
    clean_up();
}
