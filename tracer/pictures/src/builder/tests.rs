//! Records in their order, and the calls that the builder makes of them.
//!
//! Most tests write records as words: `+a` enters a function, `-a` returns from it, and each is 10
//! nanoseconds after the one before.

use super::*;

/// `+a` enters, `-a` returns; each record is 10 later than the one before, from 10 on.
fn timeline(records: &str) -> Timeline {
    let mut builder = Builder::new();
    for (number, record) in (1..).zip(records.split_whitespace()) {
        let (kind, function) = record.split_at(1);
        match kind {
            "+" => builder.entry(number * 10, 1, 0, function, Vec::new()),
            "-" => builder.exit(number * 10, 1, 0, function, None),
            _ => builder.gap("full", 1),
        }
    }
    builder.finish()
}

/// A call of task 1 on processor 0. The depth is one that the builder replaces.
fn whole(function: &str, begin: u64, end: u64) -> Call {
    Call::whole(function, begin, end, 9)
}

fn run(cpu: u32, tid: u32, begin: u64, end: u64) -> Run {
    Run {
        cpu,
        tid,
        begin,
        end,
    }
}

fn shown(timeline: &Timeline) -> Vec<String> {
    let show = |call: &Call| {
        let (begin, end, seen) = (call.begin, call.end, call.seen);
        let indent = " ".repeat(call.depth as usize);
        format!("{indent}{} {begin}..{end} {seen:?}", call.function)
    };
    timeline.calls.iter().map(show).collect()
}

#[test]
fn calls_nest() {
    assert_eq!(
        shown(&timeline("+a +b -b +c +c -c -c -a")),
        [
            "a 10..80 Whole",
            " b 20..30 Whole",
            " c 40..70 Whole",
            "  c 50..60 Whole",
        ]
    );
}

#[test]
fn a_return_without_an_entry_holds_all_before_it() {
    assert_eq!(
        shown(&timeline("+b -b -a +c -c -z +d -d")),
        [
            "z 10..60 ReturnOnly",
            " a 10..30 ReturnOnly",
            "  b 10..20 Whole",
            " c 40..50 Whole",
            "d 70..80 Whole",
        ]
    );
}

#[test]
fn a_return_after_a_gap_begins_at_the_last_record() {
    assert_eq!(
        shown(&timeline("+b -b ! -a")),
        ["b 10..20 Whole", "a 20..40 ReturnOnly",]
    );
    assert_eq!(
        shown(&timeline("+b -a -b")),
        ["b 10..30 Whole", " a 10..20 ReturnOnly",]
    );
}

#[test]
fn a_lost_return_ends_with_its_caller() {
    assert_eq!(
        shown(&timeline("+a +b +c -a +d -d")),
        [
            "a 10..40 Whole",
            " b 20..40 EntryOnly",
            "  c 30..40 EntryOnly",
            "d 50..60 Whole",
        ]
    );
}

#[test]
fn a_call_in_which_the_kernel_died_is_open() {
    assert_eq!(
        shown(&timeline("+a +b -b +c")),
        ["a 10..40 Open", " b 20..30 Whole", " c 40..40 Open",]
    );
}

#[test]
fn many_lost_entries_do_not_make_a_tower() {
    let records = "-a ".repeat(1000);
    let deepest = timeline(&records).calls.iter().map(|call| call.depth).max();
    assert_eq!(deepest, Some(OUTER_CALLS - 1));
}

#[test]
fn a_clock_that_steps_back_does_not_break_nesting() {
    let mut builder = Builder::new();
    builder.entry(100, 1, 0, "a", Vec::new());
    builder.entry(90, 1, 1, "b", Vec::new());
    builder.exit(80, 1, 0, "b", None);
    builder.exit(95, 1, 0, "a", None);
    let timeline = builder.finish();
    assert_eq!(shown(&timeline), ["a 100..100 Whole", " b 100..100 Whole"]);
    assert_eq!(timeline.moved_times, 3);
}

