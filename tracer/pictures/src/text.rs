//! A tree of calls for the terminal.
//!
//! ```text
//! writer (7): 3 calls
//!     -5.70 µs  cpu 0  sys_write(fd = 1, count = 12) = Ok(12)  5.20 µs
//!     -5.10 µs  cpu 0    vfs_write(count = 12) = Ok(12)  3.40 µs
//!      -600 ns  cpu 0      lock()  … (never returned)
//! ```
//!
//! Each task has a tree of its own. The task of the last record comes last, next to the prompt of
//! the reader, because it is the one in which a kernel died.

use std::fmt::Write as _;

use crate::{
    model::{Call, Instant, Seen, Timeline, number_of},
    names,
    units::duration,
};

/// How a tree is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Only so many calls, those that ended last. Open ones are the last of all.
    pub last: Option<usize>,
    /// Times count back from the end of the recording. Otherwise they count from its beginning.
    pub from_end: bool,
    /// Functions without their modules.
    pub short_names: bool,
    /// What is known of calls that have not returned.
    pub open: Open,
}

/// Why a call has not returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Open {
    /// Nothing that was called returns any more.
    #[default]
    Never,
    /// The recording ended before.
    NotYet,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            last: None,
            from_end: false,
            short_names: true,
            open: Open::Never,
        }
    }
}

/// The calls as indented lines with arguments, results and durations.
pub fn tree(timeline: &Timeline, options: Tree) -> String {
    let (begin, end) = timeline.span();
    let is_shown = latest(timeline, options.last);
    let mut groups = timeline.calls_by_task();
    groups.sort_by_key(|(_, calls)| calls.iter().map(|call| (call.end, call.begin)).max());
    let mut text = String::new();
    for (tid, calls) in groups {
        let shown: Vec<&Call> = calls
            .iter()
            .copied()
            .filter(|call| is_shown(call))
            .collect();
        let Some(first) = shown.iter().map(|call| call.begin).min() else {
            continue;
        };
        if !text.is_empty() {
            text.push('\n');
        }
        let name = timeline.task_name(tid);
        let of = match (shown.len(), calls.len()) {
            (1, 1) => "1 call".into(),
            (shown, all) if shown == all => format!("{all} calls"),
            (shown, all) => format!("the last {shown} of {all} calls"),
        };
        _ = writeln!(text, "{name} ({}): {of}", number_of(tid));
        let of_task = |instant: &&Instant| instant.tid == tid && instant.time >= first;
        let mut instants: Vec<&Instant> = timeline.instants.iter().filter(of_task).collect();
        instants.sort_by_key(|instant| instant.time);
        let mut instants = instants.into_iter().peekable();
        let mut line = |time: u64, cpu: Option<u32>, depth: usize, what: &str| {
            let time = match options.from_end {
                true if time < end => format!("-{}", duration(end - time)),
                true => duration(0),
                false => duration(time.saturating_sub(begin)),
            };
            let cpu = cpu.map_or_else(|| "?".into(), |cpu| cpu.to_string());
            let indent = "  ".repeat(depth);
            _ = writeln!(text, "{time:>12}  cpu {cpu}  {indent}{what}");
        };
        let mut callers: Vec<&Call> = Vec::new();
        for call in shown {
            while let Some(instant) = instants.next_if(|instant| instant.time < call.begin) {
                let depth = callers.iter().filter(|caller| caller.end >= instant.time);
                let what = described(instant);
                line(instant.time, Some(instant.cpu), depth.count(), &what);
            }
            // A caller has ended no earlier than its callee, so it is shown, too. Where calls do
            // not nest, the depth may be larger than the number of callers.
            callers.truncate(call.depth as usize);
            let cpu = call.cpu_at_entry.or(call.cpu_at_return);
            line(call.begin, cpu, callers.len(), &called(call, options));
            callers.push(call);
        }
        for instant in instants {
            let depth = callers.iter().filter(|caller| caller.end >= instant.time);
            line(
                instant.time,
                Some(instant.cpu),
                depth.count(),
                &described(instant),
            );
        }
    }
    text
}

