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
    model::Books,
    perfetto,
};
use trace_answers::{Event, Presentation, Symbolize, Totals};
use trace_interface::{Frame, frame};

use self::moments::Moments;
use crate::{
    calls::{ADDED, Told},
    options::Options,
    source::Source,
};

mod maps;
mod moments;

/// How many columns a heat map has, and of how many functions there are heat maps and histograms.
const COLUMNS: usize = 120;
const MOST_FUNCTIONS: usize = 8;

/// The material of pictures, which grows while a trace runs.
#[derive(Default)]
pub struct Gathered {
    builder: Builder,
    moments: Moments,
    /// The time of day at the beginning, if the kernel knows it.
    since_1970: Option<u64>,
    /// The books by attachment.
    books: Vec<frame::Books>,
    /// What was lost, a sentence each.
    warnings: Vec<String>,
    /// The map that counts the calls that have not returned, and what it was at the end.
    count: Option<u32>,
    not_returned: i128,
    has_begun: bool,
    /// The maps have not come.
    is_cut_off: bool,
    output: String,
}

impl Gathered {
    /// Nothing yet. `count` is the map that counts the calls that have not returned.
    pub fn new(options: &Options, count: Option<u32>) -> Self {
        Self {
            moments: Moments::new(options.graph.over),
            count,
            ..Self::default()
        }
    }

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
        match frame {
            Frame::Started {
                cpus,
                epoch_nanoseconds,
                ..
            } => {
                self.has_begun = true;
                self.builder.cpus(*cpus);
                self.since_1970 = Some(*epoch_nanoseconds).filter(|since| *since > 0);
            }
            Frame::Comm { tid, name } => self.builder.task(*tid, *tid, name),
            Frame::Ended { books, .. } => self.books.clone_from(books),
            Frame::Map { map, entries } if Some(*map) == self.count => {
                let entries = presentation.entries(*map, entries);
                let number = entries.first().and_then(|(_, value)| value.number());
                self.not_returned = number.unwrap_or(0);
            }
            _ => {}
        }
        match event {
            Event::Record(record) => {
                let time = presentation.nanoseconds_since_start(record.tsc);
                let time = time.unwrap_or(0);
                match Told::read(record, symbols) {
                    Some(told) => {
                        self.moments.told(told, time, record, symbols);
                        return false;
                    }
                    None => self.moments.said(time, record),
                }
            }
            Event::Ended { totals, .. } => self.lost(totals),
            _ => {}
        }
        self.output.push_str(text);
        true
    }

    /// What is missing: records in the timeline, all else in what the program has found out.
    fn lost(&mut self, totals: &Totals) {
        if let Ok(calls @ 1..) = u64::try_from(self.not_returned) {
            say(format_args!(
                "pictures lack the calls that had not returned when the trace ended: {calls}; \
                 --graph shows such calls"
            ));
            let reason = "their calls had not returned when the trace ended";
            self.builder.lost(reason, calls);
        }
        for (reason, count) in &totals.lost {
            match reason.strip_prefix("records: ") {
                Some(reason) => self.builder.lost(reason, *count),
                None => self.warnings.push(format!("{count} not written: {reason}")),
            }
        }
        if totals.bad_loads > 0 {
            let warning = format!("loads that found nothing: {}", totals.bad_loads);
            self.warnings.push(warning);
        }
        for (what, count) in &totals.stopped {
            self.warnings
                .push(format!("ended early: {what} ({count} times)"));
        }
    }

    /// Writes the files that the options name, if the trace has begun. It has no end, and `why`.
    pub fn write_cut_off(
        mut self,
        why: &str,
        options: &Options,
        source: &Source,
        presentation: &Presentation,
        probes: &[String],
        symbols: &dyn Symbolize,
    ) -> Result<()> {
        if !self.has_begun {
            return Ok(());
        }
        self.is_cut_off = true;
        let warning = format!("{why}; what it had not sent is missing");
        self.warnings.push(warning);
        self.write(options, source, presentation, probes, symbols)
    }

    /// Writes the files that the options name.
    pub fn write(
        mut self,
        options: &Options,
        source: &Source,
        presentation: &Presentation,
        probes: &[String],
        symbols: &dyn Symbolize,
    ) -> Result<()> {
        let timeline = self.moments.build(self.builder, self.since_1970);
        if let Some(path) = &options.perfetto {
            let file = create(path)?;
            perfetto::write(&timeline, BufWriter::new(file)).with_context(|| cannot_write(path))?;
        }
        let (stacks, lacking) = match options.graph.is_wanted() {
            true => (vec![timeline.stacks("time in calls")], Vec::new()),
            false => maps::stacks(presentation, symbols),
        };
        let no_flame = options.flame.as_ref().filter(|_| stacks.is_empty());
        let no_flame = no_flame.map(|path| no_flame_graph(path, &lacking, self.is_cut_off));
        if let (Some(path), [first, ..]) = (&options.flame, &stacks[..]) {
            let picture = flame::svg(first, Flame::default());
            fs::write(path, picture).with_context(|| cannot_write(path))?;
            if let Some(others) = maps::not_drawn(&stacks) {
                say(format_args!("{} {others}", path.display()));
            }
            for what in &lacking {
                say(what);
            }
        }
        if let Some(path) = &options.html {
            self.warnings.extend(lacking);
            let run = options.run.as_deref().unwrap_or("workload");
            let page = html::page(&Page {
                title: source.title(),
                program: source.text.clone(),
                facts: vec![("ran meanwhile".into(), run.into())],
                books: books(&self.books, probes),
                warnings: self.warnings,
                output: self.output,
                histograms: maps::histograms(presentation, symbols)
                    .into_iter()
                    .chain(timeline.all_latencies(MOST_FUNCTIONS))
                    .collect(),
                heat_maps: timeline.latency_maps(COLUMNS, MOST_FUNCTIONS),
                timeline: Some(timeline),
                stacks,
            });
            fs::write(path, page).with_context(|| cannot_write(path))?;
        }
        match no_flame {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }
}

/// Why there is no flame graph.
fn no_flame_graph(path: &Path, lacking: &[String], is_cut_off: bool) -> String {
    let why = match lacking {
        _ if is_cut_off => "the maps have not come".into(),
        [] => "no map has a call stack among its keys; write, for example, `@[kstack] = count()`"
            .into(),
        lacking => lacking.join("; "),
    };
    format!("{} is not written: {why}", path.display())
}

/// The books by probe. Those of the pictures' own probes are left out if they have nothing.
fn books(books: &[frame::Books], probes: &[String]) -> Vec<Books> {
    let rows = books.iter().zip(probes).map(|(of, probe)| Books {
        probe: probe.clone(),
        hits: of.hits,
        missed: of.missed,
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

#[cfg(test)]
mod tests;
