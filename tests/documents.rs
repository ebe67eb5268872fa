//! Documents name files that exist, and the figures of one document are those of another.
//!
//! Nothing is built or booted.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::LazyLock};

use boot::layout;
use regex::Regex;
use tests::Document;

/// All documents for readers of the tree.
fn documents() -> Vec<(String, Document)> {
    let mut names: Vec<String> = ["", "kernel/probes/", "samples/"]
        .map(|folder| format!("{folder}README.md"))
        .into();
    for directory in ["docs", "kernel/probes/docs"] {
        for entry in fs::read_dir(layout::workspace().join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                names.push(format!("{directory}/{name}"));
            }
        }
    }
    names.sort();
    let open = |name: String| (name.clone(), Document::open(&name));
    names.into_iter().map(open).collect()
}

/// The text of a document without its blocks of code.
fn prose(document: &Document) -> String {
    document
        .text()
        .split("```")
        .step_by(2)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The texts that `{a,b}` in `path` stands for.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.into()];
    };
    let (inside, after) = rest.split_once('}').expect("a brace is closed");
    let paths = inside
        .split(',')
        .map(|part| format!("{before}{part}{after}"));
    paths.flat_map(|path| expanded(&path)).collect()
}

/// Where paths of documents begin, besides in the document's own folder: at the top, or in the
/// folder that the document is about.
const BEGINNINGS: [&str; 3] = ["", "kernel/probes/src", "kernel/src"];

/// Folders at the top of the tree.
const TOP: [&str; 7] = [
    "boot", "docs", "kernel", "samples", "tests", "tracer", "user",
];

