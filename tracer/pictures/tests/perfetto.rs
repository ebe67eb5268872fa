//! Decodes the Perfetto file with a decoder of protocol buffers that is not ours.
//!
//! The messages here are a part of Perfetto's published ones: the same names, numbers and types.

use std::collections::{BTreeMap, HashMap};

use pictures::{
    Builder, Timeline,
    model::{Run, WallClock},
    perfetto,
};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
    #[prost(bool, optional, tag = "87")]
    first_packet_on_sequence: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<Clock>,
}

#[derive(Clone, PartialEq, Message)]
struct Clock {
    #[prost(uint32, optional, tag = "1")]
    clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(double, optional, tag = "44")]
    double_counter_value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    int_value: Option<i64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "1")]
    event_categories: Vec<Name>,
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<Name>,
    #[prost(message, repeated, tag = "3")]
    debug_annotation_names: Vec<Name>,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(uint64, optional, tag = "1")]
    iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<CounterDescriptor>,
    #[prost(int32, optional, tag = "11")]
    child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    sibling_order_rank: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    thread_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    unit_name: Option<String>,
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    list.iter().map(owned).collect()
}

fn example() -> Timeline {
    let mut builder = Builder::new();
    builder.task(7, 5, "writer");
    builder.task(5, 5, "shell");
    builder.wall_clock(WallClock {
        time: 900,
        since_1970: 1_700_000_000_000_000_000,
    });
    builder.entry(
        1000,
        7,
        0,
        "sys_write",
        pairs(&[("fd", "1"), ("text", "größe")]),
    );
    builder.entry(2000, 7, 0, "vfs_write", pairs(&[("offset", "-3")]));
    builder.instant(2500, 7, 0, "wakeup", pairs(&[("tid", "8")]));
    builder.exit(3000, 7, 0, "vfs_write", Some("18446744073709551615".into()));
    builder.entry(3000, 7, 0, "vfs_write", Vec::new());
    builder.exit(3000, 7, 0, "vfs_write", None);
    builder.exit(4000, 7, 1, "sys_write", Some("Ok(12)".into()));
    builder.entry(4500, 0, 1, "idle", Vec::new());
    builder.counter(4600, "free", "frames", 12.5);
    builder.lost("the ring was full", 1234);
    builder.finish()
}

fn decoded(timeline: &Timeline) -> Trace {
    let mut bytes = Vec::new();
    perfetto::write(timeline, &mut bytes).expect("a vector takes all");
    Trace::decode(bytes.as_slice()).expect("a trace")
}

/// Does as a viewer: takes the packets in the order of time, knows names by their numbers, and
/// writes down what happens on a track.
#[derive(Default)]
struct Viewer {
    events: HashMap<u64, String>,
    categories: HashMap<u64, String>,
    annotations: HashMap<u64, String>,
    tracks: BTreeMap<u64, TrackDescriptor>,
    /// For each track.
    lines: BTreeMap<u64, Vec<String>>,
}

impl Viewer {
    fn new(trace: &Trace) -> Self {
        let mut viewer = Self::default();
        let first = &trace.packet[0];
        assert_eq!(first.sequence_flags, Some(1), "names begin anew");
        assert_eq!(first.first_packet_on_sequence, Some(true));
        let mut events = Vec::new();
        for packet in &trace.packet {
            assert_eq!(packet.trusted_packet_sequence_id, Some(1));
            let names = packet.interned_data.clone().unwrap_or_default();
            for (list, known) in [
                (names.event_categories, &mut viewer.categories),
                (names.event_names, &mut viewer.events),
                (names.debug_annotation_names, &mut viewer.annotations),
            ] {
                for entry in list {
                    let number = entry.iid.expect("a number");
                    let before = known.insert(number, entry.name.expect("a name"));
                    assert!(
                        number != 0 && before.is_none(),
                        "{number} stands for one name"
                    );
                }
            }
            if let Some(descriptor) = &packet.track_descriptor {
                let uuid = descriptor.uuid.expect("a number");
                assert!(viewer.tracks.insert(uuid, descriptor.clone()).is_none());
            }
            if let Some(event) = &packet.track_event {
                // Names must be there before they are used.
                assert_eq!(packet.sequence_flags, Some(2));
                let time = packet.timestamp.expect("a time");
                let line = viewer.line(time, event);
                events.push((time, event.track_uuid.expect("a track"), line));
            }
        }
        events.sort_by_key(|&(time, ..)| time);
        for (_, track, line) in events {
            assert!(
                viewer.tracks.contains_key(&track),
                "{line} is on a described track"
            );
            viewer.lines.entry(track).or_default().push(line);
        }
        viewer
    }

