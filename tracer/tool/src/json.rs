//! Answers as JSON, one object per line, with the types and fields that bpftrace gives them.
//!
//! What bpftrace has no form for is as Rust's serde writes it: a variant of an enum is its name, or
//! an object with its name and content. Call stacks are lists of texts, the innermost frame first.
//! Whatever JSON has no form for is the text that stands in the lines without `--json`.

use serde_json::{Map, Value as Json, json};
use trace_answers::{Event, Key, Presentation, PrintedBy, Recorded, Symbolize, Totals, Value};
use trace_interface::view::{Class, MapView};

/// A line of the output.
pub fn line(kind: &str, data: Json) -> String {
    object(&json!({ "type": kind, "data": data }))
}

/// An object on a line of its own. A terminal takes some characters for commands that JSON lets
/// through, so all control characters are escaped.
fn object(of: &Json) -> String {
    let mut line = String::new();
    for character in of.to_string().chars() {
        match character.is_control() {
            true => line += &format!("\\u{:04x}", u32::from(character)),
            false => line.push(character),
        }
    }
    line + "\n"
}

/// A number of things, under the name of the things. bpftrace has the number twice.
fn number_of(kind: &str, things: &str, count: u64) -> String {
    object(&json!({ "type": kind, "count": count, "data": { things: count } }))
}

/// The lines of an event whose text is `text`. The last one has the maps, unless they are no
/// answers.
pub fn event(
    event: &Event,
    text: &str,
    presentation: &Presentation,
    with_maps: bool,
    symbols: &dyn Symbolize,
) -> String {
    let map = |name: &str, entries: &[(Key, Value)]| {
        map(name, presentation.map_called(name), entries, symbols)
    };
    match event {
        Event::Map {
            name,
            shown: Some(entries),
        } => map(name, entries),
        Event::Started { places } => number_of("attached_probes", "probes", *places),
        Event::Record(record) => printed(record, text, symbols),
        Event::Ended { totals, .. } => {
            let maps = presentation.maps_at_end().filter(|_| with_maps);
            let maps = maps.map(|(name, entries)| map(name, &entries));
            let lost: u64 = totals.lost.iter().map(|(_, count)| count).sum();
            let lost = (lost != 0).then(|| number_of("lost_events", "events", lost));
            maps.chain(lost).chain([books(totals)]).collect()
        }
        _ => String::new(),
    }
}

/// What a program has printed; `text` is the whole text of it.
fn printed(record: &Recorded, text: &str, symbols: &dyn Symbolize) -> String {
    match (record.by, &record.values[..]) {
        (PrintedBy::Value, [only]) => line("value", value(only, symbols)),
        (PrintedBy::Time, _) => line("time", json!(text)),
        (PrintedBy::Join, _) => line("join", json!(text.strip_suffix('\n').unwrap_or(text))),
        (PrintedBy::Warning, _) => message("warnf", text, "WARNING: "),
        (PrintedBy::Error, _) => message("errorf", text, "ERROR: "),
        _ => line("printf", json!(text)),
    }
}

/// A warning or an error, of which bpftrace has the text in `msg`.
fn message(kind: &str, text: &str, before: &str) -> String {
    let text = text.strip_prefix(before).unwrap_or(text);
    object(&json!({ "type": kind, "msg": text.strip_suffix('\n').unwrap_or(text) }))
}

/// A map: its kind and its content. `view` says what it holds, also while it is empty.
fn map(
    name: &str,
    view: Option<&MapView>,
    entries: &[(Key, Value)],
    symbols: &dyn Symbolize,
) -> String {
    let kind = match view.map(|map| &map.class) {
        Some(Class::Histogram(_)) => "hist",
        Some(Class::Series(_)) => "tseries",
        Some(Class::Statistics { .. } | Class::Average { .. }) => "stats",
        _ => "map",
    };
    // One value, of which nothing is left.
    let is_list = view.is_some_and(|map| map.keys.is_empty() && map.class.parts().is_some());
    let of = match entries {
        [] if is_list => json!([]),
        _ => content(entries, symbols),
    };
    let mut data = Map::new();
    data.insert(name.into(), of);
    line(kind, Json::Object(data))
}

