//! The sessions in `docs/tracing.md` and the one of tracing in `README.md`: each line is typed at
//! the prompt, and the kernel has to answer what the document shows.
//!
//! A session is a block of code that begins with the prompt, `# `, and a command. All sessions of a
//! document belong together: they are typed in order, into one boot. Output may begin like the
//! prompt, too, so only the words in [`COMMANDS`] begin a line that is typed.
//!
//! Some of the output changes from build to build and from run to run. [`shape`] leaves it out, and
//! nothing else: times, hexadecimal numbers, numbers of processes and CPUs, the letter for a task
//! that is due, and all numbers in messages of the log. Counts, names, texts and the order of lines
//! have to be the same.
//!
//! `TRACING_DOC=write cargo test -p tests --test tracing_doc` writes the real output into the
//! documents, for somebody who has changed a session and reads the difference.

use std::{fs, path::Path};

use regex::Regex;
use tests::Session;

/// The commands that sessions may have.
const COMMANDS: [&str; 8] = [
    "cat", "echo", "grep", "insmod", "ls", "rmmod", "run", "tail",
];

/// The parts of `document`: text as it stands, and sessions.
fn parts(document: &str) -> Vec<(bool, String)> {
    let mut parts = Vec::new();
    let mut rest = document;
    while let Some(at) = rest.find("```text\n# ") {
        let (before, block) = rest.split_at(at + "```text\n".len());
        let end = block.find("```").expect("each block of code has its end");
        parts.push((false, before.into()));
        parts.push((true, block[..end].into()));
        rest = &block[end..];
    }
    parts.push((false, rest.into()));
    parts
}

/// The lines that are typed in a session.
fn commands(session: &str) -> Vec<String> {
    session
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| COMMANDS.contains(&line.split(' ').next().unwrap_or_default()))
        .map(str::to_owned)
        .collect()
}

/// The output without the parts that may differ. See the module's text.
fn shape(text: &str) -> Vec<String> {
    let mask = |pattern: &str, with: &'static str| (Regex::new(pattern).unwrap(), with);
    let masks = [
        mask(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{16}\b", "HEX"),
        mask(r"\b\d+\.\d{6}\b", "TIME"),
        // A tick may have come meanwhile, so that another task is due: the second letter.
        mask(
            r"-\d+ +\[\d{3}\] ([^ ])[.nNpbB]([^ ]{3}) ",
            "-PID [CPU] $1.$2 ",
        ),
        mask(r"\b(workload\.|child=)\d+", "${1}PID"),
    ];
    let number = Regex::new(r"\d+").unwrap();
    text.lines()
        .map(|line| {
            if line.starts_with('[') && !line.starts_with("[0") && line.contains("] ") {
                return number.replace_all(line, "N").into_owned();
            }
            let line = masks.iter().fold(line.to_owned(), |line, (pattern, with)| {
                pattern.replace_all(&line, *with).into_owned()
            });
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Types `command`, the command number `number`, and returns the output.
///
/// A comment is typed behind it, and its echo ends the output. The prompt alone does not, because
/// the files of tracing have lines that begin like it.
fn answer(guest: &mut Session, command: &str, number: usize) -> String {
    let end = format!("# end of {number}");
    guest.type_blind(&format!("{command}\r{end}\r"));
    let said = guest.wait_for(&format!("# {end}\n"));
    let (_, said) = said.split_once(&format!("{command}\n")).expect(&said);
    let said = said.strip_suffix(&format!("# {end}\n")).expect(said);
    said.into()
}

/// Types the sessions of the document at `path` that `is_ours` chooses, and compares.
fn check(path: &str, is_ours: impl Fn(&str) -> bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let document = fs::read_to_string(&path).unwrap();
    let mut guest = Session::interactive();
    let (mut real, mut typed) = (String::new(), 0);
    for (is_session, part) in parts(&document) {
        if !is_session || !is_ours(&part) {
            real += &part;
            continue;
        }
        for command in commands(&part) {
            typed += 1;
            let said = answer(&mut guest, &command, typed);
            real += &format!("# {command}\n");
            for line in said.lines() {
                real += &format!("{}\n", line.trim_end());
            }
        }
    }
    guest.power_off();
    assert!(typed > 3, "{} has no sessions", path.display());
    if std::env::var("TRACING_DOC").is_ok_and(|what| what == "write") {
        fs::write(&path, &real).unwrap();
        return;
    }
    let (real_shape, shown) = (shape(&real), shape(&document));
    let differs = real_shape
        .iter()
        .zip(&shown)
        .find(|(real, shown)| real != shown);
    assert_eq!(
        real_shape, shown,
        "first {differs:?}; the document would be\n{real}"
    );
}

#[test]
fn the_tutorial_shows_real_sessions() {
    check("docs/tracing.md", |_| true);
}

/// The tutorial's code is that of the sample.
#[test]
fn the_tutorial_shows_the_code_of_a_sample() {
    let document = include_str!("../docs/tracing.md");
    let (_, block) = document.split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert!(include_str!("../samples/src/write_sizes.rs").contains(block));
}

#[test]
fn the_readme_shows_a_real_session_of_tracing() {
    check("README.md", |session| {
        session.contains("/sys/kernel/tracing/")
    });
}

#[test]
fn only_what_may_differ_is_left_out() {
    let same = |a: &str, b: &str| shape(a) == shape(b);
    let line =
        "  workload-12    [001] ....1     0.123456: made: (sys_mkdir+0x0/0x9a) name=\"/tmp\" n=5";
    let other =
        " workload-7     [000] ....1    10.654321: made: (sys_mkdir+0x0/0x8b) name=\"/tmp\" n=5";
    assert!(same(line, other));
    assert!(!same(line, &line.replace("n=5", "n=6")));
    assert!(!same(line, &line.replace("tmp", "dev")));
    assert!(!same(line, &line.replace("....1", "d...1")));
    assert!(!same("{ n: 1 } hitcount: 2", "{ n: 1 } hitcount: 3"));
    assert!(!same("{ n: 1 } hitcount: 2", "{ n: 2 } hitcount: 2"));
    assert!(same(
        "[    0.412345] child 3 of 2: exit 0",
        "[   10.400000] child 7 of 6: exit 1"
    ));
    assert!(!same("a\nb", "b\na"));
}

#[test]
fn sessions_are_told_from_other_blocks() {
    let document = "text\n```text\na drawing\n```\n\
                    ```text\n# echo a\na\n# cat b\n# a header\n#\n```\nend\n";
    let parts = parts(document);
    assert_eq!(
        parts.iter().map(|(_, part)| &**part).collect::<String>(),
        document
    );
    let sessions: Vec<_> = parts.iter().filter(|(is_session, _)| *is_session).collect();
    assert_eq!(sessions.len(), 1);
    assert_eq!(commands(&sessions[0].1), ["echo a", "cat b"]);
}
