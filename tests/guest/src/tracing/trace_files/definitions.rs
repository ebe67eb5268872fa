//! Definitions: lines of `kprobe_events` and `dynamic_events`, and what they do to the tree.
//!
//! A line is obeyed as a whole, or refused with an errno, a message and the column of the mistake,
//! and then nothing has changed. Lines of one write run in order until one fails. A new event has
//! its directory with its files, and a listing of all events can be written back.

use super::*;
use kernel::{mm::allocation_faults::with_room_for, symbols, trace::events::EVENTS};

/// Two more places for probes.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_other(number: u64) -> u64 {
    black_box(number) + 2
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn traced_third(number: u64) -> u64 {
    black_box(number) + 3
}

/// Writes a line that has to be refused. Returns the errno, the message, and the column of the
/// caret in the command.
fn refused(line: &str) -> (Errno, String, usize) {
    let before = show("kprobe_events");
    let errno = append(line, "kprobe_events").expect_err(line);
    assert_eq!(show("kprobe_events"), before, "{line} has changed the list");
    let log = show("error_log");
    let lines: Vec<&str> = log.lines().collect();
    let [message, command, caret] = lines[lines.len() - 3..] else {
        panic!("{log}");
    };
    assert_eq!(command, format!("  Command: {line}"));
    let (_, message) = message.split_once("error: ").expect(message);
    let column = caret.find('^').expect(caret) - "  Command: ".len();
    (errno, message.into(), column)
}

#[guest_test]
fn lines_of_a_write_run_in_order_until_one_fails() {
    clean_up();
    let lines = "p:m/one traced_function # the rest of the line is a comment\n\
                 # a line of its own\n\n   \n\
                 p:m/two traced_other\n\
                 p:m/bad traced_nowhere\n\
                 p:m/three traced_third";
    assert_eq!(append(lines, "kprobe_events"), Err(Errno::EINVAL));
    assert_eq!(
        show("kprobe_events"),
        "p:m/one traced_function\np:m/two traced_other\n"
    );
    assert!(exists("events/m/two/enable") && !exists("events/m/three"));
    // 4094 bytes are the most for a line, and a comment counts.
    let line = |bytes: usize| format!("{:#<bytes$}", "p:m/three traced_third ");
    assert_eq!(append(&line(4095), "kprobe_events"), Err(Errno::EINVAL));
    assert!(!exists("events/m/three"));
    append(&line(4094), "kprobe_events").unwrap();
    assert!(exists("events/m/three/enable"));
    clean_up();
}

#[guest_test]
fn truncating_deletes_all_events_or_none() {
    clean_up();
    append("p:m/one traced_function", "kprobe_events").unwrap();
    append("r:m/two traced_other", "kprobe_events").unwrap();
    let both = show("kprobe_events");
    assert_eq!(both.lines().count(), 2);
    echo("1", "events/m/two/enable").unwrap();
    for file in ["kprobe_events", "dynamic_events"] {
        let opened = fs::open(&path(file), open::WRONLY | open::TRUNC);
        assert_eq!(opened.map(drop), Err(Errno::EBUSY));
        assert_eq!(show(file), both);
    }
    assert!(exists("events/m/one/enable"));
    echo("0", "events/m/two/enable").unwrap();
    // Opening the file to append or to write elsewhere deletes nothing.
    for flags in [open::APPEND, 0] {
        drop(fs::open(&path("kprobe_events"), open::WRONLY | flags).unwrap());
        assert_eq!(show("kprobe_events"), both);
    }
    echo("p:m/three traced_third", "kprobe_events").unwrap();
    assert_eq!(show("kprobe_events"), "p:m/three traced_third\n");
    assert!(!exists("events/m/one"));
    clean_up();
}

