//! What pictures show of maps: call stacks with numbers, and histograms.

use pictures::model::{Histogram, HistogramRow, Stacks, Unit};
use trace_answers::{Bucket, Presentation, Symbolize, Value};

/// What stands for a call stack that is not there: a task of the kernel has none of a program.
const NO_STACK: &str = "(no call stack)";

/// The maps that have a call stack among their keys. Other keys are the outermost frames. And what
/// has no place in them, as sentences: a box is as wide as a number, which may not be below zero.
pub fn stacks(presentation: &Presentation, symbols: &dyn Symbolize) -> (Vec<Stacks>, Vec<String>) {
    let (mut all, mut lacking) = (Vec::new(), Vec::new());
    for (name, entries) in presentation.maps() {
        if !presentation.has_stacks(name) {
            continue;
        }
        let mut rows = Vec::new();
        for (key, value) in &entries {
            let number = value.number().and_then(|number| u64::try_from(number).ok());
            let row = row_of_stacks(key, symbols);
            rows.extend(row.and_then(|row| Some((row, number?))));
        }
        match entries.len() - rows.len() {
            0 if rows.is_empty() => lacking.push(format!(
                "the flame graph of {name} is empty, because the map has no keys at the end"
            )),
            0 => {}
            left_out => lacking.push(format!(
                "the flame graph of {name} lacks {left_out} of {} call stacks, whose values are \
                 below zero or no numbers",
                entries.len()
            )),
        }
        // Of a map of texts, or of numbers below zero, there is nothing to draw.
        if rows.is_empty() && !entries.is_empty() {
            continue;
        }
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
    (all, lacking)
}

/// What a file of one flame graph does not show.
pub fn not_drawn(stacks: &[Stacks]) -> Option<String> {
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
            Value::UserStack(_, stack) => {
                has_stack = true;
                let frames = stack.iter().flat_map(|stack| stack.frames(symbols));
                let mut frames: Vec<String> = frames.map(|(name, _)| name).collect();
                frames.reverse();
                user.extend(frames);
            }
            Value::Stack(_, stack) => {
                has_stack = true;
                let addresses = stack.iter().flat_map(|stack| stack.iter().rev());
                kernel.extend(addresses.map(|address| {
                    let symbol = symbols.frame(*address);
                    symbol.map_or_else(|| format!("{address:#x}"), |symbol| symbol.name)
                }));
            }
            other => others.push(other.shown(symbols).to_string()),
        }
    }
    if user.is_empty() && kernel.is_empty() {
        kernel.push(NO_STACK.into());
    }
    has_stack.then(|| [others, user, kernel].concat())
}

/// The histograms of all maps.
pub fn histograms(presentation: &Presentation, symbols: &dyn Symbolize) -> Vec<Histogram> {
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
pub mod tests;
