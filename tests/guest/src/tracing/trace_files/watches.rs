//! Watches as events: `w:` in `dynamic_events`, what their hits record, and what is refused.
//!
//! The words and the code that touches them are those of the tests of watchpoints, so each record
//! is known.

use alloc::{format, string::String, vec, vec::Vec};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kernel::{
    arch::smp,
    errno::Errno,
    task::{kthread::spawn_kthread_on, schedule},
};

use super::{append, clean_up, echo, exists, lines, show};
use crate::probes::watchpoints::{WATCHED_WORDS, watched_load, watched_store, watched_store_4};

/// Everything as it was before, and the words are 0.
fn begin() {
    clean_up();
    echo("", "dynamic_events").unwrap();
    echo("", "error_log").unwrap();
    WATCHED_WORDS
        .words
        .iter()
        .for_each(|word| word.store(0, Relaxed));
}

fn word(index: usize) -> *const u64 {
    WATCHED_WORDS.words[index].as_ptr()
}

fn store(index: usize, value: u64) {
    // SAFETY: a word for tests.
    unsafe { watched_store(word(index), value) };
}

/// What the records say after the place. The place is in the function that has touched the word.
fn records(event: &str, function: &str) -> Vec<String> {
    let begin = format!("{event}: ({function}");
    let lines = lines();
    let all = lines
        .iter()
        .filter(|line| line.starts_with(&format!("{event}: ")));
    let values = all.map(|line| {
        assert!(line.starts_with(&begin), "{line}");
        line.split_once(") ")
            .map_or("", |(_, values)| values)
            .into()
    });
    values.collect()
}

/// Each store is a record, with both values by type; a load is one if reads count. Off, it costs no
/// debug register.
#[guest_test]
fn a_touched_word_is_recorded() {
    begin();
    let list = || show("../debug/kprobes/list");
    append(
        "w:word w@WATCHED_WORDS old=$old:u64 new=$new:u64 at=$addr",
        "dynamic_events",
    )
    .unwrap();
    let line = "w:wprobes/word w@WATCHED_WORDS old=$old:u64 new=$new:u64 at=$addr\n";
    assert_eq!(show("dynamic_events"), line);
    // The files of kernel probes do not have it, nor delete it.
    echo("", "kprobe_events").unwrap();
    assert_eq!(
        (show("kprobe_events"), show("dynamic_events").as_str()),
        (String::new(), line)
    );
    store(0, 1);
    assert!(!list().contains("  w  "));
    echo("1", "events/wprobes/word/enable").unwrap();
    assert!(
        list().lines().any(|line| line.contains("  w  ")),
        "{}",
        list()
    );
    store(0, 5);
    store(1, 9);
    store(0, 5);
    // SAFETY: a word for tests.
    unsafe { watched_load(word(0), 0) };
    echo("0", "events/wprobes/word/enable").unwrap();
    store(0, 6);
    let at = format!("at={:#x}", word(0).addr());
    let expected = [format!("old=1 new=5 {at}"), format!("old=5 new=5 {at}")];
    assert_eq!(records("word", "watched_store"), expected);
    // The hit that was first after it was turned on again knows nothing of those between.
    echo("1", "events/wprobes/word/enable").unwrap();
    store(0, 7);
    assert_eq!(
        records("word", "watched_store")[2],
        format!("old=6 new=7 {at}")
    );
    let profile = show("events/wprobes/word/profile");
    assert!(profile.contains('3'), "{profile}");
    // Reads, and a part of a word.
    append("w:reads @WATCHED_WORDS+16:8 new=$new:x64", "dynamic_events").unwrap();
    append(
        "w:half w@WATCHED_WORDS+28:4 old=$old:x32 new=$new:x32",
        "dynamic_events",
    )
    .unwrap();
    assert!(show("dynamic_events").contains("w:wprobes/reads rw@WATCHED_WORDS+16:8 "));
    echo("1", "events/wprobes/enable").unwrap();
    echo("", "trace").unwrap();
    WATCHED_WORDS.words[2].load(Relaxed);
    // SAFETY: words for tests.
    unsafe {
        watched_load(word(2), 0);
        watched_store_4(word(3), 1);
        watched_store_4(word(3).byte_add(4), 2);
    }
    assert_eq!(records("half", "watched_store_4"), ["old=0x0 new=0x2"]);
    let reads = lines();
    let reads = reads.iter().filter(|line| line.starts_with("reads: "));
    let reads: Vec<_> = reads
        .filter(|line| line.contains("(watched_load"))
        .collect();
    assert_eq!(reads.len(), 1, "{reads:?}");
    assert!(reads[0].ends_with(") new=0x0"), "{reads:?}");
    echo("0", "events/wprobes/enable").unwrap();
    append("-:wprobes/word", "dynamic_events").unwrap();
    assert!(!exists("events/wprobes/word") && exists("events/wprobes/half"));
    begin();
}

