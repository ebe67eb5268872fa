//! The table of conformance against the sources: each item once, each with tests, each test there.
//!
//! `docs/conformance.md` names tests as `file::function`; what counts as a test is read from the sources of the whole
//! workspace, so a test that is renamed or removed is missed here at once. Nothing is built or booted.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

/// The groups of items, by letter, and how many items each has.
const GROUPS: [(char, usize); 9] = [
    ('R', 52),
    ('H', 56),
    ('K', 65),
    ('J', 22),
    ('P', 38),
    ('E', 63),
    ('O', 17),
    ('B', 46),
    ('D', 45),
];

/// Items that may be said not to apply.
const MOST_NOT_APPLICABLE: usize = 40;

/// A row of the table.
struct Row {
    item: String,
    what: String,
    tests: String,
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
        .map(|row| Row {
            item: row[1].into(),
            what: row[2].trim().into(),
            tests: row[3].trim().into(),
        })
        .collect()
}

/// Why an item does not apply, if it does not.
fn not_applicable(row: &Row) -> Option<&str> {
    Some(row.tests.strip_prefix("not applicable:")?.trim())
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

/// The names of the test functions in a file: those marked as such, and those in a `guest_test!`.
fn tests_in(text: &str) -> Vec<String> {
    let function = Regex::new(r"^\s*(?:pub )?(?:extern \S+ )?fn (\w+)\(").unwrap();
    let (mut in_guest_test, mut marked) = (false, false);
    let mut tests = Vec::new();
    for line in text.lines() {
        match line {
            "guest_test! {" => in_guest_test = true,
            "}" => in_guest_test = false,
            _ => marked |= line.trim() == "#[test]",
        }
        if let Some(name) = function.captures(line) {
            let outermost = line.starts_with("    fn ");
            if marked || (in_guest_test && outermost) {
                tests.push(name[1].into());
            }
            marked = false;
        }
    }
    tests
}

/// All tests of the workspace: path of the file without its ending, in `::`, then the function; and how often there is one.
fn all_tests() -> BTreeMap<String, usize> {
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
            *tests
                .entry(format!("::{}::{test}", parts.join("::")))
                .or_insert(0) += 1;
        }
    }
    tests
}

/// The tests that a row names.
fn named(row: &Row) -> Vec<&str> {
    if not_applicable(row).is_some() {
        return Vec::new();
    }
    row.tests
        .split([' ', ','])
        .filter(|name| !name.is_empty())
        .map(|name| {
            name.strip_prefix('`')
                .and_then(|name| name.strip_suffix('`'))
                .unwrap_or_else(|| panic!("{}: {name} is not the name of a test", row.item))
        })
        .collect()
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

#[test]
fn each_test_named_exists() {
    let tests = all_tests();
    assert!(tests.len() > 500, "{} tests are too few", tests.len());
    let mut wrong = Vec::new();
    for row in rows() {
        for name in named(&row) {
            let suffix = format!("::{name}");
            let found: usize = tests
                .iter()
                .filter(|(test, _)| test.ends_with(&suffix))
                .map(|(_, count)| count)
                .sum();
            if found != 1 {
                wrong.push(format!("{}: {found} tests are called {name}", row.item));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_item_is_tested_or_does_not_apply() {
    let rows = rows();
    let open: Vec<_> = rows
        .iter()
        .filter(|row| row.tests.is_empty())
        .map(|row| row.item.as_str())
        .collect();
    assert!(open.is_empty(), "no tests: {open:?}");
    let reasons: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row.item.as_str(), not_applicable(row)?)))
        .collect();
    for (item, reason) in &reasons {
        assert!(reason.len() > 20, "{item}: {reason} is no reason");
    }
    assert!(
        reasons.len() <= MOST_NOT_APPLICABLE,
        "{} items are said not to apply: {reasons:?}",
        reasons.len()
    );
}
