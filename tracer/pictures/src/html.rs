//! One page of HTML with all that a run found out. It needs no network.
//!
//! Text, tables, histograms, heat maps and flame graphs are in the page as they are shown, so they
//! are there without scripts, too. The calls are data: a block of JSON, from which a script draws
//! the timeline and counts the calls of each function. The script draws what is in view and nothing
//! else, so a recording of 100,000 calls can be moved with the mouse.
//!
//! ```text
//!   {"texts": [..],                      names, arguments and results, each once
//!    "tasks": [[tid, name], ..],
//!    "calls": {"task": [..], "begin": [..], "length": [..], "depth": [..], ..}}
//! ```
//!
//! PAGE-1. Columns have one number for each call, in the order of [`Timeline::calls_by_task`].
//!     Texts are numbers of `texts`. `begin` is the difference to the entry before in the same
//!     task: small numbers make a small page.
//! PAGE-2. Colours come from variables that know the light and the dark form, so that the reader's
//!     choice holds for pictures, too.

use std::{
    collections::HashMap,
    fmt::{Display, Write as _},
};

use crate::{
    escape::{Json, Xml},
    flame,
    model::{Books, Call, HeatMap, Histogram, Seen, Stacks, Timeline, number_of},
    units::{duration, grouped, percent},
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The content of a page. Parts that are empty are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    pub title: String,
    /// The text of the program.
    pub program: String,
    /// Facts about the run: name and value, for example `workload` and `ls /`.
    pub facts: Vec<(String, String)>,
    pub books: Vec<Books>,
    /// What the numbers and texts of the page lack, a sentence each. Records that are missing from
    /// the timeline are told by that.
    pub warnings: Vec<String>,
    /// The text that the program printed.
    pub output: String,
    pub timeline: Option<Timeline>,
    pub stacks: Vec<Stacks>,
    pub histograms: Vec<Histogram>,
    pub heat_maps: Vec<HeatMap>,
}

/// The page as text.
pub fn page(page: &Page) -> String {
    let timeline = page.timeline.as_ref();
    let timeline = timeline.filter(|timeline| **timeline != Timeline::default());
    let mut sections: Vec<(&str, &str, String)> = vec![("run", "Run", run(page))];
    if let Some(timeline) = timeline {
        sections.push(("timeline", "Timeline", timeline_section(timeline)));
        let functions = "<div class=\"scroll\"><table id=\"functions\"></table></div>";
        sections.push(("calls", "Functions", functions.into()));
    }
    let stacks = page.stacks.iter().map(|stacks| {
        let svg = flame::svg(stacks, flame::Flame::default());
        format!("<div class=\"picture\">{svg}</div>")
    });
    let groups: [(&str, &str, String); 3] = [
        ("flame", "Flame graph", stacks.collect()),
        (
            "histograms",
            "Histograms",
            grid(page.histograms.iter().map(histogram)),
        ),
        (
            "heat",
            "Heat maps",
            page.heat_maps.iter().map(heat_map).collect(),
        ),
    ];
    sections.extend(groups.into_iter().filter(|(.., text)| !text.is_empty()));
    if !page.output.is_empty() {
        let output = format!("<pre>{}</pre>", Xml(&page.output));
        sections.push(("output", "Output", output));
    }
    let mut html = String::new();
    _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1><nav>",
        title = Xml(&page.title),
    );
    for (id, name, _) in &sections {
        _ = write!(html, "<a href=\"#{id}\">{name}</a>");
    }
    html.push_str(
        "</nav><button id=\"theme\" title=\"Light or dark\">◐</button></header>\n<main>\n",
    );
    for (id, name, text) in &sections {
        _ = writeln!(
            html,
            "<section id=\"{id}\"><h2>{name}</h2>\n{text}</section>"
        );
    }
    html.push_str("</main>\n");
    if let Some(timeline) = timeline {
        let data = data(timeline);
        _ = writeln!(
            html,
            "<script type=\"application/json\" id=\"data\">{data}</script>"
        );
    }
    _ = write!(html, "<script>{SCRIPT}</script>\n</body>\n</html>\n");
    html
}