    fn line(&self, time: u64, event: &TrackEvent) -> String {
        let mut line = time.to_string();
        line += match event.r#type {
            Some(1) => " begin",
            Some(2) => " end",
            Some(3) => " instant",
            Some(4) => " value",
            other => panic!("{other:?} is no type"),
        };
        for number in &event.category_iids {
            line += &format!(" {}:", self.categories[number]);
        }
        line.extend(
            event
                .name_iid
                .map(|number| format!(" {}", self.events[&number])),
        );
        line.extend(event.double_counter_value.map(|value| format!(" {value}")));
        for annotation in &event.debug_annotations {
            let name = &self.annotations[&annotation.name_iid.expect("a name")];
            let value = match annotation {
                DebugAnnotation {
                    uint_value: Some(value),
                    ..
                } => format!("{value}u"),
                DebugAnnotation {
                    int_value: Some(value),
                    ..
                } => format!("{value}i"),
                DebugAnnotation { string_value, .. } => format!("{string_value:?}"),
            };
            line += &format!(" {name}={value}");
        }
        line
    }

    /// The events of the track whose descriptor is so.
    fn track(&self, is: impl Fn(&TrackDescriptor) -> bool) -> &[String] {
        let found = self.tracks.iter().find(|(_, descriptor)| is(descriptor));
        let (uuid, _) = found.expect("the track");
        &self.lines[uuid]
    }
}

#[test]
fn a_viewer_sees_nested_calls_with_arguments_results_and_times() {
    let viewer = Viewer::new(&decoded(&example()));
    let thread = |descriptor: &TrackDescriptor| {
        let thread = descriptor.thread.as_ref();
        thread.is_some_and(|thread| thread.thread_name.as_deref() == Some("writer"))
    };
    assert_eq!(
        viewer.track(thread),
        [
            "1000 begin call: sys_write fd=1u text=Some(\"größe\") cpu=0u",
            "2000 begin call: vfs_write offset=-3i cpu=0u",
            "2500 instant instant: wakeup tid=8u",
            "3000 end return=18446744073709551615u",
            "3000 begin call: vfs_write cpu=0u",
            "3000 end",
            "4000 end return=Some(\"Ok(12)\")",
        ]
    );
}

#[test]
fn tasks_are_threads_of_their_processes() {
    let viewer = Viewer::new(&decoded(&example()));
    let threads = viewer.tracks.values().filter_map(|track| {
        let thread = track.thread.as_ref()?;
        let process = viewer.tracks[&track.parent_uuid?].process.as_ref()?;
        assert_eq!(thread.pid, process.pid);
        let (tid, name) = (thread.tid?, thread.thread_name.as_deref()?);
        Some(format!(
            "{tid} {name} of {} {}",
            process.pid?,
            process.process_name.as_deref()?
        ))
    });
    assert_eq!(
        threads.collect::<Vec<_>>(),
        ["5 shell of 5 shell", "7 writer of 5 shell"]
    );
    let idle = |track: &TrackDescriptor| track.name.as_deref() == Some("task 0 on CPU 1");
    // It never returned, so there is no end.
    assert_eq!(
        viewer.track(idle),
        ["4500 begin call: idle cpu=1u note=Some(\"never returned\")"]
    );
}

