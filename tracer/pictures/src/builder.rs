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
//! All idle tasks have the number 0, and each processor has one. A record of number 0 is therefore
//! one of its processor's own task ([`IDLE`]).
//!
//! BUILDER-1. The times of a task never decrease: a time before the last record of its task is
//!     moved to that record. So calls nest ([`crate::model`], TIMELINE-2), although the clocks of
//!     two processors differ.

use std::collections::BTreeMap;

use crate::model::{Call, Counter, IDLE, Instant, Run, Seen, Task, Timeline, WallClock};

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
    /// The name of number 0, if it is known.
    idle: String,
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
        if tid == 0 {
            self.idle = name.into();
            return;
        }
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
        let tid = own(tid, cpu);
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
        let tid = own(tid, cpu);
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
        let tid = own(call.tid, cpu);
        let end = self.record(call.end, tid, cpu);
        let order = self.records;
        let state = self.state(tid, call.begin.min(end));
        state.whole = true;
        let (outer, begin) = (state.outer, call.begin.min(end));
        let call = Call {
            tid,
            begin,
            end,
            ..call
        };
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
        let tid = own(tid, cpu);
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
        let tid = own(run.tid, run.cpu);
        self.runs.push(Run { tid, ..run });
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
            match tid.checked_sub(IDLE) {
                None => _ = self.listed(tid),
                Some(cpu) => {
                    let name = match &*self.idle {
                        "" => "task 0",
                        name => name,
                    };
                    let name = format!("{name} on CPU {cpu}");
                    *self.listed(tid) = Task { tid, pid: 0, name };
                }
            }
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

/// The number in the timeline of a task that has `tid` in a record.
fn own(tid: u32, cpu: u32) -> u32 {
    match tid {
        0 => IDLE.saturating_add(cpu),
        tid => tid,
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
mod tests;