fn run(page: &Page) -> String {
    let mut html = String::new();
    if !page.program.is_empty() {
        _ = writeln!(
            html,
            "<pre class=\"program\">{}</pre>",
            Xml(page.program.trim_end())
        );
    }
    let mut facts = page.facts.clone();
    if let Some(timeline) = &page.timeline {
        let (begin, end) = timeline.span();
        facts.push(("recorded".into(), duration(end - begin)));
        facts.push(("calls".into(), grouped(timeline.calls.len() as u64)));
        facts.push(("tasks".into(), timeline.tasks.len().to_string()));
        facts.push(("processors".into(), timeline.cpus.to_string()));
    }
    if !facts.is_empty() {
        html.push_str("<dl>");
        for (name, value) in &facts {
            _ = write!(
                html,
                "<div><dt>{}</dt><dd>{}</dd></div>",
                Xml(name),
                Xml(value)
            );
        }
        html.push_str("</dl>\n");
    }
    let lost = page.timeline.iter().flat_map(|timeline| &timeline.lost);
    for (reason, records) in lost.filter(|(_, records)| *records > 0) {
        _ = writeln!(
            html,
            "<p class=\"warning\">{} records are missing from the timeline: {}</p>",
            grouped(*records),
            Xml(reason),
        );
    }
    for warning in &page.warnings {
        _ = writeln!(html, "<p class=\"warning\">{}</p>", Xml(warning));
    }
    if !page.books.is_empty() {
        html.push_str(&books(&page.books));
    }
    html
}

fn books(books: &[Books]) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table class=\"books\"><thead><tr><th>Probe</th><th>Hits</th>\
         <th>Missed</th></tr></thead><tbody>\n",
    );
    for one in books {
        _ = writeln!(
            html,
            "<tr><td><code>{}</code></td>{}{}</tr>",
            Xml(&one.probe),
            number(one.hits, false),
            number(one.missed, true),
        );
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn number(value: u64, bad: bool) -> String {
    let class = if bad && value > 0 {
        "number bad"
    } else {
        "number"
    };
    format!("<td class=\"{class}\">{}</td>", grouped(value))
}

fn grid(figures: impl Iterator<Item = String>) -> String {
    let figures: String = figures.collect();
    match figures.is_empty() {
        true => figures,
        false => format!("<div class=\"grid\">{figures}</div>"),
    }
}

fn histogram(histogram: &Histogram) -> String {
    let total = histogram.total();
    let most = histogram
        .rows
        .iter()
        .map(|row| row.count)
        .max()
        .unwrap_or(0)
        .max(1);
    let mut html = format!(
        "<figure class=\"histogram\"><figcaption>{}<small>{} values</small></figcaption>\
         <table><tbody>\n",
        Xml(&histogram.title),
        grouped(total),
    );
    for row in &histogram.rows {
        _ = writeln!(
            html,
            "<tr title=\"{}\"><th>{}</th><td class=\"number\">{}</td>\
             <td class=\"bar\"><i style=\"width:{:.1}%\"></i></td></tr>",
            percent(row.count, total),
            Xml(&row.label),
            grouped(row.count),
            row.count as f64 * 100.0 / most as f64,
        );
    }
    html.push_str("</tbody></table></figure>\n");
    html
}

/// The cells that have a count, each with a title. The colour goes with the logarithm, because one
/// slow call among thousands is what a reader looks for.
fn heat_map(map: &HeatMap) -> String {
    const LEFT: usize = 96;
    const WIDTH: usize = 1040;
    const CELL: usize = 20;
    let columns = map.counts.len().max(1);
    let height = map.rows.len() * CELL;
    let most = map.counts.iter().flatten().copied().max().unwrap_or(0);
    let strength = |count: u64| (count as f64).ln_1p() / (most.max(1) as f64).ln_1p();
    let total: u64 = map.counts.iter().flatten().sum();
    let mut html = format!(
        "<figure class=\"heat\"><figcaption>{}<small>{} values</small></figcaption>\n\
         <svg viewBox=\"0 0 {} {}\" role=\"img\">\n",
        Xml(&map.title),
        grouped(total),
        LEFT + WIDTH + 10,
        height + 46,
    );
    let wide = WIDTH as f64 / columns as f64;
    for (row, label) in map.rows.iter().enumerate() {
        let y = height - (row + 1) * CELL;
        _ = writeln!(
            html,
            "<text class=\"end\" x=\"{}\" y=\"{}\">{}</text>",
            LEFT - 8,
            y + 14,
            Xml(label),
        );
        for (column, counts) in map.counts.iter().enumerate() {
            let Some(&count @ 1..) = counts.get(row) else {
                continue;
            };
            let from = column as u64 * map.column_nanoseconds;
            let to = from.saturating_add(map.column_nanoseconds);
            _ = writeln!(
                html,
                "<rect x=\"{:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\" \
                 fill-opacity=\"{:.3}\"><title>{} of {} from {} to {}</title></rect>",
                LEFT as f64 + column as f64 * wide,
                (wide - 0.6).max(0.6),
                CELL - 1,
                0.12 + 0.88 * strength(count),
                grouped(count),
                Xml(label),
                duration(from),
                duration(to),
            );
        }
    }
    let length = map
        .column_nanoseconds
        .saturating_mul(map.counts.len() as u64);
    for quarter in 0..=4 {
        let class = ["start", "middle", "middle", "middle", "end"][quarter];
        _ = writeln!(
            html,
            "<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>",
            LEFT + WIDTH * quarter / 4,
            height + 18,
            duration((u128::from(length) * quarter as u128 / 4) as u64),
        );
    }
    // The legend.
    let mut legend = vec![1, most / 100, most / 10, most];
    legend.retain(|&count| count > 0);
    legend.dedup();
    for (index, &count) in legend.iter().enumerate() {
        let x = LEFT + index * 90;
        _ = writeln!(
            html,
            "<rect x=\"{x}\" y=\"{}\" width=\"16\" height=\"12\" fill-opacity=\"{:.3}\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            height + 30,
            0.12 + 0.88 * strength(count),
            x + 22,
            height + 41,
            grouped(count),
        );
    }
    html.push_str("</svg></figure>\n");
    html
}

fn timeline_section(timeline: &Timeline) -> String {
    let title = "Time in the traced functions, by call path";
    let mut html = String::from(
        "<div class=\"bar\"><input id=\"find\" placeholder=\"Find a function\"> \
         <span id=\"found\"></span> <span class=\"space\"></span> \
         <button id=\"in\" title=\"Zoom in\">+</button> \
         <button id=\"out\" title=\"Zoom out\">−</button> \
         <button id=\"fit\">All</button></div>\n\
         <div id=\"view\" tabindex=\"0\"><div id=\"tall\"><canvas id=\"canvas\"></canvas></div>\
         </div>\n\
         <p class=\"hint\">Drag to move. Ctrl and the wheel, or <kbd>W</kbd> and <kbd>S</kbd>, to \
         zoom; <kbd>A</kbd> and <kbd>D</kbd> to move. Click on a call for its values; double-click \
         to fill the view with it.</p>\n<div id=\"chosen\" hidden></div>\n\
         <noscript><p class=\"warning\">The timeline needs a browser that runs scripts.</p>\
         </noscript>\n",
    );
    let stacks = timeline.stacks(title);
    if !stacks.rows.is_empty() {
        let svg = flame::svg(&stacks, flame::Flame::default());
        _ = writeln!(html, "<div class=\"picture\">{svg}</div>");
    }
    html
}

/// Texts, each with a number.
#[derive(Default)]
struct Texts<'a> {
    numbers: HashMap<&'a str, usize>,
    list: Vec<&'a str>,
}

