//! The neutral model of a recording: what all pictures are drawn from.
//!
//! Times are nanoseconds of one clock. Functions and tasks carry their names, so that a picture
//! needs nothing else.
//!
//! TIMELINE-1. In [`Timeline::calls`] the calls of one task are in the order of their entries, so
//!     that a caller comes before its callees. Calls of different tasks may be mixed.
//! TIMELINE-2. Calls of one task nest: a callee begins and ends within its caller, and
//!     [`Call::depth`] counts the callers. [`crate::Builder`] makes such calls from any records.
//!     A picture of calls that do not nest is wrong in places; no writer panics on them.

use std::{borrow::Cow, collections::BTreeMap};

/// All that happened, with its times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// How many processors there are.
    pub cpus: u32,
    pub tasks: Vec<Task>,
    pub calls: Vec<Call>,
    /// Which task was on which processor. They do not overlap on a processor.
    pub runs: Vec<Run>,
    pub instants: Vec<Instant>,
    pub counters: Vec<Counter>,
    /// How many records are missing, by reason.
    pub lost: Vec<(String, u64)>,
    /// Times that were before an earlier record of the same task and were moved to it. The clocks
    /// of processors may differ by a little.
    pub moved_times: u64,
    /// The time of day that belongs to a time.
    pub wall_clock: Option<WallClock>,
}

/// The idle task of processor 0 in a timeline; those of the others follow. In records all of them
/// have the number 0, but each has calls of its own.
pub const IDLE: u32 = 1 << 31;

/// The number that a task of a timeline has in the kernel.
pub fn number_of(tid: u32) -> u32 {
    match tid {
        IDLE.. => 0,
        tid => tid,
    }
}

/// A task of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its number, or from [`IDLE`] on.
    pub tid: u32,
    /// The process that it belongs to.
    pub pid: u32,
    /// Empty if it is not known.
    pub name: String,
}

/// One call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub tid: u32,
    /// The processor at the entry, and at the return. None if that end was not recorded.
    pub cpu_at_entry: Option<u32>,
    pub cpu_at_return: Option<u32>,
    pub function: String,
    pub begin: u64,
    /// Not before `begin`.
    pub end: u64,
    /// Which of those two times are known.
    pub seen: Seen,
    /// Name and value, in the order of the source.
    pub arguments: Vec<(String, String)>,
    pub result: Option<String>,
    /// How many calls of the same task it is in.
    pub depth: u32,
}

/// The part of a call that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Its entry and its return.
    Whole,
    /// Its return only. `begin` is the first record of the task, or the last one before a gap.
    ReturnOnly,
    /// Its entry, and that its caller has returned. `end` is that time.
    EntryOnly,
    /// Its entry. It had not returned when the recording ended, which is `end`.
    Open,
}

/// A task on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub cpu: u32,
    pub tid: u32,
    pub begin: u64,
    pub end: u64,
}

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instant {
    pub time: u64,
    pub tid: u32,
    pub cpu: u32,
    pub name: String,
    pub arguments: Vec<(String, String)>,
}

/// A number that changes over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    pub name: String,
    /// For example `bytes`. May be empty.
    pub unit: String,
    /// Time and value, in the order of time.
    pub samples: Vec<(u64, f64)>,
}

/// A time, and the time of day then in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    pub time: u64,
    pub since_1970: u64,
}

/// Call stacks, each with a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    pub title: String,
    pub unit: Unit,
    /// Frames, outermost first, and the number. The same stack may be there several times.
    pub rows: Vec<(Vec<String>, u64)>,
}

/// The unit of a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Things, in the plural: `hits`.
    Count(String),
    #[default]
    Nanoseconds,
}

/// How often values fell into ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    pub title: String,
    /// In the order of the ranges. Empty ranges between others have a row, too.
    pub rows: Vec<HistogramRow>,
}

/// A range and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramRow {
    /// Its text, for example `[4, 8)`.
    pub label: String,
    /// The first value of the range, and the first one after it.
    pub low: i128,
    pub high: i128,
    pub count: u64,
}

