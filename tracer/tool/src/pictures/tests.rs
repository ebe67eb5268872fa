//! What is gathered of frames, and the files that are written of it.
//!
//! No kernel is there: the frames and what they mean are made up, with times of a clock that ticks
//! twice a nanosecond and begins some time after the boot. Functions have addresses in place
//! of names.

use super::{maps::tests::with_maps, *};
use boot::options::Checked;
use pictures::{
    Timeline,
    model::{Seen, WallClock},
};
use trace_answers::{NoSymbols, PrintedBy, Recorded, Value};
use trace_interface::{
    frame::MapEntry,
    view::{Class, MapView, View},
};

/// When the trace begins, in nanoseconds since the boot.
const BOOT: u64 = 10_000;

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

/// A record that tells of a call of the function at 0x10, which has taken so long at that time.
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
    let begin = Value::Unsigned(BOOT + nanoseconds - length);
    let mut parts = vec![
        kind,
        function,
        begin,
        Value::Unsigned(length),
        result,
        text(""),
    ];
    for (name, value) in arguments {
        parts.extend([text(name), Value::Signed(*value)]);
    }
    record(nanoseconds, "not shown", vec![Value::Tuple(parts)])
}

fn built(gathered: Gathered) -> Timeline {
    gathered
        .moments
        .build(gathered.builder, gathered.since_1970)
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
    let output = gathered.output.clone();
    (built(gathered), shown, output)
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
    assert_eq!(instants, [(4_900, 7, 2, "said"), (5_100, 7, 2, "a tuple")]);
    let clock = WallClock {
        time: 3_800,
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
    assert_eq!((outer.begin, outer.end), (0, 5_000));
    assert_eq!((&outer.arguments[..], &outer.result), (&[][..], &None));
    assert_eq!((inner.begin, inner.end), (4_500, 4_800));
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
    fs::remove_file(path("html")).unwrap();
    let refused = written(&["flame", "html"], &Presentation::default(), &[]).unwrap_err();
    assert!(read("html").contains("workload"));
    let refused = refused.to_string();
    assert!(refused.contains("no map has a call stack"), "{refused}");
    assert!(!directory.join("flame").exists());
    written(&["html"], &Presentation::default(), &[]).unwrap();
    assert!(read("html").contains("workload"));
    fs::remove_dir_all(directory).unwrap();
}

/// Records are missing from the timeline, and all else from what the program has found out.
#[test]
fn what_was_lost_is_missing_from_the_timeline_or_a_warning() {
    let lost = [
        ("records: the trace buffer was full", 17),
        ("@f: no room for another key", 29),
    ];
    let totals = Totals {
        lost: lost.map(|(reason, count)| (reason.into(), count)).into(),
        bad_loads: 7,
        stopped: vec![("loop after 5 turns".into(), 3)],
        ..Totals::default()
    };
    let end = Frame::Ended {
        status: 0,
        books: Vec::new(),
        kept_out: 0,
        lost: Vec::new(),
        bad_loads: 0,
    };
    let mut gathered = Gathered::default();
    let event = Event::Ended { status: 0, totals };
    gathered.frame(&end, &event, "", &Presentation::default(), &NoSymbols);
    let warnings = [
        "29 not written: @f: no room for another key",
        "loads that found nothing: 7",
        "ended early: loop after 5 turns (3 times)",
    ];
    assert_eq!(gathered.warnings, warnings);
    let lost = ("the trace buffer was full".to_owned(), 17);
    assert_eq!(built(gathered).lost, [lost]);
}

/// Each processor counts for itself, and a call may begin on one and return on another.
#[test]
fn calls_that_have_not_returned_are_missing_from_the_timeline() {
    // How many numbers were added, and their sum.
    let entry = |cpu, sum: i64| MapEntry {
        cpu,
        key: Vec::new(),
        value: [7, sum].map(i64::to_le_bytes).concat(),
    };
    let sum = MapView {
        name: None,
        class: Class::Sum { signed: true },
        keys: Vec::new(),
    };
    let presentation = Presentation::new(View {
        maps: vec![sum.clone(), sum.clone(), sum],
        ..View::default()
    });
    let map = |map, values: [i64; 3]| Frame::Map {
        map,
        entries: (0..)
            .zip(values)
            .map(|(cpu, value)| entry(cpu, value))
            .collect(),
    };
    for (values, lost) in [
        ([9, -4, -1], &[4][..]),
        ([3, -3, 0], &[]),
        ([-1, 0, 0], &[]),
    ] {
        let mut gathered = Gathered {
            count: Some(2),
            ..Gathered::default()
        };
        let end = Event::Ended {
            status: 0,
            totals: Totals::default(),
        };
        for (frame, event) in [
            (map(2, values), &Event::Nothing),
            (map(1, [50, 0, 0]), &Event::Nothing),
            (started(), &end),
        ] {
            gathered.frame(&frame, event, "", &presentation, &NoSymbols);
        }
        let timeline = built(gathered);
        let found = timeline.lost.iter().map(|(_, calls)| *calls);
        assert_eq!(found.collect::<Vec<_>>(), lost, "{values:?}");
    }
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
