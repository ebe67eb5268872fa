//! Times of calls and lines, and calls that do not return.
//!
//! Records are made up. The clock of the trace begins 1000 nanoseconds after the boot, and a record
//! is written some time after the times in it were read.

use super::*;
use crate::calls::{CallOfTree, ToldEntry, ToldReturn};
use pictures::model::IDLE;
use trace_answers::{NoSymbols, PrintedBy};

fn record(tid: u32, cpu: u32) -> Recorded {
    Recorded {
        cpu,
        tsc: 0,
        tid,
        text: "said".into(),
        values: Vec::new(),
        by: PrintedBy::Line,
    }
}

/// A call has returned that began and took so long; its record is written `late` after that.
fn returned(moments: &mut Moments, tid: u32, call: (u64, u64), late: i64, tree: Option<u64>) {
    let (begin, length) = call;
    let told = Told::Return(ToldReturn {
        function: begin,
        begin,
        time: Duration::from_nanos(length),
        result: None,
        call: tree.map(|depth| CallOfTree { depth, begin }),
        arguments: Vec::new(),
    });
    let time = signed(begin + length) - 1000 + late;
    moments.told(told, time, &record(tid, 1), &NoSymbols);
}

fn entered(moments: &mut Moments, tid: u32, begin: u64, depth: u64) {
    let told = Told::Entry(ToldEntry {
        function: begin,
        call: CallOfTree { depth, begin },
        caller: 0,
        comm: "cat".into(),
        // The second one stands for those that are not recorded.
        arguments: vec![
            ("a".into(), Value::Unsigned(1)),
            (OTHERS.into(), Value::Unit),
        ],
    });
    let time = signed(begin) - 1000 + 5;
    moments.told(told, time, &record(tid, 1), &NoSymbols);
}

/// Depth, times and what was seen of each call.
fn calls(timeline: &Timeline) -> Vec<(u32, u64, u64, Seen)> {
    let calls = timeline.calls.iter();
    calls
        .map(|call| (call.depth, call.begin, call.end, call.seen))
        .collect()
}

/// The record of the outer call is late by more than the time between the two beginnings.
#[test]
fn a_call_that_is_told_late_is_around_those_that_it_has_made() {
    let mut moments = Moments::default();
    returned(&mut moments, 7, (1_120, 30), 2, None);
    returned(&mut moments, 7, (1_100, 200), 900, None);
    moments.said(1_300, &record(7, 1));
    let timeline = moments.build(Builder::new(), Some(77));
    let expected = [(0, 102, 302, Seen::Whole), (1, 122, 152, Seen::Whole)];
    assert_eq!(calls(&timeline), expected);
    assert_eq!(timeline.instants[0].time, 1_300);
    let clock = timeline.wall_clock.unwrap();
    assert_eq!((clock.time, clock.since_1970), (0, 77));
}

/// Probes are attached before a trace begins.
#[test]
fn what_was_before_the_beginning_keeps_its_times() {
    let mut moments = Moments::default();
    returned(&mut moments, 7, (600, 100), 0, None);
    moments.said(-250, &record(7, 1));
    returned(&mut moments, 7, (900, 200), 0, None);
    let timeline = moments.build(Builder::new(), Some(77));
    let expected = [(0, 0, 100, Seen::Whole), (0, 300, 500, Seen::Whole)];
    assert_eq!(calls(&timeline), expected);
    assert_eq!(timeline.instants[0].time, 150);
    assert_eq!(timeline.wall_clock.unwrap().time, 400);
}

#[test]
fn calls_of_a_tree_that_do_not_return_are_there() {
    let mut moments = Moments::default();
    entered(&mut moments, 7, 1_100, 0);
    entered(&mut moments, 7, 1_200, 1);
    returned(&mut moments, 7, (1_200, 50), 5, Some(1));
    entered(&mut moments, 7, 1_300, 1);
    // Another task's, and one of an idle task whose return was lost.
    entered(&mut moments, 8, 1_350, 0);
    returned(&mut moments, 8, (1_350, 60), 5, Some(0));
    entered(&mut moments, 0, 1_400, 0);
    entered(&mut moments, 0, 1_500, 0);
    let timeline = moments.build(Builder::new(), None);
    let of_task = |tid| -> Vec<_> {
        let all = calls(&timeline).into_iter().zip(&timeline.calls);
        let all = all.filter(|(_, call)| call.tid == tid);
        all.map(|(call, _)| call).collect()
    };
    let expected = [
        (0, 105, 505, Seen::Open),
        (1, 205, 255, Seen::Whole),
        (1, 305, 505, Seen::Open),
    ];
    assert_eq!(of_task(7), expected);
    assert_eq!(of_task(8), [(0, 355, 415, Seen::Whole)]);
    assert_eq!(of_task(IDLE + 1), [(0, 505, 505, Seen::Open)]);
    let open = timeline.calls.iter().find(|call| call.tid == 7).unwrap();
    let argument = ("a".to_owned(), "1".to_owned());
    assert_eq!(
        (&open.arguments[..], open.cpu_at_entry),
        (&[argument][..], Some(1))
    );
}

#[test]
fn trees_within_the_bound_of_time_are_left_out() {
    let mut moments = Moments::new(Some(Duration::from_nanos(100)));
    for (begin, length) in [(1_100, 100), (1_300, 101)] {
        entered(&mut moments, 7, begin, 0);
        entered(&mut moments, 7, begin + 10, 1);
        returned(&mut moments, 7, (begin + 10, 20), 5, Some(1));
        returned(&mut moments, 7, (begin, length), 5, Some(0));
    }
    entered(&mut moments, 7, 9_000, 0);
    let timeline = moments.build(Builder::new(), None);
    let expected = [(0, 305, 406, Seen::Whole), (1, 315, 335, Seen::Whole)];
    assert_eq!(calls(&timeline), expected);
}
