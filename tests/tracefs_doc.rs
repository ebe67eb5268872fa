//! The sessions in `docs/tracefs.md` and `README.md`: each line is typed at the prompt, and the
//! kernel has to answer what the document shows.
//!
//! A session is a block of code that begins with the prompt, `# `, and a command. All sessions of a
//! document that one test checks belong together: they are typed in order, into one boot. Output
//! may begin like the prompt, too, so only the words in [`COMMANDS`] begin a line that is typed.
//!
//! Some of the output changes from build to build and from run to run. [`shape`] leaves it out, and
//! nothing else: times, hexadecimal numbers, numbers of processes and CPUs, the letter for a task
//! that is due, and all numbers in messages of the log. Counts, names, texts and the order of lines
//! have to be the same.

use regex::Regex;
use tests::{
    Document, Session,
    document::{Block, Masks, words},
};

/// The commands that sessions may have.
const COMMANDS: [&str; 8] = [
    "cat", "echo", "grep", "insmod", "ls", "rmmod", "run", "tail",
];

/// The lines that are typed in a session.
fn commands(session: &Block<'_>) -> Vec<String> {
    let is_command = |line: &&str| COMMANDS.contains(&line.split(' ').next().unwrap_or_default());
    let typed = session.commands("# ").filter(is_command);
    typed.map(str::to_owned).collect()
}

/// The output without the parts that may differ. See the module's text.
fn shape(text: &str) -> Vec<String> {
    let masks = Masks::new(&[
        (r"\b0x[0-9a-f]+\b|\b[0-9a-f]{16}\b", "HEX"),
        (r"\b\d+\.\d{6}\b", "TIME"),
        // A call took longer, and its mark with it.
        (r"(?m)^ *\d+\)  *[+!#*@$]? *[\d.]+ us +\|", "CPU) TIME |"),
        (r"(?m)^ *\d+\)  *\|", "CPU) |"),
        (r"[\d.]+ us +[\d.]+ us +[\d.]+ us", "TIMES"),
        // A tick may have come meanwhile, so that another task is due: the second letter.
        (
            r"-\d+ +\[\d{3}\] ([^ ])[.nNpbB]([^ ]{3}) ",
            "-PID [CPU] $1.$2 ",
        ),
        (r"\b(workload\.|child=)\d+", "${1}PID"),
    ]);
    let number = Regex::new(r"\d+").unwrap();
    let is_message =
        |line: &str| line.starts_with('[') && !line.starts_with("[0") && line.contains("] ");
    text.lines()
        .map(|line| match is_message(line) {
            true => number.replace_all(line, "N").into_owned(),
            false => masks.mask(line),
        })
        .map(|line| words(&line))
        .collect()
}

/// Types `command`, the command number `number`, and returns the output.
///
/// A comment is typed after it, and its echo ends the output. The prompt alone does not, because
/// the files of tracing have lines that begin like it.
fn answer(guest: &mut Session, command: &str, number: usize) -> String {
    let end = format!("# end of {number}");
    guest.type_blind(&format!("{command}\r{end}\r"));
    let said = guest.wait_for(&format!("# {end}\n"));
    let (_, said) = said.split_once(&format!("{command}\n")).expect(&said);
    let said = said.strip_suffix(&format!("# {end}\n")).expect(said);
    said.into()
}

/// Types the sessions of the document `name` that `is_ours` chooses, and compares or writes.
fn check(name: &str, is_ours: impl Fn(&Block<'_>) -> bool) {
    let mut guest = Session::interactive();
    let mut typed = 0;
    let real = |session: &Block<'_>| {
        if !session.is_session() || !is_ours(session) {
            return None;
        }
        let mut real = String::new();
        for command in commands(session) {
            typed += 1;
            real += &format!("# {command}\n");
            for line in answer(&mut guest, &command, typed).lines() {
                real += &format!("{}\n", line.trim_end());
            }
        }
        Some(real)
    };
    Document::open(name).compare(real, |_, text| shape(text));
    guest.power_off();
    assert!(typed > 3, "{name} has no sessions");
}

#[test]
fn the_document_shows_real_sessions() {
    check("docs/tracefs.md", |_| true);
}

/// The document's code is that of the sample.
#[test]
fn the_document_shows_the_code_of_a_sample() {
    let document = Document::open("docs/tracefs.md");
    let code = document.block("Programs from Rust", "rust");
    assert!(include_str!("../samples/src/write_sizes.rs").contains(code));
}

#[test]
fn the_readme_shows_a_real_session_of_tracing() {
    check("README.md", |session| {
        session.text.contains("/sys/kernel/tracing/")
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

/// Lines of the output may begin as the prompt does.
#[test]
fn only_commands_are_typed() {
    let document = Document::open("docs/tracefs.md");
    let first = document.blocks().into_iter().find(Block::is_session);
    let first = first.expect("there is a session");
    let typed = commands(&first);
    assert!(first.text.contains("\n# tracer: nop\n") && first.text.contains("\n#\n"));
    assert!(!typed.iter().any(|line| line.starts_with("tracer")));
    assert!(typed.len() < first.commands("# ").count());
}
