//! The files that choose what the tracers of all functions record: which functions, in which
//! depth, of which tasks, and of which duration; and the tasks whose hits events record.
//!
//! Each choice is held against calls whose number and depth are known, of the test's own task and
//! of another one. Numbers from 2,000,000,000 on are of no task here, however many there were.

use abi::open;
use alloc::{format, string::String, vec::Vec};

use kernel::{
    errno::Errno,
    fs,
    task::{current, sleep::sleep_until},
    time::{NSEC_PER_MSEC, ktime_get},
    trace::TRACING,
};

use super::{append, clean_up, echo, lines, on_cpu, path, show, tracers::*};

#[guest_test]
fn depth_and_roots_choose_calls() {
    begin("function_graph", FUNCTIONS);
    echo("2", "max_graph_depth").unwrap();
    call(1);
    let two_levels = [
        "tracer_outer() {",
        "  tracer_middle();",
        "  tracer_middle();",
        "}",
    ];
    assert_eq!(calls(), two_levels);
    echo("0", "max_graph_depth").unwrap();

    echo("tracer_middle", "set_graph_function").unwrap();
    echo("", "trace").unwrap();
    call(1);
    // A call that is no root and in none leaves nothing.
    tracer_inner(1);
    let middle = ["tracer_middle() {", "  tracer_inner();", "}"];
    assert_eq!(calls(), [middle, middle].concat());

    echo("", "set_graph_function").unwrap();
    echo("tracer_middle", "set_graph_notrace").unwrap();
    echo("", "trace").unwrap();
    call(1);
    tracer_inner(1);
    assert_eq!(calls(), ["tracer_outer();", "tracer_inner();"]);

    // Both: what is hidden is hidden inside a root, too.
    echo("tracer_outer", "set_graph_function").unwrap();
    echo("tracer_inner", "set_graph_notrace").unwrap();
    echo("", "trace").unwrap();
    call(1);
    assert_eq!(calls(), two_levels);
    end();
}

#[guest_test]
fn functions_are_left_out() {
    begin("function_graph", "tracer_*");
    echo("tracer_midd*", "set_ftrace_notrace").unwrap();
    call(1);
    assert_eq!(
        calls(),
        [
            "tracer_caller() {",
            "  tracer_outer() {",
            "    tracer_inner();",
            "    tracer_inner();",
            "  }",
            "}",
        ]
    );
    // The last one goes, so nothing is recorded any more.
    echo("tracer_*", "set_ftrace_notrace").unwrap();
    echo("", "trace").unwrap();
    call(1);
    assert_eq!(calls(), [""; 0]);
    end();
}

/// Calls of the chosen tasks only, by both tracers.
#[guest_test]
fn tasks_are_chosen_by_their_numbers() {
    for tracer in ["function", "function_graph"] {
        begin(tracer, "tracer_inner");
        assert_eq!(show("set_ftrace_pid"), "no pid\n");
        let own = current().pid();
        echo(&format!("{own} 2000003000"), "set_ftrace_pid").unwrap();
        append("2000003000 2000003001", "set_ftrace_pid").unwrap();
        assert_eq!(
            show("set_ftrace_pid"),
            format!("{own}\n2000003000\n2000003001\n")
        );
        call(1);
        on_cpu(0, || call(1));
        let written = TRACING.buffer.written();
        assert_eq!(written, if tracer == "function" { 2 } else { 4 });
        for words in ["x", "-1", "2000003002 4294967296"] {
            assert_eq!(echo(words, "set_ftrace_pid"), Err(Errno::EINVAL), "{words}");
        }
        let many: Vec<String> = (2_000_005_000..2_000_005_065)
            .map(|number| format!("{number}"))
            .collect();
        assert_eq!(echo(&many.join(" "), "set_ftrace_pid"), Err(Errno::ENOSPC));
        echo("2000003000", "set_ftrace_pid").unwrap();
        call(1);
        assert_eq!(TRACING.buffer.written(), written);
        echo("", "set_ftrace_pid").unwrap();
        on_cpu(0, || call(1));
        assert_eq!(TRACING.buffer.written(), 2 * written);

        // One that is not to be traced is not, even if it is chosen.
        echo(&format!("{own} 2000003000"), "set_ftrace_notrace_pid").unwrap();
        assert_eq!(
            show("set_ftrace_notrace_pid"),
            format!("{own}\n2000003000\n")
        );
        for chosen in [String::new(), format!("{own} 2000003001")] {
            echo(&chosen, "set_ftrace_pid").unwrap();
            call(1);
            assert_eq!(TRACING.buffer.written(), 2 * written, "{chosen}");
        }
        assert_eq!(echo("x", "set_ftrace_notrace_pid"), Err(Errno::EINVAL));
        // Others are traced as far as they are chosen.
        on_cpu(0, || call(1));
        assert_eq!(TRACING.buffer.written(), 2 * written);
        echo("", "set_ftrace_pid").unwrap();
        on_cpu(0, || call(1));
        assert_eq!(TRACING.buffer.written(), 3 * written);
        echo("", "set_ftrace_notrace_pid").unwrap();
        call(1);
        assert_eq!(TRACING.buffer.written(), 4 * written);
        end();
    }
}

