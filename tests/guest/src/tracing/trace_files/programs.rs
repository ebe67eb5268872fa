//! Events of programs: `uprobe_events`, what their hits record, and what is refused.
//!
//! The program is `/bin/exercise`, whose functions `probed_…` have known arguments and results in
//! each round, so each record is known. A mistake in a line is told as Linux tells it.

use abi::{WaitStatus, open};
use alloc::{format, string::String, vec::Vec};

use kernel::{
    errno::Errno,
    fs::{self, NodeRef},
    task::{
        exec::{run_program, start_program},
        process::Which,
        sleep::sleep_until,
        wait::wait_for_child,
    },
    time::{NSEC_PER_MSEC, ktime_get},
    uprobes::{self, Uretprobe, registry::RegisteredUserProbe},
};

use super::{append, clean_up, echo, exists, lines, show};
use crate::{
    harness::waiting::expect_soon,
    probes::user_probes::{file, kill},
};

const EXERCISE: &str = "/bin/exercise";

fn goes_well(args: &[&str]) {
    let ended = run_program(EXERCISE, args);
    assert_eq!(ended, Ok(WaitStatus::exited(0)), "{args:?}");
}

/// The offset in the file of a function of the exercise, as the files print it.
fn offset_of(name: &str) -> String {
    let offset = uprobes::function_offset(EXERCISE, name).expect("it is there");
    format!("{offset:#018x}")
}

/// The address of that function.
fn address_of(name: &str) -> u64 {
    let offset = uprobes::function_offset(EXERCISE, name).expect("it is there");
    uprobes::address_in_memory(EXERCISE, offset).expect("it is in memory")
}

/// The bodies of the records of an event in `trace`.
fn records(event: &str) -> Vec<String> {
    let mark = format!("{event}: ");
    let all = lines();
    let records = all.iter().filter_map(|line| line.strip_prefix(&mark));
    records.map(Into::into).collect()
}

/// An event that is alone at its place runs without a frame, unless it reads the program's memory:
/// then pages come in that the program has not touched yet.
#[guest_test]
fn an_event_alone_finds_memory_that_was_not_touched() {
    let length = offset_of("probed_length");
    let place = format!("/bin/exercise:{length}");
    echo(
        &format!("p:in {place} text=+0(%di):string"),
        "uprobe_events",
    )
    .unwrap();
    echo("1", "events/uprobes/in/enable").unwrap();
    goes_well(&["probed", "2"]);
    echo("0", "events/enable").unwrap();
    let at = address_of("probed_length");
    assert_eq!(
        records("in"),
        [format!("({at:#x}) text=\"not touched before\"")]
    );
    // Without memory: the register alone, as often as the function is called.
    echo("", "trace").unwrap();
    echo(
        &format!("p:in {place} first=%ax again=%ax"),
        "uprobe_events",
    )
    .unwrap();
    echo("1", "events/uprobes/in/enable").unwrap();
    goes_well(&["probed", "2"]);
    echo("0", "events/enable").unwrap();
    let found = records("in");
    let [one] = &found[..] else {
        panic!("{found:?}");
    };
    let values = one
        .split("first=")
        .nth(1)
        .and_then(|rest| rest.split_once(" again="));
    assert!(values.is_some_and(|(first, again)| first == again), "{one}");
    echo("", "uprobe_events").unwrap();
}