/// How often values fell into ranges, over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatMap {
    pub title: String,
    /// The time at which the first column begins, and how long a column is.
    pub begin: u64,
    pub column_nanoseconds: u64,
    /// The ranges' labels, smallest values first.
    pub rows: Vec<String>,
    /// For each column: for each row.
    pub counts: Vec<Vec<u64>>,
}

/// What became of the hits of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Its name as the user wrote it, for example `kprobe:vfs_write`.
    pub probe: String,
    pub hits: u64,
    /// Hits at which the program did not run.
    pub missed: u64,
}

impl Call {
    /// How long it took, as far as it was seen.
    pub fn nanoseconds(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

impl Timeline {
    /// The first and the last time of anything in it. Zeros if it is empty.
    pub fn span(&self) -> (u64, u64) {
        let calls = self.calls.iter().flat_map(|call| [call.begin, call.end]);
        let runs = self.runs.iter().flat_map(|run| [run.begin, run.end]);
        let instants = self.instants.iter().map(|instant| instant.time);
        let samples = self.counters.iter().flat_map(|counter| &counter.samples);
        let all = calls
            .chain(runs)
            .chain(instants)
            .chain(samples.map(|&(time, _)| time));
        all.fold(None, |span, time| match span {
            None => Some((time, time)),
            Some((first, last)) => Some((time.min(first), time.max(last))),
        })
        .unwrap_or_default()
    }

    /// The name of a task; its number if the name is not known.
    pub fn task_name(&self, tid: u32) -> Cow<'_, str> {
        match self.tasks.iter().find(|task| task.tid == tid) {
            Some(task) if !task.name.is_empty() => Cow::Borrowed(&task.name),
            _ => Cow::Owned(format!("task {}", number_of(tid))),
        }
    }

    /// The calls of each task, in the order of [`Timeline::tasks`]; tasks that are not listed
    /// follow. Tasks without a call are left out.
    pub fn calls_by_task(&self) -> Vec<(u32, Vec<&Call>)> {
        let mut by_task: BTreeMap<u32, Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            by_task.entry(call.tid).or_default().push(call);
        }
        let mut sorted = Vec::with_capacity(by_task.len());
        for task in &self.tasks {
            sorted.extend(by_task.remove_entry(&task.tid));
        }
        sorted.extend(by_task);
        sorted
    }