/// The maps as they are while the trace runs.
pub fn top<'m>(
    maps: impl Iterator<Item = (&'m str, Vec<(Key, Value)>)>,
    symbols: &dyn Symbolize,
) -> String {
    let maps = maps.map(|(name, entries)| (name.into(), content(&entries, symbols)));
    line("top", Json::Object(maps.collect()))
}

/// The value of a map without keys, or values by keys.
fn content(entries: &[(Key, Value)], symbols: &dyn Symbolize) -> Json {
    match entries {
        [(key, only)] if key.is_empty() => value(only, symbols),
        _ => {
            let mut object = Map::new();
            for (key, of) in entries {
                let parts: Vec<String> = key
                    .iter()
                    .map(|part| part.shown(symbols).to_string())
                    .collect();
                let mut name = parts.join(",");
                // Texts may have commas in them, so that two keys have one name.
                while object.contains_key(&name) {
                    name = match name.starts_with('[') {
                        true => format!("[{name}]"),
                        false => json!(parts).to_string(),
                    };
                }
                object.insert(name, value(of, symbols));
            }
            Json::Object(object)
        }
    }
}

/// The books of the hits.
fn books(totals: &Totals) -> String {
    let dropped = totals.lost.iter();
    let dropped: Map<String, Json> = dropped
        .map(|(reason, count)| (reason.clone(), json!(count)))
        .collect();
    let mut data = json!({
        "hits": totals.hits,
        "missed": totals.missed,
        "dropped": dropped,
        "bad_loads": totals.bad_loads,
    });
    if totals.kept_out > 0 {
        data["kept_out"] = json!(totals.kept_out);
    }
    if !totals.stopped.is_empty() {
        let stopped = totals.stopped.iter();
        let stopped: Map<String, Json> = stopped
            .map(|(what, count)| (what.clone(), json!(count)))
            .collect();
        data["loops_ended_early"] = Json::Object(stopped);
    }
    line("books", data)
}

/// A value. Those that JSON does not have are texts.
pub fn value(of: &Value, symbols: &dyn Symbolize) -> Json {
    let list = |items: &[Value]| items.iter().map(|item| value(item, symbols)).collect();
    let object = |fields: &[(std::rc::Rc<str>, Value)]| -> Map<String, Json> {
        let field = |(name, of): &(std::rc::Rc<str>, Value)| (name.to_string(), value(of, symbols));
        fields.iter().map(field).collect()
    };
    match of {
        Value::Unit | Value::Absent => Json::Null,
        Value::Unsigned(number) | Value::Address(number) => integer((*number).into()),
        Value::Signed(number) => integer((*number).into()),
        // As a number of 8 bytes it has other digits.
        Value::Single(number) if number.is_finite() => {
            json!(number.to_string().parse().unwrap_or(f64::from(*number)))
        }
        Value::Float(number) if number.is_finite() => json!(number),
        Value::Boolean(is) => json!(is),
        Value::Text { text, cut: false } => json!(text),
        Value::Bytes(bytes) => json!(bytes),
        Value::Stack(_, Some(addresses)) => {
            let name = |address: &u64| frame(*address, symbols);
            Json::Array(
                addresses
                    .iter()
                    .map(|address| json!(name(address)))
                    .collect(),
            )
        }
        Value::UserStack(_, Some(stack)) => {
            let frame = |(name, offset): (String, Option<u64>)| match offset {
                Some(offset) => json!(format!("{name}+{offset}")),
                None => json!(name),
            };
            Json::Array(stack.frames(symbols).map(frame).collect())
        }
        Value::Tuple(items) => Json::Array(list(items)),
        Value::List { items, more, .. } => {
            let mut all: Vec<Json> = list(items);
            if *more > 0 {
                all.push(json!(format!("…and {more} more")));
            }
            Json::Array(all)
        }
        Value::Struct { fields, .. } => Json::Object(object(fields)),
        Value::Variant { name, fields, .. } if fields.is_empty() => json!(&**name),
        Value::Variant { name, fields, .. } => {
            let content = match &fields[..] {
                [(field, only)] if &**field == "0" => value(only, symbols),
                _ => Json::Object(object(fields)),
            };
            let mut variant = Map::new();
            variant.insert(name.to_string(), content);
            Json::Object(variant)
        }
        Value::Statistics {
            count,
            total,
            average,
        } => json!({
            "count": integer((*count).into()),
            "average": integer(*average),
            "total": integer(*total),
        }),
        Value::Average { average, .. } => integer(*average),
        Value::Histogram(buckets) => {
            let bucket = |bucket: &trace_answers::Bucket| {
                let mut row = Map::new();
                if let Some(low) = bucket.low {
                    row.insert("min".into(), integer(low));
                }
                if let Some(end) = bucket.end {
                    row.insert("max".into(), integer(end - 1));
                }
                row.insert("count".into(), json!(bucket.count));
                Json::Object(row)
            };
            Json::Array(buckets.iter().map(bucket).collect())
        }
        Value::Series(intervals) => {
            let interval = |interval: &trace_answers::Interval| {
                let of = integer(interval.value?);
                Some(json!({ "interval_start": interval.start(), "value": of }))
            };
            Json::Array(intervals.iter().filter_map(interval).collect())
        }
        _ => json!(of.shown(symbols).to_string()),
    }
}

