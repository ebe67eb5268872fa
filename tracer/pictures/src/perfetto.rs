//! A file for the Perfetto UI (<https://ui.perfetto.dev>), in its `TrackEvent` form.
//!
//! The file is a sequence of packets. Some describe tracks: a process and a thread for each task, a
//! track for each processor, a track for each counter. The others are events on a track: a slice
//! begins, a slice ends, an instant, a counter's value. Slices of one track nest by their order.
//!
//! Numbers of fields are those of Perfetto's published messages; the constants carry their names.
//!
//! PERFETTO-1. All packets are of one sequence, so a name is written once and has a number after
//!     that (it is interned).
//! PERFETTO-2. On each track a slice ends after all that began in it. A call that never returned
//!     has no end; the UI draws it up to the end of the recording.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use crate::{
    model::{Call, Seen, Timeline},
    protobuf::Message,
    units::grouped,
};

/// The field of `Trace`.
const PACKET: u32 = 1;

/// Fields of `TracePacket`.
mod packet {
    pub const CLOCK_SNAPSHOT: u32 = 6;
    pub const TIMESTAMP: u32 = 8;
    pub const TRUSTED_PACKET_SEQUENCE_ID: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED_DATA: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK_DESCRIPTOR: u32 = 60;
    pub const FIRST_PACKET_ON_SEQUENCE: u32 = 87;
}

/// Fields of `ClockSnapshot`, and of its `Clock`.
mod clock {
    pub const CLOCKS: u32 = 1;
    pub const CLOCK_ID: u32 = 1;
    pub const TIMESTAMP: u32 = 2;
    pub const REALTIME: u64 = 1;
    /// The clock of packets that name none.
    pub const BOOTTIME: u64 = 6;
}

/// Fields of `TrackDescriptor` and of what it holds.
mod track {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const THREAD: u32 = 4;
    pub const PARENT_UUID: u32 = 5;
    pub const COUNTER: u32 = 8;
    pub const CHILD_ORDERING: u32 = 11;
    pub const SIBLING_ORDER_RANK: u32 = 12;
    pub const ORDERING_EXPLICIT: u64 = 3;
    pub const PROCESS_PID: u32 = 1;
    pub const PROCESS_NAME: u32 = 6;
    pub const THREAD_PID: u32 = 1;
    pub const THREAD_TID: u32 = 2;
    pub const THREAD_NAME: u32 = 5;
    pub const COUNTER_UNIT_NAME: u32 = 6;
}

/// Fields of `TrackEvent`.
mod event {
    pub const CATEGORY_IIDS: u32 = 3;
    pub const DEBUG_ANNOTATIONS: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME_IID: u32 = 10;
    pub const TRACK_UUID: u32 = 11;
    pub const DOUBLE_COUNTER_VALUE: u32 = 44;
    pub const SLICE_BEGIN: u64 = 1;
    pub const SLICE_END: u64 = 2;
    pub const INSTANT: u64 = 3;
    pub const COUNTER: u64 = 4;
}

/// Fields of `DebugAnnotation`.
mod annotation {
    pub const NAME_IID: u32 = 1;
    pub const UINT_VALUE: u32 = 3;
    pub const INT_VALUE: u32 = 4;
    pub const STRING_VALUE: u32 = 6;
}

/// Fields of `InternedData`, and of what it holds.
mod interned {
    pub const EVENT_CATEGORIES: u32 = 1;
    pub const EVENT_NAMES: u32 = 2;
    pub const DEBUG_ANNOTATION_NAMES: u32 = 3;
    pub const IID: u32 = 1;
    pub const NAME: u32 = 2;
}

const SEQUENCE: u64 = 1;
const INCREMENTAL_STATE_CLEARED: u64 = 1;
const NEEDS_INCREMENTAL_STATE: u64 = 2;