/// Tells of a call whether it is among the last so many.
fn latest(timeline: &Timeline, last: Option<usize>) -> impl Fn(&Call) -> bool {
    // Outer calls count as later than inner ones with the same end: a callee needs its callers.
    let key = |call: &Call| (call.end, u32::MAX - call.depth, u64::MAX - call.begin);
    let mut keys: Vec<_> = timeline.calls.iter().map(key).collect();
    let first = match last {
        Some(0) => None,
        Some(count) if count < keys.len() => {
            let at = keys.len() - count;
            Some(*keys.select_nth_unstable(at).1)
        }
        _ => Some((0, 0, 0)),
    };
    move |call| first.is_some_and(|first| key(call) >= first)
}

/// `vfs_write(count = 12) = Ok(12)  3.40 µs`
fn called(call: &Call, options: Tree) -> String {
    let mut text = match options.short_names {
        true => names::short(&call.function),
        false => call.function.clone(),
    };
    match call.seen {
        Seen::ReturnOnly => text.push_str("(?)"),
        _ => _ = write!(text, "({})", listed(&call.arguments)),
    }
    if let Some(result) = &call.result {
        _ = write!(text, " = {result}");
    }
    let time = duration(call.nanoseconds());
    _ = match call.seen {
        Seen::Whole => write!(text, "  {time}"),
        Seen::ReturnOnly => write!(text, "  {time} or more (its entry was not recorded)"),
        Seen::EntryOnly => write!(text, "  {time} or less (its return was not recorded)"),
        Seen::Open => text.write_str(match options.open {
            Open::Never => "  … (never returned)",
            Open::NotYet => "  … (had not returned at the end)",
        }),
    };
    one_line(text)
}

fn described(instant: &Instant) -> String {
    one_line(match instant.arguments.is_empty() {
        true => format!("• {}", instant.name),
        false => format!("• {}({})", instant.name, listed(&instant.arguments)),
    })
}

fn listed(arguments: &[(String, String)]) -> String {
    let listed = arguments
        .iter()
        .map(|(name, value)| format!("{name} = {value}"));
    listed.collect::<Vec<_>>().join(", ")
}