#[test]
fn a_slice_tells_what_was_not_recorded_of_its_call() {
    let mut builder = Builder::new();
    builder.task(1, 1, "cat");
    builder.entry(10, 1, 2, "b", Vec::new());
    builder.entry(20, 1, 2, "c", Vec::new());
    builder.exit(30, 1, 2, "b", None);
    builder.exit(40, 1, 3, "a", None);
    let viewer = Viewer::new(&decoded(&builder.finish()));
    let entry = "its entry was not recorded; it began at this time or earlier";
    let end = "its return was not recorded; it ended with its caller or earlier";
    assert_eq!(
        viewer.track(|track| track.thread.is_some()),
        [
            &*format!("10 begin call: a note=Some({entry:?})"),
            "10 begin call: b cpu=2u",
            &*format!("20 begin call: c cpu=2u note=Some({end:?})"),
            "30 end",
            "30 end",
            "40 end",
        ]
    );
}

/// Tasks of the kernel have no process: each has a track by its name, and none a parent.
#[test]
fn tasks_without_a_process_have_tracks_of_their_own() {
    let mut builder = Builder::new();
    for (tid, name) in [(0, "idle"), (9, "reaper")] {
        builder.task(tid, 0, name);
        builder.entry(100, tid, 0, "work", Vec::new());
        builder.exit(200, tid, 0, "work", None);
    }
    let viewer = Viewer::new(&decoded(&builder.finish()));
    for name in ["idle on CPU 0", "reaper"] {
        let named = |track: &TrackDescriptor| track.name.as_deref() == Some(name);
        assert_eq!(
            viewer.track(named),
            ["100 begin call: work cpu=0u", "200 end"]
        );
    }
    let is_apart = |track: &TrackDescriptor| track.process.is_none() && track.thread.is_none();
    assert!(viewer.tracks.values().all(is_apart), "{:?}", viewer.tracks);
}

#[test]
fn processors_show_their_tasks() {
    let viewer = Viewer::new(&decoded(&example()));
    let named =
        |name: &'static str| move |track: &TrackDescriptor| track.name.as_deref() == Some(name);
    assert_eq!(
        viewer.track(named("CPU 0")),
        ["1000 begin run: writer", "4000 end"]
    );
    assert_eq!(
        viewer.track(named("CPU 1")),
        ["4500 begin run: task 0 on CPU 1", "4600 end"]
    );
    // The viewer is told the order, which is that of their numbers.
    let of_processor = |track: &&TrackDescriptor| {
        let name = track.name.as_deref().unwrap_or_default();
        name.starts_with("CPU ") || name == "Processors"
    };
    let order = viewer.tracks.values().filter(of_processor);
    let order = order.map(|track| (track.child_ordering, track.sibling_order_rank));
    assert_eq!(
        order.collect::<Vec<_>>(),
        [(Some(3), None), (None, Some(0)), (None, Some(1))]
    );
}

/// Clocks of processors differ, so runs may overlap. A track whose slices overlap would be drawn as
/// if one run were inside of the other.
#[test]
fn slices_of_a_track_never_overlap() {
    let run = |cpu, tid, begin, end| Run {
        cpu,
        tid,
        begin,
        end,
    };
    let timeline = Timeline {
        cpus: 2,
        runs: vec![
            run(0, 2, 3000, 5000),
            run(0, 1, 1000, 4000),
            run(0, 3, 4500, 4800),
            run(1, 4, 2000, 2500),
        ],
        ..Timeline::default()
    };
    let viewer = Viewer::new(&decoded(&timeline));
    let track = |name: &'static str| {
        viewer.track(move |track: &TrackDescriptor| track.name.as_deref() == Some(name))
    };
    assert_eq!(
        track("CPU 0"),
        [
            "1000 begin run: task 1",
            "4000 end",
            "4000 begin run: task 2",
            "5000 end",
            "5000 begin run: task 3",
            "5000 end",
        ]
    );
    assert_eq!(track("CPU 1"), ["2000 begin run: task 4", "2500 end"]);
}