#[guest_test]
fn lines_that_cannot_be_obeyed_are_refused_and_change_nothing() {
    clean_up();
    let expect = |line: &str, message: &str, column| {
        let (errno, said, at) = refused(line);
        assert_eq!(
            (errno, said.as_str(), at),
            (Errno::EINVAL, message, column),
            "{line}"
        );
    };
    expect(
        "x:a traced_function",
        "A definition begins with p, r or -; in dynamic_events also with w",
        0,
    );
    let no_place = "No place to probe is given; write SYMBOL, SYMBOL+OFFSET or an address";
    expect("p", no_place, 2);
    expect("r:a", no_place, 4);
    let program = "Places in user space are not for kprobe_events; write to uprobe_events";
    expect("p:a /bin/child:0x10", program, 4);
    let unknown = "Invalid probed address or symbol";
    expect("p:a traced_nowhere", unknown, 4);
    expect("p traced_function-4", unknown, 2);
    expect("p traced_function+4-2", unknown, 2);
    expect("p traced_function+0x100000000", unknown, 2);
    expect(
        "p traced_function%back",
        "Invalid probed address suffix",
        17,
    );
    expect(
        "r:a traced_function+1",
        "Retprobe address must be an function entry",
        4,
    );
    expect(
        "p10:a traced_function",
        "Maxactive is only for function exit",
        1,
    );
    expect("r10x:a traced_function", "Invalid maxactive number", 1);
    expect("r0:a traced_function", "Invalid maxactive number", 1);
    expect("r5000:a traced_function", "Maxactive is too big", 1);
    expect("p: traced_function", "Event name is not specified", 2);
    expect("p:/a traced_function", "Group name is not specified", 2);
    expect(
        "p:a.b.c traced_function",
        "Event name must follow the same rules as C identifiers",
        4,
    );
    expect("p:a traced_function x=%rax", "Invalid register name", 22);
    expect(
        "p:a traced_function %di:u7",
        "Unknown type is specified",
        24,
    );
    expect(
        "p:a traced_function +0(%di",
        "Dereference brace is not closed",
        26,
    );
    expect(
        "p:a traced_function \\\"a#b\"",
        "A string cannot hold '#', which begins a comment; leave it out",
        23,
    );
    expect("-:", "A deletion needs a name: -:[<group>/][<event>]", 0);
    expect("-a", "A deletion needs a name: -:[<group>/][<event>]", 0);
    // An exclamation mark is for the other file.
    expect(
        "!p:a traced_function",
        "A definition begins with p, r or -; in dynamic_events also with w",
        0,
    );
    let (errno, ..) = refused("-:nothing");
    assert_eq!(errno, Errno::ENOENT);
    clean_up();
}

/// The files beside groups and events stay, whatever is defined.
#[guest_test]
fn no_group_and_no_event_takes_the_name_of_a_file() {
    clean_up();
    append("p:m/one traced_function", "kprobe_events").unwrap();
    for (line, column) in [
        ("p:enable/two traced_other", 2),
        ("p:m/enable traced_other", 4),
        ("p:m/filter traced_other", 4),
    ] {
        let (errno, said, at) = refused(line);
        assert_eq!((errno, at), (Errno::EEXIST, column), "{line}");
        assert_eq!(said, "A file of tracing has this name; choose another");
        assert!(exists("events/enable") && exists("events/m/enable"));
    }
    echo("1", "events/m/enable").unwrap();
    assert_eq!(show("events/m/one/enable"), "1\n");
    echo("0", "events/m/enable").unwrap();
    clean_up();
}

/// A name of several functions is refused, and so is a place inside an instruction.
#[guest_test]
fn places_that_are_not_one_instruction_are_refused() {
    clean_up();
    let ambiguous = symbols::functions()
        .map(|symbol| String::from(symbol.name))
        .find(|name| {
            matches!(
                symbols::lookup_name(name),
                Err(symbols::LookupError::Ambiguous { .. })
            )
        });
    if let Some(name) = ambiguous {
        let (errno, said, column) = refused(&format!("p:a {name}"));
        assert_eq!((errno, column), (Errno::EINVAL, 4));
        assert_eq!(said, "The symbol is not unique");
    }
    let symbol = symbols::lookup_name("traced_function").unwrap();
    let judged = kernel::probes::survey::function(&symbol).unwrap();
    let starts: Vec<u64> = judged
        .iter()
        .map(|judged| judged.insn.ip() - symbol.start)
        .collect();
    let mut inside = 0;
    for offset in 0..symbol.size {
        let line = format!("p:a{offset} traced_function+{offset}");
        if starts.contains(&offset) {
            continue;
        }
        inside += 1;
        let (errno, said, column) = refused(&line);
        assert_eq!(errno, Errno::EILSEQ, "{line}");
        assert_eq!(said, "Probe point is not an instruction boundary");
        assert_eq!(column, line.find(' ').unwrap() + 1);
    }
    assert!(inside > 0);
    let (errno, said, _) = refused("p:a kretprobe_trampoline");
    assert_eq!(errno, Errno::EINVAL);
    assert_eq!(said, "Failed to register probe event");
    clean_up();
}