/// Hits of the chosen tasks only, whatever the filter is. Triggers see all hits.
#[guest_test]
fn events_record_the_hits_of_the_chosen_tasks() {
    /// The arguments of the records.
    fn recorded() -> Vec<String> {
        let all = lines();
        let after = |line: &String| line.split_once(" x=").map(|(_, x)| x.into());
        all.iter().filter_map(after).collect()
    }
    fn hit(x: u64) {
        tracer_inner(x);
        on_cpu(0, move || _ = tracer_inner(x + 100));
    }
    let own = current().pid();
    echo("p:choice/e tracer_inner x=%di:u64", "kprobe_events").unwrap();
    echo("hist:keys=x", "events/choice/e/trigger").unwrap();
    echo("1", "events/choice/e/enable").unwrap();
    assert_eq!(show("set_event_pid") + &show("set_event_notrace_pid"), "");
    hit(1);
    echo(&format!("{own} 2000003000"), "set_event_pid").unwrap();
    append("2000003001", "set_event_pid").unwrap();
    assert_eq!(
        show("set_event_pid"),
        format!("{own}\n2000003000\n2000003001\n")
    );
    hit(2);
    echo("x != 3", "events/choice/e/filter").unwrap();
    hit(3);
    hit(4);
    assert_eq!(recorded(), ["1", "101", "2", "4"]);
    // One that is not to be recorded is not, even if it is chosen.
    echo(&format!("{own}"), "set_event_notrace_pid").unwrap();
    hit(5);
    echo("", "set_event_pid").unwrap();
    hit(6);
    echo("", "set_event_notrace_pid").unwrap();
    hit(7);
    assert_eq!(recorded(), ["1", "101", "2", "4", "106", "7", "107"]);
    let profile = show("events/choice/e/profile");
    // Of 14 hits, those of the other task (2 to 5), and 3, 5 and 6.
    assert!(profile.contains("filtered: 7"), "{profile}");
    let hist = show("events/choice/e/hist");
    assert!(hist.contains("Hits: 14\n"), "{hist}");
    // Events that come later have the choice, and what is refused changes nothing.
    echo("2000003000", "set_event_pid").unwrap();
    append("p:choice/late tracer_inner x=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/choice/late/enable").unwrap();
    for words in ["x", "-1", "2000003002 4294967296"] {
        assert_eq!(echo(words, "set_event_pid"), Err(Errno::EINVAL), "{words}");
    }
    let many = |from: u64, to| -> String { (from..to).map(|n| format!("{n} ")).collect() };
    assert_eq!(
        echo(&many(2_000_005_000, 2_000_005_065), "set_event_pid"),
        Err(Errno::ENOSPC)
    );
    assert_eq!(show("set_event_pid"), "2000003000\n");
    hit(8);
    assert_eq!(recorded().len(), 7);
    // As many as there may be, of events of all kinds.
    echo(
        &(many(2_000_005_000, 2_000_005_063) + &format!("{own}")),
        "set_event_pid",
    )
    .unwrap();
    echo(&many(2_000_006_000, 2_000_006_064), "set_event_notrace_pid").unwrap();
    hit(9);
    assert_eq!(recorded()[7..], ["9", "9"]);
    // A switch is a record of both tasks.
    echo("0", "events/enable").unwrap();
    echo("", "trace").unwrap();
    echo("1", "events/sched/enable").unwrap();
    sleep_until(ktime_get() + 2 * NSEC_PER_MSEC);
    on_cpu(0, || sleep_until(ktime_get() + NSEC_PER_MSEC));
    sleep_until(ktime_get() + 2 * NSEC_PER_MSEC);
    echo("0", "events/enable").unwrap();
    let switches = lines();
    let names = ["sched_switch: ", "sched_wakeup: "];
    for name in names {
        let of_kind = switches.iter().filter(|line| line.starts_with(name));
        assert!(of_kind.count() >= 2, "{name}: {switches:?}");
    }
    for line in &switches {
        let is_own = |field: &&str| line.contains(&format!("{field}={own} "));
        let has_own = ["prev_pid", "next_pid", "pid"].iter().any(is_own);
        let by_own = show("trace")
            .lines()
            .any(|shown| shown.ends_with(line.as_str()) && shown.contains(&format!("-{own} ")));
        assert!(
            has_own || by_own || line.ends_with(&format!("={own}")),
            "{line}"
        );
    }
    echo("", "set_event_pid").unwrap();
    echo("", "set_event_notrace_pid").unwrap();
    echo("!hist:keys=x", "events/choice/e/trigger").unwrap();
    clean_up();
}

