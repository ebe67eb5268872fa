//! Snapshots: the file `snapshot`, that of a CPU, and the trigger.
//!
//! A snapshot exchanges the live rings for spare ones, so tracing goes on meanwhile. The tests
//! number their calls and look which numbers are in `trace` and which in `snapshot`, for all CPUs
//! and for one, and after triggers that take snapshots.

use super::*;

const ENABLE: &str = "events/kprobes/shot/enable";
const TRIGGER: &str = "events/kprobes/shot/trigger";

/// An event whose records have numbers, and no snapshot.
fn begin() {
    clean_up();
    echo("0", "snapshot").unwrap();
    echo("p:shot traced_function number=%di:u64", "kprobe_events").unwrap();
    echo("1", ENABLE).unwrap();
}

fn end() {
    clean_up();
    echo("0", "snapshot").unwrap();
}

/// The numbers in a file.
fn numbers(file: &str) -> Vec<u64> {
    lines_of(file)
        .iter()
        .map(|line| line.split_once("number=").unwrap().1.parse().unwrap())
        .collect()
}

fn calls(numbers: core::ops::Range<u64>) {
    numbers.for_each(call);
}

/// The line that says whether there is a second buffer. None if there are records.
fn state(file: &str) -> Option<String> {
    let text = show(file);
    assert!(text.starts_with("# tracer: nop\n#\n"), "{text}");
    let line = text.lines().find(|line| line.starts_with("# * "))?;
    assert!(text.contains("# echo 1 > snapshot : "), "{text}");
    assert_eq!(numbers(file), [0; 0]);
    Some(line.into())
}

const FREED: &str = "# * Snapshot is freed *";
const ALLOCATED: &str = "# * Snapshot is allocated *";

#[guest_test]
fn a_snapshot_has_what_was_recorded_and_tracing_goes_on() {
    begin();
    calls(1..4);
    assert_eq!(state("snapshot").as_deref(), Some(FREED));
    assert_eq!(numbers("trace"), [1, 2, 3]);
    // Nothing to clear, and nothing to free.
    echo("2", "snapshot").unwrap();
    assert_eq!(state("snapshot").as_deref(), Some(FREED));
    echo("1", "snapshot").unwrap();
    assert_eq!(
        (numbers("snapshot"), numbers("trace")),
        (vec![1, 2, 3], vec![])
    );
    assert!(show("snapshot").contains("entries-in-buffer/entries-written: 3/3 "));
    assert!(show("trace").contains("entries-in-buffer/entries-written: 0/0 "));
    calls(4..6);
    assert_eq!(
        (numbers("snapshot"), numbers("trace")),
        (vec![1, 2, 3], vec![4, 5])
    );
    // The next one takes the place of the last one. The live buffer is empty again.
    echo("1", "snapshot").unwrap();
    calls(6..7);
    assert_eq!(
        (numbers("snapshot"), numbers("trace")),
        (vec![4, 5], vec![6])
    );
    assert!(show("snapshot").contains("entries-in-buffer/entries-written: 2/2 "));
    assert!(show("trace").contains("entries-in-buffer/entries-written: 1/1 "));
    // Clearing the one leaves the other.
    echo("2", "snapshot").unwrap();
    assert_eq!(state("snapshot").as_deref(), Some(ALLOCATED));
    assert_eq!(numbers("trace"), [6]);
    echo("1", "snapshot").unwrap();
    calls(7..8);
    echo("", "trace").unwrap();
    assert_eq!((numbers("snapshot"), numbers("trace")), (vec![6], vec![]));
    calls(8..9);
    echo("0", "snapshot").unwrap();
    assert_eq!(state("snapshot").as_deref(), Some(FREED));
    assert_eq!(numbers("trace"), [8]);
    end();
}

/// Rings of another size, and another mode, are those of both buffers.
#[guest_test]
fn a_resize_is_of_both_buffers() {
    begin();
    echo("1", "snapshot").unwrap();
    calls(1..2);
    echo("4", "buffer_size_kb").unwrap();
    // The records of both are gone, and a snapshot needs no new memory.
    assert_eq!(state("snapshot").as_deref(), Some(ALLOCATED));
    echo("0", "options/overwrite").unwrap();
    for _ in 0..3 {
        on_cpu(0, || calls(0..200));
        let kept = numbers("trace");
        // The oldest ones.
        assert!(kept.len() < 100 && kept[0] == 0, "{kept:?}");
        echo("1", "snapshot").unwrap();
        assert_eq!(numbers("snapshot"), kept);
    }
    echo("1", "options/overwrite").unwrap();
    echo("256", "buffer_size_kb").unwrap();
    end();
}

#[guest_test]
fn a_snapshot_may_be_of_one_cpu() {
    begin();
    let both = |number| {
        for cpu in 0..2_u64 {
            on_cpu(cpu as usize, move || call(number + cpu));
        }
    };
    both(10);
    echo("1", "per_cpu/cpu1/snapshot").unwrap();
    assert_eq!(
        (numbers("snapshot"), numbers("trace")),
        (vec![11], vec![10])
    );
    assert_eq!(state("per_cpu/cpu0/snapshot").as_deref(), Some(ALLOCATED));
    assert_eq!(numbers("per_cpu/cpu1/snapshot"), [11]);
    both(20);
    echo("1", "snapshot").unwrap();
    both(30);
    assert_eq!(numbers("snapshot"), [10, 20, 21]);
    assert_eq!(numbers("per_cpu/cpu0/snapshot"), [10, 20]);
    assert_eq!(numbers("per_cpu/cpu1/trace"), [31]);
    echo("7", "per_cpu/cpu0/snapshot").unwrap();
    assert_eq!(numbers("snapshot"), [21]);
    for (text, file) in [
        ("0", "per_cpu/cpu0/snapshot"),
        ("-1", "snapshot"),
        ("", "snapshot"),
        ("now", "snapshot"),
        ("1 2", "per_cpu/cpu0/snapshot"),
    ] {
        assert_eq!(echo(text, file), Err(Errno::EINVAL), "{text} > {file}");
    }
    assert_eq!(
        (numbers("snapshot"), numbers("trace")),
        (vec![21], vec![30, 31])
    );
    end();
}

