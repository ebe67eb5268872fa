//! Events that are defined, changed and deleted under fire.
//!
//! CPUs call the traced functions throughout, and the books must close after each change: calls are
//! hits or came while the event was off. Several tasks write definitions and mistakes at the same
//! time; each gets its own answer, and the log does not mix their messages.

use abi::open;
use alloc::{boxed::Box, format, string::String, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use kernel::{
    errno::Errno,
    fs,
    probes::{Kprobe, Kretprobe, PROBES, PreVerdict, register},
    task::{self, kthread::spawn_kthread},
    trace::{TRACING, events::EVENTS},
};

use super::{Fire, Rings, Since, fired_target};
use crate::tracing::trace_files::{append, clean_up, echo, path, show};

/// Hits and misses of an event's probes.
fn profile_of(name: &str) -> (u64, u64) {
    let events = EVENTS.lock();
    let (_, event) = events.iter().find(|((_, known), _)| known == name).unwrap();
    event.probes.iter().fold((0, 0), |(hits, misses), probe| {
        let profile = probe.profile();
        (hits + profile.hits, misses + profile.misses)
    })
}

/// Changes events under fire in one way, round by round. Each hit of `names` was recorded or is
/// counted as lost.
fn books_close(rounds: u64, names: &[&str], mut change: impl FnMut(u64)) {
    let _rings = Rings::of(16, true);
    let since = Since::now();
    let fire = Fire::start();
    for round in 0..rounds {
        fire.wait_for(10);
        change(round);
    }
    // On, for a time that is long enough for hits.
    echo("1", "events/kprobes/enable").unwrap();
    fire.wait_for(100);
    let calls = fire.end();
    let totals = since.totals();
    let (hits, misses) = names.iter().fold((0, 0), |(hits, misses), name| {
        let profile = profile_of(name);
        (hits + profile.0, misses + profile.1)
    });
    assert_eq!(
        hits,
        totals.written + totals.dropped + totals.off,
        "{totals:?}"
    );
    assert!(hits >= 100, "{hits} hits");
    assert!(hits + misses <= calls * names.len() as u64);
    clean_up();
}

#[guest_test]
fn events_are_turned_on_and_off_under_fire() {
    clean_up();
    echo(
        "p:fired fired_target n=%di:u64 s=+0(%di):string",
        "kprobe_events",
    )
    .unwrap();
    append("r:back fired_target r=$retval:u64 n=$arg1", "kprobe_events").unwrap();
    books_close(32, &["fired", "back"], |round| {
        let name = ["fired", "back"][round as usize / 2 % 2];
        let on = ["1", "0"][round as usize % 2];
        echo(on, &format!("events/kprobes/{name}/enable")).unwrap();
    });
}

/// CPUs that turn recording off at once take one of the trigger's turns together.
#[guest_test(smp = 4)]
fn a_count_is_lowered_once_for_each_change() {
    const ROUNDS: u64 = 2000;
    const COUNT: u64 = 5000;
    clean_up();
    echo("p:fired fired_target", "kprobe_events").unwrap();
    let trigger = "events/kprobes/fired/trigger";
    echo(&format!("traceoff:{COUNT}"), trigger).unwrap();
    let recording = TRACING.recording.wanted();
    recording.store(false, SeqCst);
    let fire = Fire::start();
    for _ in 0..ROUNDS {
        recording.store(true, SeqCst);
        while recording.load(SeqCst) {
            task::schedule();
        }
    }
    fire.end();
    assert_eq!(
        show(trigger),
        format!("traceoff:count={}\n", COUNT - ROUNDS)
    );
    echo("!traceoff", trigger).unwrap();
    clean_up();
}

#[guest_test(smp = 4)]
fn filters_change_under_fire() {
    clean_up();
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/fired/enable").unwrap();
    books_close(18, &["fired"], |round| {
        // All of them match, so no hit is rejected.
        let filter = ["n >= 0", "n < 0x8000000000000000", "0"][round as usize % 3];
        echo(filter, "events/kprobes/fired/filter").unwrap();
    });
}

/// A probe is added to an event that is on, and taken away from one that is off.
#[guest_test(smp = 4)]
fn probes_are_added_to_events_under_fire() {
    clean_up();
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    books_close(15, &["fired"], |round| match round % 3 {
        0 => echo("1", "events/kprobes/fired/enable").unwrap(),
        1 => append("p:fired body_of_nmi n=%di:u64", "kprobe_events").unwrap(),
        _ => {
            echo("0", "events/kprobes/fired/enable").unwrap();
            append("-:fired body_of_nmi", "kprobe_events").unwrap();
        }
    });
}

/// The same function has a kprobe with a handler and a return probe from time to time. Hits are
/// misses then while the CPU is in the handler of another probe, and only then.
#[guest_test(smp = 4)]
fn handlers_come_and_go_beside_an_event_under_fire() {
    clean_up();
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/fired/enable").unwrap();
    let mut kprobe = None;
    let mut kretprobe = None;
    books_close(24, &["fired"], |round| match round % 4 {
        0 => {
            let probe = Kprobe::new()
                .symbol("fired_target")
                .pre(|_, _| PreVerdict::Execute)
                .post(|_, _, _| ());
            kprobe = Some(register(Box::new(probe)).unwrap());
        }
        1 => {
            let probe = Kretprobe::<u64>::new().symbol("fired_target");
            kretprobe = Some(register(Box::new(probe)).unwrap());
        }
        2 => kprobe = None,
        _ => kretprobe = None,
    });
}

/// The knobs of all probes are turned. Off, there are no hits; nothing is lost, and nothing counted
/// twice.
#[guest_test(smp = 4)]
fn knobs_are_turned_under_fire() {
    clean_up();
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    append("r:back fired_target r=$retval:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/enable").unwrap();
    books_close(24, &["fired", "back"], |round| match round % 4 {
        0 => PROBES.set_enabled(false).unwrap(),
        1 => PROBES.set_enabled(true).unwrap(),
        2 => PROBES.set_optimization(false).unwrap(),
        _ => PROBES.set_optimization(true).unwrap(),
    });
}

/// The hits of the rows of a histogram. The sum of each row is that of these hits, three of each,
/// from the same moment.
fn hits_in_rows() -> u64 {
    let text = show("events/kprobes/fired/hist");
    let rows = text.lines().filter(|line| line.starts_with('{'));
    let number = |line: &str, name: &str| -> u64 {
        let (_, after) = line.split_once(name).unwrap();
        after
            .split_ascii_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    let hits = |row| {
        let hits = number(row, " hitcount:");
        assert_eq!(number(row, " three:"), 3 * hits, "{text}");
        hits
    };
    rows.map(hits).sum()
}

#[guest_test(smp = 4)]
fn a_histogram_is_read_and_cleared_under_fire() {
    const HISTOGRAM: &str = "hist:keys=common_pid:vals=three";
    const TRIGGER: &str = "events/kprobes/fired/trigger";
    clean_up();
    echo("p:fired fired_target three=\\3:u64", "kprobe_events").unwrap();
    echo(HISTOGRAM, TRIGGER).unwrap();
    let fire = Fire::start();
    let mut before = 0;
    for _ in 0..30 {
        fire.wait_for(20);
        let hits = hits_in_rows();
        assert!(hits >= before, "{hits} after {before}");
        before = hits;
    }
    for _ in 0..30 {
        fire.wait_for(20);
        append(&format!("{HISTOGRAM}:clear"), TRIGGER).unwrap();
        hits_in_rows();
    }
    let calls = fire.end();
    append(&format!("{HISTOGRAM}:clear"), TRIGGER).unwrap();
    assert_eq!(hits_in_rows(), 0);
    assert!(before > 0 && before < calls, "{before} of {calls}");
    append(&format!("!{HISTOGRAM}"), TRIGGER).unwrap();
    clean_up();
}

/// Events are defined, turned on, read and deleted by tasks on all CPUs, with fire on their
/// function. All of it works, or says that the event is in use or gone.
#[guest_test(smp = 4, timeout = 600)]
fn events_are_defined_and_deleted_by_several_tasks() {
    clean_up();
    let _rings = Rings::of(16, true);
    let fire = Fire::start();
    let threads: Vec<_> = (0..4)
        .map(|task| {
            spawn_kthread("defines", move || {
                for _ in 0..6 {
                    // Two tasks share a name.
                    let name = format!("e{}", task / 2);
                    let line = format!("p:both/{name} fired_target n=%di:u64");
                    let _ = append(&line, "kprobe_events");
                    let enable = format!("events/both/{name}/enable");
                    for on in ["1", "0"] {
                        match echo(on, &enable) {
                            Ok(()) | Err(Errno::ENOENT | Errno::ENODEV) => {}
                            Err(errno) => panic!("{on} > {enable}: {errno:?}"),
                        }
                    }
                    show("kprobe_events");
                    show("kprobe_profile");
                    match append(&format!("-:both/{name}"), "kprobe_events") {
                        Ok(()) | Err(Errno::ENOENT | Errno::EBUSY) => {}
                        Err(errno) => panic!("delete {name}: {errno:?}"),
                    }
                }
            })
            .unwrap()
        })
        .collect();
    threads.iter().for_each(|thread| thread.wait_released());
    fire.end();
    clean_up();
    assert!(!crate::tracing::trace_files::exists("events/both"));
}

/// A file that was opened before its event went does not lead to the event that has the name now.
#[guest_test]
fn a_file_of_a_deleted_event_does_not_reach_its_successor() {
    clean_up();
    echo("p:again fired_target", "kprobe_events").unwrap();
    let enable = fs::open(&path("events/kprobes/again/enable"), open::RDWR).unwrap();
    let filter = fs::open(&path("events/kprobes/again/filter"), open::RDWR).unwrap();
    append("-:again", "kprobe_events").unwrap();
    echo("p:again fired_target n=%di", "kprobe_events").unwrap();
    assert_eq!(enable.write_at(0, b"1"), Err(Errno::ENODEV));
    assert_eq!(filter.write_at(0, b"n == 1"), Err(Errno::ENODEV));
    let mut buf = [0; 16];
    assert_eq!(enable.read_at(0, &mut buf), Err(Errno::ENODEV));
    assert_eq!(show("events/kprobes/again/enable"), "0\n");
    clean_up();
}

/// Two writers make mistakes at once: each entry of the log has its own command and its own caret.
#[guest_test(smp = 4)]
fn two_writers_of_mistakes_do_not_mix_in_the_log() {
    clean_up();
    echo("", "error_log").unwrap();
    /// A wrong line for each task, and the reason for its refusal.
    const MISTAKES: [(&str, &str, &str); 4] = [
        (
            "p:w0 fired_target a=%nothing",
            "%nothing",
            "Invalid register name",
        ),
        ("p:w1 there_is_no_such_function", "there_is", ""),
        ("p:w2 fired_target a=+0(%di", "", ""),
        ("p:w3 fired_target a=%di:u9", "u9", ""),
    ];
    let refused = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = MISTAKES
        .iter()
        .map(|(line, ..)| {
            let refused = refused.clone();
            spawn_kthread("mistakes", move || {
                for _ in 0..50 {
                    assert!(append(line, "kprobe_events").is_err());
                    refused.fetch_add(1, SeqCst);
                }
            })
            .unwrap()
        })
        .collect();
    let reader = {
        let stop = stop.clone();
        spawn_kthread("reads", move || {
            while !stop.load(SeqCst) {
                check_log(&show("error_log"), &MISTAKES);
            }
        })
        .unwrap()
    };
    threads.iter().for_each(|thread| thread.wait_released());
    stop.store(true, SeqCst);
    reader.wait_released();
    assert_eq!(refused.load(SeqCst), 200);
    let log = show("error_log");
    assert!(check_log(&log, &MISTAKES) > 4, "{log}");
    echo("", "error_log").unwrap();
}

/// Each entry is whole. Returns how many there are.
fn check_log(log: &String, mistakes: &[(&str, &str, &str)]) -> usize {
    let lines: Vec<&str> = log.lines().collect();
    assert!(lines.len().is_multiple_of(3), "{log}");
    for entry in lines.chunks(3) {
        let command = entry[1].strip_prefix("  Command: ").unwrap();
        let (_, at, reason) = mistakes
            .iter()
            .find(|(line, ..)| *line == command)
            .unwrap_or_else(|| panic!("a command that nobody wrote: {log}"));
        assert!(entry[0].contains("error: "), "{log}");
        assert!(entry[0].ends_with(reason), "{log}");
        let caret = entry[2].find('^').unwrap();
        if !at.is_empty() {
            assert_eq!(Some(caret), entry[1].find(at), "{log}");
        }
    }
    lines.len() / 3
}

/// Recording pauses while `trace` is open, if it is to. `tracing_on` is another matter: what is
/// written to it meanwhile stays.
#[guest_test]
fn a_pause_for_a_reader_leaves_tracing_on_alone() {
    clean_up();
    let _rings = Rings::of(16, true);
    echo("1", "options/pause-on-trace").unwrap();
    echo("p:fired fired_target n=%di:u64", "kprobe_events").unwrap();
    echo("1", "events/kprobes/fired/enable").unwrap();
    let open_trace = || fs::open(&path("trace"), open::RDONLY).unwrap();
    fired_target(1);
    assert_eq!(TRACING.buffer.unread(), 1);
    let readers = [open_trace(), open_trace()];
    fired_target(2);
    assert_eq!(
        (TRACING.buffer.unread(), show("tracing_on").as_str()),
        (1, "1\n")
    );
    let [first, last] = readers;
    drop(first);
    fired_target(3);
    assert_eq!(TRACING.buffer.unread(), 1);
    echo("0", "tracing_on").unwrap();
    drop(last);
    assert_eq!(show("tracing_on"), "0\n");
    fired_target(4);
    assert_eq!(TRACING.buffer.unread(), 1);
    echo("1", "tracing_on").unwrap();
    fired_target(5);
    assert_eq!(TRACING.buffer.unread(), 2);
    echo("0", "options/pause-on-trace").unwrap();
    clean_up();
}