/// A program's function, its result, and what is at its arguments are recorded for each call.
#[guest_test]
fn calls_of_a_program_are_recorded() {
    let (length, add) = (offset_of("probed_length"), offset_of("probed_add"));
    echo(
        &format!("p:in /bin/exercise:{length} text=+0(%di):string $comm"),
        "uprobe_events",
    )
    .unwrap();
    append(
        "r:out /bin/exercise:probed_length len=$retval:u64",
        "uprobe_events",
    )
    .unwrap();
    append(
        "p:my/add /bin/exercise:probed_add%return sum=$retval:u32 $stack0",
        "dynamic_events",
    )
    .unwrap();
    append("p:k/pid sys_getpid", "dynamic_events").unwrap();
    assert_eq!(
        show("uprobe_events"),
        format!(
            "p:uprobes/in /bin/exercise:{length} text=+0(%di):string arg2=$comm\n\
             r:uprobes/out /bin/exercise:{length} len=$retval:u64\n\
             r:my/add /bin/exercise:{add} sum=$retval:u32 arg2=$stack0\n"
        )
    );
    assert_eq!(show("kprobe_events"), "p:k/pid sys_getpid\n");
    assert_eq!(show("dynamic_events").lines().count(), 4);
    for event in ["uprobes/in", "uprobes/out", "my/add"] {
        echo("1", &format!("events/{event}/enable")).unwrap();
    }
    goes_well(&["probed", "2"]);
    echo("0", "events/enable").unwrap();
    let at = address_of("probed_length");
    assert_eq!(
        records("in"),
        [format!(
            "({at:#x}) text=\"not touched before\" arg2=\"exercise\""
        )]
    );
    let [out] = &records("out")[..] else {
        panic!("{:?}", records("out"));
    };
    assert!(
        out.starts_with("(0x40") && out.ends_with(&format!(" <- {at:#x}) len=18")),
        "{out}"
    );
    // In each round: directly, three times by `probed_calls`, and by `probed_tail`.
    let sums: Vec<String> = records("add")
        .iter()
        .map(|line| {
            line.split_once("sum=")
                .unwrap()
                .1
                .split(' ')
                .next()
                .unwrap()
                .into()
        })
        .collect();
    assert_eq!(sums, ["3", "4", "5", "5", "6", "4", "5", "7", "7", "7"]);
    let profile = show("uprobe_profile");
    let hits: Vec<Vec<&str>> = profile
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        hits,
        [
            [EXERCISE, "in", "1"],
            [EXERCISE, "out", "1"],
            [EXERCISE, "add", "10"]
        ]
    );
    assert!(profile.starts_with("  /bin/exercise in    "), "{profile}");
    // Only those of programs go.
    echo("", "uprobe_events").unwrap();
    assert_eq!(show("dynamic_events"), "p:k/pid sys_getpid\n");
    assert!(!exists("events/uprobes") && exists("events/k/pid"));
    clean_up();
}

/// An event of returns goes while a call is inside. The call returns all the same.
#[guest_test]
fn an_event_goes_while_its_call_is_inside() {
    echo("r:out /bin/exercise:probed_wait $retval", "uprobe_events").unwrap();
    echo("1", "events/uprobes/out/enable").unwrap();
    let witness = Uretprobe::new().program(EXERCISE).symbol("probed_wait");
    let witness = RegisteredUserProbe::new(witness).expect("it can be registered");
    let running = start_program(EXERCISE, &["probed_wait"]).expect("it can be started");
    expect_soon("the program comes there", || witness.active() > 0);
    echo("0", "events/uprobes/out/enable").unwrap();
    echo("", "uprobe_events").unwrap();
    assert_eq!(witness.active(), 1, "the call is still inside");
    drop(fs::open("/released", open::WRONLY | open::CREAT).expect("it can be created"));
    let ended = wait_for_child(Which::Pid(running), false).expect("it is a child");
    assert_eq!(
        ended.expect("the wait waits").1,
        WaitStatus::exited(0),
        "the program sees its result"
    );
    assert_eq!((witness.active(), witness.hits()), (0, 1));
    assert!(records("out").is_empty(), "{:?}", records("out"));
    fs::unlink(&NodeRef::root(), b"/released").expect("it is there");
    clean_up();
}

/// The hits of an event so far, as `uprobe_profile` has them.
fn hits_of(event: &str) -> u64 {
    let profile = show("uprobe_profile");
    let line = profile
        .lines()
        .find(|line| line.split_whitespace().nth(1) == Some(event));
    let hits = line.and_then(|line| line.split_whitespace().nth(2)?.parse().ok());
    hits.unwrap_or_else(|| panic!("{event}: {profile}"))
}

