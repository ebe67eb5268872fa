//! The shape of the tree: what every file and every crate keeps, so that a reader finds the room of
//! any line.
//!
//! - No file outside tests is longer than [`LONGEST`] lines.
//! - A file of [`LONG`] lines or more opens with its theory, three lines of `//!` or more.
//! - No type has more than [`MOST_METHODS`] methods.
//! - No modules of a crate name one another in a circle, except those of [`CIRCLE`].
//! - No public name is one of [`BARE`], because a reader who meets it elsewhere cannot tell what it
//!   is the place or the state of.
//! - A crate without `unsafe` forbids it.
//! - No two invariants have one label, and a label names a subject ([`label`]).
//!
//! Nothing is built or booted.

use std::{collections::BTreeMap, fs, process::Command};

use boot::layout::workspace;
use regex::Regex;
use tests::modules::Modules;

const LONGEST: usize = 800;
const LONG: usize = 200;
const MOST_METHODS: usize = 60;
const BARE: &str = "Place|State|Entry|Kind";

/// The one circle: what a hit reads. `kernel/probes/src/data/mod.rs` draws it and says why.
const CIRCLE: (&str, &str) = ("kernel/probes/src", "data");

/// The Rust files that git tracks, with their texts.
fn sources() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "*.rs"])
        .current_dir(workspace())
        .output()
        .expect("git can be run");
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).expect("names are UTF-8");
    let files: Vec<(String, String)> = names
        .split_terminator('\0')
        .filter(|name| workspace().join(name).exists())
        .map(|name| {
            let text = fs::read_to_string(workspace().join(name)).expect("a source is text");
            (name.to_owned(), text)
        })
        .collect();
    assert!(files.len() > 700, "{} files are too few", files.len());
    files
}

/// Whether the file `path` is a test: it stands in a folder of tests, or is named for them.
fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
}

/// The folder of the sources of the crate that has the file `path`.
fn source_folder(path: &str) -> Option<&str> {
    let at = path.find("src/")?;
    Some(&path[..at + 3])
}

#[test]
fn no_file_outside_tests_is_a_hall() {
    let mut found = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| !is_test(path)) {
        let lines = text.lines().count();
        if lines > LONGEST {
            found.push(format!("{path}: {lines} lines"));
        }
    }
    assert_eq!(found, [""; 0]);
}

/// The number of lines of the text about the whole file, which stands first in it.
fn theory(text: &str) -> usize {
    let is_before = |line: &&str| line.is_empty() || line.starts_with("#!");
    let lines = text.lines().skip_while(is_before);
    lines.take_while(|line| line.starts_with("//!")).count()
}

#[test]
fn a_long_file_opens_with_its_theory() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        if text.lines().count() >= LONG && theory(&text) < 3 {
            found.push(path);
        }
    }
    assert_eq!(found, [""; 0]);
}