#[guest_test]
fn a_listing_can_be_written_back() {
    clean_up();
    let at = symbols::lookup_name("traced_third").unwrap().start;
    let lines = format!(
        "p traced_function\n\
         p:second traced_function+0x1 arg=%di $stack0:x32\n\
         p:far/third 0x{at:x}\n\
         p {at}\n\
         r:back traced_other $retval\n\
         r7:far/seven traced_other\n\
         p:suffix traced_third%return $arg1:s8 text=\\\"a\"\n\
         p:far.dotted traced_other"
    );
    append(&lines, "kprobe_events").unwrap();
    let listing = show("kprobe_events");
    // In the order of their definition. Two CPUs have ten instances, unless the definition says how
    // many.
    let expected = [
        "p:kprobes/p_traced_function_0 traced_function".into(),
        "p:kprobes/second traced_function+1 arg=%di arg2=$stack0:x32".into(),
        format!("p:far/third {at:#x}"),
        format!("p:kprobes/p_{at:#x} {at:#x}"),
        "r10:kprobes/back traced_other arg1=$retval".into(),
        "r7:far/seven traced_other".into(),
        "r10:kprobes/suffix traced_third arg1=$arg1:s8 text=\\\"a\"".into(),
        "p:far/dotted traced_other".into(),
    ];
    assert_eq!(listing.lines().collect::<Vec<_>>(), expected);
    echo("", "kprobe_events").unwrap();
    assert_eq!(show("kprobe_events"), "");
    append(&listing, "dynamic_events").unwrap();
    assert_eq!(show("kprobe_events"), listing);
    assert_eq!(show("dynamic_events"), listing);
    // Each is deleted by what the listing shows, with place and arguments.
    for line in listing.lines() {
        let (_, rest) = line.split_once(':').unwrap();
        append(&format!("-:{rest}"), "kprobe_events").unwrap();
    }
    assert_eq!(show("kprobe_events"), "");
    clean_up();
}

#[guest_test]
fn a_new_event_has_its_files_and_is_off() {
    clean_up();
    append("p:m/new traced_function", "kprobe_events").unwrap();
    append("p:m/other traced_other", "kprobe_events").unwrap();
    for file in [
        "enable", "filter", "format", "hist", "id", "profile", "trigger",
    ] {
        assert!(exists(&format!("events/m/new/{file}")), "{file}");
    }
    assert_eq!(show("events/m/new/enable"), "0\n");
    assert_eq!(show("events/m/new/filter"), "none\n");
    assert_ne!(show("events/m/new/id"), show("events/m/other/id"));
    // It is registered, and disabled.
    let list = fs::open("/sys/kernel/debug/kprobes/list", open::RDONLY).unwrap();
    let mut text = vec![0; 4096];
    let len = list.read_at(0, &mut text).unwrap();
    let text = String::from_utf8(text[..len].to_vec()).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("traced_function+0x0"));
    assert!(line.expect(&text).contains("[DISABLED]"), "{text}");
    // The same tree at its older place.
    let older = "/sys/kernel/debug/tracing/events/m/new/enable";
    fs::open(older, open::WRONLY)
        .unwrap()
        .write_at(0, b"1")
        .unwrap();
    assert_eq!(show("events/m/new/enable"), "1\n");
    clean_up();
}