impl<'a> Texts<'a> {
    fn number(&mut self, text: &'a str) -> usize {
        let next = self.list.len();
        let number = *self.numbers.entry(text).or_insert(next);
        if number == next {
            self.list.push(text);
        }
        number
    }
}

/// Items with commas between them.
fn joined<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for item in items {
        if !text.is_empty() {
            text.push(',');
        }
        _ = write!(text, "{item}");
    }
    text
}

/// PAGE-1.
fn data(timeline: &Timeline) -> String {
    let (begin, end) = timeline.span();
    let mut texts = Texts::default();
    let groups = timeline.calls_by_task();
    let (positions, tasks) = tasks(timeline, &groups);
    let calls = calls(begin, &groups, &positions, &mut texts);
    let instants = instants(timeline, &positions, &mut texts);
    let runs = timeline.runs.iter().map(|run| {
        let from = run.begin.saturating_sub(begin);
        let length = run.end.saturating_sub(run.begin);
        format!("[{},{},{from},{length}]", run.cpu, positions[&run.tid])
    });
    let counters = timeline.counters.iter().map(|counter| {
        let samples = counter
            .samples
            .iter()
            .filter(|(_, value)| value.is_finite());
        let samples =
            samples.map(|&(time, value)| format!("[{},{value}]", time.saturating_sub(begin)));
        format!(
            "[{},{},[{}]]",
            Json(&counter.name),
            Json(&counter.unit),
            joined(samples)
        )
    });
    format!(
        "{{\"length\":{},\"cpus\":{},\"tasks\":[{}],\"runs\":[{}],\"instants\":[{}],\
         \"counters\":[{}],\"calls\":{{{}}},\"texts\":[{}]}}",
        end - begin,
        timeline.cpus,
        joined(tasks),
        joined(runs),
        joined(instants),
        joined(counters),
        joined(calls),
        joined(texts.list.iter().map(|text| Json(text))),
    )
}