#[test]
fn counters_losses_and_the_time_of_day_are_there() {
    let trace = decoded(&example());
    let viewer = Viewer::new(&trace);
    let counter = |track: &TrackDescriptor| {
        track.name.as_deref() == Some("free")
            && track
                .counter
                .as_ref()
                .and_then(|counter| counter.unit_name.as_deref())
                == Some("frames")
    };
    assert_eq!(viewer.track(counter), ["4600 value 12.5"]);
    let recording = |track: &TrackDescriptor| track.name.as_deref() == Some("Recording");
    assert_eq!(
        viewer.track(recording),
        ["4600 instant 1,234 records lost: the ring was full"]
    );
    let snapshot = trace
        .packet
        .iter()
        .find_map(|packet| packet.clock_snapshot.as_ref());
    let clocks: Vec<_> = snapshot.expect("clocks").clocks.iter().collect();
    let shown: Vec<_> = clocks
        .iter()
        .map(|clock| (clock.clock_id, clock.timestamp))
        .collect();
    assert_eq!(
        shown,
        [
            (Some(6), Some(900)),
            (Some(1), Some(1_700_000_000_000_000_000))
        ]
    );
}

/// The slices of each track nest: an end is that of the last begin, and no time goes back. A track
/// of a processor holds one slice at a time, whatever the runs say.
#[test]
fn slices_of_a_processor_never_overlap() {
    let run = |cpu, tid, begin, end| Run {
        cpu,
        tid,
        begin,
        end,
    };
    let mut builder = Builder::new();
    for tid in 1..=4 {
        builder.task(tid, tid, &format!("task{tid}"));
    }
    // Handed over in no order: one that overlaps its neighbour, one inside of another, two that
    // begin at one time, one of no time, and one on another processor.
    for run in [
        run(0, 2, 15, 30),
        run(0, 1, 10, 20),
        run(0, 3, 22, 25),
        run(1, 4, 12, 18),
        run(0, 4, 30, 30),
        run(0, 1, 40, 50),
        run(0, 2, 40, 45),
        run(1, 3, 11, 13),
    ] {
        builder.run(run);
    }
    let trace = decoded(&builder.finish());
    let viewer = Viewer::new(&trace);
    let mut open: BTreeMap<u64, u64> = BTreeMap::new();
    let mut ended: BTreeMap<u64, u64> = BTreeMap::new();
    let mut slices = 0;
    for packet in &trace.packet {
        let Some(event) = &packet.track_event else {
            continue;
        };
        let (track, time) = (event.track_uuid.unwrap(), packet.timestamp.unwrap());
        let name = viewer.tracks[&track].name.as_deref().unwrap();
        match event.r#type {
            Some(1) => {
                let last = ended.get(&track).copied().unwrap_or(0);
                assert!(
                    time >= last,
                    "{name}: a slice begins at {time}, before {last}"
                );
                assert_eq!(
                    open.insert(track, time),
                    None,
                    "{name} holds two slices at {time}"
                );
                slices += 1;
            }
            Some(2) => {
                let begin = open.remove(&track).expect("a slice that has begun");
                assert!(
                    time >= begin,
                    "{name}: a slice ends at {time}, before {begin}"
                );
                ended.insert(track, time);
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!((slices, open.len()), (8, 0));
    // What the runs say where they do not overlap stays as it is.
    let cpu = |track: &TrackDescriptor| track.name.as_deref() == Some("CPU 0");
    assert_eq!(
        viewer.track(cpu)[..4],
        [
            "10 begin run: task1",
            "20 end",
            "20 begin run: task2",
            "30 end"
        ]
    );
}
