//! From records of entries and returns to calls that nest.
//!
//! Records are handed over in the order in which they were made: the tool merges the rings of the
//! processors by time. Three things go wrong in a real recording, and each has a rule:
//!
//! - A ring was overwritten, so a return has no entry. Where the task has no open call, the lost
//!   entry was before all records of the task, so the call holds all of them. Where it has one, or
//!   after a [`Builder::gap`], the entry was lost in between, and the call begins at the last
//!   record of the task.
//! - A return is missing, but a caller returns. The inner call ends with its caller.
//! - The kernel died in a call. The call ends with the recording, and is [`Seen::Open`].
//!
//! BUILDER-1. The times of a task never decrease: a time before the last record of its task is
//!     moved to that record. So calls nest ([`crate::model`], TIMELINE-2), although the clocks of
//!     two processors differ.

use std::collections::BTreeMap;

use crate::model::{Call, Counter, Instant, Run, Seen, Task, Timeline, WallClock};

/// So many returns without an entry may hold everything before them. More are not plausible: they
/// come from a gap that was not told.
const OUTER_CALLS: u32 = 32;

/// Collects records and makes a [`Timeline`].
///
/// ```text
/// let mut builder = Builder::new();
/// builder.task(7, 7, "writer");
/// builder.entry(1000, 7, 0, "vfs_write", vec![("count".into(), "12".into())]);
/// builder.exit(3500, 7, 0, "vfs_write", Some("Ok(12)".into()));
/// let timeline = builder.finish();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    timeline: Timeline,
    /// The calls in the order of their entries; see [`Draft::order`].
    drafts: Vec<Draft>,
    tasks: BTreeMap<u32, State>,
    /// For each processor: the task that is in a call there, and since when.
    running: BTreeMap<u32, (u32, u64)>,
    /// Handed over by [`Builder::run`].
    runs: Vec<Run>,
    records: i64,
    gaps: u64,
    latest: u64,
}

#[derive(Clone, Debug)]
struct Draft {
    call: Call,
    /// Sorts calls by entry. Entries that were before all records have negative numbers.
    order: i64,
    /// [`State::outer`] at its entry: calls that are known by then to hold it.
    outer: u32,
}

/// What is known of a task.
#[derive(Clone, Debug)]
struct State {
    first: u64,
    last: u64,
    /// Indices of open calls, outermost first.
    open: Vec<usize>,
    /// Returns whose entries were before the first record.
    outer: u32,
    /// [`Builder::gaps`] at the first record.
    gaps: u64,
    /// Calls of [`Builder::call`] are among its calls, in the order of their returns.
    whole: bool,
}

