//! Call stacks beside records, by triggers and by the option `stacktrace`; the order of triggers.
//!
//! A stack is a record of its own, which stands behind that of its hit. So the tests read `trace`
//! as a list of records, in which a stack is the names of its two innermost functions.

use super::{
    on_cpu,
    reading::{profile, stat},
    *,
};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_caller(number: u64) -> u64 {
    traced_function(black_box(number), c"a text".as_ptr().cast()) + black_box(1)
}

fn call_deep(number: u64) {
    assert_eq!(traced_caller(number), number + 2);
}

/// The lines of `trace`: an event from its name on, or `stack` and the two innermost functions.
fn records() -> Vec<String> {
    let text = show("trace");
    let mut records = Vec::new();
    let mut lines = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .peekable();
    while let Some(line) = lines.next() {
        let record = line.splitn(3, ": ").skip(1).collect::<Vec<_>>().join(": ");
        if record != "<stack trace>" {
            records.push(record.split(": ").next().unwrap().into());
            continue;
        }
        let mut frames = Vec::new();
        while let Some(frame) = lines.peek().and_then(|line| line.strip_prefix(" => ")) {
            frames.push(frame);
            lines.next();
        }
        // A task's stack has more than these.
        assert!(frames.len() > 2, "{text}");
        records.push(format!("stack {} {}", frames[0], frames[1]));
    }
    records
}

const TRIGGER: &str = "events/kprobes/deep/trigger";
const STACK: &str = "stack traced_function traced_caller";

#[guest_test]
fn a_stack_is_recorded_behind_its_hit_as_often_as_the_trigger_says() {
    clean_up();
    echo("p:deep traced_function number=%di:u64", "kprobe_events").unwrap();
    assert_eq!(
        show(TRIGGER),
        "# Available triggers:\n\
         # traceon traceoff snapshot stacktrace enable_event disable_event enable_hist \
         disable_hist set_wprobe clear_wprobe hist\n"
    );
    echo("stacktrace:2 if number > 4", TRIGGER).unwrap();
    assert_eq!(show(TRIGGER), "stacktrace:count=2 if number > 4\n");
    assert_eq!(append("stacktrace", TRIGGER), Err(Errno::EEXIST));
    echo("1", "events/kprobes/deep/enable").unwrap();
    for number in 4..8 {
        on_cpu(number as usize % 2, move || call_deep(number));
    }
    assert_eq!(records(), ["deep", "deep", STACK, "deep", STACK, "deep"]);
    // A stack is a record of its own.
    assert!(show("trace").contains("entries-in-buffer/entries-written: 6/6 "));
    assert_eq!((stat(0, "entries"), stat(1, "entries")), (3, 3));
    assert_eq!(profile("deep"), (4, 0));
    assert_eq!(show(TRIGGER), "stacktrace:count=0 if number > 4\n");
    append("!stacktrace", TRIGGER).unwrap();
    assert!(show(TRIGGER).starts_with("# Available triggers:"));
    clean_up();
}

