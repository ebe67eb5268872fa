//! The commands of `cargo run -- trace` in `docs/tracing.md` and `README.md`: each is run, and
//! the tracer has to answer what the document shows.
//!
//! Such a block of code is marked `console`. Its lines that begin with `$ ` are commands, and
//! behind each stands its output: standard output, then standard error. In a block marked
//! `console times` the rows of histograms are left out, because they are times. [`shape`] leaves
//! out the rest of what changes from run to run. Files are written to a directory of their own.
//!
//! `TRACE_DOC=write cargo test -p tests --test trace_doc` writes the real output into the
//! documents, for somebody who has changed a command and reads the difference.

use std::{env, fs, path::Path, process::Command};

use boot::qemu::Machine;
use regex::Regex;
use tests::{
    processors::for_guest,
    tracer::{program, words},
};

/// The beginning of commands.
const TRACE: &str = "cargo run -- trace ";

/// A part of a document.
#[derive(Debug, PartialEq)]
enum Part {
    /// It stands as it is.
    Text(String),
    /// A block: its mark, and its content.
    Block(String, String),
}

fn parts(document: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = document;
    while let Some(at) = rest.find("```console") {
        let (before, block) = rest.split_at(at);
        let (mark, block) = block.split_once('\n').expect("a block has lines");
        let end = block.find("```").expect("each block of code has its end");
        parts.push(Part::Text(before.into()));
        parts.push(Part::Block(mark.into(), block[..end].into()));
        rest = &block[end..];
    }
    parts.push(Part::Text(rest.into()));
    parts
}

/// The output of a command, run in `directory`.
fn answer(command: &str, directory: &Path) -> String {
    let _taken = for_guest(Machine::CPUS);
    let arguments = command
        .strip_prefix(TRACE)
        .expect("a command of the tracer");
    let mut run = Command::new(program());
    run.args(["--timeout", "120"]).args(words(arguments));
    let output = run.current_dir(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let is_progress = |line: &str| line.starts_with("boot: building");
    let said = said.lines().filter(|line| !is_progress(line));
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    said.for_each(|line| text += &format!("{line}\n"));
    text
}

/// The output without the parts that may differ: offsets in functions, and rows of times.
fn shape(mark: &str, text: &str) -> Vec<String> {
    let offset = Regex::new(r"\+\d+$").unwrap();
    let line_number = Regex::new(r"\.rs:\d+$").unwrap();
    text.lines()
        .filter(|line| !(mark.ends_with(" times") && line.starts_with('[')))
        .map(|line| offset.replace(line, "+OFFSET").into_owned())
        .map(|line| line_number.replace(&line, ".rs:LINE").into_owned())
        .collect()
}

/// Runs all commands of a document, and compares or writes.
fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    let document = fs::read_to_string(&path).unwrap();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.replace('/', "-"));
    fs::create_dir_all(&directory).unwrap();
    let (mut real, mut differs, mut commands) = (String::new(), Vec::new(), 0);
    for part in parts(&document) {
        match part {
            Part::Text(text) => real += &text,
            Part::Block(mark, block) => {
                let mut made = String::new();
                for line in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
                    made += &format!("$ {line}\n{}", answer(line, &directory));
                    commands += 1;
                }
                if shape(&mark, &made) != shape(&mark, &block) {
                    differs.push(made.clone());
                }
                real += &format!("{mark}\n{made}");
            }
        }
    }
    assert!(commands > 0, "{name} has no command");
    if env::var("TRACE_DOC").is_ok_and(|mode| mode == "write") {
        fs::write(&path, real).unwrap();
        return;
    }
    assert!(
        differs.is_empty(),
        "{name} shows something else than:\n{}",
        differs.join("\n")
    );
}

#[test]
fn the_tutorial_shows_real_answers() {
    check("docs/tracing.md");
}

#[test]
fn the_readme_shows_real_answers() {
    check("README.md");
}

#[test]
fn blocks_are_found() {
    let document = "x\n```console times\n$ cargo run -- trace -l a\nb\n```\ny\n";
    assert_eq!(
        parts(document),
        [
            Part::Text("x\n".into()),
            Part::Block(
                "```console times".into(),
                "$ cargo run -- trace -l a\nb\n".into()
            ),
            Part::Text("```\ny\n".into()),
        ]
    );
}

#[test]
fn only_what_may_differ_is_left_out() {
    let same = |mark, a, b| shape(mark, a) == shape(mark, b);
    assert!(same("```console", "    f+12\na.rs:7", "    f+3\na.rs:8"));
    assert!(!same("```console", "@: 7", "@: 8"));
    assert!(!same("```console", "[1, 2)  7", "[1, 2)  8"));
    assert!(same("```console times", "@: \n[1, 2)  7", "@: \n[2, 4)  8"));
    assert!(!same("```console times", "@a: ", "@b: "));
}
