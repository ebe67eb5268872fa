//! Commands on functions: what happens at a call, whatever tracer runs.
//!
//! A command is on all functions that its word means, or on none. Its lines in `set_ftrace_filter`
//! tell what is left of its counts, and what has become of the records tells that it has acted.

use alloc::format;

use kernel::{errno::Errno, trace::TRACING};

use super::{append, echo, show, tracers::*};

/// A command acts at each call of its functions, as often as its count says, whatever tracer runs.
#[guest_test]
fn commands_act_at_calls_of_functions() {
    const FILE: &str = "set_ftrace_filter";
    end();
    let all = "#### all functions enabled ####\n";
    append("tracer_inner:traceoff", FILE).unwrap();
    assert_eq!(
        show(FILE),
        format!("{all}tracer_inner:traceoff:unlimited\n")
    );
    assert_eq!(show("tracing_on"), "1\n");
    call(1);
    assert_eq!(show("tracing_on"), "0\n");
    // Others are on it, too, and a count is kept as long as nothing is to be done.
    append("tracer_outer:traceon:2", FILE).unwrap();
    for left in [1, 0, 0] {
        call(1);
        assert_eq!(show("tracing_on"), "0\n");
        assert!(show(FILE).ends_with(&format!("tracer_outer:traceon:count={left}\n")));
    }
    assert_eq!(append("tracer_inner:traceoff:7", FILE), Err(Errno::EEXIST));
    append("!tracer_inner:traceoff", FILE).unwrap();
    append("!tracer_outer:traceon", FILE).unwrap();
    assert_eq!(show(FILE), all);
    echo("1", "tracing_on").unwrap();

    append("tracer_inn*:stacktrace:3", FILE).unwrap();
    call(1);
    call(1);
    let stacks = show("trace")
        .matches("<stack trace>\n => tracer_inner\n")
        .count();
    assert_eq!(stacks, 3);
    append("!tracer_inn*:stacktrace", FILE).unwrap();
    echo("", "trace").unwrap();

    append("p:mine/inner tracer_inner", "kprobe_events").unwrap();
    append("tracer_outer:enable_event:mine:inner", FILE).unwrap();
    assert!(show(FILE).contains("tracer_outer:enable_event:mine:inner:unlimited\n"));
    tracer_inner(1);
    assert_eq!(TRACING.buffer.written(), 0);
    call(1);
    tracer_inner(1);
    assert_eq!(TRACING.buffer.written(), 3);
    // It is in use.
    assert_eq!(append("-:mine/inner", "kprobe_events"), Err(Errno::EBUSY));
    // The event stays as the command has left it.
    append("!tracer_outer:enable_event:mine:inner", FILE).unwrap();
    tracer_inner(1);
    assert_eq!(TRACING.buffer.written(), 4);

    append("tracer_outer:snapshot:1", FILE).unwrap();
    call(1);
    // The calls of the other function come after it.
    assert_eq!(TRACING.buffer.written(), 2);
    assert_eq!(show("snapshot").matches(": inner: (").count(), 4);
    assert_eq!(echo("0", "snapshot"), Err(Errno::EBUSY));
    append("!tracer_outer:snapshot", FILE).unwrap();
    echo("0", "snapshot").unwrap();
    end();
}

/// A pattern puts a command on several functions. Each has its own count, and each can lose it.
#[guest_test]
fn a_command_on_several_functions_is_one_of_each() {
    const FILE: &str = "set_ftrace_filter";
    let all = "#### all functions enabled ####";
    let stacks_of = |function: &str| {
        let begin = format!("<stack trace>\n => {function}\n");
        show("trace").matches(&begin).count()
    };
    end();
    append("tracer_?????:stacktrace:2", FILE).unwrap();
    for (outer, left) in [(1, 1), (2, 0), (2, 0)] {
        call(1);
        assert_eq!(stacks_of("tracer_inner"), 2);
        assert_eq!(stacks_of("tracer_outer"), outer);
        let lines = [
            all.into(),
            "tracer_inner:stacktrace:count=0".into(),
            format!("tracer_outer:stacktrace:count={left}"),
        ];
        assert_eq!(sorted(FILE), lines);
    }
    // Only functions that do not have it get it.
    let words = "tracer_?????:stacktrace";
    assert_eq!(append(words, FILE), Err(Errno::EEXIST));
    append("tracer_*er:stacktrace", FILE).unwrap();
    let lines = sorted(FILE);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(lines[1], "tracer_caller:stacktrace:unlimited");
    // A line of the file takes away what it says. A pattern may mean several commands.
    append("!tracer_inner:stacktrace:count=0", FILE).unwrap();
    assert_eq!(sorted(FILE)[2..], ["tracer_outer:stacktrace:count=0"]);
    append("!tracer_*:stacktrace", FILE).unwrap();
    assert_eq!(sorted(FILE), [all]);

    // Some functions of one command.
    append(words, FILE).unwrap();
    append("!tracer_inner:stacktrace", FILE).unwrap();
    assert_eq!(append("!tracer_inner:stacktrace", FILE), Err(Errno::ENODEV));
    assert_eq!(sorted(FILE), [all, "tracer_outer:stacktrace:unlimited"]);
    assert!(!show("enabled_functions").contains("tracer_inner"));
    echo("", "trace").unwrap();
    call(1);
    assert_eq!(TRACING.buffer.written(), 1);
    assert_eq!(stacks_of("tracer_outer"), 1);
    append("!*:stacktrace", FILE).unwrap();

    // An event that is turned on so often has one count for all.
    append("p:mine/inner tracer_inner", "kprobe_events").unwrap();
    append("tracer_?????:enable_event:mine:inner:1", FILE).unwrap();
    call(1);
    let lines = ["tracer_inner", "tracer_outer"]
        .map(|function| format!("{function}:enable_event:mine:inner:count=0"));
    assert_eq!(sorted(FILE)[1..], lines);
    append("!tracer_outer:enable_event:mine:inner:count=0", FILE).unwrap();
    // The other function has it still, so the event is in use.
    assert_eq!(append("-:mine/inner", "kprobe_events"), Err(Errno::EBUSY));
    append("!*:enable_event:mine:inner", FILE).unwrap();
    echo("0", "events/mine/inner/enable").unwrap();
    append("-:mine/inner", "kprobe_events").unwrap();
    end();
}