/// Filters, triggers and formats are those of all events.
#[guest_test]
fn filters_and_triggers_work_on_watches() {
    begin();
    append("w:word w@WATCHED_WORDS:8 new=$new:u64", "dynamic_events").unwrap();
    let format = show("events/wprobes/word/format");
    for part in [
        "field:unsigned long __probe_ip;\toffset:8;",
        "\"(%lx) new=%Lu\", REC->__probe_ip",
    ] {
        assert!(format.contains(part), "{format}");
    }
    echo("new > 5", "events/wprobes/word/filter").unwrap();
    echo("hist:keys=new", "events/wprobes/word/trigger").unwrap();
    echo("1", "events/wprobes/word/enable").unwrap();
    for value in [3, 6, 6, 9] {
        store(0, value);
    }
    assert_eq!(
        records("word", "watched_store"),
        ["new=6", "new=6", "new=9"]
    );
    let hist = show("events/wprobes/word/hist");
    for row in [
        "{ new:          3 } hitcount:          1",
        "{ new:          6 } hitcount:          2",
    ] {
        assert!(hist.contains(row), "{hist}");
    }
    echo("!hist:keys=new", "events/wprobes/word/trigger").unwrap();
    echo("0", "events/wprobes/word/enable").unwrap();
    begin();
}

/// There are four debug registers. The fifth watch is refused when it is turned on, and the others
/// go on.
#[guest_test]
fn a_fifth_watch_waits_for_a_register() {
    begin();
    for index in 0..5 {
        let line = format!("w:w{index} w@WATCHED_WORDS+{}:8 new=$new", 8 * (index % 4));
        append(&line, "dynamic_events").unwrap();
    }
    let enable = |index: usize, on: &str| echo(on, &format!("events/wprobes/w{index}/enable"));
    for index in 0..4 {
        enable(index, "1").unwrap();
    }
    assert_eq!(enable(4, "1"), Err(Errno::EBUSY));
    assert_eq!(show("events/wprobes/w4/enable"), "0\n");
    for index in 0..4 {
        store(index, 2 + index as u64);
    }
    let of = |index: usize| records(&format!("w{index}"), "watched_store");
    for index in 0..4 {
        assert_eq!(of(index), [format!("new={:#x}", 2 + index)]);
    }
    enable(0, "0").unwrap();
    enable(4, "1").unwrap();
    store(0, 7);
    assert_eq!((of(0).len(), of(4)), (1, vec!["new=0x7".into()]));
    begin();
}