#[test]
fn records_in_any_order_neither_panic_nor_break_nesting() {
    // A small generator of our own, so that a failure repeats.
    let mut state = 1_u64;
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let mut builder = Builder::new();
        for _ in 0..60 {
            let (time, tid, cpu) = (next(1000), next(3) as u32, next(3) as u32);
            let function = ["a", "b", "c"][next(3) as usize];
            match next(20) {
                0 => builder.gap("full", 1),
                1 => builder.instant(time, tid, cpu, "i", Vec::new()),
                2..11 => builder.entry(time, tid, cpu, function, Vec::new()),
                _ => builder.exit(time, tid, cpu, function, None),
            }
        }
        let timeline = builder.finish();
        check_nesting(&timeline);
        for pair in timeline.runs.windows(2) {
            let (one, two) = (pair[0], pair[1]);
            assert!(one.begin <= one.end && (one.cpu < two.cpu || one.begin <= two.begin));
        }
    }
}

/// TIMELINE-2.
fn check_nesting(timeline: &Timeline) {
    for (_, calls) in timeline.calls_by_task() {
        let mut callers: Vec<&Call> = Vec::new();
        for call in calls {
            assert!(
                call.depth as usize <= callers.len(),
                "{:?}",
                shown(timeline)
            );
            callers.truncate(call.depth as usize);
            assert!(call.begin <= call.end);
            if let Some(caller) = callers.last() {
                assert!(caller.begin <= call.begin && call.end <= caller.end);
            }
            callers.push(call);
        }
    }
}

#[test]
fn whole_calls_nest_by_their_times() {
    let mut builder = Builder::new();
    builder.call(whole("c", 20, 30));
    builder.call(whole("b", 20, 30));
    builder.call(whole("d", 40, 40));
    builder.call(whole("a", 10, 40));
    builder.call(whole("e", 40, 40));
    builder.call(whole("f", 50, 60));
    let timeline = builder.finish();
    assert_eq!(
        shown(&timeline),
        [
            "a 10..40 Whole",
            " b 20..30 Whole",
            "  c 20..30 Whole",
            " d 40..40 Whole",
            "e 40..40 Whole",
            "f 50..60 Whole",
        ]
    );
    check_nesting(&timeline);
}

/// The record of the second call says that it ended before the first one did.
#[test]
fn a_whole_call_ends_no_earlier_than_the_record_before_it() {
    let mut builder = Builder::new();
    let moved = |function, begin, end| Call {
        cpu_at_return: Some(1),
        ..whole(function, begin, end)
    };
    builder.call(moved("inner", 20, 100));
    builder.call(moved("outer", 10, 90));
    let timeline = builder.finish();
    assert_eq!(
        shown(&timeline),
        ["outer 10..100 Whole", " inner 20..100 Whole"]
    );
    check_nesting(&timeline);
}

/// Each processor has an idle task, and their calls have nothing to do with each other.
#[test]
fn idle_tasks_are_told_apart_by_their_processors() {
    let mut builder = Builder::new();
    builder.task(0, 0, "<idle>");
    builder.entry(10, 0, 0, "a", Vec::new());
    builder.entry(20, 0, 1, "a", Vec::new());
    builder.exit(30, 0, 0, "a", Some("0".into()));
    builder.exit(40, 0, 1, "a", Some("1".into()));
    let whole = |cpu, begin, end| Call {
        tid: 0,
        cpu_at_entry: None,
        cpu_at_return: Some(cpu),
        function: "b".into(),
        begin,
        end,
        seen: Seen::Whole,
        arguments: Vec::new(),
        result: None,
        depth: 0,
    };
    builder.call(whole(2, 50, 70));
    builder.call(whole(3, 40, 60));
    builder.instant(90, 0, 1, "said", Vec::new());
    builder.run(Run {
        cpu: 3,
        tid: 0,
        begin: 10,
        end: 20,
    });
    let timeline = builder.finish();
    let lines = [
        "a 10..30 Whole",
        "a 20..40 Whole",
        "b 50..70 Whole",
        "b 40..60 Whole",
    ];
    assert_eq!(shown(&timeline), lines);
    let calls = timeline.calls.iter();
    let calls: Vec<_> = calls
        .map(|call| (call.tid - IDLE, call.result.as_deref()))
        .collect();
    let results = [(0, Some("0")), (1, Some("1")), (2, None), (3, None)];
    assert_eq!((calls, timeline.moved_times), (results.into(), 0));
    assert_eq!(timeline.instants[0].tid, IDLE + 1);
    assert_eq!(timeline.runs[0].tid, IDLE + 3);
    let names = timeline.tasks.iter().map(|task| (&*task.name, task.pid));
    let names: Vec<_> = names.collect();
    assert_eq!(names[0], ("<idle> on CPU 0", 0));
    assert_eq!((names.len(), names[3]), (4, ("<idle> on CPU 3", 0)));
}

