//! Pictures of a trace: a timeline, a flame graph, a page.
//!
//! Their material is gathered while the trace runs: calls and instants from its records, the books
//! of the probes, and the text that was shown. Histograms and call stacks are taken from the maps
//! at the end. The crate `pictures` draws. What it is given has no type of the tracer.

use std::{fs, io::BufWriter, path::Path};

use anyhow::{Context, Result, bail};
use boot::progress::say;
use pictures::{
    Builder,
    flame::{self, Flame},
    html::{self, Page},
    model::{Books, Histogram, HistogramRow, Stacks, Unit, WallClock},
    perfetto,
};
use trace_answers::{Bucket, Event, Presentation, Recorded, Symbolize, Value};
use trace_interface::{Frame, frame};

use crate::{
    calls::{ADDED, Told},
    options::Options,
    source::Source,
};

/// How many columns a heat map has, and of how many functions there are heat maps and histograms.
const COLUMNS: usize = 120;
const MOST_FUNCTIONS: usize = 8;

/// The material of pictures, which grows while a trace runs.
#[derive(Default)]
pub struct Gathered {
    builder: Builder,
    /// The books by attachment.
    books: Vec<frame::Books>,
    output: String,
}

impl Gathered {
    /// Takes notice of a frame, its meaning, and the text that it made. False: it was a record for
    /// pictures only, so its text is not shown.
    pub fn frame(
        &mut self,
        frame: &Frame,
        event: &Event,
        text: &str,
        presentation: &Presentation,
        symbols: &dyn Symbolize,
    ) -> bool {
        match (frame, event) {
            (
                Frame::Started {
                    cpus,
                    epoch_nanoseconds,
                    ..
                },
                _,
            ) => {
                self.builder.cpus(*cpus);
                // 0: the kernel does not know the time of day.
                if *epoch_nanoseconds > 0 {
                    self.builder.wall_clock(WallClock {
                        time: 0,
                        since_1970: *epoch_nanoseconds,
                    });
                }
            }
            (Frame::Comm { tid, name }, _) => self.builder.task(*tid, *tid, name),
            (Frame::Ended { books, .. }, _) => {
                self.books.clone_from(books);
            }
            (_, Event::Record(record)) => {
                let time = presentation.nanoseconds_since_start(record.tsc);
                let time = time.and_then(|time| u64::try_from(time).ok()).unwrap_or(0);
                if self.call(record, time, symbols) {
                    return false;
                }
                let tid = record.tid;
                self.builder
                    .instant(time, tid, record.cpu, &record.text, Vec::new());
            }
            _ => {}
        }
        self.output.push_str(text);
        true
    }

    /// A record that tells of a call. Its beginning is no news for pictures.
    fn call(&mut self, record: &Recorded, time: u64, symbols: &dyn Symbolize) -> bool {
        let end = match Told::read(record, symbols) {
            None => return false,
            Some(Told::Entry(_)) => return true,
            Some(Told::Return(end)) => end,
        };
        let function = Value::Symbol {
            address: end.function,
            with_offset: false,
        };
        let shown = |value: &Value| value.shown(symbols).to_string();
        let length = u64::try_from(end.time.as_nanos()).unwrap_or(u64::MAX);
        self.builder.call(pictures::model::Call {
            tid: record.tid,
            cpu_at_entry: None,
            cpu_at_return: Some(record.cpu),
            function: shown(&function),
            begin: time.saturating_sub(length),
            end: time,
            seen: pictures::model::Seen::Whole,
            arguments: end
                .arguments
                .iter()
                .map(|(name, value)| (name.clone(), shown(value)))
                .collect(),
            result: end.result.as_ref().map(shown),
            depth: 0,
        });
        true
    }