/// The hit that takes it is the last record in it.
#[guest_test]
fn a_trigger_takes_snapshots_of_all_cpus_as_often_as_it_says() {
    begin();
    echo("snapshot:2 if number > 4", TRIGGER).unwrap();
    assert_eq!(show(TRIGGER), "snapshot:count=2 if number > 4\n");
    assert_eq!(append("snapshot", TRIGGER), Err(Errno::EEXIST));
    // There is a buffer before the first hit, and it stays as long as the trigger does.
    assert_eq!(state("snapshot").as_deref(), Some(ALLOCATED));
    assert_eq!(echo("0", "snapshot"), Err(Errno::EBUSY));
    let on_both = |numbers: core::ops::Range<u64>| {
        for number in numbers {
            on_cpu(number as usize % 2, move || call(number));
        }
    };
    on_both(1..5);
    assert_eq!(state("snapshot").as_deref(), Some(ALLOCATED));
    on_both(5..6);
    assert_eq!(
        (numbers("snapshot"), numbers("trace")),
        (vec![1, 2, 3, 4, 5], vec![])
    );
    assert_eq!(show(TRIGGER), "snapshot:count=1 if number > 4\n");
    on_both(3..7);
    assert_eq!(show(TRIGGER), "snapshot:count=0 if number > 4\n");
    on_both(7..9);
    let (snapshot, live) = (numbers("snapshot"), numbers("trace"));
    assert_eq!((snapshot, live), (vec![3, 4, 5], vec![6, 7, 8]));
    append("!snapshot", TRIGGER).unwrap();
    assert!(show(TRIGGER).starts_with("# Available triggers:"));
    assert_eq!(numbers("snapshot"), [3, 4, 5]);
    echo("0", "snapshot").unwrap();
    assert_eq!(
        (state("snapshot").as_deref(), numbers("trace")),
        (Some(FREED), vec![6, 7, 8])
    );
    end();
}

/// Not the event that is off, nor its filter: the trigger acts at the hit. The stack of a trigger
/// `stacktrace` is in the snapshot, too.
#[guest_test]
fn a_trigger_takes_snapshots_also_where_its_hit_is_not_recorded() {
    begin();
    append("p:other traced_function", "kprobe_events").unwrap();
    calls(1..2);
    echo("snapshot:1", "events/kprobes/other/trigger").unwrap();
    append("stacktrace", "events/kprobes/other/trigger").unwrap();
    calls(1..3);
    let text = show("snapshot");
    assert!(
        text.contains("number=1") && !text.contains("number=2"),
        "{text}"
    );
    assert!(
        text.contains("<stack trace>\n => traced_function\n"),
        "{text}"
    );
    assert!(!text.contains("other: "), "{text}");
    append("!snapshot", "events/kprobes/other/trigger").unwrap();
    append("!stacktrace", "events/kprobes/other/trigger").unwrap();
    end();
}

/// The host reads the rings from memory, so they stay where they are. It is not told of rings that
/// snapshots exchange. This has a boot of its own, because nothing takes the sharing back.
#[guest_test(cmdline = "tick_ms=5")]
fn rings_that_the_host_reads_stay_where_they_are() {
    let share = || {
        let mut visited = vec![];
        TRACING
            .buffer
            .share(|start, bytes| visited.push((start, bytes)));
        visited
    };
    begin();
    calls(1..2);
    echo("1", "snapshot").unwrap();
    assert_eq!(share(), []);
    echo("64", "buffer_size_kb").unwrap();
    echo("1", "snapshot").unwrap();
    echo("0", "snapshot").unwrap();
    calls(2..3);
    let rings = share();
    assert_eq!(rings.len(), kernel::arch::smp::possible_cpus());
    assert!(rings.iter().all(|(_, bytes)| *bytes > 64 << 10));
    for (text, file) in [
        ("1", "snapshot"),
        ("1", "per_cpu/cpu0/snapshot"),
        ("snapshot", TRIGGER),
        ("128", "buffer_size_kb"),
        ("32", "buffer_size_kb"),
    ] {
        assert_eq!(echo(text, file), Err(Errno::EBUSY), "{text} > {file}");
    }
    assert!(show(TRIGGER).starts_with("# Available triggers:"));
    assert_eq!(show("buffer_size_kb").trim(), "64");
    assert_eq!(state("snapshot").as_deref(), Some(FREED));
    // There is nothing to clear and nothing to free, and records go where they went.
    echo("2", "snapshot").unwrap();
    echo("0", "snapshot").unwrap();
    calls(3..4);
    assert_eq!(numbers("trace"), [2, 3]);
    assert_eq!(share(), rings);
    clean_up();
}
