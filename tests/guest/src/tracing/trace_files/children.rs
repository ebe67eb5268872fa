//! The options `event-fork` and `function-fork`: children are in the sets of their parents.
//!
//! A program that makes a child is run, and its number is known before, because numbers are given
//! in turn. Both tasks end by one function, which is what is recorded.

use alloc::{format, string::String, vec::Vec};

use kernel::{
    errno::Errno,
    task::{exec::run_program, kthread::spawn_kthread},
};

use super::{
    append, clean_up, echo,
    reading::define,
    show,
    tracers::{begin, end},
};

/// The function that a program ends by.
const FUNCTION: &str = "do_group_exit";

/// The number of the next task.
fn next_task() -> i32 {
    let task = spawn_kthread("counted", || {}).unwrap();
    task.wait_released();
    task.pid() + 1
}

/// Runs the program as the task `parent`. Returns the numbers of the tasks in the records.
fn run(parent: i32) -> Vec<i32> {
    echo("", "trace").unwrap();
    assert!(run_program("/bin/workload", &["1"]).unwrap().success());
    let text = show("trace");
    let lines = text.lines().filter(|line| line.contains(FUNCTION));
    let numbers = lines.filter_map(|line| {
        // `function_graph` cuts the name of the parent off. The child has another program.
        let is_task = |(name, _): &(&str, &str)| name.starts_with("workloa") || *name == "child";
        let mut words = line
            .split_whitespace()
            .filter_map(|word| word.split_once('-'));
        words.find(is_task)?.1.parse::<i32>().ok()
    });
    let mut numbers: Vec<i32> = numbers.map(|number| number - parent).collect();
    numbers.sort_unstable();
    numbers
}

/// What is recorded with the set `file`, and what is in the set afterwards.
fn run_with(file: &str) -> (Vec<i32>, String) {
    let parent = next_task();
    echo(&format!("{parent}"), file).unwrap();
    let recorded = run(parent);
    let left = show(file).replace(&format!("{parent}\n"), "parent\n");
    echo("", file).unwrap();
    (recorded, left)
}

/// With the option on or off, tries both sets of one user.
fn check(option: &str, only: &str, without: &str) {
    assert_eq!(show(&format!("options/{option}")), "0\n");
    let left = || String::from("parent\n");
    assert_eq!(run_with(only), ([0].into(), left()));
    assert_eq!(run_with(without), ([1].into(), left()));

    echo(option, "trace_options").unwrap();
    assert_eq!(run_with(only), ([0, 1].into(), left()));
    assert_eq!(run_with(without), ([].into(), left()));
    // Another task's child is not followed.
    let parent = next_task();
    echo(&format!("{}", parent + 1000), only).unwrap();
    assert_eq!(run(parent), [0; 0]);
    // One that ends leaves the set, if another one is there.
    let parent = next_task();
    echo(&format!("{parent} 2000000000"), only).unwrap();
    assert_eq!(run(parent), [0, 1]);
    assert_eq!(show(only), "2000000000\n");
    echo("", only).unwrap();
    // A child that has no room in the set is not followed, and all goes on.
    let parent = next_task();
    let many = (0..63).map(|number| format!("{} ", 2_000_000_000 + number));
    echo(&format!("{parent} {}", many.collect::<String>()), only).unwrap();
    assert_eq!(run(parent), [0]);
    echo("", only).unwrap();
    echo(&format!("no{option}"), "trace_options").unwrap();
}

#[guest_test]
fn events_follow_children() {
    clean_up();
    define(&format!("p:ends {FUNCTION}"));
    let file = "events/kprobes/ends/enable";
    assert_eq!(show(file), "1\n");
    check("event-fork", "set_event_pid", "set_event_notrace_pid");
    // The option of the tracers is another one.
    echo("function-fork", "trace_options").unwrap();
    assert_eq!(run_with("set_event_pid").0, [0]);
    echo("nofunction-fork", "trace_options").unwrap();
    assert_eq!(append("x", "options/event-fork"), Err(Errno::EINVAL));
    clean_up();
}

#[guest_test]
fn tracers_follow_children() {
    for tracer in ["function", "function_graph"] {
        begin(tracer, FUNCTION);
        echo("funcgraph-proc", "trace_options").unwrap();
        check("function-fork", "set_ftrace_pid", "set_ftrace_notrace_pid");
        echo("nofuncgraph-proc", "trace_options").unwrap();
        end();
    }
}