    /// For each call of a task, the time that it spent outside the calls that it made.
    pub(crate) fn own_nanoseconds(calls: &[&Call]) -> Vec<u64> {
        let mut own: Vec<u64> = calls.iter().map(|call| call.nanoseconds()).collect();
        let mut callers: Vec<usize> = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            callers.truncate(call.depth as usize);
            if let Some(&caller) = callers.last() {
                own[caller] = own[caller].saturating_sub(call.nanoseconds());
            }
            callers.push(index);
        }
        own
    }

    /// The calls as stacks, each with the time that was spent in its innermost function itself. Of
    /// a call that has not returned nobody knows that time: it may be the way to a task's end.
    pub fn stacks(&self, title: &str) -> Stacks {
        let mut rows: BTreeMap<Vec<&str>, u64> = BTreeMap::new();
        for (_, calls) in self.calls_by_task() {
            let own = Self::own_nanoseconds(&calls);
            let mut path: Vec<&str> = Vec::new();
            for (call, own) in calls.iter().zip(own) {
                path.truncate(call.depth as usize);
                path.push(&call.function);
                if own > 0 && call.seen != Seen::Open {
                    *rows.entry(path.clone()).or_default() += own;
                }
            }
        }
        let owned =
            |(path, own): (Vec<&str>, u64)| (path.into_iter().map(str::to_owned).collect(), own);
        Stacks {
            title: title.into(),
            unit: Unit::Nanoseconds,
            rows: rows.into_iter().map(owned).collect(),
        }
    }

    /// How long the calls of a function took, as a histogram.
    pub fn latencies(&self, function: &str) -> Histogram {
        let title = format!("{function}: nanoseconds");
        Histogram::powers_of_two(&title, self.whole(function).map(|call| call.nanoseconds()))
    }

    /// How long the calls of a function took, over time.
    pub fn latency_map(&self, function: &str, columns: usize) -> HeatMap {
        let points = self.whole(function);
        HeatMap::powers_of_two(
            &format!("{function}: nanoseconds over time"),
            &points
                .map(|call| (call.end, call.nanoseconds()))
                .collect::<Vec<_>>(),
            columns,
        )
    }

    /// [`Timeline::latency_map`] of the functions with the most time, the longest first. If there
    /// are several, a map of all calls stands in front.
    pub fn latency_maps(&self, columns: usize, most: usize) -> Vec<HeatMap> {
        let functions = self.functions_by_time();
        let shown = functions.iter().take(most);
        let mut maps: Vec<HeatMap> = shown
            .map(|function| self.latency_map(function, columns))
            .collect();
        if functions.len() > 1 {
            let whole = self.calls.iter().filter(|call| call.seen == Seen::Whole);
            let points: Vec<_> = whole.map(|call| (call.end, call.nanoseconds())).collect();
            let title = "All calls: nanoseconds over time";
            maps.insert(0, HeatMap::powers_of_two(title, &points, columns));
        }
        maps
    }

    /// [`Timeline::latencies`] of the functions with the most time, the longest first.
    pub fn all_latencies(&self, most: usize) -> Vec<Histogram> {
        let functions = self.functions_by_time();
        let shown = functions.iter().take(most);
        shown.map(|function| self.latencies(function)).collect()
    }

    /// The functions that have whole calls, by the time of these.
    fn functions_by_time(&self) -> Vec<&str> {
        let mut times: BTreeMap<&str, u64> = BTreeMap::new();
        for call in self.calls.iter().filter(|call| call.seen == Seen::Whole) {
            let time = times.entry(&call.function).or_default();
            *time = time.saturating_add(call.nanoseconds());
        }
        let mut functions: Vec<(&str, u64)> = times.into_iter().collect();
        functions.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        functions
            .into_iter()
            .map(|(function, _)| function)
            .collect()
    }

    /// The calls of a function whose entry and return are known.
    fn whole<'a>(&'a self, function: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls
            .iter()
            .filter(move |call| call.seen == Seen::Whole && call.function == function)
    }
}

impl Stacks {
    /// Stacks in the form that other tools read and write: a line for each, the frames with `;`
    /// between them, a space, and the number. Lines of another form are left out.
    pub fn from_folded(title: &str, unit: Unit, text: &str) -> Self {
        let row = |line: &str| {
            let (frames, value) = line.trim().rsplit_once(' ')?;
            let frames = frames.split(';').map(str::to_owned);
            Some((frames.collect(), value.parse().ok()?))
        };
        Self {
            title: title.into(),
            unit,
            rows: text.lines().filter_map(row).collect(),
        }
    }

    /// The form of [`Stacks::from_folded`]. A `;` in a name, as in `[u8; 4]`, becomes `:`.
    pub fn folded(&self) -> String {
        let mut text = String::new();
        for (frames, value) in &self.rows {
            let frames: Vec<_> = frames.iter().map(|frame| frame.replace(';', ":")).collect();
            text += &format!("{} {value}\n", frames.join(";"));
        }
        text
    }
}

/// The number of the power-of-two range that holds a value: 0 holds 0, n holds 2^(n-1) to 2^n - 1.
fn range_of(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}

fn range(number: usize) -> (i128, i128) {
    match number {
        0 => (0, 1),
        number => (1 << (number - 1), 1 << number),
    }
}

