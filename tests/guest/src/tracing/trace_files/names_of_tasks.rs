//! What is told of the tasks of records beside their numbers: the names that are kept, the thread
//! groups; and where the records of a CPU begin.

use alloc::{format, string::String, vec::Vec};

use kernel::{
    errno::Errno,
    task::{current, kthread::spawn_kthread_on},
};

use super::{clean_up, echo, exists, on_cpu, reading::define, show};

/// The line of a task in a file.
fn line_of(file: &str, pid: i32) -> Option<String> {
    let text = show(file);
    let start = format!("{pid} ");
    let found = text.lines().find(|line| line.starts_with(&start));
    found.map(String::from)
}

#[guest_test]
fn names_of_tasks_are_kept() {
    let own = current().pid();
    assert_eq!(show("saved_cmdlines_size"), "256\n");
    let own_line = format!("{own} {}", current().comm());
    assert_eq!(line_of("saved_cmdlines", own), Some(own_line.clone()));
    assert_eq!(line_of("saved_cmdlines", 0), None);
    let numbers: Vec<i32> = show("saved_cmdlines")
        .lines()
        .filter_map(|line| line.split_once(' ')?.0.parse().ok())
        .collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");

    let ended = spawn_kthread_on(1, "it-has-ended", || {}).unwrap();
    ended.wait_released();
    let ended_line = Some(format!("{} it-has-ended", ended.pid()));
    assert_eq!(line_of("saved_cmdlines", ended.pid()), ended_line);

    // A name that is kept stays where there is room.
    echo("512", "saved_cmdlines_size").unwrap();
    assert_eq!(show("saved_cmdlines_size"), "512\n");
    assert_eq!(line_of("saved_cmdlines", ended.pid()), ended_line);
    // There is one place, and that of the last one.
    echo("1", "saved_cmdlines_size").unwrap();
    let last = spawn_kthread_on(1, "the-last", || {}).unwrap();
    last.wait_released();
    assert_eq!(line_of("saved_cmdlines", ended.pid()), None);
    assert_eq!(
        line_of("saved_cmdlines", last.pid()),
        Some(format!("{} the-last", last.pid()))
    );
    assert_eq!(line_of("saved_cmdlines", own), Some(own_line));
    for refused in ["0", "32769", "x", "-1"] {
        assert_eq!(echo(refused, "saved_cmdlines_size"), Err(Errno::EINVAL));
    }
    assert_eq!(show("saved_cmdlines_size"), "1\n");
    echo("32768", "saved_cmdlines_size").unwrap();
    echo("256", "saved_cmdlines_size").unwrap();
}

#[guest_test]
fn thread_groups_have_a_column() {
    clean_up();
    assert_eq!(show("options/record-tgid"), "0\n");
    assert_eq!(show("saved_tgids"), "");
    echo("record-tgid", "trace_options").unwrap();
    define("p:grouped traced_function number=%di:u64");
    super::call(1);
    let own = current().pid();
    assert_eq!(line_of("saved_tgids", own), Some(format!("{own} {own}")));
    let text = show("trace");
    assert!(text.contains("#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION\n"));
    let line = text.lines().find(|line| line.contains("grouped")).unwrap();
    let columns = format!("-{own:<7} ({own:>7}) [");
    assert!(line.contains(&columns), "{line}");

    echo("0", "options/record-tgid").unwrap();
    let text = show("trace");
    assert!(text.contains(&format!("-{own:<7} [")), "{text}");
    assert!(!text.contains("TGID"));
    // What was kept stays.
    assert_eq!(line_of("saved_tgids", own), Some(format!("{own} {own}")));
    clean_up();
}

/// Where records were overwritten, the others of a CPU may have been there before the first one.
#[guest_test]
fn the_first_record_of_a_cpu_is_marked_after_losses() {
    /// The lines of that kind, and the line before each.
    fn starts(file: &str) -> Vec<(String, String)> {
        let text = show(file);
        let lines: Vec<&str> = text.lines().collect();
        let pairs = lines.windows(2).filter(|pair| pair[1].starts_with("#####"));
        let pairs = pairs.map(|pair| (pair[0].into(), pair[1].into()));
        pairs.collect()
    }
    clean_up();
    echo("4", "buffer_size_kb").unwrap();
    assert_eq!(show("options/annotate"), "1\n");
    define("p:annotated traced_function number=%di:u64");
    on_cpu(0, || (1..4).for_each(super::call));
    on_cpu(1, || (4..8).for_each(super::call));
    // Nothing is lost.
    assert_eq!(starts("trace"), []);

    echo("", "trace").unwrap();
    on_cpu(0, || (0..1000).for_each(super::call));
    on_cpu(1, || super::call(1001));
    on_cpu(0, || super::call(1002));
    let found = starts("trace");
    let [(before, start)] = &*found else {
        panic!("{found:?}");
    };
    assert!(before.ends_with(" number=999"), "{before}");
    assert_eq!(start, "##### CPU 1 buffer started ####");
    // A file of one CPU has one beginning.
    assert_eq!(starts("per_cpu/cpu1/trace"), []);
    echo("noannotate", "trace_options").unwrap();
    assert_eq!(starts("trace"), []);
    echo("annotate", "trace_options").unwrap();
    echo("1", "snapshot").unwrap();
    assert_eq!(starts("trace"), []);
    assert_eq!(starts("snapshot"), found);
    echo("0", "snapshot").unwrap();
    clean_up();
}

#[guest_test]
fn the_size_of_all_buffers_is_that_of_each_by_their_number() {
    clean_up();
    echo("8", "buffer_size_kb").unwrap();
    let cpus = kernel::arch::smp::possible_cpus();
    assert_eq!(show("buffer_total_size_kb"), format!("{}\n", 8 * cpus));
    assert!(exists("buffer_total_size_kb"));
    assert_eq!(echo("5", "buffer_total_size_kb"), Err(Errno::EACCES));
    echo("256", "buffer_size_kb").unwrap();
}
