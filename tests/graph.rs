//! The tree of calls: `cargo run -- trace --graph FUNCTION`.
//!
//! The workload makes a known number of directories, of which it makes each child's twice. So the
//! trees of `sys_mkdir` and what is in them are known, but for the calls of interrupts.

use std::{collections::BTreeMap, fs};

use serde_json::Value;
use tests::tracer::{CHILDREN, answer, refusal, trace};

/// A line of the tree.
struct Line<'t> {
    depth: usize,
    /// In nanoseconds. None: calls follow in it.
    time: Option<u64>,
    text: &'t str,
}

/// The lines of the tree in an output.
fn tree(said: &str) -> Vec<Line<'_>> {
    assert!(said.starts_with("CPU  TASK  "), "{said}");
    let lines = said.lines().filter_map(|line| {
        let (head, text) = line.split_once(" |  ")?;
        let words: Vec<&str> = head.split_whitespace().collect();
        let nanoseconds = |us: &str| us.replace('.', "").parse().unwrap();
        let time = match &words[..] {
            [_, _] => None,
            [_, _, time, "us"] => Some(nanoseconds(time)),
            other => panic!("{other:?}"),
        };
        let call = text.trim_start();
        Some(Line {
            depth: (text.len() - call.len()) / 2,
            time,
            text: call,
        })
    });
    lines.collect()
}

/// Calls are closed at the depth at which they were opened, and take no less time than the calls in
/// them. Returns how many trees there are.
fn check(lines: &[Line<'_>]) -> usize {
    let mut trees = 0;
    // The time of the calls in each open call.
    let mut open: Vec<u64> = Vec::new();
    for Line { depth, time, text } in lines {
        let time = match (text.starts_with('}'), text.contains(") {"), time) {
            (true, _, Some(time)) => {
                let inside = open.pop().unwrap();
                assert!(inside <= *time, "{text}: {inside} of {time}");
                *time
            }
            (false, true, None) => {
                assert_eq!(*depth, open.len(), "{text}");
                open.push(0);
                continue;
            }
            (false, false, Some(time)) => *time,
            _ => panic!("{text}"),
        };
        assert_eq!(*depth, open.len(), "{text}");
        match open.last_mut() {
            Some(outer) => *outer += time,
            None => trees += 1,
        }
    }
    assert!(open.is_empty());
    trees
}

#[test]
fn a_tree_has_all_calls_with_arguments_and_results() {
    let picture = std::env::temp_dir().join(format!("graph-{}.svg", std::process::id()));
    let file = picture.display().to_string();
    let said = answer(&[
        "--smp",
        "1",
        "--graph",
        "sys_mkdir",
        "--graph",
        "sys_rmdir",
        "--flame",
        &file,
    ]);
    let lines = tree(&said);
    let all = 1 + 2 * CHILDREN;
    assert_eq!(check(&lines) as u64, all + 1 + CHILDREN, "{said}");
    let count = |depth: usize, parts: &[&str]| {
        let lines = lines.iter().filter(|line| line.depth == depth);
        let found = lines.filter(|line| parts.iter().all(|part| line.text.contains(part)));
        found.count() as u64
    };
    let opened = count(0, &["sys_mkdir(path=1407", ", mode=493) {"]);
    assert_eq!(opened, all, "{said}");
    assert_eq!(count(0, &["} = -17"]), CHILDREN, "{said}");
    // What is read at the return, and how the function was called from the one around it.
    assert_eq!(
        count(
            1,
            &[
                "strndup_from_user(from=1407",
                ", max_len=4096) ",
                "from_user (inlined)"
            ]
        ),
        all + 1 + CHILDREN,
        "{said}"
    );
    let whole = (1..=2).map(|child| format!("}} = Ok(/tmp/workload.3/{child})"));
    for text in whole {
        assert!(count(1, &[&text]) >= 2, "{text}: {said}");
    }
    // A call has its result at its end, wherever that is.
    let made = |result: &str| {
        let mut calls = Vec::new();
        let mut found = 0;
        for line in &lines {
            match line.text {
                text if text.starts_with('}') => {
                    let call: &str = calls.pop().unwrap();
                    found += u64::from(call.starts_with("mkdir(cwd=") && text == result);
                }
                text if line.time.is_none() => calls.push(text),
                _ => {}
            }
        }
        found
    };
    assert_eq!(made("} = Ok(())"), 1 + CHILDREN, "{said}");
    assert_eq!(made("} = Err(EEXIST)"), CHILDREN, "{said}");
    // What the debug information does not tell is not said to be nothing.
    assert!(count(1, &["_from_vec_unchecked(…) {"]) > 0, "{said}");
    let picture = fs::read_to_string(&picture).unwrap();
    fs::remove_file(file).unwrap();
    for part in ["time in calls", "sys_mkdir", "strndup_from_user"] {
        assert!(picture.contains(part), "{part}");
    }
}

#[test]
fn trees_have_a_depth_a_condition_and_a_bound_of_time() {
    let said = answer(&["--graph", "sys_*", "--depth", "1", "--whole"]);
    let lines = tree(&said);
    // The end of a process does not return.
    let is_whole = |line: &Line<'_>| {
        let never_ends = line.text.contains("::sys_exit_group(code=");
        line.depth == 0
            && line.time.is_some() != never_ends
            && line.text.starts_with("kernel::syscall::")
    };
    assert!(lines.len() > 20 && lines.iter().all(is_whole), "{said}");
    let limited = [
        "--depth",
        "2",
        "--filter",
        "args.mode == 493 && comm == \"workload\"",
    ];
    let said = answer(&[&["--graph", "sys_mkdir"], &limited[..]].concat());
    let lines = tree(&said);
    assert_eq!(check(&lines) as u64, 1 + 2 * CHILDREN, "{said}");
    let deepest = lines.iter().map(|line| line.depth).max();
    assert_eq!(deepest, Some(1), "{said}");
    for none in [["--filter", "args.mode == 492"], ["--over", "3600s"]] {
        let said = answer(&[&["--graph", "sys_mkdir", "--depth", "1"], &none[..]].concat());
        assert_eq!(tree(&said).len(), 0, "{said}");
    }
}