/// An event has its file, as on Linux, and not the name: it is switched off and on again when the
/// name is gone, and when the file has other bytes there.
#[guest_test]
fn events_stay_on_a_file_that_was_deleted_or_written() {
    let kept = "/tmp/kept";
    fs::install_file(kept.as_bytes(), 0o755, file(EXERCISE)).expect("there is room");
    echo("p:in /tmp/kept:probed_add", "uprobe_events").unwrap();
    append("r:out /tmp/kept:probed_add", "uprobe_events").unwrap();
    let running = start_program(kept, &["probed_forever"]).expect("it can be run");
    let goes_on = || {
        for event in ["in", "out"] {
            let before = hits_of(event);
            echo("1", "events/uprobes/enable").unwrap();
            expect_soon("hits", || hits_of(event) > before + 10);
            echo("0", "events/uprobes/enable").unwrap();
            let after = hits_of(event);
            sleep_until(ktime_get() + 5 * NSEC_PER_MSEC);
            assert_eq!(hits_of(event), after, "{event} is off");
        }
    };
    goes_on();
    // The process runs the bytes that it has.
    let offset = uprobes::function_offset(EXERCISE, "probed_add").unwrap();
    let first = &file(EXERCISE)[offset as usize..][..1];
    let write = |bytes: &[u8]| {
        let file = fs::open(kept, open::WRONLY).expect("it is there");
        assert_eq!(file.write_at(offset, bytes), Ok(1));
    };
    write(&[0x90]);
    goes_on();
    write(first);
    fs::unlink(&NodeRef::root(), kept.as_bytes()).expect("it is there");
    goes_on();
    goes_on();
    // Another file of that name is another file.
    fs::install_file(kept.as_bytes(), 0o755, file(EXERCISE)).expect("there is room");
    kill(running);
    let before = (hits_of("in"), hits_of("out"));
    echo("1", "events/uprobes/enable").unwrap();
    let ended = run_program(kept, &["probed", "1"]);
    assert_eq!(ended, Ok(WaitStatus::exited(0)));
    assert_eq!((hits_of("in"), hits_of("out")), before);
    echo("0", "events/uprobes/enable").unwrap();
    echo("", "uprobe_events").unwrap();
    fs::unlink(&NodeRef::root(), kept.as_bytes()).expect("it is there");
    clean_up();
}

/// Neither file touches the events of the other, and an event is of one kind.
#[guest_test]
fn events_of_kernel_and_programs_stay_apart() {
    append("p:one/kernel sys_getpid", "kprobe_events").unwrap();
    append("p:one/program /bin/exercise:probed_add", "uprobe_events").unwrap();
    let both = show("dynamic_events");
    assert_eq!(both.lines().count(), 2, "{both}");
    for (line, file, errno) in [
        ("-:one/kernel", "uprobe_events", Errno::ENOENT),
        ("-:one/program", "kprobe_events", Errno::ENOENT),
        ("p:one/program sys_getpid", "kprobe_events", Errno::EEXIST),
        (
            "p:one/kernel /bin/exercise:probed_add",
            "uprobe_events",
            Errno::EEXIST,
        ),
    ] {
        assert_eq!(append(line, file), Err(errno), "{line} > {file}");
        assert_eq!(show("dynamic_events"), both, "{line} > {file}");
    }
    append("-:one/program", "uprobe_events").unwrap();
    append("-:one/kernel", "dynamic_events").unwrap();
    assert_eq!(show("dynamic_events"), "");
    clean_up();
}

