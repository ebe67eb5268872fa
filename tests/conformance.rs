//! Checks the list of conformance: each item is there once, with its tests, and each test exists.
//!
//! `docs/conformance.md` has a block for each item: its text, then its tests. A test is named
//! `file::function`. This file finds the tests in the sources of the whole workspace, so a test
//! that is renamed or removed fails here at once. Nothing is built or booted.
//!
//! It also holds the list of tests that only a process runs, in `docs/testing.md`, against the
//! sources, because the items may not rest on those.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use boot::layout;
use regex::Regex;
use tests::Document;

/// The groups of items, by letter, and how many items each has.
const GROUPS: [(char, usize); 15] = [
    ('R', 53),
    ('H', 56),
    ('K', 65),
    ('J', 22),
    ('P', 38),
    ('E', 63),
    ('O', 18),
    ('B', 46),
    ('D', 45),
    ('T', 61),
    ('A', 15),
    ('L', 46),
    ('W', 21),
    ('F', 19),
    ('U', 25),
];

/// How many items say that something is missing. The number is exact, so that each change is seen.
const OPEN: usize = 7;

/// How many items say that they do not apply.
const NOT_APPLICABLE: usize = 8;

/// The block of one item.
struct Row {
    item: String,
    /// What has to hold, with every clause.
    text: String,
    /// The names of the tests.
    tests: Vec<String>,
    gap: Option<Gap>,
}

/// Why tests do not prove the whole item.
enum Gap {
    /// Something is missing: a feature or a test. Tests beside it prove the rest.
    Open(String),
    /// There is nothing to prove. Tests beside it keep the reason true.
    NotApplicable(String),
}

fn rows() -> Vec<Row> {
    let document = Document::open("docs/conformance.md");
    let blocks = blocks(document.text());
    blocks.iter().map(|block| row(block)).collect()
}

/// The blocks of the items: each runs from a line that begins with `**` to the next empty line.
///
/// Nothing else may look like a part of a block: below the first group no list stands alone.
fn blocks(document: &str) -> Vec<String> {
    let (_, groups) = document
        .split_once("\n## R: ")
        .expect("there is a first group");
    groups
        .split("\n\n")
        .map(str::trim)
        .inspect(|part| assert!(!part.starts_with('-'), "{part} belongs to no item"))
        .filter(|part| part.starts_with("**"))
        .map(str::to_owned)
        .collect()
}

/// The first entry of a block: the item's number and text.
static HEAD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\*\*([A-Z]\d\d)\*\* (.+)$").unwrap());

/// An entry that names a test.
static TEST: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^`([\w:]+)`$").unwrap());

/// An entry on what is not proven.
static GAP: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(open|not applicable): (.+)$").unwrap());

/// Reads the block of an item: its number and text, then a list.
fn row(block: &str) -> Row {
    let mut entries = block.split("\n- ").map(unwrapped);
    let first = entries.next().expect("splitting gives one part at least");
    let head = HEAD
        .captures(&first)
        .unwrap_or_else(|| panic!("{first} has no number or no text"));
    let entries: Vec<String> = entries.collect();
    let (tests, gap) = proof(&entries)
        .unwrap_or_else(|| panic!("{}: {entries:?} names no tests and no gap", &head[1]));
    Row {
        item: head[1].into(),
        text: head[2].trim().into(),
        tests,
        gap,
    }
}