/// A frame of a call stack: a function's name and the distance from its beginning.
fn frame(address: u64, symbols: &dyn Symbolize) -> String {
    match symbols.frame(address) {
        Some(symbol) => format!("{}+{}", symbol.name, symbol.offset),
        None => format!("{address:#x}"),
    }
}

/// A number. Readers of JSON take numbers for floating ones, so one that is none of those exactly
/// is a text.
fn integer(number: i128) -> Json {
    let is_exact = (number as f64) as i128 == number;
    match (i64::try_from(number), u64::try_from(number)) {
        (Ok(number), _) if is_exact => json!(number),
        (_, Ok(number)) if is_exact => json!(number),
        _ => json!(number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_answers::{Bucket, NoSymbols, Symbol, UserStack};
    use trace_interface::{
        shape::StackForm,
        view::{Gathered, Scale, Series},
    };

    /// A map without keys whose values are kept so.
    fn of(class: Class) -> MapView {
        MapView {
            name: Some("@".into()),
            class,
            keys: Vec::new(),
        }
    }

    const SERIES: Class = Class::Series(Series {
        nanoseconds: 1,
        intervals: 2,
        gathered: Gathered::Last,
        signed: true,
    });

    #[test]
    fn maps_are_objects_by_their_keys() {
        let text = |text: &str| Value::Text {
            text: text.into(),
            cut: false,
        };
        let entries = [(vec![Value::Unsigned(1), text("a")], Value::Signed(-2))];
        assert_eq!(
            map("@x", None, &entries, &NoSymbols),
            "{\"data\":{\"@x\":{\"1,a\":-2}},\"type\":\"map\"}\n"
        );
        let interval = |value| trace_answers::Interval {
            begin: 1_500_000_000,
            value,
        };
        let series = Value::Series(vec![interval(Some(-3)), interval(None)]);
        assert_eq!(
            map("@", Some(&of(SERIES)), &[(vec![], series)], &NoSymbols),
            "{\"data\":{\"@\":[{\"interval_start\":\"1970-01-01 00:00:01.500000000\",\
             \"value\":-3}]},\"type\":\"tseries\"}\n"
        );
        let bucket = Bucket {
            low: Some(4),
            end: Some(8),
            count: 3,
        };
        let entries = [(vec![], Value::Histogram(vec![bucket]))];
        assert_eq!(
            map(
                "@",
                Some(&of(Class::Histogram(Scale::Log2))),
                &entries,
                &NoSymbols
            ),
            "{\"data\":{\"@\":[{\"count\":3,\"max\":7,\"min\":4}]},\"type\":\"hist\"}\n"
        );
    }

    #[test]
    fn an_empty_map_is_what_it_was() {
        let empty = |class| map("@", Some(&of(class)), &[], &NoSymbols);
        assert_eq!(
            empty(Class::Histogram(Scale::Log2)),
            "{\"data\":{\"@\":[]},\"type\":\"hist\"}\n"
        );
        assert_eq!(
            empty(SERIES),
            "{\"data\":{\"@\":[]},\"type\":\"tseries\"}\n"
        );
        assert_eq!(
            empty(Class::Count),
            "{\"data\":{\"@\":{}},\"type\":\"map\"}\n"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        let text = "a\u{1b}\u{7f}\u{9b}é\n";
        let shown = line("printf", json!(text));
        assert_eq!(
            shown,
            "{\"data\":\"a\\u001b\\u007f\\u009bé\\n\",\"type\":\"printf\"}\n"
        );
        let read: Json = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["data"], text);
    }

    /// As bpftrace has it, both functions are statistics; the average alone is a number.
    #[test]
    fn averages_and_statistics_are_of_one_type() {
        let (count, total, average) = (4, -30, -7);
        let all = Value::Statistics {
            count,
            total,
            average,
        };
        let only = Value::Average {
            count,
            total,
            average,
        };
        assert_eq!(
            map(
                "@",
                Some(&of(Class::Statistics { signed: true })),
                &[(vec![], all)],
                &NoSymbols
            ),
            "{\"data\":{\"@\":{\"average\":-7,\"count\":4,\"total\":-30}},\"type\":\"stats\"}\n"
        );
        assert_eq!(
            map(
                "@",
                Some(&of(Class::Average { signed: true })),
                &[(vec![], only)],
                &NoSymbols
            ),
            "{\"data\":{\"@\":-7},\"type\":\"stats\"}\n"
        );
    }

    #[test]
    fn maps_meanwhile_are_one_line_by_their_names() {
        let maps = [
            ("@a", vec![(vec![], Value::Unsigned(3))]),
            ("@b", vec![(vec![Value::Signed(-1)], Value::Unsigned(4))]),
        ];
        assert_eq!(
            top(maps.into_iter(), &NoSymbols),
            "{\"data\":{\"@a\":3,\"@b\":{\"-1\":4}},\"type\":\"top\"}\n"
        );
    }

    /// A function is at each multiple of 16, and has a name unless it is the first one.
    struct Sixteen;

    impl Symbolize for Sixteen {
        fn symbol(&self, address: u64) -> Option<Symbol> {
            (address >= 16).then(|| Symbol {
                name: format!("f{}", address / 16),
                offset: address % 16,
            })
        }

        fn user_frame(&self, program: &str, address: u64) -> Option<Symbol> {
            self.symbol(address).filter(|_| program == "cat")
        }
    }

    #[test]
    fn call_stacks_are_their_frames_the_innermost_first() {
        let form = StackForm::default();
        let shown = |of: &Value| value(of, &Sixteen).to_string();
        let of_kernel = Value::Stack(form, Some([0x2b, 0x30, 0x5].into()));
        assert_eq!(shown(&of_kernel), "[\"f2+11\",\"f3+0\",\"0x5\"]");
        let of_program = UserStack {
            program: "cat".into(),
            addresses: [0x5, 0x12].into(),
        };
        let of_program = Value::UserStack(form, Some(of_program));
        assert_eq!(shown(&of_program), "[\"0x5\",\"f1+2\"]");
        assert_eq!(
            shown(&Value::Stack(form, None)),
            "\"\\n    (no call stack)\\n\""
        );
    }

    #[test]
    fn no_value_and_no_key_is_lost() {
        let text = |text: &str, cut| Value::Text {
            text: text.into(),
            cut,
        };
        let list = |items, more| Value::List {
            items,
            more,
            form: trace_interface::shape::Form::List,
        };
        for (of, json) in [
            (Value::Single(0.1), "0.1"),
            (Value::Single(1e30), "1e+30"),
            (Value::Single(f32::NAN), "\"NaN\""),
            (Value::Float(f64::NEG_INFINITY), "\"-inf\""),
            (Value::Float(-0.0), "-0.0"),
            (text("all", false), "\"all\""),
            (text("beginning", true), "\"beginning..\""),
            (list(vec![Value::Signed(1)], 0), "[1]"),
            (list(vec![Value::Signed(1)], 4), "[1,\"…and 4 more\"]"),
            (Value::Unsigned(u64::MAX), "\"18446744073709551615\""),
            (Value::Signed(i64::MIN), "-9223372036854775808"),
            (
                Value::Wide(u128::MAX),
                "\"340282366920938463463374607431768211455\"",
            ),
        ] {
            assert_eq!(value(&of, &NoSymbols).to_string(), json);
        }
        let key = |parts: &[&str]| parts.iter().map(|part| text(part, false)).collect();
        let entries = [
            (key(&["a,b", "c"]), Value::Signed(1)),
            (key(&["a", "b,c"]), Value::Signed(2)),
        ];
        let both = "{\"a,b,c\":1,\"[\\\"a\\\",\\\"b,c\\\"]\":2}";
        let read: Json = serde_json::from_str(both).unwrap();
        assert_eq!(content(&entries, &NoSymbols), read);
    }

    /// What is zero and rarely otherwise is left out.
    #[test]
    fn books_have_each_loss_by_its_reason() {
        let mut totals = Totals {
            hits: 12,
            missed: 1,
            kept_out: 0,
            lost: Vec::new(),
            bad_loads: 0,
            stopped: Vec::new(),
        };
        assert_eq!(
            books(&totals),
            "{\"data\":{\"bad_loads\":0,\"dropped\":{},\"hits\":12,\"missed\":1},\
             \"type\":\"books\"}\n"
        );
        totals.kept_out = 5;
        totals.lost.push(("no room".into(), 3));
        totals.bad_loads = 2;
        totals.stopped.push(("loop 1".into(), 4));
        assert_eq!(
            books(&totals),
            "{\"data\":{\"bad_loads\":2,\"dropped\":{\"no room\":3},\"hits\":12,\"kept_out\":5,\
             \"loops_ended_early\":{\"loop 1\":4},\"missed\":1},\"type\":\"books\"}\n"
        );
    }

    #[test]
    fn what_is_printed_has_the_type_of_what_printed_it() {
        let record = |by, values| Recorded {
            cpu: 0,
            tsc: 0,
            tid: 1,
            text: String::new(),
            values,
            by,
        };
        let of = |by, values, text: &str| printed(&record(by, values), text, &NoSymbols);
        let tuple = Value::Tuple(vec![Value::Unsigned(1), Value::Boolean(true)]);
        assert_eq!(
            of(PrintedBy::Value, vec![tuple], "(1, true)\n"),
            "{\"data\":[1,true],\"type\":\"value\"}\n"
        );
        assert_eq!(
            of(PrintedBy::Time, vec![Value::Unit], "10:11:12\n"),
            "{\"data\":\"10:11:12\\n\",\"type\":\"time\"}\n"
        );
        assert_eq!(
            of(PrintedBy::Join, vec![Value::Unit], "a,b\n"),
            "{\"data\":\"a,b\",\"type\":\"join\"}\n"
        );
        assert_eq!(
            of(PrintedBy::Line, vec![Value::Unsigned(1)], "1\n\n"),
            "{\"data\":\"1\\n\\n\",\"type\":\"printf\"}\n"
        );
        assert_eq!(
            of(PrintedBy::Error, vec![], "ERROR: no \"x\"\n"),
            "{\"msg\":\"no \\\"x\\\"\",\"type\":\"errorf\"}\n"
        );
        assert_eq!(
            number_of("lost_events", "events", 3),
            "{\"count\":3,\"data\":{\"events\":3},\"type\":\"lost_events\"}\n"
        );
    }

    #[test]
    fn numbers_that_are_no_exact_floating_ones_are_texts() {
        let shown = |of: Value| value(&of, &NoSymbols).to_string();
        assert_eq!(shown(Value::Unsigned(1 << 53)), "9007199254740992");
        assert_eq!(
            shown(Value::Unsigned((1 << 53) + 1)),
            "\"9007199254740993\""
        );
        assert_eq!(shown(Value::Signed(i64::MIN)), "-9223372036854775808");
        assert_eq!(shown(Value::Address(u64::MAX)), "\"18446744073709551615\"");
        assert_eq!(shown(Value::Address(0x32)), "50");
    }

    #[test]
    fn enums_are_their_variants() {
        let variant = |fields| Value::Variant {
            of: "Result<u8, E>".into(),
            name: "Ok".into(),
            fields,
        };
        let shown = |of: &Value| value(of, &NoSymbols).to_string();
        assert_eq!(shown(&variant(vec![])), "\"Ok\"");
        assert_eq!(
            shown(&variant(vec![("0".into(), Value::Unsigned(3))])),
            "{\"Ok\":3}"
        );
        let named = variant(vec![("size".into(), Value::Boolean(true))]);
        assert_eq!(shown(&named), "{\"Ok\":{\"size\":true}}");
    }
}
