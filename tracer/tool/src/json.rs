//! Answers as JSON, one object per line, with the types and fields that bpftrace gives them.

use serde_json::{Map, Value as Json, json};
use trace_answers::{Key, Symbolize, Totals, Value};

/// A line of the output.
pub fn line(kind: &str, data: Json) -> String {
    format!("{}\n", json!({ "type": kind, "data": data }))
}

/// A map: its kind and its content.
pub fn map(name: &str, entries: &[(Key, Value)], symbols: &dyn Symbolize) -> String {
    let kind = match entries.first() {
        Some((_, Value::Histogram(_))) => "hist",
        Some((_, Value::Statistics { .. } | Value::Average { .. })) => "stats",
        _ => "map",
    };
    let mut data = Map::new();
    data.insert(name.into(), content(entries, symbols));
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
            let entry = |(key, of): &(Key, Value)| {
                let key: Vec<String> = key
                    .iter()
                    .map(|part| part.shown(symbols).to_string())
                    .collect();
                (key.join(","), value(of, symbols))
            };
            Json::Object(entries.iter().map(entry).collect())
        }
    }
}

/// The books of the hits.
pub fn books(totals: &Totals) -> String {
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
        Value::Unsigned(number) => json!(number),
        Value::Signed(number) => json!(number),
        Value::Single(number) => json!(number),
        Value::Float(number) => json!(number),
        Value::Boolean(is) => json!(is),
        Value::Text { text, .. } => json!(text),
        Value::Bytes(bytes) => json!(bytes),
        Value::Stack(Some(addresses)) => {
            let name = |address: &u64| frame(*address, symbols);
            Json::Array(
                addresses
                    .iter()
                    .map(|address| json!(name(address)))
                    .collect(),
            )
        }
        Value::UserStack(Some(stack)) => {
            let frame = |(name, offset): (String, Option<u64>)| match offset {
                Some(offset) => json!(format!("{name}+{offset}")),
                None => json!(name),
            };
            Json::Array(stack.frames(symbols).map(frame).collect())
        }
        Value::Tuple(items) | Value::List { items, .. } => Json::Array(list(items)),
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
        Value::Statistics { count, total } => {
            let average = total / i128::from((*count).max(1));
            json!({ "count": count, "average": integer(average), "total": integer(*total) })
        }
        Value::Average { count, total } => integer(total / i128::from((*count).max(1))),
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

/// A number, as a text if it does not fit into JSON's usual 64 bits.
fn integer(number: i128) -> Json {
    match (i64::try_from(number), u64::try_from(number)) {
        (Ok(number), _) => json!(number),
        (_, Ok(number)) => json!(number),
        _ => json!(number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_answers::{Bucket, NoSymbols};

    #[test]
    fn maps_are_objects_by_their_keys() {
        let text = |text: &str| Value::Text {
            text: text.into(),
            cut: false,
        };
        let entries = [(vec![Value::Unsigned(1), text("a")], Value::Signed(-2))];
        assert_eq!(
            map("@x", &entries, &NoSymbols),
            "{\"data\":{\"@x\":{\"1,a\":-2}},\"type\":\"map\"}\n"
        );
        let bucket = Bucket {
            low: Some(4),
            end: Some(8),
            count: 3,
        };
        let entries = [(vec![], Value::Histogram(vec![bucket]))];
        assert_eq!(
            map("@", &entries, &NoSymbols),
            "{\"data\":{\"@\":[{\"count\":3,\"max\":7,\"min\":4}]},\"type\":\"hist\"}\n"
        );
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
