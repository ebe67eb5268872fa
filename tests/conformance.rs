//! Checks the list of conformance: each item is there once, with its tests, and each test exists.
//!
//! `docs/conformance.md` has a block for each item, and `docs/conformance-items.md` its full text.
//! A block names tests as `file::function`. This file finds the tests in the sources of the whole
//! workspace, so a test that is renamed or removed fails here at once. Nothing is built or booted.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use regex::Regex;

/// The groups of items, by letter, and how many items each has.
const GROUPS: [(char, usize); 10] = [
    ('R', 52),
    ('H', 56),
    ('K', 65),
    ('J', 22),
    ('P', 38),
    ('E', 63),
    ('O', 17),
    ('B', 46),
    ('D', 45),
    ('T', 50),
];

/// How many items say that something is missing. The number is exact, so that each change is seen.
const OPEN: usize = 6;

/// How many items say that they do not apply.
const NOT_APPLICABLE: usize = 8;

/// The block of one item.
struct Row {
    item: String,
    name: String,
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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package lies in the workspace")
}

fn rows() -> Vec<Row> {
    let document = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    blocks(&document).iter().map(|block| row(block)).collect()
}

/// The blocks of the items: each runs from a line that begins with `**` to the next empty line.
///
/// Nothing else may look like a part of a block: below the first group no list stands alone.
fn blocks(document: &str) -> Vec<String> {
    let (_, groups) = document.split_once("\n## ").expect("there is a group");
    groups
        .split("\n\n")
        .map(str::trim)
        .inspect(|part| assert!(!part.starts_with('-'), "{part} belongs to no item"))
        .filter(|part| part.starts_with("**"))
        .map(str::to_owned)
        .collect()
}

/// The first entry of a block: the item's number and name.
static HEAD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\*\*([A-Z]\d\d)\*\* (.+)$").unwrap());

/// An entry that names a test.
static TEST: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^`([\w:]+)`$").unwrap());

/// An entry on what is not proven.
static GAP: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(open|not applicable): (.+)$").unwrap());

/// Reads the block of an item: its number and name, then a list.
fn row(block: &str) -> Row {
    let mut entries = block.split("\n- ").map(unwrapped);
    let first = entries.next().expect("splitting gives one part at least");
    let head = HEAD
        .captures(&first)
        .unwrap_or_else(|| panic!("{first} has no number or no name"));
    let entries: Vec<String> = entries.collect();
    let (tests, gap) = proof(&entries)
        .unwrap_or_else(|| panic!("{}: {entries:?} names no tests and no gap", &head[1]));
    Row {
        item: head[1].into(),
        name: head[2].trim().into(),
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
    sources(root(), &mut files);
    let mut tests = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let path = file.strip_prefix(root()).unwrap().with_extension("");
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
    for row in rows {
        assert!(!row.name.is_empty(), "{} has no name", row.item);
    }
}

/// The texts let a reader hold the tests of an item against all of its clauses.
#[test]
fn each_row_has_the_full_text_of_its_item() {
    let texts = fs::read_to_string(root().join("docs/conformance-items.md")).unwrap();
    let text = Regex::new(r"(?m)^\*\*([A-Z]\d\d)\*\* ((?:.+\n)+)").unwrap();
    let texts: Vec<(String, String)> = text
        .captures_iter(&texts)
        .map(|text| (text[1].into(), text[2].trim().into()))
        .collect();
    let items: Vec<_> = texts.iter().map(|(item, _)| item).collect();
    let rows = rows();
    assert_eq!(items, rows.iter().map(|row| &row.item).collect::<Vec<_>>());
    for (item, text) in &texts {
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
                    **R01** a name\nof two lines\n- `a::b`\n- open: a reason\n  of two lines\n\n\
                    **R02** another\n- `c::d`\n";
    let rows: Vec<Row> = blocks(document).iter().map(|block| row(block)).collect();
    let [first, second] = &rows[..] else {
        panic!("{} rows", rows.len());
    };
    assert_eq!((&*first.item, &*first.name), ("R01", "a name of two lines"));
    assert_eq!(first.tests, ["a::b"]);
    assert!(matches!(&first.gap, Some(Gap::Open(why)) if why == "a reason of two lines"));
    assert_eq!((&*second.item, &*second.name), ("R02", "another"));
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