#[test]
fn a_task_runs_where_its_last_record_was() {
    let mut builder = Builder::new();
    builder.entry(10, 1, 0, "a", Vec::new());
    builder.entry(20, 2, 0, "b", Vec::new());
    builder.exit(30, 2, 0, "b", None);
    builder.instant(40, 1, 1, "moved", Vec::new());
    builder.exit(50, 1, 1, "a", None);
    let timeline = builder.finish();
    assert_eq!(
        timeline.runs,
        [run(0, 1, 10, 20), run(0, 2, 20, 30), run(1, 1, 40, 50),]
    );
    assert_eq!(timeline.cpus, 2);
}

/// Runs that are handed over stand for those that records would tell.
#[test]
fn runs_that_are_known_are_in_the_order_of_processors_and_times() {
    let mut builder = Builder::new();
    builder.entry(10, 1, 0, "a", Vec::new());
    for known in [run(1, 7, 5, 9), run(0, 8, 30, 60), run(0, 9, 20, 30)] {
        builder.run(known);
    }
    let timeline = builder.finish();
    let expected = [run(0, 9, 20, 30), run(0, 8, 30, 60), run(1, 7, 5, 9)];
    assert_eq!(timeline.runs, expected);
    // The recording ends with the last of them, and the open call with the recording.
    assert_eq!(timeline.calls[0].end, 60);
    assert_eq!(timeline.cpus, 2);
}

#[test]
fn losses_add_up_by_reason_and_counters_are_in_order() {
    let mut builder = Builder::new();
    builder.lost("full", 3);
    builder.gap("full", u64::MAX);
    builder.lost("other", 1);
    builder.counter(20, "free", "frames", 2.0);
    builder.counter(10, "free", "frames", 1.0);
    builder.counter(15, "used", "frames", 5.0);
    builder.cpus(4);
    builder.cpus(1);
    builder.task(9, 3, "old");
    builder.task(9, 4, "new");
    builder.instant(30, 2, 0, "later", Vec::new());
    builder.instant(20, 2, 0, "earlier", Vec::new());
    let timeline = builder.finish();
    let lost = [("full", u64::MAX), ("other", 1)];
    assert_eq!(
        timeline.lost,
        lost.map(|(why, count)| (why.to_owned(), count))
    );
    let samples = |name: &str| {
        let found = timeline
            .counters
            .iter()
            .find(|counter| counter.name == name);
        found.unwrap().samples.clone()
    };
    assert_eq!(samples("free"), [(10, 1.0), (20, 2.0)]);
    assert_eq!(samples("used"), [(15, 5.0)]);
    assert_eq!(timeline.cpus, 4);
    let tasks: Vec<_> = timeline
        .tasks
        .iter()
        .map(|task| (task.tid, task.pid))
        .collect();
    assert_eq!(tasks, [(2, 2), (9, 4)]);
    assert_eq!(timeline.task_name(9), "new");
    assert_eq!(timeline.task_name(2), "task 2");
    // A time that steps back is that of the record before, and is counted.
    let times: Vec<_> = timeline
        .instants
        .iter()
        .map(|instant| instant.time)
        .collect();
    assert_eq!((times, timeline.moved_times), (vec![30, 30], 1));
}

/// A call without an end, or whose end comes before its beginning, takes no time.
#[test]
fn whole_calls_end_in_their_callers() {
    let mut builder = Builder::new();
    let call = |function, begin, end| Call {
        cpu_at_entry: None,
        ..whole(function, begin, end)
    };
    builder.call(call("inner", 15, 18));
    builder.call(call("outer", 10, 20));
    builder.call(call("back", 40, 30));
    let timeline = builder.finish();
    assert_eq!(
        shown(&timeline),
        [
            "outer 10..20 Whole",
            " inner 15..18 Whole",
            "back 30..30 Whole"
        ]
    );
}
