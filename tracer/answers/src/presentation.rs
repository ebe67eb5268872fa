//! The answers, as text and as data.
//!
//! PRESENTATION-1. A map that a program asked to print is shown where its frame stands in the
//!     stream. Each map that was sent without such a question is shown at the end.

use alloc::{
    collections::BTreeMap,
    rc::Rc,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt::{self, Write};

use trace_interface::{
    frame::{Books, Frame, MapEntry},
    shape::Shape,
    view::{Class, HEADER, Level, MOST_WIDTH, MapView, Part, Record, Style, VALUES, View},
};

use crate::{
    decode::{Context, decode},
    format,
    map::{self, Key},
    value::{Symbolize, Value},
};

/// See the module's text. It is fed with all frames, in their order.
#[derive(Debug, Default)]
pub struct Presentation {
    view: View,
    /// How often loops were ended, by their numbers.
    stopped: Vec<u64>,
    context: Context,
    /// Maps that were asked for and have not come: the map, entries, divisor, and the key.
    waiting: Vec<(u32, u64, u64, Option<Vec<u8>>)>,
    latest: BTreeMap<u32, Vec<MapEntry>>,
    /// The last text that a program has printed does not end its line.
    is_in_line: bool,
    clock: Option<Clock>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    tsc: u64,
    tsc_hz: u64,
}

/// A record that a program has written.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    pub cpu: u32,
    /// The time stamp counter.
    pub tsc: u64,
    /// The task.
    pub tid: u32,
    /// The text that `printf` makes, without a newline at the end.
    pub text: String,
    /// The values that it shows.
    pub values: Vec<Value>,
    pub by: PrintedBy,
}

/// What has printed a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrintedBy {
    /// `printf`
    Line,
    /// `join`
    Join,
    /// `print` of a value, which is the only one.
    Value,
    /// `time`
    Time,
    /// `warnf`
    Warning,
    /// `errorf`
    Error,
}

/// A frame, understood.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Nothing to show.
    Nothing,
    /// All is attached, at so many places.
    Started { places: u64 },
    /// The kernel refuses the script.
    Refused { program: Option<u32>, text: String },
    /// A line that a program printed.
    Record(Recorded),
    /// A map, and the entries that are shown if a program has asked for them.
    Map {
        name: String,
        shown: Option<Vec<(Key, Value)>>,
    },
    /// The last one, with the status of `exit(STATUS)`, and what became of the hits.
    Ended { status: i32, totals: Totals },
}

/// The hits of all attachments together: `hits = recorded + missed`. Records and values that found
/// no room are in `lost`, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub hits: u64,
    pub missed: u64,
    /// Hits of the tracer's own tasks. They are not among `hits`.
    pub kept_out: u64,
    pub lost: Vec<(String, u64)>,
    pub bad_loads: u64,
    /// Loops that were ended because they had too many turns, and how often.
    pub stopped: Vec<(String, u64)>,
}

impl Totals {
    fn of(books: &[Books], lost: &[(String, u64)], bad_loads: u64) -> Self {
        Self {
            stopped: Vec::new(),
            kept_out: 0,
            hits: books.iter().map(|books| books.hits).sum(),
            missed: books.iter().map(|books| books.missed).sum(),
            lost: lost.to_vec(),
            bad_loads,
        }
    }
}

/// `12 hits = 11 recorded + 1 missed; 5 of the tracer itself kept out; not written: 3 (no room in
/// the ring); 2 loads found nothing`.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorded = self.hits.saturating_sub(self.missed);
        let plural = |number: u64, word| match number {
            1 => alloc::format!("1 {word}"),
            _ => alloc::format!("{number} {word}s"),
        };
        write!(
            f,
            "{} = {recorded} recorded + {} missed",
            plural(self.hits, "hit"),
            self.missed
        )?;
        if self.kept_out != 0 {
            write!(f, "; {} of the tracer itself kept out", self.kept_out)?;
        }
        for (index, (reason, count)) in self.lost.iter().enumerate() {
            let before = if index == 0 { "; not written: " } else { ", " };
            write!(f, "{before}{count} ({reason})")?;
        }
        if self.bad_loads != 0 {
            write!(f, "; {} found nothing", plural(self.bad_loads, "load"))?;
        }
        for (what, count) in &self.stopped {
            write!(f, "; ended early: {what} ({})", plural(*count, "time"))?;
        }
        Ok(())
    }
}