#[guest_test]
fn a_set_is_changed_word_by_word() {
    end();
    const FILE: &str = "set_ftrace_filter";
    let all = "#### all functions enabled ####\n";
    assert_eq!(show(FILE), all);
    assert_eq!(show("set_graph_function"), all);
    for none in ["set_ftrace_notrace", "set_graph_notrace"] {
        assert_eq!(show(none), "#### no functions disabled ####\n");
    }
    let both = ["tracer_inner", "tracer_outer"];
    echo("tracer_inner", FILE).unwrap();
    append("tracer_outer", FILE).unwrap();
    assert_eq!(sorted(FILE), both);
    append("!tracer_inner", FILE).unwrap();
    assert_eq!(show(FILE), "tracer_outer\n");
    echo("tracer_?????", FILE).unwrap();
    assert_eq!(sorted(FILE), both);
    // A word that means nothing changes nothing, wherever it is.
    for words in [
        "no_such_function",
        "tracer_slow no_such_*",
        "!no_such_function",
        "do_debug",
    ] {
        assert_eq!(echo(words, FILE), Err(Errno::EINVAL), "{words}");
        assert_eq!(append(words, FILE), Err(Errno::EINVAL), "{words}");
        assert_eq!(sorted(FILE), both, "{words}");
    }
    // Without a word, `>` empties it when the file is closed.
    let file = fs::open(&path(FILE), open::WRONLY | open::TRUNC).unwrap();
    assert_eq!(sorted(FILE), both);
    drop(file);
    assert_eq!(show(FILE), all);
    // A pattern that all functions match.
    echo("*", FILE).unwrap();
    assert!(show(FILE).lines().count() > 1000);
    end();
}

/// The duration of a call is at least what it has waited, and a bound leaves the shorter ones out,
/// and all entries.
#[guest_test]
fn a_bound_leaves_short_calls_out() {
    begin("function_graph", "tracer_slow tracer_inner");
    tracer_slow(300);
    let text = show("trace");
    let line = text
        .lines()
        .find(|line| line.contains("tracer_slow"))
        .unwrap();
    let (_, number) = line.split_once(") ").unwrap();
    let number = number.trim_start_matches(['!', '#', '*', '@', '$', '+', ' ']);
    let us: f64 = number.split_once(" us").unwrap().0.parse().unwrap();
    assert!(us >= 300., "{line}");
    echo("", "trace").unwrap();
    echo("200", "tracing_thresh").unwrap();
    assert_eq!(show("tracing_thresh"), "200\n");
    tracer_slow(300);
    assert_eq!(calls(), ["} /* tracer_slow */"]);
    echo("3600000000", "tracing_thresh").unwrap();
    tracer_slow(300);
    tracer_inner(1);
    assert_eq!(calls().len(), 1);
    end();
}