#[guest_test]
fn an_event_of_several_probes_stays_whole_when_the_first_is_deleted() {
    clean_up();
    append("p:m/both traced_function value=%di:u64", "kprobe_events").unwrap();
    append("p:m/both traced_other value=%di:u64", "kprobe_events").unwrap();
    // It has to be the same kind, with the same arguments, and another probe.
    let expect = |line: &str, message: &str, column| {
        let (errno, said, at) = refused(line);
        assert_eq!((errno, said.as_str(), at), (Errno::EEXIST, message, column));
    };
    let differs = "Argument type or name is different from existing probe";
    expect(
        "r:m/both traced_third value=%di:u64",
        "Probe type is different from existing probe",
        0,
    );
    expect("p:m/both traced_third value=%di:u32", differs, 22);
    expect("p:m/both traced_third v=%di:u64", differs, 22);
    expect("p:m/both traced_third", differs, 22);
    expect(
        "p:m/both traced_third value=%di:u64 more=%si",
        differs,
        42 - 6,
    );
    expect(
        "p:m/both traced_other value=%di:u64",
        "There is already the exact same probe event",
        0,
    );
    echo("1", "events/m/both/enable").unwrap();
    call(4);
    traced_other(5);
    // A probe may join while the event is on.
    append("p:m/both traced_third value=%di:u64", "kprobe_events").unwrap();
    traced_third(6);
    let values = |lines: &[String]| -> Vec<String> {
        lines
            .iter()
            .map(|line| line.rsplit('=').next().unwrap().into())
            .collect()
    };
    assert_eq!(values(&lines()), ["4", "5", "6"]);
    // In use, no probe of it goes.
    let first = "-:m/both traced_function value=%di:u64";
    assert_eq!(append(first, "kprobe_events"), Err(Errno::EBUSY));
    echo("0", "events/m/both/enable").unwrap();
    let format = show("events/m/both/format");
    append(first, "kprobe_events").unwrap();
    assert_eq!(
        show("kprobe_events"),
        "p:m/both traced_other value=%di:u64\np:m/both traced_third value=%di:u64\n"
    );
    assert_eq!(show("events/m/both/format"), format);
    // The record of the one that is gone is there still, and so is its count.
    let profile = |hits, filtered| {
        let text = format!("hits: {hits}\nfiltered: {filtered}\nunasked: 0\nmissed: 0\n");
        assert_eq!(show("events/m/both/profile"), text);
    };
    profile(3, 0);
    echo("value != 8", "events/m/both/filter").unwrap();
    echo("1", "events/m/both/enable").unwrap();
    call(7);
    traced_other(8);
    traced_third(9);
    assert_eq!(values(&lines()), ["4", "5", "6", "9"]);
    echo("0", "events/m/both/enable").unwrap();
    append("-:m/both traced_other value=%di:u64", "kprobe_events").unwrap();
    profile(5, 1);
    // Without a place all probes go.
    append("-:m/both", "kprobe_events").unwrap();
    assert!(!exists("events/m"));
    clean_up();
}

/// The last allocations of enabling are for jumps, which an event can do without.
/// Those in front of them are for the second probe: if one fails, the first probe is not armed
/// either.
#[guest_test]
fn an_event_is_armed_as_a_whole_or_not_at_all() {
    clean_up();
    append("p:m/both traced_function value=%di:u64", "kprobe_events").unwrap();
    append("p:m/both traced_other value=%di:u64", "kprobe_events").unwrap();
    let name = (String::from("m"), String::from("both"));
    let enable = |on| EVENTS.lock().event(&name).unwrap().enable(on);
    // Things that are made once and stay are there before the count.
    for _ in 0..2 {
        enable(true).unwrap();
        enable(false).unwrap();
    }
    let all = with_room_for(u64::MAX, || enable(true));
    all.result.unwrap();
    enable(false).unwrap();
    let mut failures = 0;
    for missing in 1.. {
        let outcome = with_room_for(all.granted - missing, || enable(true));
        assert!(outcome.refused > 0);
        let armed = match outcome.result {
            Ok(()) => 2,
            Err(errno) => {
                assert_eq!(errno, Errno::ENOMEM);
                failures += 1;
                0
            }
        };
        assert_eq!(
            show("events/m/both/enable"),
            if armed == 0 { "0\n" } else { "1\n" }
        );
        call(1);
        traced_other(2);
        assert_eq!(lines().len(), armed, "without the last {missing}");
        enable(false).unwrap();
        TRACING.buffer.clear(None);
        if failures == 3 {
            break;
        }
    }
    enable(true).unwrap();
    call(3);
    traced_other(4);
    assert_eq!(lines().len(), 2);
    enable(false).unwrap();
    clean_up();
}

#[guest_test]
fn a_whole_group_is_deleted_by_its_name() {
    clean_up();
    append(
        "p:m/one traced_function\np:m/two traced_other\np:n/one traced_third",
        "kprobe_events",
    )
    .unwrap();
    append("-:m/", "kprobe_events").unwrap();
    assert_eq!(show("kprobe_events"), "p:n/one traced_third\n");
    assert!(!exists("events/m") && exists("events/n/one/enable"));
    append("!p:n/one traced_third", "dynamic_events").unwrap();
    assert_eq!(show("dynamic_events"), "");
    clean_up();
}

