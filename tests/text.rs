//! Checks that no line of the repository's files is over [`WIDTH`] columns. rustfmt breaks most
//! code at this width, but not strings, comments and documents.
//!
//! Nothing is built or booted.

use std::{fs, process::Command};

use boot::layout::workspace;

/// Files that are not checked.
const EXCLUDED: [(&str, &str); 8] = [
    ("Cargo.lock", "cargo writes it"),
    ("LICENSE-", "verbatim texts of the licences"),
    ("boot/targets/", "a target's data layout is one string"),
    ("kernel/probes/fuzz/Cargo.lock", "cargo writes it"),
    ("kernel/probes/api.txt", "a line for each item"),
    (
        "tests/mutants/mutants.txt",
        "verbatim code, and commands of one line each",
    ),
    ("docs/flame.svg", "a picture"),
    (
        "tracer/pictures/tests/sample.",
        "a picture and its stacks, each with one line",
    ),
];

/// Documents whose blocks of code are verbatim output of the kernel, which has wide lines.
/// `tests/{walkthrough,trace_doc,tracefs_doc}.rs` compare them with what the kernel prints.
const WIDE_OUTPUT: [&str; 4] = [
    "docs/walkthrough.md",
    "docs/tracing.md",
    "docs/trace-language.md",
    "docs/tracefs.md",
];

/// The greatest width of a line, in characters.
const WIDTH: usize = 100;

/// The mistakes in `text`, the contents of the file `path`.
fn mistakes(path: &str, text: &str) -> Vec<String> {
    let is_document = path.ends_with(".md");
    let mut in_block = false;
    let mut mistakes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        in_block ^= is_document && line.trim_start().starts_with("```");
        let width = line.chars().count();
        if width > WIDTH && !(in_block && WIDE_OUTPUT.contains(&path)) {
            mistakes.push(format!("{path}:{number}: {width} columns"));
        }
    }
    mistakes
}

/// The files that git tracks.
fn tracked() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(workspace())
        .output()
        .expect("git can be run");
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).expect("names are UTF-8");
    names
        .split_terminator('\0')
        .map(str::to_owned)
        .filter(|name| workspace().join(name).exists())
        .collect()
}

#[test]
fn lines_are_narrow() {
    let files = tracked();
    assert!(files.len() > 300, "{} files are too few", files.len());
    let mut found = Vec::new();
    for path in &files {
        let is_at = |beginning: &str| path.starts_with(beginning);
        if EXCLUDED.iter().any(|(file, _)| is_at(file)) {
            continue;
        }
        let text = fs::read_to_string(workspace().join(path))
            .unwrap_or_else(|error| panic!("{path} is no text: {error}"));
        found.append(&mut mistakes(path, &text));
    }
    assert!(
        found.is_empty(),
        "{} mistakes:
{}",
        found.len(),
        found.join(
            "
"
        )
    );
}

/// An entry without a file would hide nothing, or soon the wrong file.
#[test]
fn each_exception_has_a_file() {
    let files = tracked();
    let exceptions = EXCLUDED.iter().map(|(file, _)| *file);
    for beginning in exceptions.chain(WIDE_OUTPUT) {
        let has_file = files.iter().any(|path| path.starts_with(beginning));
        assert!(has_file, "{beginning} has no file: take it off the list");
    }
}

#[test]
fn wide_lines_are_found() {
    let [fits, wide] = [WIDTH, WIDTH + 1].map(|width| "ä".repeat(width));
    for path in ["a.rs", "a.toml", "a.md", "a.ld", ".ci/run"] {
        assert!(mistakes(path, &fits).is_empty(), "{path}");
        let text = format!("{fits}\n{wide}\n");
        assert_eq!(mistakes(path, &text), [format!("{path}:2: 101 columns")]);
    }
    let block = format!("```text\n{wide}\n```\n{wide}\n");
    assert_eq!(mistakes("a.md", &block).len(), 2);
    assert_eq!(mistakes(WIDE_OUTPUT[0], &block).len(), 1);
}