/// `[4K, 8K)`, `[0]`.
fn range_label(number: usize) -> String {
    fn short(value: i128) -> String {
        let mut value = value;
        for letter in ["", "K", "M", "G", "T", "P"] {
            if value < 1024 || value % 1024 != 0 {
                return format!("{value}{letter}");
            }
            value /= 1024;
        }
        format!("{value}E")
    }
    match (number, range(number)) {
        (0 | 1, (low, _)) => format!("[{low}]"),
        (_, (low, high)) => format!("[{}, {})", short(low), short(high)),
    }
}

impl Histogram {
    /// A histogram with a range for each power of two.
    pub fn powers_of_two(title: &str, values: impl Iterator<Item = u64>) -> Self {
        let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
        for value in values {
            *counts.entry(range_of(value)).or_default() += 1;
        }
        let first = counts.first_key_value().map_or(0, |(&number, _)| number);
        let behind = counts.last_key_value().map_or(0, |(&number, _)| number + 1);
        let row = |number| HistogramRow {
            label: range_label(number),
            low: range(number).0,
            high: range(number).1,
            count: counts.get(&number).copied().unwrap_or(0),
        };
        Self {
            title: title.into(),
            rows: (first..behind).map(row).collect(),
        }
    }

    /// All counts together.
    pub fn total(&self) -> u64 {
        self.rows.iter().map(|row| row.count).sum()
    }
}

impl HeatMap {
    /// Points of time and value, in so many columns of equal length and a row for each power of
    /// two.
    pub fn powers_of_two(title: &str, points: &[(u64, u64)], columns: usize) -> Self {
        let times = || points.iter().map(|&(time, _)| time);
        let ranges = || points.iter().map(|&(_, value)| range_of(value));
        let (Some(begin), Some(last), Some(first_range), Some(last_range), 1..) = (
            times().min(),
            times().max(),
            ranges().min(),
            ranges().max(),
            columns,
        ) else {
            return Self {
                title: title.into(),
                ..Self::default()
            };
        };
        // The last time is in the last column, so the columns are longer than the time by 1.
        let column_nanoseconds = ((last - begin) / columns as u64).saturating_add(1);
        let column_of = |time: u64| ((time - begin) / column_nanoseconds) as usize;
        let rows: Vec<String> = (first_range..=last_range).map(range_label).collect();
        let mut counts = vec![vec![0; rows.len()]; column_of(last) + 1];
        for &(time, value) in points {
            counts[column_of(time)][range_of(value) - first_range] += 1;
        }
        Self {
            title: title.into(),
            begin,
            column_nanoseconds,
            rows,
            counts,
        }
    }
}

