//! Runs the command `trace`, and reads its answers.
//!
//! The program is built once in a run of this one, as `cargo run -- trace` builds it. A trace takes
//! its share of the processors while its guest runs. [`Answers`] reads the JSON of a trace and
//! holds it against the books: what was hit was counted, and nothing is lost.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, Output},
    sync::LazyLock,
};

use boot::{
    cargo,
    prerequisites::{self, Install},
    qemu::Machine,
};
use serde_json::Value as Json;

use crate::processors::for_guest;

/// The children of the workload.
pub const CHILDREN: u64 = 3;

/// The tracer's program.
pub fn program() -> &'static PathBuf {
    static TRACER: LazyLock<PathBuf> = LazyLock::new(|| {
        prerequisites::toolchain(Install::Allowed).unwrap();
        cargo::build_tool("trace").unwrap()
    });
    &TRACER
}

/// The flight recorder's program.
pub fn recorder() -> &'static PathBuf {
    static RECORDER: LazyLock<PathBuf> = LazyLock::new(|| {
        prerequisites::toolchain(Install::Allowed).unwrap();
        cargo::build_tool("recorder").unwrap()
    });
    &RECORDER
}

/// Runs a trace with these arguments.
pub fn trace(arguments: &[&str]) -> Output {
    let _taken = for_guest(Machine::CPUS);
    let mut command = Command::new(program());
    command.args(["--timeout", "120"]).args(arguments);
    command.output().unwrap()
}

/// A trace that is refused before a machine starts, and what it says.
pub fn refusal(arguments: &[&str]) -> String {
    let output = Command::new(program()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    said
}

/// The output of a trace that ends well.
pub fn answer(arguments: &[&str]) -> String {
    let output = trace(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{arguments:?}: {}: {said}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The words of a command line, as a shell takes them. Quotes are the only signs with a meaning.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    for letter in line.chars() {
        match (letter, quote) {
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (_, Some(end)) if letter == end => quote = None,
            (' ', None) => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    assert_eq!(quote, None, "a quote has no end: {line}");
    words.extend(word);
    words
}

/// The answers of a trace, from its JSON.
#[derive(Debug)]
pub struct Answers {
    /// The texts that the program printed.
    printed: Vec<String>,
    /// Maps as they were shown, in this order. What was shown last is how they are at the end.
    maps: BTreeMap<String, Vec<Json>>,
    pub hits: u64,
    /// How many places were attached.
    pub places: u64,
    /// The words of the tool itself, and with `--log` those of the guest.
    pub said: String,
}

impl Answers {
    /// The answers of a run that ends well, on one CPU unless the arguments say otherwise. Its
    /// books must be closed, and nothing may be lost.
    pub fn of(arguments: &[&str]) -> Self {
        let one: &[&str] = if arguments.contains(&"--smp") {
            &[]
        } else {
            &["--smp", "1"]
        };
        let output = trace(&[one, &["--json"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        let mut answers = Self {
            printed: Vec::new(),
            maps: BTreeMap::new(),
            hits: 0,
            places: 0,
            said,
        };
        let mut is_closed = false;
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            let data = &line["data"];
            match line["type"].as_str() {
                Some("printf") => {
                    let text = data.as_str().unwrap();
                    answers.printed.push(text.trim_end_matches('\n').into());
                }
                Some("value") => {
                    let text = data.as_str().map_or_else(|| data.to_string(), String::from);
                    answers.printed.push(text);
                }
                Some("map" | "hist" | "stats") => {
                    for (name, map) in data.as_object().unwrap() {
                        let shown = answers.maps.entry(name.clone()).or_default();
                        shown.push(map.clone());
                    }
                }
                Some("attached_probes") => answers.places = data["probes"].as_u64().unwrap(),
                Some("books") => {
                    answers.hits = data["hits"].as_u64().unwrap();
                    assert_eq!(data["missed"], 0, "{arguments:?}");
                    assert_eq!(data["dropped"], serde_json::json!({}), "{arguments:?}");
                    is_closed = true;
                }
                _ => {}
            }
        }
        assert!(is_closed, "{arguments:?}: no books");
        answers
    }

    /// The lines that were printed and begin so, each as its words after that, divided by one
    /// blank.
    pub fn lines(&self, begin: &str) -> Vec<String> {
        let squeezed = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        self.printed
            .iter()
            .map(squeezed)
            .filter_map(|line| line.strip_prefix(begin).map(str::to_owned))
            .collect()
    }

    /// What was shown of a map, each time, as JSON.
    fn shown(&self, name: &str) -> &[Json] {
        let shown = self.maps.get(name);
        shown.unwrap_or_else(|| panic!("no {name}: {:?}", self.maps.keys()))
    }

    /// A map as it is at the end, as JSON.
    pub fn map(&self, name: &str) -> &Json {
        self.shown(name).last().unwrap()
    }

    /// A map of numbers by its keys.
    pub fn counts(&self, name: &str) -> BTreeMap<&str, u64> {
        let map = self.map(name);
        let entries = map
            .as_object()
            .unwrap_or_else(|| panic!("{name} is {map}"))
            .iter();
        entries
            .map(|(key, value)| (key.as_str(), value.as_u64().unwrap()))
            .collect()
    }

    /// A map of one number without a key, 0 if nothing was put there.
    pub fn number(&self, name: &str) -> u64 {
        number(self.map(name))
    }

    /// The sum of all that was shown of a map of one number, which is cleared each time.
    pub fn number_in_all(&self, name: &str) -> u64 {
        self.shown(name).iter().map(number).sum()
    }

    /// The sum of a map's numbers.
    pub fn sum(&self, name: &str) -> u64 {
        self.counts(name).values().sum()
    }
}

/// The number of a map without a key, 0 if nothing was put there.
fn number(map: &Json) -> u64 {
    match map {
        Json::Object(empty) if empty.is_empty() => 0,
        number => number.as_u64().unwrap(),
    }
}

/// The buckets of a histogram that are not empty: each with its least number.
pub fn buckets(histogram: &Json) -> Vec<(i64, u64)> {
    let rows = histogram.as_array().unwrap().iter();
    rows.map(|row| (row["min"].as_i64().unwrap(), row["count"].as_u64().unwrap()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// How many numbers are in a histogram.
pub fn total(histogram: &Json) -> u64 {
    buckets(histogram).iter().map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found() {
        assert_eq!(
            words("a 'b c' --d \"e'f\" ''"),
            ["a", "b c", "--d", "e'f", ""]
        );
    }

    #[test]
    fn empty_buckets_do_not_count() {
        let rows = serde_json::json!([
            {"min": 4, "max": 7, "count": 2}, {"min": 8, "count": 0}, {"min": 16, "count": 3}
        ]);
        assert_eq!(buckets(&rows), [(4, 2), (16, 3)]);
        assert_eq!(total(&rows), 5);
    }
}