// The numbers of tracks: each kind has a range.
const PROCESSES: u64 = 1 << 32;
const TASKS: u64 = 2 << 32;
const CPUS: u64 = 3 << 32;
const COUNTERS: u64 = 4 << 32;
const RECORDING: u64 = 5 << 32;

/// Writes the file.
///
/// # Errors
/// Those of `out`.
pub fn write(timeline: &Timeline, out: impl Write) -> io::Result<()> {
    let mut file = File {
        out,
        names: HashMap::new(),
        new_names: Message::default(),
    };
    file.packet(None, |packet| {
        packet.unsigned(packet::SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED);
        packet.unsigned(packet::FIRST_PACKET_ON_SEQUENCE, 1);
    })?;
    file.clocks(timeline)?;
    file.describe_cpus(timeline)?;
    file.describe_tasks(timeline)?;
    file.runs(timeline)?;
    for (tid, calls) in timeline.calls_by_task() {
        file.calls(TASKS | u64::from(tid), &calls)?;
    }
    for instant in &timeline.instants {
        let mut event = Event::new(event::INSTANT, TASKS | u64::from(instant.tid));
        event.name = Some(&instant.name);
        event.category = Some("instant");
        event.annotations = annotations(&instant.arguments);
        file.event(instant.time, &event)?;
    }
    file.counters(timeline)?;
    file.lost(timeline)?;
    file.out.flush()
}

struct File<W> {
    out: W,
    /// The number of each name that was written, by kind.
    names: HashMap<(u32, String), u64>,
    /// `InternedData` for the next packet.
    new_names: Message,
}

/// A `TrackEvent`.
struct Event<'a> {
    kind: u64,
    track: u64,
    name: Option<&'a str>,
    category: Option<&'a str>,
    annotations: Vec<(&'a str, &'a str)>,
    value: Option<f64>,
}

impl Event<'_> {
    fn new(kind: u64, track: u64) -> Self {
        Self {
            kind,
            track,
            name: None,
            category: None,
            annotations: Vec::new(),
            value: None,
        }
    }
}