/// The calls of a task, with its number.
type Group<'a> = (u32, Vec<&'a Call>);

/// The tasks, those with calls first, and the position of each by its number.
fn tasks(timeline: &Timeline, groups: &[Group]) -> (HashMap<u32, usize>, Vec<String>) {
    let mut tasks = Vec::new();
    let mut positions = HashMap::new();
    let instants = timeline.instants.iter().map(|instant| instant.tid);
    let runs = timeline.runs.iter().map(|run| run.tid);
    let tids = groups.iter().map(|&(tid, _)| tid);
    for tid in tids.chain(instants).chain(runs) {
        positions.entry(tid).or_insert_with(|| {
            let name = timeline.task_name(tid);
            tasks.push(format!("[{},{}]", number_of(tid), Json(&name)));
            tasks.len() - 1
        });
    }
    (positions, tasks)
}

/// The columns of the table of calls, each with its name. Times are counted from `begin` on.
fn calls<'a>(
    begin: u64,
    groups: &[Group<'a>],
    positions: &HashMap<u32, usize>,
    texts: &mut Texts<'a>,
) -> Vec<String> {
    let mut columns: [Vec<i64>; 9] = Default::default();
    let mut arguments = Vec::new();
    for (tid, calls) in groups {
        let mut before = begin;
        for call in calls {
            let text = |text: usize| text as i64;
            let cpu = |cpu: Option<u32>| cpu.map_or(-1, i64::from);
            let row = [
                positions[tid] as i64,
                call.begin.wrapping_sub(before) as i64,
                call.nanoseconds() as i64,
                i64::from(call.depth),
                text(texts.number(&call.function)),
                call.result
                    .as_deref()
                    .map_or(-1, |result| text(texts.number(result))),
                cpu(call.cpu_at_entry),
                cpu(call.cpu_at_return),
                match call.seen {
                    Seen::Whole => 0,
                    Seen::ReturnOnly => 1,
                    Seen::EntryOnly => 2,
                    Seen::Open => 3,
                },
            ];
            before = call.begin;
            for (column, value) in columns.iter_mut().zip(row) {
                column.push(value);
            }
            let pairs = call.arguments.iter();
            let numbers = pairs.flat_map(|(name, value)| [texts.number(name), texts.number(value)]);
            // An empty list is 0, which is shorter.
            arguments.push(match call.arguments.is_empty() {
                true => "0".into(),
                false => format!("[{}]", joined(numbers.collect::<Vec<_>>())),
            });
        }
    }
    let names = [
        "task",
        "begin",
        "length",
        "depth",
        "function",
        "result",
        "entryCpu",
        "returnCpu",
        "seen",
    ];
    let mut calls: Vec<String> = names
        .iter()
        .zip(&columns)
        .map(|(name, column)| format!("\"{name}\":[{}]", joined(column)))
        .collect();
    calls.push(format!("\"arguments\":[{}]", joined(arguments)));
    calls
}

