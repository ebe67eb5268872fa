//! Checks the text of all files in the repository: the width of lines, and how sentences begin.
//!
//! - No line is over [`WIDTH`] columns. rustfmt breaks most code at this width, but not strings,
//!   comments and documents.
//! - No sentence in a comment or a document begins with one of [`OPENINGS`], because the reader
//!   then meets a whole clause before the verb.
//!
//! Nothing is built or booted.

use std::{fs, path::Path, process::Command};

use regex::Regex;

/// Files that are not checked.
const EXCLUDED: [(&str, &str); 8] = [
    ("Cargo.lock", "cargo writes it"),
    ("LICENSE-", "verbatim texts of the licences"),
    ("boot/targets/", "a target's data layout is one string"),
    ("kernel/probes/fuzz/Cargo.lock", "cargo writes it"),
    (
        "kernel/probes/fuzz/corpus/",
        "inputs of the fuzzer, any bytes",
    ),
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
/// `tests/walkthrough.rs` and `tests/tracing_doc.rs` compare them with what the kernel prints.
const WIDE_OUTPUT: [&str; 2] = ["docs/walkthrough.md", "docs/tracing.md"];

/// The greatest width of a line, in characters.
const WIDTH: usize = 100;

/// Words that begin no sentence. English writes them with a capital letter only there.
const OPENINGS: [&str; 3] = ["Who", "Whoever", "What"];

/// A kind of file, by the way in which it holds English.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Comments begin with `//`; those of assembly within begin a line with `#`.
    Rust,
    /// Comments begin with `#`.
    Script,
    /// All is English, except blocks of code.
    Markdown,
    /// Comments are between `/*` and `*/`.
    Linker,
}

impl Kind {
    fn of(path: &str) -> Self {
        match path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("rs") => Self::Rust,
            Some("md") => Self::Markdown,
            Some("ld") => Self::Linker,
            _ => Self::Script,
        }
    }
}

/// Finds the mistakes of a file.
struct Checker {
    /// An opening word.
    opening: Regex,
    /// A piece of code in a sentence.
    code: Regex,
    /// A comment, by [`Kind`].
    rust: Regex,
    script: Regex,
    linker: Regex,
}

impl Checker {
    fn new() -> Self {
        let regex = |pattern: &str| Regex::new(pattern).unwrap();
        Self {
            opening: regex(&format!(r"\b({})\b", OPENINGS.join("|"))),
            code: regex("`[^`]*`"),
            rust: regex(r"(?:^\s*|\s)//[/!]?\s(.*)$|^\s*#\s(.*)$"),
            script: regex(r"(?:^|\s)#\s(.*)$"),
            linker: regex(r"/\*(.*)$"),
        }
    }

    /// The English of `line`, without code, if it has any.
    fn english(&self, kind: Kind, line: &str) -> Option<String> {
        let comment = match kind {
            Kind::Markdown => return Some(self.code.replace_all(line, "`").into()),
            Kind::Rust => &self.rust,
            Kind::Script => &self.script,
            Kind::Linker => &self.linker,
        };
        let found = comment.captures(line)?;
        let text = found.iter().skip(1).flatten().next()?;
        Some(self.code.replace_all(text.as_str(), "`").into())
    }

    /// The mistakes in `text`, the contents of the file `path`.
    fn mistakes(&self, path: &str, text: &str) -> Vec<String> {
        let kind = Kind::of(path);
        let mut in_block = false;
        let mut mistakes = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let is_fence = kind == Kind::Markdown && line.trim_start().starts_with("```");
            in_block ^= is_fence;
            let width = line.chars().count();
            if width > WIDTH && !(in_block && WIDE_OUTPUT.contains(&path)) {
                mistakes.push(format!("{path}:{number}: {width} columns"));
            }
            if in_block || is_fence {
                continue;
            }
            let english = self.english(kind, line).unwrap_or_default();
            if let Some(word) = self.opening.find(&english) {
                let word = word.as_str();
                mistakes.push(format!("{path}:{number}: begins with {word}: {english}"));
            }
        }
        mistakes
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package lies in the workspace")
}

/// The files that git tracks.
fn tracked() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .expect("git can be run");
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).expect("names are UTF-8");
    names
        .split_terminator('\0')
        .map(str::to_owned)
        .filter(|name| root().join(name).exists())
        .collect()
}

#[test]
fn lines_are_narrow_and_sentences_begin_with_their_subject() {
    let checker = Checker::new();
    let files = tracked();
    assert!(files.len() > 300, "{} files are too few", files.len());
    let mut mistakes = Vec::new();
    for path in &files {
        let is_at = |beginning: &str| path.starts_with(beginning);
        if EXCLUDED.iter().any(|(file, _)| is_at(file)) {
            continue;
        }
        let text = fs::read_to_string(root().join(path))
            .unwrap_or_else(|error| panic!("{path} is no text: {error}"));
        mistakes.append(&mut checker.mistakes(path, &text));
    }
    assert!(
        mistakes.is_empty(),
        "{} mistakes:\n{}",
        mistakes.len(),
        mistakes.join("\n")
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
    let checker = Checker::new();
    let [fits, wide] = [WIDTH, WIDTH + 1].map(|width| "ä".repeat(width));
    for path in ["a.rs", "a.toml", "a.md", "a.ld", ".ci/run"] {
        assert!(checker.mistakes(path, &fits).is_empty(), "{path}");
        let text = format!("{fits}\n{wide}\n");
        assert_eq!(
            checker.mistakes(path, &text),
            [format!("{path}:2: 101 columns")]
        );
    }
    let block = format!("```text\n{wide}\n```\n{wide}\n");
    assert_eq!(checker.mistakes("a.md", &block).len(), 2);
    assert_eq!(checker.mistakes(WIDE_OUTPUT[0], &block).len(), 1);
}

#[test]
fn sentences_that_begin_with_such_a_word_are_found() {
    let checker = Checker::new();
    let slashes = "//";
    for word in OPENINGS {
        for (path, text) in [
            ("a.rs", format!("{slashes}/ {word} calls")),
            ("a.rs", format!("{slashes}! {word} calls")),
            ("a.rs", format!("    {slashes} It runs. {word} calls")),
            ("a.rs", format!("let a = 1; {slashes} {word} calls")),
            ("a.rs", format!("    # {word} calls")),
            ("a.rs", format!("{slashes}/ - {word} calls")),
            ("a.toml", format!("# {word} calls")),
            (".ci/run", format!("check # {word} calls")),
            ("a.ld", format!("/* {word} calls */")),
            ("a.md", format!("{word} calls")),
            ("a.md", format!("It runs. {word} calls")),
            ("a.md", format!("- {word} calls")),
            ("a.md", format!("| 1 | {word} calls |")),
            ("a.md", format!("It runs: `x`. {word} calls")),
        ] {
            assert_eq!(checker.mistakes(path, &text).len(), 1, "{path}: {text}");
        }
        let lower = word.to_lowercase();
        for (path, text) in [
            ("a.rs", format!("let a = \"{word} calls\";")),
            ("a.rs", format!("{slashes}/ It says {lower} calls.")),
            ("a.rs", format!("{slashes}/ `{word}` is a type.")),
            ("a.rs", format!("{slashes}/ {word}soever")),
            ("a.toml", format!("name = \"{word} calls\"")),
            ("a.md", format!("```text\n{word} calls\n```")),
            ("a.md", format!("The type `{word}` is new.")),
        ] {
            assert_eq!(
                checker.mistakes(path, &text),
                [""; 0],
                "{path}: {text} is right"
            );
        }
    }
}