/// A filter of the event keeps the record away, and not the stack. The event need not be on either.
/// Without recording there is no stack.
#[guest_test]
fn a_stack_is_recorded_also_where_its_hit_is_not() {
    clean_up();
    echo("p:deep traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("stacktrace", TRIGGER).unwrap();
    assert_eq!(show(TRIGGER), "stacktrace:unlimited\n");
    call_deep(1);
    assert_eq!(records(), [STACK]);
    echo("number == 3", "events/kprobes/deep/filter").unwrap();
    echo("1", "events/kprobes/deep/enable").unwrap();
    call_deep(2);
    call_deep(3);
    assert_eq!(records(), [STACK, STACK, "deep", STACK]);
    echo("0", "tracing_on").unwrap();
    call_deep(3);
    assert_eq!(records().len(), 4);
    echo("1", "tracing_on").unwrap();
    echo("!stacktrace", TRIGGER).unwrap();
    call_deep(3);
    assert_eq!(records().len(), 5);
    assert_eq!(profile("deep"), (5, 0));
    clean_up();
}

/// The stack of a return begins where the function returns to.
#[guest_test]
fn a_return_has_the_stack_of_the_caller() {
    clean_up();
    echo("r:deep traced_function", "kprobe_events").unwrap();
    echo("stacktrace", TRIGGER).unwrap();
    call_deep(1);
    let records = records();
    assert_eq!(records.len(), 1);
    assert!(
        records[0].starts_with("stack traced_caller "),
        "{records:?}"
    );
    append("!stacktrace", TRIGGER).unwrap();
    clean_up();
}

/// With the option each record of an event has its stack: of those that are there and of those that
/// come, beside a trigger that records one, too. What is filtered has none.
#[guest_test]
fn each_record_can_have_its_stack() {
    clean_up();
    echo("p:deep traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("number == 3", "events/kprobes/deep/filter").unwrap();
    echo("1", "events/kprobes/deep/enable").unwrap();
    assert_eq!(show("options/stacktrace"), "0\n");
    echo("stacktrace", "trace_options").unwrap();
    assert_eq!(show("options/stacktrace"), "1\n");
    call_deep(2);
    assert!(records().is_empty());
    call_deep(3);
    assert_eq!(records(), ["deep", STACK]);
    append("r:back traced_function", "kprobe_events").unwrap();
    echo("1", "events/kprobes/back/enable").unwrap();
    echo("", "trace").unwrap();
    call_deep(3);
    let all = records();
    assert_eq!(all[..3], ["deep", STACK, "back"]);
    assert!(all[3].starts_with("stack traced_caller "), "{all:?}");
    assert_eq!(all.len(), 4);
    echo("0", "events/kprobes/back/enable").unwrap();
    echo("stacktrace", TRIGGER).unwrap();
    echo("", "trace").unwrap();
    call_deep(3);
    assert_eq!(records(), ["deep", STACK, STACK]);
    echo("!stacktrace", TRIGGER).unwrap();
    echo("0", "options/stacktrace").unwrap();
    echo("", "trace").unwrap();
    call_deep(3);
    assert_eq!(records(), ["deep"]);
    clean_up();
}

/// Histograms come last, in the order of their definition, and other triggers first, the newest
/// before the others.
#[guest_test]
fn triggers_are_shown_in_the_order_of_linux() {
    clean_up();
    echo("p:deep traced_function number=%di:u64", "kprobe_events").unwrap();
    let add = |line| append(line, TRIGGER).unwrap();
    let shown = || {
        let text = show(TRIGGER);
        let name = |line: &str| String::from(line.split(":vals").next().unwrap());
        text.lines().map(name).collect::<Vec<_>>()
    };
    let plain = ["traceoff:3", "stacktrace"];
    let histograms = ["hist:keys=number", "hist:keys=common_pid"];
    histograms.into_iter().zip(plain).for_each(|(hist, plain)| {
        add(hist);
        add(plain);
    });
    let histograms = ["hist:keys=number", "hist:keys=common_pid"];
    let plain = ["stacktrace:unlimited", "traceoff:count=3"];
    assert_eq!(shown(), [plain, histograms].concat());
    let changes = [
        "!traceoff",
        "!hist:keys=number",
        "traceoff:4",
        "hist:keys=number",
    ];
    changes.into_iter().for_each(add);
    let histograms = ["hist:keys=common_pid", "hist:keys=number"];
    let plain = ["traceoff:count=4", "stacktrace:unlimited"];
    assert_eq!(shown(), [plain, histograms].concat());
    for _ in 0..2 {
        on_cpu(0, || call_deep(1));
    }
    assert_eq!(shown()[0], "traceoff:count=3");
    assert_eq!(show("tracing_on"), "0\n");
    echo("1", "tracing_on").unwrap();
    for name in ["traceoff", "stacktrace"].iter().chain(&histograms) {
        append(&format!("!{name}"), TRIGGER).unwrap();
    }
    clean_up();
}