/// Whether a text in backticks is meant as a path of the tree: it is below a folder of the top, or
/// it has a folder and the ending of a source.
fn is_path(text: &str) -> bool {
    static ENDING: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\.(rs|md|toml|txt|svg|ld|bt)$").unwrap());
    let Some((first, rest)) = text.split_once('/') else {
        return false;
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./{},".contains(c);
    text.chars().all(is_plain)
        && !first.is_empty()
        && first != "target"
        && (ENDING.is_match(text) || (TOP.contains(&first) && !rest.is_empty()))
}

#[test]
fn each_path_in_a_document_exists() {
    let code = Regex::new(r"`([^`\n]+)`").unwrap();
    let link = Regex::new(r"\]\(([^)#:]+)(?:#[^)]*)?\)").unwrap();
    let mut missing = Vec::new();
    let mut count = 0;
    for (name, document) in documents() {
        let text = prose(&document);
        let path = layout::workspace().join(&name);
        let directory = path.parent().expect("a document is in a folder");
        for path in code.captures_iter(&text).map(|found| found[1].to_owned()) {
            if !is_path(&path) {
                continue;
            }
            for path in expanded(&path) {
                count += 1;
                let starts = BEGINNINGS.map(|start| layout::workspace().join(start));
                let mut starts = starts.iter().map(PathBuf::as_path).chain([directory]);
                if !starts.any(|start| start.join(&path).exists()) {
                    missing.push(format!("{name}: {path}"));
                }
            }
        }
        for found in link.captures_iter(&text) {
            count += 1;
            if !directory.join(&found[1]).exists() && !found[1].starts_with("crate") {
                missing.push(format!("{name}: the link to {}", &found[1]));
            }
        }
    }
    assert!(count > 100, "{count} paths are too few");
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}

/// A link to a heading has the heading's words, in small letters, with `-` for blanks.
#[test]
fn each_heading_that_is_linked_exists() {
    let link = Regex::new(r"\]\(([^)#:]*)#([^)]+)\)").unwrap();
    let heading = Regex::new(r"(?m)^#+ (.+)$").unwrap();
    let signs = Regex::new(r"[^\w -]").unwrap();
    let documents: BTreeMap<String, Document> = documents().into_iter().collect();
    let mut missing = Vec::new();
    for (name, document) in &documents {
        for found in link.captures_iter(&prose(document)) {
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            let target = match &found[1] {
                "" => name.clone(),
                file => format!("{folder}/{file}").trim_start_matches('/').into(),
            };
            let Some(target) = documents.get(&target) else {
                missing.push(format!("{name}: {}", &found[0]));
                continue;
            };
            let text = prose(target);
            let mut anchors = heading.captures_iter(&text).map(|found| {
                signs
                    .replace_all(&found[1].to_lowercase(), "")
                    .replace(' ', "-")
            });
            if !anchors.any(|anchor| anchor == found[2]) {
                missing.push(format!("{name}: {}", &found[0]));
            }
        }
    }
    assert!(missing.is_empty(), "not there:\n{}", missing.join("\n"));
}

/// The README has a part of the rows of the benchmark, rounded. `cargo bench` holds the document of
/// the benchmark against what it measures.
#[test]
fn the_readme_has_the_figures_of_the_benchmark() {
    let cost = Document::open("docs/cost.md");
    let table = cost.block("The table", "text cargo bench: probes");
    let rows: BTreeMap<&str, Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter_map(|words| Some((*words.first()?, words[1..].to_vec())))
        .collect();
    let readme = Document::open("README.md");
    let row = Regex::new(r"(?m)^\| .*\(`(\w+)`\) \| ([^|]+) \|([^|]*)\| ([^|]+) \|").unwrap();
    let mut count = 0;
    for shown in row.captures_iter(readme.text()) {
        let number = |text: &str| text.trim().replace(',', "").parse::<f64>().ok();
        let real = &rows[&shown[1]];
        // The counts of traps are left out where there are none.
        let traps = usize::from(number(&shown[3]).is_some());
        let ours: f64 = real[0].parse().unwrap();
        assert_eq!(number(&shown[2]), Some(ours.round()), "{}", &shown[1]);
        assert_eq!(number(&shown[3]), number(real[traps]).filter(|_| traps > 0));
        let linux = real.get(1 + traps).and_then(|text| number(text));
        assert_eq!(number(&shown[4]), linux, "{}", &shown[1]);
        count += 1;
    }
    assert!(count >= 8, "{count} rows");
}

/// The README says how many ready programs there are, and the tutorial has a row for each.
#[test]
fn each_ready_program_has_a_row() {
    let directory = layout::workspace().join("tracer/programs");
    let files = fs::read_dir(directory).unwrap();
    let mut programs: Vec<String> = files
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into()
        })
        .collect();
    programs.sort();
    let tutorial = Document::open("docs/tracing.md");
    let row = Regex::new(r"(?m)^\| `(\w+)[^`|]*` \| ").unwrap();
    let rows: Vec<String> = row
        .captures_iter(tutorial.text())
        .map(|found| found[1].into())
        .collect();
    assert_eq!(rows, programs, "on the left the rows");
    let readme = Document::open("README.md");
    let shown = format!("with {} ready programs", programs.len());
    assert!(readme.text().contains(&shown), "it should say {shown}");
}

/// The README says how many of 100 instructions can be probed.
#[test]
fn the_readme_has_the_share_of_the_survey() {
    let acceptance = Document::open("docs/acceptance.md");
    let share = Regex::new(r" ([0-9.]+) %  can be probed").unwrap();
    let share = share.captures(acceptance.text()).expect("there is a share");
    let share: f64 = share[1].parse().unwrap();
    let readme = Document::open("README.md");
    let shown = format!("{} of 100 can be", share.round());
    assert!(readme.text().contains(&shown), "it should say {shown}");
}

#[test]
fn paths_are_told_from_other_texts() {
    for path in ["docs/cost.md", "hit/calls.rs", "kernel/parts/hit_path"] {
        assert!(is_path(path), "{path}");
    }
    for other in [
        "calls.rs",
        "/proc/kallsyms",
        "target/bench/probes.json",
        "do_fork+0x0/0x1a2",
        "../shared/a.md x",
        "T/error_log",
    ] {
        assert!(!is_path(other), "{other}");
    }
    assert_eq!(expanded("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
}
