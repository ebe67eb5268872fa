//! When calls and lines were, from records.
//!
//! A record has a time of its own: when it was written, by the time stamp counter. A call has times
//! that its program has read before, by the clock of the boot. Between the two an interrupt or the
//! emulator may take a millisecond. A call that ended at its record would begin too late, and not
//! be around the calls that it has made. Therefore calls have the times that were read.
//!
//! The distance of the two clocks is one number for a trace. What is seen of it is never less than
//! the truth, because each record is written after the times in it were read: so the least one is
//! the nearest.
//!
//! Places are attached before the trace has a beginning, so some records have times before it.

use std::{collections::HashMap, time::Duration};

use pictures::{
    Builder, Timeline,
    model::{Call, Seen, WallClock},
};
use trace_answers::{Recorded, Symbolize, Value};

use crate::calls::{OTHERS, Told};

/// What records have told, those of a task in their order.
#[derive(Default)]
pub struct Moments {
    /// Only trees whose first call takes longer.
    over: Option<Duration>,
    all: Vec<Moment>,
    /// By number; idle tasks by CPU.
    tasks: HashMap<(u32, u32), Task>,
    /// From the clock of the boot to that of the trace.
    distance: Option<i64>,
}

/// What is known of the tree that a task is in.
#[derive(Default)]
struct Task {
    /// The calls that have not returned, the outermost first.
    open: Vec<Open>,
    /// Calls that wait for the end of their tree.
    held: Vec<Call>,
}

enum Moment {
    /// A line, in nanoseconds since the beginning of the trace.
    Said {
        time: i64,
        tid: u32,
        cpu: u32,
        text: String,
    },
    /// A call, whose times are since the boot.
    Called(Call),
}

struct Open {
    depth: u64,
    call: Call,
}

impl Moments {
    /// With a bound of time, trees whose first call takes longer are wanted, and no others.
    pub fn new(over: Option<Duration>) -> Self {
        Self {
            over,
            ..Self::default()
        }
    }

    /// A line of the program.
    pub fn said(&mut self, time: i64, record: &Recorded) {
        self.all.push(Moment::Said {
            time,
            tid: record.tid,
            cpu: record.cpu,
            text: record.text.clone(),
        });
    }

    /// What a record tells of a call.
    pub fn told(&mut self, told: Told, time: i64, record: &Recorded, symbols: &dyn Symbolize) {
        let shown = |value: &Value| value.shown(symbols).to_string();
        let cpu = Some(record.cpu);
        let call = |function, begin, arguments: &[(String, Value)]| Call {
            tid: record.tid,
            cpu_at_entry: None,
            cpu_at_return: None,
            function: shown(&Value::Symbol {
                address: function,
                with_offset: false,
            }),
            begin,
            end: begin,
            seen: Seen::Open,
            arguments: arguments
                .iter()
                .filter(|(name, _)| name != OTHERS)
                .map(|(name, value)| (name.clone(), shown(value)))
                .collect(),
            result: None,
            depth: 0,
        };
        let (call, depth) = match &told {
            Told::Entry(entry) => {
                let call = Call {
                    cpu_at_entry: cpu,
                    ..call(entry.function, entry.call.begin, &entry.arguments)
                };
                (call, entry.call.depth)
            }
            Told::Return(end) => {
                let length = u64::try_from(end.time.as_nanos()).unwrap_or(u64::MAX);
                let call = Call {
                    cpu_at_return: cpu,
                    end: end.begin.saturating_add(length),
                    seen: Seen::Whole,
                    result: end.result.as_ref().map(shown),
                    ..call(end.function, end.begin, &end.arguments)
                };
                (call, end.call.unwrap_or_default().depth)
            }
        };
        let distance = time.saturating_sub(signed(call.end));
        let least = self.distance.map_or(distance, |least| least.min(distance));
        self.distance = Some(least);
        let task = match record.tid {
            0 => (0, record.cpu),
            tid => (tid, 0),
        };
        let task = self.tasks.entry(task).or_default();
        // Those have ended, even if the record of it was lost.
        task.open.retain(|open| open.depth < depth);
        match (told, self.over) {
            (Told::Entry(_), _) => {
                if depth == 0 {
                    task.held.clear();
                }
                task.open.push(Open { depth, call });
            }
            (Told::Return(_), None) => self.all.push(Moment::Called(call)),
            (Told::Return(end), Some(over)) => {
                task.held.push(call);
                if depth == 0 {
                    let held = task.held.drain(..).filter(|_| end.time > over);
                    self.all.extend(held.map(Moment::Called));
                }
            }
        }
    }

    /// Hands all over to a builder. `since_1970` is the time of day at the beginning.
    pub fn build(self, mut builder: Builder, since_1970: Option<u64>) -> Timeline {
        let distance = self.distance.unwrap_or(0);
        let since_begin = |since_boot: u64| signed(since_boot).saturating_add(distance);
        // Nothing tells whether a tree without an end takes longer than the bound.
        let tasks = self.tasks.into_values().filter(|_| self.over.is_none());
        let open = tasks.flat_map(|task| task.open).map(|open| open.call);
        let mut open: Vec<Call> = open.collect();
        // An order that does not depend on the table's.
        open.sort_by_key(|call| (call.begin, call.tid, call.cpu_at_entry));
        let spans = self.all.iter().map(|moment| match moment {
            Moment::Said { time, .. } => (*time, *time),
            Moment::Called(call) => (since_begin(call.begin), since_begin(call.end)),
        });
        let spans = spans.chain(open.iter().map(|call| {
            let begin = since_begin(call.begin);
            (begin, begin)
        }));
        let (first, last) = spans.fold((0, 0), |(first, last), (begin, end)| {
            (begin.min(first), end.max(last))
        });
        let placed = |time: i64| u64::try_from(time.saturating_sub(first)).unwrap_or(0);
        if let Some(since_1970) = since_1970 {
            builder.wall_clock(WallClock {
                time: placed(0),
                since_1970,
            });
        }
        for moment in self.all {
            match moment {
                Moment::Said {
                    time,
                    tid,
                    cpu,
                    text,
                } => builder.instant(placed(time), tid, cpu, &text, Vec::new()),
                Moment::Called(call) => builder.call(Call {
                    begin: placed(since_begin(call.begin)),
                    end: placed(since_begin(call.end)),
                    ..call
                }),
            }
        }
        // The inner ones first, as if they returned now.
        for call in open.into_iter().rev() {
            builder.call(Call {
                begin: placed(since_begin(call.begin)),
                end: placed(last),
                ..call
            });
        }
        builder.finish()
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