/// A count is read as C reads it. If it is empty, there is none, but after an event.
#[guest_test]
fn counts_of_commands_are_read_as_on_linux() {
    const FILE: &str = "set_ftrace_filter";
    end();
    for (count, shown) in [
        (":010", "count=8"),
        (":0x5", "count=5"),
        (":+7", "count=7"),
        (":18446744073709551615", "unlimited"),
        (":", "unlimited"),
    ] {
        append(&format!("tracer_inner:traceon{count}"), FILE).unwrap();
        let line = format!("tracer_inner:traceon:{shown}");
        assert_eq!(sorted(FILE)[1..], [line], "{count}");
        append("!tracer_inner:traceon", FILE).unwrap();
    }
    append("p:mine/inner tracer_inner", "kprobe_events").unwrap();
    let event = "tracer_outer:enable_event:mine:inner";
    append(&format!("{event}:0x10"), FILE).unwrap();
    assert_eq!(sorted(FILE)[1..], [format!("{event}:count=16")]);
    append(&format!("!{event}"), FILE).unwrap();
    assert_eq!(append(&format!("{event}:"), FILE), Err(Errno::EINVAL));
    append("-:mine/inner", "kprobe_events").unwrap();
    end();
}

/// A command that has no room on all of its functions does nothing at calls of the others.
#[guest_test]
fn a_command_that_is_refused_has_not_acted() {
    end();
    for word in ["*:traceoff:1", "*:stacktrace:5"] {
        let touched = show("touched_functions");
        assert_eq!(
            append(word, "set_ftrace_filter"),
            Err(Errno::ENOSPC),
            "{word}"
        );
        assert_eq!(show("tracing_on"), "1\n", "{word}");
        assert_eq!(TRACING.buffer.written(), 0, "{word}");
        assert_eq!(show("touched_functions"), touched, "{word}");
    }
    end();
}

/// What is wrong in a command changes nothing.
#[guest_test]
fn commands_that_cannot_be_are_refused() {
    let refused = |word, errno| {
        assert_eq!(append(word, "set_ftrace_filter"), Err(errno), "{word}");
        let left = show("set_ftrace_filter");
        assert_eq!(left, "#### all functions enabled ####\n", "{word}");
    };
    end();
    for word in [
        "tracer_inner:",
        "tracer_inner:dumps",
        "no_such_function:dump",
        "tracer_inner:traceoff:08",
        "tracer_inner:traceoff:-1",
        "tracer_inner:traceoff:1:2",
        "no_such_function:traceoff",
        "no_such_*:traceoff",
        "tracer_inner:enable_event",
        "tracer_inner:enable_event:mine",
        "tracer_inner:enable_event:mine:none",
        ":traceoff",
        "tracer_outer tracer_inner:dumps",
        "tracer_outer no_such_function:traceoff",
        "tracer_inner:traceoff no_such_function:traceoff",
        "tracer_inner:traceoff tracer_outer:enable_event:mine:none",
    ] {
        refused(word, Errno::EINVAL);
    }
    for word in [
        "!tracer_inner:cpudump",
        "!tracer_inner:traceoff",
        "tracer_outer !tracer_inner:traceoff",
    ] {
        refused(word, Errno::ENODEV);
    }
    assert_eq!(
        append("tracer_inner:traceoff", "set_ftrace_notrace"),
        Err(Errno::EINVAL)
    );
    // Each of so many functions would have a count of its own.
    assert_eq!(
        append("tracer_inner kernel.*:stacktrace:3", "set_ftrace_filter"),
        Err(Errno::ENOSPC)
    );
    assert_eq!(
        show("set_ftrace_filter"),
        "#### all functions enabled ####\n"
    );
    assert_eq!(show("enabled_functions"), "");
    end();
}