/// As JSON, entries and returns fit each other, with values of its own kinds.
/// The last function of a task does not return, so its line waits for the end of the trace.
#[test]
fn calls_that_do_not_return_stand_in_front_of_the_books() {
    let said = answer(&["--graph", "do_group_exit", "--depth", "1"]);
    let lines = tree(&said);
    assert_eq!(lines.len() as u64, 1 + CHILDREN, "{said}");
    for line in lines {
        assert!(line.text.starts_with("do_group_exit(code="), "{said}");
        assert!(line.text.ends_with(") {") && line.time.is_none(), "{said}");
    }
    let books = said.lines().last().unwrap();
    assert!(books.contains(" recorded + "), "{said}");
}

#[test]
fn a_tree_has_all_calls_as_json() {
    let said = answer(&["--graph", "sys_mkdir", "--depth", "2", "--json"]);
    let mut open: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut results = Vec::new();
    for line in said.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let data = &line["data"];
        let calls = open.entry(data["tid"].as_u64().unwrap_or(0)).or_default();
        let function = || data["function"].as_str().unwrap().to_owned();
        match line["type"].as_str().unwrap() {
            "entry" => {
                assert_eq!(data["depth"], calls.len(), "{said}");
                if calls.is_empty() {
                    assert_eq!(data["arguments"]["mode"], 0o755, "{said}");
                    assert_eq!(data["comm"], "workload", "{said}");
                }
                calls.push(function());
            }
            "return" => {
                assert_eq!(calls.pop(), Some(function()), "{said}");
                assert_eq!(data["depth"], calls.len(), "{said}");
                assert!(data["nanoseconds"].is_u64(), "{said}");
                if calls.is_empty() {
                    results.push(data["result"].as_i64().unwrap());
                }
            }
            "attached_probes" | "books" => {}
            other => panic!("{other}: {said}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{said}");
    let exist = results.iter().filter(|result| **result == -17).count() as u64;
    let made = results.iter().filter(|result| **result == 0).count() as u64;
    assert_eq!((made, exist), (1 + CHILDREN, CHILDREN), "{said}");
    assert_eq!(results.len() as u64, made + exist, "{said}");
}

#[test]
fn what_cannot_be_shown_is_refused() {
    for (arguments, part) in [
        (&["--graph", "sys_mkdirx"][..], "did you mean `sys_mkdir`"),
        (
            &["--graph", "sys_mkdir", "--filter", "args.modes"],
            "did you mean mode",
        ),
        (&["--graph", "sys_mkdir", "--filter", "pid =="], "^"),
        (&["--graph", "sys_mkdir", "kprobe:f { }"], "another one"),
        (&["--graph", "sys_mkdir", "--depth", "0"], "1..=1000"),
        (&["--graph", "sys_mkdir", "--over", "5"], "with its unit"),
        (&["--graph", "sys_mkdir", "--top"], "cannot be used with"),
        (
            &["--graph", "sys_mkdir", "--without", "sys_*"],
            "hides each function of --graph",
        ),
        (&["--depth", "1", "kprobe:f { }"], "--graph"),
    ] {
        let said = refusal(arguments);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    let output = trace(&["--graph", "memcpy"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("may not be probed"), "{said}");
}
