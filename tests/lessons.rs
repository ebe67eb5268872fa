//! The twelve lessons of bpftrace's one-line tutorial, as `docs/tracing.md` has them for this
//! kernel. The programs are taken from the document, so each line there does what it says.
//!
//! Lessons with the same work run in one boot, as one program of several clauses. Their maps have
//! different names for that.
//!
//! Two programs do the work. The workload makes a directory, then starts a child and makes its
//! directory, [`CHILDREN`] times. `exercise contents` writes and reads two small files:
//!
//! | call | how often, and its results |
//! |---|---|
//! | open | 9 of `/tmp/contents`, the second one fails; 1 of `/tmp/large` |
//! | read | 11, 14, 15, 0 and 12 bytes, each followed by one of 0 at the end of the file |
//! | | before, one of 0 at its end; at last, 5 bytes, and 19,996 of the large file |
//! | write | 11, 5, 1, 1, 5, 7 bytes; 19,997 to the large file, in pieces of 4096 bytes |

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use tests::{
    Document,
    tracer::{Answers, CHILDREN, answer, buckets, total, words},
};

/// The commands of the lessons, from the document, by their numbers.
fn commands() -> BTreeMap<u32, Vec<String>> {
    let document = Document::open("docs/tracing.md");
    let mut number = None;
    let mut commands = BTreeMap::new();
    for line in document.block("Twelve lessons", "sh").lines() {
        if let Some(title) = line.strip_prefix("# ") {
            number = title
                .split('.')
                .next()
                .and_then(|number| number.parse().ok());
        } else if let (Some(number), Some(command)) =
            (number.take(), line.strip_prefix("cargo run -- trace "))
        {
            commands.insert(number, words(command));
        }
    }
    commands
}

/// The answers of lessons that run the same work, in one boot.
fn together(numbers: &[u32]) -> Answers {
    let commands = commands();
    let mut program = String::new();
    let mut options: Option<&[String]> = None;
    for number in numbers {
        let (text, before) = commands[number].split_last().unwrap();
        program += &format!("{text}\n");
        assert!(options.replace(before).is_none_or(|one| one == before));
    }
    let options = options.unwrap_or_default().iter().map(String::as_str);
    let arguments: Vec<&str> = options.chain([program.as_str()]).collect();
    Answers::of(&arguments)
}

fn workload() -> &'static Answers {
    static ANSWERS: LazyLock<Answers> = LazyLock::new(|| together(&[2, 4, 8, 12]));
    &ANSWERS
}

fn contents() -> &'static Answers {
    static ANSWERS: LazyLock<Answers> = LazyLock::new(|| together(&[3, 5, 6, 7, 11]));
    &ANSWERS
}

#[test]
fn there_are_twelve() {
    let numbers: Vec<u32> = commands().into_keys().collect();
    assert_eq!(numbers, Vec::from_iter(1..=12));
}

/// The list has the system calls of the source, and no others.
#[test]
fn lesson_1_lists_places() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel/src/syscall");
    let mut defined = Vec::new();
    for file in fs::read_dir(directory).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let definitions = text.split("extern \"C\" fn sys_").skip(1);
        defined.extend(definitions.map(|rest| rest.split('(').next().unwrap().to_owned()));
    }
    defined.sort();
    let command = &commands()[&1];
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let said = answer(&command);
    let mut listed: Vec<&str> = said
        .lines()
        .map(|line| line.split("fn sys_").nth(1).unwrap())
        .map(|rest| rest.split('(').next().unwrap())
        .collect();
    listed.sort_unstable();
    assert_eq!(listed, defined);
}

#[test]
fn lesson_2_says_hello() {
    assert_eq!(workload().lines("hello"), [" world"]);
}

#[test]
fn lesson_3_shows_opened_files() {
    let mut expected = vec!["/tmp/contents"; 9];
    expected.push("/tmp/large");
    assert_eq!(contents().lines("exercise "), expected);
}

/// The workload makes a directory, and each child's twice; it looks at each child's and removes
/// all. It asks for its number for each path, writes two lines, and exits. For a child it calls
/// clone, execve (still as the workload) and wait4. A child asks for its number and its parent's,
/// writes a line, and exits.
#[test]
fn lesson_4_counts_system_calls_by_program() {
    let mkdir = 1 + 2 * CHILDREN;
    let rmdir = CHILDREN + 1;
    let getpid = 1 + CHILDREN + CHILDREN;
    let (stat, starts, own) = (CHILDREN, 3 * CHILDREN, 2 + 1);
    let workload_calls = mkdir + rmdir + getpid + stat + starts + own;
    assert_eq!(
        workload().counts("@calls"),
        BTreeMap::from([("workload", workload_calls), ("child", 4 * CHILDREN)])
    );
}

#[test]
fn lesson_5_shows_the_sizes_of_reads() {
    let expected = [(0, 7), (4, 1), (8, 4), (16384, 1)];
    assert_eq!(buckets(contents().map("@bytes")), expected);
}

#[test]
fn lesson_6_shows_them_linearly() {
    assert_eq!(buckets(contents().map("@linear")), [(0, 12), (2000, 1)]);
}

/// Each of the 13 reads is timed once, and none is left over.
#[test]
fn lesson_7_times_reads() {
    let of_program = contents().map("@ns").as_object().unwrap();
    assert_eq!(Vec::from_iter(of_program.keys()), ["exercise"]);
    assert_eq!(total(&of_program["exercise"]), 13);
    assert_eq!(contents().counts("@start"), BTreeMap::new());
}

/// The first program is started by the kernel, without execve. It ends, as its children do.
#[test]
fn lesson_8_counts_events_of_processes() {
    assert_eq!(
        workload().counts("@events"),
        BTreeMap::from([
            ("tracepoint:sched:sched_process_fork", CHILDREN),
            ("tracepoint:sched:sched_process_exec", CHILDREN),
            ("tracepoint:sched:sched_process_exit", CHILDREN + 1),
        ])
    );
}

/// The number of samples depends on time. Each is in one of the stacks, and there are some, because
/// emulation takes far longer for 30 processes than the hundredth of a second between two samples.
#[test]
fn lesson_9_takes_samples_of_stacks() {
    let answers = together(&[9]);
    assert!(answers.hits > 0);
    assert_eq!(answers.sum("@samples"), answers.hits);
}

/// A task that has ended leaves its CPU once more, and this switch is exact.
#[test]
fn lesson_10_shows_why_tasks_leave_their_cpu() {
    let answers = together(&[10]);
    let switches = answers.counts("@switches");
    let is_last = |stack: &str| stack.contains("scheduler::exit+");
    let last = switches.iter().filter(|(stack, _)| is_last(stack));
    assert_eq!(last.map(|(_, count)| count).sum::<u64>(), CHILDREN + 1);
    for stack in switches.keys() {
        let first = stack.trim_start().lines().next().unwrap();
        assert_eq!(first, "kernel::task::scheduler::context_switch+0");
    }
}

/// 19,997 bytes are 4 pieces of 4096 and one of 3613.
#[test]
fn lesson_11_shows_the_sizes_of_pieces() {
    let expected = [(1, 2), (4, 3), (8, 1), (2048, 1), (4096, 4)];
    assert_eq!(buckets(contents().map("@pieces")), expected);
}

/// The kernel loads the workload and opens the console for it.
#[test]
fn lesson_12_follows_a_structure() {
    let mut expected = vec!["/bin/workload", "/dev/console"];
    expected.extend(["/bin/child"; CHILDREN as usize]);
    assert_eq!(workload().lines("open path: "), expected);
}