impl Builder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Names a task. The last name counts.
    pub fn task(&mut self, tid: u32, pid: u32, name: &str) {
        let task = self.listed(tid);
        task.pid = pid;
        task.name = name.into();
    }

    /// The time of day at a time.
    pub fn wall_clock(&mut self, clock: WallClock) {
        self.timeline.wall_clock = Some(clock);
    }

    /// There are at least so many processors. Those of records count by themselves.
    pub fn cpus(&mut self, cpus: u32) {
        self.timeline.cpus = self.timeline.cpus.max(cpus);
    }

    /// A task enters a function.
    pub fn entry(
        &mut self,
        time: u64,
        tid: u32,
        cpu: u32,
        function: &str,
        arguments: Vec<(String, String)>,
    ) {
        let time = self.record(time, tid, cpu);
        let index = self.drafts.len();
        let (order, end) = (self.records, time);
        let state = self.state(tid, time);
        let (depth, outer) = (state.open.len() as u32, state.outer);
        state.open.push(index);
        self.drafts.push(Draft {
            call: Call {
                tid,
                cpu_at_entry: Some(cpu),
                cpu_at_return: None,
                function: function.into(),
                begin: time,
                end,
                seen: Seen::Open,
                arguments,
                result: None,
                depth,
            },
            order,
            outer,
        });
        self.place(time, tid, cpu);
    }

    /// A task returns from a function.
    pub fn exit(&mut self, time: u64, tid: u32, cpu: u32, function: &str, result: Option<String>) {
        let before = self.tasks.get(&tid).map(|state| state.last);
        let time = self.record(time, tid, cpu);
        let (gaps, order) = (self.gaps, self.records);
        let Self { tasks, drafts, .. } = self;
        let state = tasks.entry(tid).or_insert_with(|| State::new(time, gaps));
        let of_function = |&&index: &&usize| drafts[index].call.function == function;
        if let Some(&index) = state.open.iter().rev().find(of_function) {
            while let Some(inner) = state.open.pop() {
                let call = &mut drafts[inner].call;
                call.end = time;
                if inner == index {
                    call.seen = Seen::Whole;
                    call.cpu_at_return = Some(cpu);
                    call.result = result;
                    break;
                }
                call.seen = Seen::EntryOnly;
            }
        } else {
            let mut call = Call {
                tid,
                cpu_at_entry: None,
                cpu_at_return: Some(cpu),
                function: function.into(),
                begin: before.unwrap_or(time),
                end: time,
                seen: Seen::ReturnOnly,
                arguments: Vec::new(),
                result,
                depth: state.open.len() as u32,
            };
            let holds_all =
                state.open.is_empty() && state.gaps == gaps && state.outer < OUTER_CALLS;
            let (order, outer) = if holds_all {
                call.begin = state.first;
                state.outer += 1;
                (-i64::from(state.outer), state.outer)
            } else {
                (order, state.outer)
            };
            drafts.push(Draft { call, order, outer });
        }
        self.place(time, tid, cpu);
    }

    /// A whole call from one record that was made at its return. Calls are handed over in the order
    /// of their returns. `call.depth` is found by the builder.
    pub fn call(&mut self, call: Call) {
        let cpu = call.cpu_at_return.or(call.cpu_at_entry).unwrap_or(0);
        let end = self.record(call.end, call.tid, cpu);
        let order = self.records;
        let state = self.state(call.tid, call.begin.min(end));
        state.whole = true;
        let (outer, begin) = (state.outer, call.begin.min(end));
        let call = Call { begin, end, ..call };
        self.drafts.push(Draft { call, order, outer });
    }

    /// Something that takes no time.
    pub fn instant(
        &mut self,
        time: u64,
        tid: u32,
        cpu: u32,
        name: &str,
        arguments: Vec<(String, String)>,
    ) {
        let time = self.record(time, tid, cpu);
        self.timeline.instants.push(Instant {
            time,
            tid,
            cpu,
            name: name.into(),
            arguments,
        });
        self.place(time, tid, cpu);
    }

    /// A task was on a processor. Where this is called at all, the runs are these; otherwise they
    /// are derived: a task is on the processor of its last record while it is in a call and no
    /// other task has a record there.
    pub fn run(&mut self, run: Run) {
        self.cpus(run.cpu.saturating_add(1));
        self.latest = self.latest.max(run.end);
        self.runs.push(run);
    }

    /// A counter has a value.
    pub fn counter(&mut self, time: u64, name: &str, unit: &str, value: f64) {
        self.latest = self.latest.max(time);
        let counters = &mut self.timeline.counters;
        let found = counters.iter().position(|counter| counter.name == name);
        let index = found.unwrap_or_else(|| {
            counters.push(Counter {
                name: name.into(),
                unit: unit.into(),
                samples: Vec::new(),
            });
            counters.len() - 1
        });
        counters[index].samples.push((time, value));
    }

    /// Records were lost between those before and those after.
    pub fn gap(&mut self, reason: &str, records: u64) {
        self.gaps += 1;
        self.lost(reason, records);
    }

    /// Records were lost at an unknown place. An overwritten ring is such a case.
    pub fn lost(&mut self, reason: &str, records: u64) {
        let lost = &mut self.timeline.lost;
        match lost.iter_mut().find(|(known, _)| known == reason) {
            Some((_, sum)) => *sum = sum.saturating_add(records),
            None => lost.push((reason.into(), records)),
        }
    }

    /// The recording has ended.
    pub fn finish(mut self) -> Timeline {
        for state in self.tasks.values() {
            for &index in &state.open {
                self.drafts[index].call.end = self.latest.max(self.drafts[index].call.begin);
            }
        }
        let left = std::mem::take(&mut self.running);
        for (cpu, (tid, begin)) in left {
            let end = self.latest;
            self.timeline.runs.push(Run {
                cpu,
                tid,
                begin,
                end,
            });
        }
        if !self.runs.is_empty() {
            self.timeline.runs = std::mem::take(&mut self.runs);
        }
        self.timeline.runs.sort_by_key(|run| (run.cpu, run.begin));
        for draft in &mut self.drafts {
            if let Some(state) = self.tasks.get(&draft.call.tid) {
                draft.call.depth += state.outer - draft.outer;
            }
        }
        self.drafts.sort_by_key(|draft| draft.order);
        if self.tasks.values().any(|state| state.whole) {
            self.nest();
        }
        for tid in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.listed(tid);
        }
        self.timeline.tasks.sort_by_key(|task| task.tid);
        for counter in &mut self.timeline.counters {
            counter.samples.sort_by_key(|&(time, _)| time);
        }
        self.timeline.calls = self.drafts.into_iter().map(|draft| draft.call).collect();
        self.timeline
    }

    /// Orders the calls of tasks with calls of [`Builder::call`] by their times.
    fn nest(&mut self) {
        let whole = |draft: &Draft| self.tasks[&draft.call.tid].whole;
        let (mut drafts, others): (Vec<_>, Vec<_>) = self.drafts.drain(..).partition(whole);
        // If two calls have the same times, the outer one returns last. If they took no time, their
        // order is not known.
        drafts.sort_by_key(|draft| {
            let (call, order) = (&draft.call, draft.order);
            let order = if call.begin == call.end {
                order
            } else {
                -order
            };
            (call.tid, call.begin, u64::MAX - call.end, order)
        });
        let mut callers: Vec<(u32, u64, i64)> = Vec::new();
        for Draft { call, order, .. } in &mut drafts {
            while let Some(&(tid, end, caller_order)) = callers.last() {
                // A call that begins where another one ends is in it if it returned earlier.
                let inside = call.begin < end || (call.end <= end && *order < caller_order);
                if tid == call.tid && inside {
                    break;
                }
                callers.pop();
            }
            if let Some(&(_, end, _)) = callers.last()
                && call.end > end
            {
                call.end = end;
                self.timeline.moved_times += 1;
            }
            call.depth = callers.len() as u32;
            callers.push((call.tid, call.end, *order));
        }
        self.drafts = others;
        self.drafts.extend(drafts);
    }

    /// Takes in a record, and returns its time by BUILDER-1.
    fn record(&mut self, time: u64, tid: u32, cpu: u32) -> u64 {
        self.records += 1;
        self.cpus(cpu.saturating_add(1));
        let last = self.tasks.get(&tid).map_or(time, |state| state.last);
        if time < last {
            self.timeline.moved_times += 1;
        }
        let time = time.max(last);
        self.state(tid, time).last = time;
        self.latest = self.latest.max(time);
        time
    }

    fn state(&mut self, tid: u32, time: u64) -> &mut State {
        let gaps = self.gaps;
        let new = || State::new(time, gaps);
        self.tasks.entry(tid).or_insert_with(new)
    }

    fn listed(&mut self, tid: u32) -> &mut Task {
        let tasks = &mut self.timeline.tasks;
        let found = tasks.iter().position(|task| task.tid == tid);
        let index = found.unwrap_or_else(|| {
            tasks.push(Task {
                tid,
                pid: tid,
                name: String::new(),
            });
            tasks.len() - 1
        });
        &mut tasks[index]
    }

    /// Notes where a task is after a record.
    fn place(&mut self, time: u64, tid: u32, cpu: u32) {
        let in_call = !self.tasks[&tid].open.is_empty();
        let here = self.running.get(&cpu).map(|&(tid, _)| tid);
        let moved = |(&other, &(running, _)): (&u32, &(u32, u64))| {
            (other != cpu && running == tid).then_some(other)
        };
        let elsewhere = self.running.iter().find_map(moved);
        let ends_here = here.is_some_and(|running| running != tid || !in_call);
        for ended in elsewhere.into_iter().chain(ends_here.then_some(cpu)) {
            if let Some((tid, begin)) = self.running.remove(&ended) {
                let (cpu, end) = (ended, time.max(begin));
                self.timeline.runs.push(Run {
                    cpu,
                    tid,
                    begin,
                    end,
                });
            }
        }
        if in_call {
            self.running.entry(cpu).or_insert((tid, time));
        }
    }
}