/// The number of methods of each type, by the `impl` blocks that stand at the margin of a file. The
/// methods of traits are left out, because the trait has named them.
fn methods(text: &str, counts: &mut BTreeMap<String, usize>) {
    let block = Regex::new(r"^impl(?:<.*>)? ([A-Za-z_0-9]+)[^{]*\{$").expect("a pattern");
    let method = Regex::new(r#"^    (?:pub(?:\(.*\))? )?(?:const |unsafe |extern "C" )*fn "#);
    let method = method.expect("a pattern");
    let mut name = None;
    for line in text.lines() {
        if line.starts_with("impl") && !line.contains(" for ") {
            name = block.captures(line).map(|captures| captures[1].to_owned());
        } else if line == "}" {
            name = None;
        } else if let Some(name) = name
            .as_ref()
            .filter(|_| line.contains("fn ") && method.is_match(line))
        {
            *counts.entry(name.clone()).or_default() += 1;
        }
    }
}

#[test]
fn no_type_is_a_hall() {
    let mut crates: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for (path, text) in sources() {
        // A file that stands for another one in a build without a feature has the same methods.
        let stands_in = path
            .rsplit('/')
            .next()
            .is_some_and(|file| file.starts_with("no_"));
        if !stands_in && let Some(folder) = source_folder(&path) {
            methods(&text, crates.entry(folder.into()).or_default());
        }
    }
    let counts = crates.iter().flat_map(|(folder, types)| {
        let named = move |(name, count): (&String, &usize)| (format!("{folder}: {name}"), *count);
        types.iter().map(named)
    });
    let all: Vec<(String, usize)> = counts.collect();
    assert!(all.len() > 500, "{} types are too few", all.len());
    let is_hall = |(_, count): &&(String, usize)| *count > MOST_METHODS;
    let halls: Vec<_> = all.iter().filter(is_hall).collect();
    assert!(halls.is_empty(), "{halls:?}");
}

#[test]
fn no_modules_name_one_another_in_a_circle() {
    let mut folders: Vec<String> = sources()
        .iter()
        .filter_map(|(path, _)| source_folder(path).map(str::to_owned))
        .collect();
    folders.sort();
    folders.dedup();
    assert!(folders.len() > 40, "{} crates are too few", folders.len());
    let mut found = Vec::new();
    let mut has_exception = false;
    for folder in folders {
        for circle in Modules::of(&workspace().join(&folder)).circles() {
            let (crate_folder, inner) = CIRCLE;
            if folder == crate_folder && circle.iter().all(|module| module[0] == inner) {
                has_exception = true;
                continue;
            }
            let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            found.push(format!("{folder}: {}", names.join(" ")));
        }
    }
    assert_eq!(found, [""; 0]);
    assert!(has_exception, "there is no circle any more: take it off");
}

#[test]
fn public_names_say_what_they_are_of() {
    let name = format!(r"pub (?:struct|enum|union|trait|type) (?:{BARE})\b");
    let name = Regex::new(&name).expect("a pattern");
    let mut found = Vec::new();
    for (path, text) in sources() {
        let is_public = |line: &&str| line.trim_start().starts_with("pub ");
        for line in text.lines().filter(is_public) {
            if let Some(bare) = name.find(line) {
                found.push(format!("{path}: {}", bare.as_str()));
            }
        }
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_crate_without_unsafe_code_forbids_it() {
    let word = Regex::new(r"\b(unsafe|global_asm!)").expect("a pattern");
    let is_unsafe = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        (code.contains("unsafe") || code.contains("global_asm")) && word.is_match(code)
    };
    // Each crate: the texts of its roots, and whether a file has the word.
    let mut crates: BTreeMap<String, (Vec<(String, String)>, bool)> = BTreeMap::new();
    for (path, text) in sources() {
        let Some(folder) = source_folder(&path) else {
            continue;
        };
        let (roots, has_unsafe) = crates.entry(folder.into()).or_default();
        *has_unsafe |= text.lines().any(is_unsafe);
        let name = &path[folder.len() + 1..];
        if ["lib.rs", "main.rs"].contains(&name) {
            roots.push((path.clone(), text));
        }
    }
    let mut found: Vec<&str> = Vec::new();
    for (roots, _) in crates.values().filter(|(_, has_unsafe)| !has_unsafe) {
        let lacks = |text: &str| !text.contains("#![forbid(unsafe_code)]\n");
        let roots = roots.iter().filter(|(_, text)| lacks(text));
        found.extend(roots.map(|(path, _)| path.as_str()));
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn methods_of_all_blocks_are_counted() {
    let mut counts = BTreeMap::new();
    let text = "impl<'a> Hall<'a> {\n    pub fn a(&self) {\n        fn inner() {}\n    }\n}\n\n\
        impl Hall<'_> {\n    const fn b() {}\n    pub(crate) unsafe fn c() {}\n}\n\n\
        impl fmt::Display for Hall<'_> {\n    fn fmt(&self) {}\n}\n\nfn free() {}\n";
    methods(text, &mut counts);
    assert_eq!(counts, BTreeMap::from([("Hall".to_owned(), 3)]));
}

/// The label of the invariant that a line of a comment states: `TASK-1` of `//! TASK-1. From …`.
fn label(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let marks = ["//! ", "/// ", "// "];
    let text = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
    let text = text.strip_prefix("- ").unwrap_or(text);
    let (label, _) = text.split_once(". ")?;
    let (name, number) = label.split_at(label.find(|c: char| !c.is_ascii_uppercase())?);
    let number = number.strip_prefix('-').unwrap_or(number);
    (!name.is_empty() && number.parse::<u32>().is_ok()).then_some(label)
}

#[test]
fn each_invariant_has_a_label_of_its_own() {
    let mut stated: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources() {
        for label in text.lines().filter_map(label) {
            stated.entry(label.into()).or_default().push(path.clone());
        }
    }
    assert!(stated.len() > 200, "{} labels are too few", stated.len());
    for (label, files) in &stated {
        assert_eq!(files.len(), 1, "{label} is stated in {files:?}");
        let subject = label.split_once('-').map_or("", |(subject, _)| subject);
        assert!(subject.len() >= 3, "{files:?}: {label} names no subject");
    }
}

#[test]
fn labels_are_told_from_other_text() {
    assert_eq!(label("//! TASK-1. From `start` on"), Some("TASK-1"));
    assert_eq!(label("    /// - RING-12. `oldest` only"), Some("RING-12"));
    assert_eq!(label("// T1. It says little"), Some("T1"));
    for text in [
        "//! 1. First. Then",
        "//! See TASK-1. It",
        "TASK-1. No comment",
        "// UTF-8 is.",
    ] {
        assert_eq!(label(text), None, "{text}");
    }
}
