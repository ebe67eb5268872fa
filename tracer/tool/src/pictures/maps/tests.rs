//! Call stacks and histograms of maps.
//!
//! No kernel is there: the frames are made up, and call stacks have addresses in place of names. A
//! stack that no frame has told is one that is not there.

use super::*;
use trace_answers::NoSymbols;
use trace_interface::{
    Frame,
    frame::MapEntry,
    shape::{Shape, StackForm},
    view::{Class, MapView, Scale, View},
};

/// A presentation with maps that count by call stacks, one of times, and a histogram by a
/// number.
pub fn with_maps() -> Presentation {
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
            map("@missed", Class::Count, vec![stack()]),
        ],
        ..View::default()
    });
    let words =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
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
            entries: vec![entry(words(&[1]), &[8]), entry(words(&[2]), &[9])],
        },
        Frame::Map {
            map: 7,
            entries: Vec::new(),
        },
    ] {
        let mut nothing = String::new();
        presentation
            .frame(&frame, &NoSymbols, &mut nothing)
            .unwrap();
    }
    presentation
}

/// Maps without call stacks are no flame graphs. Only the ending `_ns` makes it a time, and what is
/// added up is no number of hits. A number below zero has no width, so it is told that it is not
/// there, and there is no graph of nothing else. One file has one graph, so the others are named.
#[test]
fn stacks_have_the_numbers_and_units_of_their_maps() {
    let graph = |title: &str, unit, rows: &[(&[&str], u64)]| Stacks {
        title: title.into(),
        unit,
        rows: rows
            .iter()
            .map(|(row, number)| (row.iter().map(ToString::to_string).collect(), *number))
            .collect(),
    };
    let hits = || Unit::Count("hits".into());
    let expected = [
        graph("@calls", hits(), &[(&["0x40", "0x30"], 4)]),
        graph("@missed", hits(), &[]),
        graph("@ns", Unit::Nanoseconds, &[(&["0x40", "0x30"], 500)]),
        graph(
            "@sleep_ns",
            Unit::Nanoseconds,
            &[(&[NO_STACK], 9), (&["0x40", "0x30"], 8)],
        ),
    ];
    let (found, lacking) = stacks(&with_maps(), &NoSymbols);
    let mut sorted = found.clone();
    for stacks in &mut sorted {
        stacks.rows.sort();
    }
    let mut wanted = expected.clone();
    wanted.iter_mut().for_each(|stacks| stacks.rows.sort());
    assert_eq!(sorted, wanted);
    let lacks = |name: &str, part: &str| {
        format!(
            "the flame graph of {name} lacks {part} call stacks, whose values are below zero or no \
             numbers"
        )
    };
    let empty = "the flame graph of @missed is empty, because the map has no keys at the end";
    assert_eq!(
        lacking,
        [
            empty.to_owned(),
            lacks("@ns", "1 of 2"),
            lacks("@opens", "1 of 1")
        ]
    );
    assert_eq!(not_drawn(&found[..1]), None);
    let others = not_drawn(&found[..3]).unwrap();
    assert_eq!(others, "shows @calls; --html has @missed, @ns, too");
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
    let row = |key: &[&Value]| {
        let key: Vec<Value> = key.iter().map(|part| (*part).clone()).collect();
        row_of_stacks(&key, &NoSymbols)
    };
    let all = row(&[&kernel, &comm, &user]).unwrap();
    assert_eq!(all, ["cat", "0x20", "0x10", "0x40", "0x30"]);
    let twice = row(&[&user, &user]).unwrap();
    assert_eq!(twice, ["0x20", "0x10", "0x20", "0x10"]);
    assert_eq!(row(&[&comm]), None);
    // A task of the kernel has no stack of a program, and its hits are there all the same.
    let none = Value::UserStack(StackForm::default(), None);
    assert_eq!(row(&[&comm, &none]).unwrap(), ["cat", NO_STACK]);
    assert_eq!(row(&[&none, &kernel]).unwrap(), ["0x40", "0x30"]);
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