impl State {
    fn new(time: u64, gaps: u64) -> Self {
        Self {
            first: time,
            last: time,
            open: Vec::new(),
            outer: 0,
            gaps,
            whole: false,
        }
    }
}

#[cfg(test)]
mod tests {
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
        let whole = |function: &str, begin, end| Call {
            tid: 1,
            cpu_at_entry: Some(0),
            cpu_at_return: Some(0),
            function: function.into(),
            begin,
            end,
            seen: Seen::Whole,
            arguments: Vec::new(),
            result: None,
            depth: 9,
        };
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
        let whole = |function: &str, begin, end| Call {
            tid: 1,
            cpu_at_entry: Some(0),
            cpu_at_return: Some(1),
            function: function.into(),
            begin,
            end,
            seen: Seen::Whole,
            arguments: Vec::new(),
            result: None,
            depth: 0,
        };
        builder.call(whole("inner", 20, 100));
        builder.call(whole("outer", 10, 90));
        let timeline = builder.finish();
        assert_eq!(
            shown(&timeline),
            ["outer 10..100 Whole", " inner 20..100 Whole"]
        );
        check_nesting(&timeline);
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
        let run = |cpu, tid, begin, end| Run {
            cpu,
            tid,
            begin,
            end,
        };
        assert_eq!(
            timeline.runs,
            [run(0, 1, 10, 20), run(0, 2, 20, 30), run(1, 1, 40, 50),]
        );
        assert_eq!(timeline.cpus, 2);
    }

    /// Runs that are handed over stand for those that records would tell.
    #[test]
    fn runs_that_are_known_are_in_the_order_of_processors_and_times() {
        let run = |cpu, tid, begin, end| Run {
            cpu,
            tid,
            begin,
            end,
        };
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
        let call = |function: &str, begin, end| Call {
            tid: 1,
            cpu_at_entry: None,
            cpu_at_return: Some(0),
            function: function.into(),
            begin,
            end,
            seen: Seen::Whole,
            arguments: Vec::new(),
            result: None,
            depth: 9,
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
}