/// A trigger and a hand may both switch an event: the last one says whether it is on.
#[guest_test]
fn an_event_that_a_trigger_has_switched_is_switched_by_hand() {
    clean_up();
    echo("p:a traced_function number=%di:u64", "kprobe_events").unwrap();
    append("p:b traced_other", "kprobe_events").unwrap();
    let text = || show("events/kprobes/b/enable");
    let recorded = || {
        TRACING.buffer.clear(None);
        traced_other(1);
        lines().len()
    };
    for (trigger, by_trigger, by_hand) in [("enable_event", 1, 0), ("disable_event", 0, 1)] {
        let hand = format!("{by_hand}");
        echo(&hand, "events/kprobes/b/enable").unwrap();
        append(&format!("{trigger}:kprobes:b"), "events/kprobes/a/trigger").unwrap();
        assert_eq!((text(), recorded()), (format!("{by_hand}*\n"), by_hand));
        call(1);
        assert_eq!(
            (text(), recorded()),
            (format!("{by_trigger}*\n"), by_trigger)
        );
        // As on Linux, it lists what a trigger may turn on.
        assert!(show("set_event").contains("kprobes:b\n"));
        echo(&hand, "events/kprobes/b/enable").unwrap();
        assert_eq!((text(), recorded()), (format!("{by_hand}*\n"), by_hand));
        call(1);
        append(&format!("!{trigger}:kprobes:b"), "events/kprobes/a/trigger").unwrap();
        assert_eq!(
            (text(), recorded()),
            (format!("{by_trigger}\n"), by_trigger)
        );
    }
    clean_up();
}

#[guest_test]
fn a_group_says_x_while_some_of_its_events_are_on() {
    clean_up();
    append(
        "p:m/one traced_function\np:m/two traced_other",
        "kprobe_events",
    )
    .unwrap();
    let states = || {
        [
            "events/m/one/enable",
            "events/m/two/enable",
            "events/m/enable",
        ]
        .map(show)
    };
    assert_eq!(states(), ["0\n", "0\n", "0\n"]);
    echo("1", "events/m/one/enable").unwrap();
    assert_eq!(states(), ["1\n", "0\n", "X\n"]);
    echo("1", "events/m/enable").unwrap();
    assert_eq!(states(), ["1\n", "1\n", "1\n"]);
    for text in ["2", "on", "", "-1"] {
        for file in ["events/m/one/enable", "events/m/enable", "events/enable"] {
            assert_eq!(echo(text, file), Err(Errno::EINVAL), "{text}");
        }
    }
    assert_eq!(states(), ["1\n", "1\n", "1\n"]);
    echo("0", "events/enable").unwrap();
    assert_eq!(states(), ["0\n", "0\n", "0\n"]);
    clean_up();
}

/// Those of all groups, the kernel's own among them.
#[guest_test]
fn the_topmost_enable_turns_all_events_on_and_off() {
    clean_up();
    append(
        "p:m/one traced_function\np:n/two traced_other",
        "kprobe_events",
    )
    .unwrap();
    let listed = show("available_events");
    let events: Vec<_> = (listed.lines())
        .map(|line| line.split_once(':').expect(line))
        .collect();
    let own = events
        .iter()
        .filter(|(group, _)| !["m", "n"].contains(group));
    assert!(own.count() > 0, "{listed}");
    echo("1", "events/m/one/enable").unwrap();
    for state in ["1", "0"] {
        echo(state, "events/enable").unwrap();
        for (group, event) in &events {
            let file = format!("events/{group}/{event}/enable");
            assert_eq!(show(&file), format!("{state}\n"), "{file}");
        }
        assert_eq!(show("events/enable"), format!("{state}\n"));
        TRACING.buffer.clear(None);
        call(1);
        let hit = lines()
            .iter()
            .filter(|line| line.starts_with("one: "))
            .count();
        assert_eq!(hit, usize::from(state == "1"));
    }
    clean_up();
}