    /// Writes the files that the options name.
    pub fn write(
        self,
        options: &Options,
        source: &Source,
        presentation: &Presentation,
        probes: &[String],
        symbols: &dyn Symbolize,
    ) -> Result<()> {
        let timeline = self.builder.finish();
        if let Some(path) = &options.perfetto {
            let file = create(path)?;
            perfetto::write(&timeline, BufWriter::new(file)).with_context(|| cannot_write(path))?;
        }
        let stacks = match options.graph.is_wanted() {
            true => vec![timeline.stacks("time in calls")],
            false => stacks(presentation, symbols),
        };
        if let Some(path) = &options.flame {
            let Some(first) = stacks.first() else {
                bail!(
                    "{} is not written: no map has a call stack among its keys; write, for \
                     example, `@[kstack] = count()`",
                    path.display()
                );
            };
            let picture = flame::svg(first, Flame::default());
            fs::write(path, picture).with_context(|| cannot_write(path))?;
            if let Some(others) = not_drawn(&stacks) {
                say(format_args!("{} {others}", path.display()));
            }
        }
        if let Some(path) = &options.html {
            let run = options.run.as_deref().unwrap_or("workload");
            let page = html::page(&Page {
                title: source.title(),
                program: source.text.clone(),
                facts: vec![("ran meanwhile".into(), run.into())],
                books: books(&self.books, probes),
                output: self.output,
                histograms: histograms(presentation, symbols)
                    .into_iter()
                    .chain(timeline.all_latencies(MOST_FUNCTIONS))
                    .collect(),
                heat_maps: timeline.latency_maps(COLUMNS, MOST_FUNCTIONS),
                timeline: Some(timeline),
                stacks,
            });
            fs::write(path, page).with_context(|| cannot_write(path))?;
        }
        Ok(())
    }
}