/// Joins the lines of an entry.
fn unwrapped(entry: &str) -> String {
    entry.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Reads the list of an item: one test in each entry, then perhaps an entry on what is not proven.
fn proof(entries: &[String]) -> Option<(Vec<String>, Option<Gap>)> {
    let (last, before) = entries.split_last()?;
    let (tests, gap) = match GAP.captures(last) {
        Some(parts) if &parts[1] == "open" => (before, Some(Gap::Open(parts[2].into()))),
        Some(parts) => (before, Some(Gap::NotApplicable(parts[2].into()))),
        None => (entries, None),
    };
    let tests: Option<Vec<String>> = tests
        .iter()
        .map(|entry| Some(TEST.captures(entry)?[1].to_owned()))
        .collect();
    Some((tests?, gap))
}

/// All files below `directory` whose name ends in `.rs`.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// A test function.
#[derive(Debug, PartialEq)]
struct Test {
    name: String,
    /// It is marked `#[ignore]`, so it runs only on request.
    ignored: bool,
    /// It belongs to the probes' suite, and only a process runs it.
    in_process_only: bool,
}

/// The attribute of a test or a file of the suite that the kernel does not run.
const PROCESS: &str = r#"cfg(target_os = "linux")]"#;

/// The test functions in a file: those marked `#[test]` or `#[guest_test]`.
fn tests_in(text: &str) -> Vec<Test> {
    let function = Regex::new(r"^\s*(?:pub )?(?:extern \S+ )?fn (\w+)\(").unwrap();
    let ignore = Regex::new(r#"^(?:[^"]|"[^"]*")*\bignore\b"#).unwrap();
    let (mut in_options, mut marked, mut ignored) = (false, false, false);
    let whole_file = text.lines().any(|line| line == format!("#![{PROCESS}"));
    let mut in_process_only = whole_file;
    let mut tests = Vec::new();
    for line in text.lines() {
        in_options |= line.starts_with("#[guest_test");
        marked |= in_options || line.trim() == "#[test]";
        ignored |= line.trim().starts_with("#[ignore") || (in_options && ignore.is_match(line));
        in_process_only |= line == format!("#[{PROCESS}");
        in_options &= !line.ends_with(']');
        if let Some(name) = function.captures(line) {
            if marked {
                tests.push(Test {
                    name: name[1].into(),
                    ignored,
                    in_process_only,
                });
            }
            (marked, ignored, in_process_only) = (false, false, whole_file);
        }
    }
    tests
}

/// All tests of the workspace by name: the file's path without ending, then the function.
///
/// For example, `::tests::conformance::each_item_has_one_row_in_order`.
fn all_tests() -> BTreeMap<String, Vec<Test>> {
    let mut files = Vec::new();
    sources(layout::workspace(), &mut files);
    let mut tests = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let path = file
            .strip_prefix(layout::workspace())
            .unwrap()
            .with_extension("");
        let parts: Vec<_> = path
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .filter(|part| !matches!(part.as_str(), "src" | "mod" | "main" | "lib"))
            .collect();
        for test in tests_in(&text) {
            tests
                .entry(format!("::{}::{}", parts.join("::"), test.name))
                .or_insert_with(Vec::new)
                .push(test);
        }
    }
    tests
}

#[test]
fn each_item_has_one_row_in_order() {
    let expected: Vec<String> = GROUPS
        .iter()
        .flat_map(|(group, count)| (1..=*count).map(move |n| format!("{group}{n:02}")))
        .collect();
    let rows = rows();
    let items: Vec<_> = rows.iter().map(|row| row.item.clone()).collect();
    assert_eq!(items, expected);
}

/// The text lets a reader hold the tests of an item against all of its clauses.
#[test]
fn each_row_has_the_full_text_of_its_item() {
    for Row { item, text, .. } in rows() {
        let is_sentence = text.len() > 30 && text.ends_with(['.', ')']);
        assert!(is_sentence, "{item}: {text} is no text");
    }
}

/// A name means exactly one test. Ignored tests alone do not prove an item.
///
/// Tests that only a process runs do not either, because Rust serves the hits there. In the kernel
/// assembly does.
#[test]
fn each_test_named_exists_and_some_of_them_run() {
    let all = all_tests();
    assert!(all.len() > 500, "{} tests are too few", all.len());
    let mut wrong = Vec::new();
    for row in rows() {
        let (mut ignored, mut in_process_only) = (0, 0);
        for name in &row.tests {
            let suffix = format!("::{name}");
            let found: Vec<&Test> = all
                .iter()
                .filter(|(path, _)| path.ends_with(&suffix))
                .flat_map(|(_, tests)| tests)
                .collect();
            match found[..] {
                [test] => {
                    ignored += usize::from(test.ignored);
                    in_process_only += usize::from(test.in_process_only);
                }
                _ => wrong.push(format!(
                    "{}: {} tests are called {name}",
                    row.item,
                    found.len()
                )),
            }
        }
        if ignored > 0 && ignored == row.tests.len() {
            wrong.push(format!("{}: all its tests are ignored", row.item));
        }
        if in_process_only > 0 && in_process_only == row.tests.len() && row.gap.is_none() {
            wrong.push(format!("{}: no test of it runs in the kernel", row.item));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The list in `docs/testing.md` names each test of the suite that the kernel does not run, once,
/// and no other: `file::function`, or `file::*` if no test of the file runs there.
#[test]
fn the_list_of_tests_that_only_a_process_runs_is_complete() {
    let document = Document::open("docs/testing.md");
    let listed = document.entries("These tests run in a process only:");
    let listed: Vec<String> = listed.into_iter().map(|(name, _)| name).collect();

    // The tests of each file, by name, and whether the kernel runs them.
    let mut files: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for (path, tests) in all_tests() {
        let name = path.strip_prefix("::kernel::probes::tests::suite::");
        let Some((file, name)) = name.and_then(|name| name.rsplit_once("::")) else {
            continue;
        };
        let tests = tests
            .iter()
            .map(|test| (format!("{file}::{name}"), test.in_process_only));
        files.entry(file.into()).or_default().extend(tests);
    }
    let mut real = BTreeSet::new();
    for (file, tests) in files {
        let in_process_only = tests.iter().filter(|(_, alone)| *alone);
        let in_process_only: Vec<_> = in_process_only.map(|(name, _)| name.clone()).collect();
        match in_process_only.len() == tests.len() {
            true => real.extend([format!("{file}::*")]),
            false => real.extend(in_process_only),
        }
    }
    let once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "an entry stands there twice");
    assert_eq!(once, real, "on the left what the document lists");
}

#[test]
fn each_item_is_proven_open_or_does_not_apply() {
    let (mut open, mut not_applicable) = (Vec::new(), Vec::new());
    for row in rows() {
        let reason = match row.gap {
            None => {
                assert!(!row.tests.is_empty(), "{}: nothing proves it", row.item);
                continue;
            }
            Some(Gap::Open(missing)) => {
                open.push(row.item.clone());
                missing
            }
            Some(Gap::NotApplicable(reason)) => {
                not_applicable.push(row.item.clone());
                reason
            }
        };
        assert!(
            reason.len() > 20,
            "{}: {reason} is no explanation",
            row.item
        );
    }
    assert_eq!(open.len(), OPEN, "open: {open:?}");
    assert_eq!(
        not_applicable.len(),
        NOT_APPLICABLE,
        "not applicable: {not_applicable:?}"
    );
}

#[test]
fn an_item_is_read_as_it_is_meant() {
    let proof = |list: &[&str]| {
        let list: Vec<String> = list.iter().map(|entry| (*entry).into()).collect();
        proof(&list)
    };
    let names = |list: &[&str]| proof(list).map(|(tests, _)| tests);
    assert_eq!(
        names(&["`a::b`", "`c::d`"]),
        Some(vec!["a::b".into(), "c::d".into()])
    );
    assert_eq!(names(&[]), None);
    assert_eq!(names(&["a::b"]), None);
    assert_eq!(names(&["`a::b` `c::d`"]), None);
    assert_eq!(names(&["`a::b` but not all of it"]), None);
    assert_eq!(names(&["not built"]), None);
    assert_eq!(names(&["open: the second clause", "`a::b`"]), None);
    let (tests, gap) = proof(&["`a::b`", "open: the second clause"]).unwrap();
    assert_eq!(tests, ["a::b"]);
    assert!(matches!(gap, Some(Gap::Open(missing)) if missing == "the second clause"));
    let (tests, gap) = proof(&["not applicable: there is none"]).unwrap();
    assert!(tests.is_empty());
    assert!(matches!(gap, Some(Gap::NotApplicable(reason)) if reason == "there is none"));
}

#[test]
fn blocks_are_read_with_their_wrapped_lines() {
    let document = "# Title\n\n- a rule\n\n## R: Group\n\n\
                    **R01** A text\nof two lines.\n- `a::b`\n- open: a reason\n  of two lines\n\n\
                    **R02** Another.\n- `c::d`\n";
    let rows: Vec<Row> = blocks(document).iter().map(|block| row(block)).collect();
    let [first, second] = &rows[..] else {
        panic!("{} rows", rows.len());
    };
    assert_eq!(
        (&*first.item, &*first.text),
        ("R01", "A text of two lines.")
    );
    assert_eq!(first.tests, ["a::b"]);
    assert!(matches!(&first.gap, Some(Gap::Open(why)) if why == "a reason of two lines"));
    assert_eq!((&*second.item, &*second.text), ("R02", "Another."));
    assert_eq!(second.tests, ["c::d"]);
    assert!(second.gap.is_none());
}

#[test]
fn ignored_tests_are_told_from_those_that_run() {
    let test = |name: &str, ignored| Test {
        name: name.into(),
        ignored,
        in_process_only: false,
    };
    let host =
        "#[test]\n#[ignore = \"long\"]\nfn long() {}\n#[test]\nfn short() {}\nfn helper() {}\n";
    assert_eq!(tests_in(host), [test("long", true), test("short", false)]);
    let guest = "#[guest_test(timeout = 900, ignore)]\nfn long() {\n    fn inner() {}\n}\n\
                 #[guest_test]\nfn short() {}\n";
    assert_eq!(tests_in(guest), [test("long", true), test("short", false)]);
    let broken = "#[guest_test(\n    timeout = 900,\n    ignore\n)]\nfn long() {}\n\
                  #[guest_test(should_panic = \"you ignore it\")]\nfn short() {}\n";
    assert_eq!(tests_in(broken), [test("long", true), test("short", false)]);
}

#[test]
fn tests_that_a_process_alone_runs_are_told_from_the_others() {
    let in_process_only = |text: &str| -> Vec<bool> {
        let tests = tests_in(text).into_iter();
        tests.map(|test| test.in_process_only).collect()
    };
    let (one, two) = ("#[test]\nfn one() {}\n", "#[test]\nfn two() {}\n");
    assert_eq!(in_process_only(&format!("{one}{two}")), [false, false]);
    let text = format!("#[{PROCESS}\n{one}{two}");
    assert_eq!(in_process_only(&text), [true, false]);
    let text = format!("#![{PROCESS}\n{one}{two}");
    assert_eq!(in_process_only(&text), [true, true]);
}