/// Filters, histograms and the other triggers know the values of programs.
#[guest_test]
fn filters_and_triggers_work_on_programs() {
    echo(
        "p:e /bin/exercise:probed_add a=%di b=%si:u8",
        "uprobe_events",
    )
    .unwrap();
    echo("a > 4 && b == 3", "events/uprobes/e/filter").unwrap();
    echo("hist:keys=b", "events/uprobes/e/trigger").unwrap();
    append("stacktrace", "events/uprobes/e/trigger").unwrap();
    echo("1", "events/uprobes/e/enable").unwrap();
    goes_well(&["probed", "4"]);
    echo("0", "events/uprobes/e/enable").unwrap();
    // The second call of `probed_calls` in the third round.
    let at = address_of("probed_add");
    assert_eq!(records("e"), [format!("({at:#x}) a=0x6 b=3")]);
    let hist = show("events/uprobes/e/hist");
    assert!(
        hist.contains("{ b:          2 } hitcount:          5"),
        "{hist}"
    );
    assert!(hist.contains("    Hits: 20\n"), "{hist}");
    let profile = show("events/uprobes/e/profile");
    assert!(profile.contains("filtered: 19"), "{profile}");
    echo("!hist:keys=b", "events/uprobes/e/trigger").unwrap();
    echo("!stacktrace", "events/uprobes/e/trigger").unwrap();
    echo("0", "events/uprobes/e/filter").unwrap();
    echo("", "uprobe_events").unwrap();
    clean_up();
}

/// The text that `format` has for an event of a program.
#[guest_test]
fn formats_are_those_of_linux() {
    echo("p:e /bin/exercise:probed_add a=%di:u32", "uprobe_events").unwrap();
    append("r:r /bin/exercise:probed_add", "uprobe_events").unwrap();
    let format = show("events/uprobes/e/format");
    assert!(
        format.contains("\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n")
            && format.ends_with("print fmt: \"(%lx) a=%u\", REC->__probe_ip, REC->a\n"),
        "{format}"
    );
    let format = show("events/uprobes/r/format");
    assert!(
        format.ends_with("print fmt: \"(%lx <- %lx)\", REC->__probe_func, REC->__probe_ret_ip\n"),
        "{format}"
    );
    echo("", "uprobe_events").unwrap();
    clean_up();
}

/// Each refusal is told with its column, and changes nothing.
#[guest_test]
fn mistakes_are_told_as_on_linux() {
    let inside = uprobes::function_offset(EXERCISE, "probed_add").unwrap() + 1;
    let inside = format!("p /bin/exercise:{inside:#x}");
    for (line, errno, text) in [
        (
            "p /bin/nothing:100",
            Errno::ENOENT,
            "Failed to find the given file",
        ),
        ("p /bin:100", Errno::EINVAL, "Not a regular file"),
        (
            "p /bin/exercise:10(a)",
            Errno::EINVAL,
            "Invalid reference counter offset",
        ),
        (
            "p /bin/exercise:nothing",
            Errno::EINVAL,
            "Invalid uprobe offset",
        ),
        ("p /bin/exercise:0", Errno::EINVAL, "Invalid uprobe offset"),
        (
            "r /bin/exercise:probed_add+4",
            Errno::EINVAL,
            "Retprobe address must be an function entry",
        ),
        (
            &inside,
            Errno::EILSEQ,
            "Probe point is not an instruction boundary",
        ),
        (
            "p /bin/exercise:probed_add $arg1",
            Errno::EINVAL,
            "$arg* can be used only on function entry or exit",
        ),
        (
            "p vfs_read",
            Errno::EINVAL,
            "Places in the kernel are not for uprobe_events",
        ),
    ] {
        assert_eq!(echo(line, "uprobe_events"), Err(errno), "{line}");
        let log = show("error_log");
        let last = log.lines().rev().nth(2).unwrap();
        assert!(
            last.contains(&format!("trace_uprobe: error: {text}")),
            "{line}: {last}"
        );
    }
    let of_program = echo("p /bin/exercise:probed_add", "kprobe_events");
    assert_eq!(of_program, Err(Errno::EINVAL));
    assert_eq!(show("dynamic_events"), "");
    clean_up();
}