fn annotations(arguments: &[(String, String)]) -> Vec<(&str, &str)> {
    let pairs = arguments.iter();
    pairs
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

impl<W: Write> File<W> {
    fn packet(&mut self, time: Option<u64>, write: impl FnOnce(&mut Message)) -> io::Result<()> {
        let mut trace = Message::default();
        trace.message(PACKET, |packet| {
            if let Some(time) = time {
                packet.unsigned(packet::TIMESTAMP, time);
            }
            packet.unsigned(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
            write(packet);
        });
        self.out.write_all(trace.bytes())
    }

    fn describe(&mut self, uuid: u64, write: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.packet(None, |packet| {
            packet.message(packet::TRACK_DESCRIPTOR, |track| {
                track.unsigned(track::UUID, uuid);
                write(track);
            });
        })
    }

    fn clocks(&mut self, timeline: &Timeline) -> io::Result<()> {
        let Some(wall_clock) = timeline.wall_clock else {
            return Ok(());
        };
        let clocks = [
            (clock::BOOTTIME, wall_clock.time),
            (clock::REALTIME, wall_clock.since_1970),
        ];
        self.packet(Some(wall_clock.time), |packet| {
            packet.message(packet::CLOCK_SNAPSHOT, |snapshot| {
                for (id, time) in clocks {
                    snapshot.message(clock::CLOCKS, |clock| {
                        clock.unsigned(clock::CLOCK_ID, id);
                        clock.unsigned(clock::TIMESTAMP, time);
                    });
                }
            });
        })
    }

    fn describe_cpus(&mut self, timeline: &Timeline) -> io::Result<()> {
        if timeline.runs.is_empty() {
            return Ok(());
        }
        self.describe(CPUS, |track| {
            track.text(track::NAME, "Processors");
            track.unsigned(track::CHILD_ORDERING, track::ORDERING_EXPLICIT);
        })?;
        for cpu in 0..timeline.cpus {
            self.describe(cpu_track(cpu), |track| {
                track.unsigned(track::PARENT_UUID, CPUS);
                track.text(track::NAME, &format!("CPU {cpu}"));
                track.signed(track::SIBLING_ORDER_RANK, i64::from(cpu));
            })?;
        }
        Ok(())
    }

    fn describe_tasks(&mut self, timeline: &Timeline) -> io::Result<()> {
        let mut processes: Vec<u32> = timeline.tasks.iter().map(|task| task.pid).collect();
        processes.sort_unstable();
        processes.dedup();
        // The UI takes thread 0 for the idle threads of Linux, and shows no slices on it.
        for &pid in processes.iter().filter(|&&pid| pid != 0) {
            self.describe(PROCESSES | u64::from(pid), |track| {
                track.message(track::PROCESS, |process| {
                    process.signed(track::PROCESS_PID, i64::from(pid));
                    process.text(track::PROCESS_NAME, &timeline.task_name(pid));
                });
            })?;
        }
        for task in &timeline.tasks {
            let name = timeline.task_name(task.tid);
            self.describe(TASKS | u64::from(task.tid), |track| {
                if task.tid == 0 || task.pid == 0 {
                    track.text(track::NAME, &name);
                    return;
                }
                track.unsigned(track::PARENT_UUID, PROCESSES | u64::from(task.pid));
                track.message(track::THREAD, |thread| {
                    thread.signed(track::THREAD_PID, i64::from(task.pid));
                    thread.signed(track::THREAD_TID, i64::from(task.tid));
                    thread.text(track::THREAD_NAME, &name);
                });
            })?;
        }
        Ok(())
    }

    fn runs(&mut self, timeline: &Timeline) -> io::Result<()> {
        let mut runs: Vec<_> = timeline.runs.iter().collect();
        runs.sort_by_key(|run| (run.cpu, run.begin));
        let mut before = (0, 0);
        for run in runs {
            // Where two overlap, the later one begins when the earlier one ends.
            let begin = match before {
                (cpu, end) if cpu == run.cpu => run.begin.max(end),
                _ => run.begin,
            };
            let end = run.end.max(begin);
            before = (run.cpu, end);
            let name = timeline.task_name(run.tid);
            let mut event = Event::new(event::SLICE_BEGIN, cpu_track(run.cpu));
            event.name = Some(&name);
            event.category = Some("run");
            self.event(begin, &event)?;
            self.event(end, &Event::new(event::SLICE_END, cpu_track(run.cpu)))?;
        }
        Ok(())
    }

    /// The calls of one task.
    fn calls(&mut self, track: u64, calls: &[&Call]) -> io::Result<()> {
        let mut open: Vec<&Call> = Vec::new();
        let mut time = 0;
        for call in calls {
            while open.len() > call.depth as usize
                && let Some(ended) = open.pop()
            {
                time = time.max(ended.end);
                self.end(time, track, ended)?;
            }
            time = time.max(call.begin);
            let cpu = call.cpu_at_entry.map(|cpu| cpu.to_string());
            let mut event = Event::new(event::SLICE_BEGIN, track);
            event.name = Some(&call.function);
            event.category = Some("call");
            event.annotations = annotations(&call.arguments);
            event
                .annotations
                .extend(cpu.as_deref().map(|cpu| ("cpu", cpu)));
            event
                .annotations
                .extend(note(call.seen).map(|note| ("note", note)));
            self.event(time, &event)?;
            open.push(call);
        }
        while let Some(ended) = open.pop() {
            time = time.max(ended.end);
            self.end(time, track, ended)?;
        }
        Ok(())
    }

    fn end(&mut self, time: u64, track: u64, call: &Call) -> io::Result<()> {
        if call.seen == Seen::Open {
            return Ok(());
        }
        let mut event = Event::new(event::SLICE_END, track);
        event
            .annotations
            .extend(call.result.as_deref().map(|result| ("return", result)));
        self.event(time, &event)
    }

    fn counters(&mut self, timeline: &Timeline) -> io::Result<()> {
        for (uuid, counter) in (COUNTERS..).zip(&timeline.counters) {
            self.describe(uuid, |track| {
                track.text(track::NAME, &counter.name);
                track.message(track::COUNTER, |description| {
                    if !counter.unit.is_empty() {
                        description.text(track::COUNTER_UNIT_NAME, &counter.unit);
                    }
                });
            })?;
            for &(time, value) in &counter.samples {
                let mut event = Event::new(event::COUNTER, uuid);
                event.value = Some(value);
                self.event(time, &event)?;
            }
        }
        Ok(())
    }

    /// A picture in which something is missing says so.
    fn lost(&mut self, timeline: &Timeline) -> io::Result<()> {
        if timeline.lost.iter().all(|&(_, records)| records == 0) {
            return Ok(());
        }
        self.describe(RECORDING, |track| track.text(track::NAME, "Recording"))?;
        for (reason, records) in &timeline.lost {
            let name = format!("{} records lost: {reason}", grouped(*records));
            let mut event = Event::new(event::INSTANT, RECORDING);
            event.name = Some(&name);
            self.event(timeline.span().1, &event)?;
        }
        Ok(())
    }

    fn event(&mut self, time: u64, event: &Event<'_>) -> io::Result<()> {
        let mut message = Message::default();
        message.unsigned(event::TYPE, event.kind);
        message.unsigned(event::TRACK_UUID, event.track);
        if let Some(name) = event.name {
            message.unsigned(event::NAME_IID, self.number(interned::EVENT_NAMES, name));
        }
        if let Some(category) = event.category {
            let number = self.number(interned::EVENT_CATEGORIES, category);
            message.unsigned(event::CATEGORY_IIDS, number);
        }
        if let Some(value) = event.value {
            message.double(event::DOUBLE_COUNTER_VALUE, value);
        }
        for &(name, value) in &event.annotations {
            let number = self.number(interned::DEBUG_ANNOTATION_NAMES, name);
            message.message(event::DEBUG_ANNOTATIONS, |annotation| {
                annotation.unsigned(annotation::NAME_IID, number);
                // Numbers as numbers, so that a query can add them up.
                if let Ok(value) = value.parse::<u64>() {
                    annotation.unsigned(annotation::UINT_VALUE, value);
                } else if let Ok(value) = value.parse::<i64>() {
                    annotation.signed(annotation::INT_VALUE, value);
                } else {
                    annotation.text(annotation::STRING_VALUE, value);
                }
            });
        }
        let new_names = std::mem::take(&mut self.new_names);
        self.packet(Some(time), |packet| {
            packet.unsigned(packet::SEQUENCE_FLAGS, NEEDS_INCREMENTAL_STATE);
            if !new_names.bytes().is_empty() {
                packet.delimited(packet::INTERNED_DATA, new_names.bytes());
            }
            packet.delimited(packet::TRACK_EVENT, message.bytes());
        })
    }

    /// The number of a name. A new one goes out with the next packet.
    fn number(&mut self, kind: u32, name: &str) -> u64 {
        // 0 stands for no name.
        let next = self.names.len() as u64 + 1;
        let number = *self.names.entry((kind, name.to_owned())).or_insert(next);
        if number == next {
            self.new_names.message(kind, |entry| {
                entry.unsigned(interned::IID, number);
                entry.text(interned::NAME, name);
            });
        }
        number
    }
}

fn cpu_track(cpu: u32) -> u64 {
    CPUS + 1 + u64::from(cpu)
}

fn note(seen: Seen) -> Option<&'static str> {
    match seen {
        Seen::Whole => None,
        Seen::ReturnOnly => Some("its entry was not recorded; it began at this time or earlier"),
        Seen::EntryOnly => Some("its return was not recorded; it ended with its caller or earlier"),
        Seen::Open => Some("never returned"),
    }
}
