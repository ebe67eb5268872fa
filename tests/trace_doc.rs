//! The commands of `cargo run -- trace` in the documents: each is run, and the tracer has to answer
//! what the document shows.
//!
//! Such a block of code is marked `console`. Its lines that begin with `$ ` are commands, and each
//! is followed by its output: standard output, then standard error. In a block marked
//! `console times` the rows of histograms are left out, because they are times. In a tree of calls,
//! `console tree`, the CPU, times, addresses and the books are left out. [`shape`] leaves out the
//! rest of what changes from run to run. Files are written to a directory of their own.

use std::{fs, path::Path, process::Command};

use boot::qemu::Machine;
use tests::{
    Document,
    document::{Block, Masks},
    processors::for_guest,
    tracer::{program, words},
};

/// The beginning of commands.
const TRACE: &str = "cargo run -- trace ";

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
    let masks = Masks::new(&[(r"\+\d+$", "+OFFSET"), (r"\.rs:\d+$", ".rs:LINE")]);
    let of_tree = Masks::new(&[
        (r"^ +\d+\) ", "CPU) "),
        (r" +\d+\.\d+ us", " TIME us"),
        (r"0x[0-9a-f]+", "ADDRESS"),
        (r"number: \d+, slot: \d+", "number: NUMBER, slot: SLOT"),
        (r"^\d+ hits = .*", "BOOKS"),
    ]);
    text.lines()
        .filter(|line| !(mark.ends_with(" times") && line.starts_with('[')))
        .map(|line| match mark.ends_with(" tree") {
            true => of_tree.mask(line),
            false => masks.mask(line),
        })
        .collect()
}

/// Runs all commands of a document, and compares or writes.
fn check(name: &str) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.replace('/', "-"));
    fs::create_dir_all(&directory).unwrap();
    let real = |block: &Block<'_>| {
        let run = |line| format!("$ {line}\n{}", answer(line, &directory));
        let is_ours = block.mark.starts_with("console");
        is_ours.then(|| block.commands("$ ").map(run).collect())
    };
    let blocks = Document::open(name).compare(real, |block, text| shape(block.mark, text));
    assert!(blocks > 0, "{name} has no command");
}

#[test]
fn the_tutorial_shows_real_answers() {
    check("docs/tracing.md");
}

#[test]
fn the_reference_of_the_language_shows_real_answers() {
    check("docs/trace-language.md");
}

#[test]
fn the_readme_shows_real_answers() {
    check("README.md");
}

#[test]
fn only_what_may_differ_is_left_out() {
    let same = |mark, a: &str, b: &str| shape(mark, a) == shape(mark, b);
    assert!(same("console", "    f+12\na.rs:7", "    f+3\na.rs:8"));
    assert!(!same("console", "@: 7", "@: 8"));
    assert!(!same("console", "[1, 2)  7", "[1, 2)  8"));
    assert!(same("console times", "@: \n[1, 2)  7", "@: \n[2, 4)  8"));
    assert!(!same("console times", "@a: ", "@b: "));
    let line = |cpu, time, result| format!("  {cpu}) a-3    {time} us |  f(a=0x{time}) = {result}");
    assert!(same(
        "console tree",
        &line(0, "1.5", 1),
        &line(1, "222.5", 1)
    ));
    assert!(!same(
        "console tree",
        &line(0, "1.5", 1),
        &line(0, "1.5", 2)
    ));
}
