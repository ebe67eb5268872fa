//! Pictures of a trace: a timeline, a flame graph, a page.
//!
//! Their material is gathered while the trace runs: calls and instants from its records, the books
//! of the probes, and the text that was shown. Histograms and call stacks are taken from the maps
//! at the end. The crate `pictures` draws. What it is given has no type of the tracer.

use std::{fs, io::BufWriter, path::Path};

use anyhow::{Context, Result, bail};
use pictures::{
    Builder,
    flame::{self, Flame},
    html::{self, Page},
    model::{Books, Histogram, HistogramRow, Stacks, Unit, WallClock},
    perfetto,
};
use trace_answers::{Bucket, Event, Presentation, Recorded, Symbolize, Value};
use trace_interface::{Frame, frame};

use crate::{options::Options, source::Source};

/// The first value of a record that tells of a call. No program prints it by chance. After it come
/// the function, the nanoseconds, the result or an empty text, and names and values of arguments.
pub const CALL: &str = "\u{1}call";

/// The beginning of the names of probes that the pictures have added to the program.
pub const ADDED: &str = "for the pictures: session:";

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
                self.builder.wall_clock(WallClock {
                    time: 0,
                    since_1970: *epoch_nanoseconds,
                });
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

    /// A record that begins with [`CALL`].
    fn call(&mut self, record: &Recorded, time: u64, symbols: &dyn Symbolize) -> bool {
        let [Value::Tuple(parts)] = &record.values[..] else {
            return false;
        };
        let [
            Value::Text { text, .. },
            function,
            length,
            result,
            arguments @ ..,
        ] = &parts[..]
        else {
            return false;
        };
        if text != CALL {
            return false;
        }
        let length = length
            .number()
            .and_then(|length| u64::try_from(length).ok());
        let shown = |value: &Value| value.shown(symbols).to_string();
        self.builder.call(pictures::model::Call {
            tid: record.tid,
            cpu_at_entry: None,
            cpu_at_return: Some(record.cpu),
            function: shown(function),
            begin: time.saturating_sub(length.unwrap_or(0)),
            end: time,
            seen: pictures::model::Seen::Whole,
            arguments: arguments
                .chunks_exact(2)
                .map(|pair| (shown(&pair[0]), shown(&pair[1])))
                .collect(),
            result: Some(shown(result)).filter(|result| !result.is_empty()),
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
        let stacks = stacks(presentation, symbols);
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
            let is_time = name.ends_with("ns");
            all.push(Stacks {
                title: name.into(),
                unit: if is_time {
                    Unit::Nanoseconds
                } else {
                    Unit::Count("hits".into())
                },
                rows,
            });
        }
    }
    all
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
    use trace_interface::shape::StackForm;

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
        let comm = Value::Text {
            text: "cat".into(),
            cut: false,
        };
        let row = row_of_stacks(&[kernel, comm.clone(), user], &trace_answers::NoSymbols);
        assert_eq!(row.unwrap(), ["cat", "0x20", "0x10", "0x40", "0x30"]);
        assert_eq!(row_of_stacks(&[comm], &trace_answers::NoSymbols), None);
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
