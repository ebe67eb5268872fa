//! What concerns several events at once: the files of a group, and triggers that switch the
//! histograms of another event.
//!
//! Each is held against the hits of two events whose fields differ.

use alloc::{format, string::String, vec::Vec};

use kernel::errno::Errno;

use super::{append, call, clean_up, echo, exists, lines, reading::define, show};

/// Two events: `a` has the field `number`, `b` has that and `more`.
fn define_two() {
    clean_up();
    define("p:a traced_function number=%di:u64");
    define("p:b traced_function number=%di:u64 more=%di:u32");
}

/// The numbers in the records of an event.
fn numbers(event: &str) -> Vec<u64> {
    let all = lines();
    let own = all.iter().filter(|line| line.starts_with(event));
    let number = |line: &String| {
        let rest = line.split_once("number=")?.1;
        rest.split(' ').next()?.parse().ok()
    };
    own.filter_map(number).collect()
}

#[guest_test]
fn a_filter_of_a_group_is_that_of_each_event_that_it_fits() {
    const TEXT: &str = "\
        ### global filter ###\n\
        # Use this to set filters for multiple events.\n\
        # Only events with the given fields will be affected.\n\
        # If no events are modified, an error message will be displayed here\n";
    const GROUP: &str = "events/kprobes/filter";
    let of_each = || ["a", "b"].map(|event| show(&format!("events/kprobes/{event}/filter")));
    let refused = |text: &str| {
        format!(
            "{text}\n^\nparse_error: Couldn't find or set field in one of a subsystem's events\n"
        )
    };
    define_two();
    assert_eq!(show(GROUP), TEXT);
    echo("number > 3", GROUP).unwrap();
    assert_eq!(of_each(), ["number > 3\n"; 2]);
    call(3);
    call(4);
    assert_eq!(
        (numbers("a"), numbers("b")),
        (alloc::vec![4], alloc::vec![4])
    );

    // The old filter stays where a new one does not fit.
    echo("", "error_log").unwrap();
    echo("more == 3", GROUP).unwrap();
    assert_eq!(show(GROUP), TEXT);
    assert_eq!(of_each(), [refused("more == 3"), "more == 3\n".into()]);
    let log = show("error_log");
    assert_eq!(
        log.split_once("] ").unwrap().1,
        "event filter parse error: error: Couldn't find or set field in one of a subsystem's \
         events\n  Command: more == 3\n           ^\n"
    );
    echo("", "trace").unwrap();
    call(3);
    call(4);
    assert_eq!(
        (numbers("a"), numbers("b")),
        (alloc::vec![4], alloc::vec![3])
    );
    echo("number >", GROUP).unwrap();
    assert_eq!(of_each(), [refused("number >"), refused("number >")]);

    echo("0", GROUP).unwrap();
    assert_eq!(of_each(), ["none\n"; 2]);
    echo("", "trace").unwrap();
    call(1);
    assert_eq!(
        (numbers("a"), numbers("b")),
        (alloc::vec![1], alloc::vec![1])
    );
    clean_up();
    assert!(!exists(GROUP));
    // An event of another group is not concerned.
    append("p:other/a traced_function number=%di:u64", "kprobe_events").unwrap();
    append("p:a traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("number == 1", GROUP).unwrap();
    assert_eq!(show("events/other/a/filter"), "none\n");
    clean_up();
}

#[guest_test]
fn an_event_that_has_triggers_shows_so() {
    define_two();
    let enabled =
        || ["a/enable", "b/enable", "enable"].map(|file| show(&format!("events/kprobes/{file}")));
    echo("0", "events/kprobes/enable").unwrap();
    assert_eq!(enabled(), ["0\n"; 3]);
    echo("traceoff:0", "events/kprobes/a/trigger").unwrap();
    assert_eq!(enabled(), ["0*\n", "0\n", "X\n"]);
    assert_eq!(show("set_event"), "kprobes:a\n");
    echo("1", "events/kprobes/a/enable").unwrap();
    assert_eq!(enabled(), ["1*\n", "0\n", "X\n"]);
    echo("0", "events/kprobes/a/enable").unwrap();
    echo("enable_hist:kprobes:b:0", "events/kprobes/a/trigger").unwrap();
    assert_eq!(enabled(), ["0*\n", "0*\n", "1\n"]);
    assert_eq!(show("events/enable"), "X\n");
    assert_eq!(echo("", "kprobe_events"), Err(Errno::EBUSY));
    for trigger in ["!traceoff", "!enable_hist:kprobes:b"] {
        echo(trigger, "events/kprobes/a/trigger").unwrap();
    }
    assert_eq!(enabled(), ["0\n"; 3]);
    assert_eq!(show("set_event"), "");
    clean_up();
}

#[guest_test]
fn a_trigger_starts_and_stops_the_histograms_of_another_event() {
    const HIST: &str = "hist:keys=number:vals=hitcount:sort=hitcount:size=2048";
    const BY_CPU: &str = "hist:keys=common_cpu:vals=hitcount:sort=hitcount:size=2048";
    let triggers = |event: &str| show(&format!("events/kprobes/{event}/trigger"));
    let hits = || -> Vec<u64> {
        let text = show("events/kprobes/b/hist");
        let totals = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Hits: "));
        totals.map(|hits| hits.parse().unwrap()).collect()
    };
    clean_up();
    define("p:a tracer_inner number=%di:u64");
    define("p:b traced_function number=%di:u64");
    let switch = |number: u64| _ = super::tracers::tracer_inner(number);
    let (of_a, of_b) = ("events/kprobes/a/trigger", "events/kprobes/b/trigger");
    echo("hist:keys=number:pause", of_b).unwrap();
    append("hist:keys=common_cpu", of_b).unwrap();
    call(1);
    assert_eq!(hits(), [0, 1]);
    // All of them are started, at each hit.
    echo("enable_hist:kprobes:b:2 if number > 10", of_a).unwrap();
    switch(1);
    call(1);
    assert_eq!(hits(), [0, 2]);
    switch(11);
    call(1);
    assert_eq!(hits(), [1, 3]);
    assert_eq!(
        triggers("a"),
        "enable_hist:kprobes:b:count=1 if number > 10\n"
    );
    assert_eq!(
        triggers("b"),
        format!("{HIST} [active]\n{BY_CPU} [active]\n")
    );
    switch(11);
    switch(11);
    assert_eq!(
        triggers("a"),
        "enable_hist:kprobes:b:count=0 if number > 10\n"
    );

    // They are one kind. Another event can have the other one, and events are of another kind.
    assert_eq!(append("disable_hist:kprobes:b", of_a), Err(Errno::EEXIST));
    append("disable_event:kprobes:b", of_a).unwrap();
    echo("!disable_event:kprobes:b", of_a).unwrap();
    echo("!enable_hist:kprobes:b", of_a).unwrap();
    append("disable_hist:kprobes:b", of_a).unwrap();
    switch(1);
    call(1);
    assert_eq!(hits(), [1, 3]);
    assert_eq!(
        triggers("b"),
        format!("{HIST} [paused]\n{BY_CPU} [paused]\n")
    );
    // One alone is started by its own file, until the next hit of the trigger.
    append("hist:keys=number:cont", of_b).unwrap();
    call(1);
    assert_eq!(hits(), [2, 3]);
    switch(1);
    call(1);
    assert_eq!(hits(), [2, 3]);
    // A new one counts, and what the trigger has left stays without it.
    append("hist:keys=common_pid", of_b).unwrap();
    echo("!disable_hist:kprobes:b", of_a).unwrap();
    call(1);
    assert_eq!(hits(), [2, 3, 1]);

    for line in [
        "!enable_hist:kprobes:nothing",
        "!disable_event:kprobes:nothing",
        "enable_hist:kprobes:b:",
        "enable_hist:kprobes:nothing",
        "enable_hist:kprobes",
        "enable_hist",
    ] {
        assert_eq!(append(line, of_a), Err(Errno::EINVAL), "{line}");
    }
    echo("0", of_b).unwrap_err();
    clean_up();
}

/// Percentages and bars are of all rows.
#[guest_test]
fn a_histogram_shows_parts_and_bars() {
    define_two();
    let file = "events/kprobes/a/trigger";
    let line = "hist:keys=number:vals=number.percent,hitcount.graph:sort=number:NOHC";
    echo(line, file).unwrap();
    for number in [1, 2, 2, 5] {
        call(number);
    }
    let text = show("events/kprobes/a/hist");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(
        rows,
        [
            "{ number:          1 }  number (%):  10.00  hitcount: ##########          ",
            "{ number:          2 }  number (%):  40.00  hitcount: ####################",
            "{ number:          5 }  number (%):  50.00  hitcount: ##########          ",
        ]
    );
    assert_eq!(append("hist:keys=number:NOHC", file), Err(Errno::ENOENT));
    assert_eq!(append("hist:keys=number.graph", file), Err(Errno::EINVAL));
    echo(&format!("!{line}"), file).unwrap();
    clean_up();
}