/// What an event finds is watched, from the hit on that finds it to the one that lets it go.
#[guest_test(smp = 2)]
fn triggers_aim_a_watch_at_what_a_hit_has_found() {
    begin();
    echo("", "kprobe_events").unwrap();
    append(
        "w:watch w@-1:8 at=$addr old=$old:u64 new=$new:u64",
        "dynamic_events",
    )
    .unwrap();
    let line = "w:wprobes/watch w@-1:8 at=$addr old=$old:u64 new=$new:u64\n";
    assert_eq!(show("dynamic_events"), line);
    append(
        "p:found watched_store_4 object=%di:x64 value=%si:u32",
        "kprobe_events",
    )
    .unwrap();
    append("p:lost watched_load object=%di:x64", "kprobe_events").unwrap();
    let trigger = |event: &str, text: &str| append(text, &format!("events/{event}/trigger"));
    let watch = || show("events/wprobes/watch/enable");
    trigger("kprobes/found", "set_wprobe:watch:object+8 if value < 100").unwrap();
    trigger("kprobes/lost", "clear_wprobe:watch:object+8").unwrap();
    assert_eq!(
        show("events/kprobes/found/trigger"),
        "set_wprobe:watch:object+8:unlimited if value < 100\n"
    );
    let busy = append("-:wprobes/watch", "dynamic_events");
    assert_eq!((watch().as_str(), busy), ("0*\n", Err(Errno::EBUSY)));
    // SAFETY: words for tests.
    let (find, lose) = unsafe {
        (
            |index, value| watched_store_4(word(index), value),
            |index| watched_load(word(index), 0),
        )
    };
    let all = || (0..4).for_each(|index| store(index, 10 + index as u64));
    all();
    // The filter says no, then yes; then it is aimed already.
    find(2, 100);
    all();
    assert_eq!(
        (records("watch", "watched_store"), watch()),
        (vec![], "0*\n".into())
    );
    find(1, 1);
    find(0, 1);
    assert_eq!(watch(), "1*\n");
    all();
    let at = |index: usize| format!("at={:#x}", word(index).addr());
    assert_eq!(
        records("watch", "watched_store"),
        [format!("{} old=12 new=12", at(2))]
    );
    // Another object is let go, then this one.
    lose(0);
    store(2, 13);
    lose(1);
    store(2, 14);
    assert_eq!(watch(), "0*\n");
    assert_eq!(
        records("watch", "watched_store"),
        [
            format!("{} old=12 new=12", at(2)),
            format!("{} old=12 new=13", at(2))
        ]
    );
    // What cannot be watched is told.
    append(
        "p:wrong traced_function nowhere=\\0x1000:x64",
        "kprobe_events",
    )
    .unwrap();
    trigger("kprobes/wrong", "set_wprobe:watch:nowhere").unwrap();
    super::call(1);
    assert_eq!(
        show("events/kprobes/wrong/trigger"),
        "set_wprobe:watch:nowhere+0:unlimited # missed: 1\n"
    );
    trigger(
        "kprobes/wrong",
        "!set_wprobe:watch:nowhere+0:unlimited # missed: 1",
    )
    .unwrap();
    // The change of a filter leaves it where it is; so does each other change of what it does.
    find(1, 1);
    echo("new > 50", "events/wprobes/watch/filter").unwrap();
    store(2, 40);
    store(2, 60);
    echo("0", "events/wprobes/watch/filter").unwrap();
    assert_eq!(
        records("watch", "watched_store")[2..],
        [format!("{} old=40 new=60", at(2))]
    );
    trigger("kprobes/found", "!set_wprobe:watch:object").unwrap();
    trigger("kprobes/lost", "!clear_wprobe:watch").unwrap();
    // It stays as they have left it.
    assert_eq!(watch(), "1\n");
    echo("0", "events/wprobes/watch/enable").unwrap();
    append("-:wprobes/watch", "dynamic_events").unwrap();
    echo("", "dynamic_events").unwrap();
    begin();
}

/// A count is lowered by what moves the watch, and by nothing else.
#[guest_test]
fn triggers_of_watches_count_what_they_move() {
    begin();
    append("w:watch w@-1", "dynamic_events").unwrap();
    append("p:found watched_store_4 object=%di:x64", "dynamic_events").unwrap();
    append("p:lost watched_load", "dynamic_events").unwrap();
    let trigger = |event: &str, text: &str| append(text, &format!("events/{event}/trigger"));
    trigger("kprobes/lost", "clear_wprobe:watch:5").unwrap();
    trigger("kprobes/found", "set_wprobe:watch:object:2").unwrap();
    let again = trigger("kprobes/found", "set_wprobe:watch:object");
    assert_eq!(again, Err(Errno::EEXIST));
    for _ in 0..2 {
        for _ in 0..3 {
            // SAFETY: a word for tests.
            unsafe { watched_store_4(word(0), 1) };
        }
        for _ in 0..3 {
            // SAFETY: a word for tests.
            unsafe { watched_load(word(0), 0) };
        }
    }
    // SAFETY: a word for tests.
    unsafe { watched_store_4(word(0), 1) };
    assert_eq!(
        (
            show("events/kprobes/found/trigger"),
            show("events/kprobes/lost/trigger")
        ),
        (
            "set_wprobe:watch:object+0:count=0\n".into(),
            "clear_wprobe:watch:count=3\n".into()
        )
    );
    // The store that finds the word is seen, and two more.
    assert_eq!(records("watch", "watched_store_4").len(), 6);
    trigger("kprobes/found", "!set_wprobe:watch:object").unwrap();
    trigger("kprobes/lost", "!clear_wprobe:watch").unwrap();
    begin();
}