impl Presentation {
    /// Reads the answers of a script.
    pub fn new(mut view: View) -> Self {
        let context = Context {
            probes: core::mem::take(&mut view.probes),
            ..Context::default()
        };
        Self {
            view,
            context,
            ..Self::default()
        }
    }

    /// Shows a frame: writes the lines that it makes, if any, and tells what it was.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn frame(
        &mut self,
        frame: &Frame,
        symbols: &dyn Symbolize,
        out: &mut dyn Write,
    ) -> Result<Event, fmt::Error> {
        match frame {
            Frame::Started {
                tsc_hz,
                tsc,
                epoch_nanoseconds,
                places,
                ..
            } => {
                let clock = Clock {
                    tsc: *tsc,
                    tsc_hz: (*tsc_hz).max(1),
                };
                self.clock = Some(clock);
                let since_zero = nanoseconds(*tsc, clock.tsc_hz);
                self.context.epoch_of_zero = (*epoch_nanoseconds > 0)
                    .then(|| i128::from(*epoch_nanoseconds) - i128::from(since_zero));
                let places = places.iter().map(|places| u64::from(*places)).sum();
                Ok(Event::Started { places })
            }
            Frame::Refused { program, text } => Ok(Event::Refused {
                program: *program,
                text: text.clone(),
            }),
            Frame::Record { cpu, tsc, bytes } => self.record(*cpu, *tsc, bytes, symbols, out),
            Frame::Map { map, entries } => self.map(*map, entries, symbols, out),
            Frame::Stack {
                map,
                number,
                addresses,
            } => {
                let stack = Rc::from(&addresses[..]);
                self.context.stacks.insert((*map, *number), stack);
                Ok(Event::Nothing)
            }
            Frame::Comm { .. } => Ok(Event::Nothing),
            Frame::Ended {
                status,
                books,
                kept_out,
                lost,
                bad_loads,
            } => {
                if core::mem::take(&mut self.is_in_line) {
                    out.write_char('\n')?;
                }
                for map in self.by_name() {
                    if let Some(entries) = self.latest.get(&map)
                        && !self.view.hides_maps
                    {
                        self.write_map(map, &self.entries(map, entries), symbols, out)?;
                    }
                }
                let mut totals = Totals::of(books, lost, *bad_loads);
                for (reason, _) in &mut totals.lost {
                    if let Some(named) = self.with_name(reason) {
                        *reason = named;
                    }
                }
                totals.kept_out = *kept_out;
                let loops = self.view.loops.loops.iter().zip(&self.stopped);
                totals.stopped = loops
                    .filter(|(_, count)| **count != 0)
                    .map(|((text, turns), count)| {
                        (alloc::format!("{text} after {turns} turns"), *count)
                    })
                    .collect();
                writeln!(out, "{totals}")?;
                Ok(Event::Ended {
                    status: *status,
                    totals,
                })
            }
        }
    }

    /// Whether the last text of the program does not end its line.
    pub fn is_in_line(&self) -> bool {
        self.is_in_line
    }

    /// The text of the last frame is not shown, so [`Self::is_in_line`] is what it was before.
    pub fn take_back(&mut self, was_in_line: bool) {
        self.is_in_line = was_in_line;
    }

    /// A reason of the kernel, which knows maps by number, with the name that the program has.
    fn with_name(&self, reason: &str) -> Option<String> {
        let (number, what) = reason.strip_prefix("map ")?.split_once(": ")?;
        let map = self.view.maps.get(number.parse::<usize>().ok()?)?;
        Some(alloc::format!("{}: {what}", map.name.as_deref()?))
    }

    /// Shows maps as they are while the script runs, by name. Nothing is kept of them: what the
    /// frames say stands. Their call stacks are those of the frames until now.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn live(
        &self,
        maps: &BTreeMap<u32, Vec<MapEntry>>,
        symbols: &dyn Symbolize,
        out: &mut dyn Write,
    ) -> fmt::Result {
        for map in self.by_name() {
            if let Some(entries) = maps.get(&map) {
                let entries = self.of_whole_functions(map, entries, symbols);
                self.write_map(map, &self.entries(map, &entries), symbols, out)?;
            }
        }
        Ok(())
    }

    /// The entries of maps as they are while the script runs, by name and in the order of
    /// [`Self::maps`]. See [`Self::live`].
    pub fn live_maps(
        &self,
        maps: &BTreeMap<u32, Vec<MapEntry>>,
        symbols: &dyn Symbolize,
    ) -> impl Iterator<Item = (&str, Vec<(Key, Value)>)> {
        self.by_name().into_iter().filter_map(|map| {
            let name = self.view.maps.get(map as usize)?.name.as_deref()?;
            let entries = self.of_whole_functions(map, maps.get(&map)?, symbols);
            Some((name, self.entries(map, &entries)))
        })
    }

    /// The maps as they were sent last, by name: the entries by value, the least one first.
    pub fn maps(&self) -> impl Iterator<Item = (&str, Vec<(Key, Value)>)> {
        self.by_name().into_iter().filter_map(|map| {
            let name = self.view.maps.get(map as usize)?.name.as_deref()?;
            Some((name, self.entries(map, self.latest.get(&map)?)))
        })
    }

    /// The map of that name: its keys, and how its values are kept.
    pub fn map_called(&self, name: &str) -> Option<&MapView> {
        let mut maps = self.view.maps.iter();
        maps.find(|map| map.name.as_deref() == Some(name))
    }

    /// Whether the numbers of a map say how often something was hit, and no more.
    pub fn counts_hits(&self, name: &str) -> bool {
        self.map_called(name)
            .is_some_and(|map| matches!(map.class, Class::Count | Class::Histogram(_)))
    }

    /// Whether a map has a call stack among its keys.
    pub fn has_stacks(&self, name: &str) -> bool {
        let is_stack = |key: &Shape| matches!(key, Shape::Stack { .. });
        self.map_called(name)
            .is_some_and(|map| map.keys.iter().any(is_stack))
    }

    /// The maps that are shown when the script ends: all, unless it says that none is.
    pub fn maps_at_end(&self) -> impl Iterator<Item = (&str, Vec<(Key, Value)>)> {
        self.maps().filter(|_| !self.view.hides_maps)
    }

    /// The records of the program.
    pub(crate) fn records(&self) -> &[Record] {
        &self.view.records
    }

    /// Nanoseconds from the beginning of the script to a count of the time stamp counter.
    pub fn nanoseconds_since_start(&self, tsc: u64) -> Option<i64> {
        let clock = self.clock?;
        let distance = i128::from(tsc) - i128::from(clock.tsc);
        i64::try_from(distance * 1_000_000_000 / i128::from(clock.tsc_hz)).ok()
    }

    /// The numbers of maps with names, in the order of the names.
    fn by_name(&self) -> Vec<u32> {
        let named = (0..).zip(&self.view.maps);
        let mut named: Vec<(&str, u32)> = named
            .filter_map(|(number, map)| Some((map.name.as_deref()?, number)))
            .collect();
        named.sort_unstable();
        named.into_iter().map(|(_, number)| number).collect()
    }

    /// The values of a record, at their offsets.
    fn values(&self, places: &[(u32, Shape)], stored: &[u8]) -> Vec<Value> {
        let value = |(offset, shape): &(u32, Shape)| {
            let bytes = stored.get(*offset as usize..).unwrap_or(&[]);
            decode(shape, bytes, &self.context)
        };
        places.iter().map(value).collect()
    }

    fn record(
        &mut self,
        cpu: u32,
        tsc: u64,
        bytes: &[u8],
        symbols: &dyn Symbolize,
        out: &mut dyn Write,
    ) -> Result<Event, fmt::Error> {
        let word = |at: usize| {
            let bytes = bytes.get(at..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let tid = word(4).unwrap_or(0);
        let request = word(HEADER).unwrap_or(u32::MAX);
        let stored = bytes.get(HEADER + VALUES..).unwrap_or(&[]);
        let Some(record) = self.view.records.get(request as usize) else {
            return Ok(Event::Nothing);
        };
        let (by, text, values) = match record {
            Record::Silent | Record::Exit => return Ok(Event::Nothing),
            Record::Map { map, top, divisor } => {
                self.waiting.push((*map, *top, *divisor, None));
                return Ok(Event::Nothing);
            }
            Record::Key { map } => {
                self.waiting.push((*map, 0, 1, Some(stored.to_vec())));
                return Ok(Event::Nothing);
            }
            Record::Line {
                level,
                parts,
                values,
            } => {
                let values = self.values(values, stored);
                let text = line(parts, &values, symbols)?;
                match level {
                    Level::Plain => (PrintedBy::Line, text, values),
                    Level::Warning => {
                        let text = alloc::format!("WARNING: {}\n", text.trim_end_matches('\n'));
                        (PrintedBy::Warning, text, values)
                    }
                    Level::Error => {
                        let text = alloc::format!("ERROR: {}\n", text.trim_end_matches('\n'));
                        (PrintedBy::Error, text, values)
                    }
                }
            }
            Record::Joined { between, values } => {
                let mut values = self.values(values, stored);
                values.retain(|value| *value != Value::Absent);
                let texts = values.iter().map(|value| value.shown(symbols).to_string());
                let texts: Vec<String> = texts.collect();
                let text = alloc::format!("{}\n", texts.join(between));
                (PrintedBy::Join, text, values)
            }
            Record::Value(shape) => {
                let value = decode(shape, stored, &self.context);
                let text = alloc::format!("{}\n", value.shown(symbols));
                (PrintedBy::Value, text, alloc::vec![value])
            }
            Record::Time(shape) => {
                let value = decode(shape, stored, &self.context);
                let text = value.shown(symbols).to_string();
                (PrintedBy::Time, text, alloc::vec![value])
            }
        };
        out.write_str(&text)?;
        if !text.is_empty() {
            self.is_in_line = !text.ends_with('\n');
        }
        Ok(Event::Record(Recorded {
            cpu,
            tsc,
            tid,
            text: text.trim_end_matches('\n').into(),
            values,
            by,
        }))
    }

    fn map(
        &mut self,
        map: u32,
        entries: &[MapEntry],
        symbols: &dyn Symbolize,
        out: &mut dyn Write,
    ) -> Result<Event, fmt::Error> {
        if self.view.loops.counters == Some(map) {
            self.stopped = alloc::vec![0; self.view.loops.loops.len()];
            for entry in entries {
                let index = entry.key.first_chunk().copied().map(u32::from_le_bytes);
                let count = entry.value.first_chunk().copied().map(u64::from_le_bytes);
                let of_loop = index.and_then(|index| self.stopped.get_mut(index as usize));
                if let (Some(of_loop), Some(count)) = (of_loop, count) {
                    *of_loop = of_loop.saturating_add(count);
                }
            }
        }
        let Some(name) = self
            .view
            .maps
            .get(map as usize)
            .and_then(|map| map.name.clone())
        else {
            return Ok(Event::Nothing);
        };
        let entries = self.of_whole_functions(map, entries, symbols);
        self.latest.insert(map, entries);
        let entries = &self.latest[&map];
        let asked = self.waiting.iter().position(|(of, ..)| *of == map);
        let Some(asked) = asked else {
            return Ok(Event::Map { name, shown: None });
        };
        let (_, top, divisor, key) = self.waiting.remove(asked);
        let shown = match key {
            None => {
                let mut values = self.entries(map, entries);
                let nothing = map::nothing_yet(&self.view.maps[map as usize], &self.context);
                values.extend(
                    nothing
                        .filter(|_| values.is_empty())
                        .map(|value| (Vec::new(), value)),
                );
                if let Ok(top @ 1..) = usize::try_from(top) {
                    values.drain(..values.len().saturating_sub(top));
                }
                for (_, value) in &mut values {
                    value.divide(divisor);
                }
                values
            }
            Some(mut key) => {
                map::of_whole_functions(&self.view.maps[map as usize], &mut key, symbols);
                let bytes = map::key_bytes(&self.view.maps[map as usize]);
                let of_key = |entry: &&MapEntry| {
                    let of = entry.key.get(..bytes);
                    of.is_some_and(|of| key.starts_with(of))
                };
                let entries: Vec<MapEntry> = entries.iter().filter(of_key).cloned().collect();
                self.entries(map, &entries)
            }
        };
        self.write_map(map, &shown, symbols, out)?;
        let shown = Some(shown);
        Ok(Event::Map { name, shown })
    }

    /// The same entries, whose keys have whole functions where they stand for functions.
    fn of_whole_functions(
        &self,
        map: u32,
        entries: &[MapEntry],
        symbols: &dyn Symbolize,
    ) -> Vec<MapEntry> {
        let mut entries = entries.to_vec();
        if let Some(map) = self.view.maps.get(map as usize) {
            for entry in &mut entries {
                map::of_whole_functions(map, &mut entry.key, symbols);
            }
        }
        entries
    }

    /// What the entries of the map with that number say: keys, each with the value of all CPUs.
    pub fn entries(&self, map: u32, entries: &[MapEntry]) -> Vec<(Key, Value)> {
        let map = self.view.maps.get(map as usize);
        map.map_or_else(Vec::new, |map| map::entries(map, entries, &self.context))
    }

    fn write_map(
        &self,
        map: u32,
        values: &[(Key, Value)],
        symbols: &dyn Symbolize,
        out: &mut dyn Write,
    ) -> fmt::Result {
        let Some(map) = self.view.maps.get(map as usize) else {
            return Ok(());
        };
        for (key, value) in values {
            map::write_entry(map, key, value, symbols, out)?;
            if matches!(value, Value::Histogram(_) | Value::Series(_)) {
                out.write_char('\n')?;
            }
        }
        let has_pictures = matches!(map.class, Class::Histogram(_) | Class::Series(_));
        let is_table = !map.keys.is_empty() && !has_pictures;
        if is_table && !values.is_empty() {
            out.write_char('\n')?;
        }
        Ok(())
    }
}

/// The text of a line.
fn line(parts: &[Part], values: &[Value], symbols: &dyn Symbolize) -> Result<String, fmt::Error> {
    let mut text = String::new();
    let mut values = values.iter();
    let mut asked = None;
    for part in parts {
        match part {
            Part::Literal(literal) => text.push_str(literal),
            Part::Value(conversion) => {
                let Some(value) = values.next() else {
                    continue;
                };
                if conversion.style == Style::Width {
                    asked = value.number();
                    continue;
                }
                let mut conversion = *conversion;
                if let Some(width) = asked.take() {
                    let columns = usize::try_from(width.unsigned_abs()).unwrap_or(MOST_WIDTH);
                    conversion.width = columns.min(MOST_WIDTH);
                    conversion.left |= width < 0;
                }
                format::write(&conversion, value, symbols, &mut text)?;
            }
        }
    }
    Ok(text)
}

/// Nanoseconds of so many ticks.
fn nanoseconds(ticks: u64, hz: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(hz.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoSymbols;

    impl Symbolize for NoSymbols {
        fn symbol(&self, _address: u64) -> Option<trace_interface::symbols::Symbol> {
            None
        }
    }

    /// Two maps may be full, so a number says nothing to users. A map of the compiler's own has
    /// only that.
    #[test]
    fn a_map_that_was_full_has_its_name_in_the_books() {
        let maps = [Some("@calls"), None].map(|name| MapView {
            name: name.map(String::from),
            class: Class::Count,
            keys: Vec::new(),
        });
        let mut presentation = Presentation::new(View {
            maps: maps.into(),
            ..View::default()
        });
        let reasons = ["map 0: full", "map 1: full", "map 2: full", "records: full"];
        let ended = Frame::Ended {
            status: 0,
            books: Vec::new(),
            kept_out: 0,
            lost: reasons.map(|reason| (reason.into(), 4)).into(),
            bad_loads: 0,
        };
        let mut text = String::new();
        let event = presentation.frame(&ended, &NoSymbols, &mut text).unwrap();
        let Event::Ended { totals, .. } = event else {
            panic!("it is the end");
        };
        let reasons: Vec<&str> = totals.lost.iter().map(|(reason, _)| &**reason).collect();
        assert_eq!(
            reasons,
            [
                "@calls: full",
                "map 1: full",
                "map 2: full",
                "records: full"
            ]
        );
        assert!(
            text.contains("not written: 4 (@calls: full), 4 (map 1: full),"),
            "{text}"
        );
    }

    #[test]
    fn books_count_in_the_singular_and_the_plural() {
        let mut totals = Totals {
            hits: 1,
            bad_loads: 1,
            lost: alloc::vec![("full".into(), 3), ("torn".into(), 1)],
            stopped: alloc::vec![("while after 8 turns".into(), 1)],
            ..Totals::default()
        };
        assert_eq!(
            totals.to_string(),
            "1 hit = 1 recorded + 0 missed; not written: 3 (full), 1 (torn); 1 load found nothing; \
             ended early: while after 8 turns (1 time)"
        );
        totals = Totals {
            hits: 12,
            missed: 2,
            kept_out: 1,
            bad_loads: 2,
            stopped: alloc::vec![("for after 9 turns".into(), 2)],
            ..Totals::default()
        };
        assert_eq!(
            totals.to_string(),
            "12 hits = 10 recorded + 2 missed; 1 of the tracer itself kept out; 2 loads found \
             nothing; ended early: for after 9 turns (2 times)"
        );
    }
}
