//! The tables of `docs/cost.md`, which this command writes, and which each run is held against.
//!
//! `DOCUMENTS=write cargo bench` writes them. Any other run fails if a row that it has measured is
//! not the document's: figures of hits may differ by one instruction, and those of long work by
//! 4 %, because they also depend on what the compiler chooses to inline.

use std::fmt::Write as _;

use test_protocol::Quantity;

use super::{Results, Unit, linux, table};
use crate::{
    Document,
    document::{self, Block},
};

/// The document.
const NAME: &str = "docs/cost.md";

/// The marks of its tables.
const PROBES: &str = "text cargo bench: probes";
const TRACING: &str = "text cargo bench: tracing";
const PROGRAMS: &str = "text cargo bench: programs";

/// Rows of long work, and one of compiled Rust: what they take depends on the whole kernel.
const LONG: [&str; 12] = [
    "register_",
    "unregister_",
    "jump_",
    "unjump_",
    "attach_",
    "detach_",
    "read_line",
    "t_start_",
    "t_graph",
    "t_files",
    "u_",
    "k_int3_n100000",
];

/// Whether a row belongs to the table of tracing.
fn is_of_tracing(name: &str) -> bool {
    let beginnings = ["a_", "ev_", "h_", "t_", "attach_", "detach_", "read_line"];
    beginnings.iter().any(|start| name.starts_with(start))
}

/// Whether a row belongs to the table of probes in programs.
fn is_of_programs(name: &str) -> bool {
    name.starts_with("u_")
}

/// The table of probes in programs.
fn programs(results: &Results) -> String {
    let mut text = format!("{:<18} {:>8}  {:>9}\n", "row", "ours", "Linux 6.1");
    let rows = results.of(Quantity::Cost);
    for (name, cost) in rows.filter(|(name, _)| is_of_programs(name)) {
        let linux = linux::figure(name).map_or(String::new(), |linux| linux.cost.to_string());
        let row = format!("{name:<18} {cost:>8}  {linux:>9}");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// The table of the probes: what the command prints, without the rows of tracing.
fn probes(results: &Results) -> String {
    let all = table::table(results, Unit::Instructions);
    let lines = all.lines().skip(1);
    let is_elsewhere = |line: &str| {
        is_of_tracing(line) || is_of_programs(line) || line.starts_with("base_depth16")
    };
    let is_ours = |line: &&str| !is_elsewhere(line);
    lines
        .filter(is_ours)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The table of tracing: the rows by a jump beside those by a breakpoint.
fn tracing(results: &Results) -> String {
    let mut text = format!(
        "{:<18} {:>8}  {:>10}  {:>9}  {:>11}\n",
        "row", "ours", "ours, int3", "Linux 6.1", "Linux, int3"
    );
    let rows = results.of(Quantity::Cost);
    for (name, cost) in rows.filter(|(name, _)| is_of_tracing(name) && !name.ends_with("_int3")) {
        let int3 = format!("{name}_int3");
        let ours = results.get(Quantity::Cost, &int3);
        let ours = ours.map_or(String::new(), |cost| cost.to_string());
        let linux =
            |name| linux::figure(name).map_or(String::new(), |linux| linux.cost.to_string());
        let row = format!(
            "{name:<18} {cost:>8}  {ours:>10}  {:>9}  {:>11}",
            linux(name),
            linux(&int3)
        );
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// The figures of a table of the document, by the names of rows.
fn figures(block: &Block<'_>) -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    for line in block.text.lines().skip(1) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let mut next = || words.next()?.parse().ok();
        let Some(ours) = next() else { continue };
        figures.push((name.to_owned(), ours));
        if block.mark == TRACING
            && let Some(int3) = next()
        {
            figures.push((format!("{name}_int3"), int3));
        }
    }
    figures
}

/// The measured rows of which a table of `document` says something else, or nothing.
fn stale(document: &Document, results: &Results) -> Vec<String> {
    let blocks = document.blocks();
    let tables = blocks
        .iter()
        .filter(|block| [PROBES, TRACING, PROGRAMS].contains(&block.mark));
    let shown: Vec<_> = tables.flat_map(figures).collect();
    let mut stale = Vec::new();
    for (name, cost) in results.of(Quantity::Cost) {
        let cost = cost.as_f64();
        let is_long = LONG.iter().any(|start| name.starts_with(start));
        let most_off = if is_long { cost * 0.04 } else { 1.0 };
        let figure = shown.iter().find(|(shown, _)| shown == name);
        match figure {
            Some((_, figure)) if (figure - cost).abs() <= most_off => {}
            Some((_, figure)) => stale.push(format!("{name} {figure} is {cost:.2}")),
            None if name == "base_depth16" => {}
            None => stale.push(format!("{name} {cost:.2} is missing")),
        }
    }
    stale
}

/// Holds the document against what was measured, or writes it if `all` rows were measured and the
/// environment says so.
///
/// # Errors
/// The rows that the document has not, or not so.
pub fn check(results: &Results, all: bool) -> Result<(), String> {
    let document = Document::open(NAME);
    if all && document::writes() {
        let real = |block: &Block<'_>| match block.mark {
            PROBES => Some(probes(results)),
            TRACING => Some(tracing(results)),
            PROGRAMS => Some(programs(results)),
            _ => None,
        };
        document.compare(real, |_, _| Vec::new());
        return Ok(());
    }
    let stale = stale(&document, results);
    match stale.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{NAME} has other figures; DOCUMENTS=write cargo bench writes these: {}",
            stale.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(log: &str) -> Results {
        let mut results = Results::default();
        results.add(log);
        results
    }

    #[test]
    fn tables_are_read_back() {
        let results = results(concat!(
            "bench: cost k_int3 74/1\nbench: traps k_int3 1/1\nbench: cost ev_0 98820/1000\n",
            "bench: cost ev_0_int3 11182/100\nbench: cost a_by_func 63/1\n",
        ));
        let text = format!(
            "```{PROBES}\n{}```\n```{TRACING}\n{}```\n",
            probes(&results),
            tracing(&results)
        );
        assert!(!probes(&results).contains("ev_0"), "{text}");
        let document = Document::of("a document", &text);
        let blocks = document.blocks();
        assert_eq!(figures(&blocks[0]), [("k_int3".into(), 74.0)]);
        let names: Vec<_> = figures(&blocks[1])
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["ev_0", "ev_0_int3", "a_by_func"]);
        assert_eq!(stale(&document, &results), [""; 0]);
    }

    #[test]
    fn other_figures_are_told() {
        let text = format!("```{PROBES}\nrow ours\nk_int3 74 1\nregister_10000 2700\n```\n");
        let document = Document::of("a document", &text);
        let told = |log| stale(&document, &results(log));
        assert_eq!(told("bench: cost k_int3 75/1\n"), [""; 0]);
        assert_eq!(told("bench: cost k_int3 76/1\n"), ["k_int3 74 is 76.00"]);
        assert_eq!(told("bench: cost register_10000 2620/1\n"), [""; 0]);
        assert_eq!(told("bench: cost k_opt 69/1\n"), ["k_opt 69.00 is missing"]);
    }
}