/// Triggers, filters and the watch come and go while other CPUs find, touch and lose objects. Each
/// record is of the word that it names, with values that this word has.
#[guest_test(smp = 4)]
fn watches_that_triggers_aim_come_and_go_under_load() {
    const ROUNDS: usize = 2;
    static STOP: AtomicBool = AtomicBool::new(false);
    begin();
    append(
        "p:found watched_store_4 object=%di:x64 half=%si:u32",
        "dynamic_events",
    )
    .unwrap();
    append("p:lost watched_load object=%di:x64", "dynamic_events").unwrap();
    STOP.store(false, Relaxed);
    for (index, word) in WATCHED_WORDS.words.iter().enumerate() {
        word.store(index as u64, Relaxed);
    }
    let threads = (1..smp::online_cpus()).map(|cpu| {
        let work = move || {
            let mut turn = 0;
            while !STOP.load(Relaxed) {
                turn += 1;
                let index = (cpu + turn) % 4;
                // Word `n` only has values whose remainder by 4 is `n`.
                let value = (4 * (turn % 1000) + index) as u64;
                // SAFETY: a word for tests.
                unsafe {
                    watched_store_4(word(index), value);
                    watched_store(word(index), value + 4);
                    watched_load(word(index), 0);
                }
            }
        };
        spawn_kthread_on(1 << cpu, "objects", work).expect("memory for a thread")
    });
    let threads: Vec<_> = threads.collect();
    let trigger =
        |event: &str, text: &str| append(text, &format!("events/kprobes/{event}/trigger"));
    let mut records = 0;
    let is_aimed = || show("events/wprobes/watch/enable") == "1*\n";
    let has_record = || lines().iter().any(|line| line.starts_with("watch: "));
    for round in 0..ROUNDS {
        let definition = "w:watch w@-1:8 at=$addr old=$old:u64 new=$new:u64";
        append(definition, "dynamic_events").unwrap();
        trigger("found", "set_wprobe:watch:object").unwrap();
        trigger("lost", "clear_wprobe:watch:object").unwrap();
        for filter in ["new != 7", "0"] {
            echo(filter, "events/wprobes/watch/filter").unwrap();
            // The other CPUs aim it sooner or later, and touch what it is aimed at.
            while !is_aimed() || !has_record() {
                schedule();
            }
        }
        if round % 2 == 0 {
            trigger("found", "!set_wprobe:watch:object").unwrap();
            trigger("lost", "!clear_wprobe:watch").unwrap();
        } else {
            trigger("lost", "!clear_wprobe:watch").unwrap();
            trigger("found", "!set_wprobe:watch:object").unwrap();
        }
        echo("0", "events/wprobes/watch/enable").unwrap();
        for line in lines().iter().filter(|line| line.starts_with("watch: ")) {
            let number = |name: &str| {
                let (_, rest) = line.split_once(name).expect(line);
                let text = rest.split(' ').next().expect(line);
                let hex = text
                    .strip_prefix("0x")
                    .map(|hex| u64::from_str_radix(hex, 16));
                hex.unwrap_or_else(|| text.parse()).expect(line)
            };
            let index = (number("at=") - word(0).addr() as u64) / 8;
            assert_eq!(
                (number("old=") % 4, number("new=") % 4),
                (index, index),
                "{line}"
            );
            records += 1;
        }
        echo("", "trace").unwrap();
        append("-:wprobes/watch", "dynamic_events").unwrap();
    }
    STOP.store(true, Relaxed);
    for thread in threads {
        thread.wait_released();
    }
    assert!(records > 0);
    echo("0", "events/enable").unwrap();
    begin();
}