#[cfg(test)]
impl Call {
    /// A call of task 1 on processor 0, for tests.
    pub(crate) fn whole(function: &str, begin: u64, end: u64, depth: u32) -> Self {
        Self {
            tid: 1,
            cpu_at_entry: Some(0),
            cpu_at_return: Some(0),
            function: function.into(),
            begin,
            end,
            seen: Seen::Whole,
            arguments: Vec::new(),
            result: None,
            depth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_maps_are_those_of_all_calls_and_of_the_functions_with_the_most_time() {
        let mut timeline = Timeline {
            calls: vec![
                Call::whole("short", 100, 101, 0),
                Call::whole("long", 200, 900, 0),
                Call::whole("middle", 1000, 1040, 0),
                Call::whole("middle", 1050, 1090, 0),
            ],
            ..Timeline::default()
        };
        timeline.calls[0].seen = Seen::Open;
        let maps = timeline.latency_maps(10, 1);
        let titles: Vec<_> = maps.iter().map(|map| map.title.as_str()).collect();
        let all = "All calls: nanoseconds over time";
        assert_eq!(titles, [all, "long: nanoseconds over time"]);
        let total = |map: &HeatMap| map.counts.iter().flatten().sum::<u64>();
        assert_eq!(maps.iter().map(total).collect::<Vec<_>>(), [3, 1]);
        let histograms = timeline.all_latencies(9);
        let totals: Vec<_> = histograms.iter().map(Histogram::total).collect();
        assert_eq!(totals, [1, 2]);
        // By time, not by name. A call that is not whole has no known time.
        timeline.calls[2].seen = Seen::ReturnOnly;
        timeline.calls.push(Call::whole("a", 2000, 2010, 0));
        let histograms = timeline.all_latencies(9);
        let found: Vec<_> = histograms
            .iter()
            .map(|histogram| (&*histogram.title, histogram.total()))
            .collect();
        let titles = ["long", "middle", "a"].map(|name| format!("{name}: nanoseconds"));
        assert_eq!(
            found,
            [(&*titles[0], 1), (&*titles[1], 1), (&*titles[2], 1)]
        );
        timeline.calls.pop();
        // One function needs no map of all.
        timeline.calls.truncate(2);
        assert_eq!(timeline.latency_maps(10, 9).len(), 1);
    }

    #[test]
    fn a_stack_has_the_time_outside_of_its_callees() {
        let timeline = Timeline {
            calls: vec![
                Call::whole("a", 100, 200, 0),
                Call::whole("b", 110, 140, 1),
                Call::whole("c", 120, 130, 2),
                Call::whole("b", 150, 160, 1),
                // The last way of the task, and a call on it.
                Call {
                    seen: Seen::Open,
                    ..Call::whole("exit", 300, 900, 0)
                },
                Call::whole("close", 310, 315, 1),
            ],
            ..Timeline::default()
        };
        let path = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            timeline.stacks("").rows,
            [
                (path(&["a"]), 60),
                (path(&["a", "b"]), 30),
                (path(&["a", "b", "c"]), 10),
                (path(&["exit", "close"]), 5),
            ]
        );
    }

    #[test]
    fn folded_stacks_are_read_back() {
        let text = "main;<T as X>::f 3\nmain;f::<[u8: 4]> 18446744073709551615\n";
        let stacks = Stacks::from_folded("", Unit::Nanoseconds, text);
        assert_eq!(stacks.rows[1].0, ["main", "f::<[u8: 4]>"]);
        assert_eq!(stacks.folded(), text);
        let others = Stacks::from_folded("", Unit::Nanoseconds, "no number\n\nx\n");
        assert_eq!(others.rows, []);
    }

    #[test]
    fn a_histogram_has_rows_between_its_smallest_and_its_largest_value() {
        let values = [0, 1, 5, 5, 7, 8, 4096];
        let histogram = Histogram::powers_of_two("", values.into_iter());
        let rows: Vec<_> = histogram
            .rows
            .iter()
            .map(|row| (row.label.as_str(), row.count))
            .collect();
        assert_eq!(
            rows[..5],
            [
                ("[0]", 1),
                ("[1]", 1),
                ("[2, 4)", 0),
                ("[4, 8)", 3),
                ("[8, 16)", 1),
            ]
        );
        assert_eq!(rows.last(), Some(&("[4K, 8K)", 1)));
        assert_eq!(histogram.total(), values.len() as u64);
        let largest = Histogram::powers_of_two("", [u64::MAX].into_iter());
        assert_eq!(largest.rows[0].label, "[8E, 16E)");
        assert_eq!(largest.rows[0].high, 1 << 64);
    }

    #[test]
    fn a_heat_map_holds_every_point_once() {
        let points = [(1000, 3), (1001, 4), (1009, 4), (1010, 900)];
        let map = HeatMap::powers_of_two("", &points, 5);
        assert_eq!(map.column_nanoseconds, 3);
        assert_eq!(map.counts.len(), 4);
        assert_eq!(map.counts[0][..2], [1, 1]);
        assert_eq!(map.counts[3][1], 1);
        assert_eq!(map.counts[3].last(), Some(&1));
        assert_eq!(map.counts.iter().flatten().sum::<u64>(), 4);
        assert_eq!(HeatMap::powers_of_two("", &[], 5).counts.len(), 0);
        assert_eq!(
            HeatMap::powers_of_two("", &[(0, 0), (u64::MAX, 1)], 2)
                .counts
                .len(),
            2
        );
    }
}
