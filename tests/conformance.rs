//! The table of conformance against the sources: each item once, each with tests, each test there.
//!
//! `docs/conformance.md` has the rows, `docs/conformance-items.md` the full text of each item. Rows name tests as `file::function`; what counts as a test is read from the sources of the whole
//! workspace, so a test that is renamed or removed is missed here at once. Nothing is built or booted.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
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

/// How many rows say that something is missing: neither more nor fewer, so that each change of it is seen.
const OPEN: usize = 67;

/// How many rows say that the item does not apply.
const NOT_APPLICABLE: usize = 6;

/// A row of the table.
struct Row {
    item: String,
    what: String,
    /// The names of the tests.
    tests: Vec<String>,
    gap: Option<Gap>,
}

/// Why tests do not prove the whole item.
enum Gap {
    /// Something is missing: a feature or a test. Tests beside it prove the rest.
    Open(String),
    /// There is nothing to prove. Tests beside it keep that true.
    NotApplicable(String),
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package lies in the workspace")
}

fn rows() -> Vec<Row> {
    let table = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let row = Regex::new(r"(?m)^\| ([A-Z]\d\d) \| (.*?) \| ?(.*?) ?\|$").unwrap();
    row.captures_iter(&table)
        .map(|row| {
            let (tests, gap) = proof(&row[3])
                .unwrap_or_else(|| panic!("{}: {} names no tests and no gap", &row[1], &row[3]));
            Row {
                item: row[1].into(),
                what: row[2].trim().into(),
                tests,
                gap,
            }
        })
        .collect()
}

/// Reads the last column: names of tests, and what they leave out.
fn proof(column: &str) -> Option<(Vec<String>, Option<Gap>)> {
    let form = Regex::new(r"^((?:`[\w:]+` ?)*)(?:(open|not applicable): (.+))?$").unwrap();
    let parts = form.captures(column.trim())?;
    let tests = parts[1].split([' ', '`']).filter(|name| !name.is_empty());
    let gap = parts.get(2).map(|kind| match kind.as_str() {
        "open" => Gap::Open(parts[3].into()),
        _ => Gap::NotApplicable(parts[3].into()),
    });
    Some((tests.map(str::to_owned).collect(), gap))
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
    /// It is marked `#[ignore]`, so nobody runs it but who asks for it.
    ignored: bool,
    /// It is one of those of the probes' suite that a process runs and the kernel does not.
    in_process_only: bool,
}

/// What a test or a file of the suite says if the kernel does not run it.
const PROCESS: &str = r#"cfg(target_os = "linux")]"#;

/// The test functions in a file: those marked as such, and those in a `guest_test!`.
fn tests_in(text: &str) -> Vec<Test> {
    let function = Regex::new(r"^\s*(?:pub )?(?:extern \S+ )?fn (\w+)\(").unwrap();
    let (mut in_guest_test, mut marked, mut ignored) = (false, false, false);
    let whole_file = text.lines().any(|line| line == format!("#![{PROCESS}"));
    let mut in_process_only = whole_file;
    let mut tests = Vec::new();
    for line in text.lines() {
        match line {
            "guest_test! {" => in_guest_test = true,
            "}" => in_guest_test = false,
            _ => {
                marked |= line.trim() == "#[test]";
                ignored |= line.trim().starts_with("#[ignore");
                in_process_only |= line == format!("#[{PROCESS}");
            }
        }
        if let Some(name) = function.captures(line) {
            let outermost = line.starts_with("    fn ");
            if marked || (in_guest_test && outermost) {
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

/// All tests of the workspace, by the path of the file without its ending, in `::`, and the function.
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
        assert!(!row.what.is_empty(), "{} does not say what it is", row.item);
    }
}

/// So that a reader can hold each row against its item.
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

/// A name means one test, and a row is not proven by tests that nobody runs, nor by what a process alone shows: there Rust serves
/// the hits, in the kernel assembly does.
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
fn a_row_is_read_as_it_is_meant() {
    let names = |column| proof(column).map(|(tests, _)| tests);
    assert_eq!(
        names("`a::b` `c::d`"),
        Some(vec!["a::b".into(), "c::d".into()])
    );
    assert_eq!(names("a::b"), None);
    assert_eq!(names("`a::b` but not all of it"), None);
    assert_eq!(names("not built"), None);
    let (tests, gap) = proof("`a::b` open: the second clause").unwrap();
    assert_eq!(tests, ["a::b"]);
    assert!(matches!(gap, Some(Gap::Open(missing)) if missing == "the second clause"));
    let (tests, gap) = proof("not applicable: there is none").unwrap();
    assert!(tests.is_empty());
    assert!(matches!(gap, Some(Gap::NotApplicable(reason)) if reason == "there is none"));
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
    let guest = "guest_test! {\n    #[ignore]\n    fn long() {\n        fn inner() {}\n    }\n    fn short() {}\n}\n";
    assert_eq!(tests_in(guest), [test("long", true), test("short", false)]);
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