#[guest_test]
fn triggers_of_watches_are_refused_with_the_reason() {
    begin();
    append("w:free w@-1:8", "dynamic_events").unwrap();
    append("w:fixed w@WATCHED_WORDS", "dynamic_events").unwrap();
    append("w:busy w@-1:8", "dynamic_events").unwrap();
    append(
        "p:found watched_store_4 object=%di:x64 half=%si:x32",
        "dynamic_events",
    )
    .unwrap();
    echo("1", "events/wprobes/busy/enable").unwrap();
    for (line, errno, message) in [
        (
            "set_wprobe:none:object",
            Errno::ENOENT,
            "Watch event not found",
        ),
        (
            "set_wprobe:found:object",
            Errno::ENOENT,
            "Watch event not found",
        ),
        (
            "set_wprobe:fixed:object",
            Errno::EINVAL,
            "define it with @-1",
        ),
        ("set_wprobe:busy:object", Errno::EBUSY, "disable it first"),
        ("set_wprobe:free", Errno::EINVAL, "Field is required"),
        ("set_wprobe:free:none", Errno::ENOENT, "Field not found"),
        ("clear_wprobe:free:half", Errno::ENOEXEC, "8 bytes"),
        ("clear_wprobe:none", Errno::ENOENT, "Watch event not found"),
    ] {
        echo("", "error_log").unwrap();
        let file = "events/kprobes/found/trigger";
        assert_eq!(append(line, file), Err(errno), "{line}");
        let log = show("error_log");
        assert!(log.contains("wprobe_trigger: error: "), "{log}");
        assert!(log.contains(message) && log.contains(line), "{log}");
        assert!(show(file).starts_with("# Available triggers:"), "{line}");
    }
    assert_eq!(show("events/wprobes/free/enable"), "0\n");
    // One that is on watches nothing, and holds its register.
    assert!(show("../debug/kprobes/list").contains("  w  "));
    echo("0", "events/wprobes/busy/enable").unwrap();
    begin();
}

#[guest_test]
fn watches_that_cannot_be_are_refused() {
    begin();
    for (line, message) in [
        (
            "w:x r@WATCHED_WORDS",
            "The processor cannot watch reads alone; write rw@",
        ),
        ("w:x x@WATCHED_WORDS", "A watch is w@<address>[:<length>]"),
        ("w:x WATCHED_WORDS", "A watch is w@<address>[:<length>]"),
        ("w:x w@WATCHED_WORDS:3", "A watch has 1, 2, 4 or 8 bytes"),
        ("w:x w@WATCHED_WORDS+1:4", "A watch has 1, 2, 4 or 8 bytes"),
        ("w:x w@NO_SUCH_WORDS", "Invalid probed address or symbol"),
        ("w:x w@0x10:8", "Failed to register probe event"),
        (
            "w3:x w@WATCHED_WORDS",
            "Maxactive is only for function exit",
        ),
        (
            "w:x w@WATCHED_WORDS a=$arg1",
            "$arg* can be used only on function entry or exit",
        ),
        (
            "w:x w@WATCHED_WORDS a=$retval",
            "$retval is not available on probe",
        ),
        ("p:x w@WATCHED_WORDS", "Invalid probed address or symbol"),
        ("p:x traced_function a=$new", "Invalid $-variable specified"),
    ] {
        echo("", "error_log").unwrap();
        assert_eq!(append(line, "dynamic_events"), Err(Errno::EINVAL), "{line}");
        let log = show("error_log");
        assert!(log.contains(message), "{line}: {log}");
        assert_eq!(
            log.contains("trace_wprobe: error: "),
            line.starts_with('w'),
            "{log}"
        );
    }
    assert_eq!(
        append("w:x w@WATCHED_WORDS", "kprobe_events"),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        append("w:x w@WATCHED_WORDS", "uprobe_events"),
        Err(Errno::EINVAL)
    );
    assert_eq!(show("dynamic_events"), "");
    begin();
}