#[guest_test]
fn set_event_lists_and_chooses_events() {
    clean_up();
    append(
        "p:m/one traced_function\np:m/two traced_other",
        "kprobe_events",
    )
    .unwrap();
    let listed = show("available_events");
    for event in ["m:one", "m:two"] {
        assert!(listed.lines().any(|line| line == event), "{listed}");
    }
    echo("m:two", "set_event").unwrap();
    assert_eq!(show("set_event"), "m:two\n");
    assert_eq!(show("events/m/two/enable"), "1\n");
    append("m:*", "set_event").unwrap();
    assert_eq!(show("set_event"), "m:one\nm:two\n");
    append("!m:one", "set_event").unwrap();
    assert_eq!(show("set_event"), "m:two\n");
    // A word without a colon is the name of a group or an event. It is never all of them.
    for nothing in ["nothing:at_all", "*", "!*", "!", "! m", "m:on*"] {
        assert_eq!(
            append(nothing, "set_event"),
            Err(Errno::EINVAL),
            "{nothing}"
        );
        assert_eq!(show("set_event"), "m:two\n");
    }
    append("one", "set_event").unwrap();
    assert_eq!(show("set_event"), "m:one\nm:two\n");
    append("!m", "set_event").unwrap();
    assert_eq!(show("set_event"), "");
    append("m", "set_event").unwrap();
    // Truncating turns all off.
    echo("", "set_event").unwrap();
    assert_eq!(show("set_event"), "");
    assert_eq!(show("events/m/two/enable"), "0\n");
    // A list that does not fit into one write is not cut inside a name.
    let long = "l".repeat(63);
    for number in 0..40 {
        let line = format!("p:{long}/{number:_>63} traced_function");
        append(&line, "kprobe_events").unwrap();
    }
    append(&format!("{long}:"), "set_event").unwrap();
    let list = show("set_event");
    assert!(list.len() > fs::CHUNK);
    echo("", "set_event").unwrap();
    let file = fs::open(&path("set_event"), open::WRONLY | open::APPEND).unwrap();
    let mut rest = list.as_bytes();
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(fs::CHUNK)];
        rest = &rest[file.write_at(0, piece).unwrap()..];
    }
    assert_eq!(show("set_event"), list);
    echo("", "set_event").unwrap();
    clean_up();
}

#[guest_test(
    cmdline = "kprobe_event=p:boot/opened,vfs_open;r:boot/done,vfs_open,$retval;p:bad,no_such"
)]
fn events_of_the_command_line_are_on_from_the_boot() {
    assert_eq!(
        show("kprobe_events"),
        "p:boot/opened vfs_open\nr10:boot/done vfs_open arg1=$retval\n"
    );
    assert_eq!(show("events/boot/enable"), "1\n");
    TRACING.buffer.clear(None);
    fs::open("/proc/kallsyms", open::RDONLY).unwrap();
    let seen = lines();
    assert!(
        seen.iter()
            .any(|line| line.starts_with("opened: (vfs_open+0x0/")),
        "{seen:?}"
    );
    assert!(
        seen.iter()
            .any(|line| line.ends_with("<- vfs_open) arg1=0x0")),
        "{seen:?}"
    );
    clean_up();
}

/// Two tasks define and delete at the same time. Each refusal keeps its own message.
#[guest_test]
fn two_writers_do_not_disturb_each_other() {
    clean_up();
    let writer = |name: &'static str, bad: &'static str| {
        for _ in 0..50 {
            append(&format!("p:two/{name} traced_function"), "kprobe_events").unwrap();
            assert_eq!(append(bad, "kprobe_events"), Err(Errno::EINVAL));
            append(&format!("-:two/{name}"), "kprobe_events").unwrap();
        }
    };
    let other = kernel::task::kthread::spawn_kthread_on(1 << 1, "writer", move || {
        writer("left", "p:left traced_function %nowhere");
    })
    .unwrap();
    writer("right", "p:right no_such_function");
    other.wait_released();
    let log = show("error_log");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 24);
    for entry in lines.chunks(3) {
        let [message, command, caret] = entry else {
            panic!("{log}");
        };
        let (text, column) = if command.contains("left") {
            ("Invalid register name", "p:left traced_function ".len())
        } else {
            ("Invalid probed address or symbol", "p:right ".len())
        };
        assert!(message.ends_with(text), "{log}");
        assert_eq!(caret.find('^'), Some("  Command: ".len() + column), "{log}");
    }
    clean_up();
    assert!(!exists("events/two"));
}

/// The events of the kernel's own keep their names. Deleting and clearing leaves them.
#[guest_test]
fn names_of_the_kernel_s_own_events_are_taken() {
    clean_up();
    for name in ["sched/sched_switch", "syscalls/sys_enter_open"] {
        let line = format!("p:{name} traced_function");
        let (errno, said, column) = refused(&line);
        assert_eq!((errno, column), (Errno::EEXIST, 0), "{said}");
        assert_eq!(
            said,
            "Given group/event name is already used by another event"
        );
        assert!(append(&format!("-:{name}"), "kprobe_events").is_err());
        assert!(exists(&format!("events/{name}/enable")));
    }
    // The same event in another group is another event.
    append("p:mine/sched_switch traced_function", "kprobe_events").unwrap();
    clean_up();
    assert!(exists("events/sched/sched_switch/enable"));
}