/// The books by probe. Those of the pictures' own probes are left out if they have nothing.
fn books(books: &[frame::Books], probes: &[String]) -> Vec<Books> {
    let rows = books.iter().zip(probes).map(|(of, probe)| Books {
        probe: probe.clone(),
        hits: of.hits,
        missed: of.missed,
        ..Books::default()
    });
    rows.filter(|row| row.hits > 0 || !row.probe.starts_with(ADDED))
        .collect()
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn create(path: &Path) -> Result<fs::File> {
    fs::File::create(path).with_context(|| cannot_write(path))
}

/// The maps that have a call stack among their keys. Other keys are the outermost frames.
fn stacks(presentation: &Presentation, symbols: &dyn Symbolize) -> Vec<Stacks> {
    let mut all = Vec::new();
    for (name, entries) in presentation.maps() {
        let mut rows = Vec::new();
        for (key, value) in &entries {
            let Some(row) = row_of_stacks(key, symbols) else {
                continue;
            };
            let number = value.number().and_then(|number| u64::try_from(number).ok());
            rows.push((row, number.unwrap_or(0)));
        }
        if !rows.is_empty() {
            // `@ns` and `@sleep_ns`, but not `@opens`.
            let is_time = name == "@ns" || name.ends_with("_ns");
            all.push(Stacks {
                title: name.into(),
                unit: match presentation.counts_hits(name) {
                    _ if is_time => Unit::Nanoseconds,
                    true => Unit::Count("hits".into()),
                    false => Unit::Count(format!("of {name}")),
                },
                rows,
            });
        }
    }
    all
}

/// What a file of one flame graph does not show.
fn not_drawn(stacks: &[Stacks]) -> Option<String> {
    let [first, others @ ..] = stacks else {
        return None;
    };
    let others: Vec<&str> = others.iter().map(|of| &*of.title).collect();
    (!others.is_empty()).then(|| {
        format!(
            "shows {}; --html has {}, too",
            first.title,
            others.join(", ")
        )
    })
}

/// The frames of a key, the outermost first: its other parts, the frames of the program, and those
/// of the kernel. None if it has no call stack.
fn row_of_stacks(key: &[Value], symbols: &dyn Symbolize) -> Option<Vec<String>> {
    let (mut others, mut user, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
    let mut has_stack = false;
    for part in key {
        match part {
            Value::UserStack(_, Some(stack)) => {
                has_stack = true;
                user.extend(stack.frames(symbols).map(|(name, _)| name));
                user.reverse();
            }
            Value::Stack(_, Some(addresses)) => {
                has_stack = true;
                kernel.extend(addresses.iter().rev().map(|address| {
                    let symbol = symbols.frame(*address);
                    symbol.map_or_else(|| format!("{address:#x}"), |symbol| symbol.name)
                }));
            }
            // A task of the kernel has no program.
            Value::UserStack(_, None) | Value::Stack(_, None) => {}
            other => others.push(other.shown(symbols).to_string()),
        }
    }
    has_stack.then(|| [others, user, kernel].concat())
}

/// The histograms of all maps.
fn histograms(presentation: &Presentation, symbols: &dyn Symbolize) -> Vec<Histogram> {
    let mut all = Vec::new();
    for (name, entries) in presentation.maps() {
        for (key, value) in &entries {
            let Value::Histogram(buckets) = value else {
                continue;
            };
            let key: Vec<String> = key
                .iter()
                .map(|part| part.shown(symbols).to_string())
                .collect();
            let title = if key.is_empty() {
                name.to_string()
            } else {
                format!("{name}[{}]", key.join(", "))
            };
            let rows = buckets.iter().map(row).collect();
            all.push(Histogram { title, rows });
        }
    }
    all
}

fn row(bucket: &Bucket) -> HistogramRow {
    HistogramRow {
        label: bucket.label(),
        low: bucket.low.unwrap_or(i128::MIN),
        high: bucket.end.unwrap_or(i128::MAX),
        count: bucket.count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use boot::options::Checked;
    use pictures::{Timeline, model::Seen};
    use trace_answers::{NoSymbols, PrintedBy};
    use trace_interface::{
        frame::MapEntry,
        shape::{Shape, StackForm},
        view::{Class, MapView, Scale, View},
    };

    fn text(text: &str) -> Value {
        Value::Text {
            text: text.into(),
            cut: false,
        }
    }

    fn started() -> Frame {
        Frame::Started {
            tsc_hz: 2_000_000_000,
            tsc: 1_000,
            epoch_nanoseconds: 77,
            cpus: 3,
            places: vec![1],
        }
    }

    /// A record at so many nanoseconds, as task 7 on CPU 2.
    fn record(nanoseconds: u64, text: &str, values: Vec<Value>) -> Event {
        Event::Record(Recorded {
            cpu: 2,
            tsc: 1_000 + 2 * nanoseconds,
            tid: 7,
            text: text.into(),
            values,
            by: PrintedBy::Line,
        })
    }

    /// A record that tells of a call of the function at 0x10.
    fn call(nanoseconds: u64, length: u64, result: Value, arguments: &[(&str, i64)]) -> Event {
        call_of(0x10, nanoseconds, length, result, arguments)
    }

    /// The same of a function at `address`.
    fn call_of(
        address: u64,
        nanoseconds: u64,
        length: u64,
        result: Value,
        arguments: &[(&str, i64)],
    ) -> Event {
        let function = Value::Symbol {
            address,
            with_offset: false,
        };
        let kind = text("\u{1}return");
        let mut parts = vec![kind, function, Value::Unsigned(length), result, text("")];
        for (name, value) in arguments {
            parts.extend([text(name), Value::Signed(*value)]);
        }
        record(nanoseconds, "not shown", vec![Value::Tuple(parts)])
    }

    /// What is gathered of those frames and events, and which of them are shown.
    fn gathered(presentation: &mut Presentation, all: &[(Frame, Event)]) -> (Gathered, Vec<bool>) {
        let mut gathered = Gathered::default();
        let mut nothing = String::new();
        let mut shown = Vec::new();
        for (frame, event) in all {
            presentation.frame(frame, &NoSymbols, &mut nothing).unwrap();
            let text = match event {
                Event::Record(record) => format!("{}\n", record.text),
                _ => String::new(),
            };
            shown.push(gathered.frame(frame, event, &text, presentation, &NoSymbols));
        }
        (gathered, shown)
    }

    /// A frame that brings a record, of which the event has the content.
    fn brought(event: Event) -> (Frame, Event) {
        let frame = Frame::Record {
            cpu: 2,
            tsc: 0,
            bytes: Vec::new(),
        };
        (frame, event)
    }

    fn timeline() -> (Timeline, Vec<bool>, String) {
        let comm = Frame::Comm {
            tid: 7,
            name: "cat".into(),
        };
        let mut presentation = Presentation::default();
        let (gathered, shown) = gathered(
            &mut presentation,
            &[
                (started(), Event::Started { places: 1 }),
                (comm, Event::Nothing),
                brought(call(1_000, 300, Value::Signed(5), &[("a", 1), ("b", -2)])),
                brought(record(1_100, "said", vec![Value::Unsigned(1)])),
                // It began before the trace, and has no result.
                brought(call(1_200, 5_000, text(""), &[])),
                // A tuple of the program's own.
                brought(record(
                    1_300,
                    "a tuple",
                    vec![Value::Tuple(vec![text("call"), Value::Unsigned(1)])],
                )),
            ],
        );
        (gathered.builder.finish(), shown, gathered.output)
    }

    #[test]
    fn records_of_calls_are_calls_and_the_others_are_shown() {
        let (timeline, shown, output) = timeline();
        assert_eq!(shown, [true, true, false, true, false, true]);
        assert_eq!(output, "said\na tuple\n");
        let instants = timeline.instants.iter();
        let instants: Vec<_> = instants
            .map(|instant| (instant.time, instant.tid, instant.cpu, &*instant.name))
            .collect();
        assert_eq!(instants, [(1_100, 7, 2, "said"), (1_300, 7, 2, "a tuple")]);
        let clock = WallClock {
            time: 0,
            since_1970: 77,
        };
        assert_eq!((timeline.cpus, timeline.wall_clock), (3, Some(clock)));
        assert_eq!(timeline.task_name(7), "cat");
    }

    #[test]
    fn a_call_has_its_time_arguments_and_result() {
        let (timeline, ..) = timeline();
        let [outer, inner] = &timeline.calls[..] else {
            panic!("{:?}", timeline.calls);
        };
        assert_eq!((outer.begin, outer.end), (0, 1_200));
        assert_eq!((&outer.arguments[..], &outer.result), (&[][..], &None));
        assert_eq!((inner.begin, inner.end), (700, 1_000));
        let arguments = inner.arguments.iter();
        let arguments: Vec<_> = arguments.map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(arguments, [("a", "1"), ("b", "-2")]);
        assert_eq!(inner.result.as_deref(), Some("5"));
        for call in [outer, inner] {
            assert_eq!((&*call.function, call.tid), ("0x10", 7));
            assert_eq!((call.cpu_at_entry, call.cpu_at_return), (None, Some(2)));
            assert_eq!(call.seen, Seen::Whole);
        }
    }

    /// A presentation with maps that count by call stacks, one of times, and a histogram by a
    /// number.
    fn with_maps() -> Presentation {
        let stack = || Shape::Stack {
            map: 9,
            is_user: false,
            form: StackForm::default(),
        };
        let map = |name: &str, class, keys| MapView {
            name: Some(name.into()),
            class,
            keys,
        };
        let mut presentation = Presentation::new(View {
            maps: vec![
                map("@calls", Class::Count, vec![stack()]),
                map("@ns", Class::Sum { signed: true }, vec![stack()]),
                map("@plain", Class::Count, vec![]),
                map(
                    "@sizes",
                    Class::Histogram(Scale::Log2),
                    vec![Shape::Unsigned(8)],
                ),
                map("@all", Class::Histogram(Scale::Log2), vec![]),
                map("@opens", Class::Sum { signed: true }, vec![stack()]),
                map("@sleep_ns", Class::Count, vec![stack()]),
            ],
            ..View::default()
        });
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let entry = |key: Vec<u8>, value: &[u64]| MapEntry {
            cpu: 0,
            key,
            value: words(value),
        };
        let bucket = |key: &[u64], number: u32| [words(key), number.to_le_bytes().into()].concat();
        for frame in [
            Frame::Stack {
                map: 9,
                number: 1,
                addresses: vec![0x30, 0x40],
            },
            Frame::Map {
                map: 0,
                entries: vec![entry(words(&[1]), &[4])],
            },
            // The stack of the second one is not there.
            Frame::Map {
                map: 1,
                entries: vec![
                    entry(words(&[1]), &[2, 500]),
                    entry(words(&[2]), &[1, 7_u64.wrapping_neg()]),
                ],
            },
            Frame::Map {
                map: 2,
                entries: vec![entry(Vec::new(), &[4])],
            },
            Frame::Map {
                map: 3,
                entries: vec![entry(bucket(&[8], 2), &[3]), entry(bucket(&[8], 3), &[1])],
            },
            Frame::Map {
                map: 4,
                entries: vec![entry(bucket(&[], Scale::NEGATIVE), &[6])],
            },
            Frame::Map {
                map: 5,
                entries: vec![entry(words(&[1]), &[1, 7_u64.wrapping_neg()])],
            },
            Frame::Map {
                map: 6,
                entries: vec![entry(words(&[1]), &[8])],
            },
        ] {
            let mut nothing = String::new();
            presentation
                .frame(&frame, &NoSymbols, &mut nothing)
                .unwrap();
        }
        presentation
    }

    /// Maps without call stacks are no flame graphs, nor are entries whose stack was lost. A number
    /// below zero has no width. Only the ending `_ns` makes it a time, and what is added up is no
    /// number of hits. One file has one graph, so the others are named.
    #[test]
    fn stacks_have_the_numbers_and_units_of_their_maps() {
        let frames = || vec!["0x40".into(), "0x30".into()];
        let expected = [
            Stacks {
                title: "@calls".into(),
                unit: Unit::Count("hits".into()),
                rows: vec![(frames(), 4)],
            },
            Stacks {
                title: "@ns".into(),
                unit: Unit::Nanoseconds,
                rows: vec![(frames(), 500)],
            },
            Stacks {
                title: "@opens".into(),
                unit: Unit::Count("of @opens".into()),
                rows: vec![(frames(), 0)],
            },
            Stacks {
                title: "@sleep_ns".into(),
                unit: Unit::Nanoseconds,
                rows: vec![(frames(), 8)],
            },
        ];
        assert_eq!(stacks(&with_maps(), &NoSymbols), expected);
        assert_eq!(not_drawn(&expected[..1]), None);
        let others = not_drawn(&expected[..3]).unwrap();
        assert_eq!(others, "shows @calls; --html has @ns, @opens, too");
    }

    #[test]
    fn histograms_are_named_by_map_and_key() {
        let found = histograms(&with_maps(), &NoSymbols);
        let row = |label: &str, low, high, count| HistogramRow {
            label: label.into(),
            low,
            high,
            count,
        };
        let expected = [
            Histogram {
                title: "@all".into(),
                rows: vec![row("(..., 0)", i128::MIN, 0, 6)],
            },
            Histogram {
                title: "@sizes[8]".into(),
                rows: vec![row("[2, 4)", 2, 4, 3), row("[4, 8)", 4, 8, 1)],
            },
        ];
        assert_eq!(found, expected);
    }

    /// The files of the three options are written, and each has what was gathered.
    #[test]
    fn pictures_are_written_where_the_options_say() {
        let directory = std::env::temp_dir().join(format!("pictures-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = |name: &str| directory.join(name).display().to_string();
        let written = |wanted: &[&str], presentation: &Presentation, run: &[&str]| {
            let options = wanted
                .iter()
                .flat_map(|name| [format!("--{name}"), path(name)]);
            let program = "kprobe:f { @ = count(); }";
            let run = run.iter().map(ToString::to_string);
            let arguments = ["trace".into(), program.into()].into_iter();
            let options = Options::read(arguments.chain(options).chain(run)).unwrap();
            let source = Source::of(&options).unwrap();
            let all = [
                (started(), Event::Started { places: 1 }),
                brought(call(1_000, 300, Value::Signed(5), &[("given", 1)])),
                brought(call_of(0x20, 1_050, 20, text(""), &[])),
                brought(record(1_100, "a line of the program", Vec::new())),
                (
                    Frame::Ended {
                        status: 0,
                        books: vec![frame::Books {
                            hits: 4_321,
                            missed: 8_765,
                        }],
                        kept_out: 0,
                        lost: Vec::new(),
                        bad_loads: 0,
                    },
                    Event::Nothing,
                ),
            ];
            let (gathered, _) = gathered(&mut Presentation::default(), &all);
            let probes = ["kprobe:f of the books".into()];
            gathered.write(&options, &source, presentation, &probes, &NoSymbols)
        };
        let read = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
        written(&["html"], &with_maps(), &["--run", "ls /tmp"]).unwrap();
        let page = read("html");
        for part in [
            "<title>kprobe:f { @ = count(); }</title>",
            "ls /tmp",
            "4,321",
            "8,765",
            "kprobe:f of the books",
            "a line of the program",
            "given",
            "@sizes[8]",
            "@calls",
            "0x10: nanoseconds<",
            "0x10: nanoseconds over time",
            "0x20: nanoseconds<",
            "0x20: nanoseconds over time",
            "All calls: nanoseconds over time",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!((read("flame"), read("perfetto")), Default::default());
        written(&["perfetto", "flame"], &with_maps(), &[]).unwrap();
        assert!(read("flame").contains("0x40"));
        assert!(fs::read(path("perfetto")).unwrap().len() > 20);
        fs::remove_file(path("flame")).unwrap();
        let refused = written(&["flame"], &Presentation::default(), &[]).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("no map has a call stack"), "{refused}");
        assert!(!directory.join("flame").exists());
        written(&["html"], &Presentation::default(), &[]).unwrap();
        assert!(read("html").contains("workload"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn frames_of_a_program_stand_below_those_of_the_kernel() {
        let user = Value::UserStack(
            StackForm::default(),
            Some(trace_answers::UserStack {
                program: "cat".into(),
                addresses: [0x10, 0x20].into(),
            }),
        );
        let kernel = Value::Stack(StackForm::default(), Some([0x30, 0x40].into()));
        let comm = text("cat");
        let row = row_of_stacks(&[kernel, comm.clone(), user], &NoSymbols);
        assert_eq!(row.unwrap(), ["cat", "0x20", "0x10", "0x40", "0x30"]);
        assert_eq!(row_of_stacks(&[comm], &NoSymbols), None);
    }

    /// As the text has them.
    #[test]
    fn rows_of_histograms_have_the_units_of_the_text() {
        let label = |low, end| {
            let count = 1;
            row(&Bucket { low, end, count }).label
        };
        assert_eq!(label(Some(65536), Some(131072)), "[64K, 128K)");
        assert_eq!(label(Some(0), Some(1)), "[0]");
        assert_eq!(label(Some(1000), None), "[1000, ...)");
        assert_eq!(label(None, Some(0)), "(..., 0)");
        let row = row(&Bucket {
            low: None,
            end: Some(-5),
            count: 3,
        });
        assert_eq!((row.low, row.high, row.count), (i128::MIN, -5, 3));
    }

    #[test]
    fn books_have_the_names_of_their_probes_and_none_of_the_pictures_own_without_hits() {
        let hits = |hits| frame::Books { hits, missed: 0 };
        let probes = [
            "kprobe:f",
            "begin",
            "for the pictures: session:f",
            &format!("{ADDED}g"),
        ];
        let probes = probes.map(String::from);
        let books = books(&[hits(2), hits(0), hits(3), hits(0)], &probes);
        let rows = books.iter().map(|row| (&*row.probe, row.hits));
        let expected = [
            ("kprobe:f", 2),
            ("begin", 0),
            ("for the pictures: session:f", 3),
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
    }
}