/// What happened at moments.
fn instants<'a>(
    timeline: &'a Timeline,
    positions: &HashMap<u32, usize>,
    texts: &mut Texts<'a>,
) -> Vec<String> {
    let (begin, _) = timeline.span();
    timeline
        .instants
        .iter()
        .map(|instant| {
            let pairs = instant.arguments.iter();
            let numbers = pairs.flat_map(|(name, value)| [texts.number(name), texts.number(value)]);
            let numbers = joined(numbers.collect::<Vec<_>>());
            let name = texts.number(&instant.name);
            let (at, task) = (instant.time.saturating_sub(begin), positions[&instant.tid]);
            format!("[{task},{at},{},{name},[{numbers}]]", instant.cpu)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, model::Run};

    /// The names of the sections.
    fn sections(html: &str) -> Vec<&str> {
        let sections = html.split("<section id=\"").skip(1);
        sections.filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn the_timeline_has_the_elements_that_its_script_asks_for() {
        let mut builder = Builder::new();
        builder.entry(1, 1, 0, "f", Vec::new());
        let html = page(&Page {
            timeline: Some(builder.finish()),
            ..Page::default()
        });
        for id in [
            "find", "found", "in", "out", "fit", "view", "tall", "canvas", "chosen",
        ] {
            assert!(html.contains(&format!(" id=\"{id}\"")), "{id}");
        }
    }

    #[test]
    fn parts_that_are_empty_are_left_out() {
        let empty = page(&Page::default());
        assert_eq!(sections(&empty), ["run"]);
        assert!(!empty.contains("application/json"));
        let mut builder = Builder::new();
        builder.entry(0, 1, 0, "f", Vec::new());
        let full = page(&Page {
            timeline: Some(builder.finish()),
            stacks: vec![Stacks::default()],
            histograms: vec![Histogram::default()],
            heat_maps: vec![HeatMap::default()],
            output: "1".into(),
            ..Page::default()
        });
        let all = [
            "run",
            "timeline",
            "calls",
            "flame",
            "histograms",
            "heat",
            "output",
        ];
        assert_eq!(sections(&full), all);
    }

    #[test]
    fn books_have_the_hits_and_misses_of_each_probe() {
        let of = |probe: &str, hits, missed| Books {
            probe: probe.into(),
            hits,
            missed,
        };
        let books = books(&[of("kprobe:f", 1234, 0), of("kprobe:<g>", 7, 5)]);
        for row in [
            "<td><code>kprobe:f</code></td><td class=\"number\">1,234</td>\
             <td class=\"number\">0</td>",
            "<td><code>kprobe:&lt;g&gt;</code></td><td class=\"number\">7</td>\
             <td class=\"number bad\">5</td>",
        ] {
            assert!(books.contains(row), "{books}");
        }
    }

    #[test]
    fn bars_and_cells_go_with_their_counts() {
        let bars = histogram(&Histogram::powers_of_two("", [4, 5, 6, 7, 1].into_iter()));
        let widths: Vec<_> = bars
            .split("width:")
            .skip(1)
            .map(|rest| &rest[..4])
            .collect();
        assert_eq!(widths, ["25.0", "0.0%", "100."]);
        assert!(bars.contains("<small>5 values</small>"), "{bars}");
        let first = "<tr title=\"20.0 %\"><th>[1]</th><td class=\"number\">1</td>";
        assert!(bars.contains(first), "{bars}");
        let cells = heat_map(&HeatMap::powers_of_two("", &[(0, 1), (9, 2), (9, 3)], 10));
        assert!(
            cells.contains("<title>1 of [1] from 0 ns to 1 ns</title>"),
            "{cells}"
        );
        assert!(
            cells.contains("<title>2 of [2, 4) from 9 ns to 10 ns</title>"),
            "{cells}"
        );
        // Later ones are to the right, larger ones above.
        for place in [
            "x=\"96.00\" y=\"20\"",
            "x=\"1032.00\" y=\"0\"",
            "y=\"34\">[1]<",
            "y=\"14\">[2, 4)<",
        ] {
            assert!(cells.contains(place), "{place}: {cells}");
        }
        let axis = cells.split("y=\"58\">").skip(1);
        let axis = axis.map(|rest| rest.split('<').next().unwrap_or_default());
        let times = ["0 ns", "2 ns", "5 ns", "7 ns", "10 ns"];
        assert_eq!(axis.collect::<Vec<_>>(), times);
        let (weak, strong) = (0.12 + 0.88 * 2_f64.ln() / 3_f64.ln(), 1.0);
        for strength in [weak, strong] {
            assert!(
                cells.contains(&format!("fill-opacity=\"{strength:.3}\"")),
                "{cells}"
            );
        }
        // The legend, for one hit and for two: its squares stand side by side.
        let squares = cells.split("<rect x=\"").skip(1);
        let squares = squares.filter(|rect| rect.contains("width=\"16\""));
        let places: Vec<u32> = squares
            .map(|rect| {
                rect.split('"')
                    .next()
                    .unwrap_or_default()
                    .parse()
                    .expect("a number")
            })
            .collect();
        assert_eq!(places.len(), 2, "{cells}");
        assert!(
            places[1] >= places[0] + 16 + 20,
            "room for a square and its text: {places:?}"
        );
    }

    #[test]
    fn data_is_json_with_a_number_for_each_call() {
        let mut builder = Builder::new();
        builder.entry(1000, 2, 0, "f", vec![("a".into(), "<b>".into())]);
        builder.entry(1000, 0, 1, "g", Vec::new());
        builder.exit(1700, 2, 0, "f", Some("<b>".into()));
        builder.entry(1900, 2, 0, "g", Vec::new());
        let data: serde_json::Value = serde_json::from_str(&data(&builder.finish())).expect("JSON");
        assert_eq!(data["texts"], serde_json::json!(["f", "<b>", "a", "g"]));
        assert_eq!(
            data["tasks"],
            serde_json::json!([[2, "task 2"], [0, "task 0 on CPU 1"]])
        );
        let calls = serde_json::json!({
            "task": [0, 0, 1],
            "begin": [0, 900, 0],
            "length": [700, 0, 900],
            "depth": [0, 0, 0],
            "function": [0, 3, 3],
            "result": [1, -1, -1],
            "entryCpu": [0, 0, 1],
            "returnCpu": [0, -1, -1],
            "seen": [0, 3, 3],
            "arguments": [[2, 1], 0, 0],
        });
        assert_eq!(data["calls"], calls);
    }

    /// A task is its position in the list, and times count from the first one.
    #[test]
    fn data_has_runs_instants_and_counters() {
        let mut builder = Builder::new();
        builder.entry(1000, 7, 3, "f", Vec::new());
        builder.exit(1400, 7, 3, "f", None);
        builder.instant(1500, 9, 2, "woken", vec![("by".into(), "7".into())]);
        builder.run(Run {
            cpu: 3,
            tid: 9,
            begin: 1100,
            end: 1600,
        });
        builder.counter(1200, "free", "frames", 2.5);
        builder.counter(1300, "free", "frames", f64::NAN);
        let data: serde_json::Value = serde_json::from_str(&data(&builder.finish())).expect("JSON");
        for (name, value) in [
            ("length", serde_json::json!(600)),
            ("cpus", serde_json::json!(4)),
            ("texts", serde_json::json!(["f", "by", "7", "woken"])),
            ("runs", serde_json::json!([[3, 1, 100, 500]])),
            ("instants", serde_json::json!([[1, 500, 2, 3, [1, 2]]])),
            (
                "counters",
                serde_json::json!([["free", "frames", [[200, 2.5]]]]),
            ),
        ] {
            assert_eq!(data[name], value, "{name}");
        }
    }

    #[test]
    fn data_tells_which_ends_of_a_call_were_recorded() {
        let mut builder = Builder::new();
        for function in ["b", "c"] {
            builder.entry(10, 1, 0, function, Vec::new());
        }
        for function in ["b", "a"] {
            builder.exit(20, 1, 0, function, None);
        }
        let data: serde_json::Value = serde_json::from_str(&data(&builder.finish())).expect("JSON");
        let calls = &data["calls"];
        assert_eq!(data["texts"], serde_json::json!(["a", "b", "c"]));
        assert_eq!(calls["seen"], serde_json::json!([1, 0, 2]));
        assert_eq!(calls["depth"], serde_json::json!([0, 1, 2]));
        assert_eq!(calls["entryCpu"], serde_json::json!([-1, 0, 0]));
        assert_eq!(calls["returnCpu"], serde_json::json!([0, 0, -1]));
    }

    #[test]
    fn a_run_has_the_numbers_of_its_timeline_and_tells_what_is_missing() {
        let mut builder = Builder::new();
        builder.cpus(5);
        builder.task(9, 9, "idle");
        for (time, tid) in [(1000, 1), (1000, 1), (3500, 2), (3500, 2)] {
            builder.entry(time, tid, 0, "f", Vec::new());
        }
        for (reason, records) in [("late", 1), ("never", 0), ("full", 1234)] {
            builder.lost(reason, records);
        }
        let html = run(&Page {
            timeline: Some(builder.finish()),
            facts: vec![("ran".into(), "ls".into())],
            program: "kprobe:f { }\n".into(),
            warnings: vec!["5 not written: no room for <x>".into()],
            ..Page::default()
        });
        for part in [
            "<pre class=\"program\">kprobe:f { }</pre>",
            "<dt>ran</dt><dd>ls</dd>",
            "<dt>recorded</dt><dd>2.50 µs</dd>",
            "<dt>calls</dt><dd>4</dd>",
            "<dt>tasks</dt><dd>3</dd>",
            "<dt>processors</dt><dd>5</dd>",
            ">1 records are missing from the timeline: late<",
            ">1,234 records are missing from the timeline: full<",
            ">5 not written: no room for &lt;x&gt;<",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!html.contains("never"), "{html}");
    }
}
