//! The commands `dump` and `cpudump`: what goes to the console, what stays, and how often.

use alloc::{format, string::String, vec, vec::Vec};

use kernel::{
    task::sleep::sleep_ns,
    time::{NSEC_PER_MSEC, delay_ns, ktime_get},
    trace::TRACING,
};

use super::{
    append, echo, on_cpu, show,
    tracers::{FUNCTIONS, begin, call, end, tracer_slow},
};

const FILE: &str = "set_ftrace_filter";
const HEAD: &str = "Dumping ftrace buffer:";
const EMPTY: &str = "   (ftrace buffer empty)";
const RULE: &str = "---------------------------------";

/// The dumps since a time of the clock, when there are so many: the lines of each.
fn dumps(since_ns: u64, count: usize) -> Vec<Vec<String>> {
    loop {
        let log: Vec<String> = kernel::log::history()
            .filter(|record| record.stamp.time_ns >= since_ns)
            .map(|record| String::from_utf8_lossy(record.text()).into_owned())
            .collect();
        let mut found = log.split(|line| line == HEAD).skip(1);
        let is_whole = |lines: &[String]| match lines {
            [first] => first == EMPTY,
            [first, .., last] => first == RULE && last == RULE,
            [] => false,
        };
        if found.clone().count() == count && found.clone().all(is_whole) {
            return found.map(<[String]>::to_vec).collect();
        }
        assert!(found.clone().count() <= count, "{log:#?}");
        assert!(found.all(|lines| lines.len() < 100), "{log:#?}");
        sleep_ns(NSEC_PER_MSEC);
    }
}

/// What the lines of a dump say after the time.
fn texts(dump: &[String]) -> Vec<&str> {
    let lines = dump.iter().filter(|line| *line != RULE);
    let text = |line: &String| line.split_once("us").map(|(before, _)| before.len());
    lines
        .map(|line| match text(line) {
            Some(at) => line.get(at + "us?: ".len()..).unwrap(),
            None => line,
        })
        .collect()
}

/// Once, whatever count is written. The recording ends, and what is printed is taken out.
#[guest_test]
fn a_dump_is_printed_once() {
    let since = ktime_get();
    begin("function", FUNCTIONS);
    append("tracer_middle:dump:7", FILE).unwrap();
    assert!(show(FILE).ends_with("tracer_middle:dump:count=1\n"));
    call(1);
    assert_eq!(show("tracing_on"), "0\n");
    // The hit itself is after the end of the recording.
    assert_eq!(texts(&dumps(since, 1)[0]), ["tracer_outer <-tracer_caller"]);
    assert!(show(FILE).ends_with("tracer_middle:dump:count=0\n"));
    assert_eq!(TRACING.buffer.unread(), 0);

    echo("1", "tracing_on").unwrap();
    call(1);
    assert_eq!(show("tracing_on"), "1\n");
    assert_eq!(TRACING.buffer.unread(), 5);
    append("!tracer_middle:dump", FILE).unwrap();

    // Two of them, and nothing is there.
    echo("nop", "current_tracer").unwrap();
    append("tracer_outer:dump", FILE).unwrap();
    append("tracer_inner:cpudump:", FILE).unwrap();
    call(1);
    // Then it is printed.
    append("!tracer_inner:cpudump:9", FILE).unwrap();
    assert_eq!(dumps(since, 3).len(), 3);
    append("!tracer_outer:dump", FILE).unwrap();
    assert_eq!(dumps(since, 3)[1..], [vec![EMPTY], vec![EMPTY]]);
    end();
}

/// Stacks, calls as a tree, and marks of long delays.
#[guest_test]
fn a_dump_has_the_lines_of_the_tracer() {
    let since = ktime_get();
    begin("function", FUNCTIONS);
    echo("func_stack_trace", "trace_options").unwrap();
    append("tracer_slow:dump", FILE).unwrap();
    call(1);
    echo("nofunc_stack_trace", "trace_options").unwrap();
    delay_ns(200_000);
    call(1);
    tracer_slow(1);
    let dump = &dumps(since, 1)[0];
    let shown = texts(dump);
    let stack = shown
        .iter()
        .position(|line| *line == "<stack trace>")
        .unwrap();
    assert_eq!(shown[stack - 1], "tracer_outer <-tracer_caller");
    assert_eq!(
        shown[stack + 1..][..2],
        [" => tracer_outer", " => tracer_caller"]
    );
    // The mark follows the number, in the line before the delay.
    let last = dump.iter().rposition(|line| line.contains("stack trace"));
    let mark = dump[last.unwrap()].split_once("us").unwrap().1.as_bytes()[0];
    assert!(b"!#*@$".contains(&mark), "{dump:#?}");
    assert!(dump[dump.len() - 2].contains("us : "), "{dump:#?}");
    append("!tracer_slow:dump", FILE).unwrap();

    begin("function_graph", FUNCTIONS);
    append("tracer_slow:dump", FILE).unwrap();
    call(1);
    tracer_slow(1);
    let dumps = dumps(since, 2);
    let tree: Vec<&str> = (dumps[1].iter().filter_map(|line| line.split_once("|  ")))
        .map(|(_, call)| call.trim_end())
        .collect();
    assert_eq!(tree, super::tracers::TREE);
    append("!tracer_slow:dump", FILE).unwrap();
    end();
}

/// Only the records of the CPU go to the console.
#[guest_test(smp = 2)]
fn a_dump_of_a_cpu_leaves_the_others() {
    let since = ktime_get();
    begin("function", "tracer_outer");
    on_cpu(1, || call(1));
    append("tracer_slow:cpudump", FILE).unwrap();
    on_cpu(0, || {
        call(2);
        call(3);
        tracer_slow(1);
    });
    let dump = &dumps(since, 1)[0];
    assert_eq!(texts(dump), ["tracer_outer <-tracer_caller"; 2]);
    let comm = format!("{:>8}-", "caller");
    assert!(dump[1].starts_with(&comm), "{dump:#?}");
    assert!(dump[1][comm.len() + 7..].starts_with("   0."), "{dump:#?}");
    assert_eq!(TRACING.buffer.unread(), 1);
    assert!(show("trace").contains("[001]"));
    append("!tracer_slow:cpudump", FILE).unwrap();
    end();
}