/// Control characters as escapes: a traced string must not move the cursor of a terminal.
fn one_line(text: String) -> String {
    match text.chars().any(char::is_control) {
        false => text,
        true => text
            .chars()
            .flat_map(|character| match character.is_control() {
                true => character.escape_default().collect(),
                false => vec![character],
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    fn example() -> Builder {
        let arguments = |list: &[(&str, &str)]| {
            list.iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect::<Vec<_>>()
        };
        let mut builder = Builder::new();
        builder.task(7, 7, "writer");
        builder.entry(
            1000,
            7,
            0,
            "kernel::sys_write",
            arguments(&[("fd", "1"), ("count", "12")]),
        );
        builder.entry(
            1600,
            7,
            0,
            "kernel::fs::vfs_write",
            arguments(&[("count", "12")]),
        );
        builder.instant(1700, 7, 0, "wakeup", arguments(&[("tid", "8")]));
        builder.exit(5000, 7, 0, "kernel::fs::vfs_write", Some("Ok(12)".into()));
        builder.entry(
            5500,
            8,
            1,
            "<kernel::A as core::B>::c",
            arguments(&[("text", "a\nb")]),
        );
        builder.exit(6200, 7, 1, "kernel::sys_write", Some("Ok(12)".into()));
        builder.entry(6700, 7, 1, "kernel::panic", Vec::new());
        builder
    }

    #[test]
    fn a_tree_has_arguments_results_and_durations() {
        assert_eq!(
            tree(&example().finish(), Tree::default()),
            "\
task 8 (8): 1 call
     4.50 µs  cpu 1  <A as B>::c(text = a\\nb)  … (never returned)

writer (7): 3 calls
        0 ns  cpu 0  sys_write(fd = 1, count = 12) = Ok(12)  5.20 µs
      600 ns  cpu 0    vfs_write(count = 12) = Ok(12)  3.40 µs
      700 ns  cpu 0      • wakeup(tid = 8)
     5.70 µs  cpu 1  panic()  … (never returned)
"
        );
    }

    /// What happens as a call begins is in that call, also in the first one that is shown.
    #[test]
    fn an_instant_at_the_time_of_an_entry_comes_after_it() {
        let mut builder = Builder::new();
        builder.task(1, 1, "cat");
        builder.entry(5, 1, 0, "early", Vec::new());
        builder.exit(6, 1, 0, "early", None);
        builder.instant(9, 1, 0, "before", Vec::new());
        for (time, function) in [(10, "a"), (20, "b")] {
            builder.entry(time, 1, 0, function, Vec::new());
            builder.instant(time, 1, 0, "now", Vec::new());
        }
        builder.exit(30, 1, 0, "b", None);
        builder.exit(30, 1, 0, "a", None);
        let options = Tree {
            last: Some(2),
            ..Tree::default()
        };
        assert_eq!(
            tree(&builder.finish(), options),
            "\
cat (1): the last 2 of 3 calls
        5 ns  cpu 0  a()  20 ns
        5 ns  cpu 0    • now
       15 ns  cpu 0    b()  10 ns
       15 ns  cpu 0      • now
"
        );
    }

    #[test]
    fn an_idle_task_has_the_number_of_the_kernel() {
        let mut builder = Builder::new();
        builder.task(0, 0, "swapper");
        builder.entry(5, 0, 1, "f", Vec::new());
        builder.exit(10, 0, 1, "f", None);
        let text = tree(&builder.finish(), Tree::default());
        assert!(text.starts_with("swapper on CPU 1 (0): 1 call\n"), "{text}");
    }

    /// A callee needs its caller, and the caller has begun before it.
    #[test]
    fn of_calls_that_ended_together_the_longest_is_the_last() {
        let mut builder = Builder::new();
        let tasks = [(1, 5), (2, 0), (3, 7)];
        for (tid, begin) in tasks {
            builder.entry(begin, tid, 0, &format!("f{tid}"), Vec::new());
        }
        for (tid, _) in tasks {
            builder.exit(10, tid, 0, &format!("f{tid}"), None);
        }
        let options = Tree {
            last: Some(1),
            ..Tree::default()
        };
        let text = tree(&builder.finish(), options);
        let shown = ["f1(", "f2(", "f3("].map(|call| text.contains(call));
        assert_eq!(shown, [false, true, false], "{text}");
    }

    #[test]
    fn the_last_calls_are_those_that_ended_last_and_open_ones() {
        let options = Tree {
            last: Some(2),
            from_end: true,
            short_names: false,
            open: Open::Never,
        };
        assert_eq!(
            tree(&example().finish(), options),
            "\
task 8 (8): 1 call
    -1.20 µs  cpu 1  <kernel::A as core::B>::c(text = a\\nb)  … (never returned)

writer (7): the last 1 of 3 calls
        0 ns  cpu 1  kernel::panic()  … (never returned)
"
        );
        assert_eq!(tree(&Timeline::default(), options), "");
        let lives = Tree {
            open: Open::NotYet,
            ..options
        };
        let text = tree(&example().finish(), lives);
        let line = "        0 ns  cpu 1  kernel::panic()  … (had not returned at the end)\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn half_recorded_calls_say_so() {
        let mut builder = Builder::new();
        builder.entry(1000, 1, 0, "b", Vec::new());
        builder.entry(2000, 1, 0, "c", Vec::new());
        builder.exit(3000, 1, 0, "b", None);
        builder.exit(4000, 1, 0, "a", Some("3".into()));
        assert_eq!(
            tree(&builder.finish(), Tree::default()),
            "\
task 1 (1): 3 calls
        0 ns  cpu 0  a(?) = 3  3.00 µs or more (its entry was not recorded)
        0 ns  cpu 0    b()  2.00 µs
     1.00 µs  cpu 0      c()  1.00 µs or less (its return was not recorded)
"
        );
    }
}
